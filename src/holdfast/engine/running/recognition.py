"""Owns recognising the turns in a provider's session: which attempt sent each, and which of its calls we lack.

What a request says proves nothing: people ask the same thing twice, and a database that was put back mints the
same turn numbers again. An attempt is known by its random id, which stands before the request. Where none
stands, a request is an attempt's if it is the first one behind what the session held at the launch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from holdfast.domain.conversations import SeenTurns
from holdfast.domain.decisions import DecisionKind
from holdfast.domain.events import Called, Event, EventKind
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.inputs import clean_text
from holdfast.domain.pointers import TranscriptMark
from holdfast.domain.records import record
from holdfast.domain.redaction import Json, redact_value
from holdfast.domain.telling.context import current_request, read_marker, read_past
from holdfast.domain.turns import Attempt, Lease
from holdfast.engine.running.agents import Agent, Agents
from holdfast.engine.running.launching import late_events, recorded_data
from holdfast.providers.contract import ArchivedTurn
from holdfast.store.contract import Store

#: of one session, the newest ones
_MOST_TURNS = 1000
#: events that are read at a time
_PAGE = 1000


@record
class Recognised:
    turn: ArchivedTurn
    attempt: Attempt | None  #: that sent it; None: a person did, or a Holdfast with another record

    @property
    def is_outside(self) -> bool:
        """On the branch that the session goes on with: what somebody has left behind there is left alone."""
        return self.attempt is None and self.turn.live


def recognise(
    store: Store, agent: Agent, path: str, native: ProviderSessionId, after: TranscriptMark | None = None
) -> Sequence[Recognised]:
    """The turns of a session, in order; with a mark, those that were not there yet when it was made."""
    found = deque(agent.archive.turns(path, native, after), maxlen=_MOST_TURNS)
    if not found:
        return ()
    known = _attempts(store, agent.provider.name, native)
    by_id = {attempt.id: attempt for attempt in known if attempt.id is not None}
    by_number = {attempt.seq: attempt for attempt in known if attempt.id is None}
    by_place = _by_place(store, agent, path, native, known)
    recognised = []
    for turn in found:
        marker = read_marker(turn.prompt)
        if marker is None:
            attempt = by_place.get(turn.key)
        elif marker.attempt_id is None:
            attempt = by_number.get(marker.seq)
        else:
            # the first one: whoever sends the same text again is somebody else
            attempt = by_id.pop(marker.attempt_id, None)
        recognised.append(Recognised(turn, attempt))
    return recognised


def is_sent_by(recognised: Recognised, lease: Lease) -> bool:
    """Whether the attempt that holds this lease sent the request, not an earlier attempt of the same turn."""
    attempt = recognised.attempt
    return attempt is not None and (attempt.session_id, attempt.fence) == (lease.session_id, lease.fence)


def is_request_of(recognised: Recognised, conversation_id: str, seq: int, prompt: str) -> bool:
    """Whether it holds the request of a turn, as that reads now."""
    attempt = recognised.attempt
    return (
        attempt is not None
        and recognised.turn.live
        and (attempt.conversation_id, attempt.seq) == (conversation_id, seq)
        and _asks(recognised.turn, prompt)
    )


def seen_on_branch(
    seen: SeenTurns, recognised: Iterable[Recognised], conversation_id: str, native: ProviderSessionId
) -> SeenTurns:
    """What a session has really seen: what stands on the branch that the provider goes on with.

    ``seen`` is what was recorded of it. Turns that nobody can recognise stay as they were recorded.
    """
    for live in (False, True):
        for known in recognised:
            attempt = known.attempt
            if attempt is None or known.turn.live is not live:
                continue
            if attempt.provider_session_id == native and attempt.conversation_id != conversation_id:
                continue  # another conversation's: its numbers mean other turns
            # whatever else an attempt on a dead branch covers may stand before the fork
            sent = read_past(known.turn.prompt).with_turn(attempt.seq)
            seen = seen.union(attempt.seen) if live else seen.without(sent)
    return seen


def _attempts(store: Store, provider: str, native: ProviderSessionId) -> list[Attempt]:
    """Those in the session, the newest first; then those in the one that it was forked from, and so on."""
    known: list[Attempt] = []
    looked_at: set[ProviderSessionId] = set()
    wanted = [native]
    while wanted:
        source = wanted.pop()
        looked_at.add(source)
        found = store.attempts_in(provider, source)
        known += found
        sources = {attempt.forked_from for attempt in found if attempt.forked_from is not None}
        wanted += sources - looked_at
    return known


def _by_place(
    store: Store, agent: Agent, path: str, native: ProviderSessionId, known: Sequence[Attempt]
) -> dict[str, Attempt]:
    """The requests that were sent as they are: what began the session, and provider commands that did not end well.

    Those that ended well lie before the mark of the session's pointer.
    """
    unsettled = takewhile(lambda attempt: not attempt.status.has_spoken, known)
    began = (attempt for attempt in known if attempt.decision.kind is DecisionKind.FRESH)
    found: dict[str, Attempt] = {}
    for attempt in _launched((*unsettled, *began)):
        if attempt.before is None and attempt.decision.kind is not DecisionKind.FRESH:
            continue  # nobody knows where it began
        first = next(iter(agent.archive.turns(path, native, attempt.before)), None)
        if first is not None and _asks(first, store.get_turn(attempt.conversation_id, attempt.seq).prompt):
            found.setdefault(first.key, attempt)
    return found


def _asks(turn: ArchivedTurn, prompt: str) -> bool:
    """Another text is another request; the same one proves nothing."""
    return current_request(turn.prompt).strip() == clean_text(prompt).strip()


def _launched(attempts: Iterable[Attempt]) -> Iterable[Attempt]:
    """Each once; what was never launched has sent nothing."""
    launched = (attempt for attempt in attempts if attempt.process is not None)
    return {(attempt.session_id, attempt.fence): attempt for attempt in launched}.values()


@record
class Found:
    """The turn of one attempt in the agent's own session."""

    attempt: Attempt
    native: ProviderSessionId
    path: str
    turn: ArchivedTurn
    is_last: bool  #: nothing stands behind it


def find_own_turn(store: Store, agents: Agents, lease: Lease) -> Found | None:
    """What the agent's own session holds of the attempt that has the lease.

    None if it does not hold the request, or cannot be seen here: in another home, or not launched yet.
    """
    attempts = store.attempts(lease.conversation_id, lease.seq)
    attempt = next((known for known in attempts if known.fence == lease.fence), None)
    agent = None if attempt is None else agents.of_runtime(attempt.provider, attempt.runtime_id)
    native = None if attempt is None else attempt.provider_session_id
    if attempt is None or attempt.process is None or agent is None or native is None:
        return None
    path = agent.archive.find(native, attempt.work_dir)
    held = () if path is None else recognise(store, agent, path, native)
    own = next((known for known in held if is_sent_by(known, lease)), None)
    if path is None or own is None:
        return None
    return Found(attempt, native, path, own.turn, own is held[-1])


def calls_left_by(store: Store, agents: Agents, lease: Lease) -> list[Event]:
    """The calls of the attempt that has the lease that its stream did not bring, as its next events.

    Some agents report a call only when it has ended, and a worker that is killed has not read everything.
    """
    found = find_own_turn(store, agents, lease)
    return [] if found is None else unrecorded_calls(store, agents.get(found.attempt.provider), lease, found)


def unrecorded_calls(store: Store, agent: Agent, lease: Lease, own: Found) -> list[Event]:
    """The calls of the attempt's own turn that our record lacks."""
    found = list(agent.archive.calls(own.path, own.native, own.turn.key))
    calls = [event for event in found if isinstance(event, Called)]
    if not calls:
        return []
    recorded = list(_recorded(store, lease))
    known = [event.data for event in recorded if event.kind is EventKind.TOOL_CALL]
    lacking = lacking_calls(calls, known, renamed=agent.archive.renames_calls)
    late = [event for event in found if event.call_id in lacking]
    return late_events(late, max((event.number for event in recorded), default=0), store.now())


def _recorded(store: Store, lease: Lease) -> Iterator[Event]:
    after = (lease.attempt, 0)
    while page := store.events(lease.conversation_id, lease.seq, after=after, limit=_PAGE):
        for attempt, event in page:
            if attempt != lease.attempt:
                return
            yield event
        after = (lease.attempt, page[-1][1].number)


def lacking_calls(calls: Sequence[Called], known: Sequence[Mapping[str, Any]], *, renamed: bool) -> set[str]:
    """The ids of the calls that are not among the known ones.

    Where the stream has given them other ids, a call is known by what it asks. That may read otherwise in
    the record, so whatever is known beyond that stands for the oldest of the others.
    """
    ids = {data.get("call_id") for data in known}
    lacking = [call for call in calls if call.call_id not in ids]
    if renamed:
        own_ids = {call.call_id for call in calls}
        streamed = [data for data in known if data.get("call_id") not in own_ids]
        unlike = []
        for call in lacking:
            same = next((data for data in streamed if _is_same(call, data)), None)
            if same is None:
                unlike.append(call)
            else:
                streamed.remove(same)
        lacking = unlike[len(streamed) :]
    return {call.call_id for call in lacking}


def _is_same(call: Called, known: Mapping[str, Any]) -> bool:
    """By the letters alone: the stream puts a shell before a command, and quotes it in its own way."""
    asked = redact_value(recorded_data(call)["arguments"])
    return known.get("tool") == call.tool and _letters(known.get("arguments")).endswith(_letters(asked))


def _letters(value: Json) -> str:
    match value:
        case str():
            return "".join(filter(str.isalnum, value))
        case dict():
            return "".join(map(_letters, value.values()))
        case list():
            return "".join(map(_letters, value))
        case _:
            return ""

"""Owns looking at a provider's own session on this machine: whose its turns are, which to adopt, and can it be resumed.

The text of a request does not prove who sent it: people ask the same thing twice, and a database that was restored
gives the same turn numbers again. So Holdfast puts the random id of the attempt before the request. Where there is no
id, a request belongs to an attempt if it is the first one after what the session held at the launch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from holdfast.clock import Instant
from holdfast.domain.conversations import SeenTurns
from holdfast.domain.decisions import (
    NOT_OBSERVABLE,
    Decision,
    DecisionKind,
    Facts,
    Fresh,
    Outcome,
    Reason,
    Resume,
    ResumeRequest,
    TranscriptFacts,
)
from holdfast.domain.events import Called, Event, EventKind, Returned
from holdfast.domain.guards import decide_at_launch
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.inputs import clean_text
from holdfast.domain.pointers import NOTHING_YET, Pointer, TranscriptMark
from holdfast.domain.policy import ResumePolicy, VaultPolicy
from holdfast.domain.records import record, replace
from holdfast.domain.redaction import Json, redact_value
from holdfast.domain.sessions import Session, title_of
from holdfast.domain.telling.context import current_request, read_marker, read_past
from holdfast.domain.turns import Adoption, Attempt, Lease, OutsideTurn, Situation
from holdfast.engine.past import newest_first
from holdfast.engine.restoring import Rescue
from holdfast.engine.running.agents import Agent, Agents
from holdfast.engine.running.launching import late_events, recorded_data
from holdfast.engine.vault import Vault
from holdfast.providers.contract import ArchivedTurn
from holdfast.store.contract import Store

#: attempts in one provider session that are looked at: the newest ones
_MOST_ATTEMPTS = 10_000
#: events that are read at a time
_PAGE = 1000
#: texts of turns that are adopted in one call: as JSON they may take six times as much, and a server takes 16 MiB
_PIECE_CHARACTERS = 2 * 1024 * 1024


# --- which attempt sent each turn ---


@record
class Recognised:
    turn: ArchivedTurn
    attempt: Attempt | None  #: the attempt that sent it; None: a person, or a Holdfast with another store

    @property
    def is_outside(self) -> bool:
        """Whether it was made outside Holdfast, on the branch that the session continues."""
        return self.attempt is None and self.turn.live


def recognise(
    store: Store, agent: Agent, path: str, native: ProviderSessionId, after: TranscriptMark | None = None
) -> Sequence[Recognised]:
    """The turns of a session, in order; with a mark, those that were added since the mark was made."""
    found = list(agent.archive.turns(path, native, after))
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
            # only the first turn with this id: the same text a second time was sent by somebody else
            attempt = by_id.pop(marker.attempt_id, None)
        recognised.append(Recognised(turn, attempt))
    return recognised


def is_sent_by(recognised: Recognised, lease: Lease) -> bool:
    """Whether the attempt that holds this lease sent the request, not an earlier attempt of the same turn."""
    attempt = recognised.attempt
    return attempt is not None and (attempt.session_id, attempt.fence) == (lease.session_id, lease.fence)


def is_request_of(recognised: Recognised, conversation_id: str, seq: int, prompt: str) -> bool:
    """Whether this is the request of a turn, with the prompt that the turn has now."""
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
    """The turns that a session has really seen: those on the branch that the provider continues.

    ``seen`` is what was recorded. For turns that cannot be recognised, the record counts.
    """
    for live in (False, True):
        for known in recognised:
            attempt = known.attempt
            if attempt is None or known.turn.live is not live:
                continue
            if attempt.provider_session_id == native and attempt.conversation_id != conversation_id:
                continue  # in another conversation the same numbers are other turns
            # of an attempt on a dead branch only the turns that its own prompt told of are certainly lost
            sent = read_past(known.turn.prompt).with_turn(attempt.seq)
            seen = seen.union(attempt.seen) if live else seen.without(sent)
    return seen


def _attempts(store: Store, provider: str, native: ProviderSessionId) -> list[Attempt]:
    """The attempts in a provider session, newest first; then those in the session that it was forked from, and so on."""
    known: list[Attempt] = []
    looked_at: set[ProviderSessionId] = set()
    wanted = [native]
    while wanted:
        source = wanted.pop()
        looked_at.add(source)
        found = store.attempts_in(provider, source, _MOST_ATTEMPTS)
        known += found
        sources = {attempt.forked_from for attempt in found if attempt.forked_from is not None}
        wanted += sources - looked_at
    return known


def _by_place(
    store: Store, agent: Agent, path: str, native: ProviderSessionId, known: Sequence[Attempt]
) -> dict[str, Attempt]:
    """By the key of the turn: attempts whose request has no id before it, found by its place in the session.

    These are the request that began the session, and commands of the provider that did not end well. Commands that
    ended well are before the mark of the session's pointer.
    """
    unsettled = takewhile(lambda attempt: not attempt.status.has_spoken, known)
    began = (attempt for attempt in known if attempt.decision.kind is DecisionKind.FRESH)
    found: dict[str, Attempt] = {}
    for attempt in _launched((*unsettled, *began)):
        if attempt.before is None and attempt.decision.kind is not DecisionKind.FRESH:
            continue  # its place is not known
        first = next(iter(agent.archive.turns(path, native, attempt.before)), None)
        if first is not None and _asks(first, store.get_turn(attempt.conversation_id, attempt.seq).prompt):
            found.setdefault(first.key, attempt)
    return found


def _asks(turn: ArchivedTurn, prompt: str) -> bool:
    """Whether the turn has this prompt. A different text is a different request; the same text proves nothing."""
    return current_request(turn.prompt).strip() == clean_text(prompt).strip()


def _launched(attempts: Iterable[Attempt]) -> Iterable[Attempt]:
    """Each attempt that was launched, once: the others have sent nothing."""
    launched = (attempt for attempt in attempts if attempt.process is not None)
    return {(attempt.session_id, attempt.fence): attempt for attempt in launched}.values()


# --- what the session holds of one attempt ---


@record
class OwnTurn:
    """The turn of one attempt in the agent's own session."""

    attempt: Attempt
    agent: Agent
    native: ProviderSessionId
    path: str
    turn: ArchivedTurn
    is_last: bool  #: it is the last turn of the session


def find_own_turn(store: Store, agents: Agents, lease: Lease) -> OwnTurn | None:
    """The turn of the attempt that has the lease, in the agent's own session.

    None if the session does not hold the request, or is not on this machine, or the attempt was not launched.
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
    return OwnTurn(attempt, agent, native, path, own.turn, own is held[-1])


def calls_left_by(store: Store, agents: Agents, lease: Lease) -> list[Event]:
    """Events for the calls of an attempt that the stream did not report, numbered after its recorded events.

    Some agents report a call only when it has ended, and a worker that was killed has not read everything.
    """
    found = find_own_turn(store, agents, lease)
    return [] if found is None else unrecorded_calls(store, lease, found)


def unrecorded_calls(store: Store, lease: Lease, own: OwnTurn) -> list[Event]:
    """Events for the calls of the attempt's own turn that are not recorded."""
    found = [event for key, event in own.agent.archive.calls(own.path, own.native) if key == own.turn.key]
    calls = [event for event in found if isinstance(event, Called)]
    if not calls:
        return []
    recorded = list(_recorded(store, lease))
    known = [event.data for event in recorded if event.kind is EventKind.TOOL_CALL]
    lacking = lacking_calls(calls, known, renamed=own.agent.archive.renames_calls)
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

    ``renamed``: the stream gives calls other ids than the session files do. Then a call is recognised by its arguments.
    The record may write them differently: each known call that matches no call by its arguments counts as the oldest of
    the calls that are left.
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
    """Compares letters and digits only: the stream puts a shell before a command, and quotes it differently."""
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


# --- adopting turns that were made outside Holdfast ---


@record
class AdoptionOutcome:
    """What a look at a provider's session has found."""

    adopted: int  #: how many turns made outside Holdfast were added to the history
    situation: Situation  #: after that
    is_unfinished: bool = False  #: the session's last turn was made outside Holdfast, and has no answer yet
    is_locked: bool = False  #: another process has the lock on the session, so that nothing was looked at

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices for the person."""
        if not self.adopted:
            return ()
        turns, them = ("1 turn was", "it") if self.adopted == 1 else (f"{self.adopted} turns were", "them")
        return (f"{turns} made outside Holdfast in the agent's session: the history has {them} now",)


_LEFT_BY_HISTORY = (Reason.GENERATION_CHANGED, Reason.HISTORY_CHANGED)


def adopt_outside_turns(
    store: Store,
    agent: Agent,
    policy: ResumePolicy,
    situation: Situation,
    lease: Lease | None = None,
    *,
    vault: VaultPolicy | None = None,
) -> AdoptionOutcome:
    """Adds turns made outside Holdfast to the history, and corrects which turns the provider session has seen.

    ``vault``: the session is copied there first, if the policy says so. None: the caller does that.

    Where the policy says to start fresh after such turns, the pointer does not move past them. While another process
    has the lock on the provider session, nothing is done. ``lease``: a turn of Holdfast that is about to start, in
    another provider session.
    """
    if lease is None:
        situation = _with_runtime(store, agent, situation)
    named = _adoptable(agent, situation, lease)
    if named is None:
        return AdoptionOutcome(0, situation)
    with agent.lock(named.provider_session_id) as lock:
        if not lock.try_acquire():
            return AdoptionOutcome(0, situation, is_locked=True)
        return _adopt(store, agent, policy, situation, named, lease, vault)


def waits_for_agent(agent: Agent, pointer: Pointer) -> bool:
    """Whether the session was imported from the home of this agent before the agent was installed."""
    mark = pointer.transcript
    is_found_here = mark is not None and Path(mark.path).is_relative_to(agent.runtime.home)
    return pointer.runtime_id is None and not pointer.is_fork_source and is_found_here


def _with_runtime(store: Store, agent: Agent, situation: Situation) -> Situation:
    """An import without the agent leaves the runtime out of the pointer: now there is one."""
    pointer = situation.pointer
    if pointer is None or situation.session.imported_at is None or not waits_for_agent(agent, pointer):
        return situation
    store.register_runtime(agent.runtime)
    store.set_pointer(replace(pointer, runtime_id=agent.runtime.id, version=agent.runtime.version))
    return store.situation(situation.session.id, pointer.provider)


def is_left_by_history(decision: Decision) -> bool:
    """Whether the history was changed since the session saw it: new turns in the session belong to the old history."""
    return any(
        verdict.reason in _LEFT_BY_HISTORY and verdict.outcome is not Outcome.RESUME
        for verdict in decision.verdicts
    )


def adopt_locked(
    store: Store,
    agent: Agent,
    policy: ResumePolicy,
    situation: Situation,
    lease: Lease | None = None,
    *,
    vault: VaultPolicy | None = None,
) -> AdoptionOutcome:
    """Like ``adopt_outside_turns``, for a caller that holds the lock on the provider session of the pointer."""
    named = _adoptable(agent, situation, lease)
    return (
        AdoptionOutcome(0, situation)
        if named is None
        else _adopt(store, agent, policy, situation, named, lease, vault)
    )


def _adoptable(agent: Agent, situation: Situation, lease: Lease | None) -> Pointer | None:
    """The pointer to the session to look at; None if a turn of Holdfast runs in it, or if its history was changed."""
    pointer = situation.pointer
    if pointer is None or pointer.is_fork_source or pointer.runtime_id != agent.runtime.id:
        return None
    if lease is not None:
        return pointer
    decision = situation.decision
    counts = isinstance(decision, Resume | Fresh) and not is_left_by_history(decision)
    return pointer if counts and situation.holder is None else None


def _adopt(  # noqa: PLR0913 - called in two places only
    store: Store,
    agent: Agent,
    policy: ResumePolicy,
    situation: Situation,
    pointer: Pointer,
    lease: Lease | None,
    vault: VaultPolicy | None,
) -> AdoptionOutcome:
    native, nothing = pointer.provider_session_id, AdoptionOutcome(0, situation)
    found = _find_intact(agent, pointer)
    if found is None or pointer.seen is None:
        return nothing
    path, reached = found
    # the mark is made before the turns are read: a turn that is written in between is read twice, not missed
    mark = agent.archive.mark(path, native)
    new = {turn.key: turn for turn in agent.archive.turns(path, native, after=reached)}
    is_untold = lease is not None and bool(pointer.catch_up(lease.seq))
    turns = list(agent.archive.turns(path, native))
    # grown without a turn: by a command such as /compact, which costs tokens; not by a turn of Holdfast that continued
    has_grown = not new and reached not in (mark, NOTHING_YET) and all(turn.complete for turn in turns[-1:])
    if mark is None or (all(turn.live for turn in turns) and not new and not is_untold and not has_grown):
        return nothing
    last = next(reversed(new), None)  # only the last turn may still be answered
    held = recognise(store, agent, path, native)
    seen = seen_on_branch(pointer.seen, held, situation.session.conversation_id, native)
    made = [known.turn for known in held if known.is_outside and known.turn.key in new]
    outside = [turn for turn in made if turn.complete or turn.key != last]
    is_unfinished = len(outside) < len(made)
    if has_grown or (outside and all(turn.complete for turn in new.values())):
        reached = mark  # otherwise the turn that may still be answered is read again the next time
    has_moved = bool(outside) or seen != pointer.seen or reached is mark
    if not has_moved and not is_unfinished:
        return nothing
    if vault is not None and vault.mode == "all":
        Vault(store, vault).mirror(agent, path, native, pointer.work_dir)
    moves = not outside or policy.transcript_ahead == "resume"
    # tokens that were used outside Holdfast are not counted for its next turn
    has_sent = lease is not None and any(is_sent_by(known, lease) for known in held)
    counts = moves and (made or has_grown) and not has_sent
    counted = agent.archive.spent(path, native) if counts else None
    calls = _calls_of(agent, path, native, {turn.key for turn in outside})
    adopted = [_outside_turn(native, turn, calls.get(turn.key, []), situation.now) for turn in outside]
    *earlier, last_piece = _pieces(adopted)
    for piece in earlier:
        # the mark moves with the last piece: until then all of them are read again, and each is recorded once
        after = store.adopt_turns(Adoption(pointer, piece, seen, pointer.transcript, moves), lease)
        if after is None or after.pointer is None or after.pointer.seen is None:
            return AdoptionOutcome(0, situation, is_unfinished)
        pointer, seen = after.pointer, seen.union(after.pointer.seen)
    title = read_title(agent, path, native, situation.session)
    after = store.adopt_turns(Adoption(pointer, last_piece, seen, reached, moves, counted, title), lease)
    if after is None:  # a turn of Holdfast has begun there by now, or another process has adopted them
        return AdoptionOutcome(0, situation, is_unfinished)
    return AdoptionOutcome(len(outside), after, is_unfinished)


def read_title(agent: Agent, path: str, native: ProviderSessionId, session: Session) -> str | None:
    """The agent's own title of the session; without one, and without a purpose, the first sentence that was asked."""
    title = agent.archive.title(path, native)
    if title is not None or session.purpose:
        return title
    first = next(iter(agent.archive.turns(path, native)), None)
    return None if first is None else title_of(first.prompt)


def _find_intact(agent: Agent, pointer: Pointer) -> tuple[str, TranscriptMark] | None:
    """The path of the session, and the recorded mark there; None if there is no mark, or the session is not as recorded.

    A session that was restored may be at another path than when it was marked.
    """
    native, mark = pointer.provider_session_id, pointer.transcript
    path = agent.archive.find(native, pointer.work_dir)
    if mark is None or path is None:
        return None
    if mark == NOTHING_YET:
        return path, mark
    here = replace(mark, path=path)
    return None if agent.archive.is_intact(here, native) is False else (path, here)


def _pieces(turns: Iterable[OutsideTurn]) -> list[tuple[OutsideTurn, ...]]:
    """The turns in pieces that a server takes in one call; without any turn, one empty piece."""
    pieces: list[tuple[OutsideTurn, ...]] = [()]
    room = _PIECE_CHARACTERS
    for turn in turns:
        size = len(turn.prompt) + len(turn.response or "")
        size += sum(len(json.dumps(event.data)) for event in turn.events)
        if size > room and pieces[-1]:
            pieces.append(())
            room = _PIECE_CHARACTERS
        pieces[-1] += (turn,)
        room -= size
    return pieces


def _calls_of(
    agent: Agent, path: str, native: ProviderSessionId, keys: set[str]
) -> dict[str, list[Called | Returned]]:
    found: dict[str, list[Called | Returned]] = {}
    for key, event in agent.archive.calls(path, native) if keys else ():
        if key in keys:
            found.setdefault(key, []).append(event)
    return found


def _outside_turn(
    native: str, turn: ArchivedTurn, calls: list[Called | Returned], now: Instant
) -> OutsideTurn:
    response = None if turn.response is None else clean_text(turn.response)
    at = turn.ended_at or turn.began_at or now
    events = late_events(calls, 0, at)
    if left_out := len(calls) - len(events):
        notice = {"text": f"{left_out} earlier calls and results are in the agent's own session only"}
        events = [Event(1, EventKind.NOTICE, notice, at), *late_events(calls, 1, at)]
    return OutsideTurn(
        outside_key(native, turn.key), clean_text(current_request(turn.prompt)), response, turn.began_at,
        turn.ended_at, tuple(events),
    )  # fmt: skip


def outside_key(native: str, key: str) -> str:
    """The key under which a turn is recorded once. The provider's own key may have any form and length."""
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    return f"outside:{native}:{digest[:32]}"


# --- can the session be resumed here ---


@record
class PlannedLaunch:
    """The turn that is about to run."""

    seq: int
    prompt_tokens: int  #: of the whole prompt, with the context
    work_dir: str
    provider_session_id: ProviderSessionId | None = None  #: the one that was asked for by name
    lock_free: bool = True  #: no other process on this machine writes to the provider's session
    rescue: Rescue | None = None  #: what the vault can do, or has done, about files that are gone or changed


def decide_here(
    store: Store,
    judged: Decision,
    pointer: Pointer | None,
    planned: PlannedLaunch,
    agent: Agent,
    policy: ResumePolicy,
) -> Decision:
    """The decision with what only this machine can see, which can only weaken it.

    Guards about facts that only the store can see are not evaluated again.
    """
    rescue = planned.rescue
    facts = Facts(
        native_resume=NOT_OBSERVABLE,
        capabilities=agent.runtime.capabilities,
        generation=NOT_OBSERVABLE,
        runtime_id=agent.runtime.id,
        version=agent.runtime.version,
        changes=NOT_OBSERVABLE,
        provider_session=NOT_OBSERVABLE,
        seq=planned.seq,
        same_directory=_same_directory(pointer, planned.work_dir),
        transcript=_transcript(store, pointer, agent),
        restorable=rescue is not None and rescue.restored is None,
        restored=rescue.restored.words if rescue is not None and rescue.restored is not None else "",
        lock_free=planned.lock_free,
        named_exists=_named_exists(pointer, agent, planned),
        other_writer=_other_writer(pointer, agent),
    )
    request = ResumeRequest(
        force_fresh=NOT_OBSERVABLE,
        rights=NOT_OBSERVABLE,
        prompt_tokens=planned.prompt_tokens,
        provider_session_id=planned.provider_session_id,
    )
    return decide_at_launch(judged, pointer, request, facts, policy)


def last_directory(store: Store, situation: Situation, before: int | None = None) -> str | None:
    """The directory in which a session ran last, or was to run when a guard refused it: for where there is no pointer.

    With ``before``, only turns with a smaller number count.
    """
    tried = situation.last_directory
    if tried is not None or situation.conversation.next_seq == 1:
        return tried
    planned = (turn.request.work_dir for turn in newest_first(store, situation.session.id, before))
    return next(filter(None, planned), None)


def _same_directory(pointer: Pointer | None, work_dir: str) -> bool | None:
    """Whether both paths name the same directory: links and other spellings count as the same."""
    if pointer is None or pointer.work_dir is None:
        return None
    try:
        return Path(pointer.work_dir).samefile(work_dir)
    except OSError:
        return False


def _named_exists(pointer: Pointer | None, agent: Agent, planned: PlannedLaunch) -> bool:
    named = planned.provider_session_id
    if named is None or (pointer is not None and pointer.provider_session_id == named):
        return False
    return agent.archive.find(named, planned.work_dir) is not None


def _other_writer(pointer: Pointer | None, agent: Agent) -> str | None:
    if pointer is None or pointer.is_fork_source:
        return None
    path = agent.archive.find(pointer.provider_session_id, pointer.work_dir)
    if path is None and pointer.transcript is not None:
        path = pointer.transcript.path  # a program that has the session open may write its file again
    return None if path is None else agent.archive.writer(path, pointer.provider_session_id)


def _transcript(store: Store, pointer: Pointer | None, agent: Agent) -> TranscriptFacts | None:
    if pointer is None:
        return None
    session_id, mark = pointer.provider_session_id, pointer.transcript
    path = agent.archive.find(session_id, pointer.work_dir)
    if path is None:
        return None
    requests = int(any(turn.live for turn in agent.archive.turns(path, session_id)))
    if mark is None:
        return TranscriptFacts(requests, foreign_turns=NOT_OBSERVABLE)
    new = recognise(store, agent, path, session_id, after=mark)
    return TranscriptFacts(
        requests=requests,
        prefix_intact=mark == NOTHING_YET or agent.archive.is_intact(replace(mark, path=path), session_id),
        foreign_turns=sum(turn.is_outside for turn in new),
        grown=bool(new),
    )

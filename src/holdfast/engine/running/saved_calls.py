"""Owns the tool calls that an agent's own session holds and our record lacks: those that its stream did not bring.

Some agents report a call only when it has ended, and whoever is killed has not read everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.domain.events import Called, Event, EventKind
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.redaction import Json, redact_value
from holdfast.domain.turns import Lease
from holdfast.engine.running.agents import Agent
from holdfast.engine.running.recognition import is_sent_by, recognise
from holdfast.engine.running.recorder import late_events, recorded_data
from holdfast.store.contract import Store

_PAGE = 1000


def calls_left_by(store: Store, agent: Agent, lease: Lease) -> list[Event]:
    """Those of the attempt that has the lease, as the events of it that come next."""
    attempts = store.attempts(lease.conversation_id, lease.seq)
    attempt = next((known for known in attempts if known.fence == lease.fence), None)
    native = None if attempt is None else attempt.provider_session_id
    if attempt is None or attempt.process is None or native is None:
        return []
    path = agent.archive.find(native, attempt.work_dir)
    held = () if path is None else recognise(store, agent, path, native)
    own = next((known for known in held if is_sent_by(known, lease)), None)
    return (
        []
        if path is None or own is None
        else unrecorded_calls(store, agent, lease, path, native, own.turn.key)
    )


def unrecorded_calls(
    store: Store, agent: Agent, lease: Lease, path: str, native: ProviderSessionId, key: str
) -> list[Event]:
    """Those of the turn with this key, which the attempt that has the lease has sent."""
    found = list(agent.archive.calls(path, native, key))
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

"""Owns taking over from workers and orchestrators that went away: processes are ended first, then turns."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import suppress

from holdfast.domain.decisions import DecisionKind
from holdfast.domain.events import Event, EventKind, Said
from holdfast.domain.pointers import NOTHING_YET, TranscriptMark
from holdfast.domain.records import record
from holdfast.domain.turns import Attempt, Lease, Orphan, Turn
from holdfast.engine.running.agents import Agent, Agents
from holdfast.engine.running.log_subject import lease_fields, lines_about
from holdfast.engine.running.recognition import is_sent_by, recognise
from holdfast.engine.running.recorder import late_events
from holdfast.engine.running.saved_calls import unrecorded_calls
from holdfast.engine.running.strays import end_strays, marker_of
from holdfast.errors import Conflict, HoldfastError, NotFound, StoreCorrupt
from holdfast.hooks.serving import free_lost_delegations
from holdfast.processes.owners import Location
from holdfast.processes.table import end_survivors
from holdfast.providers.report import Report
from holdfast.store.contract import Store

log = logging.getLogger("holdfast")

_MOST = 1000


def recover_session(
    store: Store, agents: Agents, orphan: Orphan | None, *, by_force: bool = False
) -> Turn | None:
    """The turn that was taken from a session's holder that is provably gone, or whose lease has expired; else None.

    ``by_force``: a person says that the owner is gone. If it is not, its writes are fenced off.
    """
    if orphan is None:
        return None
    is_gone = by_force or agents.machine.has_lost(orphan.lease, launched=orphan.process is not None)
    if not is_gone and not orphan.lease.is_over(store.now()):
        return None
    with lines_about(lease_fields(orphan.lease)):
        return _recover(store, agents, orphan, owner_is_gone=is_gone)


def recover_all(
    store: Store, agents: Agents, besides: Collection[str] = (), *, even_expired: bool = True
) -> tuple[Turn, ...]:
    """Every turn whose owner is provably gone or, if wanted, whose lease has expired, but for some sessions.

    One that cannot be understood keeps none of the others waiting. What still runs here of turns that others
    took over is ended. Sessions of subagents whose orchestrator is provably gone are free again.
    """
    recovered, machine = [], agents.machine
    now = store.now()
    leased = store.orphans(_MOST, even_live=True)
    for orphan in leased:
        is_gone = machine.has_lost(orphan.lease, launched=orphan.process is not None)
        is_left = is_gone or (even_expired and orphan.lease.is_over(now))
        if orphan.lease.session_id in besides or not is_left:
            continue
        with lines_about(lease_fields(orphan.lease)):
            try:
                recovered.append(_recover(store, agents, orphan, owner_is_gone=is_gone))
            except (NotFound, StoreCorrupt) as exc:
                log.warning("turn %s of %s stays: %s", orphan.lease.seq, orphan.lease.session_id, exc)
    for held in free_lost_delegations(store):
        log.warning("session %s is free again: the program that had delegated it is gone", held.session_id)
    machine.forget_old()
    end_strays(store, machine, besides={marker_of(orphan.lease, store.workspace) for orphan in leased})
    return tuple(turn for turn in recovered if turn is not None)


@record
class _Left:
    """What the agent of an attempt has left behind."""

    response: str | None
    transcript: TranscriptMark | None = None  #: of its own session, if that holds the request
    is_answered: bool = False  #: there, to the end
    events: Sequence[Event] = ()  #: calls and the answer that stand there, and nobody has recorded


def _recover(store: Store, agents: Agents, orphan: Orphan, *, owner_is_gone: bool) -> Turn | None:
    process, machine = orphan.process, agents.machine
    # what runs on another machine is that machine's to end; its writes are fenced off
    is_here = process is not None and machine.location_of(process) is not Location.ELSEWHERE
    if (
        process is not None
        and is_here
        and not end_survivors(process, marker_of(orphan.lease, store.workspace), machine)
    ):
        log.warning("turn %s: a process of it cannot be ended", orphan.lease.seq)
        return None
    left = None
    if is_here:
        with suppress(NotFound, StoreCorrupt):  # what cannot be read keeps nobody from taking over
            left = _saved(store, agents, orphan.lease)
    if left is None:
        left = _Left(_said(store, orphan.lease))
    try:
        turn = store.recover(
            orphan, owner_is_gone=owner_is_gone, response=left.response, transcript=left.transcript,
            answered=left.is_answered, events=left.events,
        )  # fmt: skip
    except Conflict:
        return None  # someone else was faster
    machine.forget(orphan.lease)
    return turn


def _saved(store: Store, agents: Agents, lease: Lease) -> _Left | None:
    """What the agent's own session holds of an attempt: an agent goes on without us, and saves what it answers.

    None if that session does not hold the request, or cannot be seen here, as in another home.
    """
    attempts = store.attempts(lease.conversation_id, lease.seq)
    attempt = next((known for known in attempts if known.fence == lease.fence), None)
    agent = None if attempt is None else _agent_of(agents, attempt)
    native = None if attempt is None else attempt.provider_session_id
    if attempt is None or agent is None or native is None:
        return None
    path = agent.archive.find(native, attempt.work_dir)
    mark = None if path is None else agent.archive.mark(path, native)
    held = () if path is None else recognise(store, agent, path, native)
    own = next((known for known in held if is_sent_by(known, lease)), None)
    if path is None or own is None or mark is None:
        return None
    if own is not held[-1]:
        mark = NOTHING_YET  # what stands behind it was not looked at yet
    calls = unrecorded_calls(store, agent, lease, path, native, own.turn.key)
    if own.turn.complete:
        answer = _kept(own.turn.response)
        return _Left(answer, mark, is_answered=True, events=[*calls, *_told(store, lease, answer, calls)])
    # what a resumed session had seen before, its pointer knows
    is_new = attempt.decision.kind is not DecisionKind.RESUME
    return _Left(_said(store, lease), mark if is_new else None, events=calls)


def _agent_of(agents: Agents, attempt: Attempt) -> Agent | None:
    """With the home that the attempt ran in."""
    try:
        agent = agents.get(attempt.provider)
    except HoldfastError:
        return None
    return agent if agent.runtime.id == attempt.runtime_id else None


def _kept(answer: str | None) -> str | None:
    report = Report()
    if answer is not None:
        report.take_answer(answer)
    return report.response


def _told(store: Store, lease: Lease, answer: str | None, before: Sequence[Event]) -> list[Event]:
    """The answer as events, unless these are on record; they come behind those ``before``."""
    recorded = _recorded(store, lease)
    if answer is None or answer in _text(recorded):
        return []
    last = max((event.number for event in (*recorded, *before)), default=0)
    return late_events([Said(answer)], last, store.now())


def _said(store: Store, lease: Lease) -> str | None:
    """What the agent had said by the time its events were last written."""
    return _text(_recorded(store, lease)) or None


def _recorded(store: Store, lease: Lease) -> list[Event]:
    events = store.newest_events(lease.conversation_id, lease.seq, _MOST)
    return [event for attempt, event in events if attempt == lease.attempt]


def _text(events: Sequence[Event]) -> str:
    return "".join(str(event.data.get("text", "")) for event in events if event.kind is EventKind.TEXT)

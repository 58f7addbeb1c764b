"""Owns taking over from workers and orchestrators that are gone: their processes are ended first, then their turns."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import suppress

from holdfast.clock import Instant
from holdfast.domain.decisions import DecisionKind
from holdfast.domain.events import Event, EventKind, Said
from holdfast.domain.pointers import NOTHING_YET, TranscriptMark
from holdfast.domain.policy import VaultPolicy
from holdfast.domain.records import record
from holdfast.domain.turns import Attempt, AttemptStatus, Lease, Orphan, ProcessMark, Turn
from holdfast.engine.running.agents import Agents
from holdfast.engine.running.launching import late_events
from holdfast.engine.running.log_subject import lease_fields, lines_about
from holdfast.engine.running.provider_sessions import find_own_turn, unrecorded_calls
from holdfast.engine.vault import Vault
from holdfast.errors import Conflict, NotFound, StoreCorrupt
from holdfast.hooks.serving import free_lost_delegations
from holdfast.processes.machine import Machine
from holdfast.processes.owners import Location
from holdfast.processes.table import carried_markers, end_survivors, marked_turn, marker_of
from holdfast.providers.report import Report
from holdfast.store.contract import Store

log = logging.getLogger("holdfast")

_MOST = 1000


def has_lost_worker(orphan: Orphan, machine: Machine, now: Instant) -> bool:
    """Whether the next command may take the turn over: its worker is provably gone, or its lease has expired."""
    return orphan.lease.is_over(now) or machine.has_lost(orphan.lease, launched=orphan.process is not None)


def recover_session(
    store: Store, agents: Agents, vault: VaultPolicy, orphan: Orphan | None, *, by_force: bool = False
) -> Turn | None:
    """Takes the turn from a session's holder that is provably gone, or whose lease has expired. None: it was not taken.

    ``by_force``: a person says that the holder is gone. If it is not, its later writes are refused.
    """
    if orphan is None:
        return None
    is_gone = by_force or agents.machine.has_lost(orphan.lease, launched=orphan.process is not None)
    if not is_gone and not orphan.lease.is_over(store.now()):
        return None
    with lines_about(lease_fields(orphan.lease)):
        return _recover(store, agents, vault, orphan, owner_is_gone=is_gone)


def recover_all(
    store: Store,
    agents: Agents,
    vault: VaultPolicy,
    besides: Collection[str] = (),
    *,
    even_expired: bool = True,
) -> tuple[Turn, ...]:
    """Takes over every turn whose owner is provably gone or, with ``even_expired``, whose lease has expired.

    Sessions in ``besides`` are left out. A turn that cannot be read is logged and left as it is. Processes that still
    run here for turns that others took over are ended. Sessions that a subagent held become free if the program that
    had delegated them is provably gone.
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
                recovered.append(_recover(store, agents, vault, orphan, owner_is_gone=is_gone))
            except (NotFound, StoreCorrupt) as exc:
                log.warning("turn %s of %s stays: %s", orphan.lease.seq, orphan.lease.session_id, exc)
    for held in free_lost_delegations(store):
        log.warning("session %s is free again: the program that had delegated it is gone", held.session_id)
    machine.forget_old()
    end_strays(store, machine, besides={marker_of(orphan.lease, store.workspace) for orphan in leased})
    return tuple(turn for turn in recovered if turn is not None)


@record
class _Left:
    """What an attempt has left: in the agent's own session, or else in our events."""

    response: str | None
    transcript: TranscriptMark | None = None  #: of the agent's own session, if it holds the request
    is_answered: bool = False  #: the agent's own session holds the whole answer
    events: Sequence[Event] = ()  #: calls and the answer that only the agent's own session holds


def _recover(
    store: Store, agents: Agents, vault: VaultPolicy, orphan: Orphan, *, owner_is_gone: bool
) -> Turn | None:
    process, machine = orphan.process, agents.machine
    # only that machine can end the processes of another machine; its writes are refused by the fence
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
        with suppress(NotFound, StoreCorrupt):  # the turn is taken over even if this cannot be read
            left = _saved(store, agents, vault, orphan.lease)
    if left is None:
        left = _Left(_said(store, orphan.lease))
    try:
        turn = store.recover(
            orphan, owner_is_gone=owner_is_gone, response=left.response, transcript=left.transcript,
            answered=left.is_answered, events=left.events,
        )  # fmt: skip
    except Conflict:
        return None  # another process was faster
    machine.forget(orphan.lease)
    return turn


def _saved(store: Store, agents: Agents, vault: VaultPolicy, lease: Lease) -> _Left | None:
    """What the agent's own session holds of an attempt: an agent continues without Holdfast, and saves its answer.

    The session is in the vault then, before a pointer relies on it.
    """
    found = find_own_turn(store, agents, lease)
    mark = None if found is None else found.agent.archive.mark(found.path, found.native)
    if found is None or mark is None:
        return None
    if vault.mode != "off":
        Vault(store, vault).mirror(found.agent, found.path, found.native, found.attempt.work_dir)
    if not found.is_last:
        mark = NOTHING_YET  # the turns after it were not looked at yet
    calls = unrecorded_calls(store, lease, found)
    if found.turn.complete:
        answer = _kept(found.turn.response)
        return _Left(answer, mark, is_answered=True, events=[*calls, *_told(store, lease, answer, calls)])
    # the pointer of a resumed session already has a mark
    is_new = found.attempt.decision.kind is not DecisionKind.RESUME
    return _Left(_said(store, lease), mark if is_new else None, events=calls)


def _kept(answer: str | None) -> str | None:
    report = Report()
    if answer is not None:
        report.take_answer(answer)
    return report.response


def _told(store: Store, lease: Lease, answer: str | None, before: Sequence[Event]) -> list[Event]:
    """Events for the answer, numbered after those in ``before``; none if the answer is already recorded."""
    recorded = _recorded(store, lease)
    if answer is None or answer in _text(recorded):
        return []
    last = max((event.number for event in (*recorded, *before)), default=0)
    return late_events([Said(answer)], last, store.now())


def _said(store: Store, lease: Lease) -> str | None:
    """The text of the agent that is recorded as events."""
    return _text(_recorded(store, lease)) or None


def _recorded(store: Store, lease: Lease) -> list[Event]:
    events = store.newest_events(lease.conversation_id, lease.seq, _MOST)
    return [event for attempt, event in events if attempt == lease.attempt]


def _text(events: Sequence[Event]) -> str:
    return "".join(str(event.data.get("text", "")) for event in events if event.kind is EventKind.TEXT)


def end_strays(store: Store, machine: Machine, besides: Collection[str]) -> None:
    """Ends the processes on this machine that belong to attempts that are over; markers in ``besides`` are skipped.

    Processes with a marker that this store does not know are left alone, and so are processes of which none is in the
    recorded group: one process may work on two stores. On macOS no process is found, because environments are hidden.
    """
    for marker, groups in carried_markers().items():
        attempt = None if marker in besides else _find(store, marker)
        group = None if attempt is None else stray_group(attempt, machine)
        if attempt is None or group is None or group.pgid not in groups:
            continue
        name = f"turn {attempt.seq} of {attempt.session_id}"
        if end_survivors(group, marker, machine):
            log.warning("%s continued without attempt %s: its processes were ended", name, attempt.number)
        else:
            log.warning("%s: a process of attempt %s, which is over, cannot be ended", name, attempt.number)


def stray_group(attempt: Attempt, machine: Machine) -> ProcessMark | None:
    """The process group of an attempt, if this process may end it.

    None while the attempt is open, even if its lease has expired; None for a group of another machine; and None for a
    group of this very process, which ends it itself.
    """
    if attempt.status is AttemptStatus.OPEN or attempt.owner == machine.this_process():
        return None
    is_here = attempt.process is not None and machine.location_of(attempt.process) is Location.HERE
    return attempt.process if is_here else None


def _find(store: Store, marker: str) -> Attempt | None:
    turn = marked_turn(marker)
    if turn is None:
        return None
    try:
        attempts = store.attempts(*turn)
    except StoreCorrupt:
        return None
    return next((attempt for attempt in attempts if marker_of(attempt, store.workspace) == marker), None)

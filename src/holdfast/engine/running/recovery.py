"""Owns taking over from workers and orchestrators that went away: processes are ended first, then turns."""

from __future__ import annotations

import logging
from collections.abc import Collection

from holdfast.domain.turns import EventKind, Lease, Orphan, Turn
from holdfast.engine.hooking import free_lost_delegations
from holdfast.engine.running.log_subject import lease_fields, lines_about
from holdfast.engine.running.strays import end_strays, marker_of
from holdfast.errors import Conflict, NotFound, StoreCorrupt
from holdfast.processes.machine import Machine
from holdfast.processes.owners import Place
from holdfast.processes.survivors import end_survivors
from holdfast.store.contract import Store

log = logging.getLogger("holdfast")

_MOST = 1000


def recover_session(
    store: Store, machine: Machine, session_id: str, *, by_force: bool = False
) -> Turn | None:
    """The turn that was taken from an owner who is provably gone, or whose lease has expired; else None.

    ``by_force``: a person says that the owner is gone. If it is not, its writes are fenced off.
    """
    orphan = store.holder(session_id)
    if orphan is None:
        return None
    is_gone = by_force or machine.has_lost(orphan.lease, launched=orphan.process is not None)
    if not is_gone and not orphan.lease.is_over(store.now()):
        return None
    with lines_about(lease_fields(orphan.lease)):
        return _recover(store, machine, orphan, owner_is_gone=is_gone)


def recover_all(
    store: Store, machine: Machine, besides: Collection[str] = (), *, even_expired: bool = True
) -> tuple[Turn, ...]:
    """Every turn whose owner is provably gone or, if wanted, whose lease has expired, but for some sessions.

    One that cannot be understood keeps none of the others waiting. What still runs here of turns that others
    took over is ended. Sessions of subagents whose orchestrator is provably gone are free again.
    """
    recovered = []
    now = store.now()
    leased = store.orphans(_MOST, even_live=True)
    for orphan in leased:
        is_gone = machine.has_lost(orphan.lease, launched=orphan.process is not None)
        is_left = is_gone or (even_expired and orphan.lease.is_over(now))
        if orphan.lease.session_id in besides or not is_left:
            continue
        with lines_about(lease_fields(orphan.lease)):
            try:
                recovered.append(_recover(store, machine, orphan, owner_is_gone=is_gone))
            except (NotFound, StoreCorrupt) as exc:
                log.warning("turn %s of %s stays: %s", orphan.lease.seq, orphan.lease.session_id, exc)
    for held in free_lost_delegations(store):
        log.warning("session %s is free again: the program that had delegated it is gone", held.session_id)
    machine.forget_old()
    end_strays(store, machine, besides={marker_of(orphan.lease, store.workspace) for orphan in leased})
    return tuple(turn for turn in recovered if turn is not None)


def _recover(store: Store, machine: Machine, orphan: Orphan, *, owner_is_gone: bool) -> Turn | None:
    process = orphan.process
    # what runs on another machine is that machine's to end; its writes are fenced off
    is_here = process is not None and machine.place_of(process) is not Place.ELSEWHERE
    if (
        process is not None
        and is_here
        and not end_survivors(process, marker_of(orphan.lease, store.workspace), machine)
    ):
        log.warning("turn %s: a process of it cannot be ended", orphan.lease.seq)
        return None
    try:
        turn = store.recover(orphan, owner_is_gone=owner_is_gone, response=_said(store, orphan.lease))
    except Conflict:
        return None  # someone else was faster
    machine.forget(orphan.lease)
    return turn


def _said(store: Store, lease: Lease) -> str | None:
    """What the agent had said by the time its events were last written."""
    events = store.newest_events(lease.conversation_id, lease.seq, _MOST)
    texts = [
        str(event.data.get("text", ""))
        for attempt, event in events
        if attempt == lease.attempt and event.kind is EventKind.TEXT
    ]
    return "".join(texts) or None

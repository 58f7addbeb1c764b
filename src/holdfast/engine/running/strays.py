"""Owns the agents that run on though their attempt is over: how they are known, and their end.

A worker that was killed leaves them behind, and another machine cannot end them when it takes over the turn.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Collection

from holdfast.domain.turns import Attempt, AttemptStatus, Lease, ProcessMark
from holdfast.errors import StoreCorrupt
from holdfast.processes.machine import Machine
from holdfast.processes.owners import Location
from holdfast.processes.table import carried_markers, end_survivors
from holdfast.store.contract import Store

log = logging.getLogger("holdfast")

_MARKER = re.compile(r"([A-Za-z0-9._:@+=-]{1,200})\.([0-9]{1,9})\.[0-9]{1,9}\.[0-9]{1,18}\.[0-9a-f]{16}")


def marker_of(run: Lease | Attempt, workspace: str) -> str:
    """What every process of an attempt carries in its environment, so that none of them is lost sight of.

    People choose ids of sessions, and may choose the same ones in another workspace or another store: the
    workspace and the owner tell them apart.
    """
    number = run.attempt if isinstance(run, Lease) else run.number
    whose = hashlib.sha256(f"{workspace} {run.owner}".encode()).hexdigest()[:16]
    return f"{run.conversation_id}.{run.seq}.{number}.{run.fence}.{whose}"


def end_strays(store: Store, machine: Machine, besides: Collection[str]) -> None:
    """End what runs on this machine of attempts that are over; the store is not asked about ``besides``.

    Of a marker that this store does not know nothing is ended, nor if none of its processes is in the group
    that was recorded: one process may work on two stores. Where processes do not show what they carry (macOS)
    none is found.
    """
    for marker, groups in carried_markers().items():
        attempt = None if marker in besides else _find(store, marker)
        group = None if attempt is None else stray_group(attempt, machine)
        if attempt is None or group is None or group.pgid not in groups:
            continue
        name = f"turn {attempt.seq} of {attempt.session_id}"
        if end_survivors(group, marker, machine):
            log.warning("%s went on without attempt %s: what ran of it is ended", name, attempt.number)
        else:
            log.warning("%s: a process of attempt %s, which is over, cannot be ended", name, attempt.number)


def stray_group(attempt: Attempt, machine: Machine) -> ProcessMark | None:
    """What of it is ours to end. Nothing while it is open, however long ago its lease expired; nothing that
    another machine ran; and nothing that this very process runs, which ends it by itself.
    """
    if attempt.status is AttemptStatus.OPEN or attempt.owner == machine.this_process():
        return None
    is_here = attempt.process is not None and machine.location_of(attempt.process) is Location.HERE
    return attempt.process if is_here else None


def _find(store: Store, marker: str) -> Attempt | None:
    read = _MARKER.fullmatch(marker)
    if read is None:
        return None
    try:
        attempts = store.attempts(read[1], int(read[2]))
    except StoreCorrupt:
        return None
    return next((attempt for attempt in attempts if marker_of(attempt, store.workspace) == marker), None)

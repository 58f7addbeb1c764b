"""Owns the section on syncs: how often a write transaction makes the disk write, counted by strace.

Run as a program, this is what strace watches: between two marks it does one operation again and again.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from bench import strace
from bench import workload as w
from bench.floor import Floor
from bench.ours import Ours, open_sqlite
from bench.results import Findings, Table, Target
from bench.scale import Place

#: turns for each traced call that are committed with checkpoints on
CHECKPOINTED = 20
#: the operation, and its write transactions
OPERATIONS = {
    "create": 1,
    "update": 1,
    "commit a turn": 1,
    "enqueue, claim, finish": 3,
    "fork": 1,
    "finalize": 1,
}


def measure(place: Place, found: Findings) -> None:
    why_not = strace.why_not()
    counted = {} if why_not else {who: _count(place, who) for who in ("floor", "Holdfast")}
    rows = []
    for name, transactions in OPERATIONS.items():
        per_transaction = None
        if counted:
            each = [
                counted[who][name, "commit"] / place.scale.traced / transactions
                for who in ("floor", "Holdfast")
            ]
            per_transaction = each[1]
            rows.append([name, *(f"{value:g}" for value in each)])
        what = f"syncs in a write transaction: {name}"
        found.targets.append(Target(what, 1, per_transaction, "", why_not=why_not))
    if counted:
        found.tables.append(
            Table(
                "Syncs in one write transaction",
                ("operation", "floor", "Holdfast"),
                rows,
                "Counted with strace; automatic checkpoints are off while counting, and come apart: with them"
                f" on, {_checkpoints(counted, place.scale.traced * CHECKPOINTED)}.",
            )
        )
    else:
        found.notes.append(f"Syncs were not counted: {why_not}.")


def _checkpoints(counted: dict[str, Counter[tuple[str, str]]], turns: int) -> str:
    parts = [
        f"{counts['with checkpoints', 'checkpoint']} syncs of the database file in {turns} turns ({who})"
        for who, counts in counted.items()
    ]
    return ", ".join(parts)


def _count(place: Place, who: str) -> Counter[tuple[str, str]]:
    """By operation and kind: ``commit`` syncs the log, ``checkpoint`` the database itself."""
    folder = place.directory / f"syncs-{who}"
    folder.mkdir()
    counts: Counter[tuple[str, str]] = Counter()
    times = str(place.scale.traced)
    for operation, path in strace.syncs(folder, "bench.syncs", who, str(folder), times):
        counts[operation, "commit" if path.endswith("-wal") else "checkpoint"] += 1
    return counts


def _do_everything(who: str, folder: Path, times: int) -> None:
    subject, other = (
        _open(who, folder / f"{name}.db", name == "no-checkpoints") for name in ("no-checkpoints", "usual")
    )
    sessions = [w.new_session_id() for _ in range(times)]
    session_id = w.new_session_id()
    subject.create(session_id)
    other.create(session_id)
    work: dict[str, Callable[[int], object]] = {
        "create": lambda n: subject.create(sessions[n]),
        "update": lambda n: subject.update(sessions[n]),
        "commit a turn": lambda _: subject.record_turn(session_id),
        "enqueue, claim, finish": lambda _: subject.queue_turn(session_id),
        "fork": lambda _: subject.fork(session_id, w.new_session_id()),
        "finalize": lambda n: subject.finalize(sessions[n]),
    }
    for name, do in work.items():
        strace.mark(folder, name)
        for number in range(times):
            do(number)
    strace.mark(folder, "with checkpoints")
    for _ in range(times * CHECKPOINTED):
        other.record_turn(session_id)
    strace.mark(folder, "the end")
    os._exit(0)  # closing would checkpoint once more


def _open(who: str, path: Path, without_checkpoints: bool) -> w.Subject:
    pragma = "PRAGMA wal_autocheckpoint = 0"
    if who == "floor":
        floor = Floor.on_sqlite(path)
        if without_checkpoints:
            floor.connection.execute(pragma)
        return floor
    store, driver = open_sqlite(path)
    if without_checkpoints:
        with driver.raw() as connection:
            connection.execute(pragma)
    return Ours(store)


if __name__ == "__main__":
    _do_everything(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))

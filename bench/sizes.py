"""Owns the section on bytes: what a turn and a small session weigh on disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from bench import workload as w
from bench.floor import Floor
from bench.ours import Ours
from bench.results import Findings, Table, Target
from bench.scale import Place

TURN_LIMIT = 1.25
SESSION_LIMIT = 5 * 1024.0
#: written before weighing begins, so that no file is nearly empty
WARM_UP = 200


def measure(place: Place, found: Findings) -> None:
    folder = place.directory / "sizes"
    folder.mkdir()
    rows = []
    for name, make in _WORK.items():
        floor = _weigh(folder / f"floor-{name}.db", _open_floor, make, place.scale.sized)
        ours = _weigh(folder / f"ours-{name}.db", _open_ours, make, place.scale.sized)
        rows.append([name, f"{floor:.0f}", f"{ours:.0f} ({ours / floor:.2f} ×)"])
        if name == "small session":
            found.targets.append(Target("bytes of a small session", SESSION_LIMIT, round(ours), "bytes"))
        else:
            found.targets.append(Target(f"bytes of a turn, {name}", TURN_LIMIT, ours / floor))
    found.tables.append(
        Table(
            "Bytes on disk",
            ("what", "the same rows, primary keys only", "Holdfast"),
            rows,
            "The floor here is the same rows in the same tables with their primary keys and no other index."
            " 2 048 bytes of a turn are its two messages. A small session: created, updated, one turn,"
            " finalized. Pages in use after a checkpoint, growth only.",
        )
    )


def _open_floor(path: Path) -> w.Subject:
    return Floor.on_sqlite(path, synchronous="OFF", primary_keys_only=True)


def _open_ours(path: Path) -> w.Subject:
    return Ours.on_sqlite(path, synchronous="OFF")


def _recorded(subject: w.Subject) -> Callable[[], object]:
    session_id = w.new_session_id()
    subject.create(session_id)
    return lambda: subject.record_turn(session_id)


def _queued(subject: w.Subject) -> Callable[[], object]:
    session_id = w.new_session_id()
    subject.create(session_id)
    return lambda: subject.queue_turn(session_id)


def _small(subject: w.Subject) -> Callable[[], object]:
    def work() -> None:
        session_id = w.new_session_id()
        subject.create(session_id)
        subject.update(session_id)
        subject.record_turn(session_id)
        subject.finalize(session_id)

    return work


_WORK = {"recorded": _recorded, "through the queue": _queued, "small session": _small}


def _weigh(
    path: Path,
    open_: Callable[[Path], w.Subject],
    make: Callable[[w.Subject], Callable[[], object]],
    count: int,
) -> float:
    subject = open_(path)
    work = make(subject)
    for _ in range(WARM_UP):
        work()
    before = _bytes_in_use(path)
    for _ in range(count):
        work()
    after = _bytes_in_use(path)
    subject.close()
    return (after - before) / count


def _bytes_in_use(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages, free, size = connection.execute(
            "SELECT * FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()"
        ).fetchone()
        return int((pages - free) * size)
    finally:
        connection.close()

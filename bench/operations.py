"""Owns the section on single operations: CPU with sync off, then wall time with every commit synced."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path

from bench import parity
from bench import workload as w
from bench.floor import Floor
from bench.measure import Series, Task, calls, interleave, ratio
from bench.ours import Library, Ours, decide_alone
from bench.peers import open_peers
from bench.results import Bar, Findings, Table, Target, beside, micros
from bench.scale import Place
from holdfast.clock import system_clock
from holdfast.domain.ids import make_session_id

CPU_LIMIT = 2.0
WALL_LIMIT = 1.3
DECISION_LIMIT = 100.0

MakeTask = Callable[[w.Subject], Task]


def new_ids(count: int) -> list[str]:
    """As the library makes them: in no order within a second, and the indexes have to cope with that."""
    return [make_session_id(system_clock(), os.urandom(4)) for _ in range(count)]


def _made(subject: w.Subject) -> Callable[[int], list[str]]:
    """Sessions that exist already, each used once."""

    def prepare(count: int) -> list[str]:
        return [_make(subject) for _ in range(count)]

    return prepare


def _same(subject: w.Subject) -> Callable[[int], list[str]]:
    """One session with a turn behind it, used again and again."""
    session_id = _make(subject)
    subject.update(session_id)
    subject.queue_turn(session_id)
    return lambda count: [session_id] * count


def _make(subject: w.Subject) -> str:
    """The library makes its own ids; here they must be known before."""
    (session_id,) = new_ids(1)
    if isinstance(subject, Library):
        Ours.create(subject, session_id)
    else:
        subject.create(session_id)
    return session_id


def _fork(subject: w.Subject) -> Task:
    (parent,) = _same(subject)(1)
    return calls(lambda child: subject.fork(parent, child), new_ids)


#: name, how a subject does it, whether it is a write, and calls in a batch relative to the usual
OPERATIONS: tuple[tuple[str, MakeTask, bool, float], ...] = (
    ("create", lambda s: calls(s.create, new_ids), True, 1),
    ("update", lambda s: calls(s.update, _made(s)), True, 1),
    ("get", lambda s: calls(s.get, _same(s)), False, 3),
    ("finalize", lambda s: calls(s.finalize, _made(s)), True, 1),
    ("commit a turn", lambda s: calls(s.record_turn, _same(s)), True, 1),
    ("enqueue, claim, finish", lambda s: calls(s.queue_turn, _same(s)), True, 0.5),
    ("fork", _fork, True, 1),
    ("should_resume", lambda s: calls(s.should_resume, _same(s)), False, 3),
    ("resume read and decision", lambda s: calls(s.explain, _same(s)), False, 3),
)
SYNCED = ("create", "update", "commit a turn", "enqueue, claim, finish")
HELD_TO_WALL_LIMIT = ("create", "update", "commit a turn")
#: what the library adds nothing to
STORE_ONLY = ("enqueue, claim, finish",)


def check_floor(place: Place) -> int:
    """The floor and Holdfast leave the same rows behind, or nothing here means anything.

    The floor keeps no totals of what it deletes: that Holdfast does is part of what a cleanup costs.
    """
    paths = place.directory / "parity-ours.db", place.directory / "parity-floor.db"
    return parity.check(
        parity.Candidate(lambda clock: Ours.on_sqlite(paths[0], clock=clock), lambda: _rows(paths[0])),
        parity.Candidate(lambda clock: Floor.on_sqlite(paths[1], clock=clock), lambda: _rows(paths[1])),
    )


def _rows(path: Path) -> parity.Tables:
    connection = sqlite3.connect(path)
    names = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT IN ('schema_migrations', 'daily_totals')"
    )
    tables = {name: parity.order(connection.execute(f"SELECT * FROM {name}")) for (name,) in names.fetchall()}
    connection.close()
    return tables


def measure_cpu(place: Place, found: Findings) -> None:
    subjects = _subjects(place, "cpu", "OFF")
    rows = []
    for name, make, is_write, size in OPERATIONS:
        tasks = {label: make(subject) for label, subject in subjects.items()}
        batch = max(int(place.scale.batch * size), 10)
        series = interleave(tasks, place.scale.pace, batch=batch, meter="cpu")
        rows.append(_row(name, series))
        worst = ratio(_us(name, series), series["floor"])
        if is_write:
            found.targets.append(Target(f"CPU, sync off: {name}", CPU_LIMIT, worst))
        if name == "resume read and decision":
            found.targets.append(
                Target("CPU: resume read and decision", DECISION_LIMIT, series["store"].typical, "µs")
            )
        found.bars.append(Bar(name, worst, CPU_LIMIT if is_write else None))
    _close(subjects)
    found.targets.append(_decision_target(place))
    found.tables.append(
        Table(
            "CPU of one operation, sync off, µs",
            ("operation", "floor", "Holdfast, the store's verb", "Holdfast, the library's verb"),
            rows,
            "`synchronous = OFF` on both sides, so that only computing is counted. In brackets: times the"
            " floor. The verdicts take the library's verb, where there is one.",
        )
    )


def _decision_target(place: Place) -> Target:
    task = {"decide": calls(decide_alone(), lambda count: [None] * count)}
    series = interleave(task, place.scale.pace, batch=place.scale.batch * 5, meter="cpu")
    return Target("CPU: the decision alone", DECISION_LIMIT, series["decide"].typical, "µs")


def _us(name: str, series: Mapping[str, Series]) -> Series:
    return series["store" if name in STORE_ONLY else "library"]


def _row(name: str, series: Mapping[str, Series]) -> list[str]:
    floor, store, library = series["floor"], series["store"], series["library"]
    return [
        name,
        micros(floor.typical),
        beside(store.typical, ratio(store, floor)),
        "–" if name in STORE_ONLY else beside(library.typical, ratio(library, floor)),
    ]


def measure_wall(place: Place, found: Findings) -> None:
    subjects = _subjects(place, "wall", "FULL")
    del subjects["store"]  # the library's verbs run through the same store
    peers = open_peers(place.directory)
    rows = []
    for name, make, _, _ in OPERATIONS:
        if name not in SYNCED:
            continue
        tasks = {label: make(subject) for label, subject in subjects.items()}
        tasks |= {peer.name: peer.tasks()[name] for peer in peers if name in peer.tasks()}
        series = interleave(tasks, place.scale.synced_pace, batch=place.scale.synced_batch, meter="wall")
        times = ratio(series["library"], series["floor"])
        if name in HELD_TO_WALL_LIMIT:
            found.targets.append(Target(f"wall time with fsync: {name}", WALL_LIMIT, times))
        rows.append(
            [name, micros(series["floor"].typical), beside(series["library"].typical, times)]
            + [micros(series[p.name].typical) if p.name in series else "–" for p in peers]
        )
    found.tables.append(
        Table(
            "Wall time of one operation with every commit synced, µs",
            ("operation", "floor", "Holdfast", *(peer.name for peer in peers)),
            rows,
            "The peers are there for orientation, not as a race: " + " ".join(peer.caveat for peer in peers),
        )
    )
    _close(subjects)
    for peer in peers:
        peer.close()


def _subjects(place: Place, name: str, synchronous: str) -> dict[str, w.Subject]:
    folder = place.directory / name
    folder.mkdir()
    return {
        "floor": Floor.on_sqlite(folder / "floor.db", synchronous=synchronous),
        "store": Ours.on_sqlite(folder / "store.db", synchronous=synchronous),
        "library": Library.on_sqlite(folder / "library.db", synchronous=synchronous),
    }


def _close(subjects: Mapping[str, w.Subject]) -> None:
    for subject in subjects.values():
        subject.close()

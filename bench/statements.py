"""Owns the section on statements: how many SQL statements one operation runs, BEGIN and COMMIT included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench import workload as w
from bench.floor import Floor, connect, create_schema
from bench.ours import Ours, open_sqlite
from bench.results import Findings, Table
from bench.scale import Place

#: a subject, and what counts its statements inside a block
Counted = tuple[w.Subject, Callable[[list[str]], object]]


def measure(place: Place, found: Findings) -> None:
    folder = place.directory / "statements"
    folder.mkdir()
    counts = [_count(*counted) for counted in (_floor(folder), _ours(folder))]
    found.tables.append(
        Table(
            "SQL statements of one operation",
            ("operation", "floor", "Holdfast"),
            [[name, *(str(count[name]) for count in counts)] for name in counts[0]],
            "The same on every machine. `BEGIN` and `COMMIT` are counted.",
        )
    )


def _floor(folder: Path) -> Counted:
    path = folder / "floor.db"
    create_schema(path)
    connection = connect(path)
    return Floor(connection), lambda seen: connection.set_trace_callback(seen.append)


def _ours(folder: Path) -> Counted:
    store, driver = open_sqlite(folder / "ours.db")

    def trace(seen: list[str]) -> None:
        with driver.raw() as connection:
            connection.set_trace_callback(seen.append)

    return Ours(store), trace


def _count(subject: w.Subject, trace: Callable[[list[str]], object]) -> dict[str, int]:
    session_id, child = w.new_session_id(), w.new_session_id()
    subject.create(w.new_session_id())
    work: dict[str, Callable[[], object]] = {
        "create": lambda: subject.create(session_id),
        "update": lambda: subject.update(session_id),
        "commit a turn": lambda: subject.record_turn(session_id),
        "enqueue, claim, finish (fresh)": lambda: subject.queue_turn(session_id),
        "enqueue, claim, finish (resumed)": lambda: subject.queue_turn(session_id),
        "get": lambda: subject.get(session_id),
        "should_resume": lambda: subject.should_resume(session_id),
        "resume read and decision": lambda: subject.explain(session_id),
        "list 50": lambda: subject.list_newest(50),
        "fork": lambda: subject.fork(session_id, child),
        "finalize": lambda: subject.finalize(session_id),
    }
    counts = {}
    for name, do in work.items():
        seen: list[str] = []
        trace(seen)
        do()
        # what a foreign key runs inside a statement is traced as a comment
        counts[name] = sum(1 for sql in seen if not sql.startswith("--"))
    subject.close()
    return counts

"""Owns the section on PostgreSQL: one operation at a time beside a floor in psycopg."""

from __future__ import annotations

from bench import parity
from bench import workload as w
from bench.measure import Task, calls, interleave, ratio
from bench.operations import new_ids
from bench.ours import Ours
from bench.peers import LangGraph
from bench.postgres_stage import connect, new_database, new_store, open_floor, running, server_version
from bench.results import Findings, Table, Target, beside, micros
from bench.scale import Place
from holdfast.clock import Instant
from holdfast.store.open import open_store
from tests.postgres_server import ServerUnavailable

TURN_LIMIT = 1.3
TURN = "commit a turn"


def measure(place: Place, found: Findings) -> None:
    what = f"PostgreSQL, wall time: {TURN}"
    try:
        with running(place) as url:
            _measure_on(url, place, found, what)
    except ServerUnavailable as exc:
        found.targets.append(Target(what, TURN_LIMIT, None, why_not=str(exc)))


def _measure_on(url: str, place: Place, found: Findings, what: str) -> None:
    _check_floor(new_store(url, "parity_ours"), new_store(url, "parity_floor"))
    floor = open_floor(new_store(url, "floor"))
    ours = Ours(open_store(new_store(url, "ours")))
    peer = LangGraph.on_postgres(new_database(url, "langgraph"))
    rows = []
    for name in ("create", "update", TURN, "enqueue, claim, finish"):
        tasks = {"floor": _tasks(floor)[name], "Holdfast": _tasks(ours)[name]}
        if name in peer.tasks():
            tasks[peer.name] = peer.tasks()[name]
        series = interleave(tasks, place.scale.synced_pace, batch=place.scale.synced_batch, meter="wall")
        times = ratio(series["Holdfast"], series["floor"])
        if name == TURN:
            found.targets.append(Target(what, TURN_LIMIT, times))
        rows.append(
            [name, micros(series["floor"].typical), beside(series["Holdfast"].typical, times)]
            + [micros(series[peer.name].typical) if peer.name in series else "–"]
        )
    for subject in (floor, ours, peer):
        subject.close()
    found.tables.append(
        Table(
            "PostgreSQL: wall time of one operation, µs",
            ("operation", "psycopg floor", "Holdfast", peer.name),
            rows,
            f"{server_version(url)}, fsync and full_page_writes on, over a unix socket on the same machine."
            " Holdfast takes its time from the server, the floor from its own clock.",
        )
    )


def _check_floor(ours: str, floor: str) -> None:
    parity.check(
        parity.Candidate(
            lambda clock: Ours(open_store(ours, clock=lambda: Instant(clock()))), lambda: _rows(ours)
        ),
        parity.Candidate(lambda clock: open_floor(floor, clock), lambda: _rows(floor)),
    )


def _rows(url: str) -> parity.Tables:
    with connect(url) as connection:
        names = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast' "
            " AND tablename NOT IN ('schema_migrations', 'daily_totals')"
        ).fetchall()
        return {name: parity.order(connection.execute(f"SELECT * FROM {name}".encode())) for (name,) in names}


def _tasks(subject: w.Subject) -> dict[str, Task]:
    session_id = w.new_session_id()
    subject.create(session_id)

    def made(count: int) -> list[str]:
        ids = new_ids(count)
        for one in ids:
            subject.create(one)
        return ids

    def same(count: int) -> list[str]:
        return [session_id] * count

    return {
        "create": calls(subject.create, new_ids),
        "update": calls(subject.update, made),
        TURN: calls(subject.record_turn, same),
        "enqueue, claim, finish": calls(subject.queue_turn, same),
    }

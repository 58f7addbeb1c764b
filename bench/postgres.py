"""Owns the section on PostgreSQL: a server of its own that really syncs, and a floor in psycopg."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

from bench import parity
from bench import workload as w
from bench.floor import INDEXED, Floor
from bench.floor_sessions import wall_clock
from bench.measure import Task, calls, interleave, ratio
from bench.operations import new_ids
from bench.ours import Ours
from bench.peers import LangGraph
from bench.results import Findings, Table, Target, beside, micros
from bench.scale import Place
from holdfast.clock import Instant
from holdfast.store.open import open_store
from tests import postgres_server

#: where the tables of a store are
IN_SCHEMA = "-c search_path=holdfast"
TURN_LIMIT = 1.3
TURN = "commit a turn"


def measure(place: Place, found: Findings) -> None:
    # short, because the path of a unix socket must be, and open to the account that runs the server
    directory = Path(tempfile.mkdtemp(prefix="hf-pg-", dir=place.directory.parent))
    what = f"PostgreSQL, wall time: {TURN}"
    try:
        url = postgres_server.join(directory, durable=True)
    except postgres_server.ServerUnavailable as exc:
        found.targets.append(Target(what, TURN_LIMIT, None, why_not=str(exc)))
        return
    try:
        _measure_on(url, place, found, what)
    finally:
        postgres_server.leave(directory)


def _measure_on(url: str, place: Place, found: Findings, what: str) -> None:
    _check_floor(_new_database(url, "parity_ours"), _new_database(url, "parity_floor"))
    floor = _open_floor(_new_database(url, "floor"))
    ours = Ours(open_store(_new_database(url, "ours")))
    peer = LangGraph.on_postgres(_new_database(url, "langgraph"))
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
            f"{_server_version(url)}, fsync and full_page_writes on, over a unix socket on the same machine."
            " Holdfast takes its time from the server, the floor from its own clock.",
        )
    )


def _check_floor(ours: str, floor: str) -> None:
    parity.check(
        parity.Candidate(
            lambda clock: Ours(open_store(ours, clock=lambda: Instant(clock()))), lambda: _rows(ours)
        ),
        parity.Candidate(lambda clock: _open_floor(floor, clock), lambda: _rows(floor)),
    )


def _rows(url: str) -> parity.Tables:
    with psycopg.connect(url, options=IN_SCHEMA) as connection:
        names = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast' AND tablename <> 'schema_migrations'"
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


def _new_database(url: str, name: str) -> str:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"/{name}"))


def _server_version(url: str) -> str:
    with psycopg.connect(url) as connection:
        row = connection.execute("SHOW server_version").fetchone()
    return f"PostgreSQL {row[0] if row else '?'}"


def _open_floor(url: str, clock: Callable[[], int] = wall_clock) -> Floor:
    open_store(url).close()  # makes the tables
    return Floor(_Connection(psycopg.connect(url, autocommit=True, options=IN_SCHEMA)), clock)


class _Connection:
    """The floor's statements as psycopg wants them; each text is rewritten once."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._known: dict[str, bytes] = {}

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> psycopg.Cursor[Any]:
        return self._cursor.execute(self._rewritten(sql), parameters)

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]], /) -> None:
        self._cursor.executemany(self._rewritten(sql), parameters)

    def close(self) -> None:
        self._connection.close()

    def _rewritten(self, sql: str) -> bytes:
        known = self._known.get(sql)
        if known is None:
            text = sql.replace("BEGIN IMMEDIATE", "BEGIN").replace("?", "%s").replace(INDEXED, "")
            text = text.replace("/*lock*/", "FOR UPDATE").replace("/*lock skip*/", "FOR UPDATE SKIP LOCKED")
            known = self._known[sql] = text.encode()
        return known

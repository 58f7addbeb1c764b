"""Owns the PostgreSQL of a section: a server of its own that really syncs, its databases, and the floor on them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

from bench.floor import INDEXED, Floor
from bench.floor_sessions import wall_clock
from bench.scale import Place
from holdfast.store.open import open_store
from tests import postgres_server

#: where the tables of a store are
IN_SCHEMA = "-c search_path=holdfast"


@contextmanager
def running(place: Place) -> Iterator[str]:
    """Its URL. Raises ``postgres_server.ServerUnavailable`` where there can be none."""
    # short, because the path of a unix socket must be, and open to the account that runs the server
    directory = Path(tempfile.mkdtemp(prefix="hf-pg-", dir=place.directory.parent))
    url = postgres_server.join(directory, durable=True)
    try:
        yield url
    finally:
        postgres_server.leave(directory)


def new_database(url: str, name: str, *, like: str | None = None) -> str:
    """Empty, or a copy of one that nobody uses at the moment."""
    template = f" TEMPLATE {urlsplit(like).path.removeprefix('/')}" if like else ""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}{template}".encode())
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def new_store(url: str, name: str) -> str:
    """An empty one of Holdfast's."""
    made = new_database(url, name)
    open_store(made).close()
    return made


def server_version(url: str) -> str:
    with psycopg.connect(url) as connection:
        row = connection.execute("SHOW server_version").fetchone()
    return f"PostgreSQL {row[0] if row else '?'}"


def connect(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, autocommit=True, options=IN_SCHEMA)


def open_floor(url: str, clock: Callable[[], int] = wall_clock, *, claims: int = 0) -> Floor:
    return Floor(Translated(connect(url)), clock, claims=claims)


class Translated:
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

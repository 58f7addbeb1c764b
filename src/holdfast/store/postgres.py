"""Owns PostgreSQL: connections, transactions with the server's time, and its errors."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import psycopg
from psycopg import conninfo, errors

from holdfast.clock import Clock, Instant
from holdfast.errors import Conflict, HoldfastError, InvalidInput, StoreCorrupt, StoreError, StoreUnavailable
from holdfast.store.driver import Params, Row, Undone
from holdfast.store.pool import NOT_ITS_TRANSACTION, Pool
from holdfast.store.postgres_watch import KEEPALIVE, Bell, ring

CONNECT_SECONDS = 10
POOL_SIZE = 8
LOCK_SECONDS = 30
STANDSTILL_SECONDS = 60

#: the tables are in a schema of their own: their names are common ones
_SCHEMA = "holdfast"
_OPTIONS = (
    f"-c search_path={_SCHEMA} -c lock_timeout={LOCK_SECONDS}s"
    f" -c idle_in_transaction_session_timeout={STANDSTILL_SECONDS}s"
)

# BEGIN and the clock travel together: the server's time costs no extra round trip
_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_BEGIN_WRITE = f"BEGIN ISOLATION LEVEL READ COMMITTED; {_NOW}"
_BEGIN_READ = f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {_NOW}"

_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")
_INDEX_HINT = re.compile(r" INDEXED BY \w+")


class _Dialect(dict[str, Any]):
    """Each statement as PostgreSQL says it: ``:name`` is ``%(name)s``, and the planner needs no hints.

    Keys never change, so rows are locked FOR NO KEY UPDATE. A full lock would also keep out the foreign
    key checks of rows that refer to it, and two who lock in the same order could still deadlock: the
    second change of a session within one transaction makes PostgreSQL look up its conversation again.
    """

    def __missing__(self, sql: str) -> Any:
        plain = _INDEX_HINT.sub("", sql).replace("FOR UPDATE", "FOR NO KEY UPDATE")
        self[sql] = said = _PARAMETER.sub(r"%(\1)s", plain.replace("%", "%%")).encode()
        return said


_said = _Dialect()


class PostgresTransaction:
    __slots__ = ("_cursor", "now", "rung")

    def __init__(self, cursor: psycopg.Cursor[Row], now: Instant) -> None:
        self._cursor = cursor
        self.now = now
        self.rung: set[str] = set()  #: topics that somebody has to hear of

    def one(self, sql: str, params: Params) -> Row | None:
        return self._cursor.execute(_said[sql], params).fetchone()

    def all(self, sql: str, params: Params) -> list[Row]:
        return self._cursor.execute(_said[sql], params).fetchall()

    def run(self, sql: str, params: Params) -> int:
        return self._cursor.execute(_said[sql], params).rowcount

    def run_many(self, sql: str, rows: Sequence[Params]) -> None:
        self._cursor.executemany(_said[sql], rows)

    def ring(self, topic: str) -> None:
        self.rung.add(topic)


class Connection:
    """Used by one thread at a time."""

    __slots__ = ("__weakref__", "abandoned", "sql", "user")

    def __init__(self, sql: psycopg.Connection[Row]) -> None:
        self.sql = sql
        self.user = 0
        self.abandoned = False

    def close(self) -> None:
        self.sql.close()

    def __del__(self) -> None:
        self.close()

    def abandon(self) -> None:
        """In the child of a fork: nothing that is said here may reach the parent's server process."""
        self.abandoned = True
        with Path(os.devnull).open("rb+", buffering=0) as nowhere:
            os.dup2(nowhere.fileno(), self.sql.fileno(), inheritable=False)


class Connector:
    def __init__(self, url: str) -> None:
        given = _understand(url)
        self.where = _address(given)
        self._url = url
        # the last one wins: what the user says comes after ours
        self._options = f"{_OPTIONS} {given.get('options') or os.environ.get('PGOPTIONS', '')}"

    def connect(self, **more: Any) -> Connection:
        return Connection(
            psycopg.connect(
                self._url, autocommit=True, connect_timeout=CONNECT_SECONDS, options=self._options, **more
            )
        )

    def abandon(self, used: Sequence[Connection]) -> None:
        for connection in used:
            connection.abandon()


class PostgresDriver:
    """``clock`` None: the server's own time, so that workers with wrong clocks agree."""

    #: to be made, if the search path leads to none
    schema = _SCHEMA

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self._clock = clock
        self._connector = Connector(url)
        self._pool = Pool(self._connector, keep=POOL_SIZE, limit=POOL_SIZE, patience=CONNECT_SECONDS)

    @property
    def where(self) -> str:
        return self._connector.where

    def now(self) -> Instant:
        with self.read() as tx:
            return tx.now

    @contextmanager
    def write(self) -> Iterator[PostgresTransaction]:
        with self._transaction(_BEGIN_WRITE) as tx:
            yield tx

    @contextmanager
    def read(self) -> Iterator[PostgresTransaction]:
        with self._transaction(_BEGIN_READ) as tx:
            yield tx

    def watch(self, topic: str, _is_news: Callable[[], bool], /) -> Bell:
        with self._errors():
            return Bell(self._connector.connect(**KEEPALIVE), topic, self._errors)

    def bytes_used(self) -> int:
        with self.read() as tx:
            row = tx.one("SELECT pg_database_size(current_database())", {})
        return int(row[0]) if row else 0

    def close(self) -> None:
        self._pool.close()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[PostgresTransaction]:
        with self._errors():
            connection, cursor, now = self._begin(begin)
            try:
                tx = PostgresTransaction(cursor, self._clock() if self._clock else now)
                yield tx
                if connection.abandoned:
                    raise StoreUnavailable(self.where, NOT_ITS_TRANSACTION)
                cursor.execute("COMMIT")
                ring(cursor, tx.rung)
            except Exception:
                self._roll_back(connection)
                raise
            except BaseException:
                # an interrupt may have come between any two steps
                self._pool.discard(connection)
                raise
            self._pool.give_back(connection)

    def _begin(self, begin: str) -> tuple[Connection, psycopg.Cursor[Row], Instant]:
        """A connection from before a restart of the server fails here, where trying again is safe."""
        for last_try in (False, True):
            connection = self._pool.borrow()
            try:
                cursor = connection.sql.cursor()
                cursor.execute(cast("Any", begin))
                cursor.nextset()
                row = cursor.fetchone()
                return connection, cursor, Instant(int(row[0]) if row else 0)
            except BaseException as exc:
                self._pool.discard(connection)
                if last_try or not isinstance(exc, psycopg.OperationalError):
                    raise
                self._pool.discard_idle()  # they are as old
        raise AssertionError("unreachable: the second try returns or raises")

    def _roll_back(self, connection: Connection) -> None:
        try:
            connection.sql.rollback()
        except psycopg.Error:
            # the server has gone, and the transaction with it
            self._pool.discard(connection)
        else:
            self._pool.give_back(connection)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except HoldfastError:
            raise
        except (UnicodeError, OverflowError, psycopg.DataError) as exc:
            raise InvalidInput("value", f"cannot be stored: {' '.join(str(exc).split())}") from exc
        except psycopg.Error as exc:
            raise translate_error(self.where, exc) from exc


_UNAVAILABLE: dict[type[psycopg.Error], str] = {
    errors.DiskFull: "the disk is full",
    errors.ReadOnlySqlTransaction: "it is read-only",
    errors.LockNotAvailable: "it is locked by another session for too long",
    errors.IdleInTransactionSessionTimeout: "the transaction stood still for too long",
    errors.QueryCanceled: "a statement was cancelled",
}


def translate_error(where: str, error: Exception) -> HoldfastError:
    text = " ".join(str(error).split())
    for kind, problem in _UNAVAILABLE.items():
        if isinstance(error, kind):
            return StoreUnavailable(where, problem, engine=text)
    if isinstance(error, errors.UniqueViolation):
        # every verb looks before it writes: what it meets only then was written in the meantime
        return Conflict("someone else was faster", engine=text)
    if isinstance(error, errors.DeadlockDetected | errors.SerializationFailure):
        return Undone(where, f"it was busy, try again: {text}")
    if isinstance(error, errors.UndefinedTable | errors.UndefinedColumn):
        return StoreCorrupt(where, f"it is not a Holdfast database: {text}")
    if isinstance(error, errors.InsufficientPrivilege):
        return StoreUnavailable(where, text)
    if isinstance(error, psycopg.OperationalError):
        return StoreUnavailable(where, f"cannot be reached: {text}")
    return StoreError(where, f"PostgreSQL: {text}")


def _understand(url: str) -> dict[str, Any]:
    try:
        return conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as exc:
        raise StoreUnavailable("postgresql", "the connection string cannot be understood") from exc


def _address(given: dict[str, Any]) -> str:
    """Host, port and database, without user and password."""
    host = given.get("host") or given.get("hostaddr") or "localhost"
    port = f":{given['port']}" if given.get("port") else ""
    return f"postgresql://{host}{port}/{given.get('dbname') or ''}"

"""Owns SQLite: transactions on its connections, and its errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast.clock import Clock
from holdfast.errors import InvalidInput, StoreCorrupt, StoreError, StoreUnavailable
from holdfast.store import tallies
from holdfast.store.driver import Params, Row
from holdfast.store.pool import NOT_ITS_TRANSACTION, Pool
from holdfast.store.sqlite_connections import (
    DISK_IS_FULL,
    Connection,
    FileConnector,
    MemoryConnector,
    disk_is_full,
    prepare_files,
    problem_of,
)
from holdfast.store.sqlite_dialect import SAID
from holdfast.store.sqlite_watch import CommitWatch, FileNews, changes_of_all, changes_of_others

BUSY_SECONDS = 30.0
#: more than that are closed when they come back
_IDLE_CONNECTIONS = 16

#: of a damaged schema SQLite quotes what it cannot understand, and that may be no text
_ENGINE_ERRORS = (sqlite3.Error, UnicodeDecodeError)


class NotText(str):
    """What can be shown of a text whose bytes are not UTF-8."""

    __slots__ = ()


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return NotText(raw.decode("utf-8", "replace"))


class SqliteDriver:
    """``path`` None is a database in memory that lives as long as the driver."""

    one_writer = True

    def __init__(self, path: Path | None, clock: Clock, *, durability: str = "full") -> None:
        self.path = path
        self.now = clock
        self._connector: FileConnector | MemoryConnector
        if path is None:
            self._connector = MemoryConnector()
            self._pool = Pool(self._connector, keep=1, limit=1, patience=BUSY_SECONDS)
        else:
            prepare_files(path)
            synchronous = "NORMAL" if durability == "normal" else "FULL"
            self._connector = FileConnector(path, synchronous, BUSY_SECONDS)
            self._pool = Pool(self._connector, keep=_IDLE_CONNECTIONS)
        self.check_file = self._connector.check_file

    @property
    def where(self) -> str:
        return self._connector.where

    def write(self) -> SqliteTransaction:
        return SqliteTransaction(self, writes=True)

    def read(self) -> SqliteTransaction:
        return SqliteTransaction(self, writes=False)

    def bytes_used(self) -> int:
        if self.path is None:
            with self.read() as tx:
                row = tx.one("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()", {})
            return int(row[0]) if row else 0
        names = (self.path, Path(f"{self.path}-wal"))
        return sum(name.stat().st_size for name in names if name.exists())

    def close(self) -> None:
        self._connector.close()
        self._pool.close()

    def watch(self, _topic: str, is_news: Callable[[], bool], /) -> CommitWatch:
        if self.path is None:
            return CommitWatch(self.raw, changes_of_all, is_news)
        own = Pool(self._connector, keep=1)
        news = FileNews.of(self.path.parent)
        return CommitWatch(partial(self.raw, own), changes_of_others, is_news, own.close, news)

    @contextmanager
    def raw(self, pool: Pool[Connection] | None = None) -> Iterator[sqlite3.Connection]:
        """A connection outside any transaction, for backups and watches."""
        pool = pool or self._pool
        connection = self.borrow(pool)
        try:
            yield connection.sql
        except BaseException as exc:
            pool.discard(connection)
            if isinstance(exc, (*_ENGINE_ERRORS, OSError)):
                raise translate_error(self.where, exc) from exc
            raise
        if connection.alone:
            pool.discard(connection)
        else:
            pool.give_back(connection)

    def borrow(self, pool: Pool[Connection] | None = None) -> Connection:
        try:
            return (pool or self._pool).borrow()
        except (*_ENGINE_ERRORS, OSError) as exc:
            raise translate_error(self.where, exc) from exc

    def give_back(self, connection: Connection) -> None:
        if connection.alone:
            self._pool.discard(connection)
        else:
            self._pool.give_back(connection)

    def discard(self, connection: Connection) -> None:
        self._pool.discard(connection)


class SqliteTransaction:
    """On a borrowed connection, from ``with`` to its end; its own context manager, because every verb passes here.

    After anything but an ordinary exception the connection is closed, not given back: an interrupt may
    have come between any two steps.
    """

    __slots__ = ("_connection", "_driver", "_sql", "_writes", "now")

    def __init__(self, driver: SqliteDriver, *, writes: bool) -> None:
        self._driver = driver
        self._writes = writes

    def one(self, sql: str, params: Params) -> Row | None:
        try:
            row: Row | None = self._sql.execute(SAID[sql], params).fetchone()
        except sqlite3.OperationalError as exc:
            row = next(iter(self._damaged(exc, sql, params)), None)
        return row

    def all(self, sql: str, params: Params) -> list[Row]:
        try:
            return self._sql.execute(SAID[sql], params).fetchall()
        except sqlite3.OperationalError as exc:
            return self._damaged(exc, sql, params)

    def changed(self, sql: str, params: Params) -> int:
        return self._sql.execute(SAID[sql], params).rowcount

    def run(self, sql: str, params: Params) -> None:
        self._sql.execute(SAID[sql], params)

    def run_many(self, sql: str, rows: Sequence[Params]) -> None:
        self._sql.executemany(SAID[sql], rows)

    def ring(self, topic: str) -> None:
        """Whoever watches sees every commit."""

    def _damaged(self, error: sqlite3.OperationalError, sql: str, params: Params) -> list[Row]:
        """The same rows, if all that was wrong is that some text is none."""
        if not str(error).startswith("Could not decode"):
            raise error
        self._sql.text_factory = _decode
        try:
            return self._sql.execute(SAID[sql], params).fetchall()
        finally:
            self._sql.text_factory = str

    def __enter__(self) -> Self:
        self._connection = connection = self._driver.borrow()
        self._sql = connection.sql
        try:
            self._driver.check_file()
            if self._writes:
                _begin_write(connection)
            else:
                self._sql.execute("BEGIN")
            self.now = self._driver.now()
        except BaseException as exc:
            self._driver.discard(connection)
            if isinstance(exc, _ENGINE_ERRORS):
                raise translate_error(self._driver.where, exc) from exc
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection = self._connection
        if connection.closed:
            if error is None:
                raise StoreUnavailable(self._driver.where, NOT_ITS_TRANSACTION)
            return
        done = False
        try:
            if self._writes and error is None:
                self._sql.execute("COMMIT")
            elif self._sql.in_transaction:  # on a full disk SQLite may have rolled back by itself
                self._sql.execute("ROLLBACK")
            if self._writes and connection.gate is not None:
                connection.gate.release()
            done = error is None or isinstance(error, Exception)
        except _ENGINE_ERRORS as exc:
            raise translate_error(self._driver.where, exc) from exc
        finally:
            if done:
                self._driver.give_back(connection)
            else:
                self._driver.discard(connection)
        if isinstance(error, _ENGINE_ERRORS):
            raise translate_error(self._driver.where, error) from error
        if isinstance(error, (UnicodeEncodeError, OverflowError)):
            raise InvalidInput("value", f"cannot be stored: {error}") from error


def _begin_write(connection: Connection) -> None:
    """The time at the gate and the time at SQLite's own lock are one limit."""
    left = BUSY_SECONDS if connection.gate is None else connection.gate.pass_within(BUSY_SECONDS)
    if left < BUSY_SECONDS:
        tallies.count_wait(tallies.DATABASE)
    if left > 0.9 * BUSY_SECONDS:
        connection.sql.execute("BEGIN IMMEDIATE")
    else:
        connection.sql.execute(f"PRAGMA busy_timeout = {int(left * 1000)}")
        connection.sql.execute("BEGIN IMMEDIATE")
        connection.sql.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")


_UNAVAILABLE = {
    sqlite3.SQLITE_FULL: DISK_IS_FULL,
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_PERM: "permission denied",
    sqlite3.SQLITE_BUSY: f"it is locked by another process for more than {BUSY_SECONDS:.0f} seconds",
    sqlite3.SQLITE_LOCKED: "it is locked",
    sqlite3.SQLITE_IOERR: "reading or writing failed",
}
_CORRUPT = {
    sqlite3.SQLITE_NOTADB: "it is not a database",
    sqlite3.SQLITE_CORRUPT: "it is damaged",
}
#: with an error code that says nothing
_DAMAGED_SCHEMA = ("malformed database schema", "no such table", "no such column", "no such index")


def translate_error(where: str, error: sqlite3.Error | OSError | UnicodeDecodeError) -> StoreError:
    if isinstance(error, UnicodeDecodeError) or str(error).startswith(_DAMAGED_SCHEMA):
        return StoreCorrupt(where, _CORRUPT[sqlite3.SQLITE_CORRUPT], engine=str(error))
    if isinstance(error, OSError):
        return StoreUnavailable(where, problem_of(error))
    # the low byte is the primary result code, the rest says more about it
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and disk_is_full(where):
        code = sqlite3.SQLITE_FULL
    if code in _UNAVAILABLE:
        return StoreUnavailable(where, _UNAVAILABLE[code], engine=str(error))
    if code in _CORRUPT:
        return StoreCorrupt(where, _CORRUPT[code], engine=str(error))
    return StoreError(where, f"SQLite: {error}")

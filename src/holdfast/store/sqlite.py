"""Owns SQLite: connections, what a process fork leaves of them, transactions, and its errors."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from holdfast.clock import SECOND, Clock, Instant, to_iso
from holdfast.errors import InvalidInput, StoreCorrupt, StoreError, StoreUnavailable
from holdfast.store import counters
from holdfast.store.driver import Params, Row, WordIndex
from holdfast.store.pool import NOT_ITS_TRANSACTION, Pool
from holdfast.store.sqlite_file import APPLICATION_ID, SAID, WriteLock, open_write_lock

if TYPE_CHECKING:
    from holdfast.store.sqlite_watch import CommitWatch

BUSY_SECONDS = 30.0
#: sentences about a damaged file
_MOST_DAMAGE = 100
#: more than that are closed when they come back
_IDLE_CONNECTIONS = 16

#: of a damaged schema SQLite quotes what it cannot understand, and that may be no text
_ENGINE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
DISK_IS_FULL = "the disk is full"

#: with less than that on the disk, a failed write is no surprise
_LEAST_FREE_BYTES = 64 * 1024
_SWITCH_LOOK_SECONDS = 0.0005

#: between two looks for the file; a look takes as long as a statement
FILE_LOOK_SECONDS = 0.05

#: device and inode of the files that SQLite believes to have locked in this process, where it has not
_entangled: set[tuple[int, int]] = set()


class Connection:
    """A connection and its own handle on the write lock; used by one thread at a time."""

    __slots__ = ("__weakref__", "alone", "closed", "sql", "user", "write_lock")

    def __init__(self, sql: sqlite3.Connection, write_lock: WriteLock | None, *, alone: bool = False) -> None:
        self.sql = sql
        self.write_lock = write_lock
        self.user = 0
        self.closed = False
        self.alone = alone  #: keeps every other one out, so nobody keeps it

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        try:
            self._end()
        finally:
            if self.write_lock is not None:
                self.write_lock.close()

    def __del__(self) -> None:
        self.close()

    def abandon(self) -> None:
        """In the child of a fork. Closing it could take the log away under the parent, so it stays open for good."""
        import ctypes  # only after a fork in the middle of a transaction

        self.closed = True
        # otherwise the end of the interpreter would close it
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.sql))
        if self.write_lock is not None:
            self.write_lock.close()

    def _end(self) -> None:
        self.sql.close()


class FileConnector:
    """``path`` names a file that exists; it has to stay the same one."""

    def __init__(self, path: Path, synchronous: str, busy_seconds: float) -> None:
        self.where = str(path)
        self._file = _identity(self.where)
        self._synchronous = synchronous
        self._busy_seconds = busy_seconds
        self._looked_at = -FILE_LOOK_SECONDS

    def connect(self) -> Connection:
        self._look_for_file()
        if self._file in _entangled:
            problem = "a transaction was open in it when this process was forked; start a new process"
            raise StoreUnavailable(self.where, problem)
        try:
            return self._open(alone=False)
        except sqlite3.OperationalError:
            # the memory that processes share is a file beside the database; a connection that is alone needs none
            if not disk_is_full(self.where):
                raise
            return self._open(alone=True)

    def _open(self, *, alone: bool) -> Connection:
        connection = Connection(_connect(self.where, self._busy_seconds), None, alone=alone)
        try:
            if alone:
                connection.sql.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def check_file(self) -> None:
        """Raises StoreUnavailable if the file was deleted or replaced.

        Writes into a file without a name are lost, and readers would never see what others write. Looking takes as
        long as a statement, so at most ``FILE_LOOK_SECONDS`` of writes can be lost.
        """
        now = time.monotonic()
        if now - self._looked_at >= FILE_LOOK_SECONDS:
            self._look_for_file()
            self._looked_at = now

    def _look_for_file(self) -> None:
        if _identity(self.where) != self._file:
            problem = "the file was deleted or replaced while it was open; open the store again"
            raise StoreUnavailable(self.where, problem)

    def abandon(self, used: Sequence[Connection]) -> None:
        """SQLite keeps a list of its locks for each file and process; the child has the list, but not the locks."""
        _entangled.add(self._file)
        for connection in used:
            connection.abandon()

    def close(self) -> None:
        """Nothing is kept here."""

    def _prepare(self, connection: Connection) -> None:
        sql = connection.sql
        # read something first: a file that is no database is refused before anything is made beside it
        (mode,) = sql.execute("PRAGMA journal_mode").fetchone()
        connection.write_lock = open_write_lock(self.where)
        if mode != "wal" and not _is_foreign(sql):
            self._use_write_ahead_log(sql, connection.write_lock)
        sql.execute(f"PRAGMA synchronous = {self._synchronous}")
        # macOS: make a sync reach the disk itself
        sql.execute("PRAGMA fullfsync = ON")
        sql.execute("PRAGMA foreign_keys = ON")

    def _use_write_ahead_log(self, sql: sqlite3.Connection, write_lock: WriteLock | None) -> None:
        """The switch itself waits neither for a writer nor for a reader."""
        give_up = time.monotonic() + self._busy_seconds
        if write_lock is not None:
            write_lock.acquire(self._busy_seconds)
        try:
            while True:
                try:
                    sql.execute("PRAGMA journal_mode = WAL")
                except sqlite3.OperationalError as exc:
                    if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= give_up:
                        raise
                    time.sleep(_SWITCH_LOOK_SECONDS)
                else:
                    return
        finally:
            if write_lock is not None:
                write_lock.release()


class MemoryConnector:
    """A database in memory is one connection: what is lent is the right to use it.

    The connection is closed by the connector, or by the user who still has it when the connector closes.
    """

    where = ":memory:"

    def __init__(self) -> None:
        self._sql: sqlite3.Connection | None = None
        self._process = os.getpid()
        self._users = 0
        self._closed = False

    def connect(self) -> Connection:
        if os.getpid() != self._process:
            raise StoreUnavailable(self.where, "a store in memory stays with the process that opened it")
        if self._sql is None:
            self._sql = _connect(self.where, 0.0)
            self._sql.execute("PRAGMA foreign_keys = ON")
        self._users += 1
        return _InMemory(self._sql, self)

    def take_back(self, sql: sqlite3.Connection) -> None:
        self._users -= 1
        if self._closed:
            self._close_unused()
        elif sql.in_transaction:
            sql.rollback()

    def check_file(self) -> None:
        """There is none."""

    def abandon(self, used: Sequence[Connection]) -> None:
        for connection in used:
            connection.abandon()

    def close(self) -> None:
        self._closed = True
        self._close_unused()

    def __del__(self) -> None:
        self.close()

    def _close_unused(self) -> None:
        if self._sql is not None and self._users == 0:
            self._sql.close()


class _InMemory(Connection):
    __slots__ = ("_connector",)

    def __init__(self, sql: sqlite3.Connection, connector: MemoryConnector) -> None:
        super().__init__(sql, None)
        self._connector = connector

    def _end(self) -> None:
        self._connector.take_back(self.sql)


def prepare_files(path: Path) -> None:
    """Make the directory and the file, readable by this user alone, before anything is written to them."""
    try:
        missing = [parent for parent in path.parents if not parent.exists()]
        for parent in reversed(missing):
            parent.mkdir(mode=0o700, exist_ok=True)
        _make_file(path)
    except OSError as exc:
        raise StoreUnavailable(str(path), problem_of(exc)) from exc


def problem_of(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DISK_IS_FULL
    return error.strerror or str(error)


def disk_is_full(where: str) -> bool:
    """SQLite reports a full disk for its main files only, not for the shared memory beside them."""
    try:
        disk = os.statvfs(Path(where).parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _LEAST_FREE_BYTES


def _make_file(path: Path) -> None:
    """An existing file is not even opened: closing it would release every lock that this process has on it."""
    try:
        os.close(os.open(path.resolve(), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        problem = errno.EISDIR if path.is_dir() else 0 if os.access(path, os.R_OK | os.W_OK) else errno.EACCES
        if problem:
            raise OSError(problem, os.strerror(problem)) from None


def _connect(target: str, busy_seconds: float) -> sqlite3.Connection:
    return sqlite3.connect(
        target, timeout=busy_seconds, isolation_level=None, check_same_thread=False, cached_statements=256
    )


def _identity(path: str) -> tuple[int, int]:
    """What SQLite tells files apart by; of one that does not exist, nothing."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return (0, 0)
    return (found.st_dev, found.st_ino)


def _is_foreign(sql: sqlite3.Connection) -> bool:
    """Another program's database: the migration refuses it, so it must not be changed before."""
    (application,) = sql.execute("PRAGMA application_id").fetchone()
    tables = sql.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' LIMIT 1").fetchone()
    return application != APPLICATION_ID and tables is not None


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
        self.synchronous = "NORMAL" if durability == "normal" else "FULL"
        self._connector: FileConnector | MemoryConnector
        if path is None:
            self._connector = MemoryConnector()
            self._pool = Pool(self._connector, keep=1, limit=1, patience=BUSY_SECONDS)
        else:
            prepare_files(path)
            self._connector = FileConnector(path, self.synchronous, BUSY_SECONDS)
            self._pool = Pool(self._connector, keep=_IDLE_CONNECTIONS)
        self.check_file = self._connector.check_file

    @property
    def where(self) -> str:
        return self._connector.where

    def write(self, *, synced: bool = True) -> SqliteTransaction:
        return SqliteTransaction(self, writes=True, synced=synced)

    def read(self) -> SqliteTransaction:
        return SqliteTransaction(self, writes=False)

    def bytes_used(self) -> int:
        if self.path is None:
            with self.read() as tx:
                row = tx.one("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()", {})
            return int(row[0]) if row else 0
        names = (self.path, Path(f"{self.path}-wal"))
        return sum(name.stat().st_size for name in names if name.exists())

    def find_damage(self, *, deep: bool) -> tuple[str, ...]:
        check = "integrity_check" if deep else "quick_check"
        try:
            with self.raw() as sql:
                said = [str(line) for (line,) in sql.execute(f"PRAGMA {check}({_MOST_DAMAGE})")]
                broken = sql.execute("PRAGMA foreign_key_check").fetchmany(_MOST_DAMAGE) if deep else ()
        except StoreCorrupt as exc:  # the check itself gives up on some damage
            return (exc.problem,)
        found = [line for line in said if line != "ok"]
        found += (
            f"row {row} of {table} refers to a row of {to} that is missing" for table, row, to, _ in broken
        )
        return tuple(found[:_MOST_DAMAGE])

    def back_up(self) -> str | None:
        if self.path is None:
            return None
        moment = to_iso(Instant(self.now() // SECOND * SECOND)).replace(":", "").replace("-", "")
        target = Path(f"{self.path}.{moment}.backup")
        self.copy_to(target)
        return str(target)

    def copy_to(self, target: Path, version: int | None = None) -> None:
        """Makes a complete, synced copy. It is written under another name first, so the path never holds a part of it.

        With ``version``, makes none if the schema has another version by now.
        """
        partial = Path(f"{target}.{os.getpid()}.partial")
        try:
            os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            copy = sqlite3.connect(partial)
            try:
                with self.raw() as source:
                    source.backup(copy)
                (copied,) = copy.execute("PRAGMA user_version").fetchone()
            finally:
                copy.close()
            if version not in (None, copied):
                return
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
            partial.replace(target)
        except OSError as exc:
            raise StoreUnavailable(str(target), problem_of(exc)) from exc
        finally:
            partial.unlink(missing_ok=True)

    def close(self) -> None:
        self._connector.close()
        self._pool.close()

    def watch(self, _topic: str, is_news: Callable[[], bool], /) -> CommitWatch:
        # imported here: it loads ctypes, and most programs that open a store watch nothing
        from holdfast.store.sqlite_watch import CommitWatch, FileNews, changes_of_all, changes_of_others

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


_PARAMETER = re.compile(r":([a-z_]+)")


class _Numbered(dict[str, tuple[str, Callable[[Params], Sequence[object]]]]):
    """Each statement with numbers for names, and what puts its parameters in order: SQLite looks up each name each time."""

    def __missing__(self, sql: str) -> tuple[str, Callable[[Params], Sequence[object]]]:
        said = SAID[sql]
        names = list(dict.fromkeys(_PARAMETER.findall(said)))
        text = _PARAMETER.sub(lambda found: f"?{names.index(found[1]) + 1}", said)
        # with one name, itemgetter gives a value, and not a tuple
        in_order = itemgetter(*names) if len(names) > 1 else lambda params: [params[name] for name in names]
        self[sql] = numbered = text, in_order
        return numbered


_NUMBERED = _Numbered()


class SqliteTransaction:
    """On a borrowed connection, from ``with`` to its end; its own context manager, because every verb passes here.

    After anything but an ordinary exception the connection is closed, not given back: an interrupt may
    have come between any two steps.
    """

    __slots__ = ("_connection", "_driver", "_sql", "_synced", "_writes", "now")

    def __init__(self, driver: SqliteDriver, *, writes: bool, synced: bool = True) -> None:
        self._driver = driver
        self._writes = writes
        self._synced = synced

    def one(self, sql: str, params: Params) -> Row | None:
        text, in_order = _NUMBERED[sql]
        try:
            row: Row | None = self._sql.execute(text, in_order(params)).fetchone()
        except sqlite3.OperationalError as exc:
            row = next(iter(self._damaged(exc, sql, params)), None)
        return row

    def all(self, sql: str, params: Params) -> list[Row]:
        text, in_order = _NUMBERED[sql]
        try:
            return self._sql.execute(text, in_order(params)).fetchall()
        except sqlite3.OperationalError as exc:
            return self._damaged(exc, sql, params)

    def all_many(self, sql: str, rows: Sequence[Params]) -> list[list[Row]]:
        return [self.all(sql, params) for params in rows]

    def changed(self, sql: str, params: Params) -> int:
        text, in_order = _NUMBERED[sql]
        return self._sql.execute(text, in_order(params)).rowcount

    def run(self, sql: str, params: Params) -> None:
        text, in_order = _NUMBERED[sql]
        self._sql.execute(text, in_order(params))

    def run_many(self, sql: str, rows: Sequence[Params]) -> None:
        self._sql.executemany(SAID[sql], rows)

    def ring(self, topic: str) -> None:
        """Not needed: watchers see every commit."""

    @property
    def words(self) -> WordIndex:
        from holdfast.store.sql.sqlite_words import SqliteWords  # few transactions search

        return SqliteWords()

    def _damaged(self, error: sqlite3.OperationalError, sql: str, params: Params) -> list[Row]:
        """Returns the rows if the only error was a text that is not UTF-8."""
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
            if not self._synced:
                # with a write-ahead log: only a checkpoint syncs, and it syncs the log before the database
                self._sql.execute("PRAGMA synchronous = NORMAL")
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
            self._end(commit=self._writes and error is None)
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

    def _end(self, *, commit: bool) -> None:
        if commit:
            self._sql.execute("COMMIT")
        elif self._sql.in_transaction:  # on a full disk SQLite may have rolled back by itself
            self._sql.execute("ROLLBACK")
        if self._writes and self._connection.write_lock is not None:
            self._connection.write_lock.release()
        if not self._synced:
            self._sql.execute(f"PRAGMA synchronous = {self._driver.synchronous}")


def _begin_write(connection: Connection) -> None:
    """The wait for the write lock and the wait for SQLite's own lock have one limit together."""
    left = BUSY_SECONDS if connection.write_lock is None else connection.write_lock.acquire(BUSY_SECONDS)
    if left < BUSY_SECONDS:
        counters.count_wait(counters.DATABASE)
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
#: errors that have no error code of their own
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

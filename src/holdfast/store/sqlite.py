"""Owns SQLite: connections, the gate between writers, and its errors."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType

from holdfast.clock import Clock, Instant
from holdfast.errors import InvalidInput, StoreCorrupt, StoreError, StoreUnavailable
from holdfast.store.driver import Params, Row

#: marks a file as Holdfast's: "Hold"
APPLICATION_ID = 0x486F6C64

BUSY_SECONDS = 30.0
#: waiters look again the sooner the longer they wait, so that none falls behind the others
_GATE_FIRST_LOOK = 0.0005
_GATE_LAST_LOOK = 0.00005

#: with less than that on the disk, a failed write is no surprise
_LEAST_FREE_BYTES = 64 * 1024

_STATEMENTS: dict[str, str] = {}


def _translate(sql: str) -> str:
    """SQLite locks the whole database for a writer: row locks have nothing to add."""
    known = _STATEMENTS.get(sql)
    if known is None:
        known = sql.replace(" FOR UPDATE SKIP LOCKED", "").replace(" FOR UPDATE", "")
        _STATEMENTS[sql] = known
    return known


class SqliteTransaction:
    __slots__ = ("_connection", "now")

    def __init__(self, connection: sqlite3.Connection, now: Instant) -> None:
        self._connection = connection
        self.now = now

    def one(self, sql: str, params: Params) -> Row | None:
        try:
            row: Row | None = self._connection.execute(_translate(sql), params).fetchone()
        except sqlite3.OperationalError as exc:
            row = next(iter(self._damaged(exc, sql, params)), None)
        return row

    def all(self, sql: str, params: Params) -> list[Row]:
        try:
            return self._connection.execute(_translate(sql), params).fetchall()
        except sqlite3.OperationalError as exc:
            return self._damaged(exc, sql, params)

    def run(self, sql: str, params: Params) -> int:
        return self._connection.execute(_translate(sql), params).rowcount

    def run_many(self, sql: str, rows: Sequence[Params]) -> None:
        self._connection.executemany(_translate(sql), rows)

    def _damaged(self, error: sqlite3.OperationalError, sql: str, params: Params) -> list[Row]:
        """The same rows, if all that was wrong is that some text is none."""
        if not str(error).startswith("Could not decode"):
            raise error
        self._connection.text_factory = _decode
        try:
            return self._connection.execute(_translate(sql), params).fetchall()
        finally:
            self._connection.text_factory = str


class NotText(str):
    """What can be shown of a text whose bytes are not UTF-8."""

    __slots__ = ()


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return NotText(raw.decode("utf-8", "replace"))


class Gate:
    """A file lock that writers pass one at a time.

    SQLite's own waiting is a lottery in which old waiters look ever more rarely; under load one
    writer may starve. The gate is about fairness alone: whoever cannot pass it in time goes on
    and meets SQLite's own lock.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def acquire(self) -> bool:
        since = 0.0
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                now = time.monotonic()
                since = since or now
                if now - since >= BUSY_SECONDS:
                    return False
                time.sleep(max(_GATE_LAST_LOOK, _GATE_FIRST_LOOK - (now - since) / 20))
            except OSError:
                # a file system without such locks: there is no gate then
                return False
            else:
                return True

    def release(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._descriptor)


class Connection:
    """A connection and its own way through the gate; used by one thread at a time."""

    __slots__ = ("gate", "sql")

    def __init__(self, sql: sqlite3.Connection, gate: Gate | None) -> None:
        self.sql = sql
        self.gate = gate

    def close(self) -> None:
        self.sql.close()
        if self.gate is not None:
            self.gate.close()


class SqliteDriver:
    """``path`` None is a database in memory that lives as long as the driver."""

    def __init__(self, path: Path | None, clock: Clock, *, durability: str = "full") -> None:
        self._path = path
        self._clock = clock
        self._synchronous = "NORMAL" if durability == "normal" else "FULL"
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        # a database in memory is one connection, so its users take turns
        self._alone = threading.RLock() if path is None else None
        self._closed = False
        if path is not None:
            _prepare_files(path)

    @property
    def where(self) -> str:
        return ":memory:" if self._path is None else str(self._path)

    @property
    def path(self) -> Path | None:
        return self._path

    def now(self) -> Instant:
        return self._clock()

    def write(self) -> AbstractContextManager[SqliteTransaction]:
        return _Open(self, writes=True)

    def read(self) -> AbstractContextManager[SqliteTransaction]:
        return _Open(self, writes=False)

    def bytes_used(self) -> int:
        if self._path is None:
            with self.read() as tx:
                row = tx.one("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()", {})
            return int(row[0]) if row else 0
        names = (self._path, Path(f"{self._path}-wal"))
        return sum(name.stat().st_size for name in names if name.exists())

    def close(self) -> None:
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().close()

    @contextmanager
    def raw(self) -> Iterator[sqlite3.Connection]:
        """A connection outside any transaction, for backups."""
        connection = self.borrow()
        try:
            yield connection.sql
        except (sqlite3.Error, OSError) as exc:
            raise translate_error(self.where, exc) from exc
        finally:
            self.give_back(connection)

    def borrow(self) -> Connection:
        if self._alone is not None:
            self._alone.acquire()
        try:
            with self._lock:
                if self._closed:
                    raise StoreUnavailable(self.where, "the store is closed")
                if self._idle:
                    return self._idle.pop()
            return self._connect()
        except (sqlite3.Error, OSError) as exc:
            self._next()
            raise translate_error(self.where, exc) from exc
        except BaseException:
            self._next()
            raise

    def give_back(self, connection: Connection) -> None:
        with self._lock:
            if self._closed:
                connection.close()
            else:
                self._idle.append(connection)
        self._next()

    def _next(self) -> None:
        if self._alone is not None:
            self._alone.release()

    def _connect(self) -> Connection:
        target = ":memory:" if self._path is None else str(self._path)
        sql = sqlite3.connect(
            target, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        gate = None
        try:
            # read something first: a file that is no database is refused before anything is made beside it
            (mode,) = sql.execute("PRAGMA journal_mode").fetchone()
            gate = None if self._path is None else Gate(Path(f"{self._path}-gate"))
            if gate is not None and mode != "wal" and not _is_foreign(sql):
                _use_write_ahead_log(sql, gate)
            sql.execute(f"PRAGMA synchronous = {self._synchronous}")
            # macOS: make a sync reach the disk itself
            sql.execute("PRAGMA fullfsync = ON")
            sql.execute("PRAGMA foreign_keys = ON")
        except BaseException:
            Connection(sql, gate).close()
            raise
        return Connection(sql, gate)


class _Open:
    """A transaction on a borrowed connection; a class, because every verb passes here."""

    __slots__ = ("_connection", "_driver", "_gate", "_writes")

    def __init__(self, driver: SqliteDriver, *, writes: bool) -> None:
        self._driver = driver
        self._writes = writes

    def __enter__(self) -> SqliteTransaction:
        self._connection = connection = self._driver.borrow()
        self._gate = None
        try:
            if self._writes and connection.gate is not None and connection.gate.acquire():
                self._gate = connection.gate
            connection.sql.execute("BEGIN IMMEDIATE" if self._writes else "BEGIN")
        except sqlite3.Error as exc:
            self._leave()
            raise translate_error(self._driver.where, exc) from exc
        except BaseException:
            self._leave()
            raise
        return SqliteTransaction(connection.sql, self._driver.now())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end(commit=self._writes and error is None)
        except sqlite3.Error as exc:
            raise translate_error(self._driver.where, exc) from exc
        finally:
            self._leave()
        if isinstance(error, sqlite3.Error):
            raise translate_error(self._driver.where, error) from error
        if isinstance(error, UnicodeError | OverflowError):
            raise InvalidInput("value", f"cannot be stored: {error}") from error

    def _end(self, *, commit: bool) -> None:
        sql = self._connection.sql
        try:
            if commit:
                sql.execute("COMMIT")
        finally:
            # also after a failed commit; on a full disk SQLite may have rolled back by itself
            if sql.in_transaction:
                sql.execute("ROLLBACK")

    def _leave(self) -> None:
        if self._gate is not None:
            self._gate.release()
        self._driver.give_back(self._connection)


_UNAVAILABLE = {
    sqlite3.SQLITE_FULL: "the disk is full",
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


def translate_error(where: str, error: sqlite3.Error | OSError) -> StoreError:
    if isinstance(error, OSError):
        return StoreUnavailable(where, error.strerror or str(error))
    # the low byte is the primary result code, the rest says more about it
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_IOERR and _disk_is_full(where):
        code = sqlite3.SQLITE_FULL
    if code in _UNAVAILABLE:
        return StoreUnavailable(where, _UNAVAILABLE[code], engine=str(error))
    if code in _CORRUPT:
        return StoreCorrupt(where, _CORRUPT[code], engine=str(error))
    return StoreError(where, f"SQLite: {error}")


def _disk_is_full(where: str) -> bool:
    """SQLite says so itself of its main files only, not of the shared memory beside them."""
    try:
        disk = os.statvfs(Path(where).parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _LEAST_FREE_BYTES


def _is_foreign(sql: sqlite3.Connection) -> bool:
    """Another program's database: the migration refuses it, so it must not be changed before."""
    (application,) = sql.execute("PRAGMA application_id").fetchone()
    tables = sql.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' LIMIT 1").fetchone()
    return application != APPLICATION_ID and tables is not None


def _use_write_ahead_log(sql: sqlite3.Connection, gate: Gate) -> None:
    """The switch itself waits for nobody: neither for a writer nor for one who is just looking."""
    passed = gate.acquire()
    give_up = time.monotonic() + BUSY_SECONDS
    try:
        while True:
            try:
                sql.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as exc:
                if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= give_up:
                    raise
                time.sleep(_GATE_FIRST_LOOK)
            else:
                return
    finally:
        if passed:
            gate.release()


def _prepare_files(path: Path) -> None:
    """The directory and the file exist and are this user's alone, before anything is written to them."""
    try:
        missing = [parent for parent in path.parents if not parent.exists()]
        for parent in reversed(missing):
            parent.mkdir(mode=0o700, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as exc:
        raise StoreUnavailable(str(path), exc.strerror or str(exc)) from exc

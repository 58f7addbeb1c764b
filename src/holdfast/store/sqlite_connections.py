"""Owns SQLite's connections: how one is made and closed, and what a fork leaves of it."""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from holdfast.errors import StoreUnavailable
from holdfast.store.gate import Gate, open_gate
from holdfast.store.sqlite_dialect import APPLICATION_ID

DISK_IS_FULL = "the disk is full"

#: with less than that on the disk, a failed write is no surprise
_LEAST_FREE_BYTES = 64 * 1024
_SWITCH_LOOK_SECONDS = 0.0005

#: between two looks for the file; a look takes as long as a statement
FILE_LOOK_SECONDS = 0.05

#: device and inode of the files that SQLite believes to have locked in this process, where it has not
_entangled: set[tuple[int, int]] = set()


class Connection:
    """A connection and its own way through the gate; used by one thread at a time."""

    __slots__ = ("__weakref__", "alone", "closed", "gate", "sql", "user")

    def __init__(self, sql: sqlite3.Connection, gate: Gate | None, *, alone: bool = False) -> None:
        self.sql = sql
        self.gate = gate
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
            if self.gate is not None:
                self.gate.close()

    def __del__(self) -> None:
        self.close()

    def abandon(self) -> None:
        """In the child of a fork. Closing it could take the log away under the parent, so it stays open for good."""
        import ctypes  # only for those who fork in the middle of a transaction

        self.closed = True
        # otherwise the end of the interpreter would close it
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.sql))
        if self.gate is not None:
            self.gate.close()

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
            # the memory that processes share is a file beside the database; one who is alone needs none
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
        """What is written into a file that nobody can find any more is lost: no more than what a moment writes.
        Whoever reads there would wait in vain for what others write.
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
        connection.gate = open_gate(f"{self.where}-gate")
        if mode != "wal" and not _is_foreign(sql):
            self._use_write_ahead_log(sql, connection.gate)
        sql.execute(f"PRAGMA synchronous = {self._synchronous}")
        # macOS: make a sync reach the disk itself
        sql.execute("PRAGMA fullfsync = ON")
        sql.execute("PRAGMA foreign_keys = ON")

    def _use_write_ahead_log(self, sql: sqlite3.Connection, gate: Gate | None) -> None:
        """The switch itself waits for nobody: neither for a writer nor for one who is just looking."""
        give_up = time.monotonic() + self._busy_seconds
        if gate is not None:
            gate.pass_within(self._busy_seconds)
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
            if gate is not None:
                gate.release()


class MemoryConnector:
    """A database in memory is one connection: what is lent is the right to use it.

    The connection is closed by whoever is last: the connector, or the user who has it when the connector closes.
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
    """The directory and the file exist and are this user's alone, before anything is written to them."""
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
    """SQLite says so itself of its main files only, not of the shared memory beside them."""
    try:
        disk = os.statvfs(Path(where).parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _LEAST_FREE_BYTES


def _make_file(path: Path) -> None:
    """One that exists is not even opened: with its closing, every lock that this process has on it would be lost."""
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

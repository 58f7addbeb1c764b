"""Owns the store of hooks and light commands on SQLite: one connection and the store's own statements, with few imports."""

from __future__ import annotations

import os
import sqlite3

from holdfast.clock import Instant, system_clock
from holdfast.errors import SchemaTooNew, StoreUnavailable
from holdfast.hooks.process import StoreLocked, stop_deadline
from holdfast.store.hook_verbs import HookVerbs
from holdfast.store.sqlite_file import APPLICATION_ID, SAID, open_write_lock

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Any, Concatenate, ParamSpec, Self, TypeVar

    from holdfast.hooks.settings import HookSettings
    from holdfast.store.sql.scope import Scope

    P = ParamSpec("P")
    T = TypeVar("T")
else:
    Scope = object

#: a hook that waits longer for a lock writes into the spool instead
BUSY_SECONDS = 2.0
#: hundreds of hooks may wait at once: a shorter interval would take the processor from the others
_LOOK_EVERY = 0.005
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class CommitFailed(StoreUnavailable):
    """What was written may be there, or may not."""


class LightScope(Scope):
    """A transaction in one workspace, in place of the store's own ``Scope``."""

    def __init__(self, sql: sqlite3.Connection, settings: HookSettings, by: str, *, writes: bool) -> None:
        assert settings.path is not None
        self._sql = sql
        self.ws: Any = settings.workspace
        self.policy: Any = settings.policy
        self.where = settings.path
        self.by = by
        self._writes = writes
        self._write_lock = open_write_lock(self.where) if writes else None

    def __enter__(self) -> Self:
        try:
            if self._write_lock is not None:
                left = self._write_lock.acquire(BUSY_SECONDS, look_every=_LOOK_EVERY)
                self._sql.execute(f"PRAGMA busy_timeout = {int(left * 1000)}")
            self._sql.execute("BEGIN IMMEDIATE" if self._writes else "BEGIN")
            stop_deadline()  # from here on the hook commits and answers: it must not also write into the spool
        except BaseException:
            self._release_write_lock()
            raise
        self._began_at = system_clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._commit()
            elif self._sql.in_transaction:
                self._sql.execute("ROLLBACK")
        finally:
            self._release_write_lock()

    def _commit(self) -> None:
        try:
            self._sql.execute("COMMIT")
        except sqlite3.Error as exc:
            if _is_locked(exc):
                raise
            raise CommitFailed(self.where, str(exc)) from exc

    def _release_write_lock(self) -> None:
        if self._write_lock is not None:
            self._write_lock.close()

    @property
    def now(self) -> Instant:
        return self._began_at

    def one(self, sql: str, /, **params: object) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._execute(sql, params).fetchone()
        return row

    def all(self, sql: str, /, **params: object) -> list[tuple[Any, ...]]:
        return self._execute(sql, params).fetchall()

    def all_many(self, sql: str, rows: Sequence[Mapping[str, object]], /) -> list[list[tuple[Any, ...]]]:
        return [self._execute(sql, dict(row)).fetchall() for row in rows]

    def changed(self, sql: str, /, **params: object) -> int:
        return self._execute(sql, params).rowcount

    def run(self, sql: str, /, **params: object) -> None:
        self._execute(sql, params)

    def _execute(self, sql: str, params: dict[str, object]) -> sqlite3.Cursor:
        params["ws"] = self.ws
        return self._sql.execute(SAID[sql], params)


class LightStore(HookVerbs):
    """Creates a store that is missing, and migrates an old one, with the first verb; unless ``as_it_is``."""

    def __init__(self, settings: HookSettings, by: str = "hook", *, as_it_is: bool = False) -> None:
        """``by`` is recorded as the author of every change; a user's name would cost a hook a module."""
        self._settings = settings
        self._by = by
        self._as_it_is = as_it_is
        self._connection: sqlite3.Connection | None = None

    def _write(self, work: Callable[Concatenate[Scope, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self.transact(lambda s: work(s, *args, **kwargs), writes=True)

    def transact(self, work: Callable[[Scope], T], *, writes: bool) -> T:
        """A whole transaction. Nothing is written if it raises anything but CommitFailed."""
        try:
            if self._connection is None:
                self._connection = self._connect()
            with LightScope(self._connection, self._settings, self._by, writes=writes) as s:
                return work(s)
        except sqlite3.Error as exc:
            error = StoreLocked if _is_locked(exc) else StoreUnavailable
            raise error(str(self._settings.path), str(exc)) from exc

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> sqlite3.Connection:
        path = self._settings.path
        if path is None:
            raise StoreUnavailable("the store", "it is not a SQLite file")
        if not os.path.exists(path):
            self._bring_up_to_date(path)
        connection, version = self._open(path)
        if version < self._settings.schema:
            connection.close()
            self._bring_up_to_date(path)
            connection, _ = self._open(path)
        return connection

    def _open(self, path: str) -> tuple[sqlite3.Connection, int]:
        """A connection that is ready to use, and the version of the schema in the file."""
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            connection.execute(f"PRAGMA synchronous = {self._settings.synchronous}")
            connection.execute("PRAGMA fullfsync = ON")
            connection.execute("PRAGMA foreign_keys = ON")
            version = _schema_of(connection)
            if version > self._settings.schema:
                raise SchemaTooNew(path, f"its schema is version {version}, made by a newer Holdfast")
        except BaseException:
            connection.close()
            raise
        return connection, version

    def _bring_up_to_date(self, path: str) -> None:
        if self._as_it_is:
            raise StoreUnavailable(path, "it is missing, or has an old schema")
        from holdfast.store.open import open_store  # only the first hook on a machine or after an upgrade

        open_store(f"sqlite:///{path}").close()


def _is_locked(error: sqlite3.Error) -> bool:
    # an error without a code does not come from SQLite, but from a wrong call of the module sqlite3
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _LOCKED


def _schema_of(connection: sqlite3.Connection) -> int:
    """0 for a file that is not ours: ``open_store`` then says what is wrong with it."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    return int(version) if application == APPLICATION_ID else 0

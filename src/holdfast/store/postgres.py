"""Owns PostgreSQL: connections, transactions with the server's time, watching the queue, and its errors."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast
from weakref import WeakSet

import psycopg
from psycopg import conninfo, errors
from psycopg.pq.abc import PGresult

from holdfast.clock import Clock, Instant
from holdfast.errors import Conflict, HoldfastError, InvalidInput, StoreCorrupt, StoreError, StoreUnavailable
from holdfast.store.contract import QueueWatch
from holdfast.store.driver import Params, Row, Undone, WordIndex
from holdfast.store.pool import NOT_ITS_TRANSACTION, Pool
from holdfast.store.postgres_pipeline import ROWS, Pipeline

CONNECT_SECONDS = 10
POOL_SIZE = 8
#: longer than a transaction may stand still: a verb outlives the transaction of a machine that was lost
LOCK_SECONDS = 30
STANDSTILL_SECONDS = 20
#: a server that is not there any more, and could not say so, is found out in about half a minute
_PATIENCE: dict[str, Any] = {
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}

#: the tables are in a schema of their own: their names are common ones
_SCHEMA = "holdfast"
_OPTIONS = (
    f"-c search_path={_SCHEMA} -c lock_timeout={LOCK_SECONDS}s"
    f" -c idle_in_transaction_session_timeout={STANDSTILL_SECONDS}s"
)

_BEGIN_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED"
_UNSYNCED = "SET LOCAL synchronous_commit TO OFF"
_BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

_CHECKSUM_FAILURES = "SELECT checksum_failures FROM pg_stat_database WHERE datname = current_database()"

_LISTEN = "LISTEN holdfast_queue"
RING = "SELECT pg_notify('holdfast_queue', :topic)"


def cut_off(connection: psycopg.Connection[Row]) -> None:
    """In the child of a process fork: nothing that is sent here may reach the parent's server process."""
    with Path(os.devnull).open("rb+", buffering=0) as nowhere:
        os.dup2(nowhere.fileno(), connection.fileno(), inheritable=False)


class Bell(QueueWatch):
    """A connection of its own that listens. ``translated`` turns the engine's errors into Holdfast's."""

    def __init__(
        self,
        connection: psycopg.Connection[Row],
        topic: str,
        translated: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._translated = translated
        self._closed = False
        self._get_ready()
        _bells.add(self)
        try:
            with translated():
                connection.execute(_LISTEN)
        except BaseException:
            self.close()
            raise

    def _get_ready(self) -> None:
        self._waiting = threading.Lock()
        self._stop, self._stopped = socket.socketpair()
        self._news = select.poll()
        self._news.register(self._stopped, select.POLLIN)
        self._news.register(self._connection, select.POLLIN)

    def wait(self, seconds: float) -> bool:
        give_up = time.monotonic() + seconds
        with self._waiting, self._translated():
            while not self._closed:
                if self._has_rung():
                    return True
                left = give_up - time.monotonic()
                if left <= 0:
                    break
                self._news.poll(left * 1000)
        return False

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._stop.send(b"\0")
        with self._waiting:
            self._stop.close()
            self._stopped.close()
            self._connection.close()

    def abandon(self) -> None:
        """In the child of a process fork: the connection and the thread that waits for it are the parent's."""
        if not self._closed:
            cut_off(self._connection)
            self._stop.close()
            self._stopped.close()
            self._get_ready()

    def _has_rung(self) -> bool:
        server = self._connection.pgconn
        server.consume_input()
        rung = False
        while (heard := server.notifies()) is not None:
            rung = rung or heard.extra.decode() == self._topic
        return rung


_bells: WeakSet[Bell] = WeakSet()


def _abandon_all() -> None:
    for bell in list(_bells):
        bell.abandon()


os.register_at_fork(after_in_child=_abandon_all)


class Connection:
    """Used by one thread at a time."""

    __slots__ = ("__weakref__", "_sql", "abandoned", "pipeline", "user")

    def __init__(self, sql: psycopg.Connection[Row]) -> None:
        self._sql = sql
        self.pipeline = Pipeline(sql)
        self.user = 0
        self.abandoned = False

    def close(self) -> None:
        self._sql.close()

    def __del__(self) -> None:
        self.close()

    def abandon(self) -> None:
        """In the child of a fork."""
        self.abandoned = True
        cut_off(self._sql)


class Connector:
    def __init__(self, url: str) -> None:
        given = _understand(url)
        self.where = _address(given)
        self._url = url
        # the last one takes precedence: the user's options come after ours
        self._options = f"{_OPTIONS} {given.get('options') or os.environ.get('PGOPTIONS', '')}"
        self._patience = {name: value for name, value in _PATIENCE.items() if name not in given}

    def connect(self) -> Connection:
        return Connection(self.open())

    def open(self) -> psycopg.Connection[Row]:
        return psycopg.connect(
            self._url,
            autocommit=True,
            connect_timeout=CONNECT_SECONDS,
            options=self._options,
            client_encoding="UTF8",  # in which the pipeline writes
            **self._patience,
        )

    def abandon(self, used: Sequence[Connection]) -> None:
        for connection in used:
            connection.abandon()


class PostgresDriver:
    """``clock`` None: the server's own time, so that workers with wrong clocks agree."""

    #: to be made, if the search path leads to none
    schema = _SCHEMA
    one_writer = False

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self.clock = clock
        self._connector = Connector(url)
        self._pool = Pool(self._connector, keep=POOL_SIZE, limit=POOL_SIZE, patience=CONNECT_SECONDS)

    @property
    def where(self) -> str:
        return self._connector.where

    def now(self) -> Instant:
        with self.read() as tx:
            return tx.now

    def write(self, *, synced: bool = True) -> PostgresTransaction:
        return PostgresTransaction(self, writes=True, synced=synced)

    def read(self) -> PostgresTransaction:
        return PostgresTransaction(self, writes=False)

    def watch(self, topic: str, _is_news: Callable[[], bool], /) -> Bell:
        with self._errors():
            return Bell(self._connector.open(), topic, self._errors)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as exc:
            raise translate_error(self.where, exc) from exc
        except OSError as exc:
            raise StoreUnavailable(self.where, f"cannot be watched: {exc.strerror}") from exc

    def bytes_used(self) -> int:
        with self.read() as tx:
            row = tx.one("SELECT pg_database_size(current_database())", {})
        return int(row[0]) if row else 0

    def find_damage(self, *, deep: bool) -> tuple[str, ...]:  # noqa: ARG002 - the server has no deeper check
        with self.read() as tx:
            row = tx.one(_CHECKSUM_FAILURES, {})
        failures = int(row[0] or 0) if row else 0
        return (
            (f"{failures} pages of this database had a wrong checksum when they were read",)
            if failures
            else ()
        )

    def back_up(self) -> None:
        """The server's own tools do that: pg_dump."""

    def close(self) -> None:
        self._pool.close()

    def borrow(self) -> Connection:
        """Replaces a connection from before a restart of the server, before anything is sent over it."""
        connection = self._pool.borrow()
        try:
            if connection.pipeline.is_alive():
                return connection
        except BaseException:
            self._pool.discard(connection)
            raise
        self._pool.discard(connection)
        self._pool.discard_idle()  # they are as old
        return self._pool.borrow()

    def give_back(self, connection: Connection) -> None:
        self._pool.give_back(connection)

    def discard(self, connection: Connection) -> None:
        self._pool.discard(connection)


class PostgresTransaction:
    """On a borrowed connection, from ``with`` to its end; its own context manager, because every verb passes here.

    It begins on its way to the first answer. After anything but an ordinary exception the connection is
    closed, not given back: an interrupt may have come between any two steps.
    """

    __slots__ = ("_connection", "_driver", "_now", "_pipeline", "_rung", "_synced", "_writes")

    def __init__(self, driver: PostgresDriver, *, writes: bool, synced: bool = True) -> None:
        self._driver = driver
        self._writes = writes
        self._synced = synced
        self._now: Instant | None = None
        self._rung: set[str] | None = None  #: topics that somebody has to hear of

    @property
    def now(self) -> Instant:
        if self._now is None:
            self._answer()
        return cast("Instant", self._now)

    def one(self, sql: str, params: Params) -> Row | None:
        return next(iter(self.all(sql, params)), None)

    def all(self, sql: str, params: Params) -> list[Row]:
        self._pipeline.say(sql, params)
        return self._pipeline.rows(self._answer())

    def all_many(self, sql: str, rows: Sequence[Params]) -> list[list[Row]]:
        for params in rows:
            self._pipeline.say(sql, params)
        found = [answer for answer in self._answers() if answer.status == ROWS]
        # before them are those of earlier statements, such as the one that asks for the time
        return [self._pipeline.rows(answer) for answer in found[len(found) - len(rows) :]]

    def run(self, sql: str, params: Params) -> None:
        self._pipeline.say(sql, params)

    def run_many(self, sql: str, rows: Sequence[Params]) -> None:
        for params in rows:
            self._pipeline.say(sql, params)

    def changed(self, sql: str, params: Params) -> int:
        self._pipeline.say(sql, params)
        return self._answer().command_tuples or 0

    @property
    def words(self) -> WordIndex:
        from holdfast.store.sql.postgres_words import PostgresWords  # few transactions search

        return PostgresWords()

    def ring(self, topic: str) -> None:
        self._rung = {topic, *(self._rung or ())}

    def _answer(self) -> PGresult:
        """The answer to the statement that was sent last."""
        return self._answers()[-1]

    def _answers(self) -> list[PGresult]:
        answers = self._pipeline.wait()
        if self._now is None:
            # the first rows of all are the time
            (row,) = self._pipeline.rows(next(answer for answer in answers if answer.ntuples))
            self._now = Instant(row[0])
        return answers

    def __enter__(self) -> Self:
        driver = self._driver
        try:
            self._connection = driver.borrow()
        except psycopg.Error as exc:
            raise translate_error(driver.where, exc) from exc
        self._pipeline = self._connection.pipeline
        try:
            self._pipeline.say(_BEGIN_WRITE if self._writes else _BEGIN_READ, {})
            if not self._synced:
                self._pipeline.say(_UNSYNCED, {})
            if driver.clock is None:
                self._pipeline.say(_NOW, {})
            else:
                self._now = driver.clock()
        except BaseException:
            driver.discard(self._connection)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_over = False
        try:
            if error is None:
                self._end("COMMIT")
                self._ring()
            is_over = error is None or (_leaves_it_usable(error) and self._roll_back())
        except psycopg.Error as exc:
            is_over = _leaves_it_usable(exc) and self._roll_back()
            raise translate_error(self._driver.where, exc) from exc
        finally:
            if is_over:
                self._driver.give_back(self._connection)
            else:
                self._driver.discard(self._connection)
        if isinstance(error, (psycopg.Error, UnicodeError, OverflowError)):
            raise translate_error(self._driver.where, error) from error

    def _end(self, how: str) -> None:
        if self._connection.abandoned:
            raise StoreUnavailable(self._driver.where, NOT_ITS_TRANSACTION)
        self._pipeline.say(how, {})
        if self._writes:
            self._pipeline.wait()
        else:
            # no caller waits for this commit: it leaves neither rows nor locks behind
            self._pipeline.send()

    def _ring(self) -> None:
        """After the commit, in a transaction of its own that writes nothing, and that nobody waits for.

        A NOTIFY holds a lock of the whole cluster from before its commit is synced until after it: inside the
        transaction it would make all those that ring wait for each other's disk. And what is committed must
        not be said to have failed, so a bell that cannot be rung stays silent: workers look now and then.
        """
        if self._rung:
            with suppress(psycopg.Error):
                for topic in self._rung:
                    self._pipeline.say(RING, {"topic": topic})
                self._pipeline.send()

    def _roll_back(self) -> bool:
        """False if the server has gone, and the transaction with it."""
        try:
            self._end("ROLLBACK")
        except (psycopg.Error, StoreUnavailable):
            return False
        return True


def _leaves_it_usable(error: BaseException) -> bool:
    """Not after an interrupt, nor if somebody between us and the server has thrown away what was prepared."""
    return isinstance(error, Exception) and not isinstance(error, errors.InvalidSqlStatementName)


_UNAVAILABLE: dict[type[psycopg.Error], str] = {
    errors.DiskFull: "the disk is full",
    errors.ReadOnlySqlTransaction: "it is read-only",
    errors.LockNotAvailable: "it is locked by another session for too long",
    errors.IdleInTransactionSessionTimeout: "the transaction stood still for too long",
    errors.QueryCanceled: "a statement was cancelled",
}


def translate_error(where: str, error: Exception) -> HoldfastError:
    text = " ".join(str(error).split())
    if isinstance(error, UnicodeError | OverflowError | psycopg.DataError):
        return InvalidInput("value", f"cannot be stored: {text}")
    for kind, problem in _UNAVAILABLE.items():
        if isinstance(error, kind):
            return StoreUnavailable(where, problem, engine=text)
    if isinstance(error, errors.UniqueViolation):
        # every verb looks before it writes: what it meets only then was written in the meantime
        return Conflict("someone else was faster", engine=text)
    if isinstance(error, errors.DeadlockDetected | errors.SerializationFailure):
        return Undone(where, f"it was busy, try again: {text}")
    if isinstance(error, errors.InvalidSqlStatementName):
        return Undone(where, f"it has forgotten our statements, try again: {text}")
    if isinstance(error, errors.UndefinedTable | errors.UndefinedColumn):
        return StoreCorrupt(where, f"it is not a Holdfast database: {text}")
    if isinstance(error, errors.InsufficientPrivilege):
        return StoreUnavailable(where, text)
    # what libpq finds out by itself has no class
    if isinstance(error, psycopg.OperationalError) or getattr(error, "sqlstate", None) is None:
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

"""Owns the talk with one PostgreSQL server process, in the pipeline mode of libpq.

What is said is put into the pipeline; it is sent, and waited for, when somebody wants an answer. A sync
ends each batch, and not a mere flush: only then does the server count for how long a transaction stands
still. libpq is used directly, because the cursors of psycopg cost more than everything else in a verb.
"""

from __future__ import annotations

import contextlib
import select
from itertools import count

import psycopg
from psycopg import errors
from psycopg.adapt import Transformer
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGresult

from holdfast.store.driver import Params, Row
from holdfast.store.postgres_dialect import SAID, type_of, written

CANCEL_SECONDS = 5.0

#: of a prepared statement; twice as many the next time, up to the most. The server keeps a plan that it made
#: when a table was almost empty until it has statistics, and reads a whole workspace for each row meanwhile
FIRST_USES, MOST_USES = 16, 256

_BAD = int(ConnStatus.BAD)
_ROWS = int(ExecStatus.TUPLES_OK)
_DONE = int(ExecStatus.COMMAND_OK)
_SYNC = int(ExecStatus.PIPELINE_SYNC)


class _Prepared:
    __slots__ = ("left", "name", "uses")

    def __init__(self, name: bytes, uses: int) -> None:
        self.name = name
        self.uses = self.left = uses


class Pipeline:
    """Used by one thread at a time. After an error of the server its transaction can only be rolled back."""

    __slots__ = ("_connection", "_libpq", "_numbers", "_poll", "_prepared", "_syncs", "_unproved", "_values")

    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection = connection
        self._libpq = connection.pgconn
        self._libpq.enter_pipeline_mode()
        self._values = Transformer(connection)
        self._poll = select.poll()
        self._numbers = count(1)
        self._prepared: dict[bytes, _Prepared] = {}
        self._unproved: list[bytes] = []  #: those prepared ones of which the server has said nothing yet
        self._syncs = 0  #: sent, and not yet found among the answers

    def say(self, sql: str, params: Params) -> None:
        """Nothing is sent yet; what the server has against it is raised by whoever waits next."""
        text, names = SAID[sql]
        values = [params[name] for name in names]
        parameters = [written(value) for value in values]
        prepared = self._prepared.get(text)
        # one without parameters has no plan to renew, and BEGIN bears nothing before it
        if prepared is None or (prepared.left <= 0 and names):
            prepared = self._prepare(text, [type_of(value) for value in values])
        prepared.left -= 1
        self._libpq.send_query_prepared(prepared.name, parameters)

    def _prepare(self, text: bytes, types: list[int]) -> _Prepared:
        worn, uses = self._prepared.get(text), FIRST_USES
        if worn is not None:
            self._libpq.send_query_params(b"DEALLOCATE " + worn.name, None)
            uses = min(2 * worn.uses, MOST_USES)
        self._prepared[text] = prepared = _Prepared(b"holdfast_%d" % next(self._numbers), uses)
        self._unproved.append(text)
        self._libpq.send_prepare(prepared.name, text, types)
        return prepared

    def send(self) -> None:
        """Everything that was said, without waiting for the answers."""
        self._libpq.pipeline_sync()
        self._syncs += 1
        while self._libpq.flush():
            # a server that cannot get rid of its answers listens no more
            for _, event in self._wait_for(select.POLLIN | select.POLLOUT):
                if event & ~select.POLLOUT:
                    self._libpq.consume_input()

    def wait(self) -> list[PGresult]:
        """Send what was said, and get the answers to it, in order."""
        self.send()
        return self.settle()

    def settle(self) -> list[PGresult]:
        """The answers to what was sent last."""
        answers: list[PGresult] = []
        while self._syncs:
            answers = self._read_to_sync()
        return answers

    def _read_to_sync(self) -> list[PGresult]:
        """One batch. Raises the first error in it: whatever came behind that was not executed."""
        answers: list[PGresult] = []
        failed: psycopg.Error | None = None
        while True:
            try:
                result = self._next_result()
            except psycopg.OperationalError as exc:
                raise failed or exc from None
            if result.status == _SYNC:
                break
            if result.status in (_ROWS, _DONE):
                answers.append(result)
            elif failed is None:
                failed = errors.error_from_result(result)
        self._syncs -= 1
        if failed is not None:
            for text in self._unproved:
                self._prepared.pop(text, None)
        self._unproved.clear()
        if failed is not None:
            raise failed
        return answers

    def rows(self, answer: PGresult) -> list[Row]:
        self._values.set_pgresult(answer)
        return self._values.load_rows(0, answer.ntuples, tuple)

    def is_alive(self) -> bool:
        """As far as can be known without asking the server: it has not hung up."""
        try:
            self.settle()
            self._poll.register(self._libpq.socket, select.POLLIN)
            while self._poll.poll(0):
                self._libpq.consume_input()
        except psycopg.Error:
            return False
        return True

    def _next_result(self) -> PGresult:
        libpq = self._libpq
        while True:
            while libpq.is_busy():
                self._wait_for(select.POLLIN)
                libpq.consume_input()
            result = libpq.get_result()
            if result is not None:
                return result
            # else it is what stands between the answers to two statements, or all that will ever come
            if libpq.status == _BAD:
                raise psycopg.OperationalError("the connection is lost")

    def _wait_for(self, events: int) -> list[tuple[int, int]]:
        self._poll.register(self._libpq.socket, events)
        try:
            return self._poll.poll()
        except BaseException:
            # an interrupt; the server would otherwise go on, and wait for a lock perhaps
            with contextlib.suppress(psycopg.Error):
                self._connection.cancel_safe(timeout=CANCEL_SECONDS)
            raise

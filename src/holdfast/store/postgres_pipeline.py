"""Owns how statements and their values travel to one PostgreSQL server process, in the pipeline mode of libpq.

Statements are put into the pipeline. They are sent when somebody needs an answer, which then waits for all of them.
A sync ends each batch, and not a mere flush: only then does the server count for how long a transaction stands
still. libpq is used directly, because the cursors of psycopg cost more than everything else in a verb.
"""

from __future__ import annotations

import contextlib
import re
import select
from collections.abc import Callable
from itertools import count
from types import NoneType
from typing import Any, NamedTuple

import psycopg
from psycopg import errors
from psycopg.adapt import Transformer
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGresult

from holdfast.store.driver import Params, Row

_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")
_INDEX_HINT = re.compile(r" INDEXED BY \w+")


class Said(NamedTuple):
    text: bytes
    names: tuple[str, ...]  #: of the parameters ``$1``, ``$2``, …


class _Dialect(dict[str, Said]):
    """Each statement as PostgreSQL understands it: parameters have numbers, and the planner needs no hints.

    Keys never change, so rows are locked FOR NO KEY UPDATE. A full lock would also keep out the foreign
    key checks of rows that refer to it, and two who lock in the same order could still deadlock: the
    second change of a session within one transaction makes PostgreSQL look up its conversation again.
    """

    def __missing__(self, sql: str) -> Said:
        plain = _INDEX_HINT.sub("", sql).replace("FOR UPDATE", "FOR NO KEY UPDATE")
        names = tuple(dict.fromkeys(_PARAMETER.findall(plain)))
        numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
        text = _PARAMETER.sub(lambda found: numbers[found[1]], plain)
        self[sql] = said = Said(text.encode(), names)
        return said


SAID = _Dialect()


def _write_text(value: str) -> bytes:
    written = value.encode()
    # libpq would take it for the end of the text
    if b"\0" in written:
        raise psycopg.DataError("a text cannot contain NUL")
    return written


#: how a value of each type is written, and the number of the type for PostgreSQL; 0: what its place asks for
_Form = tuple[Callable[[Any], bytes | None], int]
_FORMS: dict[type, _Form] = {
    str: (_write_text, 0),
    NoneType: (lambda _: None, 0),
    int: (b"%d".__mod__, 20),
    bool: (b"%d".__mod__, 16),
    float: (lambda value: repr(value).encode(), 701),
    bytes: (lambda value: b"\\x" + value.hex().encode(), 17),
}


def written(value: object) -> bytes | None:
    write, _ = _FORMS.get(type(value)) or _form_of_subclass(value)
    return write(value)


def type_of(value: object) -> int:
    _, number = _FORMS.get(type(value)) or _form_of_subclass(value)
    return number


def _form_of_subclass(value: object) -> _Form:
    for kind in type(value).__mro__:
        if kind in _FORMS:
            return _FORMS[kind]
    raise psycopg.DataError(f"{type(value).__name__} has no form in PostgreSQL")


CANCEL_SECONDS = 5.0

#: of a prepared statement; twice as many the next time, up to the most. The server keeps a plan that it made
#: when a table was almost empty until it has statistics, and reads a whole workspace for each row meanwhile
FIRST_USES, MOST_USES = 16, 256

_BAD = int(ConnStatus.BAD)
#: the status of an answer to a question
ROWS = int(ExecStatus.TUPLES_OK)
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
        """Nothing is sent yet. An error of the server is raised by the next call that waits."""
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
        """Send the statements that were collected, and get their answers, in order."""
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
            if result.status in (ROWS, _DONE):
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
            # an interrupt; the server would otherwise continue, and wait for a lock perhaps
            with contextlib.suppress(psycopg.Error):
                self._connection.cancel_safe(timeout=CANCEL_SECONDS)
            raise

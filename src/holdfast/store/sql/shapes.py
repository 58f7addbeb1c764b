"""Owns telling a row that no Holdfast wrote: what type each column holds, and one error for all that differs.

SQLite keeps whatever it is given in any column, and a person may have been at the file: such a row
is named, and never trusted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from types import NoneType
from typing import Any, TypeVar

from holdfast.clock import Instant
from holdfast.errors import StoreCorrupt
from holdfast.store.driver import Row

log = logging.getLogger("holdfast")

T = TypeVar("T")

#: a column has one type, in whichever table it is; what is not named here is text
_WHOLE = frozenset(
    [
        "answered_at",
        "at",
        "attempt",
        "attempts",
        "cached_input_tokens",
        "cancel_requested_at",
        "compactions",
        "context_tokens",
        "context_window",
        "created_at",
        "dropped",
        "ended_at",
        "epoch",
        "error_count",
        "errors",
        "expires_at",
        "failed_resumes",
        "fence",
        "finalized_at",
        "first_seq",
        "fork_revision",
        "fork_seq",
        "generation",
        "head_seq",
        "input_tokens",
        "last_error_at",
        "last_seen_at",
        "last_seq",
        "last_used_at",
        "lease_expires_at",
        "max_attempts",
        "next_seq",
        "not_before",
        "number",
        "output_tokens",
        "priority",
        "reported_cached_input_tokens",
        "reported_input_tokens",
        "reported_output_tokens",
        "requested_at",
        "retry_of",
        "revision",
        "revoked_at",
        "seq",
        "started_at",
        "transcript_offset",
        "tries",
        "updated_at",
        "used_at",
        "voided_at",
    ]
)
_FLAGS = frozenset({"foreground", "has_asked", "launched", "resume_ready", "saved"})
_NUMBERS = frozenset({"cost_usd", "reported_cost_usd"})

#: the end of the year 9999
_LAST_INSTANT = 253_402_300_799_999_999

#: what decoding raises for a value that was never encoded
MISREAD = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class Shape:
    """The types of a statement's columns; NULL is allowed in the ``optional`` ones."""

    def __init__(self, table: str, columns: str, optional: str = "") -> None:
        self._table = table
        self._names = [name.strip().rpartition(".")[2] for name in columns.split(",")]
        self._types = [(*_types(name), *_null(name in optional.split())) for name in self._names]
        #: the combinations that were found good: there are few, and rows are many
        self._good: set[tuple[type, ...]] = set()

    def read(self, where: str, row: Row, build: Callable[[Row], T], *key: object) -> T:
        """What ``build`` makes of the row; StoreCorrupt, naming the row by ``key``, if it cannot."""
        try:
            self.check(row)
            return build(row)
        except MISREAD as exc:
            which = " ".join(map(str, key))
            problem = f"{self._table}: {which} cannot be read: {problem_of(exc)}"
            raise StoreCorrupt(where, problem, table=self._table, key=which) from exc

    def column(self, row: Row, name: str) -> Any:
        """One column, whatever is in it."""
        return row[self._names.index(name)]

    def check(self, row: Row) -> None:
        """ValueError, naming the column."""
        found = tuple(map(type, row))
        if found in self._good:
            return
        for name, kind, allowed in zip(self._names, found, self._types, strict=True):
            if kind not in allowed:
                raise ValueError(f"{name} is {_SHOWN.get(kind, kind.__name__)}")
        self._good.add(found)


_SHOWN = {NoneType: "missing", str: "text", int: "a number", bytes: "bytes"}


def columns_of(alias: str, columns: str) -> str:
    """The same columns, of one table among several."""
    return ", ".join(f"{alias}.{name.strip()}" for name in columns.split(","))


def _types(name: str) -> tuple[type, ...]:
    if name in _WHOLE:
        return (int,)
    if name in _FLAGS:
        return (int, bool)
    return (int, float) if name in _NUMBERS else (str,)


def _null(allowed: bool) -> tuple[type, ...]:
    return (NoneType,) if allowed else ()


def problem_of(error: Exception) -> str:
    """In words, whatever the decoding met."""
    if isinstance(error, KeyError):
        return f"{str(error.args[0])[:40]!r} is unknown"
    return str(error)


def is_instant(value: object) -> bool:
    return type(value) is int and 0 <= value <= _LAST_INSTANT


def read_instant(value: object) -> Instant:
    if type(value) is not int or not is_instant(value):
        raise ValueError(f"{str(value)[:40]!r} is not an instant")
    return Instant(value)


def read_optional_instant(value: object) -> Instant | None:
    return None if value is None else read_instant(value)


def read_flag(value: int) -> bool:
    if value not in (0, 1):
        raise ValueError(f"{value} is neither true nor false")
    return bool(value)


def readable(read: Callable[[Row], T], rows: Iterable[Row]) -> Iterator[T]:
    """A list goes on behind a row that cannot be read."""
    for row in rows:
        try:
            yield read(row)
        except StoreCorrupt as exc:
            log.warning("skipped: %s", exc)

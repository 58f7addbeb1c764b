"""Owns what the SQL of the store runs on: a driver gives transactions, one engine each.

The store's SQL is written once, in the dialect both engines share, with ``:name`` parameters,
``FOR UPDATE`` where a row is read in order to be changed, and ``INDEXED BY`` where SQLite, which
knows nothing about the data, would choose badly. A driver translates or drops what its engine does
not say, and turns its engine's errors into Holdfast's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.clock import Instant
from holdfast.errors import StoreUnavailable

if TYPE_CHECKING:
    from holdfast.store.contract import QueueWatch

Row = tuple[Any, ...]
Params = dict[str, object]


class Transaction(Protocol):
    """One open transaction. ``now`` is the store's own time at its beginning.

    Whatever is wrong with a statement that has no answer may be raised by a later one, or by the end of
    the transaction: nothing that depends on its success may be done outside before that.
    """

    @property
    def now(self) -> Instant: ...

    def one(self, sql: str, params: Params) -> Row | None:
        """The first row, or None."""
        ...

    def all(self, sql: str, params: Params) -> list[Row]: ...

    def changed(self, sql: str, params: Params) -> int:
        """Execute; how many rows were changed."""
        ...

    def run(self, sql: str, params: Params) -> None:
        """Execute, in the order of the calls, and before the next answer; a driver may let it wait until then."""
        ...

    def run_many(self, sql: str, rows: Sequence[Params]) -> None: ...

    def ring(self, topic: str) -> None:
        """Once this is committed, whoever watches the topic hears of it."""
        ...


class Undone(StoreUnavailable):
    """The engine rolled the transaction back, because others were in its way: it may be tried again as a whole."""


class Driver(Protocol):
    """Safe to use from several threads; each transaction has a connection of its own."""

    @property
    def where(self) -> str:
        """The file or the address, fit for people: never with a password."""
        ...

    @property
    def one_writer(self) -> bool:
        """Whoever writes keeps everybody else from writing, whatever it is about."""
        ...

    def now(self) -> Instant:
        """The store's own time, outside any transaction."""
        ...

    def write(self) -> AbstractContextManager[Transaction]:
        """Commits on a normal exit, durably; rolls back on any exception. Undone if only the moment was wrong."""
        ...

    def read(self) -> AbstractContextManager[Transaction]:
        """One consistent view; nothing can be written."""
        ...

    def watch(self, topic: str, is_news: Callable[[], bool], /) -> QueueWatch:
        """Hears what rings for the topic. An engine whose watchers can only see that something was committed
        asks ``is_news`` then.
        """
        ...

    def bytes_used(self) -> int: ...

    def close(self) -> None:
        """Idempotent."""
        ...

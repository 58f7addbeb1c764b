"""Owns what the SQL of the store runs on: a driver gives transactions, one engine each.

The store's SQL is written once, in the dialect both engines share, with ``:name`` parameters,
``FOR UPDATE`` where a row is read in order to be changed, and ``INDEXED BY`` where SQLite, which
knows nothing about the data, would choose badly. A driver translates or drops what its engine does
not understand, and turns its engine's errors into Holdfast's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.clock import Instant
from holdfast.errors import StoreUnavailable

if TYPE_CHECKING:
    from holdfast.store.contract import QueueWatch
    from holdfast.store.sql.scope import Scope
    from holdfast.store.sql.search import Document, Question

Row = tuple[Any, ...]
Params = dict[str, object]


class WordIndex(Protocol):
    """A full-text index of turns, as an engine has it. What it keeps is folded: see ``domain.search.fold``.

    A turn whose ``search_id`` is NULL is not in the index, whatever the index still holds of it. If the number is odd,
    only the prompt is: the turn was open.
    """

    def is_ready(self, s: Scope) -> bool:
        """False if nothing was ever added."""
        ...

    def prepare(self, s: Scope) -> None:
        """Before anything is added. Raises ConfigError if the engine has no full-text index."""
        ...

    def add(self, s: Scope, documents: Sequence[Document]) -> None:
        """Add turns to the index, or replace what it has of them, and set their ``search_id``."""
        ...

    def forget(self, s: Scope, conversation_id: str, first: int, last: int) -> None:
        """After the ``search_id`` of these turns was set to NULL."""
        ...

    def find(self, s: Scope, question: Question, limit: int) -> list[Row]:
        """The best turns, the best first, the newest first among equals: conversation, number, session, provider, time.

        An engine may return fewer rows than there are, if it would have to rank too many.
        """
        ...


class Transaction(Protocol):
    """One open transaction. ``now`` is the store's own time at its beginning.

    The error of a statement that has no answer may be raised by a later statement, or by the end of the transaction.
    Until then, nothing outside the transaction may depend on its success.
    """

    @property
    def now(self) -> Instant: ...

    def one(self, sql: str, params: Params) -> Row | None:
        """The first row, or None."""
        ...

    def all(self, sql: str, params: Params) -> list[Row]: ...

    def all_many(self, sql: str, rows: Sequence[Params]) -> list[list[Row]]:
        """The rows of one statement for each set of parameters, in order; where there is a network, one round trip."""
        ...

    def changed(self, sql: str, params: Params) -> int:
        """Execute; how many rows were changed."""
        ...

    def run(self, sql: str, params: Params) -> None:
        """Execute without an answer, in the order of the calls. A driver may wait with it until the next answer is needed."""
        ...

    def run_many(self, sql: str, rows: Sequence[Params]) -> None: ...

    def ring(self, topic: str) -> None:
        """Notify those who watch the topic, once this transaction is committed."""
        ...

    @property
    def words(self) -> WordIndex:
        """The engine's own full-text index."""
        ...


class Undone(StoreUnavailable):
    """The engine rolled the transaction back because of others, as in a deadlock. It may be tried again as a whole."""


class Driver(Protocol):
    """Safe to use from several threads; each transaction has a connection of its own."""

    @property
    def where(self) -> str:
        """The file or the address, fit for people: never with a password."""
        ...

    @property
    def one_writer(self) -> bool:
        """True if one write transaction keeps out all others, even on other sessions."""
        ...

    def now(self) -> Instant:
        """The store's own time, outside any transaction."""
        ...

    def write(self, *, synced: bool = True) -> AbstractContextManager[Transaction]:
        """Commits on a normal exit, durably; rolls back on any exception. Undone if only the moment was wrong.

        What is committed and not ``synced`` can be lost in a crash of the machine, never in part. What was
        committed before is safe, and the next commit that is synced makes this one safe, too.
        """
        ...

    def read(self) -> AbstractContextManager[Transaction]:
        """One consistent view; nothing can be written."""
        ...

    def watch(self, topic: str, is_news: Callable[[], bool], /) -> QueueWatch:
        """Watch a topic. An engine that only tells that something was committed calls ``is_news`` to find out whether
        it concerns the queue.
        """
        ...

    def bytes_used(self) -> int: ...

    def find_damage(self, *, deep: bool) -> tuple[str, ...]:
        """See ``Store.find_damage``."""
        ...

    def back_up(self) -> str | None:
        """See ``Store.back_up``."""
        ...

    def close(self) -> None:
        """Idempotent."""
        ...

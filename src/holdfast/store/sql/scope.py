"""Owns the pairing of a transaction with its workspace: no statement can forget the tenant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from holdfast.clock import Instant
from holdfast.domain.ids import Workspace
from holdfast.domain.policy import Policy
from holdfast.store.driver import Row, Transaction, WordIndex


class Scope:
    """One transaction in one workspace, from ``with`` to its end; every statement gets the workspace as ``:ws``."""

    __slots__ = ("_transaction", "_tx", "by", "policy", "where", "ws")

    def __init__(
        self,
        transaction: AbstractContextManager[Transaction],
        ws: Workspace,
        policy: Policy,
        where: str,
        by: str,
    ) -> None:
        self._transaction = transaction
        self.by = by  #: recorded as the author of every change
        self.ws = ws
        self.policy = policy
        self.where = where

    def __enter__(self) -> Self:
        self._tx = self._transaction.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transaction.__exit__(kind, error, trace)

    @property
    def now(self) -> Instant:
        return self._tx.now

    def one(self, sql: str, /, **params: object) -> Row | None:
        params["ws"] = self.ws
        return self._tx.one(sql, params)

    def all(self, sql: str, /, **params: object) -> list[Row]:
        params["ws"] = self.ws
        return self._tx.all(sql, params)

    def all_many(self, sql: str, rows: Sequence[Mapping[str, object]], /) -> list[list[Row]]:
        return self._tx.all_many(sql, [{"ws": self.ws, **row} for row in rows]) if rows else []

    def changed(self, sql: str, /, **params: object) -> int:
        params["ws"] = self.ws
        return self._tx.changed(sql, params)

    def run(self, sql: str, /, **params: object) -> None:
        params["ws"] = self.ws
        self._tx.run(sql, params)

    @property
    def words(self) -> WordIndex:
        return self._tx.words

    def ring(self) -> None:
        """Notify those who watch the queue of this workspace, once this transaction is committed."""
        self._tx.ring(self.ws)

    def run_many(self, sql: str, rows: Sequence[dict[str, object]], /) -> None:
        if rows:
            self._tx.run_many(sql, [{"ws": self.ws, **row} for row in rows])

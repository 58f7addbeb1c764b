"""Owns watching a SQLite database: it tells nobody, so whoever wants to know looks often, at next to no cost."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from holdfast.store.contract import QueueWatch

#: between two looks; one takes some microseconds, and no lock that a writer would wait for
LOOK_SECONDS = 0.02

Lend = Callable[[], AbstractContextManager[sqlite3.Connection]]


def changes_of_others(sql: sqlite3.Connection) -> int:
    """Differs after every commit of another connection, in whatever process."""
    (version,) = sql.execute("PRAGMA data_version").fetchone()
    return int(version)


def changes_of_all(sql: sqlite3.Connection) -> int:
    """Of a database in memory, whose only connection this is; grows also with what was undone."""
    return sql.total_changes


class CommitWatch(QueueWatch):
    """Between two looks the connection is unused, so that it is closed for a fork like any other."""

    def __init__(
        self,
        lend: Lend,
        count: Callable[[sqlite3.Connection], int],
        is_news: Callable[[], bool],
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._lend = lend
        self._count = count
        self._is_news = is_news
        self._release = release
        self._closed = threading.Event()
        self._looking = threading.Lock()
        self._seen = self._look()

    def wait(self, seconds: float) -> bool:
        give_up = time.monotonic() + seconds
        while not self._closed.is_set():
            if self._has_news():
                return True
            left = give_up - time.monotonic()
            if left <= 0:
                break
            self._closed.wait(min(left, LOOK_SECONDS))
        return False

    def close(self) -> None:
        self._closed.set()
        with self._looking:
            self._release()

    def _has_news(self) -> bool:
        with self._looking:
            if self._closed.is_set():
                return False
            before, self._seen = self._seen, self._look()
            return self._seen != before and self._is_news()

    def _look(self) -> tuple[sqlite3.Connection, int]:
        """The numbers of two connections have nothing to do with each other."""
        with self._lend() as sql:
            return sql, self._count(sql)

"""Owns watching a SQLite database: SQLite notifies nobody, so a watch looks often, or when the files change."""

from __future__ import annotations

import ctypes
import os
import select
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import cache
from pathlib import Path
from weakref import WeakSet

from holdfast.store.contract import QueueWatch

#: between two looks; one takes some microseconds, and no lock that a writer would wait for
LOOK_SECONDS = 0.02
#: where the kernel tells when a file was written to: some file systems do not
TOLD_LOOK_SECONDS = 1.0
#: the longest rest between two looks while others write all the time; many watches would be in their way
BUSY_LOOK_SECONDS = 0.1
_MODIFIED, _CREATED, _MOVED_HERE = 0x2, 0x100, 0x80

Lend = Callable[[], AbstractContextManager[sqlite3.Connection]]


def changes_of_others(sql: sqlite3.Connection) -> int:
    """Differs after every commit of another connection, in whatever process."""
    (version,) = sql.execute("PRAGMA data_version").fetchone()
    return int(version)


def changes_of_all(sql: sqlite3.Connection) -> int:
    """Of a database in memory, whose only connection this is; grows also with what was undone."""
    return sql.total_changes


@cache
def _libc() -> ctypes.CDLL:
    """Kept: the child of a fork should not have to wait for the loader's lock."""
    return ctypes.CDLL(None, use_errno=True)


class FileNews:
    """Tells when something in a folder was written to: on Linux, by the kernel; many waiting watches cost nothing then."""

    def __init__(self, folder: Path, told: int, stop: int) -> None:
        self._folder = folder
        self._told = told
        self._stop = stop
        self._in_use = threading.Lock()
        self._closing = threading.Lock()

    @classmethod
    def of(cls, folder: Path) -> FileNews | None:
        """None where there is no such thing."""
        if sys.platform != "linux":
            return None
        told = _libc().inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if told < 0:
            return None
        if _libc().inotify_add_watch(told, os.fsencode(folder), _MODIFIED | _CREATED | _MOVED_HERE) < 0:
            os.close(told)
            return None
        try:
            return cls(folder, told, os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        except OSError:  # no descriptor is left
            os.close(told)
            return None

    def of_its_own(self) -> FileNews | None:
        """In the child of a fork: the descriptors are shared, and what one process reads the other is not told."""
        if self._told < 0:
            return None
        os.close(self._told)
        os.close(self._stop)
        return FileNews.of(self._folder)

    def wait(self, seconds: float) -> None:
        """Until something was written since the last call, or the time is over."""
        with self._in_use:
            if self._told < 0:
                return
            waiting = select.poll()
            waiting.register(self._told, select.POLLIN)
            waiting.register(self._stop, select.POLLIN)
            waiting.poll(seconds * 1000)
            with suppress(BlockingIOError):
                while os.read(self._told, 65536):
                    pass

    def close(self) -> None:
        """Idempotent, from any thread. Wakes the waiting thread first: its descriptor must not be closed under it."""
        with self._closing:
            if self._told < 0:
                return
            os.eventfd_write(self._stop, 1)
            with self._in_use:
                told, self._told = self._told, -1
                os.close(told)
                os.close(self._stop)


class CommitWatch(QueueWatch):
    """Between two looks the connection is unused, so that it is closed for a fork like any other."""

    def __init__(
        self,
        lend: Lend,
        count: Callable[[sqlite3.Connection], int],
        is_news: Callable[[], bool],
        release: Callable[[], None] = lambda: None,
        news: FileNews | None = None,
    ) -> None:
        self._news = news
        self._lend = lend
        self._count = count
        self._is_news = is_news
        self._release = release
        self._closed = threading.Event()
        self._looking = threading.Lock()
        self._rest = 0.0
        self._seen = self._look()
        _watches.add(self)

    def wait(self, seconds: float) -> bool:
        give_up = time.monotonic() + seconds
        while not self._closed.is_set():
            if self._has_news():
                return True
            left = give_up - time.monotonic()
            if left <= 0:
                break
            self._pause(left)
        return False

    def _pause(self, longest: float) -> None:
        """A busy database changes its files with each write: the longer that continues, the longer the pause between looks."""
        if self._news is None:
            self._closed.wait(min(longest, LOOK_SECONDS))
            return
        if self._rest:
            self._closed.wait(min(self._rest, longest))
        began = time.monotonic()
        self._news.wait(min(longest, TOLD_LOOK_SECONDS))
        is_busy = time.monotonic() - began < BUSY_LOOK_SECONDS
        self._rest = min(max(2 * self._rest, LOOK_SECONDS), BUSY_LOOK_SECONDS) if is_busy else 0.0

    def close(self) -> None:
        self._closed.set()
        if self._news is not None:
            self._news.close()
        with self._looking:
            self._release()

    def begin_again(self) -> None:
        """In the child of a process fork: the thread that waits and holds a lock is the parent's."""
        was_closed = self._closed.is_set()
        self._closed = threading.Event()
        if was_closed:
            self._closed.set()
        self._looking = threading.Lock()
        if self._news is not None:
            self._news = self._news.of_its_own()

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


_watches: WeakSet[CommitWatch] = WeakSet()


def _begin_all_again() -> None:
    for watch in list(_watches):
        watch.begin_again()


os.register_at_fork(after_in_child=_begin_all_again)

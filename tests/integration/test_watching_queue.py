"""What a worker's ear does when the watch fails, and when the worker ends."""

import os
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.engine import worker
from holdfast.engine.worker import QueueWatcher
from holdfast.errors import Forbidden, HoldfastError, StoreUnavailable
from holdfast.store import sqlite_watch
from holdfast.store.contract import QueueWatch, Store
from holdfast.store.open import open_store
from holdfast.store.sqlite_watch import FileNews, changes_of_others
from tests.steps import begin, enqueue

PATIENCE = 30.0


@pytest.fixture
def store() -> Iterator[Store]:
    with closing(open_store("sqlite:///:memory:")) as opened:
        yield opened


class Failing:
    """A store whose watch cannot be opened the first times, or breaks as soon as somebody waits."""

    def __init__(self, store: Store, *errors: HoldfastError, when_waiting: bool = False) -> None:
        self._store = store
        self._errors = list(errors)
        self._when_waiting = when_waiting

    def watch_queue(self) -> QueueWatch:
        watch = self._store.watch_queue()
        if self._errors:
            error = self._errors.pop(0)
            if not self._when_waiting:
                watch.close()
                raise error
            cast(Any, watch).wait = lambda _: _fail(error)
        return watch


def _fail(error: HoldfastError) -> None:
    raise error


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_FIRST_PAUSE", 0.01)


@pytest.mark.parametrize("when_waiting", [False, True])
def test_a_watch_that_fails_is_opened_again(store: Store, when_waiting: bool) -> None:
    errors = [StoreUnavailable("here", "it is away"), Forbidden("not for you")]
    failing = Failing(store, *errors, when_waiting=when_waiting)
    told = threading.Semaphore(0)
    watcher = QueueWatcher(cast(Store, failing), told.release)
    watcher.start()
    # each time that it is open again, something may have come meanwhile
    for _ in range(3 if when_waiting else 1):
        assert told.acquire(timeout=PATIENCE)

    enqueue(store, begin(store), "go")

    assert told.acquire(timeout=PATIENCE)
    watcher.close()


def test_nothing_is_left_of_it_when_it_is_closed(store: Store) -> None:
    told = threading.Event()
    watcher = QueueWatcher(store, told.set)
    watcher.start()
    assert told.wait(PATIENCE)

    watcher.close()

    assert [thread for thread in threading.enumerate() if thread.name.startswith("holdfast")] == []


def test_what_was_never_started_can_be_closed(store: Store) -> None:
    QueueWatcher(store, lambda: None).close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere whoever waits looks often")
def test_whoever_waits_for_a_file_that_nobody_writes_to_hardly_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50 idle workers on one machine are to cost next to nothing."""
    looks: list[int] = []
    count = changes_of_others

    def looked(connection: sqlite3.Connection) -> int:
        looks.append(1)
        return count(connection)

    monkeypatch.setattr(sqlite_watch, "changes_of_others", looked)
    with closing(open_store(f"sqlite:///{tmp_path}/holdfast.db")) as store, store.watch_queue() as watch:
        assert not watch.wait(1.5)

    assert len(looks) <= 5


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere whoever waits looks often")
def test_the_worker_and_its_ear_may_close_a_watch_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    news = FileNews.of(tmp_path)
    assert news is not None
    other = threading.Thread(target=news.close)
    wake = os.eventfd_write

    def wake_while_another_closes(descriptor: int, value: int) -> None:
        if other.ident is None:
            other.start()
            other.join(0.5)  # it may not overtake: the number of a closed descriptor is soon another file's
        wake(descriptor, value)

    monkeypatch.setattr(os, "eventfd_write", wake_while_another_closes)
    news.close()

    other.join(PATIENCE)
    assert not other.is_alive()

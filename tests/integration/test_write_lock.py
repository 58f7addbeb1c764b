"""Writers of a SQLite store take a write lock one at a time."""

import fcntl
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.store import sqlite
from holdfast.store.contract import Store
from holdfast.store.open import open_store
from tests.integration.sqlite_file import create, driver_of, names

#: longer than anything here takes on the busiest machine
LIMIT_SECONDS = 20.0


@contextmanager
def held(file: Path) -> Iterator[None]:
    """The lock that a writer takes, held by somebody else."""
    with Path(f"{file}-gate").open("rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_held(file: Path) -> bool:
    with Path(f"{file}-gate").open("rb+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


class Turnstile:
    """Sees whoever in this process asks for the write lock and is turned away."""

    def __init__(self) -> None:
        self.turned_away = 0
        self._changed = threading.Condition()
        self._flock = fcntl.flock

    def flock(self, descriptor: int, operation: int) -> None:
        try:
            self._flock(descriptor, operation)
        except BlockingIOError:
            self.note()
            raise

    def note(self, times: int = 1) -> None:
        with self._changed:
            self.turned_away += times
            self._changed.notify_all()

    def wait(self, times: int, task: "Task") -> bool:
        """Until that many were turned away; False if the task ended before."""
        with self._changed:
            came = self._changed.wait_for(lambda: self.turned_away >= times or task.ended, LIMIT_SECONDS)
            assert came, "nothing happened"
            return not task.ended


class Task:
    """A thread whose end can be waited for, but not for ever."""

    def __init__(self, action: Callable[[], object], turnstile: Turnstile) -> None:
        self.ended = False
        self.error: Exception | None = None
        self._action = action
        self._turnstile = turnstile
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._action()
        except Exception as exc:  # noqa: BLE001 - raised by finish
            self.error = exc
        finally:
            self.ended = True
            self._turnstile.note(0)

    def finish(self) -> None:
        self._thread.join(LIMIT_SECONDS)
        assert not self._thread.is_alive(), "it still waits"
        if self.error is not None:
            raise self.error


@pytest.fixture
def turnstile(monkeypatch: pytest.MonkeyPatch) -> Turnstile:
    turnstile = Turnstile()
    monkeypatch.setattr(fcntl, "flock", turnstile.flock)
    return turnstile


def test_a_writer_waits_as_long_as_another_holds_the_write_lock(
    store: Store, url: str, file: Path, turnstile: Turnstile
) -> None:
    with closing(open_store(url)) as reader:
        with held(file):
            writer = Task(lambda: create(store), turnstile)
            assert turnstile.wait(20, writer), "it did not wait"
            assert names(reader) == set()
        writer.finish()
        assert names(reader) == {"agent-one"}


def test_a_process_that_dies_with_the_write_lock_releases_it(
    store: Store, file: Path, turnstile: Turnstile
) -> None:
    program = (
        "import fcntl, sys; lock = open(sys.argv[1], 'rb+'); fcntl.flock(lock, fcntl.LOCK_EX); "
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, f"{file}-gate"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"held\n"
            writer = Task(lambda: create(store), turnstile)
            assert turnstile.wait(20, writer), "it did not wait"
        finally:
            other.kill()
    writer.finish()
    assert names(store) == {"agent-one"}


def test_writers_of_one_store_take_the_write_lock_one_by_one(
    store: Store, file: Path, turnstile: Turnstile
) -> None:
    with driver_of(store).write():
        writer = Task(lambda: create(store), turnstile)
        assert turnstile.wait(5, writer), "it did not wait"
    writer.finish()
    assert names(store) == {"agent-one"}


def test_readers_do_not_need_the_write_lock(
    store: Store, url: str, file: Path, turnstile: Turnstile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that only now opens the store, which has nothing to write to it."""
    create(store)
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.2)
    with held(file):
        assert names(store) == {"agent-one"}
        with closing(open_store(url)) as another:
            assert names(another) == {"agent-one"}
    assert turnstile.turned_away == 0


def test_the_write_lock_is_held_during_a_write_and_only_then(store: Store, file: Path) -> None:
    driver = driver_of(store)
    with driver.read():
        assert not is_held(file)
    with driver.write():
        assert is_held(file)
    assert not is_held(file)
    with pytest.raises(ZeroDivisionError), driver.write():
        raise ZeroDivisionError
    assert not is_held(file)


def test_a_writer_that_cannot_get_it_in_time_continues_without_it(
    url: str, file: Path, turnstile: Turnstile, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(url).close()
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.25)
    with closing(open_store(url)) as store:
        with held(file):
            began = time.monotonic()
            create(store)
            waited = time.monotonic() - began
            assert names(store) == {"agent-one"}
            assert is_held(file), "it gave away a lock that it did not have"
        assert waited >= 0.25
        assert turnstile.turned_away > 1
        with driver_of(store).write():
            assert is_held(file), "it no longer uses the write lock"


def test_a_writer_without_the_write_lock_still_meets_the_lock_of_sqlite(
    url: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(url).close()
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)
    with closing(open_store(url)) as store:
        with closing(sqlite3.connect(file, isolation_level=None)) as foreign:
            foreign.execute("BEGIN IMMEDIATE")
            with held(file), pytest.raises(StoreUnavailable, match="locked"):
                create(store)
            with pytest.raises(StoreUnavailable, match="locked"):
                create(store)
            assert not is_held(file)
        create(store)
        assert names(store) == {"agent-one"}

"""Ctrl-C at any moment: whatever it cuts short, the store goes on as if it had not been."""

import fcntl
import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.clock import Instant, system_clock
from holdfast.domain.sessions import SessionFilter
from holdfast.engine.holdfast import Holdfast
from holdfast.store.contract import Store
from holdfast.store.open import open_store
from tests import processes
from tests.builders import a_session

ROUNDS = 400
#: a write that takes longer has met a lock that nobody holds any more
SOON_SECONDS = 5.0


@pytest.fixture(params=["sqlite", "memory", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return "sqlite:///:memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'holdfast.db'}"


# --- at any moment -----------------------------------------------------------------------------------------


def interrupt(action: Callable[[], object], after: float) -> None:
    """Repeat the action until a real signal, after that many seconds, ends it."""
    # a finalizer can be what is interrupted, and Python goes on then
    give_up = time.monotonic() + after + 1
    try:
        signal.setitimer(signal.ITIMER_REAL, after)
        while time.monotonic() < give_up:
            action()
    except KeyboardInterrupt:
        pass


def bombard(ready: processes.Start, url: str, seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    written: set[str] = set()
    slowest = 0.0
    with holdfast.open(url) as store:
        store.create("first")
        before = open_files()
        ready()
        for _ in range(ROUNDS):
            began = time.monotonic()
            interrupt(lambda: written.add(store.create("writer").id), 0.0002 * 150 ** chance.random())
            slowest = max(slowest, time.monotonic() - began)
        gc.collect()
        return {
            "written": len(written),
            "lost": len(written - ids(store)),
            "slowest": slowest,
            "files left open": max(0, open_files() - before),
            "another thread": len(in_another_thread(lambda: store.create("another").id)) > 0,
        }


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def ids(store: Holdfast) -> set[str]:
    return {session.id for session in store.sessions(SessionFilter())}


def in_another_thread(action: Callable[[], str]) -> str:
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(action()), daemon=True)
    thread.start()
    thread.join(SOON_SECONDS)
    return answers[0] if answers else ""


@pytest.mark.parametrize("seed", [1, 2])
def test_a_store_that_is_interrupted_all_the_time_stays_whole(url: str, seed: int) -> None:
    (seen,) = processes.together(bombard, [(url, seed)])

    assert seen.pop("written") > 0
    assert seen.pop("slowest") < SOON_SECONDS
    assert seen == {"lost": 0, "files left open": 0, "another thread": True}
    if url.startswith("sqlite:////"):
        assert not gate_is_held(Path(url.removeprefix("sqlite:///")))


def gate_is_held(file: Path) -> bool:
    with Path(f"{file}-gate").open("rb+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


# --- at the worst ones -------------------------------------------------------------------------------------


class Trap:
    """A clock that is interrupted once it is set: after the transaction has begun, before anything is done."""

    def __init__(self) -> None:
        self.is_set = False

    def __call__(self) -> Instant:
        if self.is_set:
            self.is_set = False
            raise KeyboardInterrupt
        return system_clock()


@contextmanager
def trapped(url: str) -> Iterator[tuple[Store, Trap]]:
    trap = Trap()
    with closing(open_store(url, clock=trap)) as store:
        store.create_session(a_session())
        yield store, trap


def test_a_write_that_is_interrupted_at_its_beginning_locks_nobody_out(url: str) -> None:
    with trapped(url) as (store, trap):
        trap.is_set = True
        with pytest.raises(KeyboardInterrupt):
            store.create_session(a_session())
        assert in_another_thread(lambda: store.create_session(a_session()).id)
        store.create_session(a_session())


def change_and_press_ctrl_c(store: Store) -> None:
    with store._driver.write() as tx:  # type: ignore[attr-defined]
        tx.run("UPDATE sessions SET purpose = 'changed'", {})
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(SOON_SECONDS)


def test_a_write_that_is_interrupted_in_its_middle_writes_nothing(url: str) -> None:
    with trapped(url) as (store, _):
        with pytest.raises(KeyboardInterrupt):
            change_and_press_ctrl_c(store)
        (session,) = store.list_sessions(SessionFilter(), 10).sessions
        assert session.purpose != "changed"
        store.create_session(a_session())

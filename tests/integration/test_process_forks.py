"""A process that has a store open and forks: everyone goes on with it, and nothing that was written is lost."""

import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.domain.sessions import SessionFilter
from holdfast.domain.turns import NewTurn
from holdfast.engine.holdfast import Holdfast
from holdfast.errors import StoreUnavailable
from tests import processes

WRITES = 20


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'holdfast.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "holdfast.db"


def ids(url: str) -> set[str]:
    with holdfast.open(url) as store:
        return {session.id for session in store.sessions(SessionFilter())}


def write(store: Holdfast, count: int = WRITES) -> set[str]:
    return {store.create("writer").id for _ in range(count)}


# --- a process that forks ----------------------------------------------------------------------------------


class Child:
    """A fork of this process that runs ``action``; its answer, or what it raised, comes back."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self._read, write_end = os.pipe()
        self._pid = os.fork()
        if self._pid:
            os.close(write_end)
            return
        signal.alarm(60)
        try:
            answer = action()
        except BaseException as exc:  # noqa: BLE001 - the answer, too
            answer = exc
        os.write(write_end, pickle.dumps(str(answer) if isinstance(answer, BaseException) else answer))
        os._exit(0)

    def answer(self) -> Any:
        with os.fdopen(self._read, "rb") as pipe:
            said = pipe.read()
        os.waitpid(self._pid, 0)
        return pickle.loads(said)


def run(task: Callable[..., Any], *args: object) -> Any:
    """In a process of its own, which has one thread and may fork without harm to the tests."""
    (answer,) = processes.together(_alone, [(task, args)])
    return answer


def _alone(ready: processes.Start, task: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    ready()
    return task(*args)


def everyone_writes(url: str) -> set[str]:
    store = holdfast.open(url)
    written = write(store)
    children = [Child(lambda: write(store)) for _ in range(3)]
    written |= write(store)
    store.close()
    return written.union(*(child.answer() for child in children))


def test_a_parent_and_its_children_share_a_handle(url: str) -> None:
    assert run(everyone_writes, url) == ids(url)


def a_grandchild_writes(url: str) -> set[str]:
    store = holdfast.open(url)
    written = write(store, 1)
    written |= Child(lambda: write(store) | Child(lambda: write(store)).answer()).answer()
    return written


def test_a_child_may_fork_again(url: str) -> None:
    written = run(a_grandchild_writes, url)
    assert len(written) == 1 + 2 * WRITES
    assert written == ids(url)


def a_daemon_writes(connection: Connection, url: str) -> None:
    """As those who put themselves into the background do: the one who opened the store is gone."""
    store = holdfast.open(url)
    store.create("parent")
    if os.fork():
        os._exit(0)
    while connection.recv():
        connection.send(write(store))
    os._exit(0)


def test_others_come_and_go_while_a_daemon_writes(url: str) -> None:
    """The last one to close a SQLite file takes its log away; a child's open store must count."""
    process, daemon = processes.start(a_daemon_writes, url)
    processes.finish(process)
    written: set[str] = set()
    for _ in range(5):
        daemon.send(True)
        written |= processes.receive(daemon)
        assert written <= ids(url)
    daemon.send(False)
    assert len(written) == 5 * WRITES
    assert written <= ids(url)
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def everyone_is_told(url: str) -> tuple[bool, bool, bool]:
    """The child closes what it has inherited while somebody waits for it, and opens a watch of its own."""
    hf = holdfast.open(url)
    session = hf.begin("work", provider="scripted").id

    inherited = hf.store.watch_queue()

    def child_hears() -> bool:
        inherited.close()
        with hf.store.watch_queue() as watch:
            hf.enqueue(session, "go", NewTurn("", "scripted"))
            return watch.wait(30)

    waited: list[bool] = []
    waiting = threading.Thread(target=lambda: waited.append(inherited.wait(30)))
    waiting.start()
    child_heard = Child(child_hears).answer()
    waiting.join()
    hf.enqueue(hf.begin("more", provider="scripted").id, "go", NewTurn("", "scripted"))
    with inherited:
        return child_heard, waited.pop(), inherited.wait(30)


def test_a_parent_and_its_child_are_told_of_turns_each_by_itself(url: str) -> None:
    assert run(everyone_is_told, url) == (True, True, True)


# --- in the middle of something ----------------------------------------------------------------------------


@contextmanager
def busy_threads(store: Holdfast, written: set[str]) -> Iterator[None]:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            written.add(store.create("thread").id)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def fork_among_threads(url: str) -> set[str]:
    store = holdfast.open(url)
    written: set[str] = set()
    with busy_threads(store, written):
        answers = [child.answer() for child in [Child(lambda: write(store, 5)) for _ in range(10)]]
    assert len(written) > 0
    return written.union(*answers)


def test_a_fork_waits_for_the_transactions_of_other_threads(url: str) -> None:
    assert run(fork_among_threads, url) == ids(url)


def fork_in_a_transaction(url: str) -> tuple[str, str, str | set[str]]:
    store = holdfast.open(url)

    def commit_of_the_parent() -> str:
        try:
            transaction.__exit__(None, None, None)
        except StoreUnavailable as exc:
            return exc.problem
        return "committed"

    def write_in_the_child() -> str | set[str]:
        try:
            return write(store, 1)
        except StoreUnavailable as exc:
            return exc.problem

    transaction = store.store._driver.write()  # type: ignore[attr-defined]
    tx = transaction.__enter__()
    tx.run("CREATE TABLE mark (n INTEGER)", {})
    child = Child(lambda: (commit_of_the_parent(), write_in_the_child()))
    ended, written = child.answer()
    tx.run("INSERT INTO mark VALUES (1)", {})
    mine = commit_of_the_parent()
    store.close()
    return ended, mine, written


def test_a_transaction_stays_with_the_process_that_began_it(url: str) -> None:
    ended, parents, written = run(fork_in_a_transaction, url)

    assert (ended, parents) == ("a transaction stays with the process that began it", "committed")
    if url.startswith("sqlite:"):
        # SQLite itself believes to hold the parent's locks: there is no safe way in
        assert "when this process was forked" in written
        assert ids(url) == set()
    else:
        assert ids(url) == written


IN_TRANSACTION_TO_ITS_END = """
import os, sys
import holdfast
store = holdfast.open(sys.argv[1])
with store.store._driver.write() as tx:
    tx.run("CREATE TABLE mark (n INTEGER)", {})
    child = os.fork()
    if not child:
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    tx.run("INSERT INTO mark VALUES (1)", {})
print(store.create("parent").id)
"""


def test_the_end_of_a_child_does_not_touch_the_transaction_of_its_parent(url: str) -> None:
    """The whole interpreter ends, with everything it still holds."""
    done = subprocess.run(
        [sys.executable, "-c", IN_TRANSACTION_TO_ITS_END, url], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ids(url) == {done.stdout.strip()}


def test_a_gate_that_a_parent_held_is_not_kept_shut_by_its_child(file: Path) -> None:
    process, connection = processes.start(die_at_the_gate, f"sqlite:///{file}")
    assert processes.receive(connection) == "forked"
    process.join()
    with holdfast.open(f"sqlite:///{file}") as store:
        assert write(store, 1) == ids(f"sqlite:///{file}")
    connection.send("end")


def die_at_the_gate(connection: Connection, url: str) -> None:
    store = holdfast.open(url)
    with store.store._driver.write():  # type: ignore[attr-defined]
        if os.fork():
            connection.send("forked")
            os._exit(0)
        connection.recv()
        os._exit(0)


def fork_with_a_store_in_memory() -> tuple[str, int]:
    store = holdfast.open("sqlite:///:memory:")
    store.create("parent")
    answer = Child(lambda: write(store)).answer()
    store.create("parent")
    return answer, len(list(store.sessions(SessionFilter())))


def test_a_store_in_memory_stays_with_its_process() -> None:
    assert run(fork_with_a_store_in_memory) == (
        ":memory:: a store in memory stays with the process that opened it",
        2,
    )


def fork_the_default_store(url: str) -> set[str]:
    os.environ["HOLDFAST_URL"] = url
    written = {holdfast.create_session("parent")}
    children = [Child(lambda: holdfast.create_session("child")) for _ in range(3)]
    return written | {child.answer() for child in children}


def test_the_plain_verbs_work_in_every_child(url: str) -> None:
    assert run(fork_the_default_store, url) == ids(url)

"""What a SQLite store promises on disk: how it syncs, who can read it, and how its writers take turns."""

import fcntl
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

import holdfast
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import NewSession, SessionFilter
from holdfast.engine import default
from holdfast.errors import StoreUnavailable
from holdfast.store import sqlite
from holdfast.store.contract import Store
from holdfast.store.open import open_store
from holdfast.store.sql_store import SqlStore
from holdfast.store.sqlite import SqliteDriver
from tests.migrations.starters import ADD_TABLE, one_more_migration

#: longer than anything here takes on the busiest machine
LIMIT_SECONDS = 20.0

NORMAL, FULL = 1, 2  #: as SQLite numbers them


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "holdfast.db"


@pytest.fixture
def url(file: Path) -> str:
    return f"sqlite:///{file}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_store(url)) as store:
        yield store


def driver_of(store: Store) -> SqliteDriver:
    assert isinstance(store, SqlStore)
    assert isinstance(store._driver, SqliteDriver)
    return store._driver


def create(store: Store, name: str = "one") -> None:
    store.create_session(NewSession(SessionId(f"agent-{name}"), "writer"))


def names(store: Store) -> set[str]:
    return {session.id for session in store.list_sessions(SessionFilter(), 100).sessions}


# --- every connection ---------------------------------------------------------------------------------------


def on_every_connection(store: Store, pragma: str) -> list[object]:
    """Its value on the connection that has been used, on two that are new, and on those after their use."""
    driver = driver_of(store)
    values = []
    for _ in range(2):
        with ExitStack() as stack:
            for _ in range(3):
                connection = stack.enter_context(driver.raw())
                values.append(connection.execute(f"PRAGMA {pragma}").fetchone()[0])
    return values


def test_a_commit_is_synced_on_every_connection(store: Store) -> None:
    create(store)
    assert on_every_connection(store, "synchronous") == [FULL] * 6


def test_only_who_asks_for_it_gets_less(url: str) -> None:
    with closing(open_store(url, durability="normal")) as store:
        assert on_every_connection(store, "synchronous") == [NORMAL] * 6
    with closing(open_store(url, durability="full")) as store:
        assert on_every_connection(store, "synchronous") == [FULL] * 6


@pytest.mark.parametrize("pragma", ["journal_mode", "foreign_keys", "fullfsync", "busy_timeout"])
def test_every_connection_is_prepared_alike(store: Store, pragma: str) -> None:
    expected = {"journal_mode": "wal", "foreign_keys": 1, "fullfsync": 1, "busy_timeout": 30_000}[pragma]
    assert on_every_connection(store, pragma) == [expected] * 6


def test_a_file_that_lost_its_write_ahead_log_gets_it_back(url: str, file: Path) -> None:
    open_store(url).close()
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    with closing(open_store(url)) as store:
        assert on_every_connection(store, "journal_mode") == ["wal"] * 6


def test_a_row_that_refers_to_nothing_is_refused(store: Store) -> None:
    create(store)
    with pytest.raises(Exception, match="FOREIGN KEY"), driver_of(store).write() as tx:
        tx.run("UPDATE sessions SET conversation_id = 'conv-none'", {})


@pytest.mark.parametrize(("given", "expected"), [(None, FULL), ("full", FULL), ("normal", NORMAL)])
def test_the_settings_decide_how_a_store_syncs(
    monkeypatch: pytest.MonkeyPatch, given: str | None, expected: int
) -> None:
    if given is not None:
        monkeypatch.setenv("HOLDFAST_DURABILITY", given)
    monkeypatch.setattr(default, "_open", {})
    with holdfast.open() as opened, default.default() as kept:
        assert on_every_connection(opened.store, "synchronous") == [expected] * 6
        assert on_every_connection(kept.store, "synchronous") == [expected] * 6


# --- who can read it ----------------------------------------------------------------------------------------


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=["umask-000", "umask-022", "umask-077"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_every_file_of_a_store_is_its_users_alone(umask: int, url: str, file: Path) -> None:
    with closing(open_store(url)) as store:
        create(store)
    with one_more_migration(ADD_TABLE), closing(open_store(url)) as store:
        create(store, "another")
        modes = {path.name: mode(path) for path in file.parent.iterdir()}
    (backup,) = (name for name in modes if name.endswith(".backup"))
    assert modes == dict.fromkeys(
        ["holdfast.db", "holdfast.db-wal", "holdfast.db-shm", "holdfast.db-gate", backup], 0o600
    )


def test_the_copy_before_a_migration_is_never_readable_by_others(
    umask: int, url: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even while it is being written, under its other name."""
    open_store(url).close()
    seen: list[int] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        seen.extend(mode(path) for path in file.parent.glob("*.partial*"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    with one_more_migration(ADD_TABLE):
        open_store(url).close()
    assert seen == [0o600]


def test_directories_that_have_to_be_made_are_their_users_alone(umask: int, tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path}/one/two/three/holdfast.db").close()
    made = [tmp_path / "one", tmp_path / "one/two", tmp_path / "one/two/three"]
    assert [mode(path) for path in made] == [0o700] * 3


@pytest.mark.parametrize("before", [0o755, 0o700, 0o1777])
def test_a_directory_that_exists_keeps_its_mode(umask: int, tmp_path: Path, before: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(before)
    open_store(f"sqlite:///{shared}/holdfast.db").close()
    open_store(f"sqlite:///{shared}/inner/holdfast.db").close()
    assert (mode(shared), mode(shared / "inner")) == (before, 0o700)


# --- the gate -----------------------------------------------------------------------------------------------


@contextmanager
def held(file: Path) -> Iterator[None]:
    """The lock that a writer takes, held by somebody else."""
    with Path(f"{file}-gate").open("rb+") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        yield


def is_held(file: Path) -> bool:
    with Path(f"{file}-gate").open("rb+") as gate:
        try:
            fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


class Turnstile:
    """Sees whoever in this process asks for the gate and is turned away."""

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


def test_a_writer_waits_as_long_as_another_holds_the_gate(
    store: Store, url: str, file: Path, turnstile: Turnstile
) -> None:
    with closing(open_store(url)) as reader:
        with held(file):
            writer = Task(lambda: create(store), turnstile)
            assert turnstile.wait(20, writer), "it did not wait"
            assert names(reader) == set()
        writer.finish()
        assert names(reader) == {"agent-one"}


def test_a_process_that_dies_at_the_gate_leaves_it_open(
    store: Store, file: Path, turnstile: Turnstile
) -> None:
    program = (
        "import fcntl, sys; gate = open(sys.argv[1], 'rb+'); fcntl.flock(gate, fcntl.LOCK_EX); "
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


def test_writers_of_one_store_pass_the_gate_one_by_one(
    store: Store, file: Path, turnstile: Turnstile
) -> None:
    with driver_of(store).write():
        writer = Task(lambda: create(store), turnstile)
        assert turnstile.wait(5, writer), "it did not wait"
    writer.finish()
    assert names(store) == {"agent-one"}


def test_readers_pass_by_the_gate(
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


def test_the_gate_is_held_during_a_write_and_only_then(store: Store, file: Path) -> None:
    driver = driver_of(store)
    with driver.read():
        assert not is_held(file)
    with driver.write():
        assert is_held(file)
    assert not is_held(file)
    with pytest.raises(ZeroDivisionError), driver.write():
        raise ZeroDivisionError
    assert not is_held(file)


def test_who_cannot_pass_the_gate_in_time_goes_on_without_it(
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
            assert is_held(file), "it no longer uses the gate"


def test_a_writer_without_the_gate_still_meets_the_lock_of_sqlite(
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


# --- a store that is closed ---------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["file", "memory"])
def test_a_closed_store_is_unavailable(where: str, url: str) -> None:
    store = open_store(url if where == "file" else "sqlite:///:memory:")
    create(store)
    store.close()
    for use in (lambda: create(store, "two"), lambda: names(store)):
        with pytest.raises(StoreUnavailable, match="closed"):
            use()
    store.close()


def test_closing_waits_for_nobody_and_loses_nothing(store: Store, url: str) -> None:
    """What is on its way is finished; its connection is closed then and not kept."""
    driver = driver_of(store)
    with driver.raw() as connection:
        with driver.write() as tx:
            tx.run("CREATE TABLE late (n INTEGER)", {})
            store.close()
            tx.run("INSERT INTO late VALUES (1)", {})
        assert connection.execute("SELECT n FROM late").fetchall() == [(1,)]
    with pytest.raises(sqlite3.ProgrammingError):
        connection.execute("SELECT 1")
    with pytest.raises(StoreUnavailable):
        create(store)


def open_files() -> list[Path]:
    return sorted(Path("/dev/fd").iterdir())


def test_a_closed_store_leaves_no_open_file(url: str, file: Path) -> None:
    before = open_files()
    store = open_store(url)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(driver_of(store).raw())
    store.close()
    assert open_files() == before

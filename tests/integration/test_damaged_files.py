"""SQLite files that something else has changed: told as what they are, and never written to as if they were fine."""

import random
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from holdfast.clock import after
from holdfast.errors import StoreCorrupt, StoreUnavailable
from holdfast.store import sqlite
from holdfast.store.contract import Store
from holdfast.store.open import open_store
from tests.builders import a_claim, a_session
from tests.integration.sqlite_file import driver_of
from tests.steps import begin, enqueue

STOPPED_WRITER = """
import os, signal, sqlite3, sys, fcntl
gate = open(sys.argv[1] + "-gate", "rb+")
fcntl.flock(gate, fcntl.LOCK_EX)
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("writing", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A store with a session in it, all of it in one file, and nothing in the file but that."""
    path = tmp_path / "holdfast.db"
    use(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM")
    return path


def use(path: Path) -> None:
    with closing(open_store(f"sqlite:///{path}")) as store:
        store.create_session(a_session())


# --- the schema --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("byte", [0x00, 0x20, 0x80, 0xC3, 0xFF])
def test_a_damaged_schema_is_told_as_such(file: Path, byte: int) -> None:
    """Wherever the damage is in the words of the schema, and whether or not it is still text."""
    whole = file.read_bytes()
    words = [match.start() for match in re.finditer(rb"CREATE (TABLE|INDEX)", whole)]
    assert len(words) > 10
    for word in random.Random(byte).sample(words, 10):
        damaged = bytearray(whole)
        damaged[word + 3] = byte
        file.write_bytes(damaged)
        with pytest.raises(StoreCorrupt, match="it is damaged") as told:
            use(file)
        assert told.value.where == str(file)


def test_a_table_that_has_gone_is_damage(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP TABLE sessions")
    with pytest.raises(StoreCorrupt, match="it is damaged"):
        use(file)


# --- the file itself ---------------------------------------------------------------------------------------


def delete(file: Path) -> None:
    file.unlink()


def replace_with_another_store(file: Path) -> None:
    use(file.with_name("other.db"))
    file.with_name("other.db").replace(file)


@pytest.mark.parametrize("happens", [delete, replace_with_another_store])
def test_what_cannot_be_found_again_is_not_written(file: Path, happens: Callable[[Path], None]) -> None:
    with closing(open_store(f"sqlite:///{file}")) as store:
        store.create_session(a_session())
        happens(file)
        existed = file.exists()
        time.sleep(sqlite.FILE_LOOK_SECONDS)
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="deleted or replaced while it was open"):
                store.create_session(a_session())
        assert file.exists() == existed


@pytest.mark.parametrize("happens", [delete, replace_with_another_store])
def test_whoever_looks_for_work_is_told_that_nobody_will_put_any_there(
    file: Path, happens: Callable[[Path], None]
) -> None:
    with closing(open_store(f"sqlite:///{file}")) as store:
        assert store.claim_turn(a_claim()) is None
        happens(file)
        time.sleep(sqlite.FILE_LOOK_SECONDS)
        with pytest.raises(StoreUnavailable, match="deleted or replaced while it was open"):
            store.claim_turn(a_claim())


# --- a writer that stands still ----------------------------------------------------------------------------


def test_whoever_finds_nothing_to_claim_waits_for_no_writer(file: Path) -> None:
    """Many idle workers that look for work would otherwise be in the way of those who bring some."""
    with closing(open_store(f"sqlite:///{file}")) as store, closing(open_store(f"sqlite:///{file}")) as other:
        session = begin(store)
        enqueue(store, session, "later", not_before=after(store.now(), 3600))
        enqueue(store, begin(store), "elsewhere", provider="codex")
        assert store.claim_turn(a_claim()) is None
        with driver_of(other).write():
            began = time.monotonic()
            assert store.claim_turn(a_claim()) is None
            assert time.monotonic() - began < 0.5 * sqlite.BUSY_SECONDS


def test_the_gate_and_the_lock_behind_it_have_one_limit(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 2.0)
    timeouts: list[int] = []
    with (
        closing(open_store(f"sqlite:///{file}")) as store,
        subprocess.Popen(
            [sys.executable, "-c", STOPPED_WRITER, str(file)], stdout=subprocess.PIPE, text=True
        ) as writer,
    ):
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "writing\n"
            watch_timeouts(store, timeouts)
            with pytest.raises(StoreUnavailable, match="locked"):
                store.create_session(a_session())
        finally:
            writer.kill()
        store.create_session(a_session())
    assert timeouts == [0], "what was left after the gate"


def watch_timeouts(store: Store, seen: list[int]) -> None:
    """How long SQLite may wait, each time a writer begins without the gate."""
    driver = store._driver  # type: ignore[attr-defined]
    with driver.raw() as connection:

        def note(statement: str) -> None:
            found = re.fullmatch(r"PRAGMA busy_timeout = (\d+)", statement)
            if found:
                seen.append(int(found[1]))

        connection.set_trace_callback(note)


def test_not_every_connection_of_a_crowd_is_kept(file: Path) -> None:
    with closing(open_store(f"sqlite:///{file}")) as store:
        driver = store._driver  # type: ignore[attr-defined]
        with ExitStack() as crowd:
            connections = [crowd.enter_context(driver.raw()) for _ in range(20)]
        assert sum(is_open(connection) for connection in connections) == 16


def is_open(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return False
    return True

"""Whatever opens a connection to SQLite closes it; Python 3.13 and newer warn of each one that is left to them."""

import gc
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine import default
from holdfast.errors import HoldfastError
from holdfast.hooks.light_store import LightStore
from holdfast.hooks.settings import load_hook_settings
from holdfast.store.open import open_store

MEMORY = "sqlite:///:memory:"

#: registers before Holdfast does, so it runs after whatever Holdfast does at the end of a process
AT_EXIT = """
import atexit, sqlite3
connect, made = sqlite3.connect, []
sqlite3.connect = lambda *a, **k: made.append(connect(*a, **k)) or made[-1]

@atexit.register
def look():
    for connection in made:
        try:
            connection.execute("SELECT 1")
            print("open")
        except sqlite3.ProgrammingError:
            print("closed")

import holdfast
holdfast.create_session("terraform-architect")
"""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """Every connection that is made from now on."""
    made: list[sqlite3.Connection] = []
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def remember(*args: Any, **keywords: Any) -> sqlite3.Connection:
        made.append(connect(*args, **keywords))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", remember)
    return made


def is_closed(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return True
    return False


def test_a_store_in_memory_is_closed_after_an_interrupt_in_a_transaction(
    opened: list[sqlite3.Connection],
) -> None:
    store = open_store(MEMORY)
    with suppress(KeyboardInterrupt), store._driver.write():  # type: ignore[attr-defined]
        raise KeyboardInterrupt
    store.close()
    assert [is_closed(connection) for connection in opened] == [True]


def test_a_store_in_memory_that_is_in_use_is_closed_by_its_user(opened: list[sqlite3.Connection]) -> None:
    store = open_store(MEMORY)
    with store._driver.read():  # type: ignore[attr-defined]
        store.close()
        assert not is_closed(opened[0])
    assert is_closed(opened[0])


@pytest.mark.parametrize("where", ["memory", "file"])
def test_a_store_that_is_lost_closes_itself(
    opened: list[sqlite3.Connection], tmp_path: Path, where: str
) -> None:
    store = open_store(MEMORY if where == "memory" else f"sqlite:///{tmp_path}/holdfast.db")
    del store
    gc.collect()
    assert [is_closed(connection) for connection in opened] == [True]


def test_a_store_that_cannot_be_used_after_it_was_opened_is_closed(
    opened: list[sqlite3.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(default, "empty_spool", fail)
    with pytest.raises(KeyboardInterrupt):
        default.open()
    assert all(is_closed(connection) for connection in opened)
    assert opened


def _made_by_a_newer_version(path: Path) -> None:
    open_store(f"sqlite:///{path}").close()
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("PRAGMA user_version = 9999")


def _no_database(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text("no database at all" * 100)


@pytest.mark.parametrize("spoil", [_made_by_a_newer_version, _no_database])
def test_a_hook_closes_a_store_that_it_cannot_use(
    opened: list[sqlite3.Connection], home: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(home / ".local/share/holdfast/holdfast.db")
    store = LightStore(load_hook_settings(os.environ, str(home)))
    with pytest.raises(HoldfastError):
        store.lose_delegations("none")
    assert all(is_closed(connection) for connection in opened)
    assert opened


def test_the_default_store_is_closed_when_the_process_ends(home: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", AT_EXIT], capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    assert (set(ended.stdout.split()), ended.stderr) == ({"closed"}, "")

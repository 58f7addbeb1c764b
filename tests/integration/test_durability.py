"""What a SQLite store promises on disk: how it syncs, and what closing it leaves."""

import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import holdfast
from holdfast.engine import default
from holdfast.errors import StoreUnavailable
from holdfast.store.contract import Store
from holdfast.store.open import open_store
from tests.integration.sqlite_file import create, driver_of, names

NORMAL, FULL = 1, 2  #: as SQLite numbers them


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


def test_a_write_that_may_be_lost_is_not_synced_and_the_next_one_is(store: Store) -> None:
    driver = driver_of(store)
    with driver.write(synced=False) as tx:
        assert tx.one("PRAGMA synchronous", {}) == (NORMAL,)
    with pytest.raises(ZeroDivisionError), driver.write(synced=False):
        raise ZeroDivisionError
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

"""Owns the stores that the contract suites run on: every engine, with a clock that tests move."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

import pytest

from holdfast.domain.ids import Workspace
from holdfast.domain.policy import Policy
from holdfast.store.contract import Store
from holdfast.store.driver import Driver
from holdfast.store.migrate import migrate_sqlite
from holdfast.store.open import open_store
from holdfast.store.sql_store import SqlStore
from holdfast.store.sqlite import SqliteDriver
from tests.clock import ManualClock
from tests.contract.heads import watch
from tests.contract.served import AnyToken, Served, behind_http, serving

MEMORY = "sqlite:///:memory:"


class MakeStore(Protocol):
    def __call__(self, workspace: str = "default", policy: Policy | None = None) -> Store: ...


class Damage(Protocol):
    def __call__(self, session_id: str, **fields: object) -> None: ...


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """A server on this machine; each test puts its own store behind it."""
    with serving() as running:
        yield running


@pytest.fixture(scope="session")
def served_with_tokens() -> Iterator[Served]:
    """The same for tests that make tokens, which nobody may do without one."""
    with serving(AnyToken()) as running:
        yield running


@pytest.fixture(scope="session")
def new_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite store as Holdfast makes it, to be copied: the migrations take longer than most tests."""
    file = tmp_path_factory.mktemp("new") / "holdfast.db"
    open_store(f"sqlite:///{file}").close()
    return file


@pytest.fixture(params=["sqlite-memory", "sqlite-file", "postgres", "http"])
def url(request: pytest.FixtureRequest, tmp_path: Path, new_file: Path) -> str:
    if request.param in ("sqlite-memory", "http"):
        return MEMORY
    if request.param == "sqlite-file":
        shutil.copy(new_file, tmp_path / "holdfast.db")
        return f"sqlite:///{tmp_path}/holdfast.db"
    return str(request.getfixturevalue("emptied_postgres_url"))


@pytest.fixture
def make_store(url: str, clock: ManualClock, over_http: Served | None, new_file: Path) -> Iterator[MakeStore]:
    """Another handle on the same data: for another workspace, or with another policy."""
    opened: list[Store] = []

    def make(workspace: str = "default", policy: Policy | None = None) -> Store:
        if url == MEMORY and opened:
            # a database in memory is its driver's alone: share it
            made: Store = SqlStore(driver_of(opened[-1]), Workspace(workspace), policy or Policy())
        elif url == MEMORY:
            made = SqlStore(in_memory(new_file, clock), Workspace(workspace), policy or Policy())
        else:
            made = open_store(url, workspace=workspace, clock=clock, durability="normal", policy=policy)
        opened.append(made)
        if over_http is not None:
            opened.append(over_http.store_for(made))
        return opened[-1]

    yield make
    for store in reversed(opened):
        store.close()


@pytest.fixture
def over_http(request: pytest.FixtureRequest) -> Served | None:
    if "http" not in request.node.callspec.id:
        return None
    makes_tokens = request.node.get_closest_marker("makes_tokens") is not None
    served: Served = request.getfixturevalue("served_with_tokens" if makes_tokens else "served")
    return served


@pytest.fixture
def store(make_store: MakeStore) -> Store:
    return make_store()


@pytest.fixture
def watched(store: Store) -> None:
    """After each verb that writes, what the store keeps twice must agree."""
    watch(store)


@pytest.fixture
def damage(store: Store) -> Damage:
    """Writes into a session's row behind the store's back."""

    def write(session_id: str, **fields: object) -> None:
        values = ", ".join(f"{field} = :{field}" for field in fields)
        with driver_of(store).write() as tx:
            tx.run(f"UPDATE sessions SET {values} WHERE id = :id", {"id": session_id, **fields})

    return write


def in_memory(new_file: Path, clock: ManualClock) -> SqliteDriver:
    """As ``open_store`` makes it, with the tables copied from a file."""
    driver = SqliteDriver(None, clock)
    with driver.raw() as connection, closing(sqlite3.connect(new_file)) as source:
        source.backup(connection)
    migrate_sqlite(driver)
    return driver


def driver_of(store: Store) -> Driver:
    behind = behind_http(store)
    assert isinstance(behind, SqlStore)
    return behind._driver

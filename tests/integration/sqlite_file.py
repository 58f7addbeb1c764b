"""Owns first steps with a store in a SQLite file, and the way behind its door."""

from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import NewSession, SessionFilter
from holdfast.store.contract import Store
from holdfast.store.sql_store import SqlStore
from holdfast.store.sqlite import SqliteDriver


def driver_of(store: Store) -> SqliteDriver:
    assert isinstance(store, SqlStore)
    assert isinstance(store._driver, SqliteDriver)
    return store._driver


def create(store: Store, name: str = "one") -> None:
    store.create_session(NewSession(SessionId(f"agent-{name}"), "writer"))


def names(store: Store) -> set[str]:
    return {session.id for session in store.list_sessions(SessionFilter(), 100).sessions}

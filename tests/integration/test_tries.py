"""A transaction that the engine undoes is tried again, as a whole and not for ever."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from holdfast.domain.sessions import Session, SessionFilter
from holdfast.errors import StoreUnavailable
from holdfast.store import counters
from holdfast.store.driver import Undone
from holdfast.store.open import open_store
from holdfast.store.sql import sessions
from holdfast.store.sql.scope import Scope
from holdfast.store.sql_store import MAX_TRIES, SqlStore
from tests.builders import a_session


@pytest.fixture
def store() -> Iterator[SqlStore]:
    with closing(open_store("sqlite:///:memory:")) as store:
        assert isinstance(store, SqlStore)
        yield store


class Unlucky:
    """Begins a session, and is undone so many times."""

    def __init__(self, undone: int) -> None:
        self.undone = undone
        self.tries = 0

    def __call__(self, s: Scope) -> Session:
        self.tries += 1
        begun = sessions.create(s, a_session())
        if self.tries <= self.undone:
            raise Undone(s.where, "a deadlock")
        return begun


def test_each_try_begins_from_nothing_and_counts_as_a_wait(store: SqlStore) -> None:
    before = counters.waits()[counters.DATABASE]
    begun = store._write(Unlucky(MAX_TRIES - 1))
    assert store.list_sessions(SessionFilter(), 10).sessions == (begun,)
    assert counters.waits()[counters.DATABASE] == before + MAX_TRIES - 1


def test_the_tries_have_an_end(store: SqlStore) -> None:
    unlucky = Unlucky(MAX_TRIES)
    with pytest.raises(StoreUnavailable, match="a deadlock"):
        store._write(unlucky)
    assert unlucky.tries == MAX_TRIES
    assert store.list_sessions(SessionFilter(), 10).sessions == ()

"""What is said on PostgreSQL's channel: as little as possible, because saying it has a price."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from holdfast.errors import Conflict, StoreUnavailable
from holdfast.store.open import open_store
from holdfast.store.sql.scope import Scope
from holdfast.store.sql_store import SqlStore
from tests.builders import a_claim, done
from tests.steps import begin, claim, enqueue

psycopg: Any = pytest.importorskip("psycopg", reason="psycopg is not installed", exc_type=ImportError)


@pytest.fixture
def store(postgres_url: str) -> Iterator[SqlStore]:
    with closing(open_store(postgres_url)) as opened:
        assert isinstance(opened, SqlStore)
        yield opened


@pytest.fixture
def channel(postgres_url: str, store: SqlStore) -> Iterator[Any]:
    with psycopg.connect(postgres_url, autocommit=True) as listening:
        listening.execute("LISTEN holdfast_queue")
        yield listening


def said(channel: Any) -> list[str]:
    """Everything until now: a notification of our own comes last."""
    channel.execute("NOTIFY holdfast_queue, 'now'")
    heard: list[str] = []
    for notification in channel.notifies():
        if notification.payload == "now":
            return heard
        heard.append(notification.payload)
    raise AssertionError("the connection ended")


def test_each_session_that_can_go_on_is_said_once(store: SqlStore, channel: Any) -> None:
    session = begin(store)
    enqueue(store, session, "one")
    enqueue(store, session, "two")

    assert said(channel) == ["default"]


def test_a_worker_that_takes_the_next_turn_itself_is_not_told(store: SqlStore, channel: Any) -> None:
    session = begin(store)
    enqueue(store, session, "one")
    enqueue(store, session, "two")
    assert said(channel) == ["default"]

    store.finish_turn(claim(store, session).lease, done())
    assert store.claim_turn(a_claim()) is not None

    assert said(channel) == []


def test_a_call_that_fails_says_nothing(store: SqlStore, channel: Any) -> None:
    def fail(s: Scope) -> None:
        s.ring()
        raise Conflict("it is undone")

    with pytest.raises(Conflict):
        store._write(fail)

    assert said(channel) == []


def test_a_bell_that_cannot_be_rung_does_not_undo_what_was_done(
    store: SqlStore, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = begin(store)
    monkeypatch.setattr("holdfast.store.postgres.RING", "SELECT nothing_like_it(:topic)")

    turn = enqueue(store, session, "one")

    assert store.turns(session.id) == (turn,)
    assert store.now()


def test_a_watch_whose_connection_is_cut_says_so(store: SqlStore, channel: Any) -> None:
    with store.watch_queue() as watch:
        channel.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query LIKE 'LISTEN%' AND pid <> pg_backend_pid()"
        )
        with pytest.raises(StoreUnavailable):
            watch.wait(60)

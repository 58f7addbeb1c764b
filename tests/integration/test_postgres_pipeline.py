"""Statements without an answer travel together; their errors come later, and nothing else changes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from holdfast.domain.turns import NewTurn
from holdfast.domain.usage import Usage
from holdfast.domain.vault import VaultBundle, VaultChunk, VaultFile, VaultPart
from holdfast.errors import Conflict, InvalidInput
from holdfast.store.driver import Undone
from holdfast.store.open import open_store
from holdfast.store.packing import digest_of, pack
from holdfast.store.sql_store import SqlStore
from tests.builders import a_provider_session_id, a_session, an_import
from tests.processes import until

pytest.importorskip("psycopg")

from holdfast.store.postgres_pipeline import FIRST_USES, Pipeline

ADD = "INSERT INTO marks VALUES (:n)"
COUNT = "SELECT COUNT(*) FROM marks"


@pytest.fixture
def store(postgres_url: str) -> Iterator[SqlStore]:
    with closing(open_store(postgres_url)) as opened:
        assert isinstance(opened, SqlStore)
        yield opened


@pytest.fixture
def driver(store: SqlStore) -> Any:
    with store._driver.write() as tx:
        tx.run("CREATE TABLE marks (n BIGINT PRIMARY KEY)", {})
    return store._driver


def marks(driver: Any) -> int:
    with driver.read() as tx:
        (count,) = tx.one(COUNT, {})
    return int(count)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[Pipeline]:
    """One for each round trip."""
    waits: list[Pipeline] = []
    wait = Pipeline.wait

    def counted(pipeline: Pipeline) -> object:
        waits.append(pipeline)
        return wait(pipeline)

    monkeypatch.setattr(Pipeline, "wait", counted)
    return waits


def test_recording_a_turn_takes_two_round_trips(store: SqlStore, waits: list[Pipeline]) -> None:
    session = store.create_session(a_session())
    waits.clear()

    store.record_turn(session.id, NewTurn("go on", "claude"), "done", Usage())

    assert len(waits) == 2


@pytest.mark.parametrize("number", [2, 100])
def test_an_import_takes_as_many_round_trips_for_many_sessions_as_for_few(
    store: SqlStore, waits: list[Pipeline], number: int
) -> None:
    parent = an_import()
    store.import_sessions(
        [parent, *(an_import(comes_from=parent.provider_session_id) for _ in range(number))]
    )
    assert len(waits) == 9

    waits.clear()
    chunks = [VaultChunk(digest_of(b"%d" % n), len(b"%d" % n), *pack(b"%d" % n)) for n in range(number)]
    bundles = [
        VaultBundle(
            "claude", a_provider_session_id(), "", "/home", None, None,
            (VaultFile("s.jsonl", chunk.size, True, (VaultPart(chunk.digest, chunk.size),)),),
        )
        for chunk in chunks
    ]  # fmt: skip
    store.keep_bundles(bundles, chunks)
    assert len(waits) == 5


def test_many_questions_are_answered_in_order(driver: Any) -> None:
    """So many that their statement is prepared anew between them."""
    numbers = range(5 * FIRST_USES)
    with driver.write() as tx:
        tx.run_many(ADD, [{"n": n} for n in numbers])
        asked = [{"n": n} for n in (*numbers, -1, 3)]
        found = tx.all_many("SELECT n FROM marks WHERE n = :n", asked)
    assert found == [*([(n,)] for n in numbers), [], [(3,)]]


def add_twice(driver: Any, then: Callable[[Any], object] = bool) -> None:
    with driver.write() as tx:
        tx.run_many(ADD, [{"n": 1}, {"n": 1}])
        then(tx)


def test_an_error_of_a_statement_without_an_answer_ends_the_transaction(driver: Any) -> None:
    with pytest.raises(Conflict):
        add_twice(driver)
    assert marks(driver) == 0


def test_it_is_raised_by_the_next_answer(driver: Any) -> None:
    answers: list[object] = []
    with pytest.raises(Conflict):
        add_twice(driver, lambda tx: answers.append(tx.one(COUNT, {})))
    assert answers == []


def test_what_stood_behind_an_error_can_be_said_again(driver: Any) -> None:
    """It was never prepared: the server does not look at what comes behind an error."""
    new = "UPDATE marks SET n = n + :more"
    with pytest.raises(Conflict):
        add_twice(driver, lambda tx: tx.run(new, {"more": 1}))
    with driver.write() as tx:
        tx.run(ADD, {"n": 1})
        assert tx.changed(new, {"more": 1}) == 1


def test_what_was_said_often_before_an_error_can_be_said_again(driver: Any) -> None:
    """So often that it was prepared twice in the same batch."""
    numbers = [*range(FIRST_USES + 1), 0]
    with pytest.raises(Conflict):
        add_all(driver, numbers)
    add_all(driver, numbers[:-1])
    assert marks(driver) == FIRST_USES + 1


def add_all(driver: Any, numbers: list[int]) -> None:
    with driver.write() as tx:
        tx.run_many(ADD, [{"n": n} for n in numbers])


def add_and_fail(driver: Any) -> None:
    with driver.write() as tx:
        tx.run(ADD, {"n": 1})
        raise ZeroDivisionError


def test_an_error_of_the_caller_takes_back_what_was_not_even_sent(driver: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        add_and_fail(driver)
    assert marks(driver) == 0


def test_more_than_the_network_holds_goes_through(driver: Any) -> None:
    """A server that waits for its answers to be read, while we wait for it to read, would wait for ever."""
    with driver.write() as tx:
        tx.run_many(
            "SELECT repeat('x', 1000), :n, :text", [{"n": n, "text": "y" * 1000} for n in range(5_000)]
        )


def test_a_text_with_nul_is_refused_and_not_cut(driver: Any) -> None:
    with pytest.raises(InvalidInput), driver.read() as tx:
        tx.one("SELECT CAST(:text AS TEXT)", {"text": "one\0two"})


def test_a_wait_that_is_interrupted_ends_on_the_server_too(driver: Any, store: SqlStore) -> None:
    """Or it would take the lock once it can, for somebody who has gone."""

    def press_ctrl_c() -> None:
        until(lambda: waits_for_a_lock(driver))
        os.kill(os.getpid(), signal.SIGINT)

    with driver.write() as holder:
        holder.changed("LOCK TABLE marks", {})
        threading.Thread(target=press_ctrl_c).start()
        with pytest.raises(KeyboardInterrupt), driver.write() as tx:
            tx.changed("LOCK TABLE marks", {})
        until(lambda: not waits_for_a_lock(driver))


def waits_for_a_lock(driver: Any) -> bool:
    with driver.read() as tx:
        (waiting,) = tx.one(
            "SELECT COUNT(*) FROM pg_locks WHERE NOT granted AND relation = 'marks'::regclass", {}
        )
    return bool(waiting)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_what_a_client_is_configured_to_write_in_does_not_matter(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", encoding)
    with closing(open_store(postgres_url)) as opened:
        session = opened.create_session(a_session())
        turn = opened.record_turn(session.id, NewTurn("naïve → 日本", "claude"), "é", Usage())

        (kept,) = opened.turns(session.id)

    assert (kept.prompt, kept.response) == (turn.prompt, turn.response) == ("naïve → 日本", "é")


def test_a_cost_may_be_written_without_its_point(store: SqlStore) -> None:
    session = store.create_session(a_session())

    for cost in (0, 0.5, 1, 0.25):
        store.record_turn(session.id, NewTurn("go on", "claude"), "done", Usage(cost_usd=cost))

    assert store.get_session(session.id).usage.cost_usd == 1.75


def test_a_connection_whose_statements_were_thrown_away_is_replaced(driver: Any) -> None:
    assert marks(driver) == 0
    with pytest.raises(Undone), driver.write() as tx:
        tx.run("DEALLOCATE ALL", {})

    assert marks(driver) == 0


def test_only_a_write_that_may_be_lost_does_not_wait_for_the_disk(store: SqlStore) -> None:
    asked = "SELECT current_setting('synchronous_commit')"
    with store._driver.write(synced=False) as tx:
        assert tx.one(asked, {}) == ("off",)
    with store._driver.write() as tx:
        assert tx.one(asked, {}) == ("on",)

"""Owns the contract of watching the queue: what workers are told, and that nothing is lost between two waits."""

from __future__ import annotations

import threading

import pytest

from holdfast.clock import after
from holdfast.domain.sessions import Session
from holdfast.domain.turns import Claim, Orphan
from holdfast.store.contract import QueueWatch, Store
from tests.builders import a_claim, a_turn, an_answer, done
from tests.contract.conftest import MakeStore
from tests.steps import begin, claim, defer, enqueue

#: whatever is news is heard long before
PATIENCE = 30.0
#: in which nothing may be heard
MOMENT = 0.25


def heard(watch: QueueWatch) -> bool:
    return watch.wait(PATIENCE)


def is_quiet(watch: QueueWatch) -> bool:
    return not watch.wait(MOMENT)


class TestWatches:
    @pytest.fixture
    def session(self, store: Store) -> Session:
        return begin(store)

    @pytest.fixture
    def running(self, store: Store, session: Session) -> Claim:
        enqueue(store, session, "go")
        return claim(store, session)

    def test_a_turn_that_is_put_in_is_news(self, store: Store, session: Session) -> None:
        with store.watch_queue() as watch:
            enqueue(store, session, "go")
            assert heard(watch)

    def test_it_is_news_to_whoever_waits_already(self, store: Store, session: Session) -> None:
        told: list[bool] = []
        with store.watch_queue() as watch:
            waiting = threading.Thread(target=lambda: told.append(heard(watch)))
            waiting.start()
            enqueue(store, session, "go")
            waiting.join()
        assert told == [True]

    def test_it_is_news_to_everyone_whoever_did_it(
        self, store: Store, make_store: MakeStore, session: Session
    ) -> None:
        with store.watch_queue() as one, make_store().watch_queue() as other:
            enqueue(make_store(), session, "go")
            assert heard(one)
            assert heard(other)

    def test_what_happens_between_two_waits_is_not_lost(self, store: Store) -> None:
        with store.watch_queue() as watch:
            for _ in range(3):
                enqueue(store, begin(store), "go")
                assert heard(watch)

    def test_what_was_there_before_is_no_news(self, store: Store, session: Session) -> None:
        enqueue(store, session, "go")
        with store.watch_queue() as watch:
            assert is_quiet(watch)

    def test_a_turn_that_is_handed_back_is_news(self, store: Store, running: Claim) -> None:
        with store.watch_queue() as watch:
            store.put_back(running.lease)
            assert heard(watch)

    def test_a_turn_that_is_recovered_is_news(self, store: Store, running: Claim) -> None:
        with store.watch_queue() as watch:
            store.recover(Orphan(running.lease, None, False), owner_is_gone=True)
            assert heard(watch)

    def test_a_turn_whose_approval_is_answered_is_news(self, store: Store, session: Session) -> None:
        asked = defer(store, session)
        with store.watch_queue() as watch:
            store.answer_approval(asked.id, an_answer(asked))
            assert heard(watch)

    def test_a_turn_that_a_person_retries_is_news(self, store: Store, running: Claim) -> None:
        store.finish_turn(running.lease, done())
        with store.watch_queue() as watch:
            store.retry_turn(running.turn.session_id, running.turn.seq)
            assert heard(watch)

    def test_a_turn_that_comes_next_after_a_cancelled_one_is_news(
        self, store: Store, session: Session
    ) -> None:
        in_an_hour = after(store.now(), 3600)
        delayed = enqueue(store, session, "later", not_before=in_an_hour)
        enqueue(store, session, "then")
        with store.watch_queue() as watch:
            store.cancel_turn(session.id, delayed.seq)
            assert heard(watch)

    def test_a_turn_behind_a_persons_own_one_is_news_when_that_ends(
        self, store: Store, session: Session
    ) -> None:
        started = store.start_turn(session.id, a_turn(foreground=True), a_claim(session_id=session.id))
        assert isinstance(started, Claim)
        enqueue(store, session, "then")
        with store.watch_queue() as watch:
            store.finish_turn(started.lease, done())
            assert heard(watch)

    def test_a_turn_of_another_provider_is_news_when_the_one_before_it_ends(
        self, store: Store, running: Claim
    ) -> None:
        store.enqueue_turn(running.turn.session_id, a_turn(provider="codex"))
        with store.watch_queue() as watch:
            store.finish_turn(running.lease, done())
            assert heard(watch)

    def test_a_turn_that_must_wait_is_no_news(self, store: Store, running: Claim) -> None:
        in_an_hour = after(store.now(), 3600)
        with store.watch_queue() as watch:
            store.enqueue_turn(running.turn.session_id, a_turn("behind another"))
            enqueue(store, begin(store), "later", not_before=in_an_hour)
            assert is_quiet(watch)

    def test_the_work_itself_is_no_news(self, store: Store, running: Claim) -> None:
        with store.watch_queue() as watch:
            store.heartbeat(running.lease, 60)
            store.finish_turn(running.lease, done())
            assert is_quiet(watch)

    def test_a_turn_that_is_claimed_as_it_is_put_in_is_no_news(self, store: Store, session: Session) -> None:
        with store.watch_queue() as watch:
            store.start_turn(session.id, a_turn(foreground=True), a_claim(session_id=session.id))
            assert is_quiet(watch)

    def test_another_workspace_is_no_news(self, store: Store, make_store: MakeStore) -> None:
        ours = make_store(workspace="ours")
        with store.watch_queue() as watch:
            enqueue(ours, begin(ours), "go")
            assert is_quiet(watch)

    def test_closing_ends_the_wait(self, store: Store) -> None:
        told: list[bool] = []
        watch = store.watch_queue()
        waiting = threading.Thread(target=lambda: told.append(watch.wait(3600)))
        waiting.start()
        watch.close()
        waiting.join(PATIENCE)
        assert told == [False]

    def test_what_is_closed_stays_closed(self, store: Store, session: Session) -> None:
        with store.watch_queue() as watch:
            watch.close()
            enqueue(store, session, "go")
            assert not heard(watch)

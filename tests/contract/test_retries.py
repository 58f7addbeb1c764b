"""Owns the clauses on the same turn again: automatic retries, a person's, turns that are put back."""

from __future__ import annotations

import pytest

from holdfast.clock import SECOND, after
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.turns import AttemptCause, AttemptStatus, Claim, TurnStatus
from holdfast.errors import Busy, Conflict
from holdfast.store.contract import Store
from tests.builders import a_claim, a_turn, done, failed
from tests.clock import ManualClock
from tests.steps import begin, claim, enqueue, fail, lose, refused, run, snapshot

pytestmark = pytest.mark.usefixtures("watched")


class TestTryAgain:
    def test_a_failed_turn_is_tried_again_at_its_time(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "flaky")
        retry_at = after(clock(), 5)

        turn = store.finish_turn(
            claim(store, session).lease, failed(FailureClass.TRANSIENT, retry_at=retry_at)
        )

        assert (turn.status, turn.not_before) == (TurnStatus.QUEUED, retry_at)
        clock.advance(5 - 1 / SECOND)
        assert store.claim_turn(a_claim()) is None
        clock.advance(1 / SECOND)
        again = claim(store, session)
        assert (again.turn.seq, again.turn.attempts, again.lease.attempt) == (turn.seq, 2, 2)
        assert again.cause is AttemptCause.RETRY

    def test_a_failed_turn_without_a_time_is_not_tried_again(self, store: Store) -> None:
        session = begin(store)
        fail(store, session, FailureClass.TRANSIENT)

        assert store.claim_turn(a_claim()) is None

    def test_a_limit_is_waited_for_once(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "much", max_attempts=9)
        again = failed(FailureClass.LIMIT, "resets at noon", retry_at=clock())
        assert store.finish_turn(claim(store, session).lease, again).status is TurnStatus.QUEUED
        flaky = failed(FailureClass.TRANSIENT, retry_at=clock())
        assert store.finish_turn(claim(store, session).lease, flaky).status is TurnStatus.QUEUED

        second = store.finish_turn(claim(store, session).lease, again)

        assert second.status is TurnStatus.FAILED
        assert second.failure == again.failure

    def test_a_person_does_not_wait_for_a_limit(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "much")
        limited = failed(FailureClass.LIMIT, "resets at noon", retry_at=after(clock(), 3600))
        store.finish_turn(claim(store, session).lease, limited)
        with refused(store, Busy):
            store.start_turn(session.id, a_turn("a worker's"), a_claim(session_id=session.id))

        started = store.start_turn(session.id, a_turn("now", foreground=True), a_claim(session_id=session.id))

        assert isinstance(started, Claim)
        assert started.turn.seq == 2
        old = store.get_turn(session.conversation_id, 1)
        assert (old.status, old.failure) == (TurnStatus.FAILED, limited.failure)

    @pytest.mark.parametrize("failure_class", [FailureClass.TRANSIENT, FailureClass.LIMIT])
    def test_a_person_waits_for_a_retry_that_is_due_and_for_any_other(
        self, store: Store, clock: ManualClock, failure_class: FailureClass
    ) -> None:
        session = begin(store)
        enqueue(store, session, "flaky")
        later = clock() if failure_class is FailureClass.LIMIT else after(clock(), 3600)
        store.finish_turn(claim(store, session).lease, failed(failure_class, retry_at=later))
        with refused(store, Busy):
            store.start_turn(session.id, a_turn(foreground=True), a_claim(session_id=session.id))

    def test_a_turn_that_succeeded_is_not_tried_again(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "fine")

        ended = store.finish_turn(claim(store, session).lease, done(retry_at=clock()))

        assert ended.status is TurnStatus.DONE
        assert store.claim_turn(a_claim()) is None

    def test_tries_are_limited(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "flaky", max_attempts=2)
        again = failed(FailureClass.TRANSIENT, retry_at=clock())

        assert store.finish_turn(claim(store, session).lease, again).status is TurnStatus.QUEUED
        ended = store.finish_turn(claim(store, session).lease, again)

        assert (ended.status, ended.attempts) == (TurnStatus.FAILED, 2)
        assert ended.failure is not None
        assert ended.failure.failure_class is FailureClass.TRANSIENT

    def test_the_answer_of_the_try_that_ends_the_turn_is_its_response(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        enqueue(store, session, "flaky")
        store.finish_turn(
            claim(store, session).lease,
            failed(FailureClass.TRANSIENT, response="half of", retry_at=clock()),
        )

        ended = store.finish_turn(claim(store, session).lease, done("all of it"))

        assert ended.response == "all of it"
        assert [turn.response for turn in store.history(session.conversation_id)] == ["all of it"]

    def test_a_foreground_turn_is_never_tried_again_by_itself(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        started = store.start_turn(session.id, a_turn(foreground=True), a_claim())
        assert isinstance(started, Claim)

        ended = store.finish_turn(started.lease, failed(FailureClass.TRANSIENT, retry_at=clock()))

        assert ended.status is TurnStatus.FAILED
        assert store.claim_turn(a_claim()) is None

    def test_a_persons_retry_wins_over_an_automatic_one(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "flaky")
        store.finish_turn(
            claim(store, session).lease, failed(FailureClass.TRANSIENT, retry_at=after(clock(), 60))
        )

        by_hand = store.retry_turn(session.id, 1)

        assert (by_hand.seq, by_hand.retry_of, by_hand.prompt) == (2, 1, "flaky")
        assert claim(store, session).turn.seq == by_hand.seq
        clock.advance(60)
        assert store.claim_turn(a_claim()) is None
        assert store.get_turn(session.conversation_id, 1).status is TurnStatus.CANCELLED

    def test_a_persons_retry_does_not_interrupt_what_runs(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "busy")
        lease = claim(store, session).lease
        before = snapshot(store)

        with pytest.raises(Conflict):
            store.retry_turn(session.id, 1)
        assert snapshot(store) == before
        store.heartbeat(lease, 60)

    # --- put back ---

    def test_a_turn_that_is_put_back_waits_again(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "locked")
        lease = claim(store, session).lease
        until = after(clock(), 2)

        turn = store.put_back(lease, until)

        assert (turn.status, turn.not_before) == (TurnStatus.QUEUED, until)
        (attempt,) = store.attempts(turn.conversation_id, turn.seq)
        assert (attempt.status, attempt.ended_at) == (AttemptStatus.PUT_BACK, clock())
        assert store.claim_turn(a_claim()) is None
        clock.advance(2)
        assert claim(store, session).lease.attempt == 2

    def test_putting_back_does_not_count_as_a_try(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "locked", max_attempts=2)
        again = failed(FailureClass.TRANSIENT, retry_at=clock())
        for _ in range(5):
            store.put_back(claim(store, session).lease)

        assert store.finish_turn(claim(store, session).lease, again).status is TurnStatus.QUEUED
        store.put_back(claim(store, session).lease)
        assert store.finish_turn(claim(store, session).lease, again).status is TurnStatus.FAILED

    def test_an_attempt_that_is_put_back_says_why(self, store: Store) -> None:
        session = begin(store)
        turn = enqueue(store, session, "one")
        store.put_back(claim(store, session).lease, because=Failure(FailureClass.LOCKED, "process 7 has it"))
        store.put_back(claim(store, session).lease)
        first, second = store.attempts(turn.conversation_id, turn.seq)
        assert first.failure == Failure(FailureClass.LOCKED, "process 7 has it")
        assert second.failure is None

    def test_an_attempt_after_a_put_back_has_the_same_cause(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "locked")
        for _ in range(3):
            claimed = claim(store, session)
            assert claimed.cause is AttemptCause.FIRST
            store.put_back(claimed.lease)
        lose(store, clock, claim(store, session).lease)
        store.put_back(claim(store, session).lease)

        assert claim(store, session).cause is AttemptCause.RECOVERY

    def test_the_attempts_of_a_turn_tell_how_it_came_to_its_end(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        run(store, session)
        turn = enqueue(store, session, "eventful", max_attempts=5)
        refused = failed(FailureClass.GONE).failure
        assert refused is not None
        fresh = store.fall_back(claim(store, session).lease, refused, "fallback-1")
        store.finish_turn(fresh.lease, failed(FailureClass.TRANSIENT, retry_at=clock()))
        lose(store, clock, claim(store, session).lease)
        store.finish_turn(claim(store, session).lease, done())

        attempts = store.attempts(turn.conversation_id, turn.seq)

        assert [(a.number, a.cause.value, a.status.value) for a in attempts] == [
            (1, "first", "fell_back"),
            (2, "fallback", "failed"),
            (3, "retry", "interrupted"),
            (4, "recovery", "done"),
        ]
        assert store.newest_attempt(session.id) == attempts[-1]

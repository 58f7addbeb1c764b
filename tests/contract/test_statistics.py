"""Owns the clauses on ``statistics``: what there is in a workspace, counted."""

from __future__ import annotations

import pytest

from holdfast.clock import after
from holdfast.domain.decisions import DecisionKind, Reason
from holdfast.domain.delegations import DelegationEnd, DelegationOutcome, DelegationReason
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import SessionKind, SessionUpdate
from holdfast.domain.statistics import AttemptCount, DelegationCount, SessionCount, Statistics, TurnCount
from holdfast.domain.turns import AttemptStatus, TurnStatus
from holdfast.errors import LeaseLost
from holdfast.store.contract import Store
from tests.builders import a_delegation, a_question, an_answer, an_approval, done, failed
from tests.clock import ManualClock
from tests.steps import begin, claim, defer, enqueue, run


class TestStatistics:
    def test_an_empty_workspace_has_nothing_to_count(self, store: Store) -> None:
        assert store.statistics() == Statistics((), (), (), (), 0.0, 0, 0, 0, 0)

    def test_sessions_are_counted_by_phase_with_their_errors_and_how_long_they_took(
        self, store: Store, clock: ManualClock
    ) -> None:
        begin(store)
        store.update_session(begin(store).id, SessionUpdate(error="it broke"))
        closed = [begin(store), begin(store)]
        for session in closed:
            clock.advance(30)
            store.finalize_session(session.id, Phase.COMPLETED, None)
        kind = SessionKind.DELEGATED
        assert set(store.statistics().sessions) == {
            SessionCount(Phase.INITIALIZING, kind, 2, 1, 0, 0.0),
            SessionCount(Phase.COMPLETED, kind, 2, 0, 2, 90.0),
        }

    def test_turns_are_counted_by_how_they_stand_and_attempts_by_what_was_decided(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        run(store, session, "one")
        run(store, session, "two")
        enqueue(store, session, "three")
        failure = failed()
        store.finish_turn(claim(store, session).lease, failure)
        assert failure.failure is not None
        enqueue(store, session, "four")
        clock.advance(7)
        counted = store.statistics()
        assert set(counted.turns) == {
            TurnCount(TurnStatus.DONE, None, 2),
            TurnCount(TurnStatus.FAILED, failure.failure.failure_class, 1),
            TurnCount(TurnStatus.QUEUED, None, 1),
        }
        assert counted.oldest_queued_seconds == 7.0
        first = AttemptCount(DecisionKind.FRESH, Reason.NO_POINTER, AttemptStatus.DONE, 1)
        assert first in counted.attempts
        assert sum(attempts.count for attempts in counted.attempts) == 3

    def test_a_lease_that_has_expired_is_an_orphans(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "one")
        claim(store, session, lease_seconds=10.0)
        assert (store.statistics().leases, store.statistics().orphans) == (1, 0)
        clock.advance(10)
        assert (store.statistics().leases, store.statistics().orphans) == (1, 1)

    def test_a_turn_that_was_to_wait_has_not_waited_before(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "later", not_before=after(clock(), 60))
        clock.advance(50)
        assert store.statistics().oldest_queued_seconds == 0.0
        clock.advance(30)
        assert store.statistics().oldest_queued_seconds == 20.0

    def test_approvals_are_counted_while_they_can_be_answered_whoever_asked(
        self, store: Store, clock: ManualClock
    ) -> None:
        waits = defer(store, begin(store))
        asked_itself = begin(store)
        until = after(clock(), 60)
        store.request_approval(asked_itself.id, an_approval(call_id=None, tool=None, expires_at=until))
        assert store.statistics().open_approvals == 2
        clock.advance(60)
        assert store.statistics().open_approvals == 1
        store.answer_approval(waits.id, an_answer(waits))
        assert store.statistics().open_approvals == 0

    def test_delegations_are_counted_by_how_they_began_and_how_they_ended(self, store: Store) -> None:
        paused = begin(store, project="/srv/infra")
        store.update_session(paused.id, SessionUpdate(phase=Phase.PLANNING))
        resumes, starts = a_delegation(), a_delegation()
        store.delegate(resumes)
        store.delegate(starts)
        store.end_delegation(DelegationEnd(id=starts.id, outcome=DelegationOutcome.FAILED))
        store.ask_delegation(a_question(agent="nobody"))
        assert set(store.statistics().delegations) == {
            DelegationCount(DelegationReason.RESUMABLE, None, 1),
            DelegationCount(DelegationReason.NONE, DelegationOutcome.FAILED, 1),
            DelegationCount(DelegationReason.NONE, DelegationOutcome.ASKED, 1),
        }

    def test_what_comes_too_late_is_counted(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "one")
        lost = claim(store, session, lease_seconds=10.0).lease
        clock.advance(11)
        (orphan,) = store.orphans(10)
        store.recover(orphan)
        with pytest.raises(LeaseLost):
            store.finish_turn(lost, done())
        counted = store.statistics()
        assert counted.late_reports == 1
        interrupted = AttemptCount(DecisionKind.FRESH, Reason.NO_POINTER, AttemptStatus.INTERRUPTED, 1)
        assert counted.attempts == (interrupted,)

"""Owns the clauses on ``statistics``: what there is in a workspace, counted."""

from __future__ import annotations

from holdfast.domain.decisions import DecisionKind, Reason
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import SessionKind, SessionUpdate
from holdfast.domain.statistics import AttemptCount, SessionCount, Statistics, TurnCount
from holdfast.domain.turns import AttemptStatus, TurnStatus
from holdfast.store.contract import Store
from holdfast.testing.builders import failed
from holdfast.testing.clock import ManualClock
from holdfast.testing.steps import begin, claim, enqueue, run


class StatisticsContract:
    def test_an_empty_workspace_has_nothing_to_count(self, store: Store) -> None:
        assert store.statistics() == Statistics((), (), (), 0.0, 0, 0, 0)

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

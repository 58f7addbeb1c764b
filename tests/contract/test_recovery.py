"""Owns the clauses on recovery: which attempts are orphans, and what becomes of their turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from holdfast.clock import SECOND
from holdfast.domain.conversations import SeenTurns
from holdfast.domain.decisions import Fresh, Reason
from holdfast.domain.failures import FailureClass
from holdfast.domain.phases import Phase
from holdfast.domain.pointers import TranscriptMark
from holdfast.domain.turns import (
    AttemptCause,
    AttemptStatus,
    Claim,
    Launch,
    Lease,
    TurnEnd,
    TurnRequest,
    TurnStatus,
)
from holdfast.domain.usage import NO_USAGE, Usage, UsageReport
from holdfast.errors import Conflict
from holdfast.store.contract import Store
from tests.builders import (
    a_claim,
    a_process,
    a_provider_session_id,
    a_turn,
    an_event,
    done,
    failed,
)
from tests.clock import ManualClock
from tests.steps import begin, claim, enqueue, expire, lose, pointer_of, resumed_id, run, snapshot

pytestmark = pytest.mark.usefixtures("watched")

MARK = TranscriptMark("projects/infra/5b1c2d3e.jsonl", size=10, digest="abc", turns=1)
LONGER = replace(MARK, size=20, digest="def", turns=2)
LAUNCH = Launch(Fresh(Reason.NO_POINTER, ()), a_process())

#: how an attempt may end before its agent was launched
UNLAUNCHED: dict[str, Callable[[Store, ManualClock, Lease], object]] = {
    "put back": lambda store, _, lease: store.put_back(lease),
    "its worker went away": lose,
    "cancelled": lambda store, _, lease: store.finish_turn(lease, TurnEnd(TurnStatus.CANCELLED)),
    "failed": lambda store, _, lease: store.finish_turn(lease, failed()),
}


class TestRecovery:
    # --- orphans ---

    def test_an_attempt_is_an_orphan_exactly_from_the_end_of_its_lease(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        lease = claim(store, session, lease_seconds=60.0).lease
        clock.advance(60 - 1 / SECOND)
        assert store.orphans() == ()

        clock.advance(1 / SECOND)

        (orphan,) = store.orphans()
        assert orphan.lease == lease

    def test_an_orphan_tells_its_process_and_who_started_it(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        started = store.start_turn(session.id, a_turn(foreground=True), a_claim(owner="terminal"))
        assert isinstance(started, Claim)
        store.launch(started.lease, LAUNCH)
        clock.advance(60)

        (orphan,) = store.orphans()

        assert (orphan.process, orphan.foreground, orphan.lease.owner) == (a_process(), True, "terminal")

    def test_what_has_ended_is_no_orphan(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        run(store, session)
        enqueue(store, session, "waits")
        store.put_back(claim(store, session).lease)
        clock.advance(3600)

        assert store.orphans() == ()

    def test_the_oldest_orphans_come_first(self, store: Store, clock: ManualClock) -> None:
        sessions = [begin(store) for _ in range(3)]
        for session, seconds in zip(sessions, (30.0, 10.0, 20.0), strict=True):
            enqueue(store, session, "long")
            claim(store, session, lease_seconds=seconds)
        clock.advance(60)

        found = [orphan.lease.session_id for orphan in store.orphans()]

        assert found == [sessions[1].id, sessions[2].id, sessions[0].id]
        assert [orphan.lease.session_id for orphan in store.orphans(limit=2)] == found[:2]

    @pytest.mark.parametrize(
        ("launched", "cause"), [(True, AttemptCause.RECOVERY), (False, AttemptCause.FIRST)]
    )
    def test_what_was_launched_and_put_back_goes_on_as_after_a_recovery(
        self, store: Store, launched: bool, cause: AttemptCause
    ) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        lease = claim(store, session).lease
        if launched:
            store.launch(lease, LAUNCH)

        turn = store.put_back(lease)

        assert (turn.status, turn.tries, turn.next_cause) == (TurnStatus.QUEUED, 0, cause)
        assert claim(store, session).cause is cause

    # --- recovery ---

    def test_an_orphans_turn_runs_again_before_those_behind_it(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        enqueue(store, session, "behind it")
        lease = claim(store, session).lease

        turn = lose(store, clock, lease)

        assert turn.status is TurnStatus.QUEUED
        (attempt,) = store.attempts(turn.conversation_id, turn.seq)
        assert (attempt.status, attempt.ended_at) == (AttemptStatus.INTERRUPTED, clock())
        assert attempt.failure is not None
        assert attempt.failure.failure_class is FailureClass.INTERRUPTED
        assert "went away" in attempt.failure.message
        again = claim(store, session)
        assert (again.turn.prompt, again.cause) == ("long", AttemptCause.RECOVERY)

    def test_a_recovered_turn_goes_on_in_the_provider_session_that_was_pinned(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        lease, pinned = claim(store, session).lease, a_provider_session_id()
        store.launch(lease, LAUNCH)
        store.pin(lease, pinned)
        lose(store, clock, lease)

        assert resumed_id(claim(store, session).decision) == pinned

    @pytest.mark.parametrize("way", UNLAUNCHED)
    def test_an_attempt_that_was_never_launched_says_nothing_of_the_provider_session(
        self, store: Store, clock: ManualClock, way: str
    ) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        enqueue(store, session, "behind it")
        first = claim(store, session)
        begun = replace(LAUNCH, decision=first.decision, provider_session_id=a_provider_session_id())
        store.launch(first.lease, begun)
        lose(store, clock, first.lease)
        unlaunched = claim(store, session)
        assert resumed_id(unlaunched.decision) == begun.provider_session_id

        UNLAUNCHED[way](store, clock, unlaunched.lease)

        again = claim(store, session)
        assert resumed_id(again.decision) == begun.provider_session_id
        assert again.pointer == unlaunched.pointer

    def test_an_interruption_is_nothing_the_session_did_wrong(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        lose(store, clock, claim(store, session).lease)

        assert store.get_session(session.id).error_count == 0

    def test_a_foreground_turn_is_not_run_again(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        started = store.start_turn(session.id, a_turn(foreground=True), a_claim())
        assert isinstance(started, Claim)

        turn = lose(store, clock, started.lease)

        assert turn.status is TurnStatus.FAILED
        assert turn.failure is not None
        assert turn.failure.failure_class is FailureClass.INTERRUPTED
        assert store.claim_turn(a_claim()) is None

    def test_a_turn_that_was_to_stop_has_stopped(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        lease = claim(store, session).lease
        store.cancel_turn(session.id, lease.seq)

        assert lose(store, clock, lease).status is TurnStatus.CANCELLED
        assert store.claim_turn(a_claim()) is None

    def test_a_turn_of_a_closed_session_has_stopped(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        lease = claim(store, session).lease
        store.finalize_session(session.id, Phase.ABANDONED, None)

        assert lose(store, clock, lease).status is TurnStatus.CANCELLED

    def test_a_turn_without_tries_left_has_failed(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "kills its worker", max_attempts=2)
        assert lose(store, clock, claim(store, session).lease).status is TurnStatus.QUEUED

        owner = "4711/12/a-machine/kernel/pids/build-7"
        turn = lose(store, clock, claim(store, session, owner=owner).lease)

        assert turn.status is TurnStatus.FAILED
        assert turn.failure is not None
        assert turn.failure.failure_class is FailureClass.INTERRUPTED
        assert turn.failure.message == "its worker process 4711 on build-7 went away"

    # --- too late to recover ---

    @pytest.mark.parametrize("meanwhile", ["renewed", "recovered", "taken", "finished"])
    def test_what_is_no_orphan_any_more_is_left_alone(
        self, store: Store, clock: ManualClock, meanwhile: str
    ) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        lease = claim(store, session).lease
        clock.advance(60)
        (orphan,) = store.orphans()
        match meanwhile:
            case "renewed":
                store.heartbeat(lease, 60)
            case "recovered":
                store.recover(orphan)
            case "taken":
                store.recover(orphan)
                claim(store, session)
            case _:
                store.finish_turn(lease, done())
        before = snapshot(store)

        with pytest.raises(Conflict):
            store.recover(orphan)
        assert snapshot(store) == before

    def test_a_renewed_lease_outlives_the_recovery_that_came_too_late(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        lease = claim(store, session).lease
        clock.advance(60)
        (orphan,) = store.orphans()
        store.heartbeat(lease, 60)
        with pytest.raises(Conflict):
            store.recover(orphan)

        assert store.finish_turn(lease, done()).status is TurnStatus.DONE

    # --- an owner that is gone ---

    def test_the_holder_of_a_session_is_told_whether_or_not_its_lease_has_expired(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        assert store.holder(session.id) is None
        enqueue(store, session, "long")
        lease = claim(store, session, lease_seconds=60.0).lease
        store.launch(lease, LAUNCH)

        held = store.holder(session.id)
        clock.advance(3600)
        expired = store.holder(session.id)

        assert held is not None
        assert (held.lease, held.process) == (lease, a_process())
        assert expired == held

    def test_a_turn_whose_owner_is_gone_is_recovered_before_its_lease_expires(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        claim(store, session, lease_seconds=3600.0)
        held = store.holder(session.id)
        assert held is not None
        with pytest.raises(Conflict):
            store.recover(held)

        turn = store.recover(held, owner_is_gone=True)

        assert (turn.status, turn.next_cause) == (TurnStatus.QUEUED, AttemptCause.RECOVERY)
        assert store.holder(session.id) is None
        with pytest.raises(Conflict):
            store.recover(held, owner_is_gone=True)

    # --- what the agent's own session holds ---

    def test_what_nobody_had_recorded_of_an_attempt_is_kept_with_its_end(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        enqueue(store, session, "paint")
        lease = claim(store, session).lease
        store.record_events(lease, [an_event(1), an_event(2)])
        orphan = expire(store, clock, lease)
        token = "ghp_" + "a" * 36

        store.recover(orphan, events=[an_event(3, data={"text": f"late {token}"})])

        kept = store.events(lease.conversation_id, lease.seq)
        assert [(attempt, event.number) for attempt, event in kept] == [(1, 1), (1, 2), (1, 3)]
        assert token not in str(kept[2][1].data)

    def test_events_of_a_late_worker_are_not_mixed_with_those_that_recovery_found(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        enqueue(store, session, "paint")
        lease = claim(store, session).lease
        orphan = expire(store, clock, lease)
        store.record_events(lease, [an_event(1)])

        with pytest.raises(Conflict):
            store.recover(
                orphan, response="mauve", answered=True, events=[an_event(1, data={"text": "mauve"})]
            )

        assert store.holder(session.id) is not None
        assert [event for _, event in store.events(lease.conversation_id, lease.seq)] == [an_event(1)]

    def test_nothing_is_kept_of_what_is_no_orphan_any_more(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "paint")
        lease = claim(store, session).lease
        orphan = expire(store, clock, lease)
        store.finish_turn(lease, done())

        with pytest.raises(Conflict):
            store.recover(orphan, events=[an_event(1)])

        assert store.events(lease.conversation_id, lease.seq) == ()

    def test_what_was_answered_after_its_worker_went_away_is_done(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        enqueue(store, session, "behind it")
        lease, begun = claim(store, session).lease, a_provider_session_id()
        store.launch(lease, replace(LAUNCH, provider_session_id=begun))
        orphan = expire(store, clock, lease)

        turn = store.recover(orphan, response="mauve", transcript=MARK, answered=True)

        assert (turn.status, turn.response, turn.failure) == (TurnStatus.DONE, "mauve", None)
        assert store.get_turn(turn.conversation_id, turn.seq) == turn
        (attempt,) = store.attempts(turn.conversation_id, turn.seq)
        assert (attempt.status, attempt.usage, attempt.transcript) == (AttemptStatus.DONE, NO_USAGE, MARK)
        pointer = pointer_of(store, session)
        assert (pointer.provider_session_id, pointer.transcript) == (begun, MARK)
        assert store.holder(session.id) is None
        behind = claim(store, session)
        assert (behind.turn.prompt, resumed_id(behind.decision)) == ("behind it", begun)

    def test_an_answer_of_a_resumed_session_was_seen_there(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        run(store, session, transcript=MARK, usage=UsageReport(Usage(7, 0, 1, 0.5), cumulative=True))
        enqueue(store, session, "long")
        claimed = claim(store, session)
        store.launch(claimed.lease, replace(LAUNCH, decision=claimed.decision))
        orphan = expire(store, clock, claimed.lease)

        store.recover(orphan, response="mauve", transcript=LONGER, answered=True)

        pointer = pointer_of(store, session)
        assert (pointer.seen, pointer.transcript) == (SeenTurns.up_to(2), LONGER)
        # what the provider counts on is booked once, with the next turn
        run(store, session, usage=UsageReport(Usage(30, 0, 3, 1.5), cumulative=True))
        assert store.get_session(session.id).usage == Usage(30, 0, 3, 1.5)

    def test_what_was_to_stop_is_not_done_by_an_answer(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        lease = claim(store, session).lease
        store.launch(lease, replace(LAUNCH, provider_session_id=a_provider_session_id()))
        store.cancel_turn(session.id, lease.seq)
        orphan = expire(store, clock, lease)

        turn = store.recover(orphan, response="mauve", transcript=MARK, answered=True)

        assert (turn.status, turn.response) == (TurnStatus.CANCELLED, "mauve")

    def test_an_answer_that_comes_too_late_changes_nothing(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        lease = claim(store, session).lease
        store.launch(lease, replace(LAUNCH, provider_session_id=a_provider_session_id()))
        orphan = expire(store, clock, lease)
        store.finish_turn(lease, done())
        before = snapshot(store)

        with pytest.raises(Conflict):
            store.recover(orphan, response="mauve", transcript=MARK, answered=True)
        assert snapshot(store) == before

    def test_a_fresh_start_whose_session_holds_the_request_is_gone_on_with(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        run(store, session)
        left = pointer_of(store, session).provider_session_id
        enqueue(store, session, "long", request=TurnRequest(force_fresh=True))
        claimed, begun = claim(store, session), a_provider_session_id()
        store.launch(claimed.lease, replace(LAUNCH, decision=claimed.decision, provider_session_id=begun))
        assert pointer_of(store, session).provider_session_id == left
        orphan = expire(store, clock, claimed.lease)

        turn = store.recover(orphan, transcript=MARK)

        assert turn.status is TurnStatus.QUEUED
        pointer = pointer_of(store, session)
        assert (pointer.provider_session_id, pointer.transcript) == (begun, MARK)
        assert pointer.seen == SeenTurns.up_to(2)

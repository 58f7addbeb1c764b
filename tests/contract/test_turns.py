"""Owns the clauses on the life of one turn: started at once, recorded, cancelled, tried again, put back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.clock import after
from holdfast.domain.decisions import Reason, Resume
from holdfast.domain.failures import WAS_CANCELLED, FailureClass
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import Session
from holdfast.domain.turns import Claim, Refusal, TurnEnd, TurnStatus
from holdfast.domain.usage import Usage
from holdfast.errors import Busy, Conflict, InvalidInput, NotFound, SessionClosed
from holdfast.store.contract import Store
from tests.builders import (
    a_claim,
    a_provider_session_id,
    a_runtime,
    a_turn,
    done,
    failed,
)
from tests.clock import ManualClock
from tests.steps import (
    WIDER,
    begin,
    claim,
    decide,
    enqueue,
    fail,
    join,
    point_to,
    refused,
    resumed_id,
    run,
    snapshot,
)

pytestmark = pytest.mark.usefixtures("watched")

CANCELLED = TurnEnd(TurnStatus.CANCELLED)


class TestStart:
    """``start_turn``: put in and claimed as one."""

    def test_a_started_turn_is_claimed_at_once(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)

        started = store.start_turn(session.id, a_turn("now"), a_claim(owner="terminal"))

        assert isinstance(started, Claim)
        assert (started.turn.prompt, started.turn.status) == ("now", TurnStatus.CLAIMED)
        assert (started.lease.owner, started.lease.expires_at) == ("terminal", after(clock(), 60))
        assert store.claim_turn(a_claim()) is None
        assert store.finish_turn(started.lease, done()).status is TurnStatus.DONE

    def test_a_turn_of_another_provider_than_the_runtimes_is_refused(self, store: Store) -> None:
        session = begin(store)

        with refused(store, InvalidInput):
            store.start_turn(session.id, a_turn(provider="codex"), a_claim())

    def test_a_turn_that_is_pinned_to_another_runtime_is_refused(self, store: Store) -> None:
        session, elsewhere = begin(store), store.register_runtime(a_runtime(machine="elsewhere"))

        with refused(store, InvalidInput):
            store.start_turn(session.id, a_turn(runtime_id=elsewhere), a_claim())

    def test_a_persons_own_turn_that_cannot_run_at_once_ends_instead_of_waiting(self, store: Store) -> None:
        session = begin(store)
        started = store.start_turn(session.id, a_turn(foreground=True), a_claim())
        assert isinstance(started, Claim)

        ended = store.put_back(started.lease)

        assert ended.status is TurnStatus.FAILED
        assert ended.failure is not None
        assert ended.failure.failure_class is FailureClass.LOCKED
        assert store.claim_turn(a_claim()) is None

    @pytest.mark.parametrize("state", ["queued", "delayed", "running"])
    def test_a_session_with_open_turns_is_busy(self, store: Store, clock: ManualClock, state: str) -> None:
        session = begin(store)
        enqueue(store, session, "open", not_before=after(clock(), 60) if state == "delayed" else None)
        if state == "running":
            claim(store, session)
        before = snapshot(store)

        with pytest.raises(Busy):
            store.start_turn(session.id, a_turn(), a_claim())
        assert snapshot(store) == before

    def test_a_provider_session_with_another_writer_is_busy(self, store: Store) -> None:
        shared = a_provider_session_id()
        writer, session = begin(store), begin(store)
        for each in (writer, session):
            point_to(store, each, shared)
        enqueue(store, writer, "writes")
        claim(store, writer)
        before = snapshot(store)

        with pytest.raises(Busy):
            store.start_turn(session.id, a_turn(), a_claim())
        assert snapshot(store) == before

    def test_a_refusal_is_an_answer_and_ends_the_turn(self, store: Store) -> None:
        session = begin(store)
        run(store, session)

        refused = store.start_turn(session.id, a_turn("more", request=WIDER), a_claim())

        assert isinstance(refused, Refusal)
        assert refused.decision.reason is Reason.RIGHTS_WIDER
        assert refused.turn.status is TurnStatus.FAILED
        assert refused.turn == store.get_turn(refused.turn.conversation_id, refused.turn.seq)
        assert isinstance(store.start_turn(session.id, a_turn(), a_claim()), Claim)

    def test_the_answer_to_a_lost_reply_is_the_same_claim(self, store: Store) -> None:
        session, request = begin(store), a_claim()
        first = store.start_turn(session.id, a_turn(), request)

        again = store.start_turn(session.id, a_turn(), request)

        assert isinstance(first, Claim)
        assert isinstance(again, Claim)
        assert again.lease == first.lease
        assert len(store.turns(session.id)) == 1

    def test_the_key_of_a_turn_that_is_there_starts_no_second_one(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "once", key="k")
        store.finish_turn(claim(store, session).lease, done())
        before = snapshot(store)

        with pytest.raises(Conflict):
            store.start_turn(session.id, a_turn("once", key="k"), a_claim())
        assert snapshot(store) == before

    def test_a_closed_session_starts_nothing(self, store: Store) -> None:
        session = begin(store)
        store.finalize_session(session.id, Phase.FAILED, None)

        with pytest.raises(SessionClosed):
            store.start_turn(session.id, a_turn(), a_claim())
        assert store.turns(session.id) == ()


class TestRecord:
    """``record_turn``: a turn that has already happened."""

    def test_a_recorded_turn_is_done_and_in_the_history(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)

        turn = store.record_turn(session.id, a_turn("asked"), "answered", Usage(input_tokens=3))

        assert (turn.status, turn.prompt, turn.response) == (TurnStatus.DONE, "asked", "answered")
        assert turn.ended_at == clock()
        assert store.get_turn(turn.conversation_id, turn.seq) == turn
        (entry,) = store.history(session.conversation_id)
        assert (entry.prompt, entry.response) == ("asked", "answered")

    def test_a_recorded_turn_is_recorded_once_for_each_key(self, store: Store) -> None:
        session = begin(store)
        first = store.record_turn(session.id, a_turn("asked", key="k"), "answered", Usage(input_tokens=3))
        before = snapshot(store)

        assert store.record_turn(session.id, a_turn("asked", key="k"), "no", Usage(input_tokens=3)) == first
        assert snapshot(store) == before

    def test_a_recorded_turn_counts_as_a_success(self, store: Store) -> None:
        session = begin(store)
        fail(store, session, FailureClass.UNKNOWN)
        assert store.get_session(session.id).error_count == 1

        store.record_turn(session.id, a_turn(), "fine", Usage(input_tokens=3, cost_usd=0.5))

        after_it = store.get_session(session.id)
        assert (after_it.error_count, after_it.usage) == (0, Usage(input_tokens=3, cost_usd=0.5))

    def test_a_recorded_turn_is_caught_up_on_by_the_next_resume(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        store.record_turn(session.id, a_turn("by hand"), "done", Usage())

        decision = decide(store, session)

        assert isinstance(decision, Resume)
        assert decision.catch_up == ((2, 2),)

    def test_a_recorded_turn_leaves_the_queue_as_it_is(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "waits")

        store.record_turn(session.id, a_turn("meanwhile"), "done", Usage())

        assert claim(store, session).turn.prompt == "waits"

    def test_a_closed_session_records_nothing(self, store: Store) -> None:
        session = begin(store)
        store.finalize_session(session.id, Phase.COMPLETED, None)

        with pytest.raises(SessionClosed):
            store.record_turn(session.id, a_turn(), "late", Usage())
        assert store.turns(session.id) == ()


class TestCancel:
    def test_a_waiting_turn_is_cancelled_at_once(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        turn = enqueue(store, session, "never mind", not_before=after(clock(), 60))
        enqueue(store, session, "behind it")

        cancelled = store.cancel_turn(session.id, turn.seq)

        assert (cancelled.status, cancelled.ended_at) == (TurnStatus.CANCELLED, clock())
        assert claim(store, session).turn.prompt == "behind it"

    def test_every_way_of_cancelling_comes_to_the_same(self, store: Store) -> None:
        ways: list[Callable[[Session], object]] = [
            lambda session: store.cancel_turn(session.id, 1),
            lambda session: store.truncate(session.id, 0),
            lambda session: store.finalize_session(session.id, Phase.ABANDONED, None),
            lambda session: store.finish_turn(claim(store, session).lease, CANCELLED),
        ]
        cancelled = []
        for end in ways:
            session = begin(store)
            enqueue(store, session, "never mind")
            end(session)
            cancelled.append(store.get_turn(session.conversation_id, 1))
        assert {turn.status for turn in cancelled} == {TurnStatus.CANCELLED}
        assert {turn.failure for turn in cancelled} == {WAS_CANCELLED}

    def test_cancelling_again_changes_nothing(self, store: Store) -> None:
        session = begin(store)
        turn = enqueue(store, session, "never mind")
        first = store.cancel_turn(session.id, turn.seq)

        assert store.cancel_turn(session.id, turn.seq) == first

    def test_a_running_turn_is_asked_to_stop_and_its_worker_is_told(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        lease = claim(store, session).lease
        assert not store.heartbeat(lease, 60).cancel_requested

        asked = store.cancel_turn(session.id, lease.seq)

        assert (asked.status, asked.cancel_requested) == (TurnStatus.CLAIMED, True)
        assert store.heartbeat(lease, 60).cancel_requested
        assert store.finish_turn(lease, CANCELLED).status is TurnStatus.CANCELLED

    def test_a_cancelled_turn_keeps_its_provider_session(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        known = resumed_id(decide(store, session))
        enqueue(store, session, "long")
        lease = claim(store, session).lease
        store.cancel_turn(session.id, lease.seq)
        store.finish_turn(lease, CANCELLED)

        assert resumed_id(decide(store, session)) == known
        assert store.get_session(session.id).error_count == 0

    @pytest.mark.parametrize("end", [done(), failed()], ids=["done", "failed"])
    def test_a_turn_that_has_ended_otherwise_cannot_be_cancelled(self, store: Store, end: TurnEnd) -> None:
        session = begin(store)
        enqueue(store, session, "quick")
        store.finish_turn(claim(store, session).lease, end)
        before = snapshot(store)

        with pytest.raises(Conflict):
            store.cancel_turn(session.id, 1)
        assert snapshot(store) == before

    def test_a_turn_that_was_to_stop_is_not_put_back_but_cancelled(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        lease = claim(store, session).lease
        store.cancel_turn(session.id, lease.seq)

        assert store.put_back(lease).status is TurnStatus.CANCELLED
        assert store.claim_turn(a_claim()) is None

    def test_a_turn_that_was_to_stop_is_not_tried_again(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        lease = claim(store, session).lease
        store.cancel_turn(session.id, lease.seq)

        ended = store.finish_turn(lease, failed(FailureClass.TRANSIENT, retry_at=clock()))

        assert not ended.status.is_open
        assert store.claim_turn(a_claim()) is None

    def test_a_turn_may_end_with_its_session(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "last")
        enqueue(store, session, "one too many")
        store.finish_turn(claim(store, session).lease, done(phase=Phase.COMPLETED))

        closed = store.get_session(session.id)
        assert (closed.phase, closed.finalized_at, closed.resume_ready) == (Phase.COMPLETED, clock(), False)
        assert [turn.status for turn in store.turns(session.id)] == [TurnStatus.DONE, TurnStatus.CANCELLED]
        assert store.claim_turn(a_claim()) is None

    def test_another_sessions_turn_is_not_found(self, store: Store) -> None:
        session = begin(store)
        other = join(store, session, "reviewer")
        turn = enqueue(store, session, "mine")

        with pytest.raises(NotFound):
            store.cancel_turn(other.id, turn.seq)
        assert store.get_turn(turn.conversation_id, turn.seq) == turn

    def test_closing_a_session_cancels_what_waits_and_stops_what_runs(self, store: Store) -> None:
        session = begin(store)
        running, waiting = enqueue(store, session, "runs"), enqueue(store, session, "waits")
        lease = claim(store, session).lease
        store.finalize_session(session.id, Phase.ABANDONED, None)

        assert store.get_turn(waiting.conversation_id, waiting.seq).status is TurnStatus.CANCELLED
        assert store.heartbeat(lease, 60).cancel_requested
        assert store.put_back(lease).status is TurnStatus.CANCELLED
        assert store.get_turn(running.conversation_id, running.seq).status is TurnStatus.CANCELLED

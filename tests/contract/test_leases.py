"""Owns the clauses on leases: every write carries its fencing token, and a stale one changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite

import pytest

from holdfast.clock import after
from holdfast.domain.decisions import Fresh, Reason
from holdfast.domain.events import Writing
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.pointers import NO_RIGHTS, Rights
from holdfast.domain.turns import AttemptStatus, Launch, Lease, Orphan, TurnRequest, TurnStatus
from holdfast.errors import Conflict, InvalidInput, LeaseLost, NotFound
from holdfast.store.contract import Store
from tests.builders import (
    a_claim,
    a_process,
    a_provider_session_id,
    an_event,
    done,
    failed,
)
from tests.clock import ManualClock
from tests.steps import begin, claim, enqueue, lose, refused, run, snapshot

pytestmark = pytest.mark.usefixtures("watched")

GONE = Failure(FailureClass.GONE, "no conversation found")
FRESH = Fresh(Reason.NO_POINTER, ())


#: as long as a lease may be
HOUR = 3600.0


def pin_again(store: Store, lease: Lease) -> None:
    """The id that the attempt ran, so that nothing but the lease is wrong."""
    attempt = store.attempts(lease.conversation_id, lease.seq)[lease.attempt - 1]
    store.pin(lease, attempt.provider_session_id or a_provider_session_id())


#: every write of a worker
WRITES: dict[str, Callable[[Store, Lease], object]] = {
    "heartbeat": lambda store, lease: store.heartbeat(lease, 60),
    "launch": lambda store, lease: store.launch(lease, Launch(FRESH, a_process())),
    "record_events": lambda store, lease: store.record_events(lease, [an_event(99)]),
    "put_partial_text": lambda store, lease: store.put_partial_text(lease, 1, Writing("half of ")),
    "pin": pin_again,
    "fall_back": lambda store, lease: store.fall_back(lease, GONE, "fallback"),
    "put_back": lambda store, lease: store.put_back(lease),
    "finish_turn": lambda store, lease: store.finish_turn(lease, done("too late")),
}


def lose_to_another(store: Store, clock: ManualClock, lease: Lease) -> None:
    lose(store, clock, lease)
    assert store.claim_turn(a_claim(owner="worker-2")) is not None


#: every way to lose a lease
LOSSES: dict[str, Callable[[Store, ManualClock, Lease], object]] = {
    "recovered": lose,
    "taken by another": lose_to_another,
    "put back": lambda store, _, lease: store.put_back(lease),
    "fallen back": lambda store, _, lease: store.fall_back(lease, GONE, "first fallback"),
}


class TestLeases:
    def test_the_fencing_token_grows_with_every_attempt(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        run(store, session)
        turn = enqueue(store, session, "eventful", max_attempts=9)
        first = claim(store, session)
        fallen = store.fall_back(first.lease, GONE, "fallback")
        store.finish_turn(fallen.lease, failed(FailureClass.TRANSIENT, retry_at=clock()))
        retried = claim(store, session)
        store.put_back(retried.lease)
        again = claim(store, session)
        lose(store, clock, again.lease)
        recovered = claim(store, session)

        fences = [c.lease.fence for c in (first, fallen, retried, again, recovered)]
        assert fences == sorted(set(fences))
        assert [a.fence for a in store.attempts(turn.conversation_id, turn.seq)] == fences

    # --- keeping it ---

    def test_a_heartbeat_renews_from_now_on(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        lease = claim(store, session, lease_seconds=60.0).lease
        clock.advance(45)

        beat = store.heartbeat(lease, 60)

        assert beat.lease.expires_at == after(clock(), 60)
        assert (beat.lease.fence, beat.cancel_requested) == (lease.fence, False)
        clock.advance(59)
        assert store.orphans() == ()

    def test_of_two_copies_of_a_holder_the_one_that_renews_second_has_lost_the_lease(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        both = claim(store, session, lease_seconds=60.0).lease
        both = store.heartbeat(both, 60, "before the snapshot").lease
        assert both.renewal == "before the snapshot"
        clock.advance(15)

        one = store.heartbeat(both, 60, "by the one").lease
        with refused(store, LeaseLost):
            store.heartbeat(both, 600, "by the other")

        clock.advance(59)
        assert store.orphans() == (), "the first one holds it"
        assert store.heartbeat(one, 60, "again").lease.renewal == "again"
        with pytest.raises(LeaseLost):
            store.heartbeat(one, 60, "by a third")

    def test_a_renewal_whose_reply_was_lost_is_made_again(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        lease = claim(store, session, lease_seconds=60.0).lease
        store.heartbeat(lease, 60, "first")
        clock.advance(15)

        again = store.heartbeat(lease, 60, "first").lease

        assert (again.renewal, again.expires_at) == ("first", after(clock(), 60))
        assert store.heartbeat(again, 60, "second").lease.renewal == "second"

    def test_the_renewals_of_one_attempt_are_not_those_of_the_next(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        former = store.heartbeat(claim(store, session).lease, 60, "former").lease
        clock.advance(3600)
        (orphan,) = store.orphans()
        store.recover(orphan)
        lease = claim(store, session).lease

        assert store.heartbeat(lease, 60, "new").lease.renewal == "new"
        with pytest.raises(LeaseLost):
            store.heartbeat(former, 60, "late")

    def test_an_expired_lease_that_nobody_took_is_renewed(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        lease = claim(store, session).lease
        clock.advance(3600)
        assert len(store.orphans()) == 1

        store.heartbeat(lease, 60)

        assert store.orphans() == ()
        assert store.finish_turn(lease, done()).status is TurnStatus.DONE

    def test_an_expired_lease_that_nobody_took_may_still_write(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        turn = enqueue(store, session, "long")
        lease = claim(store, session).lease
        clock.advance(3600)

        store.launch(lease, Launch(FRESH, a_process()))
        store.record_events(lease, [an_event(1)])
        store.pin(lease, a_provider_session_id())

        assert store.finish_turn(lease, done("made it", provider_session_id=None)).response == "made it"
        assert len(store.events(turn.conversation_id, turn.seq)) == 1

    def test_an_expired_lease_gives_its_turn_to_nobody_by_itself(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        claim(store, session)
        clock.advance(3600)

        assert store.claim_turn(a_claim()) is None

    # --- losing it ---

    @pytest.mark.parametrize("loss", LOSSES)
    @pytest.mark.parametrize("write", WRITES)
    def test_whoever_lost_the_lease_changes_nothing(
        self, store: Store, clock: ManualClock, write: str, loss: str
    ) -> None:
        session = begin(store)
        run(store, session)
        enqueue(store, session, "long")
        lease = claim(store, session).lease
        LOSSES[loss](store, clock, lease)
        before = snapshot(store)

        with pytest.raises(LeaseLost) as lost:
            WRITES[write](store, lease)

        assert (lost.value.seq, lost.value.fence) == (lease.seq, lease.fence)
        assert snapshot(store) == before

    @pytest.mark.parametrize("write", [write for write in WRITES if write != "finish_turn"])
    def test_a_finished_attempt_is_not_written_to(self, store: Store, write: str) -> None:
        session = begin(store)
        run(store, session)
        enqueue(store, session, "quick")
        lease = claim(store, session).lease
        store.finish_turn(lease, done())
        before = snapshot(store)

        with pytest.raises(LeaseLost):
            WRITES[write](store, lease)
        assert snapshot(store) == before

    def test_the_one_who_holds_it_is_not_disturbed_by_the_one_who_lost_it(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        old = claim(store, session, owner="worker-1").lease
        lose(store, clock, old)
        new = claim(store, session, owner="worker-2").lease
        for write in WRITES.values():
            with pytest.raises(LeaseLost):
                write(store, old)

        store.heartbeat(new, 60)
        store.record_events(new, [an_event(1)])
        ended = store.finish_turn(new, done("by the second"))

        assert (ended.status, ended.response) == (TurnStatus.DONE, "by the second")

    # --- evidence ---

    def test_a_late_report_is_kept_as_evidence(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        lease = claim(store, session).lease
        lose(store, clock, lease)
        assert store.late_reports(session.conversation_id) == ()
        named = a_provider_session_id()

        with pytest.raises(LeaseLost):
            store.finish_turn(lease, done("too late", provider_session_id=named))

        (late,) = store.late_reports(session.conversation_id)
        assert (late.seq, late.fence, late.verb, late.at) == (lease.seq, lease.fence, "finish", clock())
        assert late.report["status"] == "done"
        assert late.report["response"] == "too late"
        assert late.report["provider_session_id"] == named

    def test_a_late_report_of_a_failure_says_what_failed(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        lease = claim(store, session).lease
        lose(store, clock, lease)

        with pytest.raises(LeaseLost):
            store.finish_turn(lease, failed(FailureClass.AUTH, "please log in"))

        (late,) = store.late_reports(session.conversation_id)
        assert late.report["failure"] == ["auth", "please log in"]

    # --- finishing twice ---

    @pytest.mark.parametrize("meanwhile", ["nothing", "next turn claimed", "next turn done"])
    def test_finishing_again_changes_nothing(self, store: Store, meanwhile: str) -> None:
        session = begin(store)
        enqueue(store, session, "once")
        enqueue(store, session, "next")
        lease, end = claim(store, session).lease, done("once")
        first = store.finish_turn(lease, end)
        if meanwhile != "nothing":
            following = claim(store, session).lease
            if meanwhile == "next turn done":
                store.finish_turn(following, done())
        before = snapshot(store)

        assert store.finish_turn(lease, end) == first
        assert snapshot(store) == before
        assert store.late_reports(session.conversation_id) == ()

    def test_finishing_again_does_not_try_again_twice(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "flaky")
        lease = claim(store, session).lease
        end = failed(FailureClass.TRANSIENT, retry_at=after(clock(), 5))
        first = store.finish_turn(lease, end)
        before = snapshot(store)

        assert store.finish_turn(lease, end) == first
        assert snapshot(store) == before

    def test_finishing_again_otherwise_is_too_late(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "once")
        lease = claim(store, session).lease
        store.finish_turn(lease, done("it worked"))
        before = snapshot(store)

        with pytest.raises(LeaseLost):
            store.finish_turn(lease, failed())

        assert snapshot(store) == before
        assert len(store.late_reports(session.conversation_id)) == 1

    # --- launch and events ---

    def test_a_launched_turn_runs_and_its_attempt_knows_the_process(self, store: Store) -> None:
        session = begin(store)
        turn = enqueue(store, session, "go", request=TurnRequest())
        lease = claim(store, session).lease
        minted = a_provider_session_id()

        store.launch(
            lease, Launch(FRESH, a_process(), provider_session_id=minted, work_dir="/srv/w", model="opus")
        )

        assert store.get_turn(turn.conversation_id, turn.seq).status is TurnStatus.RUNNING
        (attempt,) = store.attempts(turn.conversation_id, turn.seq)
        assert (attempt.process, attempt.status) == (a_process(), AttemptStatus.OPEN)
        assert (attempt.provider_session_id, attempt.work_dir, attempt.model) == (minted, "/srv/w", "opus")

    def test_what_a_launch_does_not_say_stays_as_claimed(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        turn = enqueue(store, session, "go on")
        claimed = claim(store, session)

        store.launch(claimed.lease, Launch(claimed.decision, a_process()))

        (attempt,) = store.attempts(turn.conversation_id, turn.seq)
        assert claimed.pointer is not None
        assert attempt.provider_session_id == claimed.pointer.provider_session_id
        assert (attempt.work_dir, attempt.decision.kind) == ("/srv/infra", "resume")

    @pytest.mark.parametrize("write", WRITES)
    def test_a_lease_is_good_for_its_own_attempt_and_no_other(self, store: Store, write: str) -> None:
        """Its fence alone is a number that other sessions have, too."""
        session, other = begin(store), begin(store)
        run(store, other, "theirs, which has ended")
        enqueue(store, other, "theirs")
        theirs = claim(store, other).lease
        run(store, session, "ours, which has ended")
        enqueue(store, session, "ours")
        held = claim(store, session).lease
        assert held.fence == theirs.fence
        before = snapshot(store)
        for forged in (
            replace(held, seq=1),
            replace(held, attempt=2),
            replace(held, conversation_id=theirs.conversation_id, seq=theirs.seq),
            replace(held, conversation_id=theirs.conversation_id, seq=1),
        ):
            with pytest.raises((LeaseLost, NotFound, IndexError)):
                WRITES[write](store, forged)
            with pytest.raises((Conflict, NotFound)):
                store.recover(Orphan(forged, None, foreground=False), owner_is_gone=True)
        assert snapshot(store) == before
        WRITES["heartbeat"](store, held)

    @pytest.mark.parametrize(
        ("asked", "allow_wider", "launched", "is_fine"),
        [
            (None, False, NO_RIGHTS, True),
            (None, False, Rights("plan"), False),
            (Rights("plan"), False, Rights("plan"), True),
            (Rights("plan"), False, Rights("bypassPermissions"), False),
            (Rights("plan"), False, NO_RIGHTS, False),
            (Rights("plan"), True, Rights("bypassPermissions"), False),
            (Rights(allowed_tools=frozenset("ab")), False, Rights(allowed_tools=frozenset("a")), True),
            (Rights(allowed_tools=frozenset("a")), False, Rights(allowed_tools=frozenset("ab")), False),
            (NO_RIGHTS, False, Rights(extra_args=("--yolo",)), False),
            (Rights(approve_tools=frozenset("a")), False, NO_RIGHTS, False),
            (Rights(approve_tools=frozenset("a")), True, NO_RIGHTS, True),
            (NO_RIGHTS, False, Rights(approve_tools=frozenset("a")), True),
        ],
    )
    def test_a_launch_adds_no_right_to_those_that_were_asked_for(
        self, store: Store, asked: Rights | None, allow_wider: bool, launched: Rights, is_fine: bool
    ) -> None:
        session = begin(store)
        request = TurnRequest(rights=asked, allow_wider_rights=allow_wider)
        enqueue(store, session, "one", request=request)
        held = claim(store, session).lease
        if is_fine:
            store.launch(held, Launch(FRESH, a_process(), rights=launched))
        else:
            with pytest.raises(Conflict, match="rights"):
                store.launch(held, Launch(FRESH, a_process(), rights=launched))

    def test_what_was_recorded_is_launched_again_also_after_a_fallback(self, store: Store) -> None:
        session, rights = begin(store), Rights("plan", frozenset("a"))
        enqueue(store, session, "one", request=TurnRequest("/srv/infra", rights=rights))
        store.finish_turn(claim(store, session).lease, done(provider_session_id=a_provider_session_id()))
        enqueue(store, session, "two")
        claimed = claim(store, session)
        with pytest.raises(Conflict, match="rights"):
            store.launch(claimed.lease, Launch(claimed.decision, a_process(), rights=Rights("acceptEdits")))
        store.launch(claimed.lease, Launch(claimed.decision, a_process(), rights=rights))
        again = store.fall_back(claimed.lease, GONE, "fallback")
        with pytest.raises(Conflict, match="rights"):
            store.launch(again.lease, Launch(FRESH, a_process(), rights=Rights("acceptEdits")))
        store.launch(again.lease, Launch(FRESH, a_process(), rights=rights))

    def test_a_launch_may_weaken_the_decision(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        turn = enqueue(store, session, "go on")
        lease = claim(store, session).lease

        store.launch(lease, Launch(Fresh(Reason.TRANSCRIPT_MISSING, ()), a_process()))

        (attempt,) = store.attempts(turn.conversation_id, turn.seq)
        assert (attempt.decision.kind, attempt.decision.reason) == ("fresh", "transcript_missing")
        assert attempt.provider_session_id is None
        assert attempt.work_dir == "/srv/infra"

    def test_events_are_recorded_once_for_each_number(self, store: Store) -> None:
        session = begin(store)
        turn = enqueue(store, session, "go")
        lease = claim(store, session).lease
        store.record_events(lease, [an_event(1), an_event(2)])
        store.record_events(lease, [an_event(2, data={"text": "again"}), an_event(3)])

        assert store.events(turn.conversation_id, turn.seq) == tuple((1, an_event(n)) for n in (1, 2, 3))

    def test_events_go_on_after_a_given_one_and_across_attempts(self, store: Store) -> None:
        session = begin(store)
        turn = enqueue(store, session, "go")
        lease = claim(store, session).lease
        store.record_events(lease, [an_event(1), an_event(2)])
        store.put_back(lease)
        store.record_events(claim(store, session).lease, [an_event(1)])

        conversation = turn.conversation_id
        assert [(a, e.number) for a, e in store.events(conversation, turn.seq)] == [(1, 1), (1, 2), (2, 1)]
        assert [(a, e.number) for a, e in store.events(conversation, turn.seq, after=(1, 1), limit=1)] == [
            (1, 2)
        ]
        assert store.events(conversation, turn.seq, after=(2, 1)) == ()

    def test_the_newest_events_are_the_last_ones_in_order(self, store: Store) -> None:
        session = begin(store)
        turn = enqueue(store, session, "go")
        lease = claim(store, session).lease
        store.record_events(lease, [an_event(n) for n in range(1, 12)])
        store.put_back(lease)
        store.record_events(claim(store, session).lease, [an_event(1)])

        newest = store.newest_events(turn.conversation_id, turn.seq, 3)
        assert [(attempt, event.number) for attempt, event in newest] == [(1, 10), (1, 11), (2, 1)]

    def test_no_events_are_no_reason_to_fail(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "go")

        store.record_events(claim(store, session).lease, [])

    @pytest.mark.parametrize("seconds", [0.0, -1.0, HOUR + 0.001, 1e11, float("nan")])
    def test_a_lease_lasts_an_hour_at_the_most(self, store: Store, seconds: float) -> None:
        session = begin(store)
        enqueue(store, session, "one")
        # what is no number cannot even be said in JSON
        refused_by = "lease_seconds" if isfinite(seconds) else "lease_seconds|is not JSON"
        with pytest.raises(InvalidInput, match=refused_by):
            store.claim_turn(a_claim(lease_seconds=seconds))
        lease = claim(store, session, lease_seconds=HOUR).lease
        with pytest.raises(InvalidInput, match=refused_by):
            store.heartbeat(lease, seconds)
        assert store.heartbeat(lease, HOUR).lease.expires_at == lease.expires_at

    def test_a_lease_from_a_future_that_cannot_be_is_over(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "one")
        claim(store, session, lease_seconds=60.0)
        clock.advance(-2 * HOUR)

        (orphan,) = store.orphans()

        assert store.recover(orphan).status is TurnStatus.QUEUED

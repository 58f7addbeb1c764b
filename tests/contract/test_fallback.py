"""Owns the clauses on falling back: a refused resume goes on fresh, once, in the same try."""

from __future__ import annotations

import pytest

from holdfast.clock import after
from holdfast.domain.decisions import Fork, Fresh, Reason
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.pointers import TranscriptMark
from holdfast.domain.turns import (
    AttemptCause,
    AttemptStatus,
    Claim,
    Launch,
    TurnRequest,
    TurnStatus,
)
from holdfast.domain.usage import Usage, UsageReport
from holdfast.errors import Conflict, LeaseLost
from holdfast.store.contract import Store
from tests.builders import (
    a_claim,
    a_process,
    a_provider_session_id,
    a_session_id,
    done,
    failed,
)
from tests.clock import ManualClock
from tests.steps import begin, claim, decide, enqueue, refused, resumed_id, run, snapshot

pytestmark = pytest.mark.usefixtures("watched")

GONE = Failure(FailureClass.GONE, "no conversation found")
MARK = TranscriptMark("projects/infra/5b1c2d3e.jsonl", size=10, digest="abc")
NOT_ACCEPTED = Failure(FailureClass.NOT_ACCEPTED, "API Error: 400 nobody knows these words")
OVERFLOWED = Failure(FailureClass.OVERFLOW, "prompt is too long")


class TestFallingBack:
    def resuming(self, store: Store, **turn: object) -> Claim:
        """A session with a turn behind it; its second one resumes."""
        session = begin(store)
        run(store, session)
        enqueue(store, session, "go on", request=TurnRequest(), **turn)
        claimed = claim(store, session)
        store.launch(claimed.lease, Launch(claimed.decision, a_process()))
        return claimed

    def test_what_was_used_before_the_refusal_is_counted(self, store: Store) -> None:
        resumed = self.resuming(store)
        spent = Usage(100, 40, 20, 0.5)

        again = store.fall_back(resumed.lease, GONE, "fallback", UsageReport(spent, cumulative=True))
        store.finish_turn(again.lease, done(usage=UsageReport(spent)))

        assert store.get_session(resumed.lease.session_id).usage == spent + spent
        turn = resumed.turn
        assert [one.usage for one in store.attempts(turn.conversation_id, turn.seq)] == [spent, spent]

    def test_the_refused_session_is_retired(self, store: Store) -> None:
        resumed = self.resuming(store)
        refused = resumed_id(resumed.decision)

        store.fall_back(resumed.lease, GONE, "fallback")

        session_id = resumed.lease.session_id
        assert store.pointer(session_id, "claude") is None
        assert [(t.id, t.retired) for t in store.provider_sessions(session_id)] == [(refused, "gone")]

    @pytest.mark.parametrize(
        ("failure", "retired"),
        [(NOT_ACCEPTED, "poisoned"), (OVERFLOWED, "overflow")],
        ids=["not-accepted", "overflowed"],
    )
    def test_a_session_in_doubt_stays_until_a_fresh_start_was_answered(
        self, store: Store, failure: Failure, retired: str
    ) -> None:
        resumed = self.resuming(store)
        session_id, doubted = resumed.lease.session_id, resumed_id(resumed.decision)
        pointed = store.pointer(session_id, "claude")

        fresh = store.fall_back(resumed.lease, failure, "fallback")
        assert isinstance(fresh.decision, Fresh)
        assert fresh.decision.reason is Reason.RESUME_FAILED
        store.launch(fresh.lease, Launch(fresh.decision, a_process()))
        new = a_provider_session_id()
        store.pin(fresh.lease, new)

        assert store.pointer(session_id, "claude") == pointed
        assert {totals.id: totals.retired for totals in store.provider_sessions(session_id)}[doubted] is None
        store.finish_turn(fresh.lease, done(provider_session_id=new))
        after_answer = store.pointer(session_id, "claude")
        assert after_answer is not None
        assert after_answer.provider_session_id == new
        known = {totals.id: totals.retired for totals in store.provider_sessions(session_id)}
        assert known[doubted] == retired

    @pytest.mark.parametrize(
        "failure_class",
        [
            FailureClass.NOT_ACCEPTED,
            FailureClass.UNKNOWN,
            FailureClass.POISONED,
            FailureClass.OVERFLOW,
            FailureClass.TRANSIENT,
        ],
    )
    def test_a_session_in_doubt_is_kept_if_the_fresh_start_fails(
        self, store: Store, failure_class: FailureClass
    ) -> None:
        resumed = self.resuming(store)
        session_id, doubted = resumed.lease.session_id, resumed_id(resumed.decision)
        pointed = store.pointer(session_id, "claude")
        fresh = store.fall_back(resumed.lease, NOT_ACCEPTED, "fallback")
        store.launch(fresh.lease, Launch(fresh.decision, a_process()))
        new = a_provider_session_id()
        store.pin(fresh.lease, new, MARK)

        store.finish_turn(fresh.lease, failed(failure_class, provider_session_id=new, transcript=MARK))

        assert store.pointer(session_id, "claude") == pointed
        assert {totals.id: totals.retired for totals in store.provider_sessions(session_id)}[doubted] is None

    def test_the_answer_to_a_lost_reply_is_the_same_attempt(self, store: Store) -> None:
        resumed = self.resuming(store)
        fresh = store.fall_back(resumed.lease, GONE, "fallback")
        before = snapshot(store)

        again = store.fall_back(resumed.lease, GONE, "fallback")

        assert (again.lease, again.turn, again.cause) == (fresh.lease, fresh.turn, AttemptCause.FALLBACK)
        assert again.decision == fresh.decision
        assert snapshot(store) == before

    def test_a_secret_in_the_refusal_is_not_written_even_where_it_is_cut(self, store: Store) -> None:
        resumed = self.resuming(store)
        secret = "ghp_" + "a1B2" * 9
        refusal = Failure(FailureClass.GONE, "x" * 255 + " " + secret)

        store.fall_back(resumed.lease, refusal, "fallback")

        attempts = store.attempts(resumed.lease.conversation_id, resumed.lease.seq)
        assert secret[:12] not in str(attempts)

    def test_the_key_of_another_claim_opens_nothing(self, store: Store) -> None:
        resumed, other = self.resuming(store), begin(store)
        enqueue(store, other, "elsewhere")
        theirs = claim(store, other, key="theirs")

        fresh = store.fall_back(resumed.lease, GONE, "mine")

        assert fresh.lease.session_id == resumed.lease.session_id
        with pytest.raises((Conflict, LeaseLost)):
            store.fall_back(resumed.lease, GONE, "theirs")
        store.heartbeat(theirs.lease, 60)

    def test_a_session_that_was_asked_for_by_name_is_not_replaced(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        named = store.pointer(session.id, "claude")
        assert named is not None
        enqueue(
            store, session, "in there", request=TurnRequest(provider_session_id=named.provider_session_id)
        )
        lease = claim(store, session).lease

        with refused(store, Conflict):
            store.fall_back(lease, GONE, "fallback")

    def test_it_goes_on_fresh_under_a_new_fencing_token(self, store: Store, clock: ManualClock) -> None:
        resumed = self.resuming(store)

        fresh = store.fall_back(resumed.lease, GONE, "fallback")

        assert isinstance(fresh.decision, Fresh)
        assert (fresh.decision.reason, fresh.cause) == (Reason.RETIRED, AttemptCause.FALLBACK)
        assert fresh.lease.fence > resumed.lease.fence
        assert (fresh.turn.seq, fresh.lease.attempt) == (resumed.turn.seq, 2)
        assert fresh.turn == store.get_turn(fresh.turn.conversation_id, fresh.turn.seq)
        assert store.heartbeat(fresh.lease, 60).lease.expires_at == after(clock(), 60)
        with pytest.raises(LeaseLost):
            store.heartbeat(resumed.lease, 60)

    def test_both_attempts_are_on_record(self, store: Store) -> None:
        resumed = self.resuming(store)
        store.fall_back(resumed.lease, GONE, "fallback")

        first, second = store.attempts(resumed.turn.conversation_id, resumed.turn.seq)

        assert (first.status, first.failure) == (AttemptStatus.FELL_BACK, GONE)
        assert first.provider_session_id == resumed_id(resumed.decision)
        assert (second.status, second.cause) == (AttemptStatus.OPEN, AttemptCause.FALLBACK)
        assert (second.decision.kind, second.provider_session_id) == ("fresh", None)

    def test_the_work_dir_stays(self, store: Store) -> None:
        resumed = self.resuming(store)
        store.fall_back(resumed.lease, GONE, "fallback")

        _, second = store.attempts(resumed.turn.conversation_id, resumed.turn.seq)

        assert second.work_dir == "/srv/infra"

    def test_it_covers_what_the_resume_would_have_covered(self, store: Store) -> None:
        resumed = self.resuming(store)

        fresh = store.fall_back(resumed.lease, GONE, "fallback")

        assert (fresh.covers, fresh.epoch) == (resumed.covers, resumed.epoch)

    def test_it_is_the_same_try(self, store: Store, clock: ManualClock) -> None:
        resumed = self.resuming(store, max_attempts=2)
        fresh = store.fall_back(resumed.lease, GONE, "fallback")

        again = store.finish_turn(fresh.lease, failed(FailureClass.TRANSIENT, retry_at=clock()))

        assert (again.status, again.attempts) == (TurnStatus.QUEUED, 2)

    def test_a_foreground_turn_falls_back_too(self, store: Store) -> None:
        resumed = self.resuming(store, foreground=True)
        fresh = store.fall_back(resumed.lease, GONE, "fallback")

        assert store.finish_turn(fresh.lease, done()).status is TurnStatus.DONE

    def test_the_new_session_is_pointed_at_and_paid_for(self, store: Store) -> None:
        resumed, named = self.resuming(store), a_provider_session_id()
        fresh = store.fall_back(resumed.lease, GONE, "fallback")

        store.finish_turn(
            fresh.lease,
            done(
                provider_session_id=named,
                usage=UsageReport(Usage(input_tokens=7, output_tokens=3), cumulative=True),
            ),
        )

        session = store.get_session(resumed.lease.session_id)
        assert resumed_id(decide(store, session)) == named
        assert session.usage == Usage(input_tokens=7, output_tokens=3)
        assert [a.usage for a in store.attempts(session.conversation_id, 2)] == [Usage(), session.usage]

    def test_it_happens_once(self, store: Store) -> None:
        resumed = self.resuming(store)
        fresh = store.fall_back(resumed.lease, GONE, "fallback")
        before = snapshot(store)

        with pytest.raises(Conflict):
            store.fall_back(fresh.lease, GONE, "fallback again")
        assert snapshot(store) == before

    def test_there_is_nothing_to_fall_back_from_without_a_resume(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "go")
        lease = claim(store, session).lease
        before = snapshot(store)

        with pytest.raises(Conflict):
            store.fall_back(lease, GONE, "fallback")
        assert snapshot(store) == before

    def test_the_answer_to_a_lost_reply_is_got_by_claiming_with_its_key(self, store: Store) -> None:
        resumed = self.resuming(store)
        fresh = store.fall_back(resumed.lease, GONE, "fallback")

        again = store.claim_turn(a_claim(key="fallback"))

        assert again is not None
        assert (again.lease.fence, again.cause) == (fresh.lease.fence, fresh.cause)
        assert isinstance(again.decision, Fresh)

    def test_a_refused_fork_goes_on_fresh_and_leaves_its_source_alone(self, store: Store) -> None:
        parent = begin(store)
        run(store, parent)
        source = store.pointer(parent.id, "claude")
        child = store.fork(parent.id, a_session_id())
        enqueue(store, child, "go on", request=TurnRequest())
        forked = claim(store, child)
        assert isinstance(forked.decision, Fork)

        fresh = store.fall_back(forked.lease, GONE, "fallback")

        assert isinstance(fresh.decision, Fresh)
        assert store.pointer(child.id, "claude") is None
        assert store.pointer(parent.id, "claude") == source
        attempt = store.newest_attempt(child.id)
        assert attempt is not None
        assert attempt.work_dir == "/srv/infra"

"""Owns the contract of turns that wait for an approval: held by nobody, acted on natively and once, or void."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.clock import after
from holdfast.domain.approvals import Approval
from holdfast.domain.decisions import Fresh, Reason, Resume
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import Session, SessionUpdate
from holdfast.domain.turns import AttemptCause, AttemptStatus, Claim, Launch, TurnEnd, TurnStatus
from holdfast.domain.usage import Usage, UsageReport
from holdfast.errors import Conflict, LeaseLost, NeedsApproval, Refused
from holdfast.store.contract import Store
from tests.builders import (
    a_claim,
    a_provider_session_id,
    a_runtime,
    a_turn,
    an_answer,
    an_approval,
    deferred,
    done,
)
from tests.clock import ManualClock
from tests.steps import begin, claim, defer, enqueue, join, refused, snapshot

pytestmark = pytest.mark.usefixtures("watched")


def running(store: Store, session: Session, **changes: Any) -> Claim:
    enqueue(store, session, "apply it", **changes)
    claimed = claim(store, session)
    store.launch(claimed.lease, Launch(claimed.decision))
    return claimed


def answered(store: Store, session: Session, approved: bool = True) -> Approval:
    """A turn that was deferred, and whose approval was answered: it can be claimed."""
    asked = defer(store, session)
    return store.answer_approval(asked.id, an_answer(asked, approved))


def status_of(store: Store, session: Session, seq: int = 1) -> TurnStatus:
    return store.get_turn(session.conversation_id, seq).status


class TestDefer:
    """``finish_turn`` with ``waiting``."""

    def test_the_turn_waits_with_its_approval_and_nobody_holds_it(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        claimed = running(store, session)
        used = a_provider_session_id()
        end = deferred(provider_session_id=used, usage=UsageReport(Usage(100, 0, 7, 0.5)), response="Wait…")
        turn = store.finish_turn(claimed.lease, end)
        assert turn == store.get_turn(session.conversation_id, 1)
        assert (turn.status, turn.tries, turn.attempts, turn.response) == (TurnStatus.WAITING, 0, 1, None)
        (attempt,) = store.attempts(session.conversation_id, 1)
        assert (attempt.status, attempt.ended_at) == (AttemptStatus.DEFERRED, clock())
        assert (attempt.provider_session_id, attempt.usage.cost_usd) == (used, 0.5)
        now = store.get_session(session.id)
        assert (now.phase, now.error_count, now.usage.output_tokens) == (Phase.APPROVAL, 0, 7)
        assert store.holder(session.id) is None
        (asked,) = store.approvals(session_id=session.id)
        assert (asked.seq, asked.call_id, asked.tool) == (1, "toolu_01", "Bash")

    def test_the_pointer_moves_to_the_session_that_holds_the_call(self, store: Store) -> None:
        session = begin(store)
        claimed = running(store, session)
        end = deferred()
        store.finish_turn(claimed.lease, end)
        pointer = store.pointer(session.id, "claude")
        assert pointer is not None
        assert (pointer.provider_session_id, pointer.transcript) == (end.provider_session_id, end.transcript)
        assert pointer.seen == claimed.covers

    def test_reported_again_it_is_the_same_end(self, store: Store) -> None:
        session = begin(store)
        claimed = running(store, session)
        end = deferred()
        turn = store.finish_turn(claimed.lease, end)
        before = snapshot(store)
        assert store.finish_turn(claimed.lease, end) == turn
        assert snapshot(store) == before
        (asked,) = store.approvals()
        store.answer_approval(asked.id, an_answer(asked))
        assert store.finish_turn(claimed.lease, end).status is TurnStatus.QUEUED

    def test_a_turn_that_was_asked_to_stop_is_cancelled_and_nobody_is_asked(self, store: Store) -> None:
        session = begin(store)
        claimed = running(store, session)
        store.cancel_turn(session.id, 1)
        end = deferred()
        for _ in range(2):
            assert store.finish_turn(claimed.lease, end).status is TurnStatus.CANCELLED
        assert store.approvals(open_only=False) == ()
        assert store.get_session(session.id).phase is Phase.INITIALIZING

    def test_who_lost_the_lease_asks_nobody(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        claimed = running(store, session)
        clock.advance(3600)
        (orphan,) = store.orphans()
        store.recover(orphan)
        with pytest.raises(LeaseLost):
            store.finish_turn(claimed.lease, deferred())
        assert store.approvals(open_only=False) == ()
        assert status_of(store, session) is TurnStatus.QUEUED

    @pytest.mark.parametrize(
        "end", [TurnEnd(TurnStatus.WAITING), done(approval=an_approval())], ids=["no approval", "no wait"]
    )
    def test_waiting_and_an_approval_belong_together(self, store: Store, end: TurnEnd) -> None:
        claimed = running(store, begin(store))
        with refused(store, Conflict):
            store.finish_turn(claimed.lease, end)

    def test_turns_behind_it_wait_too(self, store: Store) -> None:
        session = begin(store)
        defer(store, session)
        enqueue(store, session, "and then this")
        assert store.claim_turn(a_claim()) is None

    @pytest.mark.parametrize("how", ["start", "claim"])
    def test_whoever_wants_to_run_the_session_is_told_what_it_waits_for(self, store: Store, how: str) -> None:
        session = begin(store)
        asked = defer(store, session)
        with refused(store, NeedsApproval) as caught:
            _go_on(store, session, how)
        assert caught.value.details == {"session_id": session.id, "seq": 1, "approval_id": asked.id}
        assert asked.id in str(caught.value)

    @pytest.mark.parametrize("how", ["start", "claim"])
    def test_once_it_has_expired_that_is_said(self, store: Store, clock: ManualClock, how: str) -> None:
        session = begin(store)
        asked = defer(store, session, approval=an_approval(expires_at=after(clock(), 60)))
        clock.advance(60)
        with refused(store, Refused) as caught:
            _go_on(store, session, how)
        assert caught.value.details["reason"] == "approval_expired"
        assert asked.id in str(caught.value)
        assert "holdfast cancel" in str(caught.value)

    def test_the_queue_of_others_goes_on(self, store: Store) -> None:
        defer(store, begin(store))
        other = begin(store)
        enqueue(store, other, "something else")
        claimed = store.claim_turn(a_claim())
        assert claimed is not None
        assert claimed.turn.session_id == other.id


def _go_on(store: Store, session: Session, how: str) -> object:
    request = a_claim(session_id=session.id)
    if how == "claim":
        return store.claim_turn(request)
    return store.start_turn(session.id, a_turn("never mind"), request)


class TestActOnAnswer:
    """What an answer sets going."""

    @pytest.mark.parametrize("approved", [True, False])
    def test_the_turn_resumes_the_session_that_deferred_and_uses_the_answer_once(
        self, store: Store, clock: ManualClock, approved: bool
    ) -> None:
        session = begin(store)
        store.update_session(session.id, SessionUpdate(phase=Phase.EXECUTING))
        approval = answered(store, session, approved)
        assert store.get_session(session.id).phase is Phase.EXECUTING
        claimed = claim(store, session)
        (deferral, _) = store.attempts(session.conversation_id, 1)
        assert isinstance(claimed.decision, Resume)
        assert claimed.decision.provider_session_id == deferral.provider_session_id
        assert (claimed.cause, claimed.approval) == (AttemptCause.APPROVAL, approval)
        assert store.get_approval(approval.id).used_at is None
        store.launch(claimed.lease, Launch(claimed.decision))
        assert store.get_approval(approval.id).used_at == clock()
        clock.advance(1)
        store.launch(claimed.lease, Launch(claimed.decision))
        assert store.get_approval(approval.id).used_at == clock() - 1_000_000
        store.finish_turn(claimed.lease, done(provider_session_id=claimed.decision.provider_session_id))
        assert store.get_approval(approval.id).status is approval.status
        assert status_of(store, session) is TurnStatus.DONE

    def test_a_claim_whose_reply_was_lost_comes_with_the_same_answer(self, store: Store) -> None:
        session = begin(store)
        approval = answered(store, session)
        request = a_claim(session_id=session.id)
        first, again = store.claim_turn(request), store.claim_turn(request)
        assert first is not None
        assert again is not None
        assert (again.lease, again.approval) == (first.lease, approval)
        store.launch(first.lease, Launch(first.decision))
        launched = store.claim_turn(request)
        assert launched is not None
        assert launched.approval is None

    def test_it_comes_before_what_was_queued_behind_it(self, store: Store) -> None:
        session = begin(store)
        asked = defer(store, session)
        enqueue(store, session, "and then this")
        store.answer_approval(asked.id, an_answer(asked))
        assert claim(store, session).turn.seq == 1

    def test_only_the_runtime_that_has_the_call_gets_it(self, store: Store) -> None:
        session = begin(store)
        approval = answered(store, session)
        elsewhere = a_runtime(machine="build-9")
        for request in (a_claim(runtime=elsewhere), a_claim(runtime=elsewhere, session_id=session.id)):
            assert store.claim_turn(request) is None
        claimed = store.claim_turn(a_claim())
        assert claimed is not None
        assert claimed.approval == approval

    def test_a_person_s_turn_goes_on_as_well(self, store: Store) -> None:
        session = begin(store)
        started = store.start_turn(session.id, a_turn(foreground=True), a_claim(session_id=session.id))
        assert isinstance(started, Claim)
        store.launch(started.lease, Launch(started.decision))
        store.finish_turn(started.lease, deferred())
        (asked,) = store.approvals()
        store.answer_approval(asked.id, an_answer(asked))
        assert claim(store, session).approval is not None

    def test_the_phase_stays_while_something_else_is_asked(self, store: Store) -> None:
        session = begin(store)
        store.update_session(session.id, SessionUpdate(phase=Phase.PLANNING))
        own = store.request_approval(session.id, an_approval(call_id=None))
        enqueue(store, session, "apply it")
        claimed = claim(store, session)
        store.launch(claimed.lease, Launch(claimed.decision))
        end = deferred()
        store.finish_turn(claimed.lease, end)
        asked = next(a for a in store.approvals() if a.id != own.id)
        store.answer_approval(asked.id, an_answer(asked))
        assert store.get_session(session.id).phase is Phase.APPROVAL

    def test_a_call_that_is_deferred_again_asks_again(self, store: Store) -> None:
        session = begin(store)
        first = answered(store, session)
        claimed = claim(store, session)
        assert isinstance(claimed.decision, Resume)
        store.launch(claimed.lease, Launch(claimed.decision))
        end = deferred(provider_session_id=claimed.decision.provider_session_id)
        store.finish_turn(claimed.lease, end)
        (second,) = store.approvals()
        assert second.id != first.id
        assert store.get_turn(session.conversation_id, 1).tries == 0

    def test_only_a_resume_is_launched(self, store: Store) -> None:
        session = begin(store)
        answered(store, session)
        claimed = claim(store, session)
        with refused(store, Conflict):
            store.launch(claimed.lease, Launch(Fresh(Reason.WORKDIR_CHANGED, ())))
        store.launch(claimed.lease, Launch(claimed.decision))
        with refused(store, Conflict):
            store.fall_back(claimed.lease, Failure(FailureClass.GONE, "no such session"), "fresh")

    def test_what_others_said_meanwhile_is_told_with_the_next_request(self, store: Store) -> None:
        session = begin(store)
        other = join(store, session, "reviewer")
        at_work = running(store, other)
        answered(store, session)
        store.finish_turn(at_work.lease, done())
        claimed = claim(store, session)
        assert isinstance(claimed.decision, Resume)
        store.launch(claimed.lease, Launch(claimed.decision))
        store.finish_turn(claimed.lease, done(provider_session_id=claimed.decision.provider_session_id))
        enqueue(store, session, "go on")
        after_it = claim(store, session).decision
        assert isinstance(after_it, Resume)
        assert after_it.catch_up == ((1, 1),)

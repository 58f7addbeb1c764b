"""Owns the contract of answers that nobody acted on: kept until the launch, or void with the reason."""

from __future__ import annotations

import pytest

from holdfast.clock import after
from holdfast.domain.approvals import ApprovalStatus
from holdfast.domain.decisions import Reason, Refuse
from holdfast.domain.failures import FailureClass
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import Old
from holdfast.domain.turns import AttemptCause, Launch, TurnStatus
from holdfast.errors import NotFound, Refused
from holdfast.store.contract import Store
from tests.builders import (
    a_claim,
    a_pointer,
    a_runtime,
    a_session_id,
    an_answer,
    an_approval,
    deferred,
    failed,
)
from tests.clock import ManualClock
from tests.contract.test_deferrals import answered, status_of
from tests.steps import begin, claim, defer, enqueue, refused, run

pytestmark = pytest.mark.usefixtures("watched")


class TestVoid:
    """Where nobody may act on an approval any more."""

    def test_a_change_of_what_the_agent_has_seen_refuses_the_turn_and_says_so(self, store: Store) -> None:
        session = begin(store)
        run(store, session, "look around")
        approval = answered(store, session)
        store.edit_turn(session.id, 1, prompt="look elsewhere")
        assert store.claim_turn(a_claim(session_id=session.id)) is None
        turn = store.get_turn(session.conversation_id, 2)
        assert turn.failure is not None
        assert (turn.status, turn.failure.failure_class) == (TurnStatus.FAILED, FailureClass.REFUSED)
        void = store.get_approval(approval.id)
        assert (void.status, void.void_reason) == (ApprovalStatus.VOIDED, "history_changed")
        assert (void.answered_by, void.used_at) == ("ada", None)

    def test_another_provider_session_than_the_one_that_deferred_is_refused(self, store: Store) -> None:
        session = begin(store)
        approval = answered(store, session)
        store.set_pointer(a_pointer(session.id))
        decision = store.explain(session.id, "claude", runtime=a_runtime())
        assert isinstance(decision, Refuse)
        assert decision.reason is Reason.EXPLICIT_ID
        assert store.claim_turn(a_claim(session_id=session.id)) is None
        assert store.get_approval(approval.id).void_reason == "explicit_id"

    def test_a_retired_provider_session_is_refused(self, store: Store) -> None:
        session = begin(store)
        approval = answered(store, session)
        pointer = store.pointer(session.id, "claude")
        assert pointer is not None
        store.retire(session.id, "claude", pointer.provider_session_id, "poisoned")
        assert store.claim_turn(a_claim(session_id=session.id)) is None
        assert store.get_approval(approval.id).status is ApprovalStatus.VOIDED

    @pytest.mark.parametrize("with_answer", [True, False])
    def test_a_cancelled_turn(self, store: Store, with_answer: bool) -> None:
        session = begin(store)
        asked = answered(store, session) if with_answer else defer(store, session)
        store.cancel_turn(session.id, 1)
        void = store.get_approval(asked.id)
        assert (void.status, void.void_reason) == (ApprovalStatus.VOIDED, "turn_cancelled")
        assert store.get_session(session.id).phase is Phase.INITIALIZING
        with refused(store, Refused):
            store.answer_approval(asked.id, an_answer(asked, False))

    @pytest.mark.parametrize("with_answer", [True, False])
    @pytest.mark.parametrize("how", ["truncate", "retry", "new"])
    def test_a_turn_that_left_the_history(self, store: Store, how: str, with_answer: bool) -> None:
        session = begin(store)
        asked = answered(store, session) if with_answer else defer(store, session)
        if how == "truncate":
            store.truncate(session.id, 0)
        elif how == "retry":
            store.retry_turn(session.id, 1)
        else:
            store.new_generation(session.id)
        void = store.get_approval(asked.id)
        assert (void.status, void.void_reason) == (ApprovalStatus.VOIDED, "turn_dropped")
        assert store.get_session(session.id).phase is Phase.INITIALIZING

    def test_what_an_agent_asked_itself_survives_a_truncation(self, store: Store) -> None:
        session = begin(store)
        own = store.request_approval(session.id, an_approval(call_id=None))
        enqueue(store, session, "never mind")
        store.truncate(session.id, 0)
        assert store.get_approval(own.id) == own

    @pytest.mark.parametrize("with_answer", [True, False])
    def test_a_closed_session(self, store: Store, with_answer: bool) -> None:
        session = begin(store)
        asked = answered(store, session) if with_answer else defer(store, session)
        store.finalize_session(session.id, Phase.ABANDONED, None)
        void = store.get_approval(asked.id)
        assert (void.status, void.void_reason) == (ApprovalStatus.VOIDED, "session_abandoned")
        assert status_of(store, session) is TurnStatus.CANCELLED

    def test_a_turn_that_failed_before_it_was_launched(self, store: Store) -> None:
        session = begin(store)
        approval = answered(store, session)
        store.finish_turn(claim(store, session).lease, failed(FailureClass.CONFIG, "no such directory"))
        void = store.get_approval(approval.id)
        assert (void.status, void.void_reason) == (ApprovalStatus.VOIDED, "turn_failed")

    def test_a_turn_that_a_guard_refused_at_the_launch(self, store: Store) -> None:
        session = begin(store)
        approval = answered(store, session)
        end = failed(FailureClass.REFUSED, "it is gone", refused_by=Reason.TRANSCRIPT_MISSING)
        store.finish_turn(claim(store, session).lease, end)
        void = store.get_approval(approval.id)
        assert (void.status, void.void_reason) == (ApprovalStatus.VOIDED, "transcript_missing")

    def test_a_removed_session_takes_them_with_it(self, store: Store) -> None:
        session = begin(store)
        asked = defer(store, session)
        store.remove_session(session.id)
        assert store.approvals(open_only=False) == ()
        with pytest.raises(NotFound):
            store.get_approval(asked.id)

    def test_a_fork_inherits_none(self, store: Store) -> None:
        session = begin(store)
        run(store, session, "look around")
        asked = defer(store, session)
        child = store.fork(session.id, a_session_id())
        assert store.approvals(session_id=child.id, open_only=False) == ()
        assert store.approval_window(child.id) is None
        assert [turn.seq for turn in store.history(child.conversation_id)] == [1]
        assert store.get_approval(asked.id) == asked


class TestKeptAnswer:
    """Before the launch an answer is kept; from the launch on it is used up."""

    @pytest.mark.parametrize("foreground", [True, False])
    def test_an_attempt_that_vanished_before_its_launch_leaves_the_answer(
        self, store: Store, clock: ManualClock, foreground: bool
    ) -> None:
        session = begin(store)
        enqueue(store, session, "apply it", foreground=foreground)
        first = claim(store, session)
        store.launch(first.lease, Launch(first.decision))
        store.finish_turn(first.lease, deferred())
        (asked,) = store.approvals()
        approval = store.answer_approval(asked.id, an_answer(asked))
        claim(store, session)
        clock.advance(3600)
        (orphan,) = store.orphans()
        assert store.recover(orphan).status is TurnStatus.QUEUED
        again = claim(store, session)
        assert (again.approval, again.cause, again.turn.tries) == (approval, AttemptCause.APPROVAL, 1)

    def test_an_attempt_that_vanished_after_its_launch_has_used_it_up(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        answered(store, session)
        claimed = claim(store, session)
        store.launch(claimed.lease, Launch(claimed.decision))
        clock.advance(3600)
        (orphan,) = store.orphans()
        assert store.recover(orphan).status is TurnStatus.QUEUED
        again = claim(store, session)
        assert (again.approval, again.cause) == (None, AttemptCause.RECOVERY)

    @pytest.mark.parametrize("foreground", [True, False])
    def test_a_turn_that_is_put_back_keeps_it(self, store: Store, foreground: bool) -> None:
        session = begin(store)
        enqueue(store, session, "apply it", foreground=foreground)
        first = claim(store, session)
        store.launch(first.lease, Launch(first.decision))
        store.finish_turn(first.lease, deferred())
        (asked,) = store.approvals()
        store.answer_approval(asked.id, an_answer(asked))
        assert store.put_back(claim(store, session).lease).status is TurnStatus.QUEUED
        assert claim(store, session).approval is not None

    def test_a_turn_that_is_put_back_after_its_launch_has_used_it_up(self, store: Store) -> None:
        session = begin(store)
        answered(store, session)
        claimed = claim(store, session)
        store.launch(claimed.lease, Launch(claimed.decision))
        store.put_back(claimed.lease)
        again = claim(store, session)
        assert (again.approval, again.cause) == (None, AttemptCause.RECOVERY)

    def test_a_retry_before_the_launch_keeps_it(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        answered(store, session)
        claimed = claim(store, session)
        store.finish_turn(claimed.lease, failed(FailureClass.TRANSIENT, retry_at=clock()))
        assert claim(store, session).approval is not None

    def test_a_retry_after_the_launch_does_not(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        answered(store, session)
        claimed = claim(store, session)
        store.launch(claimed.lease, Launch(claimed.decision))
        store.finish_turn(claimed.lease, failed(FailureClass.TRANSIENT, retry_at=clock()))
        assert claim(store, session).approval is None

    def test_what_can_still_be_answered_is_not_idle(self, store: Store, clock: ManualClock) -> None:
        spared, late = begin(store), begin(store)
        store.request_approval(spared.id, an_approval(expires_at=after(clock(), 7200)))
        store.request_approval(late.id, an_approval(expires_at=after(clock(), 3600)))
        waiting = begin(store)
        defer(store, waiting)
        clock.advance(3600)
        assert store.clean_up(Old(clock()), dry_run=True).abandoned == (late.id,)
        assert store.clean_up(Old(clock())).abandoned == (late.id,)
        assert store.get_session(spared.id).finalized_at is None
        assert store.get_session(waiting.id).finalized_at is None

"""Owns the contract of leaving phase ``approval``: nobody goes on past a question that still waits for its answer."""

from __future__ import annotations

import pytest

from holdfast.clock import after
from holdfast.domain.approvals import ApprovalStatus
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import SessionUpdate
from holdfast.errors import Conflict
from holdfast.store.contract import Store
from holdfast.testing.approval_contract import ask
from holdfast.testing.builders import an_answer, an_approval, done
from holdfast.testing.clock import ManualClock
from holdfast.testing.steps import begin, claim, defer, enqueue, refused


class LeaveApprovalContract:
    """While something is asked, only an end of the session takes it out of phase ``approval``."""

    def test_a_question_without_an_answer_keeps_the_session_there(self, store: Store) -> None:
        session = begin(store)
        asked = ask(store, session.id)
        with refused(store, Conflict) as caught:
            store.update_session(session.id, SessionUpdate(phase=Phase.EXECUTING, metadata={"a": 1}))
        assert caught.value.details == {"session_id": session.id, "approval_id": asked.id}
        assert f"holdfast deny {asked.id}" in caught.value.message
        assert (
            "holdfast approve" not in caught.value.message
        )  # an agent reads it, and is not to answer itself

    @pytest.mark.parametrize("approved", [True, False])
    def test_an_answered_one_lets_it_go(self, store: Store, approved: bool) -> None:
        session = begin(store)
        asked = ask(store, session.id)
        answered = store.answer_approval(asked.id, an_answer(asked, approved))
        assert _moved(store, session.id, Phase.EXECUTING) is Phase.EXECUTING
        assert store.get_approval(asked.id) == answered

    def test_all_of_them_must_be_answered(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        first = ask(store, session.id)
        clock.advance(1)
        second = ask(store, session.id)
        store.answer_approval(second.id, an_answer(second))
        with refused(store, Conflict) as caught:
            store.update_session(session.id, SessionUpdate(phase=Phase.EXECUTING))
        assert caught.value.details["approval_id"] == first.id

    def test_one_that_expired_is_void_when_the_session_leaves(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        asked = ask(store, session.id, expires_at=after(clock(), 60))
        clock.advance(60)
        assert _moved(store, session.id, Phase.PLANNING) is Phase.PLANNING
        left = store.get_approval(asked.id)
        assert (left.status, left.void_reason) == (ApprovalStatus.VOIDED, "expired")
        assert store.approvals() == ()
        assert store.approval_window(session.id) is None

    def test_what_a_turn_waits_for_keeps_it_there_even_when_expired(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        asked = defer(store, session, approval=an_approval(expires_at=after(clock(), 60)))
        with refused(store, Conflict) as caught:
            store.update_session(session.id, SessionUpdate(phase=Phase.EXECUTING))
        assert caught.value.details["approval_id"] == asked.id
        clock.advance(60)
        with refused(store, Conflict) as caught:
            store.update_session(session.id, SessionUpdate(phase=Phase.EXECUTING))
        assert f"holdfast cancel {session.id} --turn 1" in caught.value.message
        store.cancel_turn(session.id, 1)
        assert _moved(store, session.id, Phase.EXECUTING) is Phase.EXECUTING

    def test_what_is_no_other_phase_changes_as_ever(self, store: Store) -> None:
        session = begin(store)
        ask(store, session.id)
        store.update_session(session.id, SessionUpdate(metadata={"a": 1}, error="broken"))
        assert _moved(store, session.id, Phase.APPROVAL) is Phase.APPROVAL
        assert _moved(store, session.id, Phase.ABANDONED) is Phase.ABANDONED

    def test_a_turn_that_ends_does_not_take_it_out(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "plan it, and ask")
        claimed = claim(store, session)
        ask(store, session.id)
        store.finish_turn(claimed.lease, done(phase=Phase.EXECUTING))
        assert store.get_session(session.id).phase is Phase.APPROVAL


def _moved(store: Store, session_id: str, phase: Phase) -> Phase:
    return store.update_session(session_id, SessionUpdate(phase=phase)).phase

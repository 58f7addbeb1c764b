import pytest

from holdfast.clock import after
from holdfast.domain.delegations import DelegationReason
from holdfast.domain.phases import Phase
from holdfast.store.contract import Store
from holdfast.testing.builders import a_delegation, a_question, an_approval
from holdfast.testing.clock import ManualClock
from holdfast.testing.delegation_contract import (
    DelegateContract,
    DelegationEndContract,
    QuestionContract,
    completed,
    resumable,
)
from tests.contract.conftest import Damage

pytestmark = pytest.mark.usefixtures("watched")


class TestDelegate(DelegateContract):
    @pytest.mark.parametrize("field", ["phase", "metadata"])
    def test_a_row_that_cannot_be_understood_is_passed_over(
        self, store: Store, damage: Damage, field: str
    ) -> None:
        session = resumable(store)
        damage(session.id, **{field: "[]"})
        asked = store.ask_delegation(a_question(session_id=session.id))
        assert (asked.reason, asked.session) == (DelegationReason.NOT_RESUMABLE, None)
        assert not store.delegate(a_delegation()).resumed
        assert store.free_sessions() == ()

    def test_what_is_told_already_is_recorded_as_it_was_told(self, store: Store) -> None:
        session = resumable(store, Phase.EXECUTING)
        here, elsewhere = a_delegation(told=session.id), a_delegation(told=session.id)
        removed = a_delegation(told="agent-removed")
        for new in (here, elsewhere, removed):
            assert store.delegate(new).session == store.delegate(new).session
        held = {held.id: held.outcome for held in store.delegations(session.id)}
        assert held == {here.id: None, elsewhere.id: "lost"}
        assert store.get_session("agent-removed").agent == removed.agent

    def test_free_sessions_are_those_that_a_delegation_would_take(
        self, store: Store, clock: ManualClock
    ) -> None:
        older = resumable(store, metadata={"plan": "a"})
        clock.advance(1)
        newer = resumable(store)
        resumable(store, Phase.EXECUTING)
        free = store.free_sessions()
        assert [found.session.id for found in free] == [newer.id, older.id]
        assert (free[1].agent, free[1].session.metadata) == (older.agent, {"plan": "a"})
        store.delegate(a_delegation())
        assert [found.session.id for found in store.free_sessions()] == [older.id]


class TestDelegationEnd(DelegationEndContract):
    @pytest.mark.parametrize(("passed", "outcome"), [(59, "paused"), (60, "completed")])
    def test_in_any_phase_it_waits_on_while_something_can_be_answered(
        self, store: Store, clock: ManualClock, damage: Damage, passed: int, outcome: str
    ) -> None:
        new = a_delegation()
        store.delegate(new)
        store.request_approval(new.new_session_id, an_approval(expires_at=after(clock(), 60)))
        damage(new.new_session_id, phase="executing")
        clock.advance(passed)
        ended = store.end_delegation(completed(new))
        assert ended is not None
        assert (ended.outcome, ended.finalized_now) == (outcome, outcome == "completed")


class TestQuestion(QuestionContract):
    pass

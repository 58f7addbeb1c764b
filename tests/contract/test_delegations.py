"""Owns the contract of delegations: a session goes on in one subagent at a time, and ends once."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.clock import after
from holdfast.domain.delegations import (
    Delegated,
    DelegationEnd,
    DelegationOutcome,
    DelegationReason,
    NewDelegation,
)
from holdfast.domain.phases import FINAL_PHASES, Phase
from holdfast.domain.sessions import Session, SessionKind, SessionUpdate
from holdfast.errors import AmbiguousId
from holdfast.store.contract import Store
from tests.builders import (
    a_delegation,
    a_question,
    a_session,
    a_session_id,
    an_answer,
    an_approval,
)
from tests.clock import ManualClock
from tests.contract.conftest import Damage
from tests.contract.test_threads import THREADS, at_once
from tests.steps import enqueue

pytestmark = pytest.mark.usefixtures("watched")

PROJECT = "/srv/infra"


def resumable(store: Store, phase: Phase = Phase.INVESTIGATING, **changes: Any) -> Session:
    session = store.create_session(a_session(project=PROJECT, **changes))
    return store.update_session(session.id, SessionUpdate(phase=phase))


def session_of(delegated: Delegated) -> str:
    assert delegated.session is not None
    return delegated.session.id


def completed(new: NewDelegation, **changes: Any) -> DelegationEnd:
    return DelegationEnd(id=new.id, outcome=DelegationOutcome.COMPLETED, **changes)


def stopped(new: NewDelegation, provider_agent_id: str) -> DelegationEnd:
    """By somebody who knows neither the delegation nor its session."""
    return DelegationEnd(
        agent=new.agent,
        provider_session_id=new.provider_session_id,
        provider_agent_id=provider_agent_id,
        outcome=DelegationOutcome.COMPLETED,
    )


class TestDelegate:
    """Finding a session for a subagent, or making one."""

    def test_a_first_delegation_makes_a_session_like_any_other(self, store: Store) -> None:
        new = a_delegation(purpose="plan the change", project=PROJECT)
        delegated = store.delegate(new)
        assert (delegated.id, delegated.reason, delegated.resumed) == (new.id, DelegationReason.NONE, False)
        made = store.get_session(session_of(delegated))
        assert made.id == new.new_session_id
        twin = store.create_session(
            a_session(agent=new.agent, purpose="plan the change", provider="claude", project=PROJECT)
        )
        for field in ("agent", "kind", "purpose", "phase", "resume_ready", "metadata", "created_at", "usage"):
            assert getattr(made, field) == getattr(twin, field)

    @pytest.mark.parametrize("phase", [Phase.APPROVAL, Phase.INVESTIGATING, Phase.PLANNING])
    def test_a_session_that_may_go_on_is_resumed_with_what_it_knows(
        self, store: Store, clock: ManualClock, phase: Phase
    ) -> None:
        session = resumable(store, phase, metadata={"findings": ["OOMKilled"]})
        clock.advance(60)
        delegated = store.delegate(a_delegation(project=PROJECT))
        assert delegated.reason is DelegationReason.RESUMABLE
        assert delegated.session is not None
        assert (delegated.session.id, delegated.session.phase) == (session.id, phase)
        assert delegated.session.metadata == {"findings": ["OOMKilled"]}
        assert list(delegated.session.history) == [("initializing", phase, session.updated_at)]
        assert store.get_session(session.id).updated_at == clock()

    def test_the_newest_one_goes_on(self, store: Store, clock: ManualClock) -> None:
        resumable(store)
        clock.advance(1)
        newest = resumable(store)
        assert session_of(store.delegate(a_delegation(project=PROJECT))) == newest.id

    @pytest.mark.parametrize(
        "other",
        [
            {"agent": "another"},
            {"project": "/srv/another"},
            {"project": None},
            {"kind": SessionKind.CONVERSATION},
        ],
        ids=str,
    )
    def test_what_belongs_to_others_stays_theirs(self, store: Store, other: dict[str, Any]) -> None:
        session = store.create_session(a_session(**{"project": PROJECT, **other}))
        store.update_session(session.id, SessionUpdate(phase=Phase.PLANNING))
        assert not store.delegate(a_delegation(project=PROJECT)).resumed

    def test_a_fork_belongs_to_the_project_of_its_parent(self, store: Store) -> None:
        parent = resumable(store)
        store.finalize_session(parent.id, Phase.FAILED, None)
        child = store.fork(parent.id, a_session_id())
        store.update_session(child.id, SessionUpdate(phase=Phase.PLANNING))
        assert session_of(store.delegate(a_delegation(project=PROJECT))) == child.id

    def test_however_many_may_not_go_on_the_one_that_may_is_found(self, store: Store) -> None:
        session = resumable(store)
        for _ in range(60):
            resumable(store, Phase.EXECUTING)
        assert session_of(store.delegate(a_delegation(project=PROJECT))) == session.id

    def test_what_may_not_go_on_is_left_alone(self, store: Store, clock: ManualClock) -> None:
        resumable(store, Phase.EXECUTING)
        closed = resumable(store)
        store.finalize_session(closed.id, Phase.COMPLETED, None)
        failing = resumable(store)
        for _ in range(3):
            store.update_session(failing.id, SessionUpdate(error="it broke"))
        idle = resumable(store)
        clock.advance(1800)
        assert session_of(store.delegate(a_delegation(project=PROJECT))) not in (
            failing.id,
            idle.id,
            closed.id,
        )

    def test_an_open_approval_keeps_it_from_growing_old_and_its_answer_is_told(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = resumable(store, Phase.PLANNING)
        asked = store.request_approval(session.id, an_approval(what="apply the plan"))
        clock.advance(24 * 3600)
        store.answer_approval(asked.id, an_answer(asked, note="but not prod"))
        delegated = store.delegate(a_delegation(project=PROJECT))
        assert session_of(delegated) == session.id
        assert delegated.session is not None
        told = delegated.session.approval
        assert told is not None
        assert (told.id, told.what, told.status) == (asked.id, "apply the plan", "approved")
        assert told.note == "but not prod"

    def test_an_approval_that_nobody_answered_in_time_blocks_it(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = resumable(store, Phase.PLANNING)
        store.request_approval(session.id, an_approval(expires_at=after(clock(), 60)))
        clock.advance(60)
        assert not store.delegate(a_delegation(project=PROJECT)).resumed

    def test_the_same_delegation_again_gets_the_same_session(self, store: Store) -> None:
        resumable(store)
        for new in (a_delegation(project=PROJECT), a_delegation(project=PROJECT)):
            first = store.delegate(new)
            again = store.delegate(new)
            assert (again.reason, again.session) == (first.reason, first.session)
        assert store.delegation_counts().delegations == 2

    def test_a_session_is_free_again_when_its_delegation_is_lost(self, store: Store) -> None:
        session = resumable(store)
        first, second, third = (a_delegation(project=PROJECT) for _ in range(3))
        assert session_of(store.delegate(first)) == session.id
        assert session_of(store.delegate(second)) != session.id
        lost = store.end_delegation(DelegationEnd(id=first.id, outcome=DelegationOutcome.LOST))
        assert lost is not None
        assert (lost.ended_now, lost.finalized_now) == (True, False)
        assert session_of(store.delegate(third)) == session.id

    @pytest.mark.parametrize("free", range(3))
    def test_of_several_at_once_no_two_get_the_same_session(self, store: Store, free: int) -> None:
        for _ in range(free):
            resumable(store)
        new = [a_delegation(project=PROJECT) for _ in range(THREADS)]
        got = [
            answer for answer in at_once(lambda n: store.delegate(new[n])) if isinstance(answer, Delegated)
        ]
        assert len({session_of(delegated) for delegated in got}) == THREADS
        assert sum(delegated.resumed for delegated in got) == free

    def test_the_same_delegation_at_once_is_made_once(self, store: Store) -> None:
        new = a_delegation(project=PROJECT)
        got = at_once(lambda _: store.delegate(new))
        assert {session_of(delegated) for delegated in got if isinstance(delegated, Delegated)} == {
            new.new_session_id
        }
        assert store.delegation_counts().delegations == 1

    def test_removing_a_session_takes_its_delegations_along(self, store: Store) -> None:
        new = a_delegation(project=PROJECT)
        store.delegate(new)
        store.end_delegation(completed(new))
        store.remove_session(new.new_session_id)
        assert store.delegations(new.new_session_id) == ()
        assert store.end_delegation(completed(new)) is None

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

    def test_a_list_of_free_sessions_with_much_metadata_ends_early(
        self, store: Store, clock: ManualClock
    ) -> None:
        begun = []
        for _ in range(24):
            begun.append(resumable(store, metadata={"plan": "x" * 250_000}).id)
            clock.advance(1)

        found = [free.session.id for free in store.free_sessions()]

        assert 10 < len(found) < 20
        assert found == begun[::-1][: len(found)]


class TestDelegationEnd:
    """What becomes of a session when its subagent stops."""

    def test_it_is_closed_with_its_outcome_and_summary(self, store: Store, clock: ManualClock) -> None:
        new = a_delegation(project=PROJECT)
        store.delegate(new)
        clock.advance(5)
        end = completed(new, summary="Applied.", transcript_path="/t.jsonl", provider_agent_id="ad48")
        ended = store.end_delegation(end)
        assert ended is not None
        assert (ended.session_id, ended.outcome) == (new.new_session_id, DelegationOutcome.COMPLETED)
        assert (ended.ended_now, ended.finalized_now) == (True, True)
        session = store.get_session(new.new_session_id)
        assert (session.phase, session.summary, session.finalized_at) == (
            Phase.COMPLETED,
            "Applied.",
            clock(),
        )
        (delegation,) = store.delegations(session.id)
        assert (delegation.ended_at, delegation.outcome) == (clock(), "completed")
        assert (delegation.transcript_path, delegation.provider_agent_id) == ("/t.jsonl", "ad48")

    def test_secrets_do_not_get_into_its_summary(self, store: Store) -> None:
        new = a_delegation(project=PROJECT, purpose="use ghp_" + 36 * "a1"[:1] + "1234")
        store.delegate(new)
        store.end_delegation(completed(new, summary="password=hunter2-hunter2"))
        session = store.get_session(new.new_session_id)
        assert "hunter2" not in str(session.summary)
        assert "ghp_" not in session.purpose

    def test_in_phase_approval_it_waits_on(self, store: Store) -> None:
        session = resumable(store, Phase.APPROVAL)
        new = a_delegation(project=PROJECT)
        store.delegate(new)
        ended = store.end_delegation(completed(new))
        assert ended is not None
        assert (ended.outcome, ended.finalized_now) == (DelegationOutcome.PAUSED, False)
        assert store.get_session(session.id).finalized_at is None
        assert store.delegate(a_delegation(project=PROJECT)).resumed

    def test_it_ends_once(self, store: Store, clock: ManualClock) -> None:
        new = a_delegation(project=PROJECT)
        store.delegate(new)
        store.end_delegation(completed(new, summary="first"))
        before = store.get_session(new.new_session_id)
        clock.advance(5)
        failed = DelegationEnd(id=new.id, outcome=DelegationOutcome.FAILED, summary="second")
        again = store.end_delegation(failed)
        assert again is not None
        assert (again.outcome, again.ended_now, again.finalized_now) == ("completed", False, False)
        assert store.get_session(before.id) == before

    @pytest.mark.parametrize("outcome", sorted(FINAL_PHASES))
    def test_a_second_stop_tells_what_has_become_of_the_session(self, store: Store, outcome: Phase) -> None:
        session = resumable(store, Phase.APPROVAL)
        new = a_delegation(project=PROJECT)
        store.delegate(new)
        store.end_delegation(completed(new))
        again = store.end_delegation(completed(new))
        assert again is not None
        assert again.outcome is DelegationOutcome.PAUSED
        store.finalize_session(session.id, outcome, None)
        failed = DelegationEnd(session_id=session.id, outcome=DelegationOutcome.FAILED)
        for end in (completed(new), failed):
            closed = store.end_delegation(end)
            assert closed is not None
            assert (closed.outcome.value, closed.finalized_now) == (outcome.value, False)

    def test_a_session_that_was_closed_meanwhile_stays_as_it_is(self, store: Store) -> None:
        new = a_delegation(project=PROJECT)
        store.delegate(new)
        closed = store.finalize_session(new.new_session_id, Phase.ABANDONED, "by hand")
        ended = store.end_delegation(completed(new))
        assert ended is not None
        assert (ended.outcome, ended.finalized_now) == (DelegationOutcome.ABANDONED, False)
        assert store.get_session(closed.id) == closed
        assert store.open_delegations(new.agent, PROJECT) == ()

    def test_a_session_that_was_never_delegated_is_found_by_its_id(self, store: Store) -> None:
        session = resumable(store, Phase.EXECUTING)
        failed = DelegationEnd(session_id=session.id, outcome=DelegationOutcome.FAILED)
        ended = store.end_delegation(failed)
        assert ended is not None
        assert (ended.id, ended.finalized_now) == (None, True)
        assert store.get_session(session.id).phase is Phase.FAILED
        again = store.end_delegation(failed)
        assert again is not None
        assert not again.finalized_now

    def test_the_only_one_of_its_agent_that_a_provider_session_delegated_is_found(self, store: Store) -> None:
        mine = a_delegation(provider_session_id="mine", project=PROJECT)
        others = [
            a_delegation(provider_session_id="mine", agent="gitops-operator", project=PROJECT),
            a_delegation(provider_session_id="other", project=PROJECT),
        ]
        for new in (mine, *others):
            store.delegate(new)
        ended = store.end_delegation(stopped(mine, "ad48"))
        assert ended is not None
        assert (ended.id, ended.finalized_now) == (mine.id, True)
        assert [store.get_session(new.new_session_id).finalized_at for new in others] == [None, None]

    def test_of_several_that_fit_none_ends(self, store: Store) -> None:
        both = [a_delegation(provider_session_id="mine", project=PROJECT) for _ in range(2)]
        for new in both:
            store.delegate(new)
        with pytest.raises(AmbiguousId) as caught:
            store.end_delegation(stopped(both[0], "ad48"))
        assert set(caught.value.candidates) == {new.id for new in both}
        assert len(store.open_delegations(both[0].agent, PROJECT)) == 2

    def test_a_subagent_that_stops_again_does_not_end_another(self, store: Store) -> None:
        first, second = (a_delegation(provider_session_id="mine", project=PROJECT) for _ in range(2))
        store.delegate(first)
        store.end_delegation(stopped(first, "ad48"))
        store.delegate(second)
        again = store.end_delegation(stopped(first, "ad48"))
        assert again is not None
        assert (again.id, again.ended_now, again.finalized_now) == (first.id, False, False)
        assert store.get_session(second.new_session_id).finalized_at is None

    def test_turns_that_waited_are_cancelled_with_it(self, store: Store) -> None:
        new = a_delegation(project=PROJECT)
        store.delegate(new)
        turn = enqueue(store, store.get_session(new.new_session_id), "go on")
        store.end_delegation(completed(new))
        assert store.get_turn(turn.conversation_id, turn.seq).ended_at is not None

    @pytest.mark.parametrize("unknown", [{"id": "toolu_none"}, {"session_id": "agent-none"}, {}], ids=str)
    def test_what_is_unknown_changes_nothing(self, store: Store, unknown: dict[str, str]) -> None:
        end = DelegationEnd(outcome=DelegationOutcome.COMPLETED, **unknown)
        assert store.end_delegation(end) is None

    def test_the_open_ones_of_all_agents_and_projects_are_told(self, store: Store) -> None:
        here = a_delegation(project=PROJECT)
        elsewhere = a_delegation(agent="another", project="/elsewhere")
        ended = a_delegation(project=PROJECT)
        for new in (here, elsewhere, ended):
            store.delegate(new)
        store.end_delegation(DelegationEnd(id=ended.id, outcome=DelegationOutcome.COMPLETED))
        assert {held.id for held in store.open_delegations()} == {here.id, elsewhere.id}

    def test_an_orchestrator_that_is_gone_loses_all_its_own(self, store: Store) -> None:
        gone = [a_delegation(provider_session_id="gone", project=PROJECT) for _ in range(2)]
        other = a_delegation(provider_session_id="other", project=PROJECT)
        for new in (*gone, other):
            store.delegate(new)
        assert store.lose_delegations("gone") == 2
        assert [held.id for held in store.open_delegations(other.agent, PROJECT)] == [other.id]
        assert store.get_session(gone[0].new_session_id).finalized_at is None

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


class TestQuestion:
    """Asking what would go on, without taking it."""

    def test_one_session_is_judged(self, store: Store) -> None:
        session = resumable(store, Phase.APPROVAL, metadata={"plan_file": "plan.json"})
        answer = store.ask_delegation(a_question(session_id=session.id))
        assert (answer.reason, session_of(answer)) == (DelegationReason.RESUMABLE, session.id)
        store.update_session(session.id, SessionUpdate(phase=Phase.EXECUTING))
        answer = store.ask_delegation(a_question(session_id=session.id))
        assert (answer.reason, session_of(answer)) == (DelegationReason.NOT_RESUMABLE, session.id)

    def test_a_session_that_is_not_there_is_none(self, store: Store) -> None:
        answer = store.ask_delegation(a_question(session_id="agent-none"))
        assert (answer.reason, answer.session) == (DelegationReason.NONE, None)

    def test_without_an_id_the_newest_of_the_task_is_found(self, store: Store, clock: ManualClock) -> None:
        first = resumable(store, metadata={"task_id": "T001"})
        clock.advance(1)
        other = resumable(store, metadata={"task_id": "T002"})
        clock.advance(1)
        anyone = resumable(store, Phase.EXECUTING)
        ask = [a_question(task_id="T001"), a_question(task_id=None), a_question(task_id="T003")]
        answers = [store.ask_delegation(question).session for question in ask]
        assert [found.id if found else None for found in answers] == [first.id, other.id, None]
        store.update_session(anyone.id, SessionUpdate(phase=Phase.PLANNING))
        assert session_of(store.ask_delegation(a_question(task_id="T003"))) == anyone.id

    def test_nothing_is_taken_but_it_is_on_record(self, store: Store) -> None:
        session = resumable(store)
        question = a_question()
        for _ in range(2):
            store.ask_delegation(question)
        store.ask_delegation(a_question(agent="nobody"))
        assert store.open_delegations(session.agent, PROJECT) == ()
        (asked,) = store.delegations(session.id)
        assert (asked.outcome, asked.resumed, asked.ended_at) == ("asked", True, asked.at)
        counts = store.delegation_counts()
        assert (counts.delegations, counts.resumed) == (2, 1)
        assert store.get_session(session.id) == session

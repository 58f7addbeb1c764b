"""Owns the clauses on a session's status: what is true of it now, and the lists that go by it."""

from __future__ import annotations

import pytest

from holdfast.clock import after
from holdfast.domain.delegations import DelegationEnd, DelegationOutcome
from holdfast.domain.failures import FailureClass
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import (
    Old,
    Program,
    Session,
    SessionFilter,
    SessionKind,
    SessionStatus,
    SessionUpdate,
)
from holdfast.domain.turns import Launch
from holdfast.errors import Busy, NotFound
from holdfast.store.contract import Store
from tests.builders import (
    a_claim,
    a_delegation,
    a_session_id,
    a_turn,
    an_answer,
    an_approval,
    failed,
)
from tests.clock import ManualClock
from tests.contract.test_listing import listed
from tests.steps import begin, claim, defer, enqueue, run


def status(store: Store, session: Session) -> SessionStatus:
    """As one session and as one of a list; they never differ."""
    told = store.session_state(session.id)
    page = store.list_sessions(SessionFilter(), 1000)
    assert page.states[session.id] == told
    for one in SessionStatus:
        assert (session.id in listed(store, SessionFilter(status=one))) is (one is told.status)
    return told.status


def talk(store: Store) -> Session:
    return begin(store, kind=SessionKind.CONVERSATION)


class TestStatus:
    """``session_state``, and ``list_sessions`` by it."""

    def test_a_session_that_nobody_works_on_is_idle(self, store: Store) -> None:
        for session in (talk(store), begin(store)):
            assert status(store, session) is SessionStatus.IDLE
        run(store, session)
        assert status(store, session) is SessionStatus.IDLE

    def test_it_is_queued_while_its_turn_waits_and_running_while_somebody_holds_it(
        self, store: Store
    ) -> None:
        session = talk(store)
        enqueue(store, session, "go")
        assert status(store, session) is SessionStatus.QUEUED
        held = claim(store, session)
        assert status(store, session) is SessionStatus.RUNNING
        store.launch(held.lease, Launch(held.decision))
        assert status(store, session) is SessionStatus.RUNNING

    def test_a_turn_that_waits_for_its_retry_is_queued(self, store: Store, clock: ManualClock) -> None:
        session = talk(store)
        enqueue(store, session, "go", max_attempts=2)
        held = claim(store, session)
        later = after(clock(), 60)
        store.finish_turn(held.lease, failed(FailureClass.TRANSIENT, retry_at=later))
        assert status(store, session) is SessionStatus.QUEUED

    def test_what_its_worker_left_is_not_running(self, store: Store, clock: ManualClock) -> None:
        waits, asked = talk(store), talk(store)
        enqueue(store, waits, "go")
        claim(store, waits)
        store.start_turn(asked.id, a_turn(foreground=True), a_claim())
        assert {status(store, waits), status(store, asked)} == {SessionStatus.RUNNING}

        clock.advance(61)

        assert status(store, waits) is SessionStatus.QUEUED  # it runs again
        assert status(store, asked) is SessionStatus.INTERRUPTED  # a person has to say so

    def test_it_is_running_while_a_person_uses_the_agents_own_program(
        self, store: Store, clock: ManualClock
    ) -> None:
        session, began_at = talk(store), clock()
        store.attend(session.id, "us", 60)
        clock.advance(30)
        store.attend(session.id, "us", 60)
        clock.advance(59)
        assert status(store, session) is SessionStatus.RUNNING
        assert store.session_state(session.id).program == Program("us", began_at)
        clock.advance(1)
        assert status(store, session) is SessionStatus.IDLE
        assert store.session_state(session.id).program is None

    def test_a_program_is_ended_by_its_own_process_alone(self, store: Store) -> None:
        session = talk(store)
        store.attend(session.id, "us", 60)
        store.attend(session.id, "others", 0)
        assert status(store, session) is SessionStatus.RUNNING
        store.attend(session.id, "us", 0)
        assert status(store, session) is SessionStatus.IDLE

    def test_a_session_in_a_program_is_neither_removed_nor_abandoned(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        clock.advance(3600)
        store.attend(session.id, "us", 60)
        clock.advance(30)
        store.attend(session.id, "us", 60)
        with pytest.raises(Busy):
            store.remove_session(session.id)
        assert store.clean_up(Old(clock())).count == 0
        store.attend(session.id, "us", 0)
        clock.advance(1)
        assert store.clean_up(Old(clock())).abandoned == (session.id,)
        store.remove_session(session.id)

    def test_using_a_program_is_activity_and_saying_so_again_is_none(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = talk(store)
        clock.advance(10)
        store.attend(session.id, "us", 60)
        active = store.get_session(session.id).updated_at
        assert active == clock()
        clock.advance(10)
        store.attend(session.id, "us", 60)
        assert store.get_session(session.id).updated_at == active

    def test_it_failed_if_its_newest_turn_did(self, store: Store) -> None:
        session = talk(store)
        run(store, session)
        enqueue(store, session, "break")
        store.finish_turn(claim(store, session).lease, failed())
        assert status(store, session) is SessionStatus.FAILED
        run(store, session)
        assert status(store, session) is SessionStatus.IDLE

    def test_a_turn_that_was_cancelled_or_taken_out_of_the_history_is_no_failure(self, store: Store) -> None:
        session = talk(store)
        turn = enqueue(store, session, "go")
        store.cancel_turn(session.id, turn.seq)
        assert status(store, session) is SessionStatus.IDLE
        enqueue(store, session, "break")
        store.finish_turn(claim(store, session).lease, failed())
        store.truncate(session.id, turn.seq)
        assert status(store, session) is SessionStatus.IDLE

    def test_another_agents_failure_in_the_conversation_is_not_its_own(self, store: Store) -> None:
        ours = talk(store)
        theirs = begin(store, agent="gitops-operator", conversation_id=ours.conversation_id)
        run(store, ours)
        enqueue(store, theirs, "break")
        store.finish_turn(claim(store, theirs).lease, failed())
        assert (status(store, ours), status(store, theirs)) == (SessionStatus.IDLE, SessionStatus.FAILED)

    def test_it_waits_for_a_person_until_there_is_an_answer(self, store: Store) -> None:
        session = talk(store)
        approval = defer(store, session)
        assert status(store, session) is SessionStatus.WAITING
        store.answer_approval(approval.id, an_answer(approval))
        assert status(store, session) is SessionStatus.QUEUED

    def test_phase_approval_waits_with_or_without_a_question(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        store.update_session(session.id, SessionUpdate(phase=Phase.APPROVAL))
        assert status(store, session) is SessionStatus.WAITING
        clock.advance(1)
        asked = store.request_approval(session.id, an_approval(call_id=None))
        assert status(store, session) is SessionStatus.WAITING
        store.answer_approval(asked.id, an_answer(asked))
        assert status(store, session) is SessionStatus.IDLE
        clock.advance(1)
        second = store.request_approval(session.id, an_approval(call_id=None))
        assert status(store, session) is SessionStatus.WAITING
        store.answer_approval(second.id, an_answer(second))
        assert status(store, session) is SessionStatus.IDLE
        clock.advance(1)
        for phase in (Phase.EXECUTING, Phase.APPROVAL):
            store.update_session(session.id, SessionUpdate(phase=phase))
        assert status(store, session) is SessionStatus.WAITING

    def test_it_runs_while_a_subagent_works_in_it(self, store: Store) -> None:
        new = a_delegation()
        store.delegate(new)
        session = store.get_session(new.new_session_id)
        assert status(store, session) is SessionStatus.RUNNING
        store.end_delegation(DelegationEnd(id=new.id, outcome=DelegationOutcome.LOST))
        assert status(store, session) is SessionStatus.IDLE

    @pytest.mark.parametrize(
        ("outcome", "expected"),
        [
            (Phase.COMPLETED, SessionStatus.DONE),
            (Phase.ABANDONED, SessionStatus.DONE),
            (Phase.FAILED, SessionStatus.FAILED),
        ],
    )
    def test_a_closed_session_is_done_or_has_failed(
        self, store: Store, outcome: Phase, expected: SessionStatus
    ) -> None:
        session = talk(store)
        run(store, session)
        store.finalize_session(session.id, outcome, None)
        assert status(store, session) is expected

    def test_its_state_names_the_session_that_its_provider_would_pick_up(self, store: Store) -> None:
        session = talk(store)
        assert store.session_state(session.id).provider_session_id is None
        run(store, session, provider_session_id="native-1")
        assert store.session_state(session.id).provider_session_id == "native-1"
        fork = store.fork(session.id, a_session_id())
        assert store.session_state(fork.id).provider_session_id is None

    def test_an_unknown_session_has_no_state(self, store: Store) -> None:
        with pytest.raises(NotFound):
            store.session_state(a_session_id())


class TestFilters:
    """``list_sessions`` by what is in a session, and by whether it may continue."""

    def test_resumable_are_those_that_may_continue(self, store: Store, clock: ManualClock) -> None:
        old = begin(store)
        store.update_session(old.id, SessionUpdate(phase=Phase.PLANNING))
        clock.advance(31 * 60)
        talking, planning, executing, closed, broken = (
            talk(store), begin(store), begin(store), talk(store), begin(store),
        )  # fmt: skip
        store.update_session(planning.id, SessionUpdate(phase=Phase.PLANNING))
        store.update_session(executing.id, SessionUpdate(phase=Phase.EXECUTING))
        store.finalize_session(closed.id, Phase.COMPLETED, None)
        store.update_session(broken.id, SessionUpdate(phase=Phase.PLANNING))
        for _ in range(3):
            store.update_session(broken.id, SessionUpdate(error="no"))

        assert set(listed(store, SessionFilter(resumable=True))) == {talking.id, planning.id}

    def test_an_open_approval_keeps_an_old_session_among_the_resumable(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        store.request_approval(session.id, an_approval(call_id=None))
        clock.advance(31 * 60)
        assert listed(store, SessionFilter(resumable=True)) == [session.id]

    @pytest.mark.parametrize(
        ("wanted", "fits"),
        [
            ({"task_id": "T001"}, True),
            ({"task_id": "T00"}, False),
            ({"tags": "infra"}, True),
            ({"tags": "infr"}, False),
            ({"count": "3"}, True),
            ({"dry": "true"}, True),
            ({"none": "null"}, True),
            ({"missing": "null"}, False),
            ({"task_id": "T001", "count": "4"}, False),
        ],
    )
    def test_metadata_is_found_by_key_and_value(
        self, store: Store, wanted: dict[str, str], fits: bool
    ) -> None:
        begin(store)
        known = {"task_id": "T001", "tags": ["terraform", "infra"], "count": 3, "dry": True, "none": None}
        session = begin(store, metadata=known)
        assert listed(store, SessionFilter(metadata=wanted)) == ([session.id] if fits else [])

    @pytest.mark.parametrize("limit", [1, 2, 3, 300])
    def test_pages_hold_what_fits_however_much_lies_between(
        self, store: Store, clock: ManualClock, limit: int
    ) -> None:
        wanted = []
        for number in range(12):
            session = begin(store, metadata={"kept": number % 4 == 0})
            clock.advance(1)
            if number % 4 == 0:
                wanted.append(session.id)
        assert listed(store, SessionFilter(metadata={"kept": "true"}), limit) == wanted[::-1]

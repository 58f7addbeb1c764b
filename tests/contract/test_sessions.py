"""Owns the clauses on one session's life: create, find, update, finalize, rename."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.domain.metadata import MAX_METADATA
from holdfast.domain.phases import FINAL_PHASES, Phase
from holdfast.domain.policy import ContinuePolicy
from holdfast.domain.sessions import (
    PhaseChange,
    Session,
    SessionChange,
    SessionError,
    SessionKind,
    SessionStatus,
    SessionUpdate,
)
from holdfast.domain.turns import TurnStatus
from holdfast.errors import (
    AmbiguousId,
    Conflict,
    InvalidInput,
    NotFound,
    PhaseConflict,
    SessionClosed,
)
from holdfast.processes.owners import this_user
from holdfast.store.contract import Store
from tests.builders import a_claim, a_session, a_session_id, a_turn, an_answer, an_approval, done
from tests.clock import ManualClock
from tests.steps import begin, claim, defer, enqueue, join, refused, run

OPEN_PHASES = [phase for phase in Phase if phase not in FINAL_PHASES]
UNICODE = "Grüße, 世界 \U0001f680 e\u0301 \u202eabc"
# put together here, so that no scanner takes it for a real one
SECRET = "ghp_" + "x7Kq2mZp9LwT4vBn" + "8RcY1sDf6GhJ3uEa0i" + "Q5"


class TestCreate:
    """``create_session`` and ``get_session``."""

    def test_a_new_session_is_what_was_asked_for_and_begins_now(
        self, store: Store, clock: ManualClock
    ) -> None:
        new = a_session(
            purpose="approval_workflow",
            kind=SessionKind.CONVERSATION,
            metadata={"task": "T001"},
            name="infra",
        )
        session = store.create_session(new)
        assert session == Session(
            new.id, session.conversation_id, "terraform-architect", SessionKind.CONVERSATION,
            "approval_workflow", "infra", "claude", Phase.INITIALIZING, True, {"task": "T001"}, 0, None,
            clock(), clock(), None, None, None,
        )  # fmt: skip
        assert store.get_session(new.id) == session

    def test_a_new_session_has_an_empty_conversation_of_its_own(self, store: Store) -> None:
        one, other = begin(store), begin(store)
        assert one.conversation_id != other.conversation_id
        assert store.get_conversation(one.conversation_id).next_seq == 1
        assert store.history(one.conversation_id) == ()

    def test_ids_that_look_alike_do_not_share_a_conversation(self, store: Store) -> None:
        one, other = begin(store, id="agent-look-alike"), begin(store, id="look-alike")
        assert one.conversation_id != other.conversation_id

    def test_creating_again_with_the_same_id_returns_the_same_session(
        self, store: Store, clock: ManualClock
    ) -> None:
        new = a_session(name="infra", metadata={"task": "T001"})
        first = store.create_session(new)
        clock.advance(5)
        assert store.create_session(new) == first

    def test_creating_again_finds_the_session_as_it_is_now(self, store: Store) -> None:
        new = a_session()
        store.create_session(new)
        store.update_session(new.id, SessionUpdate(phase=Phase.PLANNING))
        assert store.create_session(new).phase is Phase.PLANNING

    def test_the_id_of_another_session_is_a_conflict(self, store: Store) -> None:
        session = begin(store)
        with refused(store, Conflict):
            begin(store, id=session.id, agent="someone-else")

    def test_a_taken_name_is_a_conflict(self, store: Store) -> None:
        begin(store, name="infra")
        taken = a_session(name="infra")
        with refused(store, Conflict):
            store.create_session(taken)
        with pytest.raises(NotFound):
            store.get_session(taken.id)

    def test_several_agents_share_a_conversation(self, store: Store) -> None:
        claude = begin(store)
        codex = join(store, claude, "codex")
        assert codex.conversation_id == claude.conversation_id

    def test_a_second_open_session_of_an_agent_in_a_conversation_is_a_conflict(self, store: Store) -> None:
        session = begin(store)
        with refused(store, Conflict):
            join(store, session, session.agent)

    def test_an_agent_comes_back_to_a_conversation_after_its_session_is_closed(self, store: Store) -> None:
        session = begin(store)
        store.finalize_session(session.id, Phase.COMPLETED, None)
        assert join(store, session, session.agent).conversation_id == session.conversation_id

    def test_a_conversation_that_does_not_exist_cannot_be_joined(self, store: Store) -> None:
        with refused(store, NotFound):
            begin(store, conversation_id="conv-nowhere")

    @pytest.mark.parametrize(
        "metadata",
        [{"x": object()}, {"x": float("nan")}, {"x": "a\x00b"}, {"x": "\ud800"}, {"x": "ab " * MAX_METADATA}],
        ids=["no JSON", "NaN", "NUL", "half a character", "too large"],
    )
    def test_metadata_that_could_not_be_read_back_are_refused(
        self, store: Store, metadata: dict[str, Any]
    ) -> None:
        with refused(store, InvalidInput):
            begin(store, metadata=metadata)

    def test_text_of_any_script_comes_back_as_it_was(self, store: Store) -> None:
        new = a_session(
            agent=UNICODE, purpose=UNICODE, name=UNICODE, metadata={UNICODE: [UNICODE, None, 1.5]}
        )
        store.create_session(new)
        read = store.get_session(new.id)
        assert (read.agent, read.purpose, read.name, read.metadata) == (
            UNICODE, UNICODE, UNICODE, new.metadata,
        )  # fmt: skip
        assert store.find_session(UNICODE) == new.id

    def test_secrets_in_metadata_are_never_written(self, store: Store) -> None:
        session = begin(store, metadata={"log": f"used {SECRET}", "deep": [{"password": "correct horse"}]})
        written = str(store.get_session(session.id).metadata)
        assert SECRET not in written
        assert "correct horse" not in written
        assert session == store.get_session(session.id)


class TestFind:
    """``find_session``."""

    def test_the_end_of_an_id_is_enough(self, store: Store) -> None:
        first = begin(store, id="agent-20260108-180530-abc12345")
        second = begin(store, id="agent-20260108-180531-fff12345")
        assert store.find_session("abc12345") == first.id
        assert store.find_session("180531-fff12345") == second.id
        with pytest.raises(AmbiguousId) as caught:
            store.find_session("12345")
        assert list(caught.value.candidates) == [second.id, first.id]
        with pytest.raises(NotFound):
            store.find_session("345")  # too short to mean it

    @pytest.mark.parametrize(
        "given",
        [
            "Fix the parser of the configuration files, and test it",
            "fix the PARSER of the configuration files, and test it",
            "Fix the parser of the configuration files…",
            "Fix the par…",
        ],
    )
    def test_a_title_is_enough_whole_or_as_a_list_cuts_it(self, store: Store, given: str) -> None:
        begin(store, purpose="Fix the lexer")
        purpose = "Fix the parser of the configuration files, and test it. Then commit."
        session = begin(store, purpose=purpose)
        assert store.find_session(given) == session.id
        for too_little in ("Fix the parser of the configuration files", "Fix the parser", "…"):
            with pytest.raises(NotFound):
                store.find_session(too_little)

    def test_the_agents_own_title_takes_the_place_of_the_first_sentence(self, store: Store) -> None:
        session = begin(store, purpose="Look at the parser. It fails.")
        assert store.get_session(session.id).title == "Look at the parser"
        run(store, session, title="Parser\nof dates")
        run(store, session)  # a turn without a title keeps it
        assert store.get_session(session.id).title == "Parser of dates"
        assert store.find_session("parser of DATES") == session.id
        assert store.get_session(session.id).purpose == session.purpose
        store.attend(session.id, "us", 60, "Parser with ghp_" + "a1B2" * 9)
        assert "ghp_" not in store.get_session(session.id).title
        assert store.rename_session(session.id, "dates").title == "dates"

    def test_a_title_of_several_sessions_names_them(self, store: Store) -> None:
        ids = [begin(store, id=f"agent-{n}", purpose="Say hello\nto me").id for n in range(3)]
        with pytest.raises(AmbiguousId) as caught:
            store.find_session("say hello")
        assert list(caught.value.candidates) == ids[::-1]
        named = begin(store, name="say hello")
        assert store.find_session("say hello") == named.id

    def test_by_id_by_name_or_by_the_beginning_of_an_id(self, store: Store) -> None:
        session = begin(store, id="agent-20260108-180530-abc12345", name="infra")
        begin(store, id="agent-20260109-180530-abc12345")
        for given in (session.id, "infra", "agent-20260108"):
            assert store.find_session(given) == session.id

    def test_an_id_comes_before_a_name_and_a_name_before_a_beginning(self, store: Store) -> None:
        first = begin(store, id="agent-1")
        second = begin(store, id="agent-22", name="agent-1")
        third = begin(store, id="agent-3", name="agent-2")
        assert store.find_session("agent-1") == first.id
        assert store.find_session("agent-2") == third.id
        assert store.find_session("agent-22") == second.id

    def test_a_beginning_of_several_ids_is_ambiguous_and_some_of_them_are_named(self, store: Store) -> None:
        ids = {begin(store, id=f"agent-{number:02}").id for number in range(12)}
        with pytest.raises(AmbiguousId) as caught:
            store.find_session("agent-")
        assert caught.value.given == "agent-"
        assert set(caught.value.candidates) <= ids
        assert len(caught.value.candidates) > 1

    @pytest.mark.parametrize("given", ["agent-9", "%", "agent_1", "t-1", "gent-", "agent-1x", "AGENT-1"])
    def test_what_fits_nothing_is_not_found(self, store: Store, given: str) -> None:
        begin(store, id="agent-1")
        with pytest.raises(NotFound):
            store.find_session(given)


class TestUpdate:
    """``update_session`` and ``phase_history``."""

    @pytest.mark.parametrize("before", OPEN_PHASES)
    def test_any_phase_may_follow_any_open_one(self, store: Store, before: Phase) -> None:
        for phase in Phase:
            session = begin(store)
            store.update_session(session.id, SessionUpdate(phase=before))
            after = store.update_session(session.id, SessionUpdate(phase=phase))
            assert after == store.get_session(session.id)
            assert (after.phase, after.finalized_at is not None) == (phase, phase in FINAL_PHASES)

    @pytest.mark.parametrize("final", sorted(FINAL_PHASES))
    def test_nothing_follows_a_final_phase(self, store: Store, final: Phase) -> None:
        session = begin(store)
        store.update_session(session.id, SessionUpdate(phase=final))
        for change in (
            SessionUpdate(phase=Phase.PLANNING),
            SessionUpdate(metadata={"a": 1}),
            SessionUpdate(),
        ):
            with refused(store, SessionClosed):
                store.update_session(session.id, change)

    def test_every_change_of_phase_is_recorded_oldest_first(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        expected = []
        before = Phase.INITIALIZING
        for phase in (Phase.APPROVAL, Phase.EXECUTING, Phase.APPROVAL, Phase.COMPLETED):
            at = clock.advance(60)
            store.update_session(session.id, SessionUpdate(phase=phase))
            expected.append(PhaseChange(before.value, phase.value, at))
            before = phase
        assert store.phase_history(session.id) == tuple(expected)

    def test_staying_in_a_phase_is_no_change(self, store: Store) -> None:
        session = begin(store)
        store.update_session(session.id, SessionUpdate(phase=Phase.INITIALIZING, metadata={"a": 1}))
        assert store.phase_history(session.id) == ()

    def test_the_history_of_an_unknown_session_is_empty(self, store: Store) -> None:
        assert store.phase_history(a_session_id()) == ()

    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            (SessionUpdate(phase=Phase.PLANNING), {"phase": Phase.PLANNING, "resume_ready": True}),
            (SessionUpdate(metadata={"b": 2}), {"metadata": {"a": 1, "b": 2}}),
            (SessionUpdate(), {}),
        ],
    )
    def test_only_what_is_given_changes_and_the_session_is_active_now(
        self, store: Store, clock: ManualClock, change: SessionUpdate, expected: dict[str, Any]
    ) -> None:
        session = begin(store, metadata={"a": 1}, name="infra", purpose="approval_workflow")
        now = clock.advance(60)
        after = store.update_session(session.id, change)
        assert after == replace(session, updated_at=now, **expected)
        assert store.get_session(session.id) == after

    @pytest.mark.parametrize("kind", SessionKind)
    def test_whether_it_is_ready_to_resume_follows_from_the_phase(
        self, store: Store, kind: SessionKind
    ) -> None:
        session = begin(store, kind=kind)
        for phase in OPEN_PHASES:
            store.update_session(session.id, SessionUpdate(phase=phase))
            expected = kind is not SessionKind.DELEGATED or phase in ContinuePolicy().resumable_phases
            assert store.get_session(session.id).resume_ready is expected

    def test_an_unexpected_phase_is_a_conflict_that_names_both(self, store: Store) -> None:
        session = begin(store)
        store.update_session(session.id, SessionUpdate(phase=Phase.APPROVAL))
        change = SessionUpdate(phase=Phase.EXECUTING, metadata={"a": 1}, expected_phase=Phase.PLANNING)
        with refused(store, PhaseConflict) as caught:
            store.update_session(session.id, change)
        assert caught.value.details == {
            "session_id": session.id, "expected": "planning", "actual": "approval",
        }  # fmt: skip

    def test_the_expected_phase_lets_the_change_pass(self, store: Store) -> None:
        session = begin(store)
        change = SessionUpdate(phase=Phase.APPROVAL, expected_phase=Phase.INITIALIZING)
        assert store.update_session(session.id, change).phase is Phase.APPROVAL

    def test_metadata_are_merged_key_by_key(self, store: Store) -> None:
        session = begin(store, metadata={"kept": 1, "replaced": {"old": True}})
        store.update_session(session.id, SessionUpdate(metadata={"replaced": {"new": True}, "added": None}))
        merged = {"kept": 1, "replaced": {"new": True}, "added": None}
        assert store.get_session(session.id).metadata == merged

    def test_metadata_that_grow_too_large_are_refused(self, store: Store) -> None:
        half = "ab " * (MAX_METADATA // 5)
        session = begin(store, metadata={"one": half})
        with refused(store, InvalidInput):
            store.update_session(session.id, SessionUpdate(phase=Phase.PLANNING, metadata={"two": half}))

    def test_an_error_is_counted_and_the_last_one_kept(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        store.update_session(session.id, SessionUpdate(error="first"))
        at = clock.advance(5)
        after = store.update_session(session.id, SessionUpdate(error=UNICODE))
        assert (after.error_count, after.last_error) == (2, SessionError(UNICODE, at))
        assert store.get_session(session.id) == after

    def test_a_success_begins_the_count_of_errors_again(self, store: Store) -> None:
        session = begin(store)
        store.update_session(session.id, SessionUpdate(error="broken"))
        run(store, session)
        assert store.get_session(session.id).error_count == 0

    def test_secrets_in_metadata_and_errors_are_never_written(self, store: Store) -> None:
        session = begin(store)
        change = SessionUpdate(metadata={"log": f"used {SECRET}"}, error=f"rejected: {SECRET}")
        after = store.update_session(session.id, change)
        assert SECRET not in str(after)
        assert store.get_session(session.id) == after

    def test_secrets_in_the_keys_of_metadata_are_never_written(self, store: Store) -> None:
        session = begin(store)
        store.update_session(session.id, SessionUpdate(metadata={SECRET: 1, "file": "p.json"}))
        assert SECRET not in str(store.get_session(session.id).metadata)
        (change,) = store.trail(session.id)
        assert change.metadata == ("[redacted:github_token]", "file")


class TestFinalize:
    """``finalize_session``."""

    @pytest.mark.parametrize("outcome", sorted(FINAL_PHASES))
    def test_it_closes_the_session_and_says_how_long_it_took(
        self, store: Store, clock: ManualClock, outcome: Phase
    ) -> None:
        session = begin(store)
        now = clock.advance(90.5)
        closed = store.finalize_session(session.id, outcome, UNICODE)
        assert closed == store.get_session(session.id)
        assert closed == replace(
            session, phase=outcome, resume_ready=False, updated_at=now, finalized_at=now, summary=UNICODE
        )
        assert closed.duration_seconds == 90.5
        change = PhaseChange(Phase.INITIALIZING.value, outcome.value, now)
        assert store.phase_history(session.id) == (change,)

    @pytest.mark.parametrize("first", sorted(FINAL_PHASES))
    def test_a_session_is_never_finalized_twice(self, store: Store, clock: ManualClock, first: Phase) -> None:
        session = begin(store)
        store.finalize_session(session.id, first, "done")
        clock.advance(60)
        for again in sorted(FINAL_PHASES):
            with refused(store, SessionClosed) as caught:
                store.finalize_session(session.id, again, "done again")
            assert caught.value.details == {"session_id": session.id, "phase": first.value}

    def test_turns_that_wait_are_cancelled(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "one")
        enqueue(store, session, "later", not_before=clock() + 60_000_000)
        store.finalize_session(session.id, Phase.COMPLETED, None)
        assert [turn.status for turn in store.turns(session.id)] == [TurnStatus.CANCELLED] * 2
        clock.advance(3600)
        assert store.claim_turn(a_claim()) is None

    def test_a_turn_that_runs_is_asked_to_stop_and_may_still_end(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "one")
        lease = claim(store, session).lease
        store.finalize_session(session.id, Phase.ABANDONED, None)
        assert store.heartbeat(lease, 60).cancel_requested
        store.finish_turn(lease, done("half of it", status=TurnStatus.CANCELLED))
        assert store.get_session(session.id).phase is Phase.ABANDONED

    def test_turns_of_other_agents_go_on(self, store: Store) -> None:
        session = begin(store)
        other = join(store, session, "reviewer")
        enqueue(store, other, "review")
        store.finalize_session(session.id, Phase.COMPLETED, None)
        assert claim(store, other).turn.prompt == "review"

    def test_nothing_can_be_put_into_a_closed_session(self, store: Store) -> None:
        session = begin(store)
        store.finalize_session(session.id, Phase.COMPLETED, None)
        with refused(store, SessionClosed):
            enqueue(store, session, "one more")
        with refused(store, SessionClosed):
            store.start_turn(session.id, a_turn(), a_claim())

    def test_an_update_to_a_final_phase_closes_just_the_same(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "one")
        now = clock.advance(60)
        assert store.update_session(session.id, SessionUpdate(phase=Phase.FAILED)).finalized_at == now
        assert store.turns(session.id)[0].status is TurnStatus.CANCELLED

    def test_only_a_final_phase_is_an_outcome(self, store: Store) -> None:
        session = begin(store)
        with refused(store, InvalidInput):
            store.finalize_session(session.id, Phase.PLANNING, None)

    def test_secrets_in_a_summary_are_never_written(self, store: Store) -> None:
        session = begin(store)
        closed = store.finalize_session(session.id, Phase.COMPLETED, f"deployed with {SECRET}")
        assert SECRET not in str(closed)
        assert store.get_session(session.id) == closed


class TestRename:
    """``rename_session``."""

    def test_a_session_is_found_by_its_new_name_only(self, store: Store) -> None:
        session = begin(store, name="old")
        assert store.rename_session(session.id, UNICODE).name == UNICODE
        assert store.find_session(UNICODE) == session.id
        with pytest.raises(NotFound):
            store.find_session("old")

    def test_a_name_that_another_session_has_is_a_conflict(self, store: Store) -> None:
        begin(store, name="infra")
        session = begin(store, name="other")
        with refused(store, Conflict):
            store.rename_session(session.id, "infra")

    def test_a_session_may_keep_or_lose_its_name(self, store: Store) -> None:
        session = begin(store, name="infra")
        assert store.rename_session(session.id, "infra").name == "infra"
        assert store.rename_session(session.id, None).name is None

    def test_a_name_that_was_given_up_is_free(self, store: Store) -> None:
        session = begin(store, name="infra")
        store.rename_session(session.id, None)
        assert begin(store, name="infra").name == "infra"

    def test_a_closed_session_can_be_renamed(self, store: Store) -> None:
        session = begin(store)
        store.finalize_session(session.id, Phase.COMPLETED, None)
        assert store.rename_session(session.id, "archive").name == "archive"


def test_a_summary_may_come_before_the_end_and_stays_unless_the_end_has_its_own(store: Store) -> None:
    kept, replaced = begin(store), begin(store)
    for session in (replaced, kept):
        changed = store.update_session(session.id, SessionUpdate(summary="half of it; token=ghp_" + "a" * 36))
        assert changed == store.get_session(session.id)
        assert changed.summary is not None
        assert changed.summary.startswith("half of it")
        assert "ghp_a" not in changed.summary
        assert store.update_session(session.id, SessionUpdate(error="x")).summary == changed.summary

    store.finalize_session(kept.id, Phase.COMPLETED, None)
    store.finalize_session(replaced.id, Phase.COMPLETED, "all of it")

    assert str(store.get_session(kept.id).summary).startswith("half of it")
    assert store.get_session(replaced.id).summary == "all of it"


def test_the_trail_tells_what_was_changed_and_by_whom(store: Store, clock: ManualClock) -> None:
    session = begin(store)
    first = clock.advance(1)
    store.update_session(session.id, SessionUpdate(metadata={"b": 1, "a": 2}, error="no"))
    second = clock.advance(1)
    store.update_session(session.id, SessionUpdate(phase=Phase.PLANNING, clear_errors=True, summary="half"))
    store.update_session(session.id, SessionUpdate())
    store.request_approval(session.id, an_approval(call_id=None))
    store.finalize_session(session.id, Phase.FAILED, "all")

    changes = store.trail(session.id)

    me = this_user()
    assert changes[:2] == (
        SessionChange(1, first, me, "initializing", "initializing", ("a", "b"), "no"),
        SessionChange(2, second, me, "initializing", "planning", cleared_errors=True, summary=True),
    )
    assert [(one.from_phase, one.to_phase, one.by) for one in changes[2:]] == [
        ("planning", "approval", me),
        ("approval", "failed", me),
    ]
    assert store.trail(session.id, after=2, limit=1) == changes[2:3]
    assert [change.to_phase for change in store.phase_history(session.id)] == [
        "planning",
        "approval",
        "failed",
    ]
    (void,) = store.approvals(session_id=session.id, open_only=False)
    assert void.voided_at == second


def test_a_change_that_leaves_the_phase_is_not_on_the_way_back_from_an_approval(
    store: Store, clock: ManualClock
) -> None:
    session = begin(store)
    store.update_session(session.id, SessionUpdate(phase=Phase.PLANNING))
    approval = defer(store, session)
    clock.advance(1)
    store.update_session(session.id, SessionUpdate(metadata={"while": "it waits"}))
    assert store.session_state(session.id).status is SessionStatus.WAITING
    store.answer_approval(approval.id, an_answer(approval))
    assert store.get_session(session.id).phase is Phase.PLANNING


def test_the_trail_tells_who_did_what_besides(store: Store, clock: ManualClock) -> None:
    session = begin(store)
    run(store, session, "one")
    enqueue(store, session, "two", key="once")
    enqueue(store, session, "two", key="once")
    store.cancel_turn(session.id, 2)
    store.cancel_turn(session.id, 2)
    store.edit_turn(session.id, 1, prompt="uno")
    store.retry_turn(session.id, 1)
    store.cancel_turn(session.id, 3)
    store.truncate(session.id, 0)
    store.new_generation(session.id)
    store.rename_session(session.id, "renamed")
    store.record_deed(session.id, "restore")
    child = store.fork(session.id, a_session_id())

    deeds = [(change.did, change.turn) for change in store.trail(session.id) if change.did is not None]

    assert deeds == [
        ("enqueue_turn", 1), ("enqueue_turn", 2), ("cancel_turn", 2), ("edit_turn", 1), ("retry_turn", 3),
        ("cancel_turn", 3), ("truncate", 0), ("new_generation", None), ("rename_session", None), ("restore", None),
    ]  # fmt: skip
    assert {change.by for change in store.trail(session.id)} == {this_user()}
    assert [(change.did, change.turn) for change in store.trail(child.id)] == [("fork", 0)]
    assert store.phase_history(session.id) == ()

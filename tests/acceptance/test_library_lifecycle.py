"""The plain library: whether a session goes on, how it is closed, and which phases it went through."""

import pytest

from tests.acceptance.face import (
    BLINK,
    MINUTE,
    NO_IDS,
    OPEN_PHASES,
    OUTCOMES,
    RESUMABLE_PHASES,
    Face,
    closed,
    in_phase,
    state,
)
from tests.clock import ManualClock


@pytest.mark.parametrize("phase", OPEN_PHASES)
def test_only_some_phases_are_resumable(face: Face, phase: str) -> None:
    assert face.should_resume(in_phase(face, phase)) is (phase in RESUMABLE_PHASES)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_closed_session_does_not_go_on(face: Face, outcome: str) -> None:
    agent_id = in_phase(face, "approval")
    assert face.finalize_session(agent_id, outcome)
    assert face.should_resume(agent_id) is False


def test_a_session_that_was_just_made_has_nothing_to_go_on_with(face: Face) -> None:
    assert face.should_resume(face.create_session("terraform-architect")) is False


@pytest.mark.parametrize("agent_id", NO_IDS)
def test_a_session_that_does_not_exist_does_not_go_on(face: Face, agent_id: str) -> None:
    assert face.should_resume(agent_id) is False


def test_a_session_goes_on_for_less_than_thirty_minutes(face: Face, clock: ManualClock) -> None:
    agent_id = in_phase(face, "approval")
    clock.advance(30 * MINUTE - BLINK)
    assert face.should_resume(agent_id) is True
    clock.advance(BLINK)
    assert face.should_resume(agent_id) is False


def test_activity_begins_the_thirty_minutes_again(face: Face, clock: ManualClock) -> None:
    agent_id = in_phase(face, "approval")
    clock.advance(29 * MINUTE)
    assert face.update_state(agent_id)
    clock.advance(29 * MINUTE)
    assert face.should_resume(agent_id) is True


def test_the_third_error_ends_it(face: Face) -> None:
    agent_id = in_phase(face, "approval")
    went_on = []
    for _ in range(3):
        assert face.update_state(agent_id, error="exit 1")
        went_on.append(face.should_resume(agent_id))
    assert went_on == [True, True, False]


def test_asking_changes_nothing(face: Face, clock: ManualClock) -> None:
    agent_id = in_phase(face, "approval")
    before = state(face, agent_id)
    clock.advance(MINUTE)
    assert face.should_resume(agent_id)
    assert state(face, agent_id) == before


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_session_is_closed_with_each_outcome(face: Face, clock: ManualClock, outcome: str) -> None:
    agent_id = face.create_session("terraform-architect", metadata={"task_id": "T001"})
    clock.advance(30)
    assert face.update_state(agent_id, "approval", error="exit 1")
    before = state(face, agent_id)
    clock.advance(60.5)
    assert face.finalize_session(agent_id, outcome, "Terraform applied") is True
    assert state(face, agent_id) == before | {
        "phase": outcome,
        "status": "failed" if outcome == "failed" else "done",
        "resume_ready": False,
        "last_updated": "2026-01-08T12:01:30.500000Z",
        "finalized_at": "2026-01-08T12:01:30.500000Z",
        "duration_seconds": 90.5,
        "summary": "Terraform applied",
        "history": before["history"]
        + [{"from_phase": "approval", "to_phase": outcome, "timestamp": "2026-01-08T12:01:30.500000Z"}],
    }


def test_a_session_may_be_closed_without_a_summary(face: Face) -> None:
    found = state(face, closed(face))
    assert (found["phase"], found["summary"], found["duration_seconds"]) == ("completed", None, 0.0)


@pytest.mark.parametrize("outcome", ["done", "", "Completed", "planning", "executing"])
def test_what_is_no_outcome_does_not_close_a_session(face: Face, clock: ManualClock, outcome: str) -> None:
    agent_id = in_phase(face, "approval")
    before = state(face, agent_id)
    clock.advance(1)
    assert face.finalize_session(agent_id, outcome, "summary") is False
    assert state(face, agent_id) == before
    assert face.should_resume(agent_id)


@pytest.mark.parametrize("agent_id", NO_IDS)
def test_a_session_that_does_not_exist_is_not_closed(face: Face, agent_id: str) -> None:
    assert face.finalize_session(agent_id, "completed") is False


def test_a_session_is_closed_once_and_the_first_outcome_stays(face: Face, clock: ManualClock) -> None:
    agent_id = face.create_session("terraform-architect")
    assert face.finalize_session(agent_id, "failed", "first") is True
    before = state(face, agent_id)
    clock.advance(1)
    assert face.finalize_session(agent_id, "completed", "second") is False
    assert face.finalize_session(agent_id, "failed", "first") is False
    assert state(face, agent_id) == before


def test_every_change_of_phase_is_kept_in_order(face: Face, clock: ManualClock) -> None:
    agent_id = face.create_session("terraform-architect")
    for phase in ("investigating", "approval", "approval", "investigating"):
        clock.advance(MINUTE)
        assert face.update_state(agent_id, phase)
    clock.advance(MINUTE)
    assert face.update_state(agent_id, metadata={"no": "change of phase"}, error="exit 1")
    assert face.finalize_session(agent_id, "completed")
    assert state(face, agent_id)["history"] == [
        {"from_phase": before, "to_phase": after, "timestamp": f"2026-01-08T12:0{minute}:00Z"}
        for before, after, minute in [
            ("initializing", "investigating", 1),
            ("investigating", "approval", 2),
            ("approval", "investigating", 4),
            ("investigating", "completed", 5),
        ]
    ]

"""The plain library: a session is made, read and updated."""

import logging
from pathlib import Path

import pytest

from holdfast.errors import InvalidInput
from tests.acceptance.face import (
    MINUTE,
    NO_IDS,
    OPEN_PHASES,
    OUTCOMES,
    RESUMABLE_PHASES,
    Face,
    closed,
    damage,
    ids,
    in_phase,
    state,
)
from tests.clock import ManualClock


def test_a_new_session_has_every_field_of_the_published_state(face: Face) -> None:
    metadata = {"task_id": "T001", "tags": ["terraform", "infrastructure"], "dry": True, "cost": 1.5}
    agent_id = face.create_session("terraform-architect", "approval_workflow", metadata)
    assert face.get_session(agent_id) == {
        "agent_id": agent_id,
        "agent_name": "terraform-architect",
        "purpose": "approval_workflow",
        "created_at": "2026-01-08T12:00:00Z",
        "last_updated": "2026-01-08T12:00:00Z",
        "phase": "initializing",
        "status": "idle",
        "metadata": metadata,
        "resume_ready": False,
        "history": [],
        "error_count": 0,
        "last_error": None,
        "finalized_at": None,
        "duration_seconds": None,
        "summary": None,
    }


def test_a_session_needs_no_more_than_the_name_of_its_agent(face: Face) -> None:
    found = state(face, face.create_session("terraform-architect"))
    assert (found["agent_name"], found["purpose"], found["metadata"]) == ("terraform-architect", "", {})


def test_an_id_says_when_it_was_made_and_no_two_are_the_same(face: Face) -> None:
    made = [face.create_session("terraform-architect") for _ in range(20)]
    assert len(set(made)) == 20
    assert all(agent_id.startswith("agent-20260108-120000-") for agent_id in made)
    assert {len(agent_id) for agent_id in made} == {len("agent-20260108-180530-abc12345")}


def test_a_session_without_an_agent_is_an_error_and_not_an_answer(face: Face) -> None:
    with pytest.raises(InvalidInput):
        face.create_session("")
    assert face.list_sessions() == []


@pytest.mark.parametrize("agent_id", NO_IDS)
def test_there_is_no_state_of_a_session_that_does_not_exist(face: Face, agent_id: str) -> None:
    face.create_session("terraform-architect")
    assert face.get_session(agent_id) is None


def test_a_session_that_cannot_be_read_is_passed_over_and_said_to_be(
    face: Face, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = in_phase(face, "approval"), in_phase(face, "approval")
    damage(file, "UPDATE sessions SET metadata = '{half' WHERE id = ?", bad)
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert face.get_session(bad) is None
    assert bad in caplog.text
    assert not face.should_resume(bad)
    assert not face.update_state(bad, phase="planning")
    assert not face.finalize_session(bad, "completed")
    assert ids(face.list_sessions()) == [good]
    assert face.should_resume(good)


def test_a_session_whose_history_cannot_be_read_is_passed_over_too(face: Face, file: Path) -> None:
    good, bad = in_phase(face, "approval"), in_phase(face, "approval")
    damage(file, "UPDATE phase_changes SET at = 'never' WHERE session_id = ?", bad)
    assert face.get_session(bad) is None
    assert ids(face.list_sessions()) == [good]


def test_an_update_with_nothing_but_the_id_is_activity(face: Face, clock: ManualClock) -> None:
    agent_id = face.create_session("terraform-architect", "approval_workflow", {"task_id": "T001"})
    before = state(face, agent_id)
    clock.advance(MINUTE)
    assert face.update_state(agent_id) is True
    assert state(face, agent_id) == before | {"last_updated": "2026-01-08T12:01:00Z"}


@pytest.mark.parametrize("phase", OPEN_PHASES)
def test_an_update_moves_to_a_phase_and_leaves_the_rest(face: Face, clock: ManualClock, phase: str) -> None:
    agent_id = face.create_session("terraform-architect", "approval_workflow", {"task_id": "T001"})
    assert face.update_state(agent_id, error="exit 1")
    before = state(face, agent_id)
    clock.advance(1)
    assert face.update_state(agent_id, phase) is True
    assert {name for name, value in state(face, agent_id).items() if value != before[name]} <= {
        "phase",
        "status",
        "resume_ready",
        "history",
        "last_updated",
    }
    assert (state(face, agent_id)["phase"], state(face, agent_id)["resume_ready"]) == (
        phase,
        phase in RESUMABLE_PHASES,
    )


def test_metadata_is_merged_key_by_key(face: Face) -> None:
    agent_id = face.create_session("a", metadata={"kept": 1, "replaced": {"old": True}})
    assert face.update_state(agent_id, metadata={"replaced": {"new": True}, "added": None}) is True
    assert face.update_state(agent_id, "planning", {"added": ["later"]}) is True
    found = state(face, agent_id)
    assert found["metadata"] == {"kept": 1, "replaced": {"new": True}, "added": ["later"]}
    assert found["phase"] == "planning"


def test_an_update_without_metadata_keeps_what_there_is(face: Face) -> None:
    agent_id = face.create_session("a", metadata={"kept": 1})
    assert face.update_state(agent_id, "planning", {})
    assert face.update_state(agent_id, "approval", error="exit 1")
    assert state(face, agent_id)["metadata"] == {"kept": 1}


def test_errors_are_counted_and_the_last_one_is_kept(face: Face, clock: ManualClock) -> None:
    agent_id = in_phase(face, "approval")
    assert face.update_state(agent_id, error="first") is True
    clock.advance(MINUTE)
    assert face.update_state(agent_id, "planning", {"n": 2}, "second") is True
    clock.advance(MINUTE)
    assert face.update_state(agent_id, metadata={"n": 3})
    found = state(face, agent_id)
    assert found["error_count"] == 2
    assert found["last_error"] == {"message": "second", "timestamp": "2026-01-08T12:01:00Z"}
    assert (found["phase"], found["metadata"]) == ("planning", {"n": 3})


def test_an_empty_error_is_an_error_all_the_same(face: Face) -> None:
    agent_id = in_phase(face, "approval")
    assert face.update_state(agent_id, error="")
    assert state(face, agent_id)["error_count"] == 1


@pytest.mark.parametrize("phase", ["deploying", "", "Approval", "INITIALIZING"])
def test_an_unknown_phase_is_rejected_whole(face: Face, clock: ManualClock, phase: str) -> None:
    agent_id = in_phase(face, "approval")
    before = state(face, agent_id)
    clock.advance(1)
    assert face.update_state(agent_id, phase, {"new": 1}, "exit 1") is False
    assert state(face, agent_id) == before


@pytest.mark.parametrize("agent_id", NO_IDS)
def test_a_session_that_does_not_exist_is_not_updated(face: Face, agent_id: str) -> None:
    assert face.update_state(agent_id, "planning") is False
    assert face.list_sessions() == []


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_closed_session_is_not_updated(face: Face, clock: ManualClock, outcome: str) -> None:
    agent_id = closed(face, outcome)
    before = state(face, agent_id)
    clock.advance(1)
    assert face.update_state(agent_id) is False
    assert face.update_state(agent_id, "planning", {"new": 1}, "exit 1") is False
    assert state(face, agent_id) == before


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_moving_to_a_final_phase_closes_the_session(face: Face, clock: ManualClock, outcome: str) -> None:
    agent_id = in_phase(face, "executing")
    clock.advance(MINUTE)
    assert face.update_state(agent_id, outcome) is True
    found = state(face, agent_id)
    assert (found["finalized_at"], found["duration_seconds"]) == ("2026-01-08T12:01:00Z", 60.0)
    assert face.update_state(agent_id, "planning") is False


def test_metadata_that_is_none_is_an_error_and_not_an_answer(face: Face) -> None:
    agent_id = in_phase(face, "approval")
    with pytest.raises(InvalidInput):
        face.update_state(agent_id, metadata={"when": object()})
    assert state(face, agent_id)["metadata"] == {}

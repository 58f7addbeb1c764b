"""The plain library: the published examples, and that its functions and methods are the same."""

import inspect
from pathlib import Path

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.engine import default
from holdfast.errors import StoreError
from tests.acceptance.face import (
    HOUR,
    MINUTE,
    UNKNOWN,
    Face,
    ids,
    in_phase,
    state,
)
from tests.clock import ManualClock

VERBS = sorted(name for name in vars(Face) if not name.startswith("_"))


def test_an_approval_workflow_pauses_and_goes_on_with_its_context(face: Face, clock: ManualClock) -> None:
    agent_id = face.create_session(
        agent_name="terraform-architect",
        purpose="approval_workflow",
        metadata={"task_id": "T001", "workspace": "prod"},
    )
    face.update_state(agent_id, phase="planning", metadata={"plan_file": "plan.json"})
    face.update_state(agent_id, phase="approval")
    clock.advance(10 * MINUTE)

    assert face.should_resume(agent_id)
    assert state(face, agent_id)["metadata"] == {
        "task_id": "T001",
        "workspace": "prod",
        "plan_file": "plan.json",
    }
    face.update_state(agent_id, phase="executing")
    face.finalize_session(agent_id, outcome="completed", summary="Terraform applied successfully")

    found = state(face, agent_id)
    assert [change["to_phase"] for change in found["history"]] == [
        "planning",
        "approval",
        "executing",
        "completed",
    ]
    assert (found["summary"], found["duration_seconds"]) == ("Terraform applied successfully", 600.0)
    assert ids(face.list_sessions(active_only=True)) == []


def test_an_investigation_gathers_findings_over_several_turns(face: Face, clock: ManualClock) -> None:
    agent_id = face.create_session(
        agent_name="gitops-operator", purpose="investigation", metadata={"issue": "pod-crash-loop"}
    )
    face.update_state(agent_id, phase="investigating", metadata={"findings": ["OOMKilled", "limits"]})
    clock.advance(5 * MINUTE)

    assert face.should_resume(agent_id)
    findings = state(face, agent_id)["metadata"]["findings"]
    face.update_state(agent_id, metadata={"findings": findings + ["config issue in deployment"]})
    face.update_state(agent_id, phase="planning", metadata={"solution": "increase memory limits"})
    face.update_state(agent_id, phase="executing")

    assert face.finalize_session(agent_id, outcome="completed", summary="Fixed pod crash loop")
    assert state(face, agent_id)["metadata"] == {
        "issue": "pod-crash-loop",
        "findings": ["OOMKilled", "limits", "config issue in deployment"],
        "solution": "increase memory limits",
    }


@pytest.mark.parametrize("verb", VERBS)
def test_a_function_is_called_like_the_method_of_its_name(verb: str) -> None:
    method = list(inspect.signature(getattr(Holdfast, verb)).parameters.values())[1:]
    assert list(inspect.signature(getattr(holdfast, verb)).parameters.values()) == method


def test_functions_and_methods_on_the_same_store_see_the_same(functions: Face, clock: ManualClock) -> None:
    by_function = in_phase(functions, "approval")
    clock.advance(MINUTE)
    with holdfast.open(clock=clock) as opened:
        by_method = opened.create_session("gitops-operator")
        assert opened.should_resume(by_function)
        assert functions.update_state(by_method, "planning", {"n": 1}, "exit 1")
        assert opened.finalize_session(by_function, "failed", "gave up")
        for agent_id in (by_function, by_method, UNKNOWN):
            assert functions.get_session(agent_id) == opened.get_session(agent_id)
            assert functions.should_resume(agent_id) == opened.should_resume(agent_id)
        for wanted in ({}, {"active_only": True}, {"agent_name": "gitops-operator"}):
            assert functions.list_sessions(**wanted) == opened.list_sessions(**wanted)
        assert ids(functions.list_sessions()) == [by_method, by_function]
        clock.advance(25 * HOUR)
        assert functions.cleanup_old_sessions() == 2
        assert opened.list_sessions() == functions.list_sessions()


def test_the_functions_work_on_the_users_own_file_and_open_it_once(functions: Face, file: Path) -> None:
    assert not file.exists()
    functions.create_session("terraform-architect")
    assert file.exists()
    opened = default.default()
    functions.list_sessions()
    assert default.default() is opened


def test_the_functions_follow_the_settings_of_the_moment(
    functions: Face, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = functions.create_session("here")
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path}/other.db")
    there = functions.create_session("there")
    monkeypatch.setenv("HOLDFAST_WORKSPACE", "elsewhere")
    assert functions.list_sessions() == []
    monkeypatch.delenv("HOLDFAST_WORKSPACE")
    assert ids(functions.list_sessions()) == [there]
    monkeypatch.delenv("HOLDFAST_URL")
    assert ids(functions.list_sessions()) == [here]


def test_an_opened_store_is_the_one_that_was_named(tmp_path: Path, clock: ManualClock, file: Path) -> None:
    with holdfast.open(f"sqlite:///{tmp_path}/mine.db", clock) as mine:
        agent_id = mine.create_session("terraform-architect")
    with holdfast.open(f"sqlite:///{tmp_path}/mine.db", clock) as again:
        assert ids(again.list_sessions()) == [agent_id]
    with holdfast.open(f"sqlite:///{tmp_path}/mine.db", clock, workspace="other") as other:
        assert other.list_sessions() == []
    assert not file.exists()


def test_a_store_that_cannot_be_used_is_an_error_in_every_verb(functions: Face, file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("this is no database, and far too long to be an empty one " * 20)
    for call in (
        lambda: functions.create_session("terraform-architect"),
        lambda: functions.update_state(UNKNOWN),
        lambda: functions.should_resume(UNKNOWN),
        lambda: functions.get_session(UNKNOWN),
        lambda: functions.finalize_session(UNKNOWN, "completed"),
        functions.cleanup_old_sessions,
        functions.list_sessions,
    ):
        with pytest.raises(StoreError):
            call()

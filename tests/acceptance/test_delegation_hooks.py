"""The standalone hooks: the same JSON from the command and from Python, on either engine for Python."""

import json
from pathlib import Path
from typing import Any

import pytest

import holdfast as library
from holdfast.domain.policy import NotifyPolicy
from holdfast.hooks.serving import answer_hook
from tests.acceptance.command import create, holdfast, ok
from tests.acceptance.face import Face
from tests.integration.hook_process import a_stop, a_tool_call, session_of

AGENT = "terraform-architect"
KEYS = {"should_resume", "reason", "agent_id", "resume_metadata", "original_context"}


def ask(**context: Any) -> dict[str, Any]:
    answer = json.loads(ok("hook", "pre-delegate", stdin=json.dumps(context)).out)
    assert answer.keys() == KEYS
    assert answer["original_context"] == context
    return dict(answer)


@pytest.mark.usefixtures("each_engine")
def test_the_approval_workflow_in_python() -> None:
    agent_id = library.create_session(
        agent_name=AGENT, purpose="approval_workflow", metadata={"task_id": "T001", "workspace": "prod"}
    )
    library.update_state(agent_id, phase="planning", metadata={"plan_file": "plan.json"})
    library.update_state(agent_id, phase="approval")
    context = {"agent_name": AGENT, "agent_id": agent_id}
    result = library.pre_delegate_hook(context)
    assert result.keys() == KEYS
    assert (result["should_resume"], result["reason"]) == (True, "session_resumable")
    assert (result["agent_id"], result["original_context"]) == (agent_id, context)
    state = library.get_session(agent_id)
    assert state is not None
    assert result["resume_metadata"] == {
        "previous_phase": "approval",
        "created_at": state["created_at"],
        "history": state["history"],
        "session_metadata": {"task_id": "T001", "workspace": "prod", "plan_file": "plan.json"},
    }
    library.update_state(agent_id, phase="executing")
    assert library.pre_delegate_hook(context)["reason"] == "session_not_resumable"
    library.finalize_session(agent_id, outcome="completed", summary="Terraform applied successfully")
    result = library.pre_delegate_hook(context)
    assert (result["should_resume"], result["reason"]) == (False, "session_not_resumable")
    assert (result["agent_id"], result["resume_metadata"]) == (agent_id, None)


@pytest.mark.usefixtures("each_engine")
def test_a_server_answers_like_the_command(tmp_path: Path) -> None:
    with library.open() as opened:
        answer = answer_hook(opened.store, NotifyPolicy(), "pre-delegate", a_tool_call())
        assert answer is not None
        session = session_of(answer["hookSpecificOutput"]["updatedInput"]["prompt"])
        assert opened.session(session).agent == AGENT
        assert answer_hook(opened.store, NotifyPolicy(), "subagent-stop", a_stop(tmp_path, "toolu_1")) is None
        assert opened.session(session).phase == "completed"


def test_the_approval_workflow_through_the_command() -> None:
    agent_id = create("--metadata", '{"task_id": "T001"}')
    ok("update", agent_id, "--phase", "approval")
    found = ask(agent_name=AGENT, task_id="T001", task_description="apply", metadata={})
    assert (found["should_resume"], found["agent_id"]) == (True, agent_id)
    assert found["resume_metadata"]["previous_phase"] == "approval"
    assert ask(agent_name=AGENT, task_id="T002")["reason"] == "no_existing_session"
    stop = json.dumps({"agent_id": agent_id, "exit_code": 0})
    assert json.loads(ok("hook", "subagent-stop", stdin=stop).out)["outcome"] == "paused"
    ok("update", agent_id, "--phase", "executing")
    assert json.loads(ok("hook", "subagent-stop", stdin=stop).out)["finalized"]
    assert ask(agent_name=AGENT, agent_id=agent_id)["reason"] == "session_not_resumable"


def test_a_script_is_told_what_was_answered() -> None:
    agent_id = create()
    approval = ok("request-approval", agent_id, "apply the plan").out.strip()
    ok("deny", approval, "--note", "not on a Friday")

    found = ask(agent_name=AGENT, agent_id=agent_id)

    assert found["resume_metadata"]["approval"] == {
        "id": approval,
        "what": "apply the plan",
        "status": "denied",
        "note": "not on a Friday",
    }


def test_an_investigation_over_several_turns(face: Face) -> None:
    agent_id = face.create_session("gitops-operator", "investigation", {"issue": "pod-crash-loop"})
    face.update_state(agent_id, phase="investigating", metadata={"findings": ["OOMKilled"]})
    result = face.pre_delegate_hook({"agent_name": "gitops-operator", "agent_id": agent_id})
    found = result["resume_metadata"]["session_metadata"]["findings"]
    face.update_state(agent_id, metadata={"findings": [*found, "no limits"]})
    result = face.pre_delegate_hook({"agent_name": "gitops-operator", "agent_id": agent_id})
    assert result["resume_metadata"]["session_metadata"]["findings"] == ["OOMKilled", "no limits"]


@pytest.mark.parametrize("agent_id", ["agent-none", "../../etc/passwd", 7, ""])
def test_an_id_that_is_none_is_no_existing_session(agent_id: object) -> None:
    assert ask(agent_name=AGENT, agent_id=agent_id)["reason"] == "no_existing_session"


@pytest.mark.parametrize("context", [{}, {"agent_name": 7}, {"agent_name": ""}, {"task_id": "T001"}], ids=str)
def test_a_context_without_an_agent_is_an_error_and_no_exception(context: dict[str, Any]) -> None:
    assert ask(**context)["reason"] == "error"
    assert library.pre_delegate_hook(context)["reason"] == "error"


def test_a_context_that_is_no_object_is_invalid() -> None:
    assert library.pre_delegate_hook(["agent"])["reason"] == "invalid_json"  # type: ignore[arg-type]


def test_each_question_counts_for_the_resume_rate() -> None:
    agent_id = create()
    ok("update", agent_id, "--phase", "planning")
    ask(agent_name=AGENT)
    ask(agent_name="another")
    with library.open() as opened:
        counts = opened.store.delegation_counts()
    assert (counts.delegations, counts.resumed) == (2, 1)


def test_it_checks_itself() -> None:
    said = ok("hook", "pre-delegate", "--test").lines
    assert len(said) == 7
    assert all(line.startswith("ok ") for line in said)
    assert ok("list").out == ""


def test_a_persons_mistake_is_a_usage_error() -> None:
    assert holdfast("hook").code == 2
    assert holdfast("hook", "nothing", "--test").code == 2
    assert "pre-delegate" in ok("hook", "--help").out


def test_a_served_delegation_is_nobodys_child_and_so_never_taken_for_lost() -> None:
    """The parent of a server is not the agent: when it goes away, the agent has not."""
    with library.open() as opened:
        answer = answer_hook(opened.store, NotifyPolicy(), "pre-delegate", a_tool_call())
        assert answer is not None
        session = session_of(answer["hookSpecificOutput"]["updatedInput"]["prompt"])

        (taken,) = opened.store.delegations(session)

    assert taken.owner is None

"""An approval in the middle of the work: minutes later it goes on where it was, with what it knew."""

import json
from pathlib import Path
from typing import Any

import holdfast
from tests.acceptance.command import default_database, ok
from tests.acceptance.face import MINUTE, Face, damage, state
from tests.clock import ManualClock

ASKED = {"task_id": "T001", "workspace": "prod"}
SUMMARY = "Terraform applied successfully"
IDLE_FOR_TEN_MINUTES = "UPDATE sessions SET updated_at = updated_at - 600000000 WHERE id = ?"
PHASES = [
    ("initializing", "planning"),
    ("planning", "approval"),
    ("approval", "executing"),
    ("executing", "completed"),
]


def assert_goes_on(answer: dict[str, Any], context: dict[str, Any]) -> None:
    """As whoever delegates is told: the session, where it was, and all it had kept."""
    told = answer["resume_metadata"]
    assert answer == {
        "should_resume": True,
        "reason": "session_resumable",
        "agent_id": context["agent_id"],
        "resume_metadata": told,
        "original_context": context,
    }
    assert set(told) == {"previous_phase", "created_at", "history", "session_metadata"}
    assert told["previous_phase"] == "approval"
    assert told["session_metadata"] == {**ASKED, "plan_file": "plan.json"}
    assert [(change["from_phase"], change["to_phase"]) for change in told["history"]] == PHASES[:2]


def assert_done(document: dict[str, Any]) -> None:
    assert (document["phase"], document["summary"]) == ("completed", SUMMARY)
    assert [(change["from_phase"], change["to_phase"]) for change in document["history"]] == PHASES


def test_in_python(functions: Face, clock: ManualClock) -> None:
    agent_id = functions.create_session("terraform-architect", "approval_workflow", ASKED)
    assert functions.update_state(agent_id, phase="planning", metadata={"plan_file": "plan.json"})
    assert functions.update_state(agent_id, phase="approval")

    clock.advance(10 * MINUTE)
    context = {"agent_name": "terraform-architect", "agent_id": agent_id}
    assert_goes_on(holdfast.pre_delegate_hook(context), context)

    assert functions.update_state(agent_id, phase="executing")
    assert functions.finalize_session(agent_id, outcome="completed", summary=SUMMARY)
    assert_done(state(functions, agent_id))
    answer = holdfast.pre_delegate_hook(context)
    assert (answer["should_resume"], answer["reason"]) == (False, "session_not_resumable")


def test_with_the_command(home: Path) -> None:
    agent_id = ok(
        "create", "--agent", "terraform-architect", "--purpose", "approval_workflow",
        "--metadata", json.dumps(ASKED),
    ).out.strip()  # fmt: skip
    ok("update", agent_id, "--phase", "planning", "--metadata", '{"plan_file": "plan.json"}')
    ok("update", agent_id, "--phase", "approval")

    damage(default_database(), IDLE_FOR_TEN_MINUTES, agent_id)
    context = {"agent_name": "terraform-architect", "task_id": "T001", "agent_id": agent_id}
    answer = ok("hook", "pre-delegate", stdin=json.dumps(context))
    assert_goes_on(json.loads(answer.out), context)

    ok("update", agent_id, "--phase", "executing")
    stopped = json.dumps({"agent_id": agent_id, "exit_code": 0, "summary": SUMMARY})
    for _ in range(2):  # never twice
        ok("hook", "subagent-stop", stdin=stopped)
    assert_done(ok("get", agent_id, "--json").json)


def test_a_subagent_that_stops_to_ask_is_not_over(home: Path) -> None:
    agent_id = ok("create", "--agent", "terraform-architect").out.strip()
    ok("update", agent_id, "--phase", "approval")
    ok("hook", "subagent-stop", stdin=json.dumps({"agent_id": agent_id, "exit_code": 0}))
    assert ok("get", agent_id, "--json").json["phase"] == "approval"
    ok("should-resume", agent_id)


def test_one_that_failed_is_closed_as_failed(home: Path) -> None:
    agent_id = ok("create", "--agent", "terraform-architect").out.strip()
    ok("hook", "subagent-stop", stdin=json.dumps({"agent_id": agent_id, "exit_code": 3}))
    assert ok("get", agent_id, "--json").json["phase"] == "failed"

"""An investigation over several turns: every finding is still there when the next question comes."""

import json
from pathlib import Path

from tests.acceptance.command import default_database, ok
from tests.acceptance.face import MINUTE, Face, damage, state
from tests.clock import ManualClock

FOUND = ["OOMKilled", "resource limits"]
MORE = "config issue in deployment"
SOLUTION = "increase memory limits"
IDLE_FOR_FIVE_MINUTES = "UPDATE sessions SET updated_at = updated_at - 300000000 WHERE id = ?"
PHASES = [
    ("initializing", "investigating"),
    ("investigating", "planning"),
    ("planning", "executing"),
    ("executing", "completed"),
]


def test_in_python(face: Face, clock: ManualClock) -> None:
    agent_id = face.create_session("gitops-operator", "investigation", {"issue": "pod-crash-loop"})
    assert face.update_state(agent_id, phase="investigating", metadata={"findings": FOUND})

    clock.advance(5 * MINUTE)
    assert face.should_resume(agent_id)
    findings = state(face, agent_id)["metadata"]["findings"]
    assert face.update_state(agent_id, metadata={"findings": [*findings, MORE]})

    clock.advance(5 * MINUTE)
    assert face.should_resume(agent_id)
    assert face.update_state(agent_id, phase="planning", metadata={"solution": SOLUTION})

    assert face.update_state(agent_id, phase="executing")
    assert face.finalize_session(agent_id, "completed", "Fixed pod crash loop")

    after = state(face, agent_id)
    assert after["metadata"] == {
        "issue": "pod-crash-loop",
        "findings": [*FOUND, MORE],
        "solution": SOLUTION,
    }
    assert [(change["from_phase"], change["to_phase"]) for change in after["history"]] == PHASES
    assert (after["phase"], after["summary"]) == ("completed", "Fixed pod crash loop")
    assert after["duration_seconds"] == 10 * MINUTE
    assert not face.should_resume(agent_id)


def test_with_the_command(home: Path) -> None:
    agent_id = ok(
        "create", "--agent", "gitops-operator", "--purpose", "investigation",
        "--metadata", json.dumps({"issue": "pod-crash-loop"}),
    ).out.strip()  # fmt: skip
    ok("update", agent_id, "--phase", "investigating", "--metadata", json.dumps({"findings": FOUND}))

    damage(default_database(), IDLE_FOR_FIVE_MINUTES, agent_id)
    ok("should-resume", agent_id)
    findings = ok("get", agent_id, "--json").json["metadata"]["findings"]
    ok("update", agent_id, "--metadata", json.dumps({"findings": [*findings, MORE]}))
    ok("update", agent_id, "--phase", "planning", "--metadata", json.dumps({"solution": SOLUTION}))
    ok("update", agent_id, "--phase", "executing")
    ok("finalize", agent_id, "completed", "--summary", "Fixed pod crash loop")

    after = ok("get", agent_id, "--json").json
    assert after["metadata"]["findings"] == [*FOUND, MORE]
    assert [(change["from_phase"], change["to_phase"]) for change in after["history"]] == PHASES
    assert (after["phase"], after["summary"]) == ("completed", "Fixed pod crash loop")

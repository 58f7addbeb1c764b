"""Owns sessions to look at: one of each kind that the page tells apart, made through the store's own verbs."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast import Holdfast
from holdfast.domain.events import Event, EventKind
from holdfast.domain.failures import FailureClass
from holdfast.domain.phases import Phase
from holdfast.domain.redaction import Json
from holdfast.domain.sessions import SessionKind, SessionUpdate
from holdfast.domain.turns import NewTurn, TurnRequest
from holdfast.domain.usage import ContextUse, Usage, UsageReport
from tests.builders import a_claim, a_provider_session_id, a_runtime, an_approval, deferred, done, failed

ANSWER = """The plan adds **two buckets** and changes one policy.

| resource | change |
|---|---|
| `aws_s3_bucket.logs` | create |
| `aws_s3_bucket_policy.logs` | update |

```python
def apply(plan: Plan) -> Result:
    # only what was planned
    return run(["terraform", "apply", plan.path], timeout=600)
```

Next: ask before `terraform apply`.
"""
EDIT: dict[str, Json] = {
    "file_path": "/srv/infra/main.tf",
    "old_string": 'resource "aws_s3_bucket" "logs" {\n  bucket = "logs"\n}',
    "new_string": 'resource "aws_s3_bucket" "logs" {\n  bucket = "logs-eu"\n  force_destroy = false\n}',
}


@dataclass(frozen=True)
class Sample:
    idle: str
    waiting: str
    failed: str
    closed: str
    queued: str
    delegated: str
    approval: str


def fill(holdfast: Holdfast) -> Sample:
    """The answers of the agents come from nowhere; everything else is what Holdfast records of real ones."""
    store = holdfast.store
    store.register_runtime(a_runtime())
    idle = _conversation(holdfast, "Move the log buckets to the European region", "buckets")
    native = a_provider_session_id()
    for number in range(3):
        _turn(holdfast, idle, f"Step {number + 1}: look at the buckets and plan the change", number, native)
    waiting = _conversation(holdfast, "Apply the plan for the log buckets", None)
    store.enqueue_turn(waiting, NewTurn("apply it", "claude", TurnRequest(work_dir="/srv/infra")))
    claim = store.claim_turn(a_claim(session_id=waiting))
    assert claim is not None
    asked = an_approval(
        what="Bash: terraform apply plan.out",
        arguments={"command": "terraform apply plan.out", "timeout": 600000},
    )
    store.finish_turn(claim.lease, deferred(approval=asked))
    broken = _conversation(holdfast, "Rotate the keys of the staging database", None)
    store.enqueue_turn(broken, NewTurn("rotate them", "claude", TurnRequest(work_dir="/srv/infra")))
    claim = store.claim_turn(a_claim(session_id=broken))
    assert claim is not None
    store.finish_turn(claim.lease, failed(FailureClass.AUTH, "the key was refused"))
    closed = _conversation(holdfast, "Write the runbook for restores", None)
    _turn(holdfast, closed, "write it", 0, a_provider_session_id())
    store.finalize_session(closed, Phase.COMPLETED, "the runbook is in docs/restore.md")
    queued = _conversation(holdfast, "Upgrade the cluster to 1.33", None)
    store.enqueue_turn(queued, NewTurn("upgrade it", "claude", TurnRequest(work_dir="/srv/infra")))
    delegated = holdfast.create("terraform-architect", "Review the network module", provider="claude").id
    store.update_session(delegated, SessionUpdate(phase=Phase.PLANNING))
    return Sample(idle, waiting, broken, closed, queued, delegated, asked.id)


def _conversation(holdfast: Holdfast, purpose: str, name: str | None) -> str:
    made = holdfast.create("claude", purpose, kind=SessionKind.CONVERSATION, name=name, provider="claude")
    return str(made.id)


def _turn(holdfast: Holdfast, session_id: str, prompt: str, number: int, native: str) -> None:
    store = holdfast.store
    store.enqueue_turn(
        session_id, NewTurn(prompt, "claude", TurnRequest(work_dir="/srv/infra", model="opus"))
    )
    claim = store.claim_turn(a_claim(session_id=session_id))
    assert claim is not None
    now = store.now()
    store.record_events(
        claim.lease,
        [
            Event(1, EventKind.TEXT, {"text": "I look at the state first."}, now),
            Event(2, EventKind.TOOL_CALL, {"call_id": "c1", "tool": "Bash", "arguments": {"command": "terraform plan -out plan.out"}}, now),
            Event(3, EventKind.TOOL_RESULT, {"call_id": "c1", "output": "Plan: 2 to add, 1 to change, 0 to destroy.", "is_error": False}, now),
            Event(4, EventKind.TOOL_CALL, {"call_id": "c2", "tool": "Edit", "arguments": EDIT}, now),
            Event(5, EventKind.TOOL_RESULT, {"call_id": "c2", "output": "File changed.", "is_error": False}, now),
            Event(6, EventKind.TOOL_CALL, {"call_id": "c3", "tool": "Bash", "arguments": {"command": "tflint"}}, now),
            Event(7, EventKind.TOOL_RESULT, {"call_id": "c3", "output": "tflint: command not found", "is_error": True}, now),
        ],
    )  # fmt: skip
    used = UsageReport(
        Usage(24_000 + 9_000 * number, 18_000 * number, 1_800, 0.21),
        context=ContextUse(24_000 + 9_000 * number, 200_000),
    )
    store.finish_turn(claim.lease, done(ANSWER, provider_session_id=native, usage=used))

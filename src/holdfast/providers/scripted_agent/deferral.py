"""Owns the scripted agent's calls that wait: asking the gate, and remembering the one it ended with."""

from __future__ import annotations

import json
import subprocess
import tempfile
from typing import Any, NamedTuple

from holdfast.providers.scripted_agent.memory import Session


class ToolCall(NamedTuple):
    id: str
    name: str
    input: dict[str, Any]


class Pending(NamedTuple):
    """A turn that ended with a call in front of it."""

    key: str  #: of the prompt that it answers
    number: int
    calls: int
    call: ToolCall
    rest: list[str]  #: the lines of the request that come after the call
    said: list[str]


class Deferral(Exception):
    """The call waits for a person, and the turn with it."""

    def __init__(self, call: ToolCall) -> None:
        super().__init__(call.id)
        self.call = call
        self.rest: list[str] = []  #: the lines of the request that come after it


def refusal(gate: str, session: Session, call: ToolCall) -> str | None:
    """Why the call must not run; None if it may. Deferral if that is not known yet."""
    asked = {
        "tool_name": call.name,
        "tool_use_id": call.id,
        "tool_input": call.input,
        "transcript_path": str(session.path),
    }
    # not over a pipe: a gate that ends without reading would end the agent, too
    with tempfile.TemporaryFile("w+") as given:
        json.dump(asked, given)
        given.seek(0)
        done = subprocess.run(
            ["/bin/sh", "-c", gate], stdin=given, capture_output=True, text=True, check=False
        )
    if done.returncode == 0 and not done.stdout:
        return None
    if done.returncode != 0:
        return done.stderr or f"the gate ended with {done.returncode}"
    answer = json.loads(done.stdout)["hookSpecificOutput"]
    match answer["permissionDecision"]:
        case "allow":
            return None
        case "defer":
            raise Deferral(call)
        case _:
            return str(answer["permissionDecisionReason"])


def announce(session: Session, call: ToolCall) -> None:
    """The message with the call is written down before the gate is asked, which looks for it there."""
    block = {"type": "tool_use", "id": call.id, "name": call.name, "input": call.input}
    message = {"id": f"message-{call.id}", "stop_reason": "tool_use", "content": [block]}
    session.add({"type": "call", "text": "", "message": message}, save=True)


def remember(session: Session, pending: Pending) -> None:
    entry = {**pending._asdict(), "call": pending.call._asdict()}
    session.add({"type": "deferred", "text": "", "pending": entry}, save=True)


def pending_call(session: Session) -> Pending | None:
    """Only the last thing that the session holds can be gone on with."""
    last = session.entries[-1] if session.entries else {}
    if last.get("type") != "deferred":
        return None
    found = last["pending"]
    return Pending(**{**found, "call": ToolCall(**found["call"])})

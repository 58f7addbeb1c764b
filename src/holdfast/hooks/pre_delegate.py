"""Owns the hook before a delegation: which session the work goes on in, and what the subagent is told of it.

Claude Code's form changes the subagent's prompt; the standalone form, known by its ``agent_name``, answers a
question and takes nothing.
"""

from __future__ import annotations

from holdfast.clock import to_iso
from holdfast.domain.delegations import (
    DelegationEnd,
    DelegationOutcome,
    NewDelegation,
    Question,
)
from holdfast.domain.ids import check_id
from holdfast.domain.inputs import check_name, clean_text
from holdfast.errors import HoldfastError, InvalidInput
from holdfast.hooks.briefing import brief

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from holdfast.domain.delegations import DelegatedSession, Delegation
    from holdfast.hooks.calls import HookCall, Payload

_TOOLS = ("Task", "Agent")
_USUAL_AGENT = "general-purpose"
_LONGEST_PURPOSE = 200

INVALID_JSON = "invalid_json"
ERROR = "error"


def answer(call: HookCall) -> dict[str, Any] | None:
    return _answer_claude(call) if is_claudes(call.payload) else answer_question(call)


def is_claudes(payload: Payload) -> bool:
    return "tool_input" in payload or "hook_event_name" in payload


def answer_nothing(reason: str, context: object = None) -> dict[str, Any]:
    """The standalone form's answer when there is nothing to go on with."""
    return {
        "should_resume": False,
        "reason": reason,
        "agent_id": None,
        "resume_metadata": None,
        "original_context": context,
    }


def answer_question(call: HookCall) -> dict[str, Any]:
    """Never raises what is the caller's fault or the store's: the reason is then ``error``."""
    given = dict(call.payload)
    try:
        delegated = call.store.ask_delegation(_question(call))
    except (HoldfastError, OSError) as exc:
        call.log.problem(exc)
        return answer_nothing(ERROR, given)
    session = delegated.session
    call.log.say("asked", reason=delegated.reason, session=session.id if session else "")
    if session is None:
        return answer_nothing(delegated.reason.value, given)
    if not delegated.resumed:
        return {**answer_nothing(delegated.reason.value, given), "agent_id": session.id}
    return {
        "should_resume": True,
        "reason": delegated.reason.value,
        "agent_id": session.id,
        "resume_metadata": {
            "previous_phase": session.phase,
            "created_at": to_iso(session.created_at),
            "history": [
                {"from_phase": before, "to_phase": after, "timestamp": to_iso(at)}
                for before, after, at in session.history
            ],
            "session_metadata": session.metadata,
            **_asked(session),
        },
        "original_context": given,
    }


def _asked(session: DelegatedSession) -> dict[str, Any]:
    """What it asked people for last, and what became of that."""
    asked = session.approval
    if asked is None:
        return {}
    return {"approval": {"id": asked.id, "what": asked.what, "status": asked.status, "note": asked.note}}


def _question(call: HookCall) -> Question:
    session_id = call.payload.get("agent_id")
    metadata = call.payload.get("metadata")
    task_id = call.payload.get("task_id")
    if task_id is None and isinstance(metadata, dict):
        task_id = metadata.get("task_id")
    return Question(
        id=call.new_delegation_id(),
        agent=check_name("agent_name", call.payload.get("agent_name")),
        project=call.project,
        session_id=None if session_id is None else _known_as_id(session_id),
        task_id=None if task_id is None else str(task_id),
    )


def _known_as_id(given: object) -> str:
    """What is no id is none that exists."""
    try:
        return check_id("agent_id", given)
    except InvalidInput:
        return ""


def _answer_claude(call: HookCall) -> dict[str, Any] | None:
    tool, given = call.payload.get("tool_name"), call.payload.get("tool_input")
    if tool not in _TOOLS or not isinstance(given, dict) or not isinstance(given.get("prompt"), str):
        call.log.say("ignored", tool=tool)
        return None
    agent = _agent(given)
    free_lost(call, call.store.open_delegations(agent, call.project))
    new = _new_delegation(call, agent, given)
    if new.owner is not None:
        call.witness(new.id)
    delegated = call.store.delegate(new)
    session = delegated.session
    if session is None:  # it was removed since the first call with this id
        return None
    call.log.say("delegated", session=session.id, agent=agent, reason=delegated.reason, id=delegated.id)
    told = {**given, "prompt": f"{given['prompt']}\n\n{brief(session, resumed=delegated.resumed)}"}
    # no decision with it: the usual rules say whether the tool may be used
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "updatedInput": told}}


def _agent(given: dict[str, Any]) -> str:
    named = given.get("subagent_type")
    return check_name("subagent_type", named) if named else _USUAL_AGENT


def free_lost(call: HookCall, held: Iterable[Delegation]) -> list[Delegation]:
    """End those whose orchestrator is gone: their sessions may be taken again."""
    lost = [one for one in held if call.is_lost(one)]
    for one in lost:
        call.store.end_delegation(DelegationEnd(id=one.id, outcome=DelegationOutcome.LOST))
        call.forget(one.id)
        call.log.say("lost", session=one.session_id, id=one.id)
    return lost


def _new_delegation(call: HookCall, agent: str, given: dict[str, Any]) -> NewDelegation:
    description = given.get("description")
    purpose = description if isinstance(description, str) else given["prompt"]
    tool_use_id = call.payload.get("tool_use_id")
    return NewDelegation(
        id=call.new_delegation_id() if tool_use_id is None else check_id("tool_use_id", tool_use_id),
        agent=agent,
        project=call.project,
        new_session_id=call.new_session_id(),
        purpose=clean_text(purpose.strip()[:_LONGEST_PURPOSE]),
        provider="claude",
        provider_session_id=call.text("session_id"),
        owner=call.owner(),
    )

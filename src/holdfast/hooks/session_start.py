"""Owns the hook at the beginning of a session: it is written down, and told what waits in its project."""

from __future__ import annotations

from holdfast.hooks.watching import sight, word

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from holdfast.hooks.calls import HookCall


def answer(call: HookCall) -> dict[str, Any] | None:
    seen = sight(call, source=word(call, "source"))
    call.store.observe_session(seen)
    inside = call.environ.get("HOLDFAST_SESSION")
    welcome = call.store.welcome(seen.provider, seen.id, call.project, inside)
    text = welcome.render()
    if not text:
        return None
    told: dict[str, Any] = {"hookEventName": "SessionStart", "additionalContext": text}
    if welcome.warning is None:
        return {"hookSpecificOutput": told}
    return {"hookSpecificOutput": told, "systemMessage": welcome.warning}

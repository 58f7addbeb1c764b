"""Owns Claude Code's hooks as Holdfast uses them: the settings that put the gate before its tool calls."""

from __future__ import annotations

import json
import re
from typing import Final

from holdfast.providers.contract import ToolGate

#: variables with which it runs no hooks
HOOKS_OFF: Final = ("CLAUDE_CODE_SIMPLE", "CLAUDE_CODE_SAFE_MODE")
#: both show the call as it ran; the stream and the transcript show it as the model made it
_AFTER_A_CALL: Final = ("PostToolUse", "PostToolUseFailure")
_FIRST_TO_DEFER: Final = (2, 1, 89)
_NO_HOOKS: Final = "with it Claude runs no hooks, and calls would not wait for approval"
#: arguments with which no call would wait
NOT_WITH_A_GATE: Final = {
    "--bare": _NO_HOOKS,
    "--safe-mode": _NO_HOOKS,
    "--settings": "Claude takes it once, and the hook for approvals needs it; write yours into a settings.json",
}


def knows_defer(distribution: str, version: str | None) -> bool:
    """An older one, or another product, lets the calls through that it is told to defer."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)(?!\d)", version or "")
    return (
        distribution == "claude-code"
        and found is not None
        and tuple(map(int, found.groups())) >= _FIRST_TO_DEFER
    )


def hook_settings(gate: ToolGate) -> str:
    """These win over the settings of the user and the project, which may have switched hooks off."""
    asked = {"type": "command", "command": gate.command, "timeout": gate.seconds}
    hooks = {
        "SessionStart": [{"hooks": [{"type": "command", "command": gate.arm}]}],
        "PreToolUse": [{"matcher": "*", "hooks": [asked]}],
    }
    if gate.done is not None:
        looks_back = {"type": "command", "command": gate.done, "timeout": gate.seconds}
        hooks |= {event: [{"matcher": "*", "hooks": [looks_back]}] for event in _AFTER_A_CALL}
    return json.dumps({"disableAllHooks": False, "hooks": hooks})

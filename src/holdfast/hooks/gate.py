"""Owns the tool gate: the program that the agent calls before each tool call, and that holds back calls for approval.

The agent runs it by its path, with the call as JSON on standard input. The rules are on its command line, where
the agent cannot change them: which calls need approval, and the answer that a person gave to one of them. The
folder of the run holds only what changes: the answer that is not used yet, and marks of what happened. The gate
fails closed: every error ends in a denial, or in exit code 2, which Claude Code takes as a denial. The agent
calls the gate again after the call, with ``--done``: it compares the call that ran with the call that was
allowed, because hooks of others may have changed the call in between.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time

if __name__ == "__main__":  # run by its path, Python does not find the rest of the package
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from holdfast.hooks.tool_patterns import matches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: files of the folder: one that exists until the answer is used, and the reason of a denial ...
UNUSED = "unused"
NOTE = "note"
#: ... and marks: the agent runs hooks, the approved call ran as approved, a call ran that was not allowed so
ARMED = "armed"
EXECUTED = "executed"
CHANGED = "changed"
ARM = "--arm"
DONE = "--done"
#: the answer to a call that needs approval: the agent ends and can be resumed, or asks the person in front of it
DEFER, ASK = "defer", "ask"
#: the exit code with which a hook forbids the call
BLOCKED = 2

#: agents allow a call whose hook took too long: the gate gives up first, with a denial
DEADLINE_SECONDS = 300
#: to wait for the complete message that holds the call
_MESSAGE_SECONDS = 240
_LOOK_EVERY = 0.02
_MOST_INPUT = 10 * 1024 * 1024
#: the newest message is at the end
_MOST_TRANSCRIPT = 16 * 1024 * 1024
_DIGEST = 8


class Denied(Exception):
    """The call must not run; the text is for the agent."""


def main() -> int:
    try:
        folder, given_rules, *mode = sys.argv[1:]
        if given_rules == ARM:
            _leave(folder, ARMED)
            return 0
        rules = json.loads(given_rules)
        signal.signal(signal.SIGALRM, _give_up)
        signal.alarm(DEADLINE_SECONDS)
        call = sys.stdin.buffer.read(_MOST_INPUT + 1)
        answer = _look_back(folder, rules, call) if mode == [DONE] else _answer(folder, rules, call)
        sys.stdout.write(answer)
        sys.stdout.flush()
    except BaseException as exc:  # noqa: BLE001 - a gate that fails stays closed
        os.write(2, f"the call was not allowed, the gate failed: {exc!r}\n".encode(errors="replace"))
        return BLOCKED
    return 0


def _give_up(_number: int, _frame: object) -> None:
    raise TimeoutError(f"no decision after {DEADLINE_SECONDS} s")


def _answer(folder: str, rules: dict[str, Any], call: bytes) -> str:
    """The text for standard output; empty for a call that needs no approval."""
    try:
        decision, reason = decide(folder, rules, call)
    except Denied as exc:
        decision, reason = "deny", str(exc)
    if decision is None:
        return ""
    verdict = {"permissionDecision": decision, "permissionDecisionReason": reason}
    return json.dumps({"hookSpecificOutput": {"hookEventName": "PreToolUse", **verdict}})


def decide(folder: str, rules: dict[str, Any], given: bytes) -> tuple[str | None, str]:
    """The decision and its reason. Raises Denied for every call that cannot be judged."""
    call = _call(given)
    if os.path.exists(os.path.join(folder, CHANGED)):
        raise Denied("an earlier call did not run as it was let through: nothing more is")
    if not _needs_approval(rules, call):
        return None, ""
    if call.get("agent_id") is not None:
        raise Denied("this call needs a person's approval, for which a subagent cannot wait: hand it back")
    if rules["answer"] == ASK:
        return ASK, "this call needs a person's approval"
    answered = _take_answer(folder, rules["given"], call)
    if answered is not None:
        return answered
    _require_alone(call)
    return DEFER, "this call waits for a person's approval"


def _look_back(folder: str, rules: dict[str, Any], given: bytes) -> str:
    """After the call: stops the agent if another call ran than was allowed."""
    try:
        why = _difference(folder, rules, _call(given))
    except Exception as exc:  # noqa: BLE001 - a call that cannot be compared counts as changed
        why = f"the gate cannot compare the call that ran: {exc!r}"
    if why is None:
        return ""
    try:
        _leave(folder, CHANGED, why)
    except OSError:
        pass  # the folder is gone, which the run notices as well
    return json.dumps({"continue": False, "stopReason": why})


def _difference(folder: str, rules: dict[str, Any], call: dict[str, Any]) -> str | None:
    given, tool = rules["given"], call["tool_name"]
    if given is not None and given["call_id"] == call["tool_use_id"]:
        if given["approved"] is True and given["arguments_hash"] == hash_arguments(call["tool_input"]):
            _leave(folder, EXECUTED)
            return None
        return f"{tool} did not run as it was approved: something changed the call"
    if _needs_approval(rules, call):
        return f"{tool} ran without the approval that it needs: something changed the call"
    return None


def _leave(folder: str, name: str, text: str = "") -> None:
    with open(os.path.join(folder, name), "a") as file:
        file.write(text)


def digest(call_id: str) -> str:
    """A short name for a call, because the length of a command line is limited."""
    return hashlib.sha256(call_id.encode(errors="surrogatepass")).hexdigest()[:_DIGEST]


def hash_arguments(arguments: object) -> str:
    """The same as in ``holdfast.domain.approvals``, whose imports are too slow for a program that starts for each call."""
    text = json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _call(given: bytes) -> dict[str, Any]:
    if len(given) > _MOST_INPUT:
        raise Denied(f"the call is larger than {_MOST_INPUT} bytes: the gate cannot judge it")
    try:
        call = json.loads(given)
    except (ValueError, RecursionError):
        raise Denied("the gate was not told which call this is") from None
    if not isinstance(call, dict):
        raise Denied("the gate was not told which call this is")
    for field, kind in (("tool_name", str), ("tool_use_id", str), ("tool_input", dict)):
        if not isinstance(call.get(field), kind):
            raise Denied(f"the gate was not told the {field} of this call")
    return call


def _needs_approval(rules: dict[str, Any], call: dict[str, Any]) -> bool:
    if digest(call["tool_use_id"]) in rules["withheld"].split():
        return True
    return any(matches(pattern, call["tool_name"], call["tool_input"]) for pattern in rules["patterns"])


def _take_answer(folder: str, given: dict[str, Any] | None, call: dict[str, Any]) -> tuple[str, str] | None:
    """The answer that a person gave to this very call. Used at most once, also by concurrent calls."""
    if given is None or given["call_id"] != call["tool_use_id"]:
        return None
    try:
        os.unlink(os.path.join(folder, UNUSED))
    except FileNotFoundError:
        raise Denied("the approval of this call was used already") from None
    if given["approved"] is not True:
        raise Denied(f"a person did not approve this call: {_note(folder) or 'no reason was given'}")
    if given["arguments_hash"] != hash_arguments(call["tool_input"]):
        raise Denied("a person approved this call with other arguments than these")
    return "allow", "a person approved this call"


def _note(folder: str) -> str:
    try:
        with open(os.path.join(folder, NOTE)) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _require_alone(call: dict[str, Any]) -> None:
    """Denied unless the call is alone in its message: an agent that defers one of several runs the others, or
    forgets them.
    """
    path = call.get("transcript_path")
    if not isinstance(path, str):
        raise Denied("the gate was not told where the conversation is: it cannot tell if this call is alone")
    until, size = time.monotonic() + _MESSAGE_SECONDS, -1
    while True:
        # for the first message of a session the agent may call the gate before there is a file
        known, size = size, os.path.getsize(path) if os.path.exists(path) else 0
        calls = 0 if size in (known, 0) else _calls_in_message_of(call["tool_use_id"], _tail(path, size))
        if calls == 1:
            return
        if calls > 1:
            raise Denied("this call needs a person's approval and cannot wait beside others: call it alone")
        if time.monotonic() > until:
            raise Denied("this call needs a person's approval, and the gate cannot tell if it is alone")
        time.sleep(_LOOK_EVERY)


def _calls_in_message_of(call_id: str, transcript: bytes) -> int:
    """How many calls the message holds; 0 until the transcript has the message, which is when it is complete."""
    if call_id.encode(errors="surrogatepass") not in transcript:
        return 0
    calls: dict[object, set[object]] = {}
    mine: object = None
    for message in _messages(transcript):
        for block in message["content"]:
            if isinstance(block, dict) and block.get("type") == "tool_use":
                calls.setdefault(message.get("id"), set()).add(block.get("id"))
                if block.get("id") == call_id and message.get("stop_reason") is not None:
                    mine = message.get("id")
    return len(calls.get(mine, ())) if mine is not None else 0


def _messages(transcript: bytes) -> Iterator[dict[str, Any]]:
    """Skips a line that is cut off or not complete yet."""
    for line in transcript.splitlines():
        if b"tool_use" not in line:
            continue
        try:
            message = json.loads(line)["message"]
        except (ValueError, LookupError, TypeError, RecursionError):
            continue
        if isinstance(message, dict) and isinstance(message.get("content"), list):
            yield message


def _tail(path: str, size: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(max(0, size - _MOST_TRANSCRIPT))
        return file.read()


if __name__ == "__main__":
    sys.exit(main())

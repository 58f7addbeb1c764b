"""Owns the gate: asked by the agent before each tool call, it lets none through that waits for a person.

A program of its own, run by its path with the folder of one run, and the call as JSON on its standard input.
It knows nothing but that folder: ``gate.json`` says which calls wait, ``answer.json`` what a person said to
one of them. It fails closed: whatever goes wrong ends in a denial, or in exit code 2, which is one, too.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time

if __name__ == "__main__":  # by its path nothing else of ours can be imported
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from holdfast.hooks.tool_patterns import matches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

RULES = "gate.json"
ANSWER = "answer.json"
ARMED = "armed"
ARM = "--arm"
#: how a call that waits is answered: the agent ends and can be resumed, or asks the person in front of it
DEFER, ASK = "defer", "ask"
#: exit code with which a hook forbids the call
BLOCKED = 2

#: agents let a call through whose hook took too long: ours gives up first, and closed
DEADLINE_SECONDS = 300
#: for the message that the call stands in to be complete
_MESSAGE_SECONDS = 240
_LOOK_EVERY = 0.02
_MOST_INPUT = 10 * 1024 * 1024
#: the newest message is at the end
_MOST_TRANSCRIPT = 16 * 1024 * 1024


class Denied(Exception):
    """The call must not run; the text is for the agent."""


def main() -> int:
    try:
        folder = sys.argv[1]
        if ARM in sys.argv[2:]:
            open(os.path.join(folder, ARMED), "ab").close()
            return 0
        signal.signal(signal.SIGALRM, _give_up)
        signal.alarm(DEADLINE_SECONDS)
        answer = _answer(folder, sys.stdin.buffer.read(_MOST_INPUT + 1))
        sys.stdout.write(answer)
        sys.stdout.flush()
    except BaseException as exc:  # noqa: BLE001 - a gate that breaks stays closed
        os.write(2, f"the call was not allowed, the gate failed: {exc!r}\n".encode(errors="replace"))
        return BLOCKED
    return 0


def _give_up(_number: int, _frame: object) -> None:
    raise TimeoutError(f"no decision after {DEADLINE_SECONDS} s")


def _answer(folder: str, call: bytes) -> str:
    """What to print: nothing for a call that does not wait for anyone."""
    try:
        decision, reason = decide(folder, call)
    except Denied as exc:
        decision, reason = "deny", str(exc)
    if decision is None:
        return ""
    verdict = {"permissionDecision": decision, "permissionDecisionReason": reason}
    return json.dumps({"hookSpecificOutput": {"hookEventName": "PreToolUse", **verdict}})


def decide(folder: str, given: bytes) -> tuple[str | None, str]:
    """The decision and its reason. Denied for every call that cannot be judged."""
    rules = _read(os.path.join(folder, RULES))
    call = _call(given)
    call_id, arguments = call["tool_use_id"], call["tool_input"]
    if call_id not in rules["withheld"] and not _waits(rules["patterns"], call["tool_name"], arguments):
        return None, ""
    if call.get("agent_id") is not None:
        raise Denied("this call needs a person's approval, for which a subagent cannot wait: hand it back")
    if rules["answer"] == ASK:
        return ASK, "this call needs a person's approval"
    answered = _take_answer(folder, call_id, arguments)
    if answered is not None:
        return answered
    _require_alone(call)
    return DEFER, "this call waits for a person's approval"


def hash_arguments(arguments: object) -> str:
    """As in ``holdfast.domain.approvals``, which a program that starts for each call cannot afford."""
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


def _waits(patterns: list[str], tool: str, arguments: dict[str, object]) -> bool:
    return any(matches(pattern, tool, arguments) for pattern in patterns)


def _take_answer(folder: str, call_id: str, arguments: object) -> tuple[str, str] | None:
    """What was said to this very call; acted on at most once, whoever asks how often."""
    path = os.path.join(folder, ANSWER)
    if not os.path.exists(path):
        return None
    answer = _read(path)
    if answer["call_id"] != call_id:
        return None
    try:
        os.rename(path, f"{path}.used")
    except FileNotFoundError:
        raise Denied("the approval of this call was used already") from None
    if answer["approved"] is not True:
        raise Denied(f"a person did not approve this call: {answer['note'] or 'no reason was given'}")
    if answer["arguments_hash"] != hash_arguments(arguments):
        raise Denied("a person approved this call with other arguments than these")
    return "allow", "a person approved this call"


def _require_alone(call: dict[str, Any]) -> None:
    """An agent that defers one of several calls runs the others, or forgets them."""
    path = call.get("transcript_path")
    if not isinstance(path, str):
        raise Denied("the gate was not told where the conversation is: it cannot tell if this call is alone")
    until, size = time.monotonic() + _MESSAGE_SECONDS, -1
    while True:
        # the first message of a session may be asked about before there is a file
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
    """How many calls the message holds; 0 while it is not written down, which happens when it is complete."""
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
    """A line that is cut off, or just being written, says nothing."""
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


def _read(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        found = json.load(file)
    if not isinstance(found, dict):
        raise TypeError(f"{path} holds no object")
    return found


if __name__ == "__main__":
    sys.exit(main())

"""Owns one run of a hook: standard input to standard output, within a deadline, and whatever happens with exit code 0."""

from __future__ import annotations

import json
import os

from holdfast.hooks import deadline
from holdfast.hooks.log import HookLog
from holdfast.hooks.stores import StoreLocked, open_hook_store

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: event -> the module that answers it, imported when it happens
EVENTS = {
    "pre-delegate": "pre_delegate",
    "subagent-stop": "subagent_stop",
    "session-start": "session_start",
    "stop": "stop",
    "pre-compact": "pre_compact",
    "session-end": "session_end",
}
MOST_INPUT = 10_000_000
_BLOCK = 1 << 16


class TooMuchInput(Exception):
    pass


def main(event: str) -> int:
    """Always 0: a hook that records must not stop the agent."""
    log = HookLog(os.environ, event)
    try:
        deadline.start()
        answer = respond(event, _read_input(), os.environ, log)
        deadline.stop()
        if answer is not None:
            _write(json.dumps(answer))
    except BaseException as exc:  # noqa: BLE001 - whatever it is, the agent goes on
        log.problem(exc)
    return 0


def respond(event: str, data: bytes, environ: Mapping[str, str], log: HookLog) -> dict[str, Any] | None:
    """The answer to what was said on standard input; None: nothing is to be said. Raises nothing but interrupts.

    What the store has no time for is said to the spool: it is recorded later, and not lost.
    """
    if event not in EVENTS:
        log.say("unknown event")
        return None
    try:
        return _respond(event, data, environ, log)
    except (deadline.DeadlinePassed, StoreLocked) as exc:
        log.say("late", error=type(exc).__name__, message=exc)
        deadline.prolong()
        return _respond(event, data, environ, log, is_late=True)


def _respond(
    event: str, data: bytes, environ: Mapping[str, str], log: HookLog, *, is_late: bool = False
) -> dict[str, Any] | None:
    """StoreLocked if the store has no time now, and what is to be said can wait."""
    payload = _parse(data, log)
    try:
        if payload is not None and (not is_late or _can_wait(event, payload)):
            return _answer(EVENTS[event], payload, environ, log, is_late=is_late)
    except Exception as exc:
        if isinstance(exc, StoreLocked) and _can_wait(event, payload):
            raise
        log.problem(exc)
    return _answer_failure(event, payload)


def _can_wait(event: str, payload: Mapping[str, Any] | None) -> bool:
    """A question is answered now or not at all."""
    from holdfast.hooks.pre_delegate import is_claudes

    return payload is not None and (event != "pre-delegate" or is_claudes(payload))


def _answer(
    module: str, payload: dict[str, Any], environ: Mapping[str, str], log: HookLog, *, is_late: bool
) -> dict[str, Any] | None:
    from holdfast.hooks.calls import HookCall
    from holdfast.hooks.settings import load_hook_settings

    cwd = _directory(payload)
    settings = load_hook_settings(environ, cwd)
    for notice in settings.notices:
        log.say("not trusted", why=notice)
    done: list[str] = []
    begins = str(payload.get("tool_use_id") or "") if module == "pre_delegate" else None
    store = open_hook_store(settings, cwd, begins=begins, is_late=is_late)
    try:
        handler = __import__(f"holdfast.hooks.{module}", fromlist=["answer"])
        call = HookCall(payload, store, environ, settings.machine, log, done.append)
        answer: dict[str, Any] | None = handler.answer(call)
    finally:
        store.close()
    if done and settings.tells_when_done:
        from holdfast.hooks.done import tell_done  # brings the whole store

        for session_id in done:
            tell_done(environ, cwd, session_id)
    return answer


def _directory(payload: Mapping[str, Any]) -> str:
    """Where the agent works. The process itself may have been started elsewhere: see ``installation.shell_command``."""
    told = payload.get("cwd")
    if isinstance(told, str) and os.path.isabs(told) and os.path.isdir(told):
        return told
    return os.getcwd()


def _answer_failure(event: str, payload: dict[str, Any] | None) -> dict[str, Any] | None:
    """Only the standalone form of pre-delegate has something to say then."""
    if event != "pre-delegate":
        return None
    from holdfast.hooks.pre_delegate import ERROR, INVALID_JSON, answer_nothing, is_claudes

    if payload is None:
        return answer_nothing(INVALID_JSON)
    return None if is_claudes(payload) else answer_nothing(ERROR, payload)


def _parse(data: bytes, log: HookLog) -> dict[str, Any] | None:
    try:
        payload = json.loads(data)
    except (ValueError, RecursionError) as exc:
        log.problem(exc)
        return None
    if not isinstance(payload, dict):
        log.say("not an object", found=type(payload).__name__)
        return None
    return payload


def _read_input() -> bytes:
    """All of it is taken, so that nobody is left writing into a closed pipe; TooMuchInput for more than the limit."""
    blocks: list[bytes] = []
    size = 0
    while block := os.read(0, _BLOCK):
        size += len(block)
        if size <= MOST_INPUT:
            blocks.append(block)
    if size > MOST_INPUT:
        raise TooMuchInput(f"{size} bytes on standard input")
    return b"".join(blocks)


def _write(text: str) -> None:
    data = f"{text}\n".encode()
    while data:
        data = data[os.write(1, data) :]

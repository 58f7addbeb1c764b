"""Owns one run of a hook: standard input to standard output, within a deadline, and always with exit code 0."""

from __future__ import annotations

import json
import os

from holdfast.hooks.process import (
    RECORD,
    DeadlinePassed,
    HookLog,
    StoreLocked,
    key_mark,
    prolong_deadline,
    record_names,
    start_deadline,
    stop_deadline,
)

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from holdfast.hooks.calls import HookCall
    from holdfast.hooks.light_store import LightStore
    from holdfast.hooks.settings import HookSettings
    from holdfast.hooks.spool import SpoolStore

#: event -> the module whose ``HANDLERS`` answer it, imported when it happens
EVENTS = {
    "pre-delegate": "delegations",
    "subagent-stop": "delegations",
    "session-start": "sessions",
    "stop": "sessions",
    "pre-compact": "sessions",
    "session-end": "sessions",
}
MOST_INPUT = 10_000_000
_BLOCK = 1 << 16


class TooMuchInput(Exception):
    pass


def main(event: str) -> int:
    """Always 0: a hook that records must not stop the agent."""
    log = HookLog(os.environ, event)
    try:
        start_deadline()
        answer = respond(event, _read_input(), os.environ, log)
        stop_deadline()
        if answer is not None:
            _write(json.dumps(answer))
    except BaseException as exc:  # noqa: BLE001 - whatever it is, the agent continues
        log.problem(exc)
    return 0


def handler_of(event: str) -> Callable[[HookCall], dict[str, Any] | None]:
    """KeyError for an event that does not exist."""
    module = __import__(f"holdfast.hooks.{EVENTS[event]}", fromlist=["HANDLERS"])
    handler: Callable[[HookCall], dict[str, Any] | None] = module.HANDLERS[event]
    return handler


def respond(event: str, data: bytes, environ: Mapping[str, str], log: HookLog) -> dict[str, Any] | None:
    """The answer to the payload; None: nothing is written to standard output. Raises nothing but interrupts.

    If the store is locked for too long, what the hook records goes into the spool and is recorded later.
    """
    if event not in EVENTS:
        log.say("unknown event")
        return None
    try:
        return _respond(event, data, environ, log)
    except (DeadlinePassed, StoreLocked) as exc:
        log.say("late", error=type(exc).__name__, message=exc)
        prolong_deadline()
        return _respond(event, data, environ, log, is_late=True)


def _respond(
    event: str, data: bytes, environ: Mapping[str, str], log: HookLog, *, is_late: bool = False
) -> dict[str, Any] | None:
    """StoreLocked if the store is locked, and the event can be recorded later."""
    payload = _parse(data, log)
    try:
        if payload is not None and (not is_late or _can_wait(event, payload)):
            return _answer(event, payload, environ, log, is_late=is_late)
    except Exception as exc:
        if isinstance(exc, StoreLocked) and _can_wait(event, payload):
            raise
        log.problem(exc)
    return _answer_failure(event, payload)


def _can_wait(event: str, payload: Mapping[str, Any] | None) -> bool:
    """False for a script's question, which is answered now or not at all."""
    from holdfast.hooks.delegations import is_claudes

    return payload is not None and (event != "pre-delegate" or is_claudes(payload))


def _answer(
    event: str, payload: dict[str, Any], environ: Mapping[str, str], log: HookLog, *, is_late: bool
) -> dict[str, Any] | None:
    from holdfast.hooks.calls import HookCall
    from holdfast.hooks.settings import load_hook_settings

    cwd = _directory(payload)
    settings = load_hook_settings(environ, cwd)
    for notice in settings.notices:
        log.say("not trusted", why=notice)
    done: list[str] = []
    begins = str(payload.get("tool_use_id") or "") if event == "pre-delegate" else None
    store = _open_store(settings, cwd, begins=begins, is_late=is_late)
    call = HookCall(payload, store, environ, settings.machine, log, done.append, spool=settings.spool)
    try:
        answer = handler_of(event)(call)
    finally:
        store.close()
    if call.has_news and settings.spool is not None:
        from holdfast.hooks.spool import send_carrier

        send_carrier(settings.spool, cwd)
    if done and settings.tells_when_done:
        from holdfast.hooks.serving import tell_done  # brings the whole store

        tell_done(environ, cwd, done)
    return answer


def _open_store(
    settings: HookSettings, directory: str, *, begins: str | None, is_late: bool
) -> LightStore | SpoolStore:
    """The SQLite file itself; the spool if the store is elsewhere, or if there is no time to wait for a lock.

    While records wait in the spool, later ones join them, so that nothing is recorded before what it follows.
    A delegation, whose id is ``begins``, follows nothing but its own first call.
    """
    if settings.path is None or is_late or _is_waited_for(settings.spool, begins):
        from holdfast.hooks.spool import SpoolStore

        return SpoolStore(settings, directory)
    from holdfast.hooks.light_store import LightStore

    return LightStore(settings)


def _is_waited_for(spool: str | None, key: str | None) -> bool:
    """Whether records wait in the spool; with a key, whether one with this key does."""
    waiting = record_names(spool) if spool is not None else []
    return any(name.endswith(f"{key_mark(key)}{RECORD}") for name in waiting)


def _directory(payload: Mapping[str, Any]) -> str:
    """Where the agent works. The hook itself is started elsewhere: see ``installation.shell_command``."""
    told = payload.get("cwd")
    if isinstance(told, str) and os.path.isabs(told) and os.path.isdir(told):
        return told
    return os.getcwd()


def _answer_failure(event: str, payload: dict[str, Any] | None) -> dict[str, Any] | None:
    """Only the standalone form of pre-delegate has an answer for failures."""
    if event != "pre-delegate":
        return None
    from holdfast.hooks.delegations import ERROR, INVALID_JSON, answer_nothing, is_claudes

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
    """Reads everything, so that the caller never writes into a closed pipe; TooMuchInput above the limit."""
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

"""Owns the hook behind a delegation: the session is finalized, or waits on for an approval; never twice."""

from __future__ import annotations

import json
import os
import stat

from holdfast.domain.delegations import DelegationEnd, DelegationOutcome
from holdfast.domain.inputs import clean_text
from holdfast.domain.telling.quoting import shortened
from holdfast.errors import AmbiguousId

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from holdfast.clock import Instant
    from holdfast.domain.delegations import EndedDelegation
    from holdfast.hooks.calls import HookCall

_LONGEST_SUMMARY = 4000
_MOST_META = 64 * 1024
_MOST_END = 256 * 1024
_MOST_TRANSCRIPTS = 16
#: older versions of Claude Code write None
_IN_ORDER = (None, "end_turn", "stop_sequence")
_NOT_A_MODEL = "<synthetic>"  #: words that Claude Code itself puts into a transcript


def answer(call: HookCall) -> dict[str, Any] | None:
    """Claude Code wants none; the standalone form, ``{agent_id, exit_code}``, says what was done."""
    if call.text("agent_transcript_path") is None and "hook_event_name" not in call.payload:
        return _answer_standalone(call)
    path, message = call.text("agent_transcript_path"), call.text("last_assistant_message")
    tool_use_id = _tool_use_id(call, path) if call.reads_files else None
    if tool_use_id is None and call.text("agent_type") is None:
        call.log.say("unknown subagent", agent=call.text("agent_id"))
        return None
    # without the file, it is the only one of its kind that was delegated here and has not ended; Claude Code's own
    # subagents, such as the one that compacts, have neither a file nor a type
    _end(call, DelegationEnd(
        id=tool_use_id,
        agent=call.text("agent_type"),
        provider_session_id=call.text("session_id"),
        outcome=_outcome(path if call.reads_files else None, message),
        summary=_summary(message),
        transcript_path=path,
        provider_agent_id=call.text("agent_id"),
    ))  # fmt: skip
    return None


def end_failed(call: HookCall, since: Instant) -> None:
    """End the delegations of this session whose subagents an error of the model's service has ended.

    Claude Code calls no SubagentStop for them. Their transcripts tell, among the newest that were written
    to after ``since``.
    """
    path = call.text("transcript_path")
    if path is None or not call.reads_files:
        return
    for transcript in _written_since(f"{path.removesuffix('.jsonl')}/subagents", since):
        if _outcome(transcript, None) is not DelegationOutcome.FAILED:
            continue
        tool_use_id = _tool_use_id(call, transcript)
        if tool_use_id is not None:
            _end(call, DelegationEnd(
                id=tool_use_id,
                provider_session_id=call.text("session_id"),
                outcome=DelegationOutcome.FAILED,
                transcript_path=transcript,
            ))  # fmt: skip


def _written_since(folder: str, since: Instant) -> list[str]:
    """Transcripts of subagents, the newest first, and no more than a few."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".jsonl"):
                    written_at = entry.stat().st_mtime_ns // 1000
                    if written_at > since:
                        found.append((written_at, entry.path))
    # most sessions have no subagents; a text with a NUL is no path
    except (OSError, ValueError):
        return []
    return [path for _, path in sorted(found, reverse=True)[:_MOST_TRANSCRIPTS]]


def _answer_standalone(call: HookCall) -> dict[str, Any]:
    session_id, code = call.text("agent_id"), call.payload.get("exit_code", 0)
    nothing = {"agent_id": session_id, "outcome": None, "finalized": False}
    if session_id is None:
        call.log.say("no agent_id")
        return nothing
    outcome = DelegationOutcome.COMPLETED if code == 0 else DelegationOutcome.FAILED
    summary = _summary(call.text("summary") or call.text("last_assistant_message"))
    ended = _end(call, DelegationEnd(session_id=session_id, outcome=outcome, summary=summary))
    if ended is None:
        return nothing
    return {**nothing, "outcome": ended.outcome.value, "finalized": ended.finalized_now}


def _end(call: HookCall, end: DelegationEnd) -> EndedDelegation | None:
    """Every finalization is a line in the log."""
    try:
        ended = call.store.end_delegation(end)
    except AmbiguousId as exc:
        call.log.say("ambiguous subagent", agent=end.provider_agent_id, delegations=exc.candidates)
        return None
    if ended is None and end.id is None and end.session_id is None:
        call.log.say("unknown subagent", agent=end.provider_agent_id)
        return None
    if ended is None:
        call.log.say("unknown session", id=end.id or end.session_id or end.provider_agent_id)
        return None
    call.forget(ended.id)
    if ended.queued:
        call.log.say("queued", session=ended.session_id, id=ended.id, outcome=ended.outcome)
        return ended
    is_paused = ended.outcome is DelegationOutcome.PAUSED
    what = (
        "finalized"
        if ended.finalized_now
        else "ended"
        if ended.ended_now or is_paused
        else "had ended before"
    )
    call.log.say(what, session=ended.session_id, id=ended.id, outcome=ended.outcome)
    if ended.finalized_now and call.when_done is not None:
        call.when_done(ended.session_id)
    return ended


def _summary(message: str | None) -> str | None:
    return None if message is None else clean_text(shortened(message.strip(), _LONGEST_SUMMARY))


def _tool_use_id(call: HookCall, path: str | None) -> str | None:
    """Which tool call started the subagent stands in a file beside its transcript."""
    if path is None:
        return None
    try:
        found = json.loads(_read_meta(f"{path.removesuffix('.jsonl')}.meta.json"))
    except (OSError, ValueError, RecursionError) as exc:
        call.log.problem(exc)
        return None
    told = found.get("toolUseId") if isinstance(found, dict) else None
    return told if isinstance(told, str) else None


def _outcome(path: str | None, message: str | None) -> DelegationOutcome:
    """Claude Code does not say how a subagent ended: the last message of its transcript does, else ``message``,
    its last words.

    An error of the model's service has failed. Without an answer the session is free for the next one.
    """
    try:
        last = None if path is None else _last_message(_read_end(path))
    except (OSError, ValueError, RecursionError):
        last = None
    if last is None:
        return DelegationOutcome.LOST if message is None else DelegationOutcome.COMPLETED
    if last.get("isApiErrorMessage") is True:
        return DelegationOutcome.FAILED
    return DelegationOutcome.COMPLETED if _is_answer(last) else DelegationOutcome.LOST


def _is_answer(entry: dict[str, Any]) -> bool:
    """Whether it is a text of the model that ended in order, not cut off or refused."""
    message = entry.get("message")
    if entry.get("type") != "assistant" or not isinstance(message, dict):
        return False
    if message.get("stop_reason") not in _IN_ORDER or message.get("model") == _NOT_A_MODEL:
        return False
    content = message.get("content")
    block = content[-1] if isinstance(content, list) and content else None
    text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else content
    return isinstance(text, str) and bool(text.strip())


def _last_message(end: bytes) -> dict[str, Any] | None:
    for line in reversed(end.splitlines()):
        try:
            entry = json.loads(line)
        except ValueError:  # the first line may be half of one
            continue
        if isinstance(entry, dict) and entry.get("type") in ("user", "assistant"):
            return entry
    return None


def _read_meta(path: str) -> bytes:
    return _read(path, 0, _MOST_META)


def _read_end(path: str) -> bytes:
    return _read(path, max(0, os.stat(path).st_size - _MOST_END), _MOST_END)


def _read(path: str, start: int, size: int) -> bytes:
    """Never waits for somebody to write into a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{path} is no regular file")
        return os.pread(descriptor, size, start)
    finally:
        os.close(descriptor)

"""Owns reading what ``opencode run --format json`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from holdfast.domain.events import AgentEvent, Called, Ended, Named, Returned, Said, Spent
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.redaction import Json
from holdfast.domain.usage import NO_USAGE, Usage, UsageReport
from holdfast.providers.loose_json import as_amount, as_count, as_object, as_text
from holdfast.providers.report import SaidText

#: ends of a model's answer after which the agent asks the model again
GOES_ON: Final = ("tool-calls", "unknown", "")
#: ends of a model's answer that answer the turn
ANSWERED: Final = ("stop", "length")
PENDING: Final = "pending"  #: a call that the model is still writing
RUNNING: Final = "running"
_DONE: Final = (None, 0)  #: exit codes of a command that did not fail


class OpencodeStream:
    """One run: a step for each call to the model, each with its own tokens and cost."""

    def __init__(self) -> None:
        self._session_id = ""
        self._message = ""  #: id of the message that is being said
        self._said = SaidText()  #: by that message
        self._usage = NO_USAGE
        self._trouble = Ended(ok=True)  #: the last error; the run has failed even if it continued after it

    def read(self, line: Mapping[str, Json]) -> Iterator[AgentEvent]:
        session_id = as_text(line.get("sessionID"))
        if session_id and session_id != self._session_id:
            self._session_id = session_id
            yield Named(ProviderSessionId(session_id))
        part = as_object(line.get("part"))
        match line.get("type"):
            case "text" if part.get("synthetic") is not True:  # otherwise opencode's own text to the model
                yield self._say(as_text(part.get("messageID")), as_text(part.get("text")))
            case "tool_use":
                yield from tool_use(part)
            case "step_finish":
                yield from self._finish(part)
            case "error":
                self._trouble = _failure(as_object(line.get("error")))
                yield self._trouble

    def _say(self, message: str, text: str) -> Said:
        is_first = not self._message
        if message != self._message:
            self._message, self._said = message, SaidText()
        separator = "" if is_first else "\n\n"
        self._said.add(f"\n\n{text}" if self._said else text)
        return Said(separator + text)

    def _finish(self, step: Mapping[str, Json]) -> Iterator[AgentEvent]:
        self._usage += _usage(step)
        yield Spent(UsageReport(self._usage))
        reason, message = as_text(step.get("reason")), as_text(step.get("messageID"))
        if reason in GOES_ON:
            return
        said = str(self._said) if message == self._message else ""
        self._message, self._said = "", SaidText()
        if reason in ANSWERED:
            yield replace(self._trouble, ok=True, response=said or None)
        else:
            yield Ended(ok=False, error=f"the model's answer ended with {reason}", code=reason)


def tool_use(part: Mapping[str, Json]) -> Iterator[Called | Returned]:
    """opencode prints a call once, when the tool has ended; its session has it earlier."""
    call_id, state = as_text(part.get("callID")), as_object(part.get("state"))
    yield Called(call_id, as_text(part.get("tool")), as_object(state.get("input")))
    if state.get("status") == RUNNING:
        return
    is_done = state.get("status") == "completed" and as_object(state.get("metadata")).get("exit") in _DONE
    yield Returned(call_id, as_text(state.get("output")) or as_text(state.get("error")), is_error=not is_done)


def _usage(step: Mapping[str, Json]) -> Usage:
    tokens = as_object(step.get("tokens"))
    cache = as_object(tokens.get("cache"))
    read, written = as_count(cache.get("read")), as_count(cache.get("write"))
    return Usage(
        as_count(tokens.get("input")) + read + written,
        read,
        as_count(tokens.get("output")) + as_count(tokens.get("reasoning")),
        as_amount(step.get("cost")),
    )


def _failure(error: Mapping[str, Json]) -> Ended:
    data = as_object(error.get("data"))
    said = [as_text(data.get("message")) or as_text(error.get("message")), as_text(data.get("responseBody"))]
    return Ended(
        ok=False,
        error="\n".join(part for part in said if part),
        status=as_count(data.get("statusCode")) or None,
        code=as_text(error.get("name")),
    )

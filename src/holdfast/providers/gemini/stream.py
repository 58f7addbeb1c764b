"""Owns reading what ``gemini --output-format stream-json`` prints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from holdfast.domain.events import AgentEvent, Called, Ended, Named, Noted, Returned, Said, Spent
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.redaction import Json
from holdfast.domain.usage import Usage, UsageReport
from holdfast.providers.loose_json import as_count, as_object, as_text
from holdfast.providers.report import SaidText

#: the model ended its answer properly without any text: the CLI asks a few more times, then calls it an error
_EMPTY_ANSWER = "The model returned an empty response with no text"
#: the CLI stopped the model, reported success, and removed the request from its session
_LOOP = "Loop detected"
#: in the text of an error: ``[API Error: {"error":{"code":400,...``
_STATUS = re.compile(r'"code\\*":\s*(\d{3})\b')


class GeminiStream:
    """One run. The CLI prints the prompt again as a message of the user; that is no event."""

    def __init__(self) -> None:
        self._answer = SaidText()  #: since the last tool was called
        self._has_spoken = False
        self._trouble = ""  #: what the last error event said

    def read(self, line: Mapping[str, Json]) -> Iterator[AgentEvent]:
        match line:
            case {"type": "init", "session_id": str(session_id)} if session_id:
                yield Named(ProviderSessionId(session_id))
            case {"type": "message", "role": "assistant", "content": str(text)} if text:
                yield self._say(text)
            case {"type": "tool_use"}:
                self._answer = SaidText()
                tool, arguments = as_text(line.get("tool_name")), as_object(line.get("parameters"))
                yield Called(as_text(line.get("tool_id")), tool, arguments)
            case {"type": "tool_result"}:
                is_error = line.get("status") != "success"
                yield Returned(as_text(line.get("tool_id")), as_text(line.get("output")), is_error)
            case {"type": "error", "message": str(text)}:
                self._trouble = text
                yield Noted(text)
            case {"type": "result"}:
                yield from self._end(line)

    def _say(self, text: str) -> Said:
        is_next = self._has_spoken and not self._answer
        self._answer.add(text)
        self._has_spoken = True
        return Said(f"\n\n{text}" if is_next else text)

    def _end(self, line: Mapping[str, Json]) -> Iterator[AgentEvent]:
        stats = as_object(line.get("stats"))
        counts = (as_count(stats.get(kind)) for kind in ("input_tokens", "cached", "output_tokens"))
        yield Spent(UsageReport(Usage(*counts)))
        has_ended_well = line.get("status") == "success" and not self._trouble.startswith(_LOOP)
        if has_ended_well or self._trouble.startswith(_EMPTY_ANSWER):
            yield Ended(ok=True, response=str(self._answer) or None)
        else:
            yield self._failure(as_object(line.get("error")))

    def _failure(self, error: Mapping[str, Json]) -> Ended:
        text = as_text(error.get("message")) or self._trouble
        status = _STATUS.search(text)
        return Ended(
            ok=False,
            error=text,
            status=int(status[1]) if status else None,
            code=as_text(error.get("type")),
        )

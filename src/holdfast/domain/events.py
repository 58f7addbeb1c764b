"""Owns the vocabulary of events: what a provider's stream says of a running agent, and how each of it is recorded.

A new event is a class here, with its kind and the data that are recorded of it, and a provider's stream that says it.
``make check`` names every place that must handle it, or its kind if that is new, too.
Each value of the data is a text, a number, a flag or an object: the recorder bounds and cleans these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

from holdfast.clock import Instant
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.records import record
from holdfast.domain.redaction import Json
from holdfast.domain.usage import UsageReport

#: arguments of a tool that say what it is about
_TELLING = (
    "command", "file_path", "filePath", "absolute_path", "notebook_path", "path", "url", "pattern", "query",
    "description",
)  # fmt: skip
_LONGEST_WORDS = 300
#: characters that are kept of a text that is being written
MAX_WRITING = 16 * 1024


def call_words(tool: str, arguments: object) -> str:
    """A tool call as a person reads it, in one line: the tool, and what it is about."""
    about: object = arguments
    if isinstance(arguments, Mapping):
        about = next((value for name in _TELLING if (value := arguments.get(name))), arguments)
    text = about if isinstance(about, str) else _compact(about)
    # of a text of megabytes, only the beginning is looked at
    line = " ".join(f"{tool[:_LONGEST_WORDS]}: {text[: 4 * _LONGEST_WORDS]}".split()).removesuffix(":")
    return line if len(line) <= _LONGEST_WORDS else f"{line[:_LONGEST_WORDS]}…"


def _compact(value: object) -> str:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return " ".join(value)  # a command as its words
    return json.dumps(value, ensure_ascii=False, default=dict) if value else ""


class EventKind(StrEnum):
    """How events are recorded and selected. Several events may be of one kind."""

    TEXT = "text"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    USAGE = "usage"
    NOTICE = "notice"


@record
class Event:
    """An event on record. ``number`` counts from 1 within the attempt and identifies the event."""

    number: int
    kind: EventKind
    data: Mapping[str, Json]
    at: Instant


@record
class Named:
    """The provider said which of its sessions this is. Recorded as the attempt's provider session, not as an event."""

    session_id: ProviderSessionId


@record
class Said:
    """Text of the agent, whole or the next piece of it. Pieces that follow each other are recorded as one event."""

    kind: ClassVar = EventKind.TEXT
    text: str

    @property
    def data(self) -> dict[str, Json]:
        return {"text": self.text}


@record
class Writing:
    """The text that the agent is writing, as far as it has got. Not recorded as an event: the newest one replaces the one
    before, and what the agent ``Said`` replaces all of them.
    """

    text: str  #: its end, if it is long
    skipped: int = 0  #: characters of it that come before


@record
class PartialText:
    """What a running attempt is writing, as the store has it."""

    turn: int
    attempt: int
    number: int  #: that the event will have in which the text is recorded
    text: str  #: without secrets, and without the word that is not finished
    skipped: int  #: characters that come before


@record
class Called:
    """A tool is about to run."""

    kind: ClassVar = EventKind.TOOL_CALL
    call_id: str
    tool: str
    arguments: Mapping[str, Json]

    @property
    def data(self) -> dict[str, Json]:
        return {"call_id": self.call_id, "tool": self.tool, "arguments": dict(self.arguments)}


@record
class Returned:
    """A tool has ended."""

    kind: ClassVar = EventKind.TOOL_RESULT
    call_id: str
    output: str
    is_error: bool

    @property
    def data(self) -> dict[str, Json]:
        return {"call_id": self.call_id, "output": self.output, "is_error": self.is_error}


@record
class Spent:
    """Tokens and money, and how full the context window is."""

    kind: ClassVar = EventKind.USAGE
    usage: UsageReport

    @property
    def data(self) -> dict[str, Json]:
        used, context = self.usage.usage, self.usage.context
        return {
            "input_tokens": used.input_tokens,
            "cached_input_tokens": used.cached_input_tokens,
            "output_tokens": used.output_tokens,
            "cost_usd": used.cost_usd,
            "cumulative": self.usage.cumulative,
            "context_tokens": None if context is None else context.tokens,
            "context_window": None if context is None else context.window,
        }


@record
class Noted:
    """Worth recording, neither text nor tool: a retry, a fallback model, a warning."""

    kind: ClassVar = EventKind.NOTICE
    text: str

    @property
    def data(self) -> dict[str, Json]:
        return {"text": self.text}


@record
class Denied:
    """The agent was not allowed to make a call, by its rights. Comes after the call; the result of the call is an error."""

    kind: ClassVar = EventKind.NOTICE
    call_id: str
    tool: str
    why: str = ""

    @property
    def data(self) -> dict[str, Json]:
        return {"text": self.words, "call_id": self.call_id, "tool": self.tool}

    @property
    def words(self) -> str:
        return f"{self.tool} was not allowed: {self.why}".removesuffix(": ")


@record
class DeniedCall:
    """A call that the agent was not allowed to make, and why."""

    call: Called
    why: str

    @property
    def words(self) -> str:
        """The call as a person reads it, in one line."""
        return call_words(self.call.tool, self.call.arguments)


@record
class Ended:
    """A terminal event. Some providers send several in one run; the last one counts."""

    kind: ClassVar = EventKind.NOTICE
    ok: bool
    response: str | None = None  #: where the provider repeats the whole answer
    error: str = ""  #: of the failure channel, never the agent's own text
    status: int | None = None  #: HTTP status behind the error
    code: str = ""  #: the provider's own name for it

    @property
    def data(self) -> dict[str, Json]:
        text = "the agent ended its turn" if self.ok else self.error or "the agent reported a failure"
        return {"text": text, "ok": self.ok, "status": self.status, "code": self.code}


@record
class Deferred:
    """A terminal event, too: the agent ended well, and this call of it waits for a person."""

    kind: ClassVar = EventKind.NOTICE
    call_id: str
    tool: str
    arguments: Mapping[str, Json]

    @property
    def data(self) -> dict[str, Json]:
        return {"text": f"{self.tool} waits for approval", "call_id": self.call_id}

    @property
    def words(self) -> str:
        """The call as a person reads it, in one line."""
        return call_words(self.tool, self.arguments)


@record
class Ungated:
    """The tool gate does not hold: the agent does not ask it, or ran another call than it let through. End the agent."""

    kind: ClassVar = EventKind.NOTICE
    why: str

    @property
    def data(self) -> dict[str, Json]:
        return {"text": self.why}


#: everything that a stream can say
AgentEvent = Named | Said | Writing | Called | Returned | Spent | Noted | Denied | Ended | Deferred | Ungated
#: those that are recorded as they come
Recorded = Said | Called | Returned | Spent | Noted | Denied | Ended | Deferred | Ungated

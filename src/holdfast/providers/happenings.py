"""Owns what an agent's output can say, in words that all providers share."""

from __future__ import annotations

import json
from collections.abc import Mapping

from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.records import record
from holdfast.domain.redaction import Json
from holdfast.domain.usage import UsageReport

#: arguments of a tool that say what it is about
_TELLING = ("command", "file_path", "notebook_path", "path", "url")
_LONGEST_WORDS = 300


@record
class Named:
    """The provider said which of its sessions this is."""

    session_id: ProviderSessionId


@record
class Said:
    """Text of the agent, whole or the next piece of it."""

    text: str


@record
class Called:
    """A tool is about to run."""

    call_id: str
    tool: str
    arguments: Mapping[str, Json]


@record
class Returned:
    call_id: str
    output: str
    is_error: bool


@record
class Spent:
    usage: UsageReport


@record
class Noted:
    """Worth recording, neither text nor tool: a retry, a fallback model, a warning."""

    text: str


@record
class Ended:
    """A terminal event. Some providers send several in one run; the last one counts."""

    ok: bool
    response: str | None = None  #: where the provider repeats the whole answer
    error: str = ""  #: of the failure channel, never the agent's own text
    status: int | None = None  #: HTTP status behind the error
    code: str = ""  #: the provider's own name for it


@record
class Deferred:
    """A terminal event, too: the agent ended well, and this call of it waits for a person."""

    call_id: str
    tool: str
    arguments: Mapping[str, Json]

    @property
    def words(self) -> str:
        """The call as a person reads it, in one line."""
        about = next((value for name in _TELLING if (value := self.arguments.get(name))), None)
        text = about if isinstance(about, str) else json.dumps(dict(self.arguments), ensure_ascii=False)
        line = " ".join(f"{self.tool}: {text}".split())
        return line if len(line) <= _LONGEST_WORDS else f"{line[:_LONGEST_WORDS]}…"


@record
class Ungated:
    """The gate does not hold: the agent does not ask it, or ran another call than it let through. End it."""

    why: str


Happening = Named | Said | Called | Returned | Spent | Noted | Ended | Deferred | Ungated

"""Owns what a whole run amounts to: its happenings folded into one report, bounded in size."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.usage import UsageReport
from holdfast.providers.happenings import (
    Called,
    Deferred,
    Ended,
    Happening,
    Named,
    Noted,
    Returned,
    Said,
    Spent,
    Ungated,
)

#: an answer longer than this is cut, visibly; far below what the store refuses
MAX_RESPONSE = 1024 * 1024
_CUT = "\n[cut: the answer was longer]"


@dataclass(slots=True)
class Report:
    session_id: ProviderSessionId | None = None
    ended: Ended | None = None
    deferred: Deferred | None = None  #: how it ended, if that was a call that waits
    ungated: str | None = None  #: why its gate does not hold, if it does not
    tools: int = 0  #: calls that began
    in_flight: dict[str, str] = field(default_factory=dict)  #: call id -> tool, not answered yet
    usage: UsageReport = field(default_factory=UsageReport)
    skipped_lines: int = 0  #: too long to be read, and no saved answer has what was in them
    _answers: list[str] = field(default_factory=list)  #: of terminal events
    _said: list[str] = field(default_factory=list)  #: since the last terminal event
    _size: int = 0
    _cut: bool = False
    _has_gone_on: bool = False  #: since the last terminal event

    def add(self, happening: Happening) -> None:
        match happening:
            case Named(session_id):
                self.session_id = session_id
            case Said(text):
                self._has_gone_on = True
                self._keep(self._said, text)
            case Called(call_id, tool):
                self._has_gone_on = True
                self.tools += 1
                self.in_flight[call_id] = tool
            case Returned(call_id):
                self.in_flight.pop(call_id, None)
            case Spent(usage):
                self.usage = usage
            case Ended():
                self._end(happening)
                self.deferred = None
            case Deferred():
                self._end(Ended(ok=True))
                self.deferred = happening
            case Ungated(why):
                self.ungated = self.ungated or why
            case Noted():
                pass

    @property
    def is_answered(self) -> bool:
        """It has said that it ended well, and nothing since."""
        return self.ended is not None and self.ended.ok and not self._has_gone_on

    @property
    def lacks_answer(self) -> bool:
        """It may have said more than the stream has brought."""
        return self.skipped_lines > 0 or (self.is_answered and self.response is None)

    @property
    def is_empty(self) -> bool:
        """It has answered with no text at all."""
        return self.is_answered and self.response is None and not self.skipped_lines

    @property
    def is_cut(self) -> bool:
        return self._cut

    def take_answer(self, text: str) -> None:
        """The answer as the provider has saved it, in place of what the stream has brought."""
        brought = self.response
        self._said, self._answers, self._size, self._cut = [], [], 0, False
        self._end(Ended(ok=True, response=text))
        if self.response != brought:
            self.skipped_lines = 0

    @property
    def response(self) -> str | None:
        """Everything that was answered; where the provider repeats its answer, that, else what was said."""
        parts = [*self._answers, "".join(self._said)]
        text = "\n\n".join(part for part in parts if part)
        return (text + _CUT if self._cut else text) or None

    def _end(self, ended: Ended) -> None:
        self.ended, self._has_gone_on = ended, False
        said, self._said = "".join(self._said), []
        self._size -= len(said)
        self._keep(self._answers, said if ended.response is None else ended.response)

    def _keep(self, parts: list[str], text: str) -> None:
        kept = text[: MAX_RESPONSE - self._size]
        self._cut |= len(kept) < len(text)
        self._size += len(kept)
        if kept:
            parts.append(kept)

"""Owns what a run of an agent came to: its events folded into one report, and the verdict whether and how it failed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import assert_never

from holdfast.clock import Instant
from holdfast.domain.decisions import Fork, Fresh
from holdfast.domain.events import (
    MAX_WRITING,
    AgentEvent,
    Called,
    Deferred,
    Denied,
    DeniedCall,
    Ended,
    Named,
    Noted,
    Returned,
    Said,
    Spent,
    Ungated,
    Writing,
)
from holdfast.domain.failures import Failure, FailureClass, Fallback
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.records import record
from holdfast.domain.usage import UsageReport
from holdfast.processes.process import Exit
from holdfast.providers.contract import LaunchSpec, Provider
from holdfast.providers.failure_rules import Evidence, FailureRules

#: a longer answer is cut, and says so; the store would accept far more
MAX_RESPONSE = 1024 * 1024
_CUT = "\n[cut: the answer was longer]"
MAX_MESSAGE = 4000
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(slots=True)
class Report:
    session_id: ProviderSessionId | None = None
    ended: Ended | None = None
    deferred: Deferred | None = None  #: the call that waits for a person, if the run ended with one
    ungated: str | None = None  #: why the tool gate does not hold; None if it does
    tools: int = 0  #: calls that began
    #: calls without a result so far, by their ids
    in_flight: dict[str, Called] = field(default_factory=dict)
    denied: list[DeniedCall] = field(default_factory=list)
    usage: UsageReport = field(default_factory=UsageReport)
    skipped_lines: int = 0  #: lines that were too long to be read, unless a saved answer made up for them
    _answers: list[str] = field(default_factory=list)  #: of terminal events
    _said: list[str] = field(default_factory=list)  #: since the last terminal event
    _size: int = 0
    _cut: bool = False
    _has_continued: bool = False  #: since the last terminal event

    def add(self, event: AgentEvent) -> None:
        match event:
            case Named(session_id):
                self.session_id = session_id
            case Said(text):
                self._has_continued = True
                self._keep(self._said, text)
            case Called() | Returned() | Denied():
                self._call(event)
            case Spent(usage):
                self.usage = usage
            case Ended():
                self._end(event)
                self.deferred = None
            case Deferred():
                self._end(Ended(ok=True))
                self.deferred = event
            case Ungated(why):
                self.ungated = self.ungated or why
            case Noted() | Writing():
                pass
            case _:
                assert_never(event)

    def _call(self, event: Called | Returned | Denied) -> None:
        match event:
            case Called():
                self._has_continued = True
                self.tools += 1
                self.in_flight[event.call_id] = event
            case Returned():
                self.in_flight.pop(event.call_id, None)
            case Denied():
                call = self.in_flight.get(event.call_id) or Called(event.call_id, event.tool, {})
                self.denied.append(DeniedCall(call, event.why))

    @property
    def is_answered(self) -> bool:
        """The agent said that it ended well, and nothing after that."""
        return self.ended is not None and self.ended.ok and not self._has_continued

    @property
    def lacks_answer(self) -> bool:
        """The agent may have said more than its stream brought."""
        return self.skipped_lines > 0 or (self.is_answered and self.response is None)

    @property
    def is_empty(self) -> bool:
        """The agent answered with no text at all."""
        return self.is_answered and self.response is None and not self.skipped_lines

    @property
    def is_cut(self) -> bool:
        return self._cut

    def take_answer(self, text: str) -> None:
        """Replaces the answer from the stream by the answer that the provider saved."""
        brought = self.response
        self._said, self._answers, self._size, self._cut = [], [], 0, False
        self._end(Ended(ok=True, response=text))
        if self.response != brought:
            self.skipped_lines = 0

    @property
    def response(self) -> str | None:
        """All answers of the run. Where the provider repeats its answer at the end, that counts; otherwise what was said."""
        parts = [*self._answers, "".join(self._said)]
        text = "\n\n".join(part for part in parts if part)
        return (text + _CUT if self._cut else text) or None

    def _end(self, ended: Ended) -> None:
        self.ended, self._has_continued = ended, False
        said, self._said = "".join(self._said), []
        self._size -= len(said)
        self._keep(self._answers, said if ended.response is None else ended.response)

    def _keep(self, parts: list[str], text: str) -> None:
        kept = text[: MAX_RESPONSE - self._size]
        self._cut |= len(kept) < len(text)
        self._size += len(kept)
        if kept:
            parts.append(kept)


@dataclass(slots=True)
class Draft:
    """A text that an agent writes piece by piece, while it is not whole."""

    _end: str = ""
    _skipped: int = 0

    def begin(self, text: str = "") -> None:
        self._end, self._skipped = text, 0

    def add(self, piece: str) -> Writing:
        text = self._end + piece
        self._end = text[-MAX_WRITING:]
        self._skipped += len(text) - len(self._end)
        return Writing(self._end, self._skipped)


@dataclass(slots=True)
class SaidText:
    _pieces: list[str] = field(default_factory=list)
    _size: int = 0

    def __bool__(self) -> bool:
        return self._size > 0

    def __str__(self) -> str:
        return "".join(self._pieces)

    def add(self, text: str) -> None:
        """Keeps one character more than is reported, so that the report can tell that the text was cut."""
        kept = text[: MAX_RESPONSE + 1 - self._size]
        if kept:
            self._pieces.append(kept)
            self._size += len(kept)


@record
class Ending:
    """How a run ended. Without a ``failure`` the turn was answered, or one of its calls was deferred."""

    failure: Failure | None = None
    deferred: Deferred | None = None
    #: the provider refused the session, or perhaps its history, before anything was done: a fresh start may help
    refused: bool = False
    reset_at: Instant | None = None

    @property
    def is_answered(self) -> bool:
        return self.failure is None and self.deferred is None


def judge(spec: LaunchSpec, report: Report, exit_: Exit, provider: Provider) -> Ending:
    """Call this when the stream is drained: lines after a result count, too."""
    if report.ungated is not None:
        return Ending(Failure(FailureClass.CONFIG, report.ungated))
    ended_well = report.ended is not None and report.ended.ok
    if exit_.stopped is not None and not (report.is_answered and exit_.stopped.then.is_too_late):
        return Ending(exit_.stopped.then.failure)
    other = _other_session(spec, report)
    if other is not None:
        return Ending(Failure(FailureClass.GONE, other), refused=not report.tools)
    # an agent that had answered, and was ended before its process had exited, has answered
    if ended_well and (exit_.code == 0 or (report.is_answered and exit_.was_ended)):
        return Ending(deferred=report.deferred)
    return _classify(spec, report, exit_, provider.rules)


def _other_session(spec: LaunchSpec, report: Report) -> str | None:
    """Some providers begin a new session, and end well, when they do not accept the id that they were given."""
    got, expected = report.session_id, spec.expected_id
    if got is None:
        return None
    if isinstance(spec.decision, Fork) and got == spec.decision.provider_session_id:
        return f"asked to fork {got}, the provider continued that very session"
    minted = isinstance(spec.decision, Fresh) and spec.decision.provider_session_id is None
    if expected is not None and got != expected and not minted:
        return f"asked for session {expected}, the provider ran {got}"
    return None


def _classify(spec: LaunchSpec, report: Report, exit_: Exit, rules: FailureRules) -> Ending:
    ended = report.ended
    resumed = not isinstance(spec.decision, Fresh)
    parts = (ended.error if ended else "", rules.without_noise(_ANSI.sub("", exit_.stderr)))
    text = _ANSI.sub("", "\n".join(part for part in parts if part)).strip()
    if exit_.is_missing_binary:
        return Ending(Failure(FailureClass.MISSING_BINARY, text[:MAX_MESSAGE] or f"cannot run {spec.binary}"))
    is_cut_off = ended is None or (ended.ok and not report.is_answered)
    if is_cut_off and (exit_.signal is not None or (not text and _has_begun(report, exit_))):
        return Ending(Failure(FailureClass.INTERRUPTED, _without_end(exit_)))
    if report.is_answered and report.deferred is None:
        # what the agent wrote to standard error before it answered is no reason to try again
        without_words = f"the agent ended with {_how(exit_)} after its final event"
        return Ending(Failure(FailureClass.UNKNOWN, text[:MAX_MESSAGE] or without_words))
    found = rules.classify(
        Evidence(
            text,
            status=ended.status if ended else None,
            code=ended.code if ended else "",
            exit_code=exit_.code,
            resumed=resumed,
        )
    )
    message = text[:MAX_MESSAGE] or _without_end(exit_)
    # some agents exit with 0 when somebody interrupts them, whatever they wrote to standard error
    if ended is None and exit_.code == 0 and found.failure_class is FailureClass.UNKNOWN:
        return Ending(Failure(FailureClass.INTERRUPTED, _without_end(exit_)))
    fallback = found.failure_class.then.fallback
    may_help = fallback is Fallback.ALWAYS or (fallback is Fallback.IF_SILENT and report.response is None)
    refused = resumed and not report.tools and may_help
    return Ending(Failure(found.failure_class, message), refused=refused, reset_at=found.reset_at)


def _has_begun(report: Report, exit_: Exit) -> bool:
    """The agent had begun, so an end without a word means that it was stopped: Codex exits with 1 when it is
    interrupted, and Gemini when the process that does its work is killed."""
    return exit_.code == 0 or report.session_id is not None


def _without_end(exit_: Exit) -> str:
    return f"the agent ended with {_how(exit_)} and no final event"


def _how(exit_: Exit) -> str:
    return f"signal {exit_.signal}" if exit_.signal is not None else f"exit code {exit_.code}"

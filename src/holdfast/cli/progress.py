"""Owns the output of a running turn for a person, a pipe or a program."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from types import FrameType
from typing import TYPE_CHECKING, Final, Protocol, assert_never

from holdfast.cli import output
from holdfast.cli.asking import can_ask
from holdfast.cli.output import tell
from holdfast.cli.why import this_turn
from holdfast.domain.decisions import Decision, Fork, Fresh, Refuse, Resume, Wait, decision_document
from holdfast.domain.events import (
    AgentEvent,
    Called,
    Deferred,
    Denied,
    Ended,
    Named,
    Noted,
    Returned,
    Said,
    Spent,
    Ungated,
    Writing,
    call_words,
)
from holdfast.domain.usage import UsageReport
from holdfast.engine.documents import result_document
from holdfast.engine.result import WIDER, RunInterrupted, RunResult
from holdfast.engine.turn_requests import Starting
from holdfast.escape import one_line, visible

if TYPE_CHECKING:
    from holdfast.cli.terminal import StatusLine

_LONGEST_ARGUMENTS = 100
_MOST_DENIED = 3  #: calls that are named


class Show(Enum):
    PEOPLE = "people"  #: on a terminal, text and tool calls as they arrive; in a pipe, only the answer
    DOCUMENT = "document"  #: one JSON object at the end
    STREAM = "stream"  #: a JSON object for each event
    CHAT = "chat"  #: as PEOPLE, without the line that says how to continue


class Shown(Protocol):
    def observe(self, seen: Decision | Starting | AgentEvent) -> None: ...

    def end(self, result: RunResult) -> None: ...

    def close(self) -> None:
        """Restores the terminal, also without a result."""
        ...


@contextmanager
def shown(show: Show) -> Iterator[Shown]:
    """Shows a turn; if it is stopped, the agent is ended, its turn recorded and its result shown."""
    with stoppable():
        view = _VIEWS[show]()
        try:
            yield view
        except RunInterrupted as exc:
            view.end(exc.result)
            if isinstance(exc.__cause__, SystemExit):
                raise SystemExit(exc.__cause__.code) from exc
            raise
        finally:
            view.close()


@contextmanager
def stoppable() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into ``SystemExit``, so that an interrupted turn is recorded as after Ctrl-C."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup
            signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Beginning:
    """Makes the sentence about how a turn begins: it needs the decision, and what is known only at the launch."""

    def __init__(self) -> None:
        self.decision: Decision | None = None

    def sentence(self, seen: Decision | Starting) -> str | None:
        if isinstance(seen, Starting):
            return None if self.decision is None else this_turn(self.decision, seen)
        self.decision = seen
        return this_turn(seen) if isinstance(seen, Wait | Refuse) else None


class _Document:
    def __init__(self) -> None:
        self._beginning = _Beginning()

    def observe(self, seen: Decision | Starting | AgentEvent) -> None:
        if isinstance(seen, Resume | Fork | Fresh | Wait | Refuse | Starting):
            sentence = self._beginning.sentence(seen)
            if sentence is not None:
                tell(sentence)

    def end(self, result: RunResult) -> None:
        output.document(result_document(result))

    def close(self) -> None:
        pass


class _Stream:
    def observe(self, seen: Decision | Starting | AgentEvent) -> None:
        if not isinstance(seen, Starting):  # words for people; the decision before it has the codes
            output.json_line(_event_document(seen))

    def end(self, result: RunResult) -> None:
        output.json_line({"type": "result", **result_document(result)})

    def close(self) -> None:
        pass


class _People:
    """Prints the answer to standard output and everything else to standard error."""

    def __init__(self, *, in_chat: bool = False) -> None:
        self._began = time.monotonic()
        self._in_chat = in_chat
        self._live: StatusLine | None = None
        self._pending = ""  #: the beginning of a line that is not whole yet
        self._written = ""  #: what was printed of the text that the agent is writing
        self._running: dict[str, str] = {}  #: calls that have not returned, in words
        self._beginning = _Beginning()
        self._streams = output.is_terminal()
        if self._streams:
            from holdfast.cli.terminal import StatusLine  # rich is for terminals only

            self._live = StatusLine()

    def observe(self, seen: Decision | Starting | AgentEvent) -> None:
        match seen:
            case Resume() | Fork() | Fresh() | Wait() | Refuse() | Starting():
                sentence = self._beginning.sentence(seen)
                self._note(sentence or "", quiet=sentence is None)
            case Said() | Writing():
                self._take_text(seen)
            case Called(call_id, tool, arguments):
                self._run(call_id, call_words(tool, arguments))
                shown_arguments = one_line(json.dumps(dict(arguments), ensure_ascii=False))[
                    :_LONGEST_ARGUMENTS
                ]
                self._note(f"{tool} {shown_arguments}", quiet=not self._streams)
            case Returned(call_id, _, is_error):
                self._run(call_id, None)
                self._note("the tool failed", quiet=not (is_error and self._streams))
            case Noted(text):
                self._note(text)
            case Spent(report) if self._live is not None and not self._counts_others(report):
                self._live.tokens(report.usage.input_tokens, report.usage.output_tokens)
            case Denied():
                self._note(seen.words)
            case Named() | Spent() | Ended() | Deferred() | Ungated():
                pass  # ``end`` shows what became of the turn
            case _:
                assert_never(seen)

    def end(self, result: RunResult) -> None:
        if self._live is not None:
            self._say("\n" if self._pending else "")
            self.close()
        elif result.text is not None:
            output.text(result.text)
        for notice in result.notices:
            tell(notice)
        if result.failure is not None:
            kind = result.failure.failure_class.value
            what = kind if kind == result.status else f"{result.status}: {kind}"
            tell(f"{what}: {result.failure.message}")
        tell(_summary(result, time.monotonic() - self._began))
        if result.approval is not None:
            tell(f"waits for approval: {result.approval.what}")
            tell(f"to refuse it: holdfast deny {result.approval.id} --note WHY")
        _tell_denied(result)
        if not self._in_chat or result.approval is not None:
            tell(f"continue with: {result.continue_with}")

    def close(self) -> None:
        if self._live is not None:
            self._live.close()

    def _counts_others(self, report: UsageReport) -> bool:
        """Of a session that is continued, cumulative figures count its earlier turns, too."""
        return report.cumulative and not isinstance(self._beginning.decision, Fresh)

    def _run(self, call_id: str, words: str | None) -> None:
        """A call has begun, or returned: the live line shows the one that began last."""
        self._running.pop(call_id, None)
        if words is not None:
            self._running[call_id] = one_line(words)
        if self._live is not None:
            self._live.running(next(reversed(self._running.values()), ""))

    def _take_text(self, seen: Said | Writing) -> None:
        if self._streams:
            if isinstance(seen, Said):
                self._say_rest(seen.text)
            elif seen.skipped <= len(self._written):  # else the gap is printed when the text is whole
                self._write(seen)

    def _write(self, writing: Writing) -> None:
        """Prints what is new since the last time."""
        known = self._written[writing.skipped :]
        if writing.text.startswith(known):
            self._say(writing.text[len(known) :])
            self._written += writing.text[len(known) :]
        elif not writing.skipped:
            self._say_rest("")  # the agent began again
            self._say(writing.text)
            self._written = writing.text

    def _say_rest(self, text: str) -> None:
        """Prints a text that is whole now, without what was printed while it was written."""
        written, self._written = self._written, ""
        if text.startswith(written):
            self._say(text.removeprefix(written))
        else:
            self._say(f"\n{text}" if self._pending else text)

    def _say(self, text: str) -> None:
        """Prints whole lines and keeps the rest, because a note may follow."""
        *lines, self._pending = (self._pending + text).split("\n")
        assert self._live is not None
        self._live.say([visible(line) for line in lines], visible(self._pending))

    def _note(self, text: str, *, quiet: bool = False) -> None:
        if quiet:
            return
        if self._live is not None:
            if self._pending:
                self._say("\n")
            self._live.note(one_line(text))
        else:
            tell(text)


def _tell_denied(result: RunResult) -> None:
    """Says what the agent was not allowed to do, and the command that allows it."""
    for denied in result.denied[:_MOST_DENIED]:
        tell(f"the agent was not allowed to use {denied.words}")
    if len(result.denied) > _MOST_DENIED:
        tell(f"nor {len(result.denied) - _MOST_DENIED} more calls")
    if result.allow_with is not None:
        # a person is asked
        shown = result.allow_with.replace(f" {WIDER}", "") if can_ask() else result.allow_with
        tell(f"to allow it: {shown}")


def _summary(result: RunResult, seconds: float) -> str:
    usage = result.usage
    tokens = f"{usage.input_tokens} tokens in, {usage.output_tokens} out"
    return f"turn {result.turn} of {result.called}: {result.status}, {seconds:.1f} s, {tokens}, {output.money(usage.cost_usd)}"


def _event_document(seen: Decision | AgentEvent) -> dict[str, object]:
    match seen:
        case Named(session_id):
            return {"type": "provider_session", "provider_session_id": session_id}
        case Said(text):
            return {"type": "text", "text": text}
        case Writing(text, skipped):
            return {"type": "partial_text", "text": text, "skipped": skipped}
        case Called() | Returned() | Denied() | Deferred():
            return _call_document(seen)
        case Spent(report):
            return {
                "type": "usage",
                "input_tokens": report.usage.input_tokens,
                "output_tokens": report.usage.output_tokens,
                "cost_usd": report.usage.cost_usd,
                "cumulative": report.cumulative,
            }
        case Noted(text):
            return {"type": "notice", "text": text}
        case Ended(ok, _, error, status, code):
            return {"type": "end", "ok": ok, "error": error, "status": status, "code": code}
        case Ungated(why):
            return {"type": "ungated", "why": why}
        case _:
            return {"type": "decision", "decision": decision_document(seen)}


def _call_document(seen: Called | Returned | Denied | Deferred) -> dict[str, object]:
    match seen:
        case Called(call_id, tool, arguments):
            return {"type": "tool_call", "id": call_id, "tool": tool, "arguments": dict(arguments)}
        case Returned(call_id, text, is_error):
            return {"type": "tool_result", "id": call_id, "output": text, "is_error": is_error}
        case Denied(call_id, tool, why):
            return {"type": "denied", "id": call_id, "tool": tool, "why": why}
        case Deferred(call_id, tool, arguments):
            return {"type": "deferred", "id": call_id, "tool": tool, "arguments": dict(arguments)}


_VIEWS: Final[Mapping[Show, Callable[[], Shown]]] = {
    Show.PEOPLE: _People,
    Show.DOCUMENT: _Document,
    Show.STREAM: _Stream,
    Show.CHAT: lambda: _People(in_chat=True),
}

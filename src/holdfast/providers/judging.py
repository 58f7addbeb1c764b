"""Owns the verdict on a run: did it fail, how, and did the provider refuse the session it was to continue."""

from __future__ import annotations

import re

from holdfast.clock import Instant
from holdfast.domain.decisions import Fork, Fresh
from holdfast.domain.failures import BLAMES_HISTORY, Failure, FailureClass
from holdfast.domain.records import record
from holdfast.processes.process import Exit, StopCause
from holdfast.providers.contract import LaunchSpec, Provider
from holdfast.providers.failure_rules import Evidence, FailureRules
from holdfast.providers.happenings import Deferred
from holdfast.providers.report import Report

MAX_MESSAGE = 4000
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

_STOPPED = {
    StopCause.CANCELLED: (FailureClass.CANCELLED, "cancelled"),
    StopCause.TIMEOUT: (FailureClass.INTERRUPTED, "the time limit of the turn was reached"),
    StopCause.LEASE_LOST: (FailureClass.INTERRUPTED, "the lease on the turn was lost"),
    StopCause.EXIT: (FailureClass.INTERRUPTED, "holdfast itself was stopped"),
    StopCause.UNGATED: (FailureClass.CONFIG, "the gate before its tool calls does not hold"),
    StopCause.HANDED_BACK: (FailureClass.INTERRUPTED, "the worker was stopped"),
}
#: whoever stops an agent for one of these that has already answered takes nothing away from its answer
_TOO_LATE = (StopCause.TIMEOUT, StopCause.EXIT, StopCause.HANDED_BACK)


@record
class Ending:
    """``failure`` None: the turn was answered, unless a call of it was deferred."""

    failure: Failure | None = None
    deferred: Deferred | None = None
    #: the session was refused, or its history may have been, before anything was done: a fresh start may help
    refused: bool = False
    reset_at: Instant | None = None

    @property
    def is_answered(self) -> bool:
        return self.failure is None and self.deferred is None


def judge(spec: LaunchSpec, report: Report, exit_: Exit, provider: Provider) -> Ending:
    """Call it when the stream is drained: what comes after a result counts too."""
    if report.ungated is not None:
        return Ending(Failure(FailureClass.CONFIG, report.ungated))
    ended_well = report.ended is not None and report.ended.ok
    if exit_.stopped is not None and not (report.is_answered and exit_.stopped in _TOO_LATE):
        return Ending(Failure(*_STOPPED[exit_.stopped]))
    other = _other_session(spec, report)
    if other is not None:
        return Ending(Failure(FailureClass.GONE, other), refused=not report.tools)
    # one that had answered, and was ended before it had left, has answered
    if ended_well and (exit_.code == 0 or (report.is_answered and exit_.was_ended)):
        return Ending(deferred=report.deferred)
    return _classify(spec, report, exit_, provider.rules)


def _other_session(spec: LaunchSpec, report: Report) -> str | None:
    """Some providers begin a new session, and end well, when they do not like the id they got."""
    got, expected = report.session_id, spec.expected_id
    if got is None:
        return None
    if isinstance(spec.decision, Fork) and got == spec.decision.provider_session_id:
        return f"asked to fork {got}, the provider went on with that very session"
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
        # what it wrote to standard error on the way is no reason to ask again
        return Ending(Failure(FailureClass.UNKNOWN, text[:MAX_MESSAGE] or _after_answer(exit_)))
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
    # some agents that someone interrupts end well, whatever else they have said on standard error
    if ended is None and exit_.code == 0 and found.failure_class is FailureClass.UNKNOWN:
        return Ending(Failure(FailureClass.INTERRUPTED, _without_end(exit_)))
    is_gone = found.failure_class is FailureClass.GONE
    may_help = is_gone or (found.failure_class in BLAMES_HISTORY and report.response is None)
    refused = resumed and not report.tools and may_help
    return Ending(Failure(found.failure_class, message), refused=refused, reset_at=found.reset_at)


def _has_begun(report: Report, exit_: Exit) -> bool:
    """Whoever stops in the middle without a word was stopped: Codex ends with 1 when it is interrupted, and
    Gemini when the process that does its work is killed."""
    return exit_.code == 0 or report.session_id is not None


def _without_end(exit_: Exit) -> str:
    return f"the agent ended with {_how(exit_)} and no final event"


def _after_answer(exit_: Exit) -> str:
    return f"the agent ended with {_how(exit_)} after its final event"


def _how(exit_: Exit) -> str:
    return f"signal {exit_.signal}" if exit_.signal is not None else f"exit code {exit_.code}"

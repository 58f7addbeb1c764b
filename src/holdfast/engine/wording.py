"""Owns the sentences about a session that the command and the page share: what its next turn does, and its figures."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, assert_never

from holdfast.clock import Instant, age
from holdfast.domain.approvals import Approval
from holdfast.domain.decisions import (
    Because,
    Decision,
    Fork,
    Fresh,
    Outcome,
    Refuse,
    Resume,
    Standing,
    Verdict,
    Wait,
    because,
)
from holdfast.domain.phases import MayContinue, Phase, continue_words
from holdfast.domain.policy import ContinuePolicy
from holdfast.domain.records import record
from holdfast.domain.runtimes import KnownRuntime
from holdfast.domain.sessions import Session, SessionState, SessionStatus
from holdfast.domain.statistics import Measure, Unit
from holdfast.domain.turns import Turn
from holdfast.engine.explain import Explanation, WaitingTurn

# --- what happens next ---


@record
class Manner:
    """How a reader is told: with which form of an instant, and with what besides the plain words."""

    when: Callable[[Instant], str]
    codes: bool = True  #: reasons as codes, which programs and search engines know
    commands: bool = True  #: what to type next, and the ids for that; a page has buttons


def verdict(explanation: Explanation, policy: ContinuePolicy, now: Instant, manner: Manner) -> str:
    """What happens next to a session, in one sentence."""
    session = explanation.session
    if explanation.may_continue is MayContinue.FINAL:
        how = f": holdfast fork {session.id}" if manner.commands else "."
        return f"The session is {session.phase}; a fork can continue its work{how}"
    if explanation.waits_for is not None:
        return _waiting(explanation.waits_for, explanation.may_continue, manner)
    if explanation.waiting is not None and (waits := _in_queue(explanation.waiting, now, manner)):
        return waits
    then = _after_cut(explanation, next_turn(explanation.decision, explanation.provider, manner), manner)
    if explanation.may_continue is MayContinue.YES:
        return then
    why_not = continue_words(explanation.may_continue, session, policy, now)
    code = f"{explanation.may_continue.value}: " if manner.codes else ""
    return f"The session should not continue ({code}{why_not}). If a turn is added anyway: {_lower(then)}"


def _after_cut(explanation: Explanation, then: str, manner: Manner) -> str:
    if not explanation.is_cut_off or explanation.last_attempt is None:
        return then
    how = f" To continue it: holdfast resume {explanation.session.id}." if manner.commands else ""
    return f"Turn {explanation.last_attempt.seq} was cut off: what ran it is gone.{how} {then}"


def _waiting(asked: Approval, answer: MayContinue, manner: Manner) -> str:
    waits = f"Turn {asked.seq} waits for an approval: {asked.what}"
    if answer is MayContinue.EXPIRED:
        cancel = f"; to cancel the turn: holdfast cancel {asked.session_id} --turn {asked.seq}"
        return f"{waits}. The approval has expired{cancel if manner.commands else '.'}"
    return f"{waits}. To answer: holdfast approve {asked.id}" if manner.commands else waits


def _in_queue(waiting: WaitingTurn, now: Instant, manner: Manner) -> str:
    """Says what a queued turn waits for; empty if it only waits for a free worker."""
    sentences = []
    if waiting.until is not None:
        sentences.append(_until(waiting.turn, waiting.until, now, manner))
    if waiting.runtime is not None:
        sentences.append(_pinned(waiting.turn, waiting.runtime, now, manner))
    return " ".join(sentences)


def _until(turn: Turn, until: Instant, now: Instant, manner: Manner) -> str:
    left = f"in {age(now, until)}"
    if turn.attempts:
        return (
            f"Turn {turn.seq} is tried again at {manner.when(until)} ({left}, attempt {turn.attempts + 1})."
        )
    return f"Turn {turn.seq} does not start before {manner.when(until)} ({left})."


def _pinned(turn: Turn, known: KnownRuntime, now: Instant, manner: Manner) -> str:
    where = f"{known.runtime.provider} in {known.runtime.home} on {machine_words(known.runtime.machine)}"
    seen = f"last seen at {manner.when(known.last_seen_at)} ({age(known.last_seen_at, now)} ago)"
    return f"Turn {turn.seq} waits for the runtime {known.id} only ({where}), {seen}."


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def next_turn(decision: Decision, provider: str, manner: Manner) -> str:
    reason = because(decision).note if manner.codes else because(decision).sentence
    match decision:
        case Resume(provider_session_id) | Fork(provider_session_id):
            does = "resumes" if isinstance(decision, Resume) else "forks"
            which = f"session {provider_session_id}" if manner.codes else "session"
            return f"The next turn {does} the {provider} {which}{_provided(decision)}."
        case Fresh():
            return f"The next turn starts a fresh {provider} session with the whole context: {reason}."
        case Wait():
            return f"The next turn waits: {reason}."
        case Refuse():
            return f"The next turn would be refused: {reason}."
        case _:
            assert_never(decision)


def _provided(decision: Decision) -> str:
    unseen = sum(v.standing is Standing.NOT_OBSERVABLE for v in decision.verdicts)
    return f", if the {unseen} guards that cannot be judged from here pass too" if unseen else ""


#: of a guard's standing, in a table
MARKS: Final = {
    Standing.PASSED: "✓",
    Standing.FAILED: "✗",
    Standing.MISSING: "✗",
    Standing.NOT_OBSERVABLE: "?",
    Standing.NOT_APPLICABLE: "–",
}
_UNSEEN: Final = {
    Standing.NOT_OBSERVABLE: "cannot be seen from here",
    Standing.NOT_APPLICABLE: "nothing to guard",
}


def evidence_words(verdict: Verdict) -> str:
    return verdict.evidence or _UNSEEN.get(verdict.standing, "")


def objection_words(verdict: Verdict) -> str:
    """What a guard that did not pass has seen, and what it asks for."""
    seen = Because(verdict.reason, verdict.standing, verdict.evidence).sentence
    what = {Outcome.FRESH: "asks for a fresh start", Outcome.WAIT: "asks to wait", Outcome.REFUSE: "refuses"}
    return f"{seen}; {what[verdict.outcome]}"


def machine_words(machine: str) -> str:
    """A machine as a person tells it apart: this one, or the beginning of its id."""
    from holdfast.config import data_dir  # only needed here
    from holdfast.processes.machine import machine_id

    return "this machine" if machine == machine_id(data_dir(os.environ)) else f"machine {machine[:12]}"


# --- the status ---

#: pairs in which the phase adds nothing to the status
_SAID_BY_STATUS: Final = {
    (SessionStatus.FAILED, Phase.FAILED),
    (SessionStatus.DONE, Phase.COMPLETED),
}


def status_words(session: Session, state: SessionState, asked: Approval | None = None) -> str:
    """The status: whom it waits for, and the phase in parentheses if the session uses phases and it adds something."""
    status, phase = state.status, session.phase
    if status is SessionStatus.WAITING:
        return f"waiting for {', '.join(sorted(asked.answerers)) if asked and asked.answerers else 'you'}"
    adds = session.uses_phases and phase is not Phase.INITIALIZING and (status, phase) not in _SAID_BY_STATUS
    return f"{status} ({phase})" if adds else status.value


# --- the figures ---

_MEASURE_NAMES: Final = {
    "resume_rate": "resume rate",
    "delegations_resumed": "delegations resumed",
    "resume_success": "resume success",
    "duration_median": "duration, median",
    "duration_p95": "duration, p95",
    "turn_duration_median": "turn, median",
    "turn_duration_p95": "turn, p95",
    "error_rate": "error rate",
    "storage": "storage, without the vault",
    "vault": "vault",
    "creation_rate": "sessions a day",
}


def measure_name(measure: Measure) -> str:
    return _MEASURE_NAMES.get(measure.name, measure.name)


def measure_value(measure: Measure) -> str:
    if measure.value is None:
        return "no data"
    match measure.unit:
        case Unit.SHARE:
            return f"{measure.value:.1%}"
        case Unit.SECONDS:
            return _seconds(measure.value)
        case Unit.BYTES:
            return f"{measure.value / 1_000_000:.1f} MB"
        case Unit.PER_DAY:
            return f"{measure.value:.1f}"


def measure_basis(measure: Measure) -> str:
    """What a measure was computed from; "" for sizes, which are what they say."""
    if measure.unit is Unit.BYTES:
        return ""
    return ", ".join(f"{_number(value)} {_noun(name, value)}" for name, value in measure.of.items())


def _seconds(value: float) -> str:
    if value < 120:
        return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"


def _noun(name: str, value: float) -> str:
    return (name.removesuffix("s") if value == 1 else name).replace("_", " ")

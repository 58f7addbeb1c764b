"""Owns the explanation of a decision: the commands why and should-resume, and the sentences that they print."""

from __future__ import annotations

from typing import assert_never

import click

from holdfast.cli import output
from holdfast.cli.arguments import (
    session_argument,
)
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.exit_codes import NOT_FOUND, REFUSED
from holdfast.cli.output import Block, Cell, Column, Fields, Line, Table, Tone, age, cell, duration
from holdfast.clock import Instant, to_iso
from holdfast.domain.approvals import Approval
from holdfast.domain.decisions import (
    Decision,
    Fork,
    Fresh,
    Outcome,
    Reason,
    Refuse,
    Resume,
    Standing,
    Verdict,
    Wait,
    because,
)
from holdfast.domain.failures import Failure
from holdfast.domain.phases import MayContinue, idle_limit
from holdfast.domain.policy import ContinuePolicy
from holdfast.domain.runtimes import KnownRuntime, Runtime
from holdfast.domain.sessions import Session
from holdfast.domain.telling.transcript import ranges_text
from holdfast.domain.turns import Attempt, AttemptCause, AttemptStatus, Turn
from holdfast.engine.documents import (
    explanation_document,
)
from holdfast.engine.explain import Explanation, WaitingTurn
from holdfast.errors import NotFound, UnreadableSession


@command("why", "holdfast why deploy", "holdfast why deploy --provider codex")
@session_argument
@click.option("--provider", metavar="NAME", help="For this provider; by default the session's own.")
@pass_invocation
def why(run: Invocation, session: str, provider: str | None) -> None:
    """Explain how the next turn of a session would start.

    Lists every guard with its verdict and its evidence, then the verdict in one sentence, then the decision of
    the last turn. Changes nothing.
    """
    explanation = run.holdfast.why(run.find(session), provider)
    policy, now = run.holdfast.policy.continue_, run.holdfast.store.now()
    if run.json:
        asked = {"session_id": explanation.session.id, "provider": explanation.provider}
        output.document(asked | explanation_document(explanation, verdict(explanation, policy, now)))
    else:
        output.blocks(_why_blocks(explanation, policy, now))


@command("should-resume", "holdfast should-resume deploy")
@session_argument
@pass_invocation
@click.pass_context
def should_resume(ctx: click.Context, run: Invocation, session: str) -> None:
    """Tell whether a session may continue, and the reason.

    Exit code 0: it may continue. 4: it may not. 3: the session was not found.
    """
    try:
        session_id = run.find(session)
        answer = run.holdfast.may_continue(session_id)
    except NotFound:
        session_id, answer = None, MayContinue.NOT_FOUND
    may = answer is MayContinue.YES
    words = _words(run, answer, session_id)
    if run.json:
        output.document(
            {"session_id": session_id, "should_resume": may, "reason": answer.value, "message": words}
        )
    elif output.is_terminal():
        output.say(f"{'yes' if may else 'no'}: {answer.value} ({words})")
    else:
        output.say(answer.value)
    if not may:
        ctx.exit(NOT_FOUND if answer is MayContinue.NOT_FOUND else REFUSED)


def _words(run: Invocation, answer: MayContinue, session_id: str | None) -> str:
    try:
        found = None if session_id is None else run.holdfast.session(session_id)
    except (NotFound, UnreadableSession):
        found = None
    return continue_words(answer, found, run.holdfast.policy.continue_, run.holdfast.store.now())


# --- the table of guards, and the last attempt ---

_GUARD_COLUMNS = (
    Column("GUARD", whole=True),
    Column("VERDICT", whole=True),
    Column("ASKS FOR", whole=True),
    Column("EVIDENCE", wraps=True),
)
_TONES = {
    Standing.PASSED: Tone.GOOD,
    Standing.FAILED: Tone.BAD,
    Standing.MISSING: Tone.BAD,
    Standing.NOT_OBSERVABLE: Tone.DIM,
    Standing.NOT_APPLICABLE: Tone.DIM,
}


def _why_blocks(explanation: Explanation, policy: ContinuePolicy, now: Instant) -> list[Block]:
    may = explanation.may_continue is MayContinue.YES
    words = continue_words(explanation.may_continue, explanation.session, policy, now)
    answer = f"{'yes' if may else 'no'}: {explanation.may_continue.value} ({words})"
    head = Fields(
        (
            ("session", cell(explanation.session.id, Tone.STRONG)),
            ("provider", cell(explanation.provider)),
            ("judged for", cell(_where(explanation.runtime))),
            ("may continue", cell(answer, Tone.GOOD if may else Tone.BAD)),
        )
    )
    guards = Table(_GUARD_COLUMNS, tuple(map(_guard_row, explanation.decision.verdicts)))
    last = explanation.last_attempt
    before = (
        Line(cell("No turn of this session has run yet.", Tone.DIM))
        if last is None
        else _last(explanation, last, now)
    )
    return [head, guards, Line(cell(verdict(explanation, policy, now), Tone.STRONG)), before]


def _where(runtime: Runtime | None) -> str:
    if runtime is None:
        return "any machine: the session has not run yet, or its machine is not known"
    return f"the runtime that it used before: {runtime.machine}, {runtime.home} ({runtime.id})"


def _guard_row(verdict: Verdict) -> tuple[Cell, ...]:
    has_no_objection = verdict.outcome is Outcome.RESUME
    return (
        cell(verdict.reason.value),
        cell(verdict.standing.value.replace("_", " "), _TONES[verdict.standing]),
        cell("" if has_no_objection else verdict.outcome.name.lower()),
        cell(verdict.evidence),
    )


def _last(explanation: Explanation, attempt: Attempt, now: Instant) -> Fields:
    decision = attempt.decision
    rows = [
        ("last turn", cell(f"{to_iso(attempt.started_at)} ({age(attempt.started_at, now)} ago)")),
        ("number", cell(_lineage(explanation, attempt))),
        ("decided", cell(f"{decision.kind}: {because(decision).note}")),
        ("result", cell(_result(attempt.status))),
    ]
    if attempt.failure is not None:
        rows.append(("failure", cell(_failure(attempt.failure), Tone.BAD, limit=300)))
        rows.append(("meaning", cell(attempt.failure.then.meaning)))
    return Fields(tuple(rows))


def _result(status: AttemptStatus) -> str:
    return "waits for an approval" if status is AttemptStatus.DEFERRED else status.value.replace("_", " ")


def _failure(failure: Failure) -> str:
    """Returns the failure class, and the message unless it repeats the class."""
    kind = failure.failure_class.value
    return kind if failure.message in ("", kind) else f"{kind}: {failure.message}"


def _lineage(explanation: Explanation, attempt: Attempt) -> str:
    """Returns the number of a turn and of its attempt, and what each of them repeats."""
    turn = explanation.last_turn
    repeats = "" if turn is None or turn.retry_of is None else f" (retry of {turn.retry_of})"
    cause = "" if attempt.cause is AttemptCause.FIRST else f" ({attempt.cause})"
    return f"{attempt.seq}{repeats}, attempt {attempt.number}{cause}, {attempt.provider}"


# --- sentences ---


def continue_words(answer: MayContinue, session: Session | None, policy: ContinuePolicy, now: Instant) -> str:
    """Says why a session may or may not continue; ``session`` is None if it is missing or cannot be read."""
    if session is None:
        unreadable = answer is MayContinue.UNREADABLE
        return "its stored row cannot be read" if unreadable else "the session was not found"
    match answer:
        case MayContinue.YES:
            return "all conditions are met"
        case MayContinue.FINAL:
            return f"the session is {session.phase}, which is final; a fork can continue its work"
        case MayContinue.PHASE:
            return f"phase {session.phase} is not one of {', '.join(sorted(policy.resumable_phases))}"
        case MayContinue.NOT_READY:
            return "the session is not marked as ready to resume"
        case MayContinue.ERRORS:
            return f"{session.error_count} errors since the last success; the limit is {policy.max_errors}"
        case MayContinue.TOO_OLD:
            limit = duration(idle_limit(policy, session.agent) or 0)
            return f"idle for {age(session.updated_at, now)}; the limit is {limit}"
        case MayContinue.EXPIRED:
            return "the approval that the session asked for has expired; ask again, or move to another phase"
        case MayContinue.NOT_FOUND | MayContinue.UNREADABLE:
            return "the session changed while it was read"
        case _:
            assert_never(answer)


def verdict(explanation: Explanation, policy: ContinuePolicy, now: Instant) -> str:
    """What happens next to a session, in one sentence."""
    session = explanation.session
    if explanation.may_continue is MayContinue.FINAL:
        return f"The session is {session.phase}; a fork can continue its work: holdfast fork {session.id}"
    if explanation.waits_for is not None:
        return _waiting(explanation.waits_for, explanation.may_continue)
    if explanation.waiting is not None and (waits := _in_queue(explanation.waiting, now)):
        return waits
    if explanation.may_continue is not MayContinue.YES:
        reason = explanation.may_continue.value
        why_continue = continue_words(explanation.may_continue, session, policy, now)
        rule = f"The session should not continue ({reason}: {why_continue})."
        return f"{rule} If a turn is added anyway: {_lower(next_turn(explanation.decision, explanation.provider))}"
    return next_turn(explanation.decision, explanation.provider)


def _waiting(asked: Approval, answer: MayContinue) -> str:
    waits = f"Turn {asked.seq} waits for an approval: {asked.what}"
    if answer is MayContinue.EXPIRED:
        return f"{waits}. The approval has expired; to cancel the turn: holdfast cancel {asked.session_id} --turn {asked.seq}"
    return f"{waits}. To answer: holdfast approve {asked.id}"


def _in_queue(waiting: WaitingTurn, now: Instant) -> str:
    """Says what a queued turn waits for; empty if it only waits for a free worker."""
    sentences = []
    if waiting.until is not None:
        sentences.append(_until(waiting.turn, waiting.until, now))
    if waiting.runtime is not None:
        sentences.append(_pinned(waiting.turn, waiting.runtime, now))
    return " ".join(sentences)


def _until(turn: Turn, until: Instant, now: Instant) -> str:
    left = f"in {age(now, until)}"
    if turn.attempts:
        return f"Turn {turn.seq} is tried again at {to_iso(until)} ({left}, attempt {turn.attempts + 1})."
    return f"Turn {turn.seq} does not start before {to_iso(until)} ({left})."


def _pinned(turn: Turn, known: KnownRuntime, now: Instant) -> str:
    where = f"{known.runtime.provider} in {known.runtime.home} on machine {known.runtime.machine[:12]}"
    seen = f"last seen at {to_iso(known.last_seen_at)} ({age(known.last_seen_at, now)} ago)"
    return f"Turn {turn.seq} waits for the runtime {known.id} only ({where}), {seen}."


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def next_turn(decision: Decision, provider: str) -> str:
    match decision:
        case Resume(provider_session_id):
            return f"The next turn resumes the {provider} session {provider_session_id}{_provided(decision)}."
        case Fork(provider_session_id):
            return f"The next turn forks the {provider} session {provider_session_id}{_provided(decision)}."
        case Fresh():
            start = f"The next turn starts a fresh {provider} session with the whole context"
            return f"{start}: {because(decision).note}."
        case Wait():
            return f"The next turn waits: {because(decision).note}."
        case Refuse():
            return f"The next turn would be refused: {because(decision).note}."
        case _:
            assert_never(decision)


def this_turn(decision: Decision) -> str:
    """Says what a turn does, before the agent starts."""
    match decision:
        case Resume(provider_session_id):
            return f"resuming session {provider_session_id}{_catching_up(decision)}"
        case Fork(provider_session_id):
            return f"forking session {provider_session_id}{_catching_up(decision)}"
        case Fresh():
            if decision.reason is Reason.NO_POINTER:
                return "starting a new session (no_pointer)"
            return f"starting fresh: {because(decision).note}"
        case Wait():
            return f"waiting: {because(decision).note}"
        case Refuse():
            return f"refused: {because(decision).note}"
        case _:
            assert_never(decision)


def _catching_up(decision: Resume | Fork) -> str:
    told = ranges_text(decision.catch_up)
    word = "turn" if told.isdecimal() else "turns"
    return f", with {word} {told} that it has not seen" if told else ""


def _provided(decision: Decision) -> str:
    unseen = sum(v.standing is Standing.NOT_OBSERVABLE for v in decision.verdicts)
    return f", if the {unseen} guards that cannot be judged from here pass too" if unseen else ""

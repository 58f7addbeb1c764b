"""Owns the explanation of a decision for a person: everything that ``why`` tells."""

from __future__ import annotations

from holdfast.cli.output import Block, Cell, Column, Fields, Line, Table, Tone, age, cell
from holdfast.clock import Instant, to_iso
from holdfast.domain.decisions import Outcome, Standing, Verdict, because
from holdfast.domain.failures import Failure
from holdfast.domain.phases import MayContinue
from holdfast.domain.runtimes import Runtime
from holdfast.domain.turns import Attempt, AttemptCause, AttemptStatus
from holdfast.engine.explain import Explanation

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


def why_blocks(explanation: Explanation, words: str, sentence: str, now: Instant) -> list[Block]:
    may = explanation.may_continue is MayContinue.YES
    answer = f"{'yes' if may else 'no'}: {explanation.may_continue.value} ({words})"
    head = Fields(
        (
            ("session", cell(explanation.session.id, Tone.STRONG)),
            ("provider", cell(explanation.provider)),
            ("judged for", cell(_where(explanation.runtime))),
            ("may it go on", cell(answer, Tone.GOOD if may else Tone.BAD)),
        )
    )
    guards = Table(_GUARD_COLUMNS, tuple(map(_guard_row, explanation.decision.verdicts)))
    last = explanation.last_attempt
    before = (
        Line(cell("The last time: there was none.", Tone.DIM))
        if last is None
        else _last(explanation, last, now)
    )
    return [head, guards, Line(cell(sentence, Tone.STRONG)), before]


def _where(runtime: Runtime | None) -> str:
    if runtime is None:
        return "any machine: it has not run yet, or it is not known where"
    return f"where it ran before: {runtime.machine}, {runtime.home} ({runtime.id})"


def _guard_row(verdict: Verdict) -> tuple[Cell, ...]:
    stands_aside = verdict.outcome is Outcome.RESUME
    return (
        cell(verdict.reason.value),
        cell(verdict.standing.value.replace("_", " "), _TONES[verdict.standing]),
        cell("" if stands_aside else verdict.outcome.name.lower()),
        cell(verdict.evidence),
    )


def _last(explanation: Explanation, attempt: Attempt, now: Instant) -> Fields:
    decision = attempt.decision
    rows = [
        ("the last time", cell(f"{to_iso(attempt.started_at)} ({age(attempt.started_at, now)} ago)")),
        ("turn", cell(_lineage(explanation, attempt))),
        ("decided", cell(f"{decision.kind}: {because(decision).note}")),
        ("came to", cell(_came_to(attempt.status))),
    ]
    if attempt.failure is not None:
        rows.append(("failure", cell(_failure(attempt.failure), Tone.BAD, limit=300)))
    return Fields(tuple(rows))


def _came_to(status: AttemptStatus) -> str:
    return "waits for an approval" if status is AttemptStatus.DEFERRED else status.value.replace("_", " ")


def _failure(failure: Failure) -> str:
    """Its class, and its words if they say more."""
    kind = failure.failure_class.value
    return kind if failure.message in ("", kind) else f"{kind}: {failure.message}"


def _lineage(explanation: Explanation, attempt: Attempt) -> str:
    """Which turn and attempt it was, and what each of them repeats."""
    turn = explanation.last_turn
    repeats = "" if turn is None or turn.retry_of is None else f" (retry of {turn.retry_of})"
    cause = "" if attempt.cause is AttemptCause.FIRST else f" ({attempt.cause})"
    return f"{attempt.seq}{repeats}, attempt {attempt.number}{cause}, {attempt.provider}"

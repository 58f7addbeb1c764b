"""Owns the explanation of a decision: the commands why and should-resume, and the sentences that they print."""

from __future__ import annotations

import click

from holdfast.cli import output
from holdfast.cli.answers import tell_may_continue
from holdfast.cli.arguments import provider_option, session_argument
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.output import (
    Block,
    Cell,
    Column,
    Fields,
    Line,
    Table,
    Tone,
    cell,
    long_ago,
    moment,
)
from holdfast.clock import Instant, age
from holdfast.domain.decisions import (
    WORDS,
    Decision,
    Fork,
    Fresh,
    Outcome,
    Reason,
    Resume,
    Standing,
    Verdict,
    Wait,
    because,
)
from holdfast.domain.failures import Failure
from holdfast.domain.phases import MayContinue, continue_words
from holdfast.domain.policy import ContinuePolicy
from holdfast.domain.telling.transcript import ranges_text
from holdfast.domain.turns import Attempt, AttemptCause, AttemptStatus
from holdfast.engine.documents import (
    explanation_document,
)
from holdfast.engine.explain import Explanation
from holdfast.engine.turn_requests import Starting
from holdfast.engine.wording import MARKS, Manner, evidence_words, machine_words, objection_words, verdict
from holdfast.errors import NotFound, UnreadableSession

#: with codes, which a program can tell apart
TO_PROGRAM = Manner(moment)
TO_PERSON = Manner(moment, codes=False)


@command("why", "holdfast why deploy", "holdfast why deploy --provider codex")
@session_argument
@provider_option(help="For this provider; by default the session's own.")
@pass_invocation
def why(run: Invocation, session: str, provider: str | None) -> None:
    """Explain how the next turn of a session would start.

    Begins with the answer, then says what stands in the way, then lists every guard with its evidence and its
    code, then the decision of the last turn. Changes nothing. In a pipe, the guards come first, by their codes.
    """
    explanation = run.holdfast.why(run.find(session), provider)
    policy, now = run.holdfast.policy.continue_, run.holdfast.store.now()
    if run.json:
        asked = {"session_id": explanation.session.id, "provider": explanation.provider}
        output.document(
            asked | explanation_document(explanation, verdict(explanation, policy, now, TO_PROGRAM))
        )
    elif output.is_terminal():
        output.blocks(_answer_first(explanation, policy, now))
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
    ctx.exit(tell_may_continue(answer, session_id, _words(run, answer, session_id), as_json=run.json))


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


#: for people: what is true if the guard passes, and its code last
_WORDED_COLUMNS = (
    Column("GUARD", whole=True),
    Column("EVIDENCE", wraps=True),
    Column("CODE", whole=True),
)


def _answer_first(explanation: Explanation, policy: ContinuePolicy, now: Instant) -> list[Block]:
    may = explanation.may_continue is MayContinue.YES
    words = continue_words(explanation.may_continue, explanation.session, policy, now)
    verdicts = explanation.decision.verdicts
    in_the_way = tuple(
        (WORDS[verdict.reason].holds, cell(f"no: {objection_words(verdict)}", Tone.BAD))
        for verdict in verdicts
        if verdict.outcome is not Outcome.RESUME
    )
    about = Fields(
        (
            ("session", cell(explanation.session.id, Tone.STRONG)),
            *((("title", cell(title, limit=200)),) if (title := explanation.session.title) else ()),
            ("provider", cell(explanation.provider)),
            ("judged for", cell(_where(explanation))),
            ("may continue", cell(f"{'yes' if may else 'no'}: {words}", Tone.GOOD if may else Tone.BAD)),
        )
    )
    guards = Table(_WORDED_COLUMNS, tuple(map(_worded_row, verdicts)))
    last = explanation.last_attempt
    return [
        Line(cell(verdict(explanation, policy, now, TO_PERSON), Tone.STRONG)),
        *((Fields(in_the_way),) if in_the_way else ()),
        about,
        guards,
        Line(cell(_not_run(explanation), Tone.DIM)) if last is None else _last(explanation, last, now),
    ]


def _worded_row(verdict: Verdict) -> tuple[Cell, ...]:
    return (
        cell(f"{WORDS[verdict.reason].holds} {MARKS[verdict.standing]}", _TONES[verdict.standing]),
        cell(evidence_words(verdict)),
        cell(verdict.reason.value, Tone.DIM),
    )


def _why_blocks(explanation: Explanation, policy: ContinuePolicy, now: Instant) -> list[Block]:
    may = explanation.may_continue is MayContinue.YES
    words = continue_words(explanation.may_continue, explanation.session, policy, now)
    answer = f"{'yes' if may else 'no'}: {explanation.may_continue.value} ({words})"
    head = Fields(
        (
            ("session", cell(explanation.session.id, Tone.STRONG)),
            ("provider", cell(explanation.provider)),
            ("judged for", cell(_where(explanation))),
            ("may continue", cell(answer, Tone.GOOD if may else Tone.BAD)),
        )
    )
    guards = Table(_GUARD_COLUMNS, tuple(map(_guard_row, explanation.decision.verdicts)))
    last = explanation.last_attempt
    before = Line(cell(_not_run(explanation), Tone.DIM)) if last is None else _last(explanation, last, now)
    return [head, guards, Line(cell(verdict(explanation, policy, now, TO_PROGRAM), Tone.STRONG)), before]


def _where(explanation: Explanation) -> str:
    runtime = explanation.runtime
    if runtime is None:
        has_run = (
            "Holdfast has not run it yet" if _is_imported(explanation) else "the session has not run yet"
        )
        return f"any machine: {has_run}, or its machine is not known"
    which = "that it was found in" if _is_imported(explanation) else "that it used before"
    return f"the runtime {which}: {machine_words(runtime.machine)}, {runtime.home} ({runtime.id})"


def _is_imported(explanation: Explanation) -> bool:
    """It was taken over, and nothing was run in it since then."""
    return explanation.session.imported_at is not None and explanation.last_attempt is None


def _not_run(explanation: Explanation) -> str:
    if _is_imported(explanation):
        return f"Holdfast has run no turn of this session yet: its turns were made in {explanation.provider} itself."
    return "No turn of this session has run yet."


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
        ("last turn", cell(f"{moment(attempt.started_at)} ({age(attempt.started_at, now)} ago)")),
        ("number", cell(_lineage(explanation, attempt))),
        ("decided", cell(f"{decision.kind}: {because(decision).note}")),
        ("result", cell("cut off" if explanation.is_cut_off else _result(attempt.status))),
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


def this_turn(decision: Decision, starting: Starting | None = None) -> str:
    """Says what a turn does, before the agent starts; ``starting`` is None if it does not start."""
    reason = because(decision)
    if starting is None:
        return f"{'Waiting' if isinstance(decision, Wait) else 'Refused'}: {reason.sentence}."
    agent = _NAMES.get(starting.provider, starting.provider)
    past = f"; {agent} gets {_past(starting)}" if starting.past else ""
    match decision:
        case Resume():
            ago = "" if starting.idle_seconds is None else f" from {long_ago(starting.idle_seconds)}"
            which = f"your {agent} session{ago} (turn {starting.turn})"
            return f"Continuing {which.replace('from just now', 'of a moment ago')}{_catching_up(decision)}."
        case Fork():
            return f"Forking the {agent} session (turn {starting.turn}){_catching_up(decision)}."
        case Fresh() if decision.reason is Reason.NO_POINTER:
            return f"Starting a new {agent} session{past}."
        case Fresh() if decision.reason is Reason.WORKDIR_CHANGED and reason.standing is Standing.FAILED:
            return f"Starting fresh: the work moved to {starting.work_dir}{past}."
        case _:
            return f"Starting fresh: {reason.sentence}{past}."


#: as people write them; every other provider by its own name
_NAMES = {"claude": "Claude", "codex": "Codex", "gemini": "Gemini"}


def _past(starting: Starting) -> str:
    if starting.left_out:
        return f"{_turns(starting.past)} of the history, not the other {starting.left_out}"
    return f"the whole history ({_turns(starting.past)})"


def _turns(count: int) -> str:
    return "1 turn" if count == 1 else f"{count} turns"


def _catching_up(decision: Resume | Fork) -> str:
    told = ranges_text(decision.catch_up)
    word = "turn" if told.isdecimal() else "turns"
    return f", with {word} {told} that it has not seen" if told else ""

"""Owns the commands about approvals: approvals, approve, deny, request-approval and wait."""

from __future__ import annotations

import shlex

import click

from holdfast.cli import output
from holdfast.cli.arguments import arguments_option, session_argument, text_argument, text_option
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.exit_codes import FAILED, TIMED_OUT, WAITING_FOR_APPROVAL
from holdfast.cli.output import Cell, Column, Line, Table, Tone, cell
from holdfast.clock import Instant, age
from holdfast.domain.approvals import Approval, ApprovalStatus
from holdfast.domain.metadata import Metadata
from holdfast.domain.telling.quoting import on_one_line
from holdfast.domain.turns import TurnStatus
from holdfast.engine.documents import approval_document, waited_document
from holdfast.engine.explain import Reached, Waited

_EXIT_CODES = {
    Reached.DONE: 0,
    Reached.FAILED: FAILED,
    Reached.NEEDS_PERSON: WAITING_FOR_APPROVAL,
    Reached.STILL_OPEN: TIMED_OUT,
}
_REASON = 300  #: characters of why a turn has failed
_COLUMNS = (
    Column("APPROVAL", whole=True),
    Column("STATUS", whole=True),
    Column("ASKED"),
    Column("SESSION"),
    Column("WHAT"),
)
_TONES: dict[str, Tone] = {
    ApprovalStatus.OPEN: Tone.WARN,
    ApprovalStatus.APPROVED: Tone.GOOD,
    ApprovalStatus.DENIED: Tone.BAD,
}

approval_argument = click.argument("approval", metavar="APPROVAL")


@command(
    "approvals",
    "holdfast request-approval deploy 'apply the plan' && holdfast approvals",
    "holdfast approvals deploy --all --json",
)
@click.argument("session", metavar="[ID]", required=False)
@click.option("--all", "everything", is_flag=True, help="Also list those that were answered or are void.")
@pass_invocation
def approvals(run: Invocation, session: str | None, everything: bool) -> None:
    """List the open approvals, the oldest first."""
    session_id = None if session is None else run.find(session)
    found = run.holdfast.approvals(session_id, open_only=not everything)
    now = run.holdfast.store.now()
    if run.json:
        output.document({"approvals": [approval_document(one, now) for one in found]})
    elif output.is_terminal():
        nothing = Line(cell("no open approvals"))
        rows = tuple(_row(one, now) for one in found)
        output.blocks([Table(_COLUMNS, rows)] if rows else [nothing])
    else:
        for one in found:
            output.line(one.id, state(one, now), one.session_id, one.what)


def state(approval: Approval, now: Instant) -> str:
    return "expired" if approval.is_expired(now) else approval.status.value


def _row(approval: Approval, now: Instant) -> tuple[Cell, ...]:
    return (
        cell(approval.id, Tone.STRONG),
        cell(state(approval, now), _TONES.get(state(approval, now), Tone.PLAIN)),
        cell(f"{age(approval.requested_at, now)} ago"),
        cell(approval.session_id),
        cell(approval.what),
    )


_note = "A message to the agent; - reads standard input."
_as = click.option(
    "--as",
    "by",
    metavar="NAME",
    help="Who answers; by default the system user. With a token, the token's name is used instead.",
)
_hash = click.option(
    "--arguments-hash", metavar="HASH", help="Answer only if the approval is for exactly these arguments."
)
_nonce = click.option("--nonce", metavar="NONCE", help="Answer only if the approval has this nonce.")


@command(
    "approve",
    "holdfast request-approval deploy 'apply the plan' && holdfast approve deploy --note 'go ahead'",
)
@approval_argument
@text_option("--note", help=_note)
@_as
@_hash
@_nonce
@pass_invocation
def approve(
    run: Invocation,
    approval: str,
    note: str | None,
    by: str | None,
    arguments_hash: str | None,
    nonce: str | None,
) -> None:
    """Approve a request, so that the work can continue.

    APPROVAL is its id, a unique beginning of it, or a session with exactly one open approval. An approval is
    answered once: the same answer again changes nothing, a different one is refused. Exit code 4 if it has
    expired, is void, or does not match the given hash or nonce.
    """
    _tell(run, run.holdfast.approve(approval, note, by=by, arguments_hash=arguments_hash, nonce=nonce))


@command(
    "deny",
    "holdfast request-approval deploy 'apply the plan' && holdfast deny deploy --note 'not on a Friday'",
)
@approval_argument
@text_option("--note", help="The reason, for the agent; - reads standard input.")
@_as
@_hash
@_nonce
@pass_invocation
def deny(
    run: Invocation,
    approval: str,
    note: str | None,
    by: str | None,
    arguments_hash: str | None,
    nonce: str | None,
) -> None:
    """Deny a request, and tell the agent why.

    Without a note, the agent is told that no reason was given. Otherwise like `holdfast approve`.
    """
    _tell(run, run.holdfast.deny(approval, note, by=by, arguments_hash=arguments_hash, nonce=nonce))


def _tell(run: Invocation, answered: Approval) -> None:
    if run.json:
        output.document(approval_document(answered, run.holdfast.store.now()))
    elif not output.is_terminal():
        output.line(answered.id, answered.status.value, answered.session_id)
    else:
        hint = f"; continue its turn with: holdfast resume {answered.session_id}" if answered.seq else ""
        output.say(f"{answered.id} was {answered.status} by {answered.answered_by}{hint}")


@command(
    "request-approval",
    "holdfast request-approval deploy 'apply the plan' --arguments '{\"plan\": \"plan.tf\"}'",
    "holdfast request-approval deploy 'delete the bucket' --expires 3600 --answerer ada --answerer bob",
)
@session_argument
@text_argument("what")
@arguments_option
@click.option(
    "--expires",
    type=float,
    metavar="SECONDS",
    help="How long it can be answered; by default the configured time.",
)
@click.option(
    "--answerer",
    "answerers",
    multiple=True,
    metavar="NAME",
    help="A person who may answer; may be given several times. By default everyone.",
)
@pass_invocation
def request_approval(
    run: Invocation,
    session: str,
    what: str,
    arguments: Metadata | None,
    expires: float | None,
    answerers: tuple[str, ...],
) -> None:
    """Ask for approval, set phase approval, print the id.

    Does not wait for the answer: end your turn, and continue when `holdfast approvals` shows the answer.
    """
    asked = run.holdfast.request_approval(
        run.find(session), what, arguments, expires=expires, answerers=answerers
    )
    if run.json:
        output.document(approval_document(asked, run.holdfast.store.now()))
    else:
        output.say(asked.id)


@command("wait", "holdfast wait deploy --timeout 60")
@session_argument
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Wait at most this long; then exit code 124.",
)
@pass_invocation
@click.pass_context
def wait(ctx: click.Context, run: Invocation, session: str, timeout: float | None) -> None:
    """Wait until a session is done or needs a person.

    Exit code 0: the session is completed, or its newest turn is done and none is open. 1: the session or its
    newest turn failed or was cancelled. 5: an approval needs an answer, or has expired. 124: the timeout passed.
    """
    waited = run.holdfast.wait(run.find(session), timeout)
    if run.json:
        output.document(waited_document(waited, run.holdfast.store.now()))
    else:
        output.say(_waited_words(waited, run.holdfast.store.now()))
    if waited.reached is not Reached.DONE:
        ctx.exit(_EXIT_CODES[waited.reached])


def _waited_words(waited: Waited, now: Instant) -> str:
    if waited.approval is not None:
        return f"{waited.approval.what}: {_ways_out(waited.approval, now)}"
    if waited.session.finalized_at is not None or waited.turn is None:
        return f"{waited.session.id} is {waited.session.phase}"
    turn = f"turn {waited.turn.seq} of {waited.session.id}"
    failure = waited.turn.failure
    if waited.turn.status is TurnStatus.FAILED and failure is not None:
        return f"{turn} has failed: {failure.failure_class}: {on_one_line(failure.message, _REASON)}"
    return f"{turn} is {waited.turn.status}"


def _ways_out(approval: Approval, now: Instant) -> str:
    if not approval.is_expired(now):
        return f"holdfast approve {approval.id}"
    if approval.seq is None:
        again = f"holdfast request-approval {approval.session_id} {shlex.quote(approval.what)}"
        without = f"holdfast update {approval.session_id} --phase executing"
        return f"{approval.id} has expired; ask again: {again}, or continue without it: {without}"
    return f"{approval.id} has expired; cancel its turn: holdfast cancel {approval.session_id} --turn {approval.seq}"

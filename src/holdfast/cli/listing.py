"""Owns the command list: one line for each session, and the colours of status and phase."""

from __future__ import annotations

from typing import assert_never

import click

from holdfast.cli import output
from holdfast.cli.arguments import parse_moment
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.output import Cell, Column, Line, Table, Tone, age, cell
from holdfast.clock import Instant, to_iso
from holdfast.domain.metadata import parse_pairs
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import Session, SessionFilter, SessionState, SessionStatus
from holdfast.engine.documents import session_document

#: sessions shown on a terminal, unless --limit or --all is given
_SCREENFUL = 50

_COLUMNS = (
    Column("SESSION", whole=True),
    Column("STATUS"),
    Column("AGENT"),
    Column("ACTIVE"),
    Column("NAME"),
    Column("PURPOSE"),
)


@command(
    "list",
    "holdfast list --active-only",
    "holdfast list --agent terraform-architect --since 2h",
    "holdfast list --active-only | wc -l",
    "holdfast list --status waiting",
    "holdfast list --resumable --metadata task_id=T001",
    "holdfast ls --json --limit 10",
)
@click.option(
    "--active-only", is_flag=True, help="Only sessions that are not completed, failed or abandoned."
)
@click.option("--agent", metavar="NAME", help="Only sessions of this agent.")
@click.option(
    "--status",
    type=click.Choice([status.value for status in SessionStatus]),
    help="Only sessions with this status.",
)
@click.option(
    "--resumable", is_flag=True, help="Only sessions for which should-resume says yes, also running ones."
)
@click.option(
    "--metadata",
    metavar="KEY=VALUE",
    multiple=True,
    help="Only sessions whose metadata has this value, or has it in a list; may be given several times.",
)
@click.option("--since", metavar="WHEN", help="Only sessions created then or later: 2h, 3d, 2026-01-08, …")
@click.option("--until", metavar="WHEN", help="Only sessions created before.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most this many, the newest first.")
@click.option("--all", "everything", is_flag=True, help="All sessions; a terminal shows 50 otherwise.")
@pass_invocation
def list_sessions(  # noqa: PLR0913 - each filter is an option
    run: Invocation,
    active_only: bool,
    agent: str | None,
    status: str | None,
    resumable: bool,
    metadata: tuple[str, ...],
    since: str | None,
    until: str | None,
    limit: int | None,
    everything: bool,
) -> None:
    """List sessions, the newest first. Alias: ls.

    The status is what the store knows: running, queued, waiting (for a person), idle, failed or done. The phase,
    which the agent reports about its work, follows in parentheses if it adds something.

    In a pipe, prints one line for each session, separated by tabs: id, phase, agent, last activity, name,
    purpose, status. With --json: an object with the list "sessions".
    """
    now = run.holdfast.store.now()
    wanted = SessionFilter(
        active_only=active_only,
        agent=agent,
        status=None if status is None else SessionStatus(status),
        resumable=resumable,
        metadata=parse_pairs(metadata),
        since=None if since is None else parse_moment("since", since, now),
        until=None if until is None else parse_moment("until", until, now),
    )
    if everything:
        limit = None
    if run.json:
        _as_json(run, wanted, limit)
    elif output.is_terminal():
        _on_terminal(run, wanted, _SCREENFUL if limit is None and not everything else limit, now)
    else:
        for page in run.holdfast.pages(wanted, limit):
            for session in page.sessions:
                _print_line(session, page.states[session.id])


def _print_line(session: Session, state: SessionState) -> None:
    output.line(
        session.id, session.phase.value, session.agent, to_iso(session.updated_at), session.name or "",
        session.purpose, state.status.value,
    )  # fmt: skip


def _as_json(run: Invocation, wanted: SessionFilter, limit: int | None) -> None:
    sessions: list[dict[str, object]] = []
    unreadable: dict[str, str] = {}
    more = False
    for page in run.holdfast.pages(wanted, limit):
        sessions += [session_document(session, page.states[session.id]) for session in page.sessions]
        unreadable |= page.unreadable
        more = page.next_cursor is not None
    output.document({"sessions": sessions, "unreadable": unreadable, "more": more})


def _on_terminal(run: Invocation, wanted: SessionFilter, limit: int | None, now: Instant) -> None:
    rows: list[tuple[Cell, ...]] = []
    more = False
    for page in run.holdfast.pages(wanted, limit):
        rows += [_row(session, page.states[session.id], now) for session in page.sessions]
        more = page.next_cursor is not None
    if not rows:
        output.blocks([Line(cell("no sessions", Tone.DIM))])
        return
    table = Table(_COLUMNS, tuple(rows))
    hint = Line(cell("there are more: --all shows them", Tone.DIM))
    output.blocks([table, hint] if more else [table])


def _row(session: Session, state: SessionState, now: Instant) -> tuple[Cell, ...]:
    return (
        cell(session.id, Tone.STRONG),
        cell(_status(session, state.status), status_tone(state.status)),
        cell(session.agent),
        cell(age(session.updated_at, now)),
        cell(session.name or ""),
        cell(session.purpose, Tone.DIM, limit=200),
    )


#: pairs in which the phase adds nothing to the status
_SAID_BY_STATUS = {
    (SessionStatus.WAITING, Phase.APPROVAL),
    (SessionStatus.FAILED, Phase.FAILED),
    (SessionStatus.DONE, Phase.COMPLETED),
}


def _status(session: Session, status: SessionStatus) -> str:
    """Returns the status, with the phase in parentheses if it adds something."""
    phase = session.phase
    is_usual = phase is Phase.INITIALIZING or (phase is Phase.INVESTIGATING and not session.is_delegated)
    return status.value if is_usual or (status, phase) in _SAID_BY_STATUS else f"{status} ({phase})"


def status_tone(status: SessionStatus) -> Tone:
    match status:
        case SessionStatus.RUNNING:
            return Tone.GOOD
        case SessionStatus.WAITING:
            return Tone.WARN
        case SessionStatus.FAILED:
            return Tone.BAD
        case SessionStatus.DONE:
            return Tone.DIM
        case SessionStatus.QUEUED | SessionStatus.IDLE:
            return Tone.PLAIN
        case _:
            assert_never(status)


def phase_tone(phase: Phase) -> Tone:
    match phase:
        case Phase.COMPLETED:
            return Tone.GOOD
        case Phase.FAILED:
            return Tone.BAD
        case Phase.ABANDONED:
            return Tone.DIM
        case Phase.APPROVAL:
            return Tone.WARN
        case _:
            return Tone.PLAIN

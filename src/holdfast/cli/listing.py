"""Owns the command list: one line for each session."""

from __future__ import annotations

from collections.abc import Iterator

import click

from holdfast.cli import output
from holdfast.cli.command import command, pass_invocation
from holdfast.cli.invocation import Invocation
from holdfast.cli.moments import age, parse_moment
from holdfast.cli.report import Cell, Column, Line, Table, Tone, cell
from holdfast.clock import Instant, to_iso
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import Session, SessionFilter, SessionPage
from holdfast.engine.documents import session_document

_PAGE = 500
#: on a terminal, unless more is asked for
_SCREENFUL = 50

_COLUMNS = (
    Column("SESSION", whole=True),
    Column("PHASE", whole=True),
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
    "holdfast ls --json --limit 10",
)
@click.option("--active-only", is_flag=True, help="Without those that are completed, failed or abandoned.")
@click.option("--agent", metavar="NAME", help="Only of this agent.")
@click.option("--since", metavar="WHEN", help="Only created then or later: 2h, 3d, 2026-01-08, …")
@click.option("--until", metavar="WHEN", help="Only created before.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many, the newest.")
@click.option("--all", "everything", is_flag=True, help="All, on a terminal too, which shows 50 otherwise.")
@pass_invocation
def list_sessions(  # noqa: PLR0913 - each filter is an option
    run: Invocation,
    active_only: bool,
    agent: str | None,
    since: str | None,
    until: str | None,
    limit: int | None,
    everything: bool,
) -> None:
    """List sessions, the newest first. Alias: ls.

    Piped, it prints one line for each session, with tabs between: id, phase, agent, last activity, name,
    purpose. With --json: an object with the list "sessions".
    """
    now = run.holdfast.store.now()
    wanted = SessionFilter(
        active_only=active_only,
        agent=agent,
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
        for page in _pages(run, wanted, limit):
            for session in page.sessions:
                _print_line(session)


def _pages(run: Invocation, wanted: SessionFilter, limit: int | None) -> Iterator[SessionPage]:
    """As many pages as it takes; a row that cannot be read counts, as it does for the store."""
    cursor = None
    left = limit
    while left is None or left > 0:
        size = _PAGE if left is None else min(left, _PAGE)
        page = run.holdfast.page(wanted, size, cursor)
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return
        if left is not None:
            left -= size


def _print_line(session: Session) -> None:
    output.line(
        session.id, session.phase.value, session.agent, to_iso(session.updated_at), session.name or "",
        session.purpose,
    )  # fmt: skip


def _as_json(run: Invocation, wanted: SessionFilter, limit: int | None) -> None:
    sessions: list[dict[str, object]] = []
    unreadable: dict[str, str] = {}
    more = False
    for page in _pages(run, wanted, limit):
        sessions += [session_document(session) for session in page.sessions]
        unreadable |= page.unreadable
        more = page.next_cursor is not None
    output.document({"sessions": sessions, "unreadable": unreadable, "more": more})


def _on_terminal(run: Invocation, wanted: SessionFilter, limit: int | None, now: Instant) -> None:
    rows: list[tuple[Cell, ...]] = []
    more = False
    for page in _pages(run, wanted, limit):
        rows += [_row(session, now) for session in page.sessions]
        more = page.next_cursor is not None
    if not rows:
        output.blocks([Line(cell("no sessions", Tone.DIM))])
        return
    table = Table(_COLUMNS, tuple(rows))
    hint = Line(cell("there are more: --all shows them", Tone.DIM))
    output.blocks([table, hint] if more else [table])


def _row(session: Session, now: Instant) -> tuple[Cell, ...]:
    return (
        cell(session.id, Tone.STRONG),
        cell(session.phase.value, phase_tone(session.phase)),
        cell(session.agent),
        cell(age(session.updated_at, now)),
        cell(session.name or ""),
        cell(session.purpose, Tone.DIM, limit=200),
    )


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

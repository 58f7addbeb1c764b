"""Owns the command list: one line for each session, the words of a line, and the colours of status and phase."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from pathlib import PurePath
from typing import assert_never

import click

from holdfast.cli import output
from holdfast.cli.answers import tell_lines, tell_list
from holdfast.cli.arguments import hint_at_mistyped, parse_moment, project_directory, provider_option
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.output import Cell, Column, Line, Tone, cell
from holdfast.clock import age
from holdfast.domain.approvals import Approval
from holdfast.domain.ids import check_provider, short_id
from holdfast.domain.metadata import parse_pairs
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import Session, SessionFilter, SessionPage, SessionState, SessionStatus
from holdfast.engine.holdfast import Holdfast
from holdfast.engine.wording import status_words
from holdfast.escape import one_line

#: sessions shown on a terminal, unless --limit or --all is given
_SCREENFUL = 50
#: columns of a terminal from which on a line has the whole id, the agent and the whole directory
WIDE = 120
NARROW = 60  #: below it, a line has no provider and no directory
_LONGEST_TITLE = 200
_WHOLE = ("SESSION", "STATUS", "ACTIVE")  #: columns that are never cut
_LONGEST_PROJECT = 14  #: of its last part
_LONGEST_STATUS = 22


@command(
    "list",
    "holdfast list --active-only",
    "holdfast list --agent terraform-architect --since 2h",
    "holdfast list --active-only | wc -l",
    "holdfast list --status waiting",
    "holdfast list --project . --grep parser",
    "holdfast list --resumable --metadata task_id=T001",
    "holdfast ls --json --limit 10",
)
@click.option(
    "--active-only", is_flag=True, help="Only sessions that are not completed, failed or abandoned."
)
@click.option("--agent", metavar="NAME", help="Only sessions of this agent.")
@provider_option(help="Only sessions of this provider: claude, codex, …")
@click.option("--project", metavar="DIR", help="Only sessions of this directory, and of those below it.")
@click.option(
    "--grep", metavar="TEXT", help="Only sessions with this text in their id, name, title, agent or summary."
)
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
@click.option(
    "--sort",
    type=click.Choice(["activity", "created"]),
    help="The last active session first, as on a terminal, or the newest, as in a pipe.",
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most this many, the first ones.")
@click.option("--all", "everything", is_flag=True, help="All sessions; a terminal shows 50 otherwise.")
@click.option("--no-pager", is_flag=True, help="Do not open a pager on a terminal.")
@pass_invocation
def list_sessions(  # noqa: PLR0913 - each filter is an option
    run: Invocation,
    active_only: bool,
    agent: str | None,
    provider: str | None,
    project: str | None,
    grep: str | None,
    status: str | None,
    resumable: bool,
    metadata: tuple[str, ...],
    since: str | None,
    until: str | None,
    sort: str | None,
    limit: int | None,
    everything: bool,
    no_pager: bool,
) -> None:
    """List sessions, on a terminal the last active first. Alias: ls.

    The status is what is true now: running, queued, waiting (and for whom), idle, interrupted, failed or done. A
    session is interrupted if what ran its turn is gone: holdfast resume ID takes the turn over. The phase follows in parentheses for sessions that use phases. The first column names a session in every command; a wide
    terminal shows the whole id, the agent and the directory, too.

    Sessions that hooks have marked are taken in first. On a terminal, also those that the agents' own programs
    keep of this directory, as far as a short look tells.

    In a pipe, prints one line for each session, the newest first, separated by tabs: id, phase, agent, last
    activity, name, purpose, status. With --json: an object with the list "sessions".
    """
    now = run.holdfast.store.now()
    to_person = output.is_terminal() and not run.json
    wanted = SessionFilter(
        active_only=active_only,
        agent=agent,
        provider=None if provider is None else check_provider(provider),
        project=project_directory(project),
        grep=grep,
        status=None if status is None else SessionStatus(status),
        resumable=resumable,
        metadata=parse_pairs(metadata),
        since=None if since is None else parse_moment("since", since, now),
        until=None if until is None else parse_moment("until", until, now),
        by_activity=to_person if sort is None else sort == "activity",
    )
    if everything:
        limit = None
    run.catch_up(looks=to_person)
    if run.json:
        tell_list(run.holdfast.pages(wanted, limit))
    elif to_person:
        limit = _SCREENFUL if limit is None and not everything else limit
        _on_terminal(run, wanted, limit, in_pager=not no_pager)
    else:
        found = False
        for page in run.holdfast.pages(wanted, limit):
            found = found or bool(page.sessions)
            tell_lines(page)
        if not found:
            hint_at_mistyped(wanted.provider, wanted.project)


def _on_terminal(run: Invocation, wanted: SessionFilter, limit: int | None, *, in_pager: bool) -> None:
    from holdfast.cli.pager import page  # for people only
    from holdfast.cli.terminal import draw, draw_rows

    lines = SessionLines(run.holdfast, shutil.get_terminal_size().columns)
    listed: list[Session] = []
    pages = _with_fewer(run.holdfast.pages(wanted, limit), listed)
    first = next(pages)
    if not first.sessions and first.next_cursor is None:
        output.blocks([Line(cell("no sessions", Tone.DIM))])
        hint_at_mistyped(wanted.provider, wanted.project)
        return

    def texts() -> Iterator[str]:
        last = first
        yield from draw_rows(lines.columns, lines.rows(first))
        for last in pages:
            yield from draw_rows(lines.columns, lines.rows(last), like=lines.rows(first))
        hint = [Line(cell("there are more: --all shows them", Tone.DIM))] if last.next_cursor else []
        for block in (*hint, *_expiring(run, listed)):
            yield "\n" + draw(block)

    if in_pager:
        page(texts())
    else:
        for text in texts():
            output.write(text)


def _with_fewer(pages: Iterator[SessionPage], listed: list[Session]) -> Iterator[SessionPage]:
    """The pages that have sessions, or the last one; ``listed`` gets the sessions."""
    for one in pages:
        listed += one.sessions
        if one.sessions or one.next_cursor is None:
            yield one


def _expiring(run: Invocation, listed: list[Session]) -> list[Line]:
    from holdfast.engine.expiring import SOON_DAYS, count_expiring  # for people only: it loads providers

    found = count_expiring(run.holdfast.store, os.environ, listed)
    words = "{} will delete {} of these sessions within {} days: holdfast doctor"
    return [Line(cell(words.format(name, count, SOON_DAYS), Tone.WARN)) for name, count in found.items()]


class SessionLines:
    """Sessions as lines of a table: on a narrow terminal what tells them apart, on a wide one more."""

    def __init__(self, holdfast: Holdfast, width: int) -> None:
        self._holdfast = holdfast
        self._store = holdfast.store
        self._wide, self._narrow = width >= WIDE, width < NARROW
        self._now = holdfast.store.now()
        every = {
            "SESSION": True, "STATUS": True, "PROVIDER": not self._narrow, "AGENT": self._wide,
            "PROJECT": not self._narrow, "TITLE": True, "ACTIVE": True,
        }  # fmt: skip
        self._shown = tuple(every.values())
        self.columns = tuple(Column(title, whole=title in _WHOLE) for title, shown in every.items() if shown)

    def rows(self, page: SessionPage) -> Sequence[tuple[Cell, ...]]:
        waits = any(state.status is SessionStatus.WAITING for state in page.states.values())
        # one call for all of them; a terminal shows few sessions, and few wait
        asked = {str(one.session_id): one for one in self._store.approvals()} if waits else {}
        return [self._row(session, page.states[session.id], asked) for session in page.sessions]

    def _row(self, session: Session, state: SessionState, asked: Mapping[str, Approval]) -> tuple[Cell, ...]:
        cells = (
            cell(session.id if self._wide else short_id(session.id), Tone.STRONG),
            cell(
                status_words(session, state, asked.get(session.id)),
                status_tone(state.status),
                limit=_LONGEST_STATUS,
            ),
            cell(session.provider or "–"),
            cell(session.agent),
            cell(project_words(state.directory, whole=self._wide), Tone.DIM),
            cell(session.title or session.agent, limit=_LONGEST_TITLE),
            cell(age(session.updated_at, self._now)),
        )
        return tuple(compress(cells, self._shown))


def tell_candidates(holdfast: Holdfast, ids: Sequence[str]) -> None:
    """Says on standard error which sessions were meant by something that fits several."""
    from holdfast.cli.output import tell

    now = holdfast.store.now()
    for session_id in ids:
        session, state = holdfast.session(session_id), holdfast.session_state(session_id)
        title = one_line(session.title or session.agent, 60)
        words = (session.provider or session.agent, status_words(session, state), title)
        tell(f"{session_id}: {', '.join(words)}, {age(session.updated_at, now)} ago")


def project_words(directory: str | None, *, whole: bool = False) -> str:
    """A directory as people call it: its last part, or all of it below their home."""
    if directory is None:
        return "–"
    if not whole:
        name = PurePath(directory).name or directory
        return name if len(name) <= _LONGEST_PROJECT else f"{name[: _LONGEST_PROJECT - 1]}…"
    home = os.environ.get("HOME", "").rstrip("/")
    inside = bool(home) and (directory == home or directory.startswith(f"{home}/"))
    return f"~{directory[len(home) :]}" if inside else directory


def status_tone(status: SessionStatus) -> Tone:
    match status:
        case SessionStatus.RUNNING:
            return Tone.GOOD
        case SessionStatus.WAITING | SessionStatus.INTERRUPTED:
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

"""Owns the picker: the sessions of this directory on a terminal, filtered by typing, and what becomes of the chosen one."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import click

from holdfast.cli import output
from holdfast.cli.command import Invocation
from holdfast.cli.exit_codes import SESSION_HERE
from holdfast.cli.listing import SessionLines, project_words
from holdfast.cli.output import Cell, Column, Line, Table, Tone, cell
from holdfast.config_files import current_directory
from holdfast.domain.ids import short_id
from holdfast.domain.sessions import Session, SessionFilter, SessionPage, SessionState
from holdfast.errors import NotFound

#: no person looks through more
_MOST = 10_000
#: on a terminal that can only print
_MOST_PRINTED = 20
_SHORTEST_OF_ID = 4
_LONGEST_SEARCHED = 500  #: of a purpose


class Action(Enum):
    """What the chosen session is for: the command, without the session."""

    CONTINUE = ("resume",)
    OPEN = ("open",)
    FORK = ("chat", "--fork")
    LOG = ("log",)
    WHY = ("why",)


Chosen = tuple[Action, Session]


class Picked(NamedTuple):
    action: Action
    called: str  #: the session's name or id


class Choice:
    """The sessions to choose from, those that fit the typed words, and the lines that the list shows of them."""

    def __init__(self, run: Invocation, directory: str) -> None:
        self._holdfast = run.holdfast
        self.directory = directory
        self.sessions: list[Session] = []
        self._states: dict[str, SessionState] = {}
        self.is_all = False
        self._pages = run.holdfast.pages(SessionFilter(project=directory, by_activity=True), _MOST)
        self._searched: list[str] = []
        self._lines: tuple[int, SessionLines, dict[str, tuple[Cell, ...]]] | None = None

    def read(self) -> SessionPage | None:
        """The next page of them, from the store; None after the last one. Any thread may call it, one at a time."""
        return next(self._pages, None)

    def add(self, page: SessionPage) -> None:
        self.sessions += page.sessions
        self._states |= page.states
        self.is_all = page.next_cursor is None

    def fitting(self, words: str) -> list[Session]:
        """Sessions in which every word occurs, in any case, the last active first. One whose name or id is exactly the
        typed words comes before all others."""
        wanted = words.casefold().split()
        if not wanted:
            return self.sessions
        self._searched += [self._text(session) for session in self.sessions[len(self._searched) :]]
        pairs = zip(self.sessions, self._searched, strict=True)
        found = [session for session, text in pairs if all(_has(session, text, word) for word in wanted)]
        # a person who types a whole name or id wants that session first
        return sorted(found, key=lambda session: not _is_called(session, words))

    def _text(self, session: Session) -> str:
        state = self._states[session.id]
        below = (state.directory or "").removeprefix(self.directory)
        texts = (
            session.name, session.agent_title, session.purpose[:_LONGEST_SEARCHED], session.provider, session.agent, state.status, below
        )  # fmt: skip
        return "\n".join(text for text in texts if text).casefold()

    def rows(
        self, sessions: Sequence[Session], width: int
    ) -> tuple[tuple[Column, ...], list[tuple[Cell, ...]]]:
        """The columns and the lines of the list, for a terminal of this width; each line is made once."""
        if self._lines is None or self._lines[0] != width:
            self._lines = width, SessionLines(self._holdfast, width), {}
        _, lines, made = self._lines
        missing = tuple(session for session in sessions if session.id not in made)
        if missing:
            page = SessionPage(missing, {one.id: self._states[one.id] for one in missing}, {}, None)
            made |= {session.id: row for session, row in zip(missing, lines.rows(page), strict=True)}
        return lines.columns, [made[session.id] for session in sessions]


def _is_called(session: Session, words: str) -> bool:
    called = (session.name, session.id, short_id(session.id))
    return words.strip().casefold() in (name.casefold() for name in called if name)


def _has(session: Session, text: str, word: str) -> bool:
    # every id has most digits: only several of them tell one from the others
    return word in text or (len(word) >= _SHORTEST_OF_ID and word in session.id)


def here() -> str:
    return str(current_directory(os.environ))


def newest_here(run: Invocation) -> str:
    """Returns the id of the open session of this directory that was active last. Raises NotFound, with what to do."""
    run.catch_up(looks=True)
    wanted = SessionFilter(project=here(), by_activity=True, active_only=True)
    for page in run.holdfast.pages(wanted):
        if page.sessions:
            return page.sessions[0].id
    raise NotFound(SESSION_HERE, here())


def pick(run: Invocation, *, if_none: int) -> Picked:
    """Lets the person choose a session of this directory. Ends the command with 0 if they leave, and with ``if_none``
    if the directory has no session."""
    ctx = click.get_current_context()
    run.catch_up(looks=True)
    choice = Choice(run, here())
    while not choice.sessions and (page := choice.read()) is not None:
        choice.add(page)
    if not choice.sessions:
        _say_what_to_do_first()
        ctx.exit(if_none)
    if output.can_draw():
        from holdfast.cli.picker_screen import choose  # loads prompt_toolkit, which is for terminals only

        chosen = choose(choice)
    else:
        chosen = _ask_by_number(choice)
    if chosen is None:
        ctx.exit(0)
    action, session = chosen
    return Picked(action, session.name or session.id)


def perform(picked: Picked) -> None:
    """Prints the command for the chosen session, so that the person learns it, and runs it."""
    from holdfast.cli.group import PROGRAM, cli

    words = [*picked.action.value, picked.called]
    output.blocks([Line(cell(f"$ {PROGRAM} {shlex.join(words)}", Tone.DIM))])
    run = click.get_current_context().ensure_object(Invocation)
    with cli.make_context(PROGRAM, words, obj=run) as context:
        cli.invoke(context)


def _say_what_to_do_first() -> None:
    output.say(f"No sessions in {project_words(here(), whole=True)} yet.")
    output.say("Start one: holdfast chat, or: holdfast run -p claude 'explain this project'")
    output.say("Your agents' own sessions: holdfast import; other directories: holdfast list")


def _ask_by_number(choice: Choice) -> Chosen | None:
    shown = choice.sessions[:_MOST_PRINTED]
    columns, rows = choice.rows(shown, shutil.get_terminal_size().columns)
    numbered = ((cell(number, Tone.STRONG), *row) for number, row in enumerate(rows, 1))
    output.blocks([Table((Column("NO", whole=True), *columns), tuple(numbered))])
    while True:
        try:
            answer = input("Number of the session to continue (Enter: none): ").strip()
        except EOFError:
            return None
        if not answer:
            return None
        if answer.isdecimal() and 1 <= int(answer) <= len(shown):
            return Action.CONTINUE, shown[int(answer) - 1]
        output.say(f"a number from 1 to {len(shown)}")

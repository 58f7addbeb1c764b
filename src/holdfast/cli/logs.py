"""Owns the command log: a session as a conversation, as its events, or as its audit trail."""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Iterator

import click

from holdfast.cli import output
from holdfast.cli.arguments import TURN, session_argument
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.conversation import INDENT, PlainSheet, Sheet, conversation, opening
from holdfast.cli.pager import page
from holdfast.clock import to_iso
from holdfast.domain.events import Event, EventKind
from holdfast.domain.sessions import SessionStatus
from holdfast.engine.documents import audit_document, event_document
from holdfast.engine.reading import Piece, Reader
from holdfast.engine.session_log import (
    BEGINNING,
    AuditEntry,
    EventPosition,
    audit_trail,
    events_after,
    is_over,
)
from holdfast.escape import lines
from holdfast.store.contract import Store

_LOOK_EVERY = 0.5
_LOOK_EVERY_WRITING = 0.25
_LONGEST = 500


@command(
    "log",
    "holdfast log deploy",
    "holdfast log deploy --tail 1",
    "holdfast log deploy --turn 1 --raw",
    "holdfast log deploy --audit --json",
)
@session_argument
@click.option("--turn", type=TURN, metavar="TURN", help="Only this turn.")
@click.option("--tail", type=click.IntRange(1, 2**53), metavar="N", help="Only the last N turns.")
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Continue with what is new until the session is closed, or the turn has ended.",
)
@click.option("--raw", is_flag=True, help="Print the recorded events instead, one on each line.")
@click.option(
    "--audit", is_flag=True, help="Print the audit trail instead: changes of the session, and who made them."
)
@click.option("--no-pager", is_flag=True, help="Do not open a pager on a terminal.")
@pass_invocation
def log(  # noqa: PLR0913 - one for each option
    run: Invocation,
    session: str,
    turn: int | None,
    tail: int | None,
    follow: bool,
    raw: bool,
    audit: bool,
    no_pager: bool,
) -> None:
    """Read a session as a conversation, oldest turn first.

    Shows each prompt, what the agent said, its tool calls with their outcome on one line each, and the answer;
    times are local. Turns that were edited, dropped from the history or inherited by a fork say so, and so does
    every turn that has no answer. A delegated session also shows its changes of phase and metadata, errors and
    approvals, each with who did it.

    On a terminal Markdown is laid out, and what is longer than the screen is shown in a pager ($PAGER, else
    less). In a pipe the text is plain.

    With --follow on a terminal, the text that the agent is writing is shown below the rest until it is whole.

    With --raw, prints one line for each event, separated by tabs: turn, attempt, time, kind, text; "-" for an
    empty field. With --json, one object for each event.
    """  # fmt: skip
    if tail is not None and (turn is not None or raw or audit or run.json):
        raise click.UsageError(
            "--tail is for the conversation: it does not go with --turn, --raw, --audit or --json"
        )
    session_id = run.find(session)
    if raw or audit or run.json:
        _log_events(run, session_id, turn, audit=audit, follow=follow)
        return
    is_cut_off = run.holdfast.session_state(session_id).status is SessionStatus.INTERRUPTED
    reader = Reader(run.holdfast.store, session_id, is_cut_off=is_cut_off)
    first = turn or 1
    if turn is not None:
        reader.turn(turn)  # NotFound, if the session has no such turn
    if tail is not None:
        first = reader.first_of_newest(tail)
    if follow:
        _follow(reader, first, turn)
    else:
        _show(_written(reader, reader.walk(first, turn)), in_pager=not no_pager)


def _follow(reader: Reader, first: int, last: int | None) -> None:
    """On a terminal, the text that the agent is writing is shown below the rest until it is whole."""
    if not output.is_terminal():
        for text in _written(reader, reader.follow(first, last)):
            _write_or_wait(text, _LOOK_EVERY)
        return
    from holdfast.cli.terminal import Below  # rich is for terminals only

    below = Below(INDENT)
    try:
        for text in _written(reader, reader.follow(first, last)):
            unfinished = "" if text else reader.unfinished()
            below.show("\n".join(lines(unfinished.strip("\n"))))
            _write_or_wait(text, _LOOK_EVERY_WRITING if unfinished else _LOOK_EVERY)
    finally:
        below.close()


def _write_or_wait(text: str, seconds: float) -> None:
    if text:
        output.write(text)
    else:
        output.flush()
        time.sleep(seconds)


def _written(reader: Reader, pieces: Iterator[Piece] | Iterator[Piece | None]) -> Iterator[str]:
    sheet: Sheet = PlainSheet()
    if output.is_terminal():
        from holdfast.cli.terminal_sheet import TerminalSheet  # rich is for terminals only

        sheet = TerminalSheet()
    yield opening(reader, sheet)
    yield from conversation(pieces, sheet)


def _show(texts: Iterator[str], *, in_pager: bool) -> None:
    if in_pager and output.is_terminal():
        page(texts)
    else:
        for text in texts:
            output.write(text)


# --- the events and the audit trail ---


def _log_events(run: Invocation, session_id: str, turn: int | None, *, audit: bool, follow: bool) -> None:
    if turn is not None:
        run.holdfast.turn(session_id, turn)  # NotFound, if the session has no such turn
    read = _Reading(run.holdfast.store, session_id, turn, audit)
    while True:
        over = not follow or is_over(run.holdfast.store, session_id, turn)
        for found in read.new():
            _print(run, found)
        if over:
            return
        output.flush()
        time.sleep(_LOOK_EVERY)


_Found = tuple[EventPosition, Event] | AuditEntry


class _Reading:
    """Reads the events of one session, and remembers how far it got."""

    def __init__(self, store: Store, session_id: str, turn: int | None, audit: bool) -> None:
        self._store = store
        self._session_id = session_id
        self._turn = turn
        self._audit = audit
        self._place = BEGINNING
        self._printed: set[tuple[object, ...]] = set()

    def new(self) -> Iterator[_Found]:
        """Yields what is new since the last call, in order of time."""
        return heapq.merge(self._entries(), self._events(), key=_at)

    def _entries(self) -> Iterator[_Found]:
        if not self._audit and not self._store.get_session(self._session_id).is_delegated:
            return
        for entry in audit_trail(self._store, self._session_id):
            if entry.key not in self._printed and self._turn in (None, entry.turn):
                self._printed.add(entry.key)
                yield entry

    def _events(self) -> Iterator[_Found]:
        if self._audit:
            return
        for place, event in events_after(self._store, self._session_id, self._place, self._turn):
            self._place = place
            yield place, event


def _at(found: _Found) -> int:
    return found.at if isinstance(found, AuditEntry) else found[1].at


def _print(run: Invocation, found: _Found) -> None:
    match found:
        case AuditEntry():
            _print_entry(run, found)
        case (place, event):
            _print_event(run, place, event)


def _print_entry(run: Invocation, entry: AuditEntry) -> None:
    if run.json:
        output.json_line(audit_document(entry))
    else:
        by = "" if entry.by is None else f" (by {entry.by})"
        words = f"{entry.words[:_LONGEST]}{by}".strip()
        output.line("" if entry.turn is None else entry.turn, "", to_iso(entry.at), entry.kind.value, words)


def _print_event(run: Invocation, place: EventPosition, event: Event) -> None:
    seq, attempt, _ = place
    if run.json:
        output.json_line({"turn": seq, **event_document(attempt, event)})
    else:
        output.line(seq, attempt, to_iso(event.at), event.kind.value, _words(event)[:_LONGEST])


def _words(event: Event) -> str:
    data = event.data
    match event.kind:
        case EventKind.TOOL_CALL:
            return f"{data.get('tool')} {json.dumps(data.get('arguments'), ensure_ascii=False)}"
        case EventKind.TOOL_RESULT:
            return f"{'failed: ' if data.get('is_error') else ''}{data.get('output')}"
        case EventKind.USAGE:
            return f"{data.get('input_tokens')} tokens in, {data.get('output_tokens')} out"
        case EventKind.TEXT | EventKind.NOTICE:
            return str(data.get("text"))

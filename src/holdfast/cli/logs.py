"""Owns the command log: the events of a session and its audit trail."""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Iterator

import click

from holdfast.cli import output
from holdfast.cli.arguments import TURN, session_argument
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.clock import to_iso
from holdfast.domain.events import Event, EventKind
from holdfast.engine.session_log import (
    BEGINNING,
    AuditEntry,
    EventPosition,
    audit_trail,
    events_after,
    is_over,
)
from holdfast.store.contract import Store

_LOOK_EVERY = 0.5
_LONGEST = 500


@command(
    "log", "holdfast log deploy", "holdfast log deploy --turn 1 --json", "holdfast log deploy --audit --json"
)
@session_argument
@click.option("--turn", type=TURN, metavar="TURN", help="Only events of this turn.")
@click.option(
    "--audit", is_flag=True, help="Only the audit trail: changes of the session, and who made them."
)
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Print new events until the session is closed, or the turn has ended.",
)
@pass_invocation
def log(run: Invocation, session: str, turn: int | None, audit: bool, follow: bool) -> None:
    """Print what happened in a session, in order.

    Events of turns are texts, tool calls, their results and notices. A delegated session also has an audit
    trail here, which --audit prints for any session: changes of phase and metadata (the keys), errors,
    approvals and the end, each with who did it.

    Prints one line for each event, separated by tabs: turn, attempt, time, kind, text; "-" for an empty field.
    With --json, one object for each event.
    """
    session_id = run.find(session)
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
        document: dict[str, object] = {
            "turn": entry.turn,
            "attempt": None,
            "number": None,
            "at": to_iso(entry.at),
            "kind": entry.kind.value,
            "by": entry.by,
            "data": entry.data,
        }
        output.json_line(document)
    else:
        by = "" if entry.by is None else f" (by {entry.by})"
        words = f"{entry.words[:_LONGEST]}{by}".strip()
        output.line("" if entry.turn is None else entry.turn, "", to_iso(entry.at), entry.kind.value, words)


def _print_event(run: Invocation, place: EventPosition, event: Event) -> None:
    seq, attempt, number = place
    if run.json:
        output.json_line(
            {
                "turn": seq,
                "attempt": attempt,
                "number": number,
                "at": to_iso(event.at),
                "kind": event.kind.value,
                "data": dict(event.data),
            }
        )
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

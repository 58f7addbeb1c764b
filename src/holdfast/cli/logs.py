"""Owns the command log: what happened in a session, event by event."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import click

from holdfast.cli import output
from holdfast.cli.arguments import TURN, session_argument
from holdfast.cli.command import command, pass_invocation
from holdfast.cli.invocation import Invocation
from holdfast.clock import to_iso
from holdfast.domain.turns import Event, EventKind, Turn
from holdfast.engine.holdfast import Holdfast

_PAGE = 500
_LOOK_EVERY = 0.5
_LONGEST = 500

_Place = tuple[int, int, int]  #: turn, attempt, number


@command("log", "holdfast log deploy", "holdfast log deploy --turn 1 --json")
@session_argument
@click.option("--turn", type=TURN, metavar="TURN", help="Of this turn only.")
@click.option(
    "-f", "--follow", is_flag=True, help="Go on until the session is closed, or the turn has ended."
)
@pass_invocation
def log(run: Invocation, session: str, turn: int | None, follow: bool) -> None:
    """Print what happened in a session, event by event.

    Texts, tool calls and their results, notices; one line for each: turn, attempt, time, kind and what it was. With --json one object for each.
    """
    session_id = run.find(session)
    if turn is not None:
        run.holdfast.store.get_turn(run.holdfast.session(session_id).conversation_id, turn)
    place = (0, 0, 0)
    while True:
        for at, event in _events(run.holdfast, session_id, turn, place):
            place = at
            _print(run, at, event)
        if not follow or _is_over(run.holdfast, session_id, turn):
            return
        output.flush()
        time.sleep(_LOOK_EVERY)


def _is_over(holdfast: Holdfast, session_id: str, only: int | None) -> bool:
    """Nothing more can happen: the session is closed, or the one turn has ended."""
    session = holdfast.session(session_id)
    if only is None:
        return session.finalized_at is not None
    return not holdfast.store.get_turn(session.conversation_id, only).status.is_open


def _events(
    holdfast: Holdfast, session_id: str, only: int | None, after: _Place
) -> Iterator[tuple[_Place, Event]]:
    """In order, beginning behind a place: what was printed once is not printed again."""
    seq, attempt, number = after
    for turn in _turns(holdfast, session_id, max(0, seq - 1)):
        if only is not None and turn.seq != only:
            continue
        behind = (attempt, number) if turn.seq == seq else (0, 0)
        while found := holdfast.store.events(turn.conversation_id, turn.seq, after=behind, limit=_PAGE):
            for tried, event in found:
                yield (turn.seq, tried, event.number), event
            behind = (found[-1][0], found[-1][1].number)


def _turns(holdfast: Holdfast, session_id: str, after: int) -> Iterator[Turn]:
    while found := holdfast.store.turns(session_id, after=after, limit=_PAGE):
        yield from found
        after = found[-1].seq


def _print(run: Invocation, place: _Place, event: Event) -> None:
    seq, attempt, number = place
    if run.json:
        output.record(
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

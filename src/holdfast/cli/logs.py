"""Owns the command log: what happened in a session, event by event."""

from __future__ import annotations

import json
import time

import click

from holdfast.cli import output
from holdfast.cli.arguments import TURN, session_argument
from holdfast.cli.command import command, pass_invocation
from holdfast.cli.invocation import Invocation
from holdfast.clock import to_iso
from holdfast.domain.turns import Event, EventKind
from holdfast.engine.following import BEGINNING, Place, events_behind, is_over

_LOOK_EVERY = 0.5
_LONGEST = 500


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
    store, place = run.holdfast.store, BEGINNING
    while True:
        for at, event in events_behind(store, session_id, place, turn):
            place = at
            _print(run, at, event)
        if not follow or is_over(store, session_id, turn):
            return
        output.flush()
        time.sleep(_LOOK_EVERY)


def _print(run: Invocation, place: Place, event: Event) -> None:
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

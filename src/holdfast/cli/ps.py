"""Owns the command ps: what runs now, once or live."""

from __future__ import annotations

import shutil
from contextlib import suppress
from itertools import compress

import click

from holdfast.cli import output
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.listing import NARROW, WIDE, project_words
from holdfast.cli.output import Cell, Column, Line, Tone, cell
from holdfast.clock import duration, to_iso
from holdfast.domain.ids import short_id
from holdfast.engine.documents import session_document
from holdfast.engine.explain import RunningTurn

_EVERY_SECONDS = 1.0
_LONGEST_TITLE = 200


@command("ps", "holdfast ps", "holdfast ps --json")
@click.option("-w", "--watch", is_flag=True, help="Stay, and show it again every second, until Ctrl-C.")
@pass_invocation
def ps(run: Invocation, watch: bool) -> None:
    """Show what runs now: how long, the last tool, the tokens.

    Tokens are those of this turn alone; a dash if the agent says them only at the end.

    In a pipe, prints one line for each running session, separated by tabs: id, provider, directory, turn, start,
    seconds, tokens in, tokens out, last tool call, title. With --json: an object with the list "running".
    """
    if watch and (run.json or not output.is_terminal()):
        raise click.UsageError("--watch needs a terminal; without it, ps prints once")
    if run.json:
        output.document({"running": [_document(one) for one in run.holdfast.running()]})
    elif output.is_terminal():
        from holdfast.cli.terminal import live  # rich is for terminals only

        if watch:
            with suppress(KeyboardInterrupt):  # how a person ends it
                live(lambda: _screen(run), _EVERY_SECONDS)
        else:
            output.write(_screen(run))
    else:
        for one in run.holdfast.running():
            _print_line(one)


def _screen(run: Invocation) -> str:
    from holdfast.cli.terminal import draw, draw_rows  # rich is for terminals only

    found = run.holdfast.running()
    if not found:
        return draw(Line(cell("nothing runs now", Tone.DIM)))
    width = shutil.get_terminal_size().columns
    shown = {
        "SESSION": True, "PROVIDER": width >= NARROW, "AGENT": width >= WIDE, "PROJECT": width >= NARROW,
        "TURN": width >= WIDE, "TIME": True, "TOKENS": width >= NARROW, "LAST TOOL": True, "TITLE": True,
    }  # fmt: skip
    columns = tuple(
        Column(title, whole=title in ("SESSION", "TIME")) for title, is_in in shown.items() if is_in
    )
    rows = [tuple(compress(_row(one, wide=width >= WIDE), shown.values())) for one in found]
    return "".join(draw_rows(columns, rows))


def _row(one: RunningTurn, *, wide: bool) -> tuple[Cell, ...]:
    session = one.session
    return (
        cell(session.id if wide else short_id(session.id), Tone.STRONG),
        cell(one.provider or "–"),
        cell(session.agent),
        cell(project_words(one.state.directory, whole=wide), Tone.DIM),
        cell(one.turn or "–"),
        cell(duration(one.seconds), Tone.GOOD),
        cell(_tokens(one)),
        cell(one.last_tool or "–"),
        cell(session.title or session.agent, limit=_LONGEST_TITLE),
    )


def _tokens(one: RunningTurn) -> str:
    return "–" if one.usage is None else f"{one.usage.input_tokens}+{one.usage.output_tokens}"


def _print_line(one: RunningTurn) -> None:
    used = ("", "") if one.usage is None else (one.usage.input_tokens, one.usage.output_tokens)
    output.line(
        one.session.id, one.provider or "", one.state.directory or "", one.turn or "", to_iso(one.started_at),
        int(one.seconds), *used, one.last_tool or "", one.session.title,
    )  # fmt: skip


def _document(one: RunningTurn) -> dict[str, object]:
    used = one.usage
    tokens = None if used is None else {"input": used.input_tokens, "output": used.output_tokens}
    return session_document(one.session, one.state) | {
        "turn": one.turn,
        "attempt": one.attempt,
        "provider": one.provider,
        "started_at": to_iso(one.started_at),
        "seconds": one.seconds,
        "last_tool": one.last_tool,
        "tokens": tokens,
    }

"""Owns the command observed: the provider sessions that hooks have seen."""

from __future__ import annotations

import click

from holdfast.cli import output
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.output import Cell, Column, Line, Table, Tone, age, cell
from holdfast.clock import Instant, to_iso
from holdfast.domain.observed import ObservedSession

_COLUMNS = (
    Column("PROVIDER SESSION", whole=True),
    Column("STATE", whole=True),
    Column("SEEN", whole=True),
    Column("TOKENS IN", whole=True),
    Column("TOKENS OUT", whole=True),
    Column("CONTEXT", whole=True),
    Column("DIRECTORY"),
)


@command("observed", "holdfast observed", "holdfast observed --json --limit 10")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, metavar="N",
              help="At most so many.")  # fmt: skip
@pass_invocation
def observed(run: Invocation, limit: int) -> None:
    """List the sessions that hooks have seen, the one seen last first.

    Sessions of the agent's own program, started by Holdfast or by hand. Tokens and context are those of the main agent.
    """
    store = run.holdfast.store
    seen = store.observed_sessions(limit)
    if run.json:
        output.document({"observed": [_document(session) for session in seen]})
    elif not output.is_terminal():
        for session in seen:
            output.line(
                session.id,
                _state(session),
                to_iso(session.last_seen_at),
                *_figures(session),
                session.cwd or "",
            )
    elif seen:
        output.blocks([Table(_COLUMNS, tuple(_row(session, store.now()) for session in seen))])
    else:
        output.blocks([Line(cell("no session was seen by a hook", Tone.DIM))])


def _state(session: ObservedSession) -> str:
    return "open" if session.ended_at is None else "ended"


def _figures(session: ObservedSession) -> tuple[int, int, int | str]:
    return session.input_tokens, session.output_tokens, session.context_tokens or ""


def _row(session: ObservedSession, now: Instant) -> tuple[Cell, ...]:
    return (
        cell(session.id, Tone.STRONG),
        cell(_state(session), Tone.PLAIN if session.ended_at is None else Tone.DIM),
        cell(age(session.last_seen_at, now)),
        *(cell(figure) for figure in _figures(session)),
        cell(session.cwd or "", Tone.DIM),
    )


def _document(session: ObservedSession) -> dict[str, object]:
    return {
        "provider": session.provider,
        "provider_session_id": session.id,
        "source": session.source,
        "work_dir": session.cwd,
        "transcript_path": session.transcript_path,
        "started_at": to_iso(session.started_at),
        "last_seen_at": to_iso(session.last_seen_at),
        "ended_at": None if session.ended_at is None else to_iso(session.ended_at),
        "end_reason": session.end_reason,
        "compactions": session.compactions,
        "input_tokens": session.input_tokens,
        "cached_input_tokens": session.cached_input_tokens,
        "output_tokens": session.output_tokens,
        "context_tokens": session.context_tokens,
        "context_window": session.context_window,
        "context_state": session.context_state,
    }

"""Owns the command usage: tokens and money, by session, agent, provider or day."""

from __future__ import annotations

from dataclasses import asdict

import click

from holdfast.cli import output
from holdfast.cli.command import command, pass_invocation
from holdfast.cli.invocation import Invocation
from holdfast.cli.moments import parse_moment
from holdfast.cli.report import Cell, Column, Table, Tone, cell
from holdfast.domain.usage import NO_USAGE, UsageGroup, UsageTotal

_FIGURES = (
    Column("RUNS", whole=True),
    Column("TOKENS IN", whole=True),
    Column("CACHED", whole=True),
    Column("TOKENS OUT", whole=True),
    Column("COST", whole=True),
)


@command("usage", "holdfast usage", "holdfast usage --by day --since 7d --json")
@click.argument("session", metavar="[ID]", required=False)
@click.option("--by", type=click.Choice([group.value for group in UsageGroup]), default="session",
              show_default=True, help="What to add up.")  # fmt: skip
@click.option("--since", metavar="WHEN", help="Only what began then or later: 2h, 3d, 2026-01-08, …")
@click.option("--until", metavar="WHEN", help="Only what began before.")
@pass_invocation
def usage(run: Invocation, session: str | None, by: str, since: str | None, until: str | None) -> None:
    """Say what sessions have used: tokens and money.

    Days are those of UTC. A provider that does not tell its price costs nothing here.
    """
    now = run.holdfast.store.now()
    totals = run.holdfast.store.usage(
        UsageGroup(by),
        since=None if since is None else parse_moment("since", since, now),
        until=None if until is None else parse_moment("until", until, now),
        session_id=None if session is None else run.find(session),
    )
    whole = UsageTotal(
        "total", sum(one.attempts for one in totals), sum((one.usage for one in totals), NO_USAGE)
    )
    if run.json:
        output.document(
            {"by": by, by + "s": [_document(by, one) for one in totals], "total": _document(by, whole)}
        )
    elif output.is_terminal():
        columns = (Column(by.upper(), whole=True), *_FIGURES)
        output.blocks([Table(columns, tuple(_row(one) for one in (*totals, whole)))])
    else:
        for one in totals:
            used = one.usage
            tokens = (used.input_tokens, used.cached_input_tokens, used.output_tokens)
            output.line(one.key, one.attempts, *tokens, f"{used.cost_usd:.6f}")


def _document(by: str, total: UsageTotal) -> dict[str, object]:
    return {by: total.key, "runs": total.attempts, **asdict(total.usage)}


def _row(total: UsageTotal) -> tuple[Cell, ...]:
    used = total.usage
    tone = Tone.STRONG if total.key == "total" else Tone.PLAIN
    figures = (total.attempts, used.input_tokens, used.cached_input_tokens, used.output_tokens)
    return (cell(total.key, tone), *(cell(figure) for figure in figures), cell(f"${used.cost_usd:.4f}"))

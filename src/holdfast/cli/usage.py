"""Owns the commands that count: usage (tokens and money) and stats (measures and their targets)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

import click

from holdfast.cli import output
from holdfast.cli.arguments import parse_moment
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.output import Cell, Column, Fields, Line, Table, Tone, cell
from holdfast.clock import to_iso
from holdfast.domain.statistics import Figures, Measure
from holdfast.domain.usage import NO_USAGE, UsageGroup, UsageTotal
from holdfast.engine.documents import stats_document
from holdfast.engine.wording import measure_basis, measure_name, measure_value

_USAGE_COLUMNS = (
    Column("RUNS", whole=True),
    Column("TOKENS IN", whole=True),
    Column("CACHED", whole=True),
    Column("TOKENS OUT", whole=True),
    Column("COST", whole=True),
)


@command("usage", "holdfast usage", "holdfast usage --by day --since 7d --json")
@click.argument("session", metavar="[ID]", required=False)
@click.option("--by", type=click.Choice([group.value for group in UsageGroup]), default="session",
              show_default=True, help="Add up by this.")  # fmt: skip
@click.option(
    "--since", metavar="WHEN", help="Only attempts that started then or later: 2h, 3d, 2026-01-08, …"
)
@click.option("--until", metavar="WHEN", help="Only attempts that started before.")
@pass_invocation
def usage(run: Invocation, session: str | None, by: str, since: str | None, until: str | None) -> None:
    """Show what sessions have used: tokens and money.

    Days are in UTC. The cost of a provider that does not report it is 0.
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
            {
                "by": by,
                by + "s": [_usage_document(by, one) for one in totals],
                "total": _usage_document(by, whole),
            }
        )
    elif output.is_terminal():
        columns = (Column(by.upper(), whole=True), *_USAGE_COLUMNS)
        output.blocks([Table(columns, tuple(_usage_row(one) for one in (*totals, whole)))])
    else:
        for one in totals:
            used = one.usage
            tokens = (used.input_tokens, used.cached_input_tokens, used.output_tokens)
            output.line(one.key, one.attempts, *tokens, f"{used.cost_usd:.6f}")


def _usage_document(by: str, total: UsageTotal) -> dict[str, object]:
    return {by: total.key, "runs": total.attempts, **asdict(total.usage)}


def _usage_row(total: UsageTotal) -> tuple[Cell, ...]:
    used = total.usage
    tone = Tone.STRONG if total.key == "total" else Tone.PLAIN
    figures = (total.attempts, used.input_tokens, used.cached_input_tokens, used.output_tokens)
    return (cell(total.key, tone), *(cell(figure) for figure in figures), cell(output.money(used.cost_usd)))


_MEASURE_COLUMNS = (
    Column("MEASURE"),
    Column("VALUE"),
    Column("TARGET"),
    Column("MET"),
    Column("OF", wraps=True),
)
_MOST_SHOWN = 10


@command(
    "stats",
    "holdfast stats",
    "holdfast stats --since 7d --agent terraform-architect",
    "holdfast stats --json",
)
@click.option("--since", metavar="WHEN", help="Only days from this one on: 7d, 2026-01-08, …")
@click.option(
    "--agent", metavar="NAME", help="Only sessions of this agent; storage is always that of the whole store."
)
@pass_invocation
def stats(run: Invocation, since: str | None, agent: str | None) -> None:
    """Show measures of the work, and whether targets are met.

    Counts whole days in UTC, including sessions that were cleaned up or removed since. "no data" means that
    there is nothing to measure; the target is then neither met nor missed.
    """
    begin = None if since is None else parse_moment("since", since, run.holdfast.store.now())
    told = run.holdfast.stats(begin, agent)
    if run.json:
        output.document(stats_document(told))
        return
    figures = told.figures
    window = "since the beginning" if told.since is None else f"since {to_iso(told.since)[:10]}"
    output.blocks(
        [
            Line(cell(f"{window} (days of UTC){'' if agent is None else f', {agent}'}", Tone.DIM)),
            Table(_MEASURE_COLUMNS, tuple(map(_measure_row, figures.measures))),
            Fields(tuple(_facts(figures))),
        ]
    )


def _measure_row(measure: Measure) -> tuple[Cell, ...]:
    return (
        cell(measure_name(measure)),
        cell(measure_value(measure)),
        cell(measure.target or ""),
        _met(measure),
        cell(measure_basis(measure), Tone.DIM),
    )


def _met(measure: Measure) -> Cell:
    if measure.met is None:
        return cell("")
    return cell("yes", Tone.GOOD) if measure.met else cell("no", Tone.BAD)


def _facts(figures: Figures) -> Iterator[tuple[str, Cell]]:
    yield "sessions", cell(_counts(figures.agents))
    yield "fresh starts", cell(_counts(figures.fresh_starts))
    yield "fallbacks", cell(figures.fallbacks)
    yield "turns held up by a lock", cell(figures.lock_waits)
    yield "cleanups", cell(_counts(figures.cleanups))
    tokens = figures.tokens
    yield "tokens", cell(f"{tokens['input']} in ({tokens['cached_input']} cached), {tokens['output']} out")
    yield "money", cell(f"${figures.cost_usd:.2f}")


def _counts(found: Mapping[str, int]) -> str:
    """Returns the counts as text, the largest first."""
    shown = [f"{name} {number}" for name, number in list(found.items())[:_MOST_SHOWN]]
    more = [f"{len(found) - _MOST_SHOWN} more"] if len(found) > _MOST_SHOWN else []
    return ", ".join(shown + more) or "none"

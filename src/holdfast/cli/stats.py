"""Owns the command stats: how well it goes, measure by measure, each with its target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click

from holdfast.cli import output
from holdfast.cli.command import command, pass_invocation
from holdfast.cli.invocation import Invocation
from holdfast.cli.moments import parse_moment
from holdfast.cli.report import Cell, Column, Fields, Line, Table, Tone, cell
from holdfast.clock import to_iso
from holdfast.domain.measures import Figures, Measure, Unit
from holdfast.engine.documents import stats_document

_COLUMNS = (Column("MEASURE"), Column("VALUE"), Column("TARGET"), Column("MET"), Column("OF", wraps=True))
_WORDS = {
    "resume_rate": "resume rate",
    "delegations_resumed": "delegations resumed",
    "resume_success": "resume success",
    "duration_median": "duration, median",
    "duration_p95": "duration, p95",
    "turn_duration_median": "turn, median",
    "turn_duration_p95": "turn, p95",
    "error_rate": "error rate",
    "storage": "storage",
    "creation_rate": "sessions a day",
}
_MOST_SHOWN = 10


@command(
    "stats",
    "holdfast stats",
    "holdfast stats --since 7d --agent terraform-architect",
    "holdfast stats --json",
)
@click.option("--since", metavar="WHEN", help="From the day of this moment on: 7d, 2026-01-08, …")
@click.option("--agent", metavar="NAME", help="Only of this agent; storage is always of the whole store.")
@pass_invocation
def stats(run: Invocation, since: str | None, agent: str | None) -> None:
    """Show how well it goes: measures and their targets.

    Counted in the store over whole days of UTC, also what was cleaned up or removed since. Where there is
    nothing to measure it says "no data", which is neither met nor missed.
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
            Table(_COLUMNS, tuple(map(_row, figures.measures))),
            Fields(tuple(_facts(figures))),
        ]
    )


def _row(measure: Measure) -> tuple[Cell, ...]:
    of = ", ".join(f"{_number(value)} {_noun(name, value)}" for name, value in measure.of.items())
    return (
        cell(_WORDS.get(measure.name, measure.name)),
        cell("no data" if measure.value is None else _value(measure.unit, measure.value)),
        cell(measure.target or ""),
        _met(measure),
        cell("" if measure.unit is Unit.BYTES else of, Tone.DIM),
    )


def _met(measure: Measure) -> Cell:
    if measure.met is None:
        return cell("")
    return cell("yes", Tone.GOOD) if measure.met else cell("no", Tone.BAD)


def _value(unit: Unit, value: float) -> str:
    match unit:
        case Unit.SHARE:
            return f"{value:.1%}"
        case Unit.SECONDS:
            return _seconds(value)
        case Unit.BYTES:
            return f"{value / 1_000_000:.1f} MB"
        case Unit.PER_DAY:
            return f"{value:.1f}"


def _seconds(value: float) -> str:
    if value < 120:
        return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"


def _noun(name: str, value: float) -> str:
    return (name.removesuffix("s") if value == 1 else name).replace("_", " ")


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
    """The largest first."""
    shown = [f"{name} {number}" for name, number in list(found.items())[:_MOST_SHOWN]]
    more = [f"{len(found) - _MOST_SHOWN} more"] if len(found) > _MOST_SHOWN else []
    return ", ".join(shown + more) or "none"

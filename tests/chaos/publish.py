"""Owns the published result: the figures as they were, and the sentence of the README that quotes them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.chaos.campaign import Figures, added_up
from tests.chaos.fleet import LEASE_SECONDS
from tests.chaos.verdict import Broken

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "docs" / "chaos.json"
README = ROOT / "README.md"
FEWEST_FAULTS = 2000
FEWEST_OF_A_KIND = 50
BEGIN, END = "<!-- chaos: written by make chaos -->\n", "<!-- /chaos -->"


def publish(found: Sequence[Figures]) -> None:
    """In place of what was published of the same engines."""
    results = {figures.engine: figures for figures in (*read(), *found)}
    RESULT.write_text(json.dumps([asdict(figures) for figures in results.values()], indent=2) + "\n")
    before, _, rest = README.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(f"{before}{BEGIN}{quote(read())}{END}{after}")


def too_short(found: Sequence[Figures]) -> str | None:
    """Why a campaign says too little to be published."""
    for figures in found:
        hit = _hit(figures.faults)
        if sum(hit.values()) < FEWEST_FAULTS:
            return f"{figures.engine}: fewer than {FEWEST_FAULTS} faults have hit"
        rare = [name for name, count in hit.items() if count < FEWEST_OF_A_KIND]
        if rare:
            return f"{figures.engine}: fewer than {FEWEST_OF_A_KIND} of {', '.join(rare)}"
    return None


def read() -> list[Figures]:
    return list(map(_figures, json.loads(RESULT.read_text())))


def read_parts(file: Path, engine: str) -> list[Figures]:
    """The parts of a long campaign that were kept so far: one line each."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [figures for figures in map(_figures, map(json.loads, lines)) if figures.engine == engine]


def add_part(file: Path, figures: Figures) -> Figures:
    """Keeps one part, and returns the sum of all."""
    with file.open("a") as opened:
        opened.write(figures.line() + "\n")
    return added_up(read_parts(file, figures.engine))


def _figures(result: dict[str, Any]) -> Figures:
    return Figures(**result | {"broken": Broken(**result["broken"]), "crashes": tuple(result["crashes"])})


def quote(found: Sequence[Figures]) -> str:
    return "".join(f"- {_line(figures)}\n" for figures in found)


def _hit(faults: Mapping[str, int]) -> dict[str, int]:
    """Without the clocks that are wrong all the time."""
    return {name: count for name, count in faults.items() if name != "clock_wrong"}


def _starved(figures: Figures) -> str:
    """What "robbed" does not say, where the machine was too busy."""
    if not figures.starved:
        return ""
    return (
        f" (for {figures.starved:,} s of its campaigns the machine had too few processors to renew leases of "
        f"{LEASE_SECONDS:g} s in time: {figures.unheard} ran out without a fault and {'is' if figures.unheard == 1 else 'are'} not counted "
        f"as robbed)"
    )


def _line(figures: Figures) -> str:
    hit = _hit(figures.faults)
    faults = ", ".join(f"{name.replace('_', ' ')} {count}×" for name, count in hit.items())
    broken = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in asdict(figures.broken).items())
    return (
        f"**{figures.engine}**: {figures.turns:,} turns of {figures.sessions:,} sessions in {figures.campaigns} "
        f"campaigns; {sum(hit.values()):,} faults that hit ({faults}), {figures.missed:,} that did not "
        f"and were tried again; {figures.faults['clock_wrong']} workers with a wrong clock; "
        f"{figures.interrupted:,} attempts taken over, {figures.late:,} late reports kept apart: **{broken}**"
        f"{_starved(figures)}"
    )

"""Owns the published result: the figures as they were, and the sentence of the README that quotes them."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.chaos.campaign import Figures

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "docs" / "chaos.json"
README = ROOT / "README.md"
FEWEST_FAULTS = 2000
FEWEST_OF_A_KIND = 50
BEGIN, END = "<!-- chaos: written by make chaos -->\n", "<!-- /chaos -->"


def publish(found: Sequence[Figures]) -> None:
    """In place of what was published of the same engines."""
    results = {result["engine"]: result for result in read()}
    results |= {figures.engine: asdict(figures) for figures in found}
    RESULT.write_text(json.dumps(list(results.values()), indent=2) + "\n")
    before, _, rest = README.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(f"{before}{BEGIN}{quote(read())}{END}{after}")


def too_short(found: Sequence[Figures]) -> str | None:
    """Why a campaign says too little to be published."""
    for figures in found:
        hit = {name: count for name, count in figures.faults.items() if name != "clock_wrong"}
        if sum(hit.values()) < FEWEST_FAULTS:
            return f"{figures.engine}: fewer than {FEWEST_FAULTS} faults have hit"
        rare = [name for name, count in hit.items() if count < FEWEST_OF_A_KIND]
        if rare:
            return f"{figures.engine}: fewer than {FEWEST_OF_A_KIND} of {', '.join(rare)}"
    return None


def read() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(RESULT.read_text())
    return found


def quote(results: Sequence[dict[str, Any]]) -> str:
    return "".join(f"- {_line(result)}\n" for result in results)


def _line(result: dict[str, Any]) -> str:
    faults = ", ".join(f"{name.replace('_', ' ')} {count}×" for name, count in result["faults"].items())
    broken = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in result["broken"].items())
    return (
        f"**{result['engine']}**: {result['turns']} turns of {result['sessions']} sessions, "
        f"{sum(result['faults'].values())} faults ({faults}), {result['interrupted']} attempts taken over, "
        f"{result['late']} late reports kept apart: **{broken}**"
    )

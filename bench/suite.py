"""Owns a run: which sections, in which order, and what becomes of the findings."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import (
    cleaning,
    commands,
    crowd,
    depth,
    fleet,
    histories,
    hooks,
    idling,
    importing,
    listening,
    listing,
    machine,
    memory,
    opening,
    operations,
    over_http,
    plot,
    postgres,
    report,
    searching,
    sizes,
    statements,
    syncs,
    turn_calls,
    turn_syncs,
    waking,
)
from bench.results import Findings
from bench.scale import FULL, QUICK, Place

DOCS = Path(__file__).resolve().parents[1] / "docs"

Section = Callable[[Place, Findings], None]
SECTIONS: dict[str, Section] = {
    "cpu": operations.measure_cpu,
    "wall": operations.measure_wall,
    "history": histories.measure,
    "list": listing.measure,
    "cleanup": cleaning.measure,
    "search": searching.measure,
    "crowd": crowd.measure,
    "statements": statements.measure,
    "turn-calls": turn_calls.measure,
    "syncs": syncs.measure,
    "bytes": sizes.measure,
    "postgres": postgres.measure,
    "fleet": fleet.measure,
    "waking": waking.measure,
    "idle": idling.measure,
    "depth": depth.measure,
    "http": over_http.measure,
    "listening": listening.measure,
    "turn-syncs": turn_syncs.measure,
    "memory": memory.measure,
    "opening": opening.measure,
    "hook": hooks.measure,
    "commands": commands.measure,
    "import": importing.measure,
}


def main() -> int:
    asked = _arguments()
    found = Findings()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=asked.dir) as directory:
        place = Place(Path(directory), QUICK if asked.quick else FULL)
        facts = machine.facts(place.directory)
        _say(f"the floor writes the same {operations.check_floor(place)} rows as holdfast")
        for name in asked.only or SECTIONS:
            start = time.monotonic()
            SECTIONS[name](place, found)
            _say(f"{name}: {time.monotonic() - start:.1f} s, load {machine.load()}")
    print(report.as_text(found, facts))
    if asked.write:
        report.write(DOCS / "benchmarks.md", report.as_markdown(found, facts))
        plot.draw(found, DOCS / "benchmarks.svg")
    for target in found.missed:
        print(f"MISSED: {target.what}: {target.measured_text}, wanted {target.limit_text}")
    return 1 if asked.check and found.missed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description="Measure Holdfast beside its peers.")
    parser.add_argument("--quick", action="store_true", help="less of everything, in under a minute")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    parser.add_argument(
        "--write",
        action=argparse.BooleanOptionalAction,
        help="write docs/benchmarks.md and its plot (the default of a full run)",
    )
    parser.add_argument(
        "--dir", default="/var/tmp", help="where the databases go; its disk is what is measured (%(default)s)"
    )
    asked = parser.parse_args()
    if asked.write is None:
        asked.write = not asked.quick and not asked.only
    return asked


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)

"""Owns the section on cleanup: a thousand old sessions in one go."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

from bench import seed
from bench import workload as w
from bench.floor import Floor
from bench.floor_sessions import wall_clock
from bench.measure import Task, calls, interleave, ratio
from bench.ours import Ours
from bench.results import Bar, Findings, Table, Target, beside, micros
from bench.scale import Place

CPU_LIMIT = 2.0

Open = Callable[[Path], w.Subject]


def measure(place: Place, found: Findings) -> None:
    folder = place.directory / "cleaning"
    folder.mkdir()
    template = folder / "template.db"
    count = place.scale.old_sessions
    seed.old_sessions(template, count)
    openers: dict[str, Open] = {
        "floor": lambda path: Floor.on_sqlite(path, synchronous="OFF"),
        "Holdfast": lambda path: Ours.on_sqlite(path, synchronous="OFF"),
    }
    tasks = {label: _task(template, folder, label, open_) for label, open_ in openers.items()}
    series = interleave(tasks, place.scale.pace, batch=1, meter="cpu")
    floor, ours = series["floor"], series["Holdfast"]
    times = ratio(ours, floor)
    name = f"cleanup of {count}"
    found.targets.append(Target(f"CPU, sync off: {name}", CPU_LIMIT, times))
    found.bars.append(Bar(name, times, CPU_LIMIT))
    found.tables.append(
        Table(
            f"CPU of one cleanup of {count} old sessions, ms",
            ("floor", "Holdfast"),
            [[micros(floor.typical / 1000), beside(ours.typical / 1000, times)]],
            "Two turns each; half of them final (deleted), half idle (abandoned). The floor takes one transaction, Holdfast one for every 500.",
        )
    )


def _task(template: Path, folder: Path, label: str, open_: Open) -> Task:
    """Every call gets a copy of its own."""
    numbers = itertools.count()

    def prepare(count: int) -> list[w.Subject]:
        subjects = []
        for _ in range(count):
            path = folder / f"{label}-{next(numbers)}.db"
            shutil.copy(template, path)
            subjects.append(open_(path))
        return subjects

    return calls(lambda subject: subject.clean_up(wall_clock()), prepare)

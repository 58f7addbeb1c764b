"""Owns the section on memory: a turn whose stream is far larger than what Holdfast may hold of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.results import Findings, Table, Target
from bench.scale import Place
from bench.stage import Stage, many_lines, one_line

MB = 1_000_000
LIMIT = 25.0
SIZE = 100 * MB
SUBJECTS = ("bare", "Holdfast")
STREAMS = {"lines of 100 KB": many_lines(SIZE), "one line": one_line(SIZE)}
_ROOT = Path(__file__).resolve().parents[1]


def measure(place: Place, found: Findings) -> None:
    peaks = {
        name: [_weigh(Stage(place.directory / f"memory-{who}-{name}"), who, prompt) for who in SUBJECTS]
        for name, prompt in STREAMS.items()
    }
    # the bare reader holds the whole of one long line: that is nothing to be measured by
    least = min(bare for bare, _ in peaks.values())
    for name, (_, ours) in peaks.items():
        what = f"peak memory beyond the bare reader's least: {SIZE // MB} MB, {name}"
        found.targets.append(Target(what, LIMIT, round(ours - least, 1), "MB"))
    found.tables.append(
        Table(
            f"Peak memory of listening to {SIZE // MB} MB, MB",
            ("stream", "bare reader", "Holdfast"),
            [[name, *(f"{peak:.1f}" for peak in both)] for name, both in peaks.items()],
            "Each in a process of its own, everything included: Python, the modules, the store. The bare"
            " reader holds one line at a time and keeps nothing; Holdfast passes over a line of more than"
            " 8 MB and keeps the first megabyte of an answer.",
        )
    )


def _weigh(stage: Stage, who: str, prompt: str) -> float:
    stage.prepare()
    said = subprocess.run(
        [sys.executable, "-m", "bench.weighed", who, str(stage.work_dir), *stage.command],
        cwd=_ROOT,
        env=stage.environ,
        input=prompt,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return int(said.stdout) / MB

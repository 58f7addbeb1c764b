"""Owns the section on listening to an agent: the CPU of one turn beside that of a bare reader.

Counted is the process that listens (``RUSAGE_SELF``, all its threads). What it starts, the agent and its
tools, is counted apart (``RUSAGE_CHILDREN``): the launch barrier, which holds the agent back until it is on record, is
in there, and it is not part of the target.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench import bare_reader
from bench.measure import Series, Task, calls, interleave, ratio
from bench.results import Findings, Table, Target, beside, micros
from bench.scale import Place
from bench.stage import PROVIDER, Stage, conversation

CPU_LIMIT = 3.0
EVENTS = (10, 1_000)
HELD_TO = 1_000
#: what both ways to start an agent are asked for: the smallest turn there is
SMALLEST = "SAY done"


def measure(place: Place, found: Findings) -> None:
    stage = Stage(place.directory / "listening")
    stage.prepare()
    rows = []
    for events in EVENTS:
        series, children = _listen(place, stage, conversation(events))
        bare, ours = series["bare reader"], series["Holdfast"]
        times = ratio(ours, bare)
        rows.append(
            [f"{events} events", micros(bare.typical / 1000), beside(ours.typical / 1000, times)]
            + [micros(median(children[who]) / 1000) for who in series]
        )
        if events == HELD_TO:
            what = f"a turn of {events} events, beside a bare reader"
            found.targets.append(Target(f"CPU, sync off: {what}", CPU_LIMIT, times))
    found.tables.append(
        Table(
            "CPU of listening to one turn of an agent, ms",
            ("the agent says", "bare reader", "Holdfast", "bare reader's children", "Holdfast's children"),
            rows,
            "The bare reader starts the same command, reads line by line and parses each line. Holdfast"
            " runs the whole turn: a new session, the claim and its decision, the lock, events redacted and"
            " recorded, the answer committed, and a look whether any process is left. The children are the agent"
            " with its tools and, before it, the launch barrier; they are not in the columns on the left. Of five"
            " events one is text, two are calls of tools, and two are their results, one of them of 1 KB.",
        )
    )
    found.tables.append(_commands(place, stage))


def _listen(place: Place, stage: Stage, prompt: str) -> tuple[dict[str, Series], dict[str, list[float]]]:
    holdfast = stage.open(synchronous="OFF")
    subjects: dict[str, Callable[[str], object]] = {
        "bare reader": lambda given: bare_reader.read(stage.command, given, stage.work_dir, stage.environ),
        "Holdfast": lambda given: stage.run(holdfast, given),
    }
    children: dict[str, list[float]] = {who: [] for who in subjects}

    def task(who: str) -> Task:
        def run(given: str) -> None:
            before = _children_cpu()
            subjects[who](given)
            children[who].append(_children_cpu() - before)

        return calls(run, lambda count: [prompt] * count)

    series = interleave({who: task(who) for who in subjects}, place.scale.pace, batch=1, meter="cpu")
    holdfast.close()
    return series, children


def _children_cpu() -> float:
    """Microseconds of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * 1e6


def _commands(place: Place, stage: Stage) -> Table:
    """From the shell's point of view: everything that is started, from its first instruction to its end."""
    holdfast = str(Path(sys.executable).with_name("holdfast"))
    commands = {
        "the agent alone": [*stage.command, SMALLEST],
        "`holdfast run`": [holdfast, "run", SMALLEST, "--provider", PROVIDER, "--json"],
    }
    cpu: dict[str, list[float]] = {name: [] for name in commands}
    wall: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(place.scale.pace.fewest + 1):
        for name, command in commands.items():
            before, start = _children_cpu(), time.perf_counter_ns()
            subprocess.run(command, cwd=stage.work_dir, env=stage.environ, capture_output=True, check=True)
            wall[name].append((time.perf_counter_ns() - start) / 1e6)
            cpu[name].append((_children_cpu() - before) / 1000)
    return Table(
        "The smallest turn as a command, ms",
        ("command", "CPU", "wall time"),
        [[name, micros(median(cpu[name][1:])), micros(median(wall[name][1:]))] for name in commands],
        "All processes together, from the command's start to its end: Python and its modules, the store, the"
        " launch barrier, the agent. The first run of each is not counted.",
    )

"""Owns the section on commands: the CPU of the commands that scripts call, beside a bare Python with three modules."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from bench.opening import bare_environ, process_cpu
from bench.results import Findings, Table, Target, micros
from bench.scale import Place

LIMIT = 2.0
BARE = [sys.executable, "-c", "import sqlite3, json, argparse"]
#: by their names in the table; ``ID`` is a session
COMMANDS = {
    "should-resume": ("should-resume", "ID"),
    "get": ("get", "ID"),
    "update": ("update", "ID", "--phase", "approval", "--metadata", '{"plan_file": "plan.json"}'),
    "create": ("create", "--agent", "terraform-architect", "--purpose", "approval_workflow"),
    "list": ("list", "--limit", "10"),
    "list --json": ("list", "--limit", "10", "--json"),
    "--help": ("--help",),
    "completion of a command": ("env", "COMP_WORDS=holdfast re", "COMP_CWORD=1"),
    "completion of a session": ("env", "COMP_WORDS=holdfast show agent", "COMP_CWORD=2"),
}
#: measured without a target: they load the whole command
OTHERS = {"--version": ("--version",), "run --help": ("run", "--help")}


def measure(place: Place, found: Findings) -> None:
    home = place.directory / "commands"
    home.mkdir()
    environ = bare_environ(home)
    script = str(Path(sys.executable).with_name("holdfast"))
    commands = {name: _line(script, words) for name, words in (COMMANDS | OTHERS).items()}
    session_id = _said(commands["create"], environ)
    commands = {
        name: [session_id if word == "ID" else word for word in words] for name, words in commands.items()
    }
    _said(commands["update"], environ)
    bare: list[float] = []
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(place.scale.pace.fewest * 4 + 1):
        one = process_cpu(BARE, environ)
        each = {name: process_cpu(command, environ) for name, command in commands.items()}
        if number:  # the first round makes the byte code
            bare.append(one)
            for name, cpu in each.items():
                taken[name].append(cpu)
    rows = []
    for name, cpus in taken.items():
        times = median(one / other for one, other in zip(cpus, bare, strict=True))
        if name in COMMANDS:
            found.targets.append(Target(f"CPU of the process: holdfast {name}", LIMIT, times))
        rows.append([name, micros(median(bare)), micros(median(cpus)), f"{times:.2f} ×"])
    found.tables.append(
        Table(
            "CPU of a command's process, ms",
            ("command", 'bare: `python -c "import sqlite3, json, argparse"`', "holdfast", "ratio"),
            rows,
            "From the first instruction to the last, Python included, with the output in a pipe. The last two have no"
            " target: they load the whole command.",
        )
    )


def _line(script: str, words: tuple[str, ...]) -> list[str]:
    """The command line; a shell asks for completion by variables alone."""
    if words[0] != "env":
        return [script, *words]
    return ["env", "_HOLDFAST_COMPLETE=bash_complete", *words[1:], script]


def _said(command: list[str], environ: Mapping[str, str]) -> str:
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.strip()

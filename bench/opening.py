"""Owns the section on opening: the CPU of a process that opens a store and reads one session, beside a bare one."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from bench import workload as w
from bench.floor_sessions import SESSION
from bench.ours import Ours
from bench.results import Findings, Table, Target, micros
from bench.scale import Place

LIMIT = 4.0
_BARE = f"""
import json, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA journal_mode = WAL")
connection.execute("PRAGMA synchronous = FULL")
connection.execute("PRAGMA foreign_keys = ON")
row = connection.execute(
    "SELECT {SESSION} FROM sessions WHERE workspace = ? AND id = ?", ("{w.WORKSPACE}", sys.argv[2])
).fetchone()
json.loads(row[9])
connection.close()
"""
_OURS = """
import sys
import holdfast
with holdfast.open("sqlite:///" + sys.argv[1]) as opened:
    opened.session(sys.argv[2])
"""


def measure(place: Place, found: Findings) -> None:
    home = place.directory / "opening"
    home.mkdir()
    path, session_id = home / "holdfast.db", w.new_session_id()
    ours = Ours.on_sqlite(path)
    ours.create(session_id)
    ours.close()
    programs = {"bare": _BARE, "Holdfast": _OURS}
    taken: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(place.scale.pace.fewest * 4 + 1):
        for name, program in programs.items():
            cpu = process_cpu(
                [sys.executable, "-I", "-c", program, str(path), session_id], bare_environ(home)
            )
            if number:  # the first round makes the byte code
                taken[name].append(cpu)
    times = median(one / other for one, other in zip(taken["Holdfast"], taken["bare"], strict=True))
    found.targets.append(Target("CPU of the process: open a store and read a session", LIMIT, times))
    found.tables.append(
        Table(
            "CPU of a process that opens a store and reads a session, ms",
            ("bare", "Holdfast", "ratio"),
            [[*(micros(median(taken[name])) for name in programs), f"{times:.2f} ×"]],
            "From the first instruction to the last, Python included. Bare: `sqlite3.connect`, three pragmas, one"
            " SELECT. Holdfast: `holdfast.open(url).session(id)`, with the settings, the schema's version and the"
            " modules of the library. In a process that runs already, the same takes less than twice the bare time.",
        )
    )


def process_cpu(command: list[str], environ: Mapping[str, str]) -> float:
    """Milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def bare_environ(home: Path) -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home)}

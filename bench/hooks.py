"""Owns the section on hooks: the CPU of a hook's whole process beside a bare one that has the same two libraries."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

from bench.results import Findings, Table, Target, micros
from bench.scale import Place
from holdfast.hooks.main import EVENTS

LIMIT = 2.0
BARE = [sys.executable, "-I", "-c", "import sqlite3, json"]
ELSEWHERE = "postgresql://127.0.0.1:1/none"  #: a hook never goes there itself
_RECORDED = Path(__file__).resolve().parents[1] / "tests" / "contract" / "recorded" / "hooks"

Payload = Callable[[int], Mapping[str, object]]


def measure(place: Place, found: Findings) -> None:
    home = place.directory / "hooks"
    home.mkdir()
    rows = []
    for event in EVENTS:
        for where, url in {"SQLite": None, "PostgreSQL": ELSEWHERE}.items():
            bare, ours = _rounds(place, _environ(home, url), event, _payload(event, home))
            times = median(one / other for one, other in zip(ours, bare, strict=True))
            found.targets.append(Target(f"CPU of the process: hook {event} on {where}", LIMIT, times))
            rows.append([event, where, micros(median(bare)), micros(median(ours)), f"{times:.2f} ×"])
    found.tables.append(
        Table(
            "CPU of a hook's process, ms",
            ("event", "store", 'bare: `python -I -c "import sqlite3, json"`', "hook", "ratio"),
            rows,
            "From the first instruction to the last, Python included: the settings, the transaction and the answer."
            " On PostgreSQL it leaves a record for someone else to take there.",
        )
    )


def _rounds(
    place: Place, environ: Mapping[str, str], event: str, payload: Payload
) -> tuple[list[float], list[float]]:
    """The first round is not counted: it makes the store, the cache and the byte code."""
    hook = [str(Path(sys.executable).with_name("holdfast")), "hook", event]
    bare, ours = [], []
    for number in range(place.scale.pace.fewest * 4 + 1):
        if event == "subagent-stop":  # what ends has to have begun
            _cpu([*hook[:2], "pre-delegate"], environ, _tool_call(number))
        bare.append(_cpu(BARE, environ, {}))
        ours.append(_cpu(hook, environ, payload(number)))
    return bare[1:], ours[1:]


def _cpu(command: list[str], environ: Mapping[str, str], payload: Mapping[str, object]) -> float:
    """Milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        command, env=environ, input=json.dumps(payload).encode(), stdout=subprocess.DEVNULL, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def _environ(home: Path, url: str | None) -> dict[str, str]:
    """With byte code, as an installed package has it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HOLDFAST_"))}
    own = {"HOME": str(home), "PYTHONPYCACHEPREFIX": str(home / "bytecode")}
    return {**kept, **own, **({"HOLDFAST_URL": url} if url else {})}


def _payload(event: str, home: Path) -> Payload:
    if event == "pre-delegate":
        return _tool_call
    named = sorted(_RECORDED.glob(f"{event.replace('-', '_')}*.json"))
    recorded = json.loads(next(file for file in named if ".meta." not in file.name).read_text())
    if event == "subagent-stop":
        return lambda number: {**recorded, "agent_transcript_path": _transcript(home, number)}
    return lambda _: recorded


def _tool_call(number: int) -> Mapping[str, object]:
    recorded = json.loads((_RECORDED / "pre_tool_use_agent_sync.json").read_text())
    return {**recorded, "cwd": "/", "tool_use_id": f"toolu_{number}"}


def _transcript(home: Path, number: int) -> str:
    (home / f"agent-{number}.meta.json").write_text(json.dumps({"toolUseId": f"toolu_{number}"}))
    return str(home / f"agent-{number}.jsonl")

"""Owns the section on the syncs of a turn: how often running an agent makes the disk write, counted by strace.

Run as a program, this is what strace watches: after a mark it runs one turn.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bench import strace
from bench.results import Findings, Table, Target
from bench.scale import Place
from bench.stage import Stage, conversation

#: events -> syncs. Created, started, launched, pinned, finished; and one for each batch of events
LIMITS = {10: 6, 1_000: 12}
VAULT_LIMIT = 1
_RUNS = 3
_TURN = "turn"
_AGENT_HOME = "/.scripted-agent/"


def measure(place: Place, found: Findings) -> None:
    why_not = strace.why_not()
    rows = []
    for events, limit in LIMITS.items():
        counted = None if why_not else _count(place, events)
        found.targets.append(
            Target(f"syncs of a whole run of {events} events", limit, counted, "", why_not=why_not)
        )
        rows.append([f"{events} events", str(counted)])
    fewest = min(LIMITS)
    more = None if why_not else _count(place, fewest, vault=True) - int(rows[0][1])
    found.targets.append(Target("syncs that the vault adds to a run", VAULT_LIMIT, more, "", why_not=why_not))
    rows.append(
        [f"{fewest} events, with a copy in the vault", "–" if more is None else str(int(rows[0][1]) + more)]
    )
    if not why_not:
        found.tables.append(
            Table(
                "Syncs of a whole run",
                ("the agent says", "syncs"),
                rows,
                "A new session and its first turn: created, started, launched, pinned, finished, and one sync"
                " for each batch of events: 256 of them, 256 KB, or a second's. A lease is renewed, with a sync, every"
                " 15 s. Without the vault, except for the last line. Automatic checkpoints are off while counting.",
            )
        )


def _count(place: Place, events: int, *, vault: bool = False) -> int:
    """Of Holdfast's own files; the agent's home is its own business. The least of a few runs: a slow one has more batches."""
    counts = []
    for number in range(_RUNS):
        stage = Stage(place.directory / f"turn-syncs-{events}-{int(vault)}-{number}")
        stage.prepare()
        given = (str(stage.folder), str(events), str(int(vault)))
        traced = strace.syncs(stage.folder, "bench.turn_syncs", *given)
        counts.append(sum(section == _TURN and _AGENT_HOME not in path for section, path in traced))
    return min(counts)


def _run_one(stage: Stage, events: int, *, vault: bool) -> None:
    holdfast = stage.open(checkpoints=False, vault=vault)
    stage.run(holdfast, conversation(10))  # finds the agent, and asks it what it can do
    strace.mark(stage.folder, _TURN)
    stage.run(holdfast, conversation(events))
    strace.mark(stage.folder, "the end")
    os._exit(0)  # closing would checkpoint


if __name__ == "__main__":
    _run_one(Stage(Path(sys.argv[1])), int(sys.argv[2]), vault=sys.argv[3] == "1")

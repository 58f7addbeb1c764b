"""Owns the section on many processes: eight writers on different sessions, and on one and the same."""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from queue import Queue
from statistics import mean
from typing import Any

from bench import workload as w
from bench.crews import Shift, compare, processes
from bench.floor import Floor
from bench.measure import ratio
from bench.ours import Ours
from bench.results import Findings, Table, Target, micros
from bench.scale import Place
from holdfast.domain.sessions import SessionUpdate

WRITERS = 8
FAIR_LIMIT = 50.0
#: of the floor's
RATE_LIMIT = 70.0
#: a writer that is fast stops here, so that no file grows without end
MOST_TURNS = 20_000
#: every so many turns a writer also changes its own key of the session's metadata
UPDATE_EVERY = 5
START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Written:
    """What one writer says it has done."""

    number: int
    turns: int
    last_update: int
    seconds: float
    longest: float


class _Writer:
    """Writes to a session of its own, until the shift is over."""

    kind = ""

    def __init__(self, url: str, number: int) -> None:
        self._subject = _open(self.kind, Path(url))
        self._session_id = f"agent-20260108-180530-{0x70000000 + number:08x}"
        self._subject.create(self._session_id)
        self.close = self._subject.close

    def work(self, shift: Shift) -> None:
        while not shift.is_over:
            self._subject.record_turn(self._session_id)
            shift.done()


class _ByHand(_Writer):
    kind = "floor"


class _WithHoldfast(_Writer):
    kind = "Holdfast"


def measure(place: Place, found: Findings) -> None:
    folder = place.directory / "crowd"
    folder.mkdir()
    _measure_rate(folder, place, found)
    rows = []
    for where in ("different sessions", "one session"):
        for kind in ("floor", "Holdfast"):
            path = folder / f"{kind}-{where.split()[0]}.db"
            done, lost = _run(kind, path, place.scale.writer_seconds, shared=where == "one session")
            rates = [one.turns / one.seconds for one in done]
            fairness = 100 * min(rates) / mean(rates)
            longest = max(one.longest for one in done) * 1000
            rows.append([where, kind, micros(sum(rates)), f"{fairness:.0f} %", micros(longest), str(lost)])
            if kind == "Holdfast":
                what = f"slowest of {WRITERS} writers, of the mean: {where}"
                found.targets.append(Target(what, FAIR_LIMIT, fairness, "%", at_least=True))
                found.targets.append(Target(f"lost updates, {WRITERS} writers: {where}", 0, lost, ""))
    found.tables.append(
        Table(
            f"{WRITERS} processes, every commit synced",
            ("writing to", "by", "turns/s in all", "slowest, of the mean", "longest turn, ms", "lost"),
            rows,
            f"All start together and write for {place.scale.writer_seconds:g} s. Holdfast's writers also"
            f" change the session's metadata after every {UPDATE_EVERY} turns. Lost: turns and metadata that"
            " a writer was told were committed and that are not there afterwards, gaps in the sequence,"
            " tokens not counted. The floor has SQLite's own lock and no write lock beside it.",
        )
    )


def _measure_rate(folder: Path, place: Place, found: Findings) -> None:
    crews = {
        "floor": (_ByHand, folder / "floor-rate.db"),
        "Holdfast": (_WithHoldfast, folder / "ours-rate.db"),
    }
    for kind, (_, path) in crews.items():
        _open(kind, path).close()  # the schema
    series = compare(
        {kind: (hire, str(path)) for kind, (hire, path) in crews.items()},
        WRITERS,
        place.scale.shifts * 3,
        place.scale.shift_seconds,
    )
    share = 100 * ratio(series["Holdfast"], series["floor"])
    what = f"{WRITERS} writers on different sessions: turns/s, of the floor's"
    found.targets.append(Target(what, RATE_LIMIT, share, "%", at_least=True))
    found.tables.append(
        Table(
            f"{WRITERS} writers on different sessions, every commit synced: turns/s in all",
            ("floor", "Holdfast"),
            [[micros(series["floor"].typical), f"{micros(series['Holdfast'].typical)} ({share:.0f} %)"]],
            "Both crews are there all the time and take turns in short shifts. The floor has SQLite's own lock and no"
            " write lock beside it, so a few of its writers do most of the work: the table below shows what it costs"
            " the others.",
        )
    )


def _run(kind: str, path: Path, seconds: float, *, shared: bool) -> tuple[list[Written], int]:
    subject = _open(kind, path)
    sessions = [w.new_session_id() for _ in range(1 if shared else WRITERS)]
    for session_id in sessions:
        subject.create(session_id)
    subject.close()
    barrier, said = processes.Barrier(WRITERS), processes.Queue()
    writers = [
        processes.Process(
            target=_write, args=(kind, path, sessions[number % len(sessions)], number, seconds, barrier, said)
        )
        for number in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    done = [said.get(timeout=START_SECONDS + 10 * seconds) for _ in writers]
    for writer in writers:
        writer.join()
    return done, _count_lost(path, sessions, done)


def _open(kind: str, path: Path) -> Floor | Ours:
    return Floor.on_sqlite(path) if kind == "floor" else Ours.on_sqlite(path)


def _write(  # noqa: PLR0913 - what a process is started with
    kind: str,
    path: Path,
    session_id: str,
    number: int,
    seconds: float,
    barrier: Barrier,
    said: Queue[Any],
) -> None:
    subject = _open(kind, path)
    subject.get(session_id)
    turns, last_update, longest = 0, 0, 0.0
    barrier.wait(START_SECONDS)
    start = time.monotonic()
    while (began := time.monotonic()) - start < seconds and turns < MOST_TURNS:
        subject.record_turn(session_id)
        longest = max(longest, time.monotonic() - began)
        turns += 1
        if isinstance(subject, Ours) and turns % UPDATE_EVERY == 0:
            subject.store.update_session(session_id, SessionUpdate(metadata={f"writer-{number}": turns}))
            last_update = turns
    said.put(Written(number, turns, last_update, time.monotonic() - start, longest))
    subject.close()


def _count_lost(path: Path, sessions: list[str], done: list[Written]) -> int:
    connection = sqlite3.connect(path)
    told = sum(one.turns for one in done)
    stored, tokens = connection.execute(
        "SELECT (SELECT COUNT(*) FROM turns WHERE status = 'done'), (SELECT SUM(input_tokens) FROM sessions)"
    ).fetchone()
    lost = int(abs(told - stored) + abs(told * 300 - tokens) // 300)
    for session_id in sessions:
        (gaps,) = connection.execute(
            "SELECT c.next_seq - 1 - COUNT(t.seq) FROM conversations c LEFT JOIN turns t"
            " ON t.conversation_id = c.id WHERE c.id = ?",
            (w.conversation_of(session_id),),
        ).fetchone()
        lost += abs(int(gaps))
    merged: dict[str, int] = {}
    for (metadata,) in connection.execute("SELECT metadata FROM sessions"):
        merged |= json.loads(metadata)
    connection.close()
    return lost + sum(
        1 for one in done if one.last_update and merged.get(f"writer-{one.number}") != one.last_update
    )

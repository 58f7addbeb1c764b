"""Owns the section on a fleet: many workers on one queue, beside a loop by hand and beside procrastinate."""

from __future__ import annotations

from collections.abc import Mapping

from bench import procrastinate_peer
from bench import workload as w
from bench.backlog import Backlog
from bench.crews import Hire, compare
from bench.measure import Series, ratio
from bench.postgres_stage import connect, new_database, new_store, open_floor, running
from bench.procrastinate_peer import Empty, Recording
from bench.results import Findings, Table, Target, micros
from bench.scale import Place
from bench.workers import ByHand, WithHoldfast
from holdfast.store.open import open_store
from tests.postgres_server import ServerUnavailable

WORKERS = 16
LOOP_LIMIT = 60.0
PEER_LIMIT = 1.0
#: nine of ten sessions are somebody else's
BUSY = Backlog(sessions=400, leased=360, turns=300)
OPEN = Backlog(sessions=1_000, turns=10)
_LOOP = f"claim and finish, {WORKERS} workers, most sessions leased: turns/s, of a loop by hand"
_PEER = f"claim, record and finish, {WORKERS} workers: turns/s, beside procrastinate"


def measure(place: Place, found: Findings) -> None:
    try:
        with running(place) as url:
            _measure_loop(url, place, found)
            _measure_peer(url, place, found)
    except ServerUnavailable as exc:
        why_not = str(exc)
        found.targets.append(Target(_LOOP, LOOP_LIMIT, None, "%", at_least=True, why_not=why_not))
        found.targets.append(Target(_PEER, PEER_LIMIT, None, at_least=True, why_not=why_not))


def _measure_loop(url: str, place: Place, found: Findings) -> None:
    template = _queue(url, "busy", BUSY)
    by_hand, ours = (new_database(url, f"busy_{name}", like=template) for name in ("floor", "ours"))
    series = _compare(place, {"loop by hand": (ByHand, by_hand), "Holdfast": (WithHoldfast, ours)})
    for made in (by_hand, ours):
        _check_left(made)
    share = ratio(series["Holdfast"], series["loop by hand"])
    found.targets.append(Target(_LOOP, LOOP_LIMIT, 100 * share, "%", at_least=True))
    found.tables.append(
        Table(
            f"{WORKERS} workers on PostgreSQL, most sessions leased: turns/s in all",
            ("loop by hand", "Holdfast"),
            [[micros(series["loop by hand"].typical), f"{micros(series['Holdfast'].typical)} ({share:.0%})"]],
            f"Each worker is a process with a connection of its own that claims a turn and finishes it, in two"
            f" transactions. Of {BUSY.sessions} sessions {BUSY.leased} are leased by others; {BUSY.turns} turns"
            " wait in each of the rest. The loop by hand is the psycopg floor: a head `FOR UPDATE SKIP LOCKED`,"
            " the decision by a handful of checks, attempt, lease, answer, usage, pointer and the next head, into"
            " the same tables. It keeps no turn for the runtime that has its session, and redacts nothing.",
        )
    )


def _measure_peer(url: str, place: Place, found: Findings) -> None:
    template = _queue(url, "open", OPEN)
    recording = new_database(url, "open_peer", like=template)
    with connect(recording) as connection:
        sessions = [row[0] for row in connection.execute("SELECT id FROM sessions ORDER BY ready_at")]
    procrastinate_peer.defer_turns(recording, sessions, OPEN.turns)
    idle = new_database(url, "open_empty", like=recording)
    series = _compare(
        place,
        {
            "Holdfast": (WithHoldfast, template),
            "recorded": (Recording, recording),
            "empty": (Empty, idle),
        },
    )
    for jobs in (recording, idle):
        procrastinate_peer.check_jobs(jobs)
    _check_left(template)
    times = ratio(series["Holdfast"], series["recorded"])
    found.targets.append(Target(_PEER, PEER_LIMIT, times, at_least=True))
    found.tables.append(
        Table(
            f"{WORKERS} workers on PostgreSQL, beside procrastinate: turns/s in all",
            ("Holdfast", "procrastinate, jobs that record a turn", "procrastinate, empty jobs"),
            [
                [f"{micros(series['Holdfast'].typical)} ({times:.2f} ×)"]
                + [micros(series[name].typical) for name in ("recorded", "empty")]
            ],
            f"{OPEN.in_all} turns of {OPEN.sessions} sessions wait, and each worker is a process."
            " Procrastinate runs one job at a time in each, under the lock of its session; the job gets the"
            " prompt as its argument and writes attempt, answer, usage and state into the same tables, in one"
            " transaction. It has no pointer, no lease, no fence and no decision to keep, as Holdfast has. The"
            " empty jobs are there for orientation: what its queue alone costs.",
        )
    )


def _queue(url: str, name: str, backlog: Backlog) -> str:
    made = new_store(url, name)
    store = open_store(made)
    store.register_runtime(w.RUNTIME)
    store.close()
    floor = open_floor(made)
    backlog.fill(floor)
    floor.close()
    return made


def _check_left(url: str) -> None:
    with connect(url) as connection:
        left = connection.execute("SELECT 1 FROM sessions WHERE ready_at IS NOT NULL LIMIT 1").fetchone()
    if left is None:
        raise RuntimeError("no turn was left in the end: workers had nothing to do for a while")


def _compare(place: Place, crews: Mapping[str, tuple[Hire, str]]) -> dict[str, Series]:
    return compare(crews, WORKERS, place.scale.shifts, place.scale.shift_seconds)

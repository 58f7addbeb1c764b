"""Owns how much is measured: a full run, and a quick one that only shows that everything works."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.measure import Pace


@dataclass(frozen=True, slots=True)
class Scale:
    pace: Pace
    batch: int  #: calls in a round
    synced_pace: Pace  #: when every call waits for the disk, whose mood changes quickly
    synced_batch: int
    histories: tuple[int, ...]  #: turns behind a session
    listings: tuple[int, ...]  #: sessions in a store
    old_sessions: int
    writer_seconds: float
    sized: int  #: turns, or sessions, to weigh
    traced: int  #: calls of each operation while syncs are counted
    shifts: int  #: of each crew of workers
    shift_seconds: float
    wakes: int  #: turns that an idle worker is woken for
    idle_seconds: float  #: in which idle workers are watched
    queued_sessions: int  #: of a long queue
    searched: int  #: turns in a store that is searched
    imported: int  #: sessions that are imported, in the same rounds, beside a peer
    imports: int  #: rounds of that
    unchanged: int  #: sessions, of ten turns each, of an import that finds nothing new
    long_session: int  #: bytes of one transcript


FULL = Scale(
    pace=Pace(rounds=15, fewest=5, seconds=7.0),
    batch=100,
    synced_pace=Pace(rounds=60, fewest=15, seconds=9.0),
    synced_batch=5,
    histories=(10, 100, 1_000, 10_000),
    listings=(100, 10_000, 100_000),
    old_sessions=1_000,
    writer_seconds=3.0,
    sized=2_000,
    traced=50,
    shifts=6,
    shift_seconds=0.6,
    wakes=200,
    idle_seconds=60.0,
    queued_sessions=10_000,
    searched=100_000,
    imported=2_000,
    imports=3,
    unchanged=10_000,
    long_session=1024**3,
)
QUICK = Scale(
    pace=Pace(rounds=5, fewest=2, seconds=0.8),
    batch=40,
    synced_pace=Pace(rounds=12, fewest=3, seconds=1.0),
    synced_batch=5,
    histories=(10, 1_000),
    listings=(100, 10_000),
    old_sessions=100,
    writer_seconds=1.0,
    sized=400,
    traced=10,
    shifts=2,
    shift_seconds=0.3,
    wakes=20,
    idle_seconds=4.0,
    queued_sessions=1_000,
    searched=10_000,
    imported=40,
    imports=1,
    unchanged=100,
    long_session=64 * 1024**2,
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run works, and how hard."""

    directory: Path
    scale: Scale

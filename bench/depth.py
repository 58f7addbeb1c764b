"""Owns the section on long queues: what a claim costs with few and with many turns waiting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.backlog import Backlog
from bench.floor import Floor
from bench.measure import Series, Task, interleave, ratio
from bench.ours import Ours
from bench.postgres_stage import new_store, open_floor, running
from bench.results import Findings, Table, Target, beside, micros
from bench.scale import Place
from holdfast.domain.turns import Claim
from holdfast.store.open import open_store
from tests.postgres_server import ServerUnavailable

LIMIT = 1.5
#: more sessions than a run claims, so that every claim is the first of its session in either queue
SHORT = Backlog(sessions=1_000, turns=1)
TURNS = 10  #: in each session of a long queue


def measure(place: Place, found: Findings) -> None:
    long = Backlog(place.scale.queued_sessions, TURNS)
    rows = []
    for engine, claim in {"PostgreSQL": _on_postgres, "SQLite": _on_sqlite}.items():
        what = f"{engine}: claim, {SHORT.in_all} → {long.in_all} queued turns"
        try:
            series = claim(place, long)
        except ServerUnavailable as exc:
            found.targets.append(Target(what, LIMIT, None, why_not=str(exc)))
            continue
        times = ratio(series["long"], series["short"])
        found.targets.append(Target(what, LIMIT, times))
        rows.append([engine, micros(series["short"].typical), beside(series["long"].typical, times)])
    found.tables.append(
        Table(
            "Wall time of a claim with turns waiting, µs",
            (
                "engine",
                f"{SHORT.in_all} turns of {SHORT.sessions} sessions",
                f"{long.in_all} turns of {long.sessions} sessions",
            ),
            rows,
            "`claim_turn` alone, every commit synced. Between the rounds, unmeasured, each claimed turn is"
            " finished and another one is enqueued for its session, so that the queue stays as long as it was.",
        )
    )


def _on_postgres(place: Place, long: Backlog) -> dict[str, Series]:
    with running(place) as url:
        stores = {}
        for name, backlog in {"short": SHORT, "long": long}.items():
            stores[name] = new_store(url, f"queue_{name}")
            _fill(open_floor(stores[name]), backlog)
        return _claim_from(stores, place)


def _on_sqlite(place: Place, long: Backlog) -> dict[str, Series]:
    folder = place.directory / "depth"
    folder.mkdir()
    paths: dict[str, Path] = {}
    for name, backlog in {"short": SHORT, "long": long}.items():
        paths[name] = folder / f"{name}.db"
        _fill(Floor.on_sqlite(paths[name], synchronous="OFF"), backlog)
    return _claim_from({name: f"sqlite:///{path}" for name, path in paths.items()}, place)


def _fill(floor: Floor, backlog: Backlog) -> None:
    backlog.fill(floor)
    floor.close()


def _claim_from(urls: dict[str, str], place: Place) -> dict[str, Series]:
    workers = {name: _Claiming(Ours(open_store(url))) for name, url in urls.items()}
    tasks = {name: Task(worker.claim, worker.prepare) for name, worker in workers.items()}
    series = interleave(tasks, place.scale.synced_pace, batch=place.scale.synced_batch, meter="wall")
    for worker in workers.values():
        worker.close()
    return series


class _Claiming:
    def __init__(self, ours: Ours) -> None:
        self._ours = ours
        self._held: list[Claim] = []
        self.close = ours.close

    def prepare(self, count: int) -> Sequence[int]:
        for claim in self._held:
            self._ours.finish(claim)
            self._ours.enqueue(claim.lease.session_id)
        self._held.clear()
        return range(count)

    def claim(self, inputs: Sequence[int]) -> None:
        for _ in inputs:
            claim = self._ours.claim()
            assert claim is not None
            self._held.append(claim)

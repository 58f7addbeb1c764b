"""Owns the section on waking: from enqueueing a turn to its claim by a worker that waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from statistics import median, quantiles
from typing import Any, TypeVar

from bench import workload as w
from bench.crews import answer_of, started
from bench.ours import Ours
from bench.postgres_stage import connect, new_store, open_floor, running
from bench.results import Findings, Table, Target, beside, micros
from bench.scale import Place
from holdfast.store.open import open_store
from tests.postgres_server import ServerUnavailable

LIMIT = 1.5
#: a worker says that it found nothing, and then needs a moment until it waits
SETTLE_SECONDS = 0.005
_LOOK_SECONDS = 0.5
_CHANNEL = "bench_queue"
_WHAT = "PostgreSQL: from enqueueing to claimed by an idle worker, {}"

C = TypeVar("C")


@dataclass(slots=True)
class Side:
    """Microseconds, from before the turn is put in."""

    enqueue: Callable[[], object]
    worker: Connection[Any, Any]
    enqueued: list[float] = field(default_factory=list)
    claimed: list[float] = field(default_factory=list)

    def once(self) -> None:
        time.sleep(SETTLE_SECONDS)
        began = time.monotonic()
        self.enqueue()
        self.enqueued.append((time.monotonic() - began) * 1e6)
        # the clock is that of the machine, in whatever process
        self.claimed.append((answer_of(self.worker) - began) * 1e6)

    @property
    def late(self) -> float:
        """What one in twenty exceeds."""
        return quantiles(self.claimed, n=20)[-1]


def measure(place: Place, found: Findings) -> None:
    try:
        with running(place) as url:
            _measure_on(url, place, found)
    except ServerUnavailable as exc:
        for which in ("median", "95th percentile"):
            found.targets.append(Target(_WHAT.format(which), LIMIT, None, why_not=str(exc)))


def _measure_on(url: str, place: Place, found: Findings) -> None:
    by_hand, ours = _rounds(new_store(url, "floor"), new_store(url, "ours"), place.scale.wakes)
    typical = median(ours.claimed) / median(by_hand.claimed)
    found.targets.append(Target(_WHAT.format("median"), LIMIT, typical))
    found.targets.append(Target(_WHAT.format("95th percentile"), LIMIT, ours.late / by_hand.late))
    found.tables.append(
        Table(
            "PostgreSQL: from enqueueing a turn to its claim by an idle worker, µs",
            ("", "notify and claim by hand", "Holdfast"),
            [
                ["enqueued, median", micros(median(by_hand.enqueued)), micros(median(ours.enqueued))],
                ["claimed, median", micros(median(by_hand.claimed)), beside(median(ours.claimed), typical)],
                ["claimed, 95th percentile", micros(by_hand.late)]
                + [beside(ours.late, ours.late / by_hand.late)],
            ],
            "From before the call that puts the turn in to after the call that claims it, in another process"
            " that found nothing before and waits. By hand: `NOTIFY` in the transaction that enqueues, `LISTEN`"
            " on a connection of its own, and the psycopg floor's claim. Holdfast: `enqueue_turn`,"
            " `watch_queue().wait` and `claim_turn`.",
        )
    )


def _rounds(floor_url: str, ours_url: str, count: int) -> tuple[Side, Side]:
    """The first ones are not counted."""
    floor, ours = open_floor(floor_url), Ours(open_store(ours_url))
    session_id = w.new_session_id()
    for subject in (floor, ours):
        subject.create(session_id)
    with ExitStack() as stack:
        by_hand = Side(
            lambda: floor.enqueue(session_id, f"NOTIFY {_CHANNEL}"),
            stack.enter_context(started(_wait_by_hand, floor_url)),
        )
        holdfast = Side(
            lambda: ours.enqueue(session_id), stack.enter_context(started(_wait_with_holdfast, ours_url))
        )
        for side in (by_hand, holdfast):
            answer_of(side.worker)
        warm_up = count // 10
        for _ in range(count + warm_up):
            for side in (by_hand, holdfast):
                side.once()
    for subject in (floor, ours):
        subject.close()
    for side in (by_hand, holdfast):
        del side.enqueued[:warm_up], side.claimed[:warm_up]
    return by_hand, holdfast


def _wait_by_hand(url: str, orders: Connection[Any, Any]) -> None:
    floor, listener = open_floor(url), connect(url)
    listener.execute(f"LISTEN {_CHANNEL}".encode())

    def wait() -> None:
        for _ in listener.notifies(timeout=_LOOK_SECONDS, stop_after=1):
            pass

    _work(floor.claim, lambda claimed: floor.finish(*claimed), wait, orders)
    listener.close()
    floor.close()


def _wait_with_holdfast(url: str, orders: Connection[Any, Any]) -> None:
    ours = Ours(open_store(url))
    with ours.store.watch_queue() as watch:
        _work(ours.claim, ours.finish, lambda: watch.wait(_LOOK_SECONDS), orders)
    ours.close()


def _work(
    claim: Callable[[], C | None],
    finish: Callable[[C], object],
    wait: Callable[[], object],
    orders: Connection[Any, Any],
) -> None:
    """Tell, each time when nothing is left to claim, when the last claim was answered."""
    at: float | None = 0.0
    while not orders.poll():
        claimed = claim()
        if claimed is not None:
            at = time.monotonic()
            finish(claimed)
            continue
        if at is not None:
            orders.send(at)
            at = None
        wait()

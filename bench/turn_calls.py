"""Owns the section on what a whole turn asks of its store: calls, bytes read, and time under the write lock."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from bench import workload as w
from bench.floor_sessions import wall_clock
from bench.ours import POLICY
from bench.results import Findings, Table, Target
from bench.scale import Place
from bench.stage import PROVIDER, Stage, conversation
from holdfast.clock import Instant
from holdfast.domain.ids import check_workspace
from holdfast.engine.holdfast import Holdfast
from holdfast.engine.worker import WorkerOptions
from holdfast.store.migrate import migrate_sqlite
from holdfast.store.sql_store import SqlStore
from holdfast.store.sqlite import SqliteDriver
from tests.counted_store import CountedStore

#: calls of a turn: one to look, one to start it, its launch, pin, events and end, and what it came to
LIMITS = {"a first run": 10, "a resumed turn": 10, "a fresh start": 15, "a turn of a worker": 10}
_EVENTS = 10
_TURNS_BEFORE = 20


@dataclass
class _Held:
    """How long, and how often, transactions that write were open."""

    seconds: float = 0.0
    times: int = 0


class _Timed(AbstractContextManager[Any]):
    def __init__(self, transaction: AbstractContextManager[Any], held: _Held) -> None:
        self._transaction = transaction
        self._held = held

    def __enter__(self) -> Any:
        entered = self._transaction.__enter__()
        self._since = time.perf_counter()
        return entered

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transaction.__exit__(kind, error, trace)
        self._held.seconds += time.perf_counter() - self._since
        self._held.times += 1


class _TimedDriver(SqliteDriver):
    held = _Held()

    def write(self, *, synced: bool = True) -> Any:
        return _Timed(super().write(synced=synced), self.held)


def measure(place: Place, found: Findings) -> None:
    stage = Stage(place.directory / "turn-calls")
    stage.prepare()
    driver = _TimedDriver(stage.folder / "calls.db", lambda: Instant(wall_clock()))
    migrate_sqlite(driver)
    store = SqlStore(driver, check_workspace(w.WORKSPACE), POLICY)
    counted = CountedStore(store)
    holdfast = Holdfast(counted.as_store, environ=stage.environ)
    rows = []

    def count(name: str) -> None:
        calls = [call for call in counted.calls if call not in ("get_turn", "heartbeat")]
        if "claim_turn" in calls:  # up to the look for the turn after it
            calls = calls[calls.index("claim_turn") : -1]
        held = driver.held
        rows.append(
            [name, str(len(calls)), f"{counted.bytes_read:,}", str(held.times), f"{held.seconds * 1000:.1f}"]
        )
        found.targets.append(Target(f"store calls of {name}", LIMITS[name], len(calls), ""))

    def clear() -> None:
        counted.clear()
        driver.held = _Held()

    prompt = conversation(_EVENTS)
    stage.run(holdfast, prompt)  # finds the agent, and asks it what it can do
    clear()
    first = stage.run(holdfast, prompt)
    count("a first run")
    for _ in range(_TURNS_BEFORE):
        holdfast.resume(first.session_id, prompt)
    clear()
    holdfast.resume(first.session_id, prompt)
    count("a resumed turn")
    clear()
    holdfast.resume(first.session_id, prompt, fresh=True)
    count("a fresh start")
    holdfast.enqueue(first.session_id, prompt)
    worker = holdfast.worker([PROVIDER], WorkerOptions(once=True))
    clear()
    worker.run()
    count("a turn of a worker")
    store.close()
    found.tables.append(
        Table(
            "What a whole turn asks of its store",
            ("the turn", "calls", "bytes read", "write transactions", "ms in them"),
            rows,
            f"An agent that gives out {_EVENTS} events; the resumed session has {_TURNS_BEFORE} turns behind it. Over"
            " HTTP each call is one round trip, and the bytes are those of the answers. Renewals of the lease and looks"
            " whether somebody has cancelled the turn come with time, and are not counted. On SQLite the write"
            " transactions of all processes happen one after the other: their time is what a turn takes from others.",
        )
    )

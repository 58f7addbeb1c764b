"""Owns the section on idle workers: what many of them cost a machine, and those who bring them work, on SQLite."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from bench import workload as w
from bench.measure import cpu_of
from bench.ours import Ours
from bench.results import Findings, Table, Target, micros
from bench.scale import Place
from bench.stage import PROVIDER, Stage
from holdfast.clock import after
from holdfast.domain.turns import NewTurn
from holdfast.store.contract import Store
from holdfast.store.open import open_store

WORKERS = 50
CPU_LIMIT = 5.0
RATE_LIMIT = 50.0
#: so long a worker takes to start beside all the others
_PATIENCE_SECONDS = 120.0
_CPU = f"SQLite: CPU of {WORKERS} idle workers together, of one core"
_RATE = f"SQLite: enqueueing beside {WORKERS} idle workers, turns/s, of the rate without them"
#: turns that leave every worker idle: nobody runs them, or nobody may yet
_NOBODYS = "a provider that no worker runs"
_LATER = "turns for later"


def measure(place: Place, found: Findings) -> None:
    stage = Stage(place.directory / "idling")
    stage.prepare()
    seconds = place.scale.idle_seconds
    url = f"sqlite:///{stage.folder}/store/holdfast.db"
    with closing(open_store(url)) as store:
        before = _rates(store, place)
        with _workers(stage, url) as pids:
            used = _cpu(pids, seconds)
            beside = _rates(store, place)
        behind = _rates(store, place)
    alone = {what: (before[what] + behind[what]) / 2 for what in before}
    share = {what: 100 * beside[what] / alone[what] for what in alone}
    found.targets.append(Target(_CPU, CPU_LIMIT, used, "%"))
    found.targets.append(Target(_RATE, RATE_LIMIT, share[_LATER], "%", at_least=True))
    found.tables.append(
        Table(
            f"SQLite: {WORKERS} idle workers on one file",
            ("", "without them", "beside them"),
            [["CPU of all of them, % of one core", "–", f"{used:.1f}"]]
            + [
                [
                    f"enqueued, turns/s: {what}",
                    micros(alone[what]),
                    f"{micros(beside[what])} ({share[what]:.0f} %)",
                ]
                for what in alone
            ],
            f"Each worker is a `holdfast worker` process that looks for work as often as it does by default. CPU is"
            f" that of all {WORKERS} over {seconds:g} s in which nothing happens; starting them is not in it. The"
            " turns come from one process, one after the other, each commit synced; without the workers they are"
            " measured before those start and after they have ended. None of the turns is for these"
            " workers to run, so they stay idle: a turn of a provider that nobody runs makes each of them look in"
            " vain, a turn for later does not.",
        )
    )


@contextmanager
def _workers(stage: Stage, url: str) -> Iterator[list[int]]:
    """All of them wait for turns when this returns."""
    command = [str(Path(sys.executable).with_name("holdfast")), "worker", "--provider", PROVIDER]
    environ = {**stage.environ, "HOLDFAST_URL": url}
    logs = [stage.folder / f"worker-{number}.log" for number in range(WORKERS)]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for log in logs:
            with log.open("w") as words:
                started.append(subprocess.Popen(command, cwd=stage.work_dir, env=environ, stderr=words))
        for worker, log in zip(started, logs, strict=True):
            _await_idle(worker, log)
        yield [worker.pid for worker in started]
    finally:
        for worker in started:
            worker.terminate()
        for worker in started:
            worker.wait(_PATIENCE_SECONDS)


def _await_idle(worker: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while "waiting for turns" not in log.read_text():
        if worker.poll() is not None or time.monotonic() > give_up:
            raise RuntimeError(f"a worker does not wait for turns: {log.read_text()}")
        time.sleep(0.1)


def _cpu(pids: Sequence[int], seconds: float) -> float:
    """Percent of one core."""
    clock = cpu_of(pids)
    before, began = clock(), time.monotonic()
    time.sleep(seconds)
    return (clock() - before) / 1e7 / (time.monotonic() - began)


def _rates(store: Store, place: Place) -> dict[str, float]:
    in_a_day = after(store.now(), 24 * 3600)
    kinds = {_LATER: NewTurn(w.PROMPT, PROVIDER, not_before=in_a_day), _NOBODYS: NewTurn(w.PROMPT, "nobody")}
    return {what: _rate(store, new, place.scale.writer_seconds) for what, new in kinds.items()}


def _rate(store: Store, new: NewTurn, seconds: float) -> float:
    """Turns a second, in a session that is gone afterwards."""
    session_id = w.new_session_id()
    Ours(store).create(session_id)
    count, began = 0, time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        store.enqueue_turn(session_id, new)
        count += 1
    store.remove_session(session_id)
    return count / passed

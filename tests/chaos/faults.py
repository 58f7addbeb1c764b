"""Owns the faults: each happens, lasts a while, and is over; what it hit is left to mend itself."""

import signal
import time
from collections.abc import Callable, Iterable
from random import Random

from tests.chaos.databases import Postgres, Sqlite, empty_disk, fill_disk
from tests.chaos.fleet import LEASE_SECONDS, Fleet, Program

#: long enough for the others to take over
STOPPED_SECONDS = LEASE_SECONDS + 2.5
OUTAGE_SECONDS = 1.0
FULL_SECONDS = 1.5
LOST_REPLIES = 4
BUSY_SECONDS = 5.0

Fault = Callable[[Fleet, Random], None]


def kill_worker(fleet: Fleet, chance: Random) -> None:
    """With everything it was about to say; its agents go on."""
    _a_worker(fleet, chance).end(signal.SIGKILL)


def stop_worker(fleet: Fleet, chance: Random) -> None:
    """Past its lease; then it goes on as if nothing had happened."""
    worker = _a_worker(fleet, chance)
    worker.send(signal.SIGSTOP)
    try:
        time.sleep(STOPPED_SECONDS)
    finally:
        worker.send(signal.SIGCONT)


def _a_worker(fleet: Fleet, chance: Random) -> Program:
    """One that has something to lose, as soon as there is one."""
    deadline = time.monotonic() + BUSY_SECONDS
    while not (busy := fleet.busy_workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    return chance.choice(busy or fleet.workers)


def restart_server(fleet: Fleet, chance: Random) -> None:
    fleet.server.end(signal.SIGTERM)
    time.sleep(OUTAGE_SECONDS)


def kill_server(fleet: Fleet, chance: Random) -> None:
    fleet.server.end(signal.SIGKILL)
    time.sleep(OUTAGE_SECONDS)


def cut_connections(fleet: Fleet, chance: Random) -> None:
    fleet.proxy.cut()
    if isinstance(fleet.database, Postgres):
        fleet.database.proxy.cut()


def lose_replies(fleet: Fleet, chance: Random) -> None:
    """What was asked for has happened, and nobody hears of it."""
    proxies = [fleet.proxy]
    if isinstance(fleet.database, Postgres):
        proxies.append(fleet.database.proxy)
    chance.choice(proxies).lose += LOST_REPLIES


def restart_database(fleet: Fleet, chance: Random) -> None:
    assert isinstance(fleet.database, Postgres)
    fleet.database.restart()


def crash_database(fleet: Fleet, chance: Random) -> None:
    assert isinstance(fleet.database, Postgres)
    fleet.database.crash()


def fill_the_disk(fleet: Fleet, chance: Random) -> None:
    assert isinstance(fleet.database, Sqlite)
    writer = chance.choice([fleet.near, fleet.server])
    fill_disk(writer.pid)
    try:
        time.sleep(FULL_SECONDS)
    finally:
        empty_disk(writer.pid)


EVERYWHERE: dict[str, Fault] = {
    "worker_killed": kill_worker,
    "worker_stopped": stop_worker,
    "server_restarted": restart_server,
    "server_killed": kill_server,
    "connections_cut": cut_connections,
    "replies_lost": lose_replies,
}
FAULTS: dict[str, dict[str, Fault]] = {
    "sqlite": EVERYWHERE | {"disk_full": fill_the_disk},
    "postgres": EVERYWHERE | {"database_restarted": restart_database, "database_crashed": crash_database},
}


def schedule(names: Iterable[str], rounds: int, chance: Random) -> list[str]:
    """Every fault as often as there are rounds, each round in an order of its own."""
    listed = sorted(names)
    return [name for _ in range(rounds) for name in chance.sample(listed, len(listed))]

"""Owns the faults: each happens, lasts a while, and is over; what it hit is left to mend itself."""

import signal
import time
from collections.abc import Callable, Iterable
from random import Random

from holdfast.processes.owners import process_start
from tests.chaos.databases import Database, Postgres, Sqlite, limited_files
from tests.chaos.fleet import FAR_GRACE_SECONDS, LEASE_SECONDS, Fleet, Program

#: long enough for the others to take over
STOPPED_SECONDS = LEASE_SECONDS + 2.0
#: long enough to notice that the grace is over, and to end what must end then
HUNG_SECONDS = FAR_GRACE_SECONDS + 4.5
OUTAGE_SECONDS = 1.0
FULL_SECONDS = 1.5
LOST_REPLIES = 4
BUSY_SECONDS = 5.0

Fault = Callable[[Fleet, Random], None]


def kill_worker(fleet: Fleet, chance: Random) -> None:
    """With everything it was about to say; its agents go on."""
    fleet.kill(_a_worker(fleet, chance, fleet.workers))


def lose_machine(fleet: Fleet, chance: Random) -> None:
    """Its worker is killed, and comes back when others have taken over; its agents hang, and would for ever."""
    lost = _a_worker(fleet, chance, [fleet.far])
    fleet.strays += fleet.hang_agents(lost)
    fleet.kill(lost)
    time.sleep(STOPPED_SECONDS)


def stop_worker(fleet: Fleet, chance: Random) -> None:
    """Past its lease; then it goes on as if nothing had happened."""
    worker = _a_worker(fleet, chance, fleet.workers)
    with fleet.away(worker), worker.stopped():
        time.sleep(STOPPED_SECONDS)


def _a_worker(fleet: Fleet, chance: Random, among: list[Program]) -> Program:
    """One that has something to lose, as soon as there is one."""
    deadline = time.monotonic() + BUSY_SECONDS
    while not (busy := [worker for worker in among if fleet.agents_of(worker)]):
        if time.monotonic() > deadline:
            return chance.choice(among)
        time.sleep(0.05)
    return chance.choice(busy)


def restart_server(fleet: Fleet, chance: Random) -> None:
    _replace_server(fleet, signal.SIGTERM)


def kill_server(fleet: Fleet, chance: Random) -> None:
    _replace_server(fleet, signal.SIGKILL)


def _replace_server(fleet: Fleet, number: signal.Signals) -> None:
    with fleet.away(*fleet.behind_the_server):
        fleet.server.end(number)
        time.sleep(OUTAGE_SECONDS)
        fleet.start_server()


def hang_server(fleet: Fleet, chance: Random) -> None:
    """It takes what it is told, and says nothing: once the grace is over, nothing runs on that cannot be heard."""
    agents = fleet.hang_agents(_a_worker(fleet, chance, [fleet.far]))
    with fleet.away(*fleet.behind_the_server), fleet.server.stopped():
        time.sleep(HUNG_SECONDS)
        fleet.overdue += [agent for agent in agents if process_start(agent) is not None]


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
    with fleet.away(*fleet.workers), fleet.database.full():
        time.sleep(FULL_SECONDS)


def limit_files(fleet: Fleet, chance: Random) -> None:
    writer = chance.choice([fleet.near, fleet.server])
    with fleet.away(*fleet.workers), limited_files(writer.pid):
        time.sleep(FULL_SECONDS)


EVERYWHERE: dict[str, Fault] = {
    "worker_killed": kill_worker,
    "worker_stopped": stop_worker,
    "machine_lost": lose_machine,
    "server_restarted": restart_server,
    "server_killed": kill_server,
    "server_hung": hang_server,
    "connections_cut": cut_connections,
    "replies_lost": lose_replies,
}


def faults_of(database: Database) -> dict[str, Fault]:
    """All that can happen to it here."""
    if isinstance(database, Postgres):
        return EVERYWHERE | {"database_restarted": restart_database, "database_crashed": crash_database}
    if database.has_own_disk:
        return EVERYWHERE | {"disk_full": fill_the_disk}
    return EVERYWHERE | {"files_limited": limit_files}


def schedule(names: Iterable[str], rounds: int, chance: Random) -> list[str]:
    """Every fault as often as there are rounds, each round in an order of its own."""
    listed = sorted(names)
    return [name for _ in range(rounds) for name in chance.sample(listed, len(listed))]

"""Owns the faults: each happens, lasts a while, and is over; what it hit is left to mend itself.

A fault says whether it hit what it is there to hit, by what it saw, not by what it sent: only those count.
"""

import signal
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from random import Random

from holdfast.clock import system_clock
from holdfast.processes.owners import process_start
from tests.chaos.databases import Database, Postgres, Sqlite, limited_files
from tests.chaos.drills import restore_database
from tests.chaos.evidence import read_mark_file, session_of, turn_of
from tests.chaos.fleet import FAR_GRACE_SECONDS, LEASE_SECONDS, Fleet, Program

#: long enough for the others to take over
STOPPED_SECONDS = LEASE_SECONDS + 2.0
#: long enough to notice that the grace is over, and to end what must end then
HUNG_SECONDS = FAR_GRACE_SECONDS + 4.5
OUTAGE_SECONDS = 1.0
FULL_SECONDS = 1.5
LOST_REPLIES = 4
BUSY_SECONDS = 5.0
CLONE_SECONDS = 30.0
TWO_LOOKS_SECONDS = 2.5
SLOW_SECONDS = 2.0
SLOW_READERS = 40

Fault = Callable[[Fleet, Random], bool]


def kill_worker(fleet: Fleet, chance: Random) -> bool:
    """With everything it was about to say; its agents go on."""
    worker = _a_worker(fleet, chance, fleet.workers)
    agents = fleet.agents_of(worker)
    fleet.kill(worker)
    return any(process_start(agent) is not None for agent in agents)


def kill_first_turn(fleet: Fleet, chance: Random) -> bool:
    """Worker and agent at once, while the agent is at work on the first request that it ever got."""
    return _kill_both(fleet, lambda seq, began: seq == 1 and began)


def kill_repeated_prompt(fleet: Fleet, chance: Random) -> bool:
    """Worker and agent at once, launched and not yet at work, with the same prompt as the turn before."""
    return _kill_both(fleet, lambda seq, began: seq % 2 == 0 and not began)


def _kill_both(fleet: Fleet, is_meant: Callable[[int, bool], bool]) -> bool:
    deadline = time.monotonic() + BUSY_SECONDS
    while time.monotonic() < deadline:
        for worker in fleet.workers:
            for agent, marker in fleet.launched_of(worker):
                if is_meant(turn_of(marker), bool(_marks_of(fleet, marker))):
                    fleet.kill_with(worker, agent)
                    marks = _marks_of(fleet, marker)
                    return "end" not in marks and is_meant(turn_of(marker), bool(marks))
        time.sleep(0.01)
    return False


def _marks_of(fleet: Fleet, marker: str) -> list[str]:
    """What the tool of this attempt has marked so far."""
    file = fleet.root / "marks" / f"{session_of(marker)}.marks"
    return [mark.what for mark in read_mark_file(file) if mark.marker == marker] if file.exists() else []


def lose_machine(fleet: Fleet, chance: Random) -> bool:
    """Its worker is killed, and comes back when others have taken over; its agents hang, and would for ever."""
    lost = _a_worker(fleet, chance, [fleet.far])
    hung = fleet.hang_agents(lost)
    fleet.strays += hung
    fleet.kill(lost)
    time.sleep(STOPPED_SECONDS)
    return bool(hung)


def stop_worker(fleet: Fleet, chance: Random) -> bool:
    """Past its lease; then it goes on as if nothing had happened."""
    worker = _a_worker(fleet, chance, fleet.workers)
    with fleet.away(worker), worker.stopped():
        hit = bool(fleet.agents_of(worker))
        time.sleep(STOPPED_SECONDS)
    return hit


def start_clone(fleet: Fleet, chance: Random) -> bool:
    """A machine made from the image of the near one, until it has looked around twice beside one of its agents."""
    size = fleet.clone.log.stat().st_size if fleet.clone.log.exists() else 0
    fleet.clone.start()
    deadline = time.monotonic() + CLONE_SECONDS
    seen: dict[tuple[int, int | None], float] = {}
    try:
        while time.monotonic() < deadline:
            time.sleep(0.05)
            if "waiting for turns" not in fleet.clone.log.read_text(errors="replace")[size:]:
                continue
            # what it took for gone it would have ended by then
            agents = [(agent, process_start(agent)) for agent in fleet.agents_of(fleet.near)]
            seen = {agent: seen.get(agent, time.monotonic()) for agent in agents}
            if any(time.monotonic() - since > TWO_LOOKS_SECONDS for since in seen.values()):
                return True
        return False
    finally:
        fleet.clone.end(signal.SIGTERM)


def _a_worker(fleet: Fleet, chance: Random, among: list[Program]) -> Program:
    """One that has something to lose, as soon as there is one."""
    deadline = time.monotonic() + BUSY_SECONDS
    while not (busy := [worker for worker in among if fleet.agents_of(worker)]):
        if time.monotonic() > deadline:
            return chance.choice(among)
        time.sleep(0.05)
    return chance.choice(busy)


def restart_server(fleet: Fleet, chance: Random) -> bool:
    return _replace_server(fleet, chance, signal.SIGTERM)


def kill_server(fleet: Fleet, chance: Random) -> bool:
    return _replace_server(fleet, chance, signal.SIGKILL)


def _replace_server(fleet: Fleet, chance: Random, number: signal.Signals) -> bool:
    _a_worker(fleet, chance, list(fleet.behind_the_server))
    with fleet.away(*fleet.behind_the_server):
        hit = any(fleet.agents_of(worker) for worker in fleet.behind_the_server)
        fleet.server.end(number)
        time.sleep(OUTAGE_SECONDS)
        fleet.start_server()
    return hit


def hang_server(fleet: Fleet, chance: Random) -> bool:
    """It takes what it is told, and says nothing: once the grace is over, nothing runs on that cannot be heard."""
    agents = fleet.hang_agents(_a_worker(fleet, chance, [fleet.far]))
    since = system_clock()
    with fleet.away(*fleet.behind_the_server), fleet.server.stopped():
        time.sleep(HUNG_SECONDS)
        overdue = [agent for agent in agents if process_start(agent) is not None]
    if overdue and fleet.is_starved(since):
        return False
    fleet.overdue += overdue
    return bool(agents)


def slow_readers(fleet: Fleet, chance: Random) -> bool:
    """Half of them never end their request, half of them never read the answer; the others are served meanwhile."""
    head = b"GET /v1/sessions?limit=100 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    with ExitStack() as held:
        readers = []
        for number in range(SLOW_READERS):
            with suppress(OSError):
                reader = held.enter_context(socket.create_connection(("127.0.0.1", fleet.port), timeout=1))
                reader.sendall(head if number % 2 else head + b"\r\n" * 8)
                reader.setblocking(False)
                readers.append(reader)
        time.sleep(SLOW_SECONDS)
        return sum(_is_open(reader) for reader in readers) >= SLOW_READERS // 4


def _is_open(reader: socket.socket) -> bool:
    try:
        return bool(reader.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False


def cut_connections(fleet: Fleet, chance: Random) -> bool:
    cut = fleet.proxy.cut()
    if isinstance(fleet.database, Postgres):
        cut += fleet.database.proxy.cut()
    return cut > 0


def lose_replies(fleet: Fleet, chance: Random) -> bool:
    """What was asked for has happened, and nobody hears of it."""
    proxies = [fleet.proxy]
    if isinstance(fleet.database, Postgres):
        proxies.append(fleet.database.proxy)
    proxy = chance.choice(proxies)
    before = proxy.lost
    proxy.lose += LOST_REPLIES
    deadline = time.monotonic() + BUSY_SECONDS
    while proxy.lost == before and time.monotonic() < deadline:
        time.sleep(0.05)
    return proxy.lost > before


def put_back_database(fleet: Fleet, chance: Random) -> bool:
    drill = restore_database(fleet.database, fleet.root, chance.getrandbits(40))
    fleet.unsaid += drill.hit and drill.unsaid
    return drill.hit


def restart_database(fleet: Fleet, chance: Random) -> bool:
    assert isinstance(fleet.database, Postgres)
    hit = fleet.is_busy
    fleet.database.restart()
    return hit


def crash_database(fleet: Fleet, chance: Random) -> bool:
    assert isinstance(fleet.database, Postgres)
    hit = fleet.is_busy
    fleet.database.crash()
    return hit


def fill_the_disk(fleet: Fleet, chance: Random) -> bool:
    assert isinstance(fleet.database, Sqlite)
    with fleet.away(*fleet.workers), fleet.database.full():
        hit = fleet.is_busy
        time.sleep(FULL_SECONDS)
    return hit


def limit_files(fleet: Fleet, chance: Random) -> bool:
    writer = chance.choice([fleet.near, fleet.server])
    with fleet.away(*fleet.workers), limited_files(writer.pid):
        hit = fleet.is_busy
        time.sleep(FULL_SECONDS)
    return hit


EVERYWHERE: dict[str, Fault] = {
    "worker_killed": kill_worker,
    "first_turn_killed": kill_first_turn,
    "repeated_prompt_killed": kill_repeated_prompt,
    "worker_stopped": stop_worker,
    "machine_lost": lose_machine,
    "machine_cloned": start_clone,
    "server_restarted": restart_server,
    "server_killed": kill_server,
    "server_hung": hang_server,
    "readers_slow": slow_readers,
    "connections_cut": cut_connections,
    "replies_lost": lose_replies,
    "database_put_back": put_back_database,
}
#: they take a moment, and come more often in the long form
QUICK = frozenset(
    {"worker_killed", "first_turn_killed", "repeated_prompt_killed", "connections_cut", "replies_lost"}
)


def faults_of(database: Database) -> dict[str, Fault]:
    """All that can happen to it here."""
    if isinstance(database, Postgres):
        return EVERYWHERE | {"database_restarted": restart_database, "database_crashed": crash_database}
    if database.has_own_disk:
        return EVERYWHERE | {"disk_full": fill_the_disk}
    return EVERYWHERE | {"files_limited": limit_files}


def schedule(names: Iterable[str], rounds: int, times: int, chance: Random) -> list[str]:
    """Every fault as often as there are rounds, the quick ones so many times as often; each round in its own order."""
    listed = [name for name in sorted(names) for _ in range(times if name in QUICK else 1)]
    return [name for _ in range(rounds) for name in chance.sample(listed, len(listed))]

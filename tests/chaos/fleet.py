"""Owns the processes of a campaign: a server and workers, near to the database and far from it, kept running.

The one that is far has a machine of its own: nobody else can end what it leaves behind.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.clock import Instant, after, system_clock
from holdfast.processes.machine import machine_id
from holdfast.processes.owners import process_start
from holdfast.processes.table import MARKER as CARRIED
from holdfast.processes.table import processes
from tests.chaos import cloned, shifted
from tests.chaos.crew import Crew
from tests.chaos.databases import Database
from tests.chaos.evidence import MARKER, Absence
from tests.chaos.starvation import Starvation, threads_of
from tests.integration.faulty_proxy import FaultyProxy, faulty_proxy

HOLDFAST = [str(Path(sys.executable).with_name("holdfast"))]
LEASE_SECONDS = 3.0
FAR_GRACE_SECONDS = 2.0
#: what was away has renewed its leases by then, or has given up in time and lets them run out
MENDING_SECONDS = LEASE_SECONDS
WATCH_SECONDS = 0.25
#: a worker of which nothing is known any more is given up after so long, which is longer than it may drain
END_SECONDS = 90.0
FAR_SHIFT = -420.0
NEVER = Instant(2**62)
#: everything that takes its time takes less of it; a turn may be begun again however often something happens
SETTINGS = {
    "HOLDFAST_QUEUE__LEASE_SECONDS": str(LEASE_SECONDS),
    "HOLDFAST_QUEUE__AFFINITY_SECONDS": "1",
    "HOLDFAST_QUEUE__HEARTBEAT_SECONDS": "0.5",
    "HOLDFAST_QUEUE__GRACE_SECONDS": "30",
    "HOLDFAST_QUEUE__POLL_SECONDS": "0.2",
    "HOLDFAST_QUEUE__RECOVER_SECONDS": "1",
    "HOLDFAST_QUEUE__LOCK_DELAY_SECONDS": "0.2",
    "HOLDFAST_QUEUE__RETRY_DELAY_SECONDS": "0.2",
    "HOLDFAST_QUEUE__MAX_ATTEMPTS": "100",
    "HOLDFAST_QUEUE__SAME_ERROR_LIMIT": "100",
    "HOLDFAST_DURABILITY": "normal",
}


@dataclass
class Program:
    """A command that runs for ever: it is started again when it has ended, and if nobody ended it, it crashed."""

    name: str
    command: list[str]
    environ: dict[str, str]
    folder: Path
    crashes: list[str] = field(default_factory=list)
    _process: subprocess.Popen[bytes] | None = None
    _ended_by_us: bool = False

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def start(self) -> None:
        self._ended_by_us = False
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, cwd=self.folder, env=self.environ, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip

    def tend(self) -> None:
        """Start it again if it has ended."""
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            if not self._ended_by_us and not self._could_not_begin():
                self.crashes.append(f"{self.name} ended with {code}")
            self.start()

    def _could_not_begin(self) -> bool:
        """Its store was away: it says so, and is no crash."""
        last = self.log.read_text(errors="replace").strip().rpartition("\n")[2]
        return last.startswith("holdfast: ") and "cannot be reached" in last and "warning" not in last

    def found_crashes(self) -> list[str]:
        """Also what it outlived: nobody who runs it wants to read a traceback."""
        return [*self.crashes, *[f"{self.name}: {line}" for line in _tracebacks(self.log)]]

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._ended_by_us = self._ended_by_us or number not in (signal.SIGSTOP, signal.SIGCONT)
            self._process.send_signal(number)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Then it goes on as if nothing had happened."""
        self.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self.send(signal.SIGCONT)

    def end(self, number: signal.Signals) -> None:
        assert self._process is not None
        self.send(number)
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.crashes.append(f"{self.name} did not end")
            self._process.kill()
            self._process.wait()


@dataclass
class Fleet:
    database: Database
    server: Program
    near: Program
    far: Program
    wrong: Program  #: its clock is
    clone: Program  #: made from the image of the near one; started for a while, now and then
    root: Path
    port: int  #: of the server
    proxy: FaultyProxy  #: between the server and all who are not near
    absences: list[Absence] = field(default_factory=list)
    strays: list[int] = field(default_factory=list)  #: agents that hung when their machine was lost
    overdue: list[int] = field(default_factory=list)  #: agents that ran on when the grace was over
    starvation: Starvation = field(default_factory=lambda: Starvation(LEASE_SECONDS))
    unsaid: int = 0  #: older databases that were put back without a word to anyone

    @property
    def workers(self) -> list[Program]:
        return [self.near, self.far, self.wrong]

    def agents_of(self, worker: Program) -> list[int]:
        """Those with a tool at work; each leads the group of its processes."""
        return [agent for agent in _children(worker.pid) if _children(agent)]

    def launched_of(self, worker: Program) -> list[tuple[int, str]]:
        """All its agents, also those that have not begun with a tool: each with the marker it carries."""
        markers = [(pid, marker) for pid in _children(worker.pid) for marker in _markers(pid)]
        return [(pid, marker) for pid, marker in markers if MARKER.fullmatch(marker)]

    def is_starved(self, since: Instant) -> bool:
        """Did somebody get no processor since then? Who still waits is known a moment later."""
        time.sleep(MENDING_SECONDS)
        return self.starvation.covers(since, system_clock())

    @contextmanager
    def watched(self) -> Iterator[None]:
        """For who gets no processor: see ``Starvation``."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(WATCH_SECONDS):
                self.starvation.look([os.getpid(), *[program.pid for program in self.programs]])

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()

    def kill_with(self, worker: Program, agent: int) -> None:
        """Both at once, as when their machine loses its power."""
        self.absences.append(Absence(worker.pid, system_clock(), NEVER))
        with suppress(ProcessLookupError):
            os.killpg(agent, signal.SIGKILL)
        worker.end(signal.SIGKILL)

    @property
    def is_busy(self) -> bool:
        return any(self.agents_of(worker) for worker in self.workers)

    def hang_agents(self, worker: Program) -> list[int]:
        """They would be there for ever now; whom it hit."""
        hit = []
        for agent in self.agents_of(worker):
            with suppress(ProcessLookupError):
                os.killpg(agent, signal.SIGSTOP)
                hit.append(agent)
        return hit

    @contextmanager
    def away(self, *workers: Program) -> Iterator[None]:
        """Nobody hears of them meanwhile, nor for a moment afterwards."""
        pids, since = [worker.pid for worker in workers], system_clock()
        try:
            yield
        finally:
            until = after(system_clock(), MENDING_SECONDS)
            self.absences += [Absence(pid, since, until) for pid in pids]

    def kill(self, worker: Program) -> None:
        """What it had is for others, from now on."""
        self.absences.append(Absence(worker.pid, system_clock(), NEVER))
        worker.end(signal.SIGKILL)

    def start_server(self) -> None:
        self.server.start()
        await_port(self.port)

    @property
    def behind_the_server(self) -> tuple[Program, ...]:
        return self.far, self.wrong

    @property
    def programs(self) -> list[Program]:
        return [self.server, *self.workers]

    @property
    def all_programs(self) -> list[Program]:
        return [*self.programs, self.clone] if self.clone.log.exists() else self.programs

    @property
    def wrong_clocks(self) -> int:
        return sum(shift != 0 for shift in (self.database.near_shift, FAR_SHIFT))

    def tend(self) -> None:
        for program in self.programs:
            program.tend()

    def stop(self) -> None:
        """In good order: what runs comes to its end."""
        for worker in self.workers:
            worker.send(signal.SIGCONT)
            worker.send(signal.SIGTERM)
        for worker in self.workers:
            worker.end(signal.SIGTERM)
        self.server.end(signal.SIGTERM)


@contextmanager
def fleet(database: Database, crew: Crew, root: Path) -> Iterator[Fleet]:
    environ = {**os.environ, "HOME": str(root), **SETTINGS, **crew.environ}
    work = ["worker", "--provider", crew.provider]

    image = root / "clone" / "holdfast"
    image.mkdir(parents=True)
    here = root / ".local" / "share" / "holdfast"
    machine_id(here)  # it is part of the image
    shutil.copy(here / "machine-id", image)
    far = {
        "XDG_DATA_HOME": str(root / "another-machine"),
        "HOLDFAST_QUEUE__GRACE_SECONDS": str(FAR_GRACE_SECONDS),
    }

    def wrong(seconds: float) -> list[str]:
        return [sys.executable, shifted.__file__, str(seconds)]

    with _reserved_port() as port, faulty_proxy(f"http://127.0.0.1:{port}") as proxy:
        serve = [*HOLDFAST, "serve", "--port", str(port)]

        def program(name: str, command: list[str], url: str, **own: str) -> Program:
            return Program(name, command, {**environ, "HOLDFAST_URL": url, **own}, root)

        near = wrong(database.near_shift) if database.near_shift else HOLDFAST
        running = Fleet(
            database,
            program("server", serve, database.url),
            program("near", [*near, *work], database.near_url),
            program("far", [*HOLDFAST, *work, "--slots", "2"], proxy.url, **far),
            program("wrong", [*wrong(FAR_SHIFT), *work], proxy.url),
            program(
                "clone",
                [sys.executable, cloned.__file__, "another-boot", *work],
                database.near_url,
                XDG_DATA_HOME=str(image.parent),
            ),
            root,
            port,
            proxy,
        )
        try:
            running.start_server()
            for worker in running.workers:
                worker.start()
            with running.watched():
                yield running
        finally:
            for program_ in running.all_programs:
                with suppress(AssertionError):  # it was never started
                    program_.end(signal.SIGKILL)


def _tracebacks(log: Path) -> list[str]:
    return [line for line in log.read_text(errors="replace").splitlines() if line.startswith("Traceback")]


def left_running(crew: Crew) -> tuple[int, ...]:
    """Every process that was given this crew's home, whatever became of its group."""
    name, value = next(iter(crew.environ.items()))
    wanted = f"{name}={value}".encode()
    return tuple(process.pid for process in processes() if wanted in _environ(process.pid))


def _environ(pid: int) -> list[bytes]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []


def _children(pid: int) -> list[int]:
    """Those that live."""
    found: list[int] = []
    for thread in threads_of(pid):
        with suppress(OSError):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return [child for child in found if process_start(child) is not None]


def _markers(pid: int) -> list[str]:
    prefix = f"{CARRIED}=".encode()
    return [entry[len(prefix) :].decode() for entry in _environ(pid) if entry.startswith(prefix)]


@contextmanager
def _reserved_port() -> Iterator[int]:
    """The server listens there whenever it runs; meanwhile nobody else is given it."""
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        yield int(bound.getsockname()[1])


def await_port(port: int) -> None:
    deadline = time.monotonic() + END_SECONDS
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert time.monotonic() < deadline, "the server does not listen"
        time.sleep(0.05)

"""Owns the processes of a campaign: a server and workers, near to the database and far from it, kept running."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.processes.table import processes
from tests.chaos import shifted
from tests.chaos.crew import Crew
from tests.chaos.databases import Database
from tests.integration.faulty_proxy import FaultyProxy, faulty_proxy

HOLDFAST = [str(Path(sys.executable).with_name("holdfast"))]
LEASE_SECONDS = 3.0
#: a worker of which nothing is known any more is given up after so long
END_SECONDS = 60.0
FAR_SHIFT = -420.0
#: everything that takes its time takes less of it; a turn may be begun again however often something happens
SETTINGS = {
    "HOLDFAST_QUEUE__LEASE_SECONDS": str(LEASE_SECONDS),
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
    proxy: FaultyProxy  #: between the server and all who are far

    @property
    def workers(self) -> list[Program]:
        return [self.near, self.far, self.wrong]

    @property
    def busy_workers(self) -> list[Program]:
        """Those with an agent at work."""
        parents = {process.parent for process in processes()}
        return [worker for worker in self.workers if worker.pid in parents]

    @property
    def programs(self) -> list[Program]:
        return [self.server, *self.workers]

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
    port = _free_port()
    environ = {**os.environ, "HOME": str(root), **SETTINGS, **crew.environ}
    serve = [*HOLDFAST, "serve", "--port", str(port)]
    work = ["worker", "--provider", crew.provider, "--slots", "2"]

    def wrong(seconds: float) -> list[str]:
        return [sys.executable, shifted.__file__, str(seconds)]

    with faulty_proxy(f"http://127.0.0.1:{port}") as proxy:

        def program(name: str, command: list[str], url: str) -> Program:
            return Program(name, command, {**environ, "HOLDFAST_URL": url}, root)

        near = wrong(database.near_shift) if database.near_shift else HOLDFAST
        running = Fleet(
            database,
            program("server", serve, database.url),
            program("near", [*near, *work], database.near_url),
            program("far", [*HOLDFAST, *work], proxy.url),
            program("wrong", [*wrong(FAR_SHIFT), *work], proxy.url),
            proxy,
        )
        try:
            running.server.start()
            await_port(port)
            for worker in running.workers:
                worker.start()
            yield running
        finally:
            for program_ in running.programs:
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


def _free_port() -> int:
    """The server comes back to the same one; on loopback nobody else is given it soon."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def await_port(port: int) -> None:
    deadline = time.monotonic() + END_SECONDS
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert time.monotonic() < deadline, "the server does not listen"
        time.sleep(0.05)

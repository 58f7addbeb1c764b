"""Owns running one agent: its command, its own process group, its output as lines, and the end of all its processes.

    with AgentProcess.start(command, work_dir, environ, marker, machine) as agent:
        ...  # put agent.mark on record
        agent.go()
        for line in agent.lines(tick=1.0): ...
        ended = agent.wait()

One thread reads and waits; any thread may ``stop``.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import IO, Final, Self

from holdfast.domain.records import record
from holdfast.domain.turns import ProcessMark
from holdfast.errors import ConfigError, MissingBinary
from holdfast.processes import launch_barrier
from holdfast.processes.machine import Machine
from holdfast.processes.output import Output, Overlong
from holdfast.processes.owners import process_start
from holdfast.processes.table import GENTLY, MARKER, QUICKLY, Traces, end_all


@record
class Command:
    """What a process is started with. The prompt goes to ``stdin``: an argument is limited in length and visible to all users."""

    argv: tuple[str, ...]
    stdin: str | None = None  #: None: nothing to read
    environ: tuple[tuple[str, str], ...] = ()  #: set in addition
    without: tuple[str, ...] = ()  #: variables of our environment that would mislead the agent
    #: the agent may end before a pipe has taken all its output: its standard output is then a file, which loses nothing
    prints_to_file: bool = False


def find_program(name: str, environ: Mapping[str, str]) -> str | None:
    """The absolute path of the program that this name runs; None if there is none.

    Relative and empty entries of PATH are skipped: they would find programs in the directory that an agent works in,
    which may be anybody's.
    """
    entries = environ.get("PATH", os.defpath).split(os.pathsep)
    found = shutil.which(name, path=os.pathsep.join(filter(os.path.isabs, entries)))
    return None if found is None else str(Path(found).absolute())


_LOOK_EVERY = 0.1
#: processes that the agent left behind may hold its output open: read until they are silent for this long ...
_QUIET_SECONDS = 2.0
#: ... and at most this long, however much they print
_AFTERMATH_SECONDS = 10.0
#: exit codes by which a shell, or ``env`` in a script's first line, says that the program is missing
_NOT_RUN = (126, 127)


class StopCause(StrEnum):
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"  #: of the whole turn
    LEASE_LOST = "lease_lost"
    EXIT = "exit"  #: Holdfast itself is ending
    UNGATED = "ungated"  #: it would call tools without asking
    HANDED_BACK = "handed_back"  #: the worker is ending, and another one is to continue


@record
class Exit:
    code: int | None  #: None: ended by a signal, or could not be ended
    signal: int | None
    stopped: StopCause | None  #: why we ended it; None: we did not
    stderr: str  #: the end of it
    left_behind: bool  #: some of its processes could not be ended
    is_missing_binary: bool  #: it printed nothing, because a program that it needs is not installed

    @property
    def was_ended(self) -> bool:
        """Whether a signal or Holdfast ended it; False: it exited by itself."""
        return self.signal is not None or self.stopped is not None


class AgentProcess:
    """No part of the agent runs before ``go``, and none after ``wait``."""

    def __init__(
        self,
        binary: str,
        child: subprocess.Popen[bytes],
        stdout: IO[bytes],
        channel: socket.socket,
        mark: ProcessMark,
        marker: str,
    ) -> None:
        assert child.stderr
        self.mark: Final = mark
        self._traces = Traces(mark.pgid, mark.started_at, marker, is_own=True)
        self._binary = binary
        self._child = child
        self._channel = channel
        self._stdout = stdout
        self._output = Output(stdout, child.stderr)
        self._ended_at: float | None = None
        self._stopped: StopCause | None = None
        self._left_behind = False
        self._is_over = False
        self._ending = threading.RLock()  # a signal handler may stop what is being stopped

    @classmethod
    def start(
        cls,
        command: Command,
        work_dir: str,
        environ: Mapping[str, str],
        marker: str,
        machine: Machine,
        keep_open: Sequence[int] = (),
    ) -> Self:
        """Starts a process that waits for ``go``. It and all that it starts carry ``marker`` and hold ``keep_open``.

        Raises MissingBinary, or ConfigError if it cannot be started in that directory; nothing was started then.
        """
        variables = {**environment(command, environ), MARKER: marker}
        binary = _find(command.argv[0], variables)
        ours, theirs = socket.socketpair()
        try:
            with theirs, _readable(command.stdin) as stdin, _printed(command) as (printed, file):
                child = subprocess.Popen(
                    [sys.executable, "-I", "-S", launch_barrier.__file__, str(theirs.fileno()), binary]
                    + list(command.argv[1:]),
                    cwd=work_dir,
                    env=variables,
                    stdin=stdin,
                    stdout=printed,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    pass_fds=(theirs.fileno(), *keep_open),
                    start_new_session=True,
                )
        except OSError as exc:
            ours.close()
            raise ConfigError(str(exc.filename or binary), f"cannot be used: {exc.strerror}") from None
        started_at = process_start(child.pid) or 0  # 0: the process has ended already
        stdout = child.stdout or file
        assert stdout
        return cls(binary, child, stdout, ours, machine.mark(child.pid, started_at), marker)

    def go(self) -> None:
        """Lets the agent run. Raises MissingBinary if the system refuses to run it; ``wait`` must follow all the same."""
        with self._channel:
            try:
                self._channel.sendall(launch_barrier.GO)
                refusal = self._channel.recv(16)
            except ConnectionError:  # the process was ended first: ``wait`` says how
                return
        if refusal:
            raise MissingBinary(self._binary, f"cannot be run: {os.strerror(int(refusal))}")

    def lines(self, tick: float) -> Iterator[bytes | Overlong | None]:
        """Yields standard output line by line, until the agent has ended and everything was read.

        Yields None whenever no line came for ``tick`` seconds. After an exception, a new call continues where the last
        one stopped.
        """
        spoke_at = time.monotonic()
        while not self._is_read():
            self._output.read(min(tick, _LOOK_EVERY))
            while (line := self._output.next_line()) is not None:
                yield line
                spoke_at = time.monotonic()
            if time.monotonic() - spoke_at >= tick:
                yield None
                spoke_at = time.monotonic()
        if (rest := self._output.rest()) is not None:
            yield rest

    @property
    def has_line(self) -> bool:
        """Whether ``lines`` yields its next line without waiting."""
        return self._output.has_line

    def stop(self, cause: StopCause, *, gently: bool = False) -> None:
        """Ends the agent and everything that it has started. Bounded in time; may be called again and from any thread.

        ``gently`` gives the agent time to save what it has said so far.
        """
        if self._lives():
            self._stopped = self._stopped or cause
        with self._ending:
            if not self._is_over:
                self._left_behind = not end_all(self._traces, GENTLY if gently else QUICKLY)

    def wait(self) -> Exit:
        """Waits for the agent's end, skips what it still prints, and ends the processes that it has left behind."""
        self._channel.close()  # an agent that was never allowed to run ends by this
        for _ in self.lines(_LOOK_EVERY):
            pass
        with self._ending:
            if not self._is_over:
                self._left_behind = not end_all(self._traces, QUICKLY)
                self._close()
        return self._exit()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Waits until no process of the agent runs, also when this wait is interrupted too."""
        while not self._is_over:
            with suppress(KeyboardInterrupt, SystemExit):
                self.stop(StopCause.EXIT)
                self.wait()

    def _lives(self) -> bool:
        return not self._is_over and process_start(self.mark.pgid) == self.mark.started_at

    def _is_read(self) -> bool:
        if self._is_over or self._left_behind:
            return True
        if not self._has_ended():
            return False
        now = time.monotonic()
        if self._ended_at is None:
            self._ended_at = now
            self._output.agent_ended()
        if self._output.is_behind:
            return False
        silence = now - max(self._ended_at, self._output.heard_at)
        is_enough = silence > _QUIET_SECONDS or now - self._ended_at > _AFTERMATH_SECONDS
        return is_enough or not self._output.is_open

    def _has_ended(self) -> bool:
        if self._output.is_open:
            return self._child.poll() is not None
        try:
            self._child.wait(_LOOK_EVERY)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _close(self) -> None:
        self._is_over = True
        self._child.poll()
        self._output.close()
        for stream in (self._stdout, self._child.stderr):
            if stream:
                stream.close()

    def _exit(self) -> Exit:
        code = self._child.returncode
        by_signal = code is not None and code < 0
        return Exit(
            code=None if by_signal else code,
            signal=-code if by_signal else None,
            stopped=self._stopped,
            stderr=self._output.stderr,
            left_behind=self._left_behind,
            is_missing_binary=code in _NOT_RUN and not self._output.said_something,
        )


def environment(command: Command, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that an agent gets: ours, with what its command adds and without what its command leaves out."""
    kept = {name: value for name, value in environ.items() if name not in command.without}
    return {**kept, **dict(command.environ)}


def _find(name: str, environ: Mapping[str, str]) -> str:
    found = find_program(name, environ)
    if found is None:
        raise MissingBinary(name, "is not there, or cannot be executed")
    return found


@contextmanager
def _printed(command: Command) -> Iterator[tuple[IO[bytes] | int, IO[bytes] | None]]:
    """Where standard output goes; if that is a file, also the same file opened for reading. It has no name either."""
    if not command.prints_to_file:
        yield subprocess.PIPE, None
        return
    with tempfile.NamedTemporaryFile(buffering=0) as file:
        reading = Path(file.name).open("rb", buffering=0)  # noqa: SIM115 - closed with the process
        try:
            yield file.file, reading
        except BaseException:
            reading.close()
            raise


def _readable(text: str | None) -> IO[bytes]:
    """A file without a name, so that nobody has to remove it."""
    if text is None:
        return Path(os.devnull).open("rb")
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.write(text.encode())
    file.seek(0)
    return file

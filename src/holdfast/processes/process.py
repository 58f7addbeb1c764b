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
import selectors
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, Self

from holdfast.domain.failures import StopCause
from holdfast.domain.records import record
from holdfast.domain.turns import ProcessMark
from holdfast.errors import ConfigError, MissingBinary
from holdfast.processes import launch_barrier
from holdfast.processes.machine import Machine
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


def programs_on_path(name: str, environ: Mapping[str, str]) -> list[str]:
    """Every different program of this name, in the order of PATH; several names of one file count once."""
    found: dict[str, str] = {}  #: the file itself -> the first name of it
    for folder in map(Path, environ.get("PATH", os.defpath).split(os.pathsep)):
        program = folder / name
        if folder.is_absolute() and program.is_file() and os.access(program, os.X_OK):
            found.setdefault(os.path.realpath(program), str(program))
    return list(found.values())


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

    def stop(self, cause: StopCause, *, gently: bool | None = None) -> None:
        """Ends the agent and everything that it has started. Bounded in time; may be called again and from any thread.

        ``gently`` gives the agent time to save what it has said so far; None: if the cause allows it.
        """
        if self._lives():
            self._stopped = self._stopped or cause
        with self._ending:
            if not self._is_over:
                is_gentle = cause.then.is_gentle if gently is None else gently
                self._left_behind = not end_all(self._traces, GENTLY if is_gentle else QUICKLY)

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
                self.stop(StopCause.EXIT, gently=False)
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


# --- what an agent prints: standard output as lines, none of them too long, and the end of standard error ---

MAX_LINE = 8 * 1024 * 1024


@record
class Overlong:
    """Stands for a line that was too long and was skipped; ``size`` does not count its newline."""

    size: int


class LineSplitter:
    """Splits bytes into lines without ever holding more than ``max_line`` of one."""

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self._max_line = max_line
        self._begun = bytearray()
        self._dropped = 0

    def feed(self, block: bytes) -> Iterator[bytes | Overlong]:
        """The lines that this block ends."""
        *ended, begun = block.split(b"\n")
        for part in ended:
            self._add(part)
            yield self._take()
        self._add(begun)

    def rest(self) -> bytes | Overlong | None:
        """What came after the last newline; None if nothing did."""
        return self._take() if self._begun or self._dropped else None

    def _add(self, part: bytes) -> None:
        if not self._dropped and len(self._begun) + len(part) <= self._max_line:
            self._begun += part
        else:
            self._dropped += len(self._begun) + len(part)
            self._begun.clear()

    def _take(self) -> bytes | Overlong:
        line = Overlong(self._dropped) if self._dropped else bytes(self._begun)
        self._begun.clear()
        self._dropped = 0
        return line


MAX_STDERR: Final = 64 * 1024
_BLOCK = 64 * 1024
#: after so few bytes the reader waits a moment for more: many lines at once cost less each, and nobody
#: reads faster than twenty times a second
_LITTLE = 4 * 1024
_MOMENT = 0.05
#: a file does not say that it has grown, so it is looked at this often: a tool call should be recorded soon after it begins
_LOOK_SECONDS = 0.01


class Output:
    """Reads both streams at once, so that neither blocks the agent; the memory it takes is bounded.

    Standard output may be a file that grows. It may still grow while standard error is open: every process that can
    write to the one has inherited the other.
    """

    def __init__(self, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self._stdout = stdout
        self._selector = selectors.DefaultSelector()
        self._is_file = stat.S_ISREG(os.fstat(stdout.fileno()).st_mode)
        for stream in (stderr,) if self._is_file else (stdout, stderr):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ)
        self._splitter = LineSplitter()
        self._lines: deque[bytes | Overlong] = deque()
        self._stderr = bytearray()
        self._size_at_end = 0  #: of a file, when the agent had ended
        self.heard_at = time.monotonic()
        self.said_something = False  #: on standard output

    @property
    def is_open(self) -> bool:
        return bool(self._selector.get_map()) or (self._is_file and self._has_grown())

    @property
    def is_behind(self) -> bool:
        """Whether the file holds output of the agent itself that was not read yet."""
        return self._is_file and os.lseek(self._stdout.fileno(), 0, os.SEEK_CUR) < self._size_at_end

    def agent_ended(self) -> None:
        if self._is_file:
            self._size_at_end = os.fstat(self._stdout.fileno()).st_size

    @property
    def stderr(self) -> str:
        return self._stderr.decode(errors="replace")

    def read(self, timeout: float) -> None:
        """Reads what is there, or comes within ``timeout`` seconds; from a pipe also what comes shortly after."""
        if 0 < self._take(timeout) < _LITTLE and not self._is_file:
            time.sleep(_MOMENT)
            self._take(0)

    def _take(self, timeout: float) -> int:
        """Returns the number of bytes that came."""
        taken = self._take_file() if self._is_file else 0
        for key, _ in self._selector.select(self._patience(timeout, taken)):
            stream = key.fileobj
            assert not isinstance(stream, int)
            block = os.read(key.fd, _BLOCK)
            taken += len(block)
            self.heard_at = time.monotonic()
            if stream is self._stdout:
                self._hear(block)
            else:
                self._stderr += block
                del self._stderr[:-MAX_STDERR]
            if not block:
                self._selector.unregister(stream)
        return taken

    def _patience(self, timeout: float, taken: int) -> float:
        if not self._is_file:
            return timeout
        return 0 if taken else min(timeout, _LOOK_SECONDS)

    def _take_file(self) -> int:
        block = os.read(self._stdout.fileno(), _BLOCK)
        if block:
            self.heard_at = time.monotonic()
            self._hear(block)
        return len(block)

    def _has_grown(self) -> bool:
        file = self._stdout.fileno()
        return os.fstat(file).st_size > os.lseek(file, 0, os.SEEK_CUR)

    def _hear(self, block: bytes) -> None:
        self._lines += self._splitter.feed(block)
        self.said_something = self.said_something or bool(block)

    @property
    def has_line(self) -> bool:
        return bool(self._lines)

    def next_line(self) -> bytes | Overlong | None:
        return self._lines.popleft() if self._lines else None

    def rest(self) -> bytes | Overlong | None:
        """A last line without a newline; None if there is none."""
        return self._splitter.rest()

    def close(self) -> None:
        self._selector.close()

"""Owns reading what an agent prints: its standard output as lines, none of them too long, and the end of its standard error."""

from __future__ import annotations

import os
import selectors
import stat
import time
from collections import deque
from collections.abc import Iterator
from typing import IO, Final

from holdfast.domain.records import record

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

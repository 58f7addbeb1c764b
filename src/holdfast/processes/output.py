"""Owns reading what an agent says: lines from its standard output, and the last of its standard error."""

from __future__ import annotations

import os
import selectors
import time
from collections import deque
from typing import IO, Final

from holdfast.processes.line_splitter import LineSplitter, Overlong

MAX_STDERR: Final = 64 * 1024
_BLOCK = 64 * 1024
#: after so few bytes the agent gets a moment to say more: many lines at once cost less each, and nobody
#: reads faster than twenty times a second
_LITTLE = 4 * 1024
_MOMENT = 0.05


class Output:
    """Reads both at once, so that neither blocks the agent; what it holds is bounded."""

    def __init__(self, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self._stdout = stdout
        self._selector = selectors.DefaultSelector()
        for stream in (stdout, stderr):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ)
        self._splitter = LineSplitter()
        self._lines: deque[bytes | Overlong] = deque()
        self._stderr = bytearray()
        self.heard_at = time.monotonic()
        self.said_something = False  #: on standard output

    @property
    def is_open(self) -> bool:
        return bool(self._selector.get_map())

    @property
    def stderr(self) -> str:
        return self._stderr.decode(errors="replace")

    def read(self, timeout: float) -> None:
        """Take what is there, or comes within this time and shortly after."""
        if 0 < self._take(timeout) < _LITTLE:
            time.sleep(_MOMENT)
            self._take(0)

    def _take(self, timeout: float) -> int:
        """The number of bytes that came."""
        taken = 0
        for key, _ in self._selector.select(timeout):
            stream = key.fileobj
            assert not isinstance(stream, int)
            block = os.read(key.fd, _BLOCK)
            taken += len(block)
            self.heard_at = time.monotonic()
            if stream is self._stdout:
                self._lines += self._splitter.feed(block)
                self.said_something = self.said_something or bool(block)
            else:
                self._stderr += block
                del self._stderr[:-MAX_STDERR]
            if not block:
                self._selector.unregister(stream)
        return taken

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

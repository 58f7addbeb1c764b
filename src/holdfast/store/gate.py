"""Owns the gate: a file lock that the writers of a SQLite file pass one at a time."""

from __future__ import annotations

import fcntl
import os
import time
from io import FileIO

#: waiters look again the sooner the longer they wait, so that none falls behind the others
_FIRST_LOOK = 0.0005
_LAST_LOOK = 0.00005


class Gate:
    """SQLite's own waiting is a lottery in which old waiters look ever more rarely; under load one
    writer may starve. The gate is about fairness alone: whoever cannot pass it in time goes on
    and meets SQLite's own lock.
    """

    def __init__(self, path: str) -> None:
        # an object of C, which no interrupt can keep from closing when it is lost
        try:
            self._file = FileIO(path, "r+")
        except FileNotFoundError:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._file = FileIO(path, "r+")

    def pass_within(self, seconds: float, look_every: float | None = None) -> float:
        """How many of the seconds are left; 0 if the gate stayed shut."""
        since = 0.0
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                now = time.monotonic()
                since = since or now
                if now - since >= seconds:
                    return 0.0
                time.sleep(look_every or max(_LAST_LOOK, _FIRST_LOOK - (now - since) / 20))
            except OSError:
                # a file system without such locks: there is no gate then
                return seconds
            else:
                return max(0.001, since + seconds - time.monotonic()) if since else seconds

    def release(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Idempotent. In the child of a fork it leaves the parent's lock alone, unlike ``release``."""
        self._file.close()


def open_gate(path: str) -> Gate | None:
    """None where it cannot be opened, as when the file is another user's: it is about fairness alone."""
    try:
        return Gate(path)
    except OSError:
        return None

"""Owns what all processes on one SQLite file share: how the file is marked, how statements are written, and the write lock."""

from __future__ import annotations

import fcntl
import os
import time
from io import FileIO

#: marks a file as Holdfast's: "Hold"
APPLICATION_ID = 0x486F6C64

#: waiters look again the sooner the longer they wait, so that none falls behind the others
_FIRST_LOOK = 0.0005
_LAST_LOOK = 0.00005


class WriteLock:
    """A lock on a file beside the database, which writers take one at a time.

    SQLite's own waiting is a lottery in which old waiters look ever more rarely; under load one writer may starve.
    The write lock is about fairness alone: a writer that cannot get it in time continues, and meets SQLite's own lock.
    """

    def __init__(self, path: str) -> None:
        # an object of C, which no interrupt can keep from closing when it is lost
        try:
            self._file = FileIO(path, "r+")
        except FileNotFoundError:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._file = FileIO(path, "r+")

    def acquire(self, seconds: float, look_every: float | None = None) -> float:
        """Returns how many of the seconds are left; 0 if another writer kept the lock all the time."""
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
                # a file system without such locks: writers do without
                return seconds
            else:
                return max(0.001, since + seconds - time.monotonic()) if since else seconds

    def release(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Idempotent. In the child of a fork it leaves the parent's lock alone, unlike ``release``."""
        self._file.close()


def open_write_lock(database: str) -> WriteLock | None:
    """Returns None where the file cannot be opened, as when it is another user's: it is about fairness alone."""
    try:
        return WriteLock(f"{database}-gate")
    except OSError:
        return None


class _Dialect(dict[str, str]):
    """Each statement as SQLite understands it. A writer locks the whole database, so row locks are left out."""

    def __missing__(self, sql: str) -> str:
        self[sql] = said = sql.replace(" FOR UPDATE SKIP LOCKED", "").replace(" FOR UPDATE", "")
        return said


SAID = _Dialect()

"""Owns the lock on a provider's own session: one writer on this machine, for as long as its processes live."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from pathlib import Path
from typing import Self

from holdfast.domain.ids import ProviderSessionId
from holdfast.errors import ConfigError


class SessionLock:
    """The lock belongs to the open file: an agent that inherits ``fileno`` still holds it when Holdfast is gone.

    The file stays when the lock is released. If it were deleted, one process could lock the deleted file while
    another locks a new file of the same name.
    """

    def __init__(self, directory: Path, home: Path, provider: str, session_id: ProviderSessionId) -> None:
        # the same home may be reached by several paths
        identity = json.dumps([os.path.realpath(home), provider, session_id])
        self._path = directory / f"{hashlib.sha256(identity.encode()).hexdigest()}.lock"
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Does not wait. False if anyone holds the lock, this object included. Raises ConfigError if it cannot be made."""
        if self._descriptor is not None:
            return False
        descriptor = self._open()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError as exc:  # a file system without locks
            os.close(descriptor)
            raise ConfigError(str(self._path), f"cannot be locked: {exc.strerror}") from None
        self._descriptor = descriptor
        return True

    def is_free(self) -> bool:
        """Whether nobody holds the lock at this moment."""
        if not self.try_acquire():
            return False
        self.release()
        return True

    def fileno(self) -> int:
        assert self._descriptor is not None, "the lock is not held"
        return self._descriptor

    def release(self) -> None:
        """Releases this process's hold; processes that have inherited the lock still hold it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _open(self) -> int:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as exc:
            raise ConfigError(str(self._path), f"cannot be opened: {exc.strerror}") from None

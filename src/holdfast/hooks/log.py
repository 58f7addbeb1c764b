"""Owns the hooks' log: JSON lines, for this user alone, of bounded size. Writing to it never fails."""

from __future__ import annotations

import json
import os

from holdfast.clock import system_clock, to_iso
from holdfast.hooks.places import state_dir

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "hooks.log"
MOST_BYTES = 1_000_000
_LONGEST = 2000
_MOST = 100  #: of several values


class HookLog:
    def __init__(self, environ: Mapping[str, str], event: str) -> None:
        directory = state_dir(environ)
        self._path = None if directory is None else f"{directory}/{NAME}"
        self._event = event

    def say(self, what: str, **fields: object) -> None:
        """One line: what happened, and whatever tells more about it."""
        shown = {name: _shown(value) for name, value in fields.items()}
        line = json.dumps({"at": to_iso(system_clock()), "event": self._event, "what": what, **shown})
        try:
            if self._path is not None:
                self._append(self._path, f"{line}\n".encode())
        except OSError:
            pass

    def problem(self, error: BaseException) -> None:
        self.say("failed", error=type(error).__name__, message=error)

    def _append(self, path: str, line: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, 0o600)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            descriptor = os.open(path, flags, 0o600)
        try:
            if os.fstat(descriptor).st_size > MOST_BYTES:
                os.replace(path, f"{path}.1")
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def _shown(value: object) -> object:
    if isinstance(value, tuple):
        return [str(one)[:_LONGEST] for one in value[:_MOST]]
    return value if isinstance(value, int) else str(value)[:_LONGEST]

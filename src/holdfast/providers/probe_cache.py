"""Owns remembering what binaries said about themselves, for as long as their files stay the same."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

#: a binary's arguments when it was asked
Arguments = tuple[str, ...]
_NAME = "probes.json"


class ProbeCache:
    """A damaged file is an empty one, and a directory that cannot be written only costs time."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _NAME

    def get(self, binary: str, asked: tuple[Arguments, ...]) -> tuple[str, ...] | None:
        match self._read().get(binary):
            case {"state": state, "asked": before, "said": list(said)} if (
                state == _state(binary)
                and before == [list(arguments) for arguments in asked]
                and all(isinstance(text, str) for text in said)
            ):
                return tuple(said) if len(said) == len(asked) else None
            case _:
                return None

    def put(self, binary: str, asked: tuple[Arguments, ...], said: tuple[str, ...]) -> None:
        known = self._read() | {binary: {"state": _state(binary), "asked": asked, "said": said}}
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, fresh = tempfile.mkstemp(prefix=_NAME, dir=self._path.parent)
            with os.fdopen(descriptor, "w") as file:
                json.dump(known, file)
            Path(fresh).replace(self._path)

    def _read(self) -> dict[str, object]:
        try:
            found = json.loads(self._path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


def _state(binary: str) -> list[int] | None:
    """Changes with the file: some installers set every file's modification to the same moment."""
    try:
        found = Path(binary).stat()
    except OSError:
        return None
    return [found.st_mtime_ns, found.st_ctime_ns, found.st_size]

"""Owns the scripted agent's sessions on disk: one file each, one JSON object a line, append-only."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+=-]{0,127}\Z")


def agent_home(environ: Mapping[str, str]) -> Path:
    return Path(
        environ.get("SCRIPTED_HOME") or Path(environ.get("HOME") or "~", ".scripted-agent").expanduser()
    )


def session_path(home: Path, session_id: str) -> Path | None:
    """The file of a session, whether it exists or not; None if the text cannot be an id."""
    return home / "sessions" / f"{session_id}.jsonl" if _ID.match(session_id) else None


class Session:
    """What the agent remembers. The file is created with the first line; a fork's file begins as a copy."""

    def __init__(self, session_id: str, path: Path, inherited: bytes = b"") -> None:
        self.id = session_id
        self.path = path
        self._inherited = inherited
        self.entries = list(_entries(inherited or read_content(path)))

    @property
    def prompts(self) -> list[str]:
        return [entry["text"] for entry in self.entries if entry["type"] == "user"]

    @property
    def size(self) -> int:
        return sum(len(entry["text"]) for entry in self.entries)

    def add(self, entry: dict[str, Any], *, save: bool) -> None:
        self.entries.append(entry)
        if save:
            known, self._inherited = self._inherited, b""
            # a line that a crash cut off stays a damaged line of its own
            gap = b"" if (known or read_content(self.path) or b"\n").endswith(b"\n") else b"\n"
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(known + gap + json.dumps(entry).encode() + b"\n")


def read_content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def take_lock(path: Path) -> bool:
    """The lock is held until the process ends; False if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path.with_suffix(".lock"), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return False
    return True


def _entries(content: bytes) -> Iterator[dict[str, Any]]:
    for line in content.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and "type" in entry and isinstance(entry.get("text"), str):
            yield entry

"""Owns reading session files that only grow: one JSON object a line, never rewritten.

What was there at a mark is recognised by size and digest, so that an edited or restored file is told
from one that has grown. A line that is cut off or damaged is skipped: the provider does the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.domain.pointers import TranscriptMark
from holdfast.domain.redaction import Json

_BLOCK = 1024 * 1024
#: a line longer than this is not looked at; nothing that marks a turn is that long
MAX_LINE = 64 * 1024 * 1024
#: a longer line is digested in pieces, never held as a whole, and does not count: an answer, most likely
_LONGEST_PROMPT = 1024 * 1024


def mark_file(path: Path, is_prompt: Callable[[bytes], bool]) -> TranscriptMark | None:
    """The file as it is now, with its lines counted that ask for something; None if it cannot be read.

    It ends with the last whole line: one that is just being written is read with what comes after the mark,
    and a provider may cut it off.
    """
    hasher, read, is_asking, begins = hashlib.sha256(), 0, False, True
    whole, size, turns = hasher.copy(), 0, 0
    try:
        with path.open("rb") as file:
            while line := file.readline(_LONGEST_PROMPT):
                hasher.update(line)
                read += len(line)
                if begins:
                    is_asking = len(line) < _LONGEST_PROMPT and is_prompt(line)
                begins = line.endswith(b"\n")
                if begins:
                    size, turns = read, turns + is_asking
                    whole = hasher.copy()
    except OSError:
        return None
    return TranscriptMark(str(path), size, whole.hexdigest(), turns)


def is_prefix_intact(recorded: TranscriptMark) -> bool:
    """A file that is shorter now, or gone, is not what was recorded."""
    try:
        size, digest = _digest(Path(recorded.path), recorded.size)
    except OSError:
        return False
    return (size, digest) == (recorded.size, recorded.digest)


def read_lines(path: Path, offset: int = 0) -> Iterator[dict[str, Json]]:
    """The objects from ``offset`` on; nothing if the file cannot be read."""
    return (line for _, line in placed_lines(path, offset))


def placed_lines(path: Path, offset: int = 0) -> Iterator[tuple[int, dict[str, Json]]]:
    """The same, each with where it begins."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            while line := file.readline(MAX_LINE):
                found = parse_line(line)
                if found is not None:
                    yield offset, found
                offset += len(line)
    except OSError:
        return


def parse_line(line: bytes) -> dict[str, Json] | None:
    """None if it is damaged, or something else than an object."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _digest(path: Path, size: int) -> tuple[int, str]:
    """Of the first ``size`` bytes, and how many of them there were."""
    hasher, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(min(_BLOCK, size - done)):
            hasher.update(block)
            done += len(block)
    return done, hasher.hexdigest()

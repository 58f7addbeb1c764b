"""Owns reading a provider's own sessions, and marks that show later whether a session is still the same.

Some providers only ever append to their session files, one JSON object a line: a mark is the size and the digest
of the file, so that an edited or restored file differs from one that has grown. A line that is cut off or damaged
is skipped: the providers do the same. Other providers rewrite their files: a mark is the number of turns and
their digest, so that an undo, a rewind or a compacted context shows, too.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from holdfast.domain.decisions import NotObservable
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import TranscriptMark
from holdfast.domain.redaction import Json
from holdfast.processes.table import program_that_writes
from holdfast.providers.contract import ArchivedTurn, BaseArchive

_BLOCK = 1024 * 1024
_EDGE = 64 * 1024
#: longer lines are not parsed; no line that begins a turn is that long
MAX_LINE = 64 * 1024 * 1024
#: a longer line is digested in pieces and is never a prompt; most likely it is an answer
_LONGEST_PROMPT = 1024 * 1024


class AppendOnlyArchive(BaseArchive):
    """The parts of an ``Archive`` that are the same wherever each session is a file of JSON lines that only grows."""

    def is_prompt(self, line: bytes) -> bool:
        """Does this line of a session file begin a turn?"""
        raise NotImplementedError

    def mark(self, path: str, session_id: ProviderSessionId) -> TranscriptMark | None:
        return mark_file(Path(path), self.is_prompt)

    def writer(self, path: str, session_id: ProviderSessionId) -> str | None:
        return program_that_writes(path)

    def is_intact(self, recorded: TranscriptMark, session_id: ProviderSessionId) -> bool | NotObservable:
        return is_prefix_intact(recorded)


def mark_file(path: Path, is_prompt: Callable[[bytes], bool]) -> TranscriptMark | None:
    """The state of the file now, with the number of its prompts; None if the file cannot be read.

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
    """False also for a file that is shorter now, or gone."""
    try:
        size, digest = _file_digest(Path(recorded.path), recorded.size)
    except OSError:
        return False
    return (size, digest) == (recorded.size, recorded.digest)


def read_lines(path: Path, offset: int = 0) -> Iterator[dict[str, Json]]:
    """The objects from ``offset`` on; none if the file cannot be read."""
    return (line for _, line in placed_lines(path, offset))


def placed_lines(path: Path, offset: int = 0) -> Iterator[tuple[int, dict[str, Json]]]:
    """Like ``read_lines``, each object with the offset of its line."""
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


def edge_lines(path: Path) -> tuple[list[dict[str, Json]], list[dict[str, Json]]]:
    """The objects in the first and in the last part of the file; a small file is all in the first."""
    try:
        with path.open("rb") as file:
            first = file.read(_EDGE)
            file.seek(max(_EDGE, file.seek(0, os.SEEK_END) - _EDGE))
            last = file.read(_EDGE)
    except OSError:
        return [], []
    # the line that the cut goes through is read in neither part
    return _objects(first), _objects(last)


def _objects(part: bytes) -> list[dict[str, Json]]:
    return [found for line in part.splitlines() if (found := parse_line(line)) is not None]


def parse_line(line: bytes) -> dict[str, Json] | None:
    """None if the line is damaged, or is not an object."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _file_digest(path: Path, size: int) -> tuple[int, str]:
    """How many of the first ``size`` bytes there are, and their digest."""
    hasher, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(min(_BLOCK, size - done)):
            hasher.update(block)
            done += len(block)
    return done, hasher.hexdigest()


def mark_turns(path: str, turns: Iterable[ArchivedTurn]) -> TranscriptMark | None:
    """None if there are no turns: such a session has nothing to continue.

    Of a last turn that is not answered to its end only the request is marked: what was said may still grow.
    """
    known = list(turns)
    if not known:
        return None
    return TranscriptMark(path, len(known), _turns_digest(known, is_open=not known[-1].complete), len(known))


def are_turns_intact(recorded: TranscriptMark, turns: Iterable[ArchivedTurn]) -> bool:
    known = list(islice(turns, recorded.size))
    if len(known) < recorded.size:
        return False
    # two digests: the mark of an answered turn never matches a turn with the request alone
    return recorded.digest in (_turns_digest(known, is_open=False), _turns_digest(known, is_open=True))


def _turns_digest(turns: Sequence[ArchivedTurn], *, is_open: bool) -> str:
    hasher = hashlib.sha256()
    for number, turn in enumerate(turns, 1):
        is_request_alone = is_open and number == len(turns)
        marked = [turn.key, turn.prompt] if is_request_alone else [turn.key, turn.prompt, turn.response]
        hasher.update(json.dumps(marked).encode())
    return hasher.hexdigest()

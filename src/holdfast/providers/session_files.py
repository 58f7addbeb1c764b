"""Owns reading a provider's own sessions, and marks that show later whether a session is still the same.

Some providers only ever append to their session files, one JSON object a line: a mark is the size and the digest
of the file, so that an edited or restored file differs from one that has grown. A line that is cut off or damaged
is skipped: the providers do the same. Other providers rewrite their files: a mark is the number of turns and
their digest, so that an undo, a rewind or a compacted context shows, too.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import sqlite3
import stat
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final
from urllib.parse import quote

from holdfast.domain.decisions import NotObservable
from holdfast.domain.events import Called, Noted, Returned
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import NOTHING_YET, TranscriptMark
from holdfast.domain.redaction import Json
from holdfast.domain.usage import Usage
from holdfast.processes.table import program_that_writes
from holdfast.providers.contract import (
    LONGEST_READ,
    ArchivedTurn,
    BaseArchive,
    SessionFacts,
    SessionReading,
    Source,
    unreadable_source,
)

if TYPE_CHECKING:
    from zstandard import ZstdDecompressionObj  # optional

_BLOCK = 1024 * 1024
_EDGE = 64 * 1024
_BUSY_SECONDS = 2.0
#: of a compressed file, decompressed at a time: four bytes may become 128 KiB, and a damaged piece is lost as a whole
_PACKED_PIECE = 512
#: longer lines are not parsed; no line that begins a turn is that long
MAX_LINE = 64 * 1024 * 1024
#: a longer line is digested in pieces and is never a prompt; most likely it is an answer
LONGEST_PROMPT = 1024 * 1024


_DECODER = json.JSONDecoder()
_SPACES = " \t\r\n"  #: that JSON may have around a value
#: the ending of a file that was compressed with Zstandard
COMPRESSED: Final = ".zst"
NOT_INSTALLED: Final = "it is compressed, and needs a package: pip install 'holdfast-sessions[vault]'"


class OnePassArchive(BaseArchive):
    """The parts of an ``Archive`` that follow from its ``read``: turns, calls and totals are the same pass."""

    def reading(
        self,
        path: str,
        facts: SessionFacts,
        *,
        after: TranscriptMark | None = None,
        room: int | None = None,
        with_events: bool = True,
    ) -> SessionReading:
        """Like ``read``. Without events, less is held at a time."""
        raise NotImplementedError

    def read(
        self,
        path: str,
        session_id: ProviderSessionId | None,
        after: TranscriptMark | None = None,
        room: int | None = None,
    ) -> SessionReading:
        facts = SessionFacts(session_id or ProviderSessionId(""))
        return self.reading(path, facts, after=after, room=room)

    def turns(
        self, path: str, session_id: ProviderSessionId, after: TranscriptMark | None = None
    ) -> Iterator[ArchivedTurn]:
        found = self.reading(path, SessionFacts(session_id), after=after, with_events=False)
        return (read.turn for read in found.turns)

    def calls(self, path: str, session_id: ProviderSessionId) -> Iterator[tuple[str, Called | Returned]]:
        for read in self.reading(path, SessionFacts(session_id)).turns:
            for event in read.events:
                if isinstance(event, Called | Returned):
                    yield read.turn.key, event

    def spent(self, path: str, session_id: ProviderSessionId) -> Usage | None:
        found = self.reading(path, SessionFacts(session_id), with_events=False)
        for _ in found.turns:
            pass
        return found.facts.spent


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


def open_content(path: Path) -> BinaryIO:
    """The bytes that a session file holds, from its beginning; OSError, too, if they cannot be decompressed here."""
    return _content(_open_file(path), path.name)


def _content(file: BinaryIO, name: str) -> BinaryIO:
    if not name.endswith(COMPRESSED):
        return file
    try:
        import zstandard  # optional
    except ImportError:
        file.close()
        raise OSError(NOT_INSTALLED) from None
    return io.BufferedReader(_Decompressed(file, zstandard.ZstdDecompressor().decompressobj), _BLOCK)


def first_object(name: str, kept: Iterable[bytes]) -> dict[str, Json]:
    """What the content of a kept session file begins with; empty if that is no object, or cannot be decompressed here."""
    try:
        with _content(io.BufferedReader(_Pieces(kept)), name) as content:
            return next(filter(None, map(parse_line, iter(lambda: content.readline(MAX_LINE), b""))), {})
    except OSError:
        return {}


def is_damaged(content: BinaryIO) -> bool:
    """Whether a content that was read to its end is only what stands before a damage of its file."""
    raw = getattr(content, "raw", None)
    return isinstance(raw, _Decompressed) and raw.is_damaged


def _open_file(path: Path) -> BinaryIO:
    """Raises OSError for anything but a file: to open a pipe would wait for a program that writes to it."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a file")
    return path.open("rb")


def can_open(path: str) -> bool:
    """Whether a file of this name can be read here, as far as its form matters."""
    if not path.endswith(COMPRESSED):
        return True
    from importlib.util import find_spec

    return find_spec("zstandard") is not None


class _Pieces(io.RawIOBase):
    """Bytes that come in pieces, as a file."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override] # a narrower type than typeshed's
        while not self._left and (piece := next(self._pieces, None)) is not None:
            self._left = memoryview(piece)
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size


class _Decompressed(io.RawIOBase):
    """The content of a compressed file, as far as it can be decompressed: what stands before a damage counts."""

    def __init__(self, packed: BinaryIO, begin_frame: Callable[[], ZstdDecompressionObj]) -> None:
        self._packed = packed
        self._begin_frame = begin_frame
        self._frame: ZstdDecompressionObj | None = None  #: that has begun, and has not ended
        self._input = b""
        self._plain = memoryview(b"")
        self.is_damaged = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override] # a narrower type than typeshed's
        while not self._plain and not self.is_damaged and self._take_input():
            self._decompress()
        size = min(len(buffer), len(self._plain))
        buffer[:size] = self._plain[:size]
        self._plain = self._plain[size:]
        return size

    def _take_input(self) -> bool:
        self._input = self._input or self._packed.read(_PACKED_PIECE)
        if not self._input:
            self.is_damaged = self._frame is not None  # the file was cut off
        return bool(self._input)

    def _decompress(self) -> None:
        import zstandard

        frame = self._frame or self._begin_frame()
        try:
            self._plain = memoryview(frame.decompress(self._input))
        except zstandard.ZstdError:
            self.is_damaged = True
            return
        self._input = frame.unused_data
        self._frame = None if frame.eof else frame

    def close(self) -> None:
        self._packed.close()
        super().close()


class JsonLines:
    """One pass over a file of JSON lines: each object with the offset of its line, and afterwards its mark.

    A line that is cut off or damaged, and one that is longer than ``longest``, is passed over and counted. What is missing
    of a damaged compressed file counts as one such line. Lines that begin with one of ``ignored`` are not even parsed.
    """

    def __init__(
        self,
        path: Path,
        offset: int = 0,
        longest: int | None = None,
        ignored: tuple[bytes, ...] = (),
        *,
        marks: bool = False,
    ) -> None:
        self._path = path
        self._offset = offset
        self.longest = longest or MAX_LINE
        self._ignored = ignored
        self._hasher = hashlib.sha256() if marks else None
        self._line = b""  #: the last whole line; the digest has it when the next one is read
        self._place = 0  #: of the line that was given last
        self.size = 0  #: bytes up to the last whole line; only whole lines are in the digest
        self.damaged = 0
        self.too_long: list[int] = []  #: the lengths of the lines that were passed over
        self.length = 0  #: of the line that was given last
        self.problem: str | None = None  #: why the file could not be read to its end

    def __iter__(self) -> Iterator[tuple[int, dict[str, Json]]]:
        try:
            with open_content(self._path) as file:
                yield from self._from(file)
                self.damaged += is_damaged(file)
        except OSError as exc:
            self.problem = str(exc) if exc.strerror is None else f"it cannot be read: {exc.strerror}"

    def mark(self, turns: int) -> TranscriptMark | None:
        """Of a pass with ``marks`` that began at the beginning and came to the end; None if it did not."""
        if self.problem is not None or self._offset:
            return None
        return self._mark(self.size, turns)

    def mark_before(self, turns: int) -> TranscriptMark | None:
        """What the mark was before the line that was given last."""
        return self._mark(self._place, turns)

    def _mark(self, size: int, turns: int) -> TranscriptMark | None:
        if self._hasher is None:
            return None
        return TranscriptMark(str(self._path), size, self._hasher.hexdigest(), turns)

    def _digest(self, line: bytes) -> None:
        if self._hasher is not None:
            self._hasher.update(self._line)
            self._line = line

    def _from(self, file: BinaryIO) -> Iterator[tuple[int, dict[str, Json]]]:
        place = _skip(file, self._offset)
        longest, ignored = self.longest, self._ignored
        while line := file.readline(longest):
            length = len(line)
            is_whole = line.endswith(b"\n")
            if length == longest and not is_whole:
                place = self._pass_over(file, line, place)
                continue
            self._digest(line if is_whole else b"")
            if is_whole:
                self.size = place + length
            if not ignored or not line.startswith(ignored):
                found = parse_line(line)
                if found is not None:
                    self.length, self._place = length, place
                    yield place, found
                elif not line.isspace():
                    self.damaged += 1
            place += length
        self._digest(b"")

    def _pass_over(self, file: BinaryIO, line: bytes, place: int) -> int:
        """The place behind a line whose beginning was read; if it is whole, it counts for the mark."""
        self._digest(b"")
        hasher = None if self._hasher is None else self._hasher.copy()
        length = 0
        while line:
            length += len(line)
            if hasher is not None:
                hasher.update(line)
            if line.endswith(b"\n"):
                self._hasher, self.size = hasher, place + length
                break
            line = file.readline(_BLOCK)
        self.too_long.append(length)
        return place + length


def passed_over(lengths: Sequence[int]) -> Iterator[Noted]:
    """What the history has in the place of lines that are too long."""
    for length in lengths:
        yield Noted(f"a line of {length:,} bytes is in the agent's own session only")


def _skip(file: BinaryIO, offset: int) -> int:
    """Reads up to an offset: a compressed file cannot be entered anywhere else than at its beginning."""
    if not offset:
        return 0
    if file.seekable():
        return file.seek(offset)
    left = offset
    while left and (block := file.read(min(_BLOCK, left))):
        left -= len(block)
    return offset - left


def longest_line(room: int | None) -> int | None:
    """How long a line may be in a reading with this much room."""
    return None if room is None else LONGEST_READ


def mark_file(path: Path, is_prompt: Callable[[bytes], bool]) -> TranscriptMark | None:
    """The state of the file now, with the number of its prompts; None if the file cannot be read.

    It ends with the last whole line: one that is just being written is read with what comes after the mark,
    and a provider may cut it off.
    """
    hasher, read, is_asking, begins = hashlib.sha256(), 0, False, True
    whole, size, turns = hasher.copy(), 0, 0
    try:
        with open_content(path) as file:
            while line := file.readline(LONGEST_PROMPT):
                hasher.update(line)
                read += len(line)
                if begins:
                    is_asking = len(line) < LONGEST_PROMPT and is_prompt(line)
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
    return (line for _, line in JsonLines(path, offset))


def entries(folder: Path | str, unreadable: list[Source]) -> Iterator[os.DirEntry[str]]:
    """What a folder holds. A folder that is there and cannot be read is added to ``unreadable``."""
    try:
        with os.scandir(folder) as found:
            yield from found
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as exc:
        name = os.fsencode(folder).decode(errors="backslashreplace")
        unreadable.append(unreadable_source(name, f"the folder cannot be read: {exc.strerror}"))


def edge_lines(path: Path) -> tuple[list[dict[str, Json]], list[dict[str, Json]]]:
    """The objects in the first and in the last part of the file; a small file is all in the first."""
    try:
        with _open_file(path) as file:
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
    """None if the line is damaged, or is not an object. A file that an editor has saved may begin with a byte order mark."""
    try:
        # without the search for other encodings than UTF-8 that ``json.loads`` makes in bytes, and without that for
        # spaces at both ends, which takes a third of the time of a short line
        text = line.removeprefix(BOM_UTF8).decode("utf-8", "surrogatepass").strip(_SPACES)
        found, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and end == len(text) else None


def read_object(path: Path) -> dict[str, Json]:
    """A provider's own settings; empty if the file is missing, too long, or not a JSON object."""
    try:
        with _open_file(path) as file:
            return parse_line(file.read(_BLOCK)) or {}
    except OSError:
        return {}


def _file_digest(path: Path, size: int) -> tuple[int, str]:
    """How many of the first ``size`` bytes there are, and their digest."""
    hasher, done = hashlib.sha256(), 0
    with open_content(path) as file:
        while block := file.read(min(_BLOCK, size - done)):
            hasher.update(block)
            done += len(block)
    return done, hasher.hexdigest()


def open_readonly(path: str) -> sqlite3.Connection:
    """A provider's own database. Without a write-ahead log it is complete; opened normally, SQLite would leave a new log behind."""
    has_log = Path(f"{path}-wal").exists()
    options = "mode=ro" if has_log else "mode=ro&immutable=1"
    database = sqlite3.connect(f"file:{quote(path)}?{options}", timeout=_BUSY_SECONDS, uri=True)
    database.text_factory = lambda raw: raw.decode(errors="replace")
    return database


class TurnsMark:
    """The mark of a session by its turns, which are added one after the other."""

    def __init__(self) -> None:
        self._hasher = hashlib.sha256()
        self._last: ArchivedTurn | None = None
        self._count = 0

    def add(self, turn: ArchivedTurn) -> None:
        if self._last is not None:
            self._hasher.update(_marked(self._last))
        self._last = turn
        self._count += 1

    def of(self, path: str) -> TranscriptMark | None:
        """None if there are no turns: such a session has nothing to continue.

        Of a last turn that is not answered to its end only the request is marked: what was said may still grow.
        """
        if self._last is None:
            return None
        hasher = self._hasher.copy()
        hasher.update(_marked(self._last, is_request_alone=not self._last.complete))
        return TranscriptMark(path, self._count, hasher.hexdigest(), self._count)

    def before_last(self, path: str) -> TranscriptMark:
        """The mark of all turns but the last one."""
        if self._count <= 1:
            return NOTHING_YET
        return TranscriptMark(path, self._count - 1, self._hasher.hexdigest(), self._count - 1)


def mark_turns(path: str, turns: Iterable[ArchivedTurn]) -> TranscriptMark | None:
    mark = TurnsMark()
    for turn in turns:
        mark.add(turn)
    return mark.of(path)


def are_turns_intact(recorded: TranscriptMark, turns: Iterable[ArchivedTurn]) -> bool:
    known = list(islice(turns, recorded.size))
    if len(known) < recorded.size:
        return False
    # two digests: the mark of an answered turn never matches a turn with the request alone
    return recorded.digest in (_turns_digest(known, is_open=False), _turns_digest(known, is_open=True))


def _turns_digest(turns: Sequence[ArchivedTurn], *, is_open: bool) -> str:
    hasher = hashlib.sha256()
    for number, turn in enumerate(turns, 1):
        hasher.update(_marked(turn, is_request_alone=is_open and number == len(turns)))
    return hasher.hexdigest()


def _marked(turn: ArchivedTurn, *, is_request_alone: bool = False) -> bytes:
    texts = [turn.key, turn.prompt] if is_request_alone else [turn.key, turn.prompt, turn.response]
    return json.dumps(texts).encode()

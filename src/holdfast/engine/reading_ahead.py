"""Owns reading sessions for an import: cut into parts that a store takes, and ahead, in another process, if there is much to read.

Reading, redacting and storing take about the same time, and Python runs on one core: so an import with much to read
starts a process that reads, and stores what that has read. The process knows no store and changes nothing. If it ends
before its time, its work is done here.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from holdfast.clock import SECOND, Instant
from holdfast.domain.events import Event, Noted, Spent
from holdfast.domain.ids import SessionId, make_session_id
from holdfast.domain.imports import SessionImport
from holdfast.domain.inputs import clean_text
from holdfast.domain.pointers import NOTHING_YET, TranscriptMark
from holdfast.domain.records import record, replace
from holdfast.domain.redaction import Json, RedactedData
from holdfast.domain.sessions import NewSession, SessionKind
from holdfast.domain.telling.context import current_request
from holdfast.domain.telling.quoting import on_one_line
from holdfast.domain.turns import OutsideTurn
from holdfast.domain.usage import NO_USAGE, Usage, UsageReport
from holdfast.engine.running.launching import recorded_data
from holdfast.engine.running.provider_sessions import outside_key
from holdfast.providers.contract import Archive, ReadTurn, SessionFacts, Source, StoredSession
from holdfast.providers.registry import get_provider

log = logging.getLogger("holdfast")

#: of the texts that one call to the store takes: as JSON they may take six times as much, and a server takes 16 MiB
PART_CHARACTERS = 2 * 1024 * 1024
#: characters of one session that are held at a time
_ROOM = 4 * 1024 * 1024
_LONGEST_PURPOSE = 200
#: a last turn without an answer may still get one if its file has changed within this time
_OPEN_SECONDS = 600
#: less is read before the process has begun
_WORTH_BYTES = 16 * 1000 * 1000
#: of one session: two processes would need more memory than an import may take
_LONGEST_BYTES = 64 * 1024 * 1024
#: that were read, and wait for those who store them
_AHEAD_BYTES = 8 * 1024 * 1024
#: what a pipe holds on Linux at most: on a busy machine, each time that it is full or empty costs a turn of the others
_PIPE_BYTES = 1024 * 1024
_HEAD = struct.Struct("!II")  #: before each part: the number of its source, and its length
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@record
class ProviderHome:
    """A provider's own sessions, as they are in one of its homes."""

    provider: str
    folder: str
    archive: Archive


@record
class SessionPart:
    """As much of a session as one call to the store takes."""

    facts: SessionFacts  #: as far as they are known by then
    piece: SessionImport | None = None  #: without its pointer; None: the session holds no turn
    mark: TranscriptMark | None = None  #: for its pointer
    size: int = 0  #: characters
    is_last: bool = True


class RunningClock:
    """The time of a store, for which it is asked once: a question for each turn would take longer than to read it."""

    def __init__(self, ask: Callable[[], Instant]) -> None:
        self._ask = ask
        self._began = 0.0
        self._at: Instant | None = None

    def __call__(self) -> Instant:
        if self._at is None:
            self._began, self._at = time.monotonic(), self._ask()
        return Instant(self._at + int((time.monotonic() - self._began) * SECOND))


class SessionReader:
    """Reads the sessions in one home."""

    def __init__(self, where: ProviderHome, now: RunningClock) -> None:
        self._where = where
        self._now = now
        self._process: _Process | None = None

    def parts(self, source: Source) -> Iterator[SessionPart]:
        """One at least. ``SessionParts``, or the same from a process that has read them already."""
        given, session_id = 0, None
        for part in () if self._process is None else self._process.parts(source):
            given, session_id = given + 1, None if part.piece is None else part.piece.new.id
            yield part
            if part.is_last:
                return
        yield from islice(SessionParts(self._where, source, self._now, session_id=session_id), given, None)

    @contextmanager
    def ahead(self, sources: Sequence[Source]) -> Iterator[None]:
        """Within this context, these sources are read ahead in this order, if they are worth a process."""
        sizes = [source.size for source in sources]
        if sum(sizes) < _WORTH_BYTES or max(sizes) > _LONGEST_BYTES or not sys.executable:
            yield
            return
        try:
            self._process = _Process(self._where, sources, self._now())
        except OSError as exc:
            log.info("nothing is read ahead: %s", exc)
        try:
            yield
        finally:
            process, self._process = self._process, None
            if process is not None:
                process.close()


# --- one session ---


class SessionParts:
    """One session on its way into the store: read once, and cut into parts that a store takes.

    A session that a person has named is ``stored``. Reading it again under the same ``session_id`` gives the same parts.
    """

    def __init__(
        self,
        where: ProviderHome,
        source: Source,
        now: RunningClock,
        stored: StoredSession | None = None,
        *,
        session_id: SessionId | None = None,
    ) -> None:
        self._provider = where.provider
        self._source = source
        self._stored = stored
        self._now = now
        self._reading = where.archive.read(source.path, source.id, None, _ROOM)
        self._new_id = session_id
        self._began_at: Instant | None = None
        self._asked = ""  #: its first prompt
        self._numbers: dict[str, int] = {}  #: of events, for turns that come in parts
        self._size = 0  #: characters of the part that is being made

    @property
    def _facts(self) -> SessionFacts:
        return self._reading.facts

    def __iter__(self) -> Iterator[SessionPart]:
        turns: list[OutsideTurn] = []
        usage = NO_USAGE
        held: ReadTurn | None = None
        for read in self._reading.turns:
            self._learn(read)
            if held is not None:
                turns.append(self._outside(held))
                usage += self._used(held)
                if self._size > PART_CHARACTERS:
                    piece = self._piece(turns, usage)
                    yield SessionPart(self._facts, piece, NOTHING_YET, self._size, is_last=False)
                    turns, usage, self._size = [], NO_USAGE, 0
            held = read
        if held is None:
            yield SessionPart(self._facts)
            return
        is_open = not held.turn.complete and not held.is_part and self._may_continue()
        if not is_open:
            turns.append(self._outside(held))
            usage += self._used(held)
        facts = self._facts
        dead = frozenset(outside_key(facts.id, key) for key in facts.dead)
        counted = facts.spent if facts.subagent_of is None else None
        piece = replace(self._piece(turns, usage), dead=dead, counted=counted)
        yield SessionPart(facts, piece, facts.before_last if is_open else facts.mark, self._size)

    def _may_continue(self) -> bool:
        """Whether a last turn without an answer may still get one."""
        changed_at = self._source.mtime_ns // 1000
        return self._stored is not None or not changed_at or self._now() - changed_at < _OPEN_SECONDS * SECOND

    def _learn(self, read: ReadTurn) -> None:
        if self._began_at is None:
            changed_at = Instant(self._source.mtime_ns // 1000)
            began_at = read.turn.began_at or (changed_at if changed_at > 0 else self._now())
            self._began_at = self._until_now(began_at)
        if not self._asked and read.turn.live:
            self._asked = current_request(read.turn.prompt)

    def _until_now(self, told: Instant) -> Instant:
        """A time that the file tells, and never one to come: its session would be the newest one for years."""
        return min(told, self._now())

    def _used(self, read: ReadTurn) -> Usage:
        """What a fork has copied of its parent was not used by itself."""
        forked_at = self._facts.forked_at
        is_copied = (
            forked_at is not None and read.turn.began_at is not None and read.turn.began_at < forked_at
        )
        return NO_USAGE if is_copied else read.usage

    def _outside(self, read: ReadTurn) -> OutsideTurn:
        turn = read.turn
        prompt = clean_text(current_request(turn.prompt))
        response = None if turn.response is None or read.is_part else clean_text(turn.response)
        self._size += len(prompt) + len(response or "")
        at = self._until_now(turn.ended_at or turn.began_at or self._began_at or self._now())
        number = self._numbers.get(turn.key, 0)
        events = []
        notes = [] if turn.live else [Noted("on a branch that the agent's session has left")]
        spent = [] if read.usage == NO_USAGE else [Spent(UsageReport(read.usage))]
        for event in (*read.events, *notes, *spent):
            number += 1
            data = RedactedData(recorded_data(event), _encode)
            self._size += len(data.text) + 100
            events.append(Event(number, event.kind, data, at))
        if read.is_part:
            self._numbers[turn.key] = number
        began_at = None if turn.began_at is None else self._until_now(turn.began_at)
        key = outside_key(self._facts.id, turn.key)
        return OutsideTurn(key, prompt, response, began_at or self._began_at, at, tuple(events))

    def _piece(self, turns: Sequence[OutsideTurn], usage: Usage) -> SessionImport:
        facts, stored = self._facts, self._stored
        if stored is not None and facts.work_dir is None:
            facts.work_dir = stored.work_dir or str(Path.cwd())
        began_at = self._began_at or self._now()
        self._new_id = self._new_id or make_session_id(began_at, os.urandom(8))
        title = facts.title or (stored.title if stored is not None else None) or self._asked
        new = NewSession(
            id=self._new_id,
            agent=self._provider,
            purpose=clean_text(on_one_line(title, _LONGEST_PURPOSE)),
            kind=SessionKind.CONVERSATION if facts.subagent_of is None else SessionKind.SUBAGENT,
            metadata=_metadata(facts),
            provider=self._provider,
            began_at=began_at,
        )
        return SessionImport(new, facts.id, tuple(turns), usage=usage)


def _metadata(facts: SessionFacts) -> dict[str, Json]:
    counts = {
        "compactions": facts.compactions,
        "images": facts.images,
        "damaged_lines": facts.damaged,
        "long_lines": facts.too_long,
        "unknown_lines": facts.unknown.total(),
        "left_turns": len(facts.dead),
    }
    found: dict[str, Json] = {name: number for name, number in counts.items() if number}
    imported: dict[str, Json] = {"imported": found} if found else {}
    return imported | ({"git_branch": clean_text(facts.branch[:200])} if facts.branch else {})


# --- the process that reads ahead ---

#: imports from where this process does, and nothing from the current directory
_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from holdfast.engine.reading_ahead import main; main()"


class _Process:
    """A process that reads sessions, as those see it who take their parts in the same order."""

    def __init__(self, where: ProviderHome, sources: Sequence[Source], now: Instant) -> None:
        self._numbers = {source.place: number for number, source in enumerate(sources)}
        self._held: tuple[int, bytes] | None = None  #: a part that was not taken yet
        # a session of its own: Ctrl-C is for the process that stores
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _PROGRAM, *filter(os.path.isabs, sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pipesize=_PIPE_BYTES,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._out = self._process.stdout
        try:
            with self._process.stdin as asked:
                pickle.dump((where.provider, where.folder, sources, now), asked)
        except OSError:  # it has ended
            self._numbers = {}

    def parts(self, source: Source) -> Iterator[SessionPart]:
        """Those that it has read of this source; fewer than all if it has ended, or was asked for a later one before."""
        number = self._numbers.get(source.place, -1)
        while (found := self._held or self._receive()) is not None and found[0] <= number:
            self._held = None
            if found[0] == number:
                part: SessionPart = pickle.loads(found[1])  # noqa: S301 - from our own process
                yield part
                if part.is_last:
                    return
        self._held = found

    def _receive(self) -> tuple[int, bytes] | None:
        if not self._numbers or len(head := self._out.read(_HEAD.size)) < _HEAD.size:
            return None
        number, length = _HEAD.unpack(head)
        data = self._out.read(length)
        return (number, data) if len(data) == length else None

    def close(self) -> None:
        self._process.kill()
        self._out.close()
        self._process.wait()


def main() -> None:
    """Read the sessions that standard input names, and write their parts to standard output."""
    out, sys.stdout = sys.stdout.buffer, sys.stderr  # a provider may print something
    provider, folder, sources, now = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that has started this one
    where = ProviderHome(provider, folder, get_provider(provider).archive(Path(folder)))
    clock = RunningClock(lambda: now)
    outbox = _Outbox(out)
    for number, source in enumerate(sources):
        for part in SessionParts(where, source, clock):
            data = pickle.dumps(part, pickle.HIGHEST_PROTOCOL)
            outbox.put(_HEAD.pack(number, len(data)) + data)
    outbox.put(b"")


class _Outbox:
    """Writes in a thread what waits: a pipe holds less than what is stored in one transaction."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._write).start()

    def put(self, data: bytes) -> None:
        """Waits for room. Nothing comes behind empty data."""
        with self._changed:
            self._changed.wait_for(lambda: self._size < _AHEAD_BYTES)
            self._waiting.append(data)
            self._size += len(data)
            self._changed.notify()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                data = self._waiting.popleft()
            if not data:
                return
            try:
                self._out.write(data)
                self._out.flush()
            except OSError:
                os._exit(1)  # nobody takes the parts any more
            with self._changed:
                self._size -= len(data)
                self._changed.notify()

"""Owns reading the sessions that opencode keeps: all of them in one SQLite database.

Nothing is written there, not even the files that SQLite puts next to a database it reads.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Final
from urllib.parse import quote

from holdfast.domain.decisions import NotObservable
from holdfast.domain.events import Called, Returned
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import TranscriptMark
from holdfast.domain.records import record
from holdfast.domain.redaction import Json
from holdfast.processes.table import command_lines
from holdfast.providers.contract import ArchivedTurn, BaseArchive
from holdfast.providers.loose_json import as_object, as_text
from holdfast.providers.opencode.stream import ANSWERED, PENDING, tool_use
from holdfast.providers.runtimes import home_folder
from holdfast.providers.session_files import are_turns_intact, mark_turns

_BUSY_SECONDS = 2.0
_SESSION: Final = "SELECT revert, directory FROM session WHERE id = ?"
#: texts and tool calls are parts of a message; calls are read only if they are asked for
_MESSAGES: Final = """
    SELECT m.id, m.data, p.data FROM message m
    LEFT JOIN part p ON p.message_id = m.id AND (
        instr(p.data, '"type":"text"') > 0
        OR (? AND instr(p.data, '"type":"tool"') > 0))
    WHERE m.session_id = ? ORDER BY m.time_created, m.id, p.id
"""
#: a damaged database, or an id that is not text
_UNREADABLE: Final = (sqlite3.Error, OSError, ValueError)


#: options with which a program opens a session to write to it
_OPENING: Final = frozenset({"--session", "-s"})


def opencode_home(environ: Mapping[str, str]) -> Path:
    return home_folder(environ, "XDG_DATA_HOME", ".local/share") / "opencode"


class OpencodeArchive(BaseArchive):
    def __init__(self, home: Path) -> None:
        self._database = home / "opencode.db"

    def find(self, session_id: ProviderSessionId, work_dir: str | None) -> str | None:
        """Only in the directory where the session began: in another one opencode would never end."""
        try:
            with closing(_open(str(self._database))) as database:
                found = database.execute(_SESSION, (session_id,)).fetchone()
                is_here = found is not None and (work_dir is None or found[1] == os.path.realpath(work_dir))
        except _UNREADABLE:
            return None
        return str(self._database) if is_here else None

    def turns(
        self, path: str, session_id: ProviderSessionId, after: TranscriptMark | None = None
    ) -> Iterator[ArchivedTurn]:
        try:
            yield from islice(_archived(path, session_id), 0 if after is None else after.size, None)
        except _UNREADABLE:
            return

    def calls(self, path: str, session_id: ProviderSessionId, key: str) -> Iterator[Called | Returned]:
        try:
            for turn in _turns(_messages(path, session_id, with_calls=True)):
                if turn.key == key:
                    yield from turn.calls
        except _UNREADABLE:
            return

    def mark(self, path: str, session_id: ProviderSessionId) -> TranscriptMark | None:
        try:
            return mark_turns(path, _archived(path, session_id))
        except _UNREADABLE:
            return None

    def writer(self, path: str, session_id: ProviderSessionId) -> str | None:
        """A program that was started on this session. The database holds all sessions and does not tell who has which one open."""
        for running in command_lines("opencode"):
            is_at_home = opencode_home(running.environ).resolve() == self._database.parent.resolve()
            forks = "--fork" in running.arguments  # a fork only reads the session
            if is_at_home and not forks and running.gives(_OPENING, session_id):
                return f"opencode (process {running.pid})"
        return None

    def is_intact(self, recorded: TranscriptMark, session_id: ProviderSessionId) -> bool | NotObservable:
        try:
            return are_turns_intact(recorded, _archived(recorded.path, session_id))
        except _UNREADABLE:
            return False


@record
class _Message:
    id: str
    data: Mapping[str, Json]
    text: str  #: without what opencode added itself
    calls: tuple[Mapping[str, Json], ...] = ()  #: its parts that are tool calls

    @property
    def role(self) -> str:
        return as_text(self.data.get("role"))

    @property
    def answers(self) -> str:
        return as_text(self.data.get("parentID"))

    @property
    def is_prompt(self) -> bool:
        return self.role == "user" and self.text != ""

    @property
    def is_answer(self) -> bool:
        """Answered to the end: a failed call to the model has an error, an interrupted one has no end at all."""
        is_ended = "completed" in as_object(self.data.get("time")) and "error" not in self.data
        return is_ended and as_text(self.data.get("finish")) in ANSWERED


@dataclass(slots=True)
class _Turn:
    key: str
    prompt: str
    is_answered: bool = False
    calls: list[Called | Returned] = field(default_factory=list)
    _said: str = ""

    @property
    def archived(self) -> ArchivedTurn:
        return ArchivedTurn(self.key, self.prompt, self._said or None, self.is_answered, calls=None)

    def add(self, message: _Message) -> None:
        """Text before a tool call is not the answer, nor is a summary of the context."""
        for part in message.calls:
            if as_object(part.get("state")).get("status") != PENDING:
                self.calls += tool_use(part)
        if message.data.get("summary") is not True:
            self._said, self.is_answered = message.text, message.is_answer


def _archived(path: str, session_id: ProviderSessionId) -> Iterator[ArchivedTurn]:
    return (turn.archived for turn in _turns(_messages(path, session_id)))


def _turns(messages: Iterable[_Message]) -> Iterator[_Turn]:
    """Two programs may have written at the same time: each answer names the prompt that it answers."""
    waiting: dict[str, _Turn] = {}
    continued: dict[str, str] = {}  #: opencode's own prompt, after it compacted the context -> the turn
    for message in messages:
        if message.is_prompt:
            while waiting and (first := next(iter(waiting.values()))).is_answered:
                yield waiting.pop(first.key)
            waiting[message.id] = _Turn(message.id, message.text)
        elif message.role == "user" and waiting:
            continued[message.id] = next(reversed(waiting))
        elif (turn := waiting.get(continued.get(message.answers, message.answers))) is not None:
            turn.add(message)
    yield from waiting.values()


def _open(path: str) -> sqlite3.Connection:
    """A database without a write-ahead log is complete; opened normally, SQLite would leave a new log behind."""
    has_log = Path(f"{path}-wal").exists()
    options = "mode=ro" if has_log else "mode=ro&immutable=1"
    database = sqlite3.connect(f"file:{quote(path)}?{options}", timeout=_BUSY_SECONDS, uri=True)
    database.text_factory = lambda raw: raw.decode(errors="replace")
    return database


def _messages(path: str, session_id: ProviderSessionId, *, with_calls: bool = False) -> Iterator[_Message]:
    """In order, up to the point to which the session was undone: the next prompt deletes the rest."""
    with closing(_open(path)) as database:
        session = database.execute(_SESSION, (session_id,)).fetchone()
        if session is None:
            raise sqlite3.DataError(f"no session {session_id}")
        undone = as_text(_parse(session[0]).get("messageID"))
        rows = database.execute(_MESSAGES, (with_calls, session_id))
        for (message_id, data), group in groupby(rows, key=lambda row: row[:2]):
            if message_id == undone:
                return
            parts = [_parse(part) for _, _, part in group]
            calls = tuple(part for part in parts if part.get("type") == "tool")
            yield _Message(message_id, _parse(data), _text(parts), calls)


def _text(parts: Iterable[Mapping[str, Json]]) -> str:
    own = (part for part in parts if part.get("type") == "text" and part.get("synthetic") is not True)
    return "\n\n".join(text for part in own if (text := as_text(part.get("text"))))


def _parse(data: object) -> Mapping[str, Json]:
    try:
        return as_object(json.loads(data)) if isinstance(data, str) else {}
    except (ValueError, RecursionError):
        return {}

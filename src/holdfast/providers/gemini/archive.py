"""Owns reading the sessions that Gemini CLI keeps: one file each, in one folder for each work directory.

A file is a journal: messages are added, a later line with the same id replaces an earlier one, and
``$set`` and ``$rewindTo`` change what came before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from holdfast.domain.decisions import NotObservable
from holdfast.domain.events import Called, Returned
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import TranscriptMark
from holdfast.domain.redaction import Json
from holdfast.processes.table import command_lines, program_that_writes
from holdfast.providers.contract import ArchivedTurn, BaseArchive
from holdfast.providers.loose_json import as_list, as_object, as_text, joined_text
from holdfast.providers.runtimes import home_folder
from holdfast.providers.session_files import are_turns_intact, mark_turns, read_lines

_ID_IN_NAME = 8  #: the name of a file ends with this many characters of the id
#: texts that the CLI sends to the model in the user's name
_NOT_A_PROMPT: Final = ("<session_context>", "<state_snapshot>")


#: options with which a program opens a session to write to it
_OPENING: Final = frozenset({"--resume", "-r", "--session-id"})


def gemini_home(environ: Mapping[str, str]) -> Path:
    return home_folder(environ, "GEMINI_CLI_HOME", "") / ".gemini"


class GeminiArchive(BaseArchive):
    def __init__(self, home: Path) -> None:
        self._home = home
        self._projects = home / "tmp"

    def find(self, session_id: ProviderSessionId, work_dir: str | None) -> str | None:
        """In the folder of the work directory: Gemini looks nowhere else. Without one, in the only folder that has the session.

        Each resume leaves another file with the same id and no prompt in it.
        """
        ending = f"-{session_id[:_ID_IN_NAME]}.jsonl"
        try:
            named = [file for file in self._projects.glob("*/chats/session-*") if file.name.endswith(ending)]
            found = [file for file in named if _holds(file, session_id)]
            if work_dir is not None:
                found = [file for file in found if _is_of(file, work_dir)]
            if len({file.parent for file in found}) > 1:
                return None
            return str(max(found, key=lambda file: file.stat().st_mtime)) if found else None
        except (OSError, ValueError):
            return None

    def turns(
        self, path: str, session_id: ProviderSessionId, after: TranscriptMark | None = None
    ) -> Iterator[ArchivedTurn]:
        turns = (turn.archived for turn in _turns(Path(path)))
        yield from islice(turns, 0 if after is None else after.size, None)

    def calls(self, path: str, session_id: ProviderSessionId, key: str) -> Iterator[Called | Returned]:
        for turn in _turns(Path(path)):
            if turn.key == key:
                yield from turn.called

    def mark(self, path: str, session_id: ProviderSessionId) -> TranscriptMark | None:
        return mark_turns(path, (turn.archived for turn in _turns(Path(path))))

    def writer(self, path: str, session_id: ProviderSessionId) -> str | None:
        """A program that was started on this session. Others are seen only while they write a line, when they have the file open."""
        for running in command_lines("gemini"):
            is_at_home = gemini_home(running.environ).resolve() == self._home.resolve()
            if is_at_home and running.gives(_OPENING, session_id):
                return f"gemini (process {running.pid})"
        return program_that_writes(path)

    def is_intact(self, recorded: TranscriptMark, session_id: ProviderSessionId) -> bool | NotObservable:
        return are_turns_intact(recorded, (turn.archived for turn in _turns(Path(recorded.path))))


@dataclass(slots=True)
class _Turn:
    key: str
    prompt: str
    _said: str = ""
    _is_answered: bool = False
    _calls: dict[str, Mapping[str, Json]] = field(default_factory=dict)

    @property
    def archived(self) -> ArchivedTurn:
        calls = {call_id: bool(call.get("result")) for call_id, call in self._calls.items()}
        return ArchivedTurn(self.key, self.prompt, self._said or None, self._is_answered, calls)

    @property
    def called(self) -> Iterator[Called | Returned]:
        for call_id, call in self._calls.items():
            yield Called(call_id, as_text(call.get("name")), as_object(call.get("args")))
            if call.get("result"):
                yield Returned(call_id, as_text(call.get("resultDisplay")), call.get("status") != "success")

    def add(self, message: Mapping[str, Json]) -> None:
        """A message that calls tools is not the answer. Gemini saves it when the tools have ended."""
        called = list(map(as_object, as_list(message.get("toolCalls"))))
        self._calls |= {as_text(call.get("id")): call for call in called}
        self._said = joined_text(message.get("content"))
        self._is_answered = self._said != "" and not called


def _turns(path: Path) -> Iterator[_Turn]:
    turn: _Turn | None = None
    for key, message in _replay(path).items():
        prompt = _prompt(message)
        if prompt:
            if turn is not None:
                yield turn
            turn = _Turn(key, prompt)
        elif turn is not None and message.get("type") == "gemini":
            turn.add(message)
    if turn is not None:
        yield turn


def _replay(path: Path) -> dict[str, Mapping[str, Json]]:
    """The messages by id, as the CLI itself would load them."""
    messages: dict[str, Mapping[str, Json]] = {}
    for line in read_lines(path):
        match line:
            case {"$rewindTo": str(key)}:
                kept = list(messages)
                messages = {
                    name: messages[name] for name in kept[: kept.index(key) if key in messages else 0]
                }
            case {"id": str(key)}:
                messages[key] = line
            case {"$set": {"messages": list(whole)}}:
                messages = {as_text(message.get("id")): message for message in map(as_object, whole)}
    return messages


def _prompt(message: Mapping[str, Json]) -> str:
    """The prompt as it was typed; the message also has the content of files that the prompt names."""
    if message.get("type") != "user":
        return ""
    text = joined_text(message.get("displayContent")) or joined_text(message.get("content"))
    return "" if text.startswith(_NOT_A_PROMPT) else text


def _holds(file: Path, session_id: ProviderSessionId) -> bool:
    header = next(read_lines(file), {})
    return header.get("sessionId") == session_id and next(_turns(file), None) is not None


def _is_of(file: Path, work_dir: str) -> bool:
    root = file.parent.parent / ".project_root"
    return root.is_file() and Path(root.read_text("utf-8").strip()) in (
        Path(work_dir),
        Path(work_dir).resolve(),
    )

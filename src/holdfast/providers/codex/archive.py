"""Owns reading the sessions that Codex keeps: one rollout file each; the file of a fork points into its parent's."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.domain.events import Called, Returned
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import TranscriptMark
from holdfast.domain.redaction import Json
from holdfast.domain.usage import Usage
from holdfast.providers.codex.stream import called, returned, total_usage
from holdfast.providers.contract import ArchivedTurn
from holdfast.providers.loose_json import as_count, as_object, as_text, joined_text
from holdfast.providers.session_files import (
    AppendOnlyArchive,
    parse_line,
    read_lines,
)

_ACTIVE: Final = "sessions/*/*/*"
_ARCHIVED: Final = "archived_sessions"
_COMPRESSED: Final = ".zst"
#: the type of an item in a rollout -> the same in the stream
_ITEMS: Final = {
    "CommandExecution": "command_execution",
    "FileChange": "file_change",
    "McpToolCall": "mcp_tool_call",
    "WebSearch": "web_search",
    "CollabAgentToolCall": "collab_tool_call",
}
_CALLS: Final = ("function_call", "custom_tool_call")
_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")
_COMMAND: Final = "exec_command"
#: the stream does not report these: neither is a call of its own
_UNREPORTED: Final = ("update_plan", "write_stdin")
#: the output of a command that still runs begins with this; the item is completed when the command has ended
_RUNS_ON: Final = "Process running with session ID"


class CodexArchive(AppendOnlyArchive):
    renames_calls = True

    def __init__(self, home: Path) -> None:
        self._home = home

    def find(self, session_id: ProviderSessionId, work_dir: str | None) -> str | None:
        """Only sessions that Codex itself would resume: not archived ones, and a fork only if its whole ancestry is there."""
        file = self._rollout(session_id, _ACTIVE)
        return str(file) if file is not None and self._is_whole(file) else None

    def turns(
        self,
        path: str,
        session_id: ProviderSessionId,
        after: TranscriptMark | None = None,
    ) -> Iterator[ArchivedTurn]:
        """A fork's turns begin with those of its parent, under the same keys. A compressed file cannot be read, so it has none."""
        file = Path(path)
        lines = self._history(file) if after is None else read_lines(file, after.size)
        turn: _Turn | None = None
        for line in lines:
            event = _event(line)
            if event.get("type") == "task_started":
                if turn is not None and turn.prompts:
                    yield turn.archived
                turn = _Turn(as_text(event.get("turn_id")))
            elif turn is not None:
                turn.add(event)
        if turn is not None and turn.prompts:
            yield turn.archived

    def calls(self, path: str, session_id: ProviderSessionId, key: str) -> Iterator[Called | Returned]:
        turn, calls = "", _Calls()
        for line in self._history(Path(path)):
            event = _event(line)
            if event.get("type") == "task_started":
                turn = as_text(event.get("turn_id"))
            elif turn == key:
                calls.add(line)
        yield from calls.in_order()

    def is_prompt(self, line: bytes) -> bool:
        """Parses only lines that may be prompts: a quote within a text has a backslash."""
        if b'"UserMessage"' not in line:
            return False
        event = _event(parse_line(line) or {})
        return (
            event.get("type") == "item_completed"
            and as_object(event.get("item")).get("type") == "UserMessage"
        )

    def spent(self, path: str, session_id: ProviderSessionId) -> Usage | None:
        """A fork continues its parent's count."""
        counted: Mapping[str, Json] = {}
        for line in self._history(Path(path)):
            event = _event(line)
            if event.get("type") == "token_count":
                counted = as_object(as_object(event.get("info")).get("total_token_usage")) or counted
        return total_usage(counted)

    def _rollout(self, thread_id: str, *folders: str) -> Path | None:
        for ending in (".jsonl", f".jsonl{_COMPRESSED}"):
            for folder in folders:
                try:
                    found = sorted(self._home.glob(f"{folder}/rollout-*-{thread_id}{ending}"))
                except (OSError, ValueError):
                    return None
                if found:
                    return found[-1]
        return None

    def _is_whole(self, file: Path) -> bool:
        checked: set[Path] = set()
        while file not in checked:
            checked.add(file)
            parent = as_text(_base(next(read_lines(file), {})).get("thread_id"))
            if not parent:
                return True
            source = self._rollout(parent, _ACTIVE, _ARCHIVED)
            if source is None:
                return False
            file = source
        return False

    def _history(
        self, file: Path, end: int | None = None, below: frozenset[Path] = frozenset()
    ) -> Iterator[Mapping[str, Json]]:
        """The lines before ordinal ``end``; those of the session that it was forked from come first."""
        for line in read_lines(file):
            if end is not None and as_count(line.get("ordinal")) >= end:
                return
            base = _base(line)
            source = self._rollout(as_text(base.get("thread_id")), _ACTIVE, _ARCHIVED) if base else None
            if source is not None and source not in below:
                until = as_count(base.get("end_ordinal_exclusive"))
                yield from self._history(source, until, below | {file})
            yield line


@dataclass(slots=True)
class _Turn:
    key: str
    prompts: list[str] = field(default_factory=list)  #: more than one if a person wrote while it ran
    _answers: list[str] = field(default_factory=list)
    _is_complete: bool = False

    @property
    def archived(self) -> ArchivedTurn:
        response = "\n\n".join(self._answers) or None
        return ArchivedTurn(self.key, "\n\n".join(self.prompts), response, self._is_complete, calls=None)

    def add(self, event: Mapping[str, Json]) -> None:
        match event.get("type"):
            case "item_completed":
                self._item(as_object(event.get("item")))
            case "task_complete":
                self._is_complete = event.get("error") is None

    def _item(self, item: Mapping[str, Json]) -> None:
        text = joined_text(item.get("content"))
        match item.get("type"):
            case "UserMessage" if text:
                self.prompts.append(text)
            case "AgentMessage" if text:
                self._answers.append(text)


@dataclass(slots=True)
class _Calls:
    """Codex writes a call up to three times: as the model asked for it, with its output, and as a completed item."""

    _called: dict[str, Called] = field(default_factory=dict)
    _returned: dict[str, Returned] = field(default_factory=dict)

    def add(self, line: Mapping[str, Json]) -> None:
        event, response = _event(line), _response(line)
        if event.get("type") == "item_completed":
            self._item(_as_streamed(as_object(event.get("item"))))
        elif response.get("type") in _CALLS and response.get("name") not in _UNREPORTED:
            call = _written(response)
            self._called.setdefault(call.call_id, call)
        elif response.get("type") in _OUTPUTS:
            output = response.get("output")
            text = joined_text(output) or joined_text(as_object(output).get("content"))
            if _RUNS_ON not in text:
                call_id = as_text(response.get("call_id"))
                self._returned.setdefault(call_id, Returned(call_id, text, is_error=False))

    def in_order(self) -> Iterator[Called | Returned]:
        for call_id, call in self._called.items():
            yield call
            if call_id in self._returned:
                yield self._returned[call_id]

    def _item(self, item: Mapping[str, Json]) -> None:
        for call in called(item):
            before = self._called.get(call.call_id)
            if before is None or before.tool != call.tool:  # a command may turn out to be a change of files
                self._called[call.call_id] = call
        self._returned |= {result.call_id: result for result in returned(item)}


def _written(call: Mapping[str, Json]) -> Called:
    """A call as the model asked for it; it may not have ended."""
    call_id, name = as_text(call.get("call_id")), as_text(call.get("name"))
    if call.get("type") == "custom_tool_call":
        return Called(call_id, name, {"input": as_text(call.get("input"))})
    arguments = parse_line(as_text(call.get("arguments")).encode("utf-8", "replace")) or {}
    if name == _COMMAND:
        return Called(call_id, _ITEMS["CommandExecution"], {"command": as_text(arguments.get("cmd"))})
    return Called(call_id, name, arguments)


def _as_streamed(item: Mapping[str, Json]) -> Mapping[str, Json]:
    """The item as the stream would report it."""
    streamed = {**item, "type": _ITEMS.get(as_text(item.get("type")), "")}
    match item:
        case {"command": list(words)}:
            streamed["command"] = shlex.join(map(as_text, words))
        case {"changes": dict(changes)}:
            streamed["changes"] = [
                {"path": path, "kind": as_object(change).get("type")} for path, change in changes.items()
            ]
    return streamed


def _event(line: Mapping[str, Json]) -> Mapping[str, Json]:
    return as_object(line.get("payload")) if line.get("type") == "event_msg" else {}


def _response(line: Mapping[str, Json]) -> Mapping[str, Json]:
    return as_object(line.get("payload")) if line.get("type") == "response_item" else {}


def _base(line: Mapping[str, Json]) -> Mapping[str, Json]:
    """Where the history of a fork is; its first line says so."""
    return as_object(as_object(line.get("payload")).get("history_base"))

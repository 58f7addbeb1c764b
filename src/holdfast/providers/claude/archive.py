"""Owns reading the sessions that Claude Code keeps: one file each, in one folder for each work directory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.domain.events import Called, Returned
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import TranscriptMark
from holdfast.domain.redaction import Json
from holdfast.domain.usage import Usage
from holdfast.processes.owners import ON_LINUX, process_start
from holdfast.providers.claude.stream import calls_in, total_usage
from holdfast.providers.claude.transcript import SYNTHETIC
from holdfast.providers.contract import ArchivedTurn
from holdfast.providers.loose_json import as_amount, as_count, as_list, as_object, as_text, joined_text
from holdfast.providers.session_files import (
    AppendOnlyArchive,
    parse_line,
    placed_lines,
    read_lines,
)

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9]")
_LONGEST_NAME = 200  #: of a folder; a longer name is cut and gets a hash
_SECONDS_TO_BEGIN = 60
_UNFINISHED: Final = ("tool_use", "pause_turn", "")
_COMMAND = re.compile(r"<command-name>(?P<name>[^<]*)</command-name>")
_COMMAND_ARGUMENTS = re.compile(r"<command-args>(?P<arguments>.*?)</command-args>", re.DOTALL)
#: texts that the CLI writes in the place of a person's
_OF_A_COMMAND: Final = "<local-command-"
_NOT_A_PROMPT: Final = (_OF_A_COMMAND, "<task-notification>", "[Request interrupted by user")


class ClaudeArchive(AppendOnlyArchive):
    def __init__(self, home: Path) -> None:
        self._projects = home / "projects"
        self._processes = home / "sessions"

    def find(self, session_id: ProviderSessionId, work_dir: str | None) -> str | None:
        """The same id may exist in the folders of two work directories: then only the given directory counts."""
        try:
            found = [file for file in self._projects.glob(f"*/{session_id}.jsonl") if file.is_file()]
        except (OSError, ValueError):
            return None
        if len(found) > 1:
            found = [file for file in found if work_dir is not None and _is_folder_of(file.parent, work_dir)]
        return str(found[0]) if len(found) == 1 else None

    def turns(
        self,
        path: str,
        session_id: ProviderSessionId,
        after: TranscriptMark | None = None,
    ) -> Iterator[ArchivedTurn]:
        """A fork's file begins with a copy of its parent's turns, under the same keys.

        The lines are a tree: a program that continues beside another one, or rewinds, begins a branch. A line
        belongs to the turn of its parent, wherever it stands in the file.
        """
        tree, places = _Tree(), {}
        for place, turn, line in _lines_of_turns(Path(path), tree):
            if line is None:
                places[turn.key] = place
            else:
                turn.add(line)
        live = tree.branch()
        for key, place in places.items():
            turn = tree.turns[key]
            if turn.counts and (after is None or place >= after.size):
                yield turn.archived(live=key in live)

    def calls(self, path: str, session_id: ProviderSessionId, key: str) -> Iterator[Called | Returned]:
        for _, turn, line in _lines_of_turns(Path(path), _Tree()):
            if line is not None and turn.key == key and _is_of_the_agent(line):
                yield from calls_in(as_object(line.get("message")))

    def is_prompt(self, line: bytes) -> bool:
        """Parses only lines that may be prompts: a quote within a text has a backslash."""
        if b'"user"' not in line or b'"tool_result"' in line:
            return False
        return _begin(parse_line(line) or {}) is not None

    def spent(self, path: str, session_id: ProviderSessionId) -> Usage | None:
        """The next process continues from the last line of this kind, whichever branch that is on."""
        counted: Mapping[str, Json] = {}
        for line in read_lines(Path(path)):
            if line.get("type") == "cost-state":
                counted = line
        return total_usage(as_object(counted.get("modelUsage")), as_amount(counted.get("totalCostUSD")))

    def writer(self, path: str, session_id: ProviderSessionId) -> str | None:
        """Claude keeps a list of its processes, also of headless ones. A process that was killed stays in the list."""
        try:
            listed = sorted(self._processes.glob("*.json"))
        except OSError:
            return None
        for file in listed:
            entry = next(read_lines(file), {})
            if entry.get("sessionId") == session_id and (pid := _living(entry)) is not None:
                return f"claude (process {pid})"
        return None


@dataclass(slots=True)
class _Tree:
    """The parent of each line."""

    turns: dict[str, _Turn] = field(default_factory=dict)  #: by each of its lines
    _parents: dict[str, str] = field(default_factory=dict)
    _newest: str = ""
    _left_at: str = ""  #: where a program left the session when it ended properly

    def add(self, line: Mapping[str, Json]) -> str:
        """Returns the parent of the line. Where that is missing, Claude takes the line before it in the file."""
        if line.get("type") == "last-prompt":
            self._left_at = as_text(line.get("leafUuid"))
        key = as_text(line.get("uuid"))
        if not key or line.get("isSidechain") is True:
            return self._newest
        parent = as_text(line.get("parentUuid")) or as_text(line.get("logicalParentUuid"))
        before = parent if parent in self._parents else self._newest
        self._parents.setdefault(key, before)
        self._newest = key
        return before

    def turn_of(self, before: str, line: Mapping[str, Json]) -> _Turn | None:
        turn = self.turns.get(before)
        if turn is not None and (key := as_text(line.get("uuid"))):
            self.turns.setdefault(key, turn)
        return turn

    def branch(self) -> set[str]:
        """The branch that ``--resume`` continues: that of the newest line if it leads back to where a program left, else that of the latter."""
        newest = self._up_from(self._newest)
        if self._left_at in self._parents and self._left_at not in newest:
            return self._up_from(self._left_at)
        return newest

    def _up_from(self, key: str) -> set[str]:
        found: set[str] = set()
        while key and key not in found:
            found.add(key)
            key = self._parents.get(key, "")
        return found


def _lines_of_turns(path: Path, tree: _Tree) -> Iterator[tuple[int, _Turn, Mapping[str, Json] | None]]:
    """Each line with its offset and its turn; None instead of the line that begins the turn."""
    for place, line in placed_lines(path):
        before = tree.add(line)
        begun = _begin(line)
        if begun is not None:
            tree.turns[begun.key] = begun
            yield place, begun, None
        elif (turn := tree.turn_of(before, line)) is not None:
            yield place, turn, line


@dataclass(slots=True)
class _Turn:
    key: str
    prompt: str
    is_command: bool  #: a command of the CLI itself; it counts as a turn only if the agent answers
    _answers: list[str] = field(default_factory=list)  #: those of finished messages
    _said: str = ""  #: of the message that may continue
    _message: str = ""
    _is_finished: bool = False
    _calls: dict[str, bool] = field(default_factory=dict)

    @property
    def counts(self) -> bool:
        return not self.is_command or bool(self._answers or self._said)

    def archived(self, *, live: bool) -> ArchivedTurn:
        text = "\n\n".join(part for part in (*self._answers, self._said) if part)
        return ArchivedTurn(self.key, self.prompt, text or None, self._is_finished, self._calls, live)

    def add(self, line: Mapping[str, Json]) -> None:
        if not _is_of_the_agent(line):
            return
        message = as_object(line.get("message"))
        match line.get("type"):
            case "user" if _is_of_command(line):  # a command that a person gave after the turn
                pass
            case "user":  # the result of a tool or a notification: the agent continues
                self._calls |= dict.fromkeys(_ids(message, "tool_result", "tool_use_id"), True)
                self._go_on()
            case "assistant":
                self._answer(message)

    def _answer(self, message: Mapping[str, Json]) -> None:
        """A message takes one line for each of its blocks. Text before a tool call is not the answer."""
        if message.get("id") != self._message:
            self._go_on()
            self._message, self._said = as_text(message.get("id")), ""
        self._calls |= dict.fromkeys(_ids(message, "tool_use", "id"), False)
        self._said += joined_text(message.get("content"))
        self._is_finished = as_text(message.get("stop_reason")) not in _UNFINISHED

    def _go_on(self) -> None:
        if self._is_finished:
            self._answers.append(self._said)
            self._said = ""
        self._is_finished = False


def _begin(line: Mapping[str, Json]) -> _Turn | None:
    """A new turn, if the line is a prompt."""
    content = as_object(line.get("message")).get("content")
    is_aside = any(line.get(flag) is True for flag in ("isSidechain", "isMeta", "isCompactSummary"))
    if line.get("type") != "user" or is_aside or line.get("promptSource") == "system":
        return None
    if any(as_object(block).get("type") == "tool_result" for block in as_list(content)):
        return None
    text, key = joined_text(content), as_text(line.get("uuid"))
    if not text or not key or text.startswith(_NOT_A_PROMPT):
        return None
    command = _COMMAND.search(text) if text.startswith("<command-") else None
    if command is None:
        return _Turn(key, text, is_command=False)
    arguments = _COMMAND_ARGUMENTS.search(text)
    typed = f"{command['name']} {arguments['arguments'] if arguments else ''}"
    return _Turn(key, typed.strip(), is_command=True)


def _is_of_command(line: Mapping[str, Json]) -> bool:
    """Text that the CLI adds for a command of its own: the summary of /compact, or what the command printed."""
    text = joined_text(as_object(line.get("message")).get("content"))
    return line.get("isCompactSummary") is True or text.startswith(_OF_A_COMMAND)


def _is_of_the_agent(line: Mapping[str, Json]) -> bool:
    """Written by the main agent, not by a subagent or the CLI itself."""
    return line.get("isSidechain") is not True and as_object(line.get("message")).get("model") != SYNTHETIC


def _ids(message: Mapping[str, Json], kind: str, name: str) -> Iterator[str]:
    blocks = map(as_object, as_list(message.get("content")))
    return (as_text(block.get(name)) for block in blocks if block.get("type") == kind)


def _living(entry: Mapping[str, Json]) -> int | None:
    """The pid, if it still belongs to the listed process: pids are reused."""
    pid = as_count(entry.get("pid"))
    started_at = process_start(pid) if pid else None
    if started_at is None:
        return None
    if ON_LINUX:
        return pid if as_text(entry.get("procStart")) == str(started_at) else None
    # elsewhere Claude writes the start time in another form; a process lists itself right after it began
    listed_after = as_count(entry.get("startedAt")) / 1000 - started_at
    return pid if -1 <= listed_after <= _SECONDS_TO_BEGIN else None


def _is_folder_of(folder: Path, work_dir: str) -> bool:
    name = _NOT_IN_A_NAME.sub("-", os.path.realpath(work_dir))
    return folder.name == name or (
        len(name) > _LONGEST_NAME and folder.name.startswith(name[:_LONGEST_NAME] + "-")
    )

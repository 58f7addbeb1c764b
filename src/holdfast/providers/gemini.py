"""Owns Gemini CLI: how it is started, what it prints, and the sessions that it keeps."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Final

from holdfast.clock import Instant
from holdfast.domain.decisions import Fork, Fresh, NotObservable, Resume
from holdfast.domain.events import AgentEvent, Called, Denied, Ended, Named, Noted, Returned, Said, Spent
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import Rights, TranscriptMark
from holdfast.domain.records import replace
from holdfast.domain.redaction import Json
from holdfast.domain.runtimes import Capabilities
from holdfast.domain.usage import NO_USAGE, Usage, UsageReport
from holdfast.errors import InvalidInput
from holdfast.processes.process import Command
from holdfast.processes.table import command_lines, program_that_writes
from holdfast.providers.arguments import (
    FLAG,
    VALUES,
    WIDER_FLAG,
    WIDER_VALUES,
    ArgumentRules,
    Instead,
    Option,
)
from holdfast.providers.contract import (
    Archive,
    ArchivedTurn,
    BaseProvider,
    Comparison,
    LaunchSpec,
    Mending,
    Probe,
    ReadTurn,
    SessionFacts,
    SessionFile,
    SessionReading,
    Source,
    StoredSession,
    Stream,
    below,
    compare_file,
    compare_lists,
    files_in,
    home_folder,
    look_at,
    offers,
    read_version,
    with_folder_of,
)
from holdfast.providers.failure_rules import RULES
from holdfast.providers.loose_json import as_count, as_instant, as_list, as_object, as_text, joined_text
from holdfast.providers.report import SaidText
from holdfast.providers.session_files import (
    JsonLines,
    OnePassArchive,
    TurnsMark,
    are_turns_intact,
    edge_lines,
    entries,
    mark_turns,
    parse_line,
    read_lines,
    read_object,
)

#: the tools that the mode ``auto_edit`` is about
_EDITS: Final = frozenset({"replace", "write_file"})
_MODES: Final = ("default", "auto_edit", "yolo", "plan")
_OWNED: Final = {
    "--resume": Instead.RESUME,
    "-r": Instead.RESUME,
    "--session-id": Instead.SESSION_ID,
    "--session-file": Instead.FORK,
    "--output-format": Instead.OUTPUT,
    "-o": Instead.OUTPUT,
    "--prompt": Instead.PROMPT,
    "-p": Instead.PROMPT,
    "--prompt-interactive": Instead.OPEN,
    "-i": Instead.OPEN,
    "--model": Instead.MODEL,
    "-m": Instead.MODEL,
    "--approval-mode": Instead.MODE,
    "--yolo": Instead.MODE,
    "-y": Instead.MODE,
    "--allowed-tools": Instead.TOOLS,
    "--include-directories": Instead.FOLDERS,
    "--worktree": Instead.WORK_DIR,
    "-w": Instead.WORK_DIR,
    "--acp": Instead.NOT_A_TURN,
    "--experimental-acp": Instead.NOT_A_TURN,
    "--list-sessions": Instead.NOT_A_TURN,
    "--delete-session": Instead.NOT_A_TURN,
    "--list-extensions": Instead.NOT_A_TURN,
    "-l": Instead.NOT_A_TURN,
    "--help": Instead.NOT_A_TURN,
    "-h": Instead.NOT_A_TURN,
    "--version": Instead.NOT_A_TURN,
    "-v": Instead.NOT_A_TURN,
    **dict.fromkeys(
        ("mcp", "extensions", "extension", "skills", "skill", "hooks", "hook", "gemma"), Instead.NOT_A_TURN
    ),
}
#: as ``gemini --help`` has them; a trusted directory brings its own settings and servers of tools
_KNOWN: Final[Mapping[str, Option]] = {
    "--accept-raw-output-risk": WIDER_FLAG,
    "--admin-policy": WIDER_VALUES,
    "--allowed-mcp-server-names": VALUES,
    "--debug": FLAG,
    "-d": FLAG,
    "--extensions": VALUES,
    "-e": VALUES,
    "--policy": WIDER_VALUES,
    "--raw-output": WIDER_FLAG,
    "--sandbox": FLAG,
    "-s": FLAG,
    "--screen-reader": FLAG,
    "--skip-trust": WIDER_FLAG,
}


class Gemini(BaseProvider):
    name = "gemini"
    rules_file = RULES / "gemini.toml"
    tested = "0.61.0"
    install = "npm install -g @google/gemini-cli"
    login = "start gemini and choose how to log in, or set GEMINI_API_KEY"
    modes = _MODES
    arguments = ArgumentRules(_OWNED, _KNOWN)

    def read_probe(self, outputs: tuple[str, ...]) -> Probe:
        """Gemini prints its version without a name; the name is in the help."""
        version_text, help_text = outputs
        product, version = read_version(version_text)
        return Probe(
            version,
            "gemini-cli" if "Gemini CLI - " in help_text else product,
            Capabilities(
                can_resume=offers(help_text, "--resume"),
                can_fork=offers(help_text, "--session-file"),
                chooses_id=offers(help_text, "--session-id"),
                append_only_transcript=True,
            ),
        )

    def home(self, environ: Mapping[str, str]) -> Path:
        return _gemini_home(environ)

    def home_variables(self, home: Path) -> Mapping[str, str]:
        return {"GEMINI_CLI_HOME": str(home.parent)}

    def check(self, rights: Rights, *, allow_wider: bool = False) -> None:
        if rights.permission_mode not in (None, *_MODES):
            raise InvalidInput(
                "permission mode",
                f"{rights.permission_mode[:40]!r} is not an approval mode of Gemini ({', '.join(_MODES)})",
            )
        for name, values in (
            ("allowed tools", rights.allowed_tools),
            ("extra directories", rights.extra_dirs),
        ):
            if any("," in value for value in values):
                raise InvalidInput(
                    name, "Gemini would take a comma for the end of one and the start of another"
                )
        super().check(rights, allow_wider=allow_wider)

    def mint_id(self, decision: Fork | Fresh) -> ProviderSessionId | None:
        return None if isinstance(decision, Fork) else ProviderSessionId(str(uuid.uuid4()))

    def command(self, spec: LaunchSpec) -> Command:
        """Gemini runs without a person when its input is not a terminal."""
        argv = (spec.binary, "--output-format=stream-json", *self._session(spec), *_options(spec))
        return Command(argv, stdin=spec.prompt, prints_to_file=True)

    def interactive(self, spec: LaunchSpec) -> Command:
        return Command((spec.binary, *self._session(spec), *_options(spec)))

    def allowing(self, rights: Rights, call: Called, work_dir: str) -> Rights:
        mode = rights.permission_mode
        if call.tool in _EDITS:
            rights = replace(rights, permission_mode="yolo" if mode == "yolo" else "auto_edit")
            return with_folder_of(rights, as_text(call.arguments.get("file_path")), work_dir)
        mode = "default" if mode == "plan" else mode
        return replace(rights, permission_mode=mode, allowed_tools=rights.allowed_tools | {call.tool})

    def stream(self, spec: LaunchSpec) -> Stream:
        return GeminiStream()

    def archive(self, home: Path) -> Archive:
        return GeminiArchive(home)

    def _session(self, spec: LaunchSpec) -> tuple[str, ...]:
        match spec.decision:
            case Resume(provider_session_id):
                return (f"--resume={provider_session_id}",)
            case Fork(provider_session_id):
                file = self.archive(Path(spec.home)).find(provider_session_id, spec.work_dir)
                # Gemini refuses a file that does not exist
                return (f"--session-file={file or f'{provider_session_id}.jsonl'}",)
            case Fresh():
                return (f"--session-id={spec.new_id}",) if spec.new_id is not None else ()


def _options(spec: LaunchSpec) -> tuple[str, ...]:
    """Each value is tied to its option: several options take a list and would swallow what follows."""
    rights = spec.rights
    return (
        *((f"--model={spec.model}",) if spec.model is not None else ()),
        *((f"--approval-mode={rights.permission_mode}",) if rights.permission_mode is not None else ()),
        *(f"--allowed-tools={tool}" for tool in sorted(rights.allowed_tools)),
        *(f"--include-directories={directory}" for directory in sorted(rights.extra_dirs)),
        *rights.extra_args,
    )


# --- what `gemini --output-format stream-json` prints ---

#: the model ended its answer properly without any text: the CLI asks a few more times, then calls it an error
_EMPTY_ANSWER = "The model returned an empty response with no text"
#: the CLI stopped the model, reported success, and removed the request from its session
_LOOP = "Loop detected"
#: in the text of an error: ``[API Error: {"error":{"code":400,...``
_STATUS = re.compile(r'"code\\*":\s*(\d{3})\b')


#: tools that a person is asked about; a headless Gemini does not have them unless its rights allow them
_ASKING: Final = _EDITS | {"run_shell_command", "web_fetch", "save_memory"}
_OUTSIDE: Final = "Path not in workspace"


class GeminiStream:
    """One run. The CLI prints the prompt again as a message of the user; that is no event."""

    def __init__(self) -> None:
        self._answer = SaidText()  #: since the last tool was called
        self._has_spoken = False
        self._tools: dict[str, str] = {}  #: by the id of a call without a result so far
        self._trouble = ""  #: what the last error event said

    def read(self, line: Mapping[str, Json]) -> Iterator[AgentEvent]:
        match line:
            case {"type": "init", "session_id": str(session_id)} if session_id:
                yield Named(ProviderSessionId(session_id))
            case {"type": "message", "role": "assistant", "content": str(text)} if text:
                yield self._say(text)
            case {"type": "tool_use"}:
                self._answer = SaidText()
                tool, arguments = as_text(line.get("tool_name")), as_object(line.get("parameters"))
                self._tools[as_text(line.get("tool_id"))] = tool
                yield Called(as_text(line.get("tool_id")), tool, arguments)
            case {"type": "tool_result"}:
                is_error = line.get("status") != "success"
                yield from self._denied(line)
                yield Returned(as_text(line.get("tool_id")), as_text(line.get("output")), is_error)
            case {"type": "error", "message": str(text)}:
                self._trouble = text
                yield Noted(text)
            case {"type": "result"}:
                yield from self._end(line)

    def _denied(self, line: Mapping[str, Json]) -> Iterator[Denied]:
        """Without a person, Gemini has only the tools that it may use without asking."""
        tool = self._tools.pop(as_text(line.get("tool_id")), "")
        error = as_object(line.get("error"))
        message = as_text(error.get("message"))
        if error.get("type") == "tool_not_registered" and tool in _ASKING:
            yield Denied(as_text(line.get("tool_id")), tool, "the approval mode does not allow it")
        elif message.startswith(_OUTSIDE):
            yield Denied(as_text(line.get("tool_id")), tool, message)

    def _say(self, text: str) -> Said:
        is_next = self._has_spoken and not self._answer
        self._answer.add(text)
        self._has_spoken = True
        return Said(f"\n\n{text}" if is_next else text)

    def _end(self, line: Mapping[str, Json]) -> Iterator[AgentEvent]:
        stats = as_object(line.get("stats"))
        counts = (as_count(stats.get(kind)) for kind in ("input_tokens", "cached", "output_tokens"))
        yield Spent(UsageReport(Usage(*counts)))
        has_ended_well = line.get("status") == "success" and not self._trouble.startswith(_LOOP)
        if has_ended_well or self._trouble.startswith(_EMPTY_ANSWER):
            yield Ended(ok=True, response=str(self._answer) or None)
        else:
            yield self._failure(as_object(line.get("error")))

    def _failure(self, error: Mapping[str, Json]) -> Ended:
        text = as_text(error.get("message")) or self._trouble
        status = _STATUS.search(text)
        return Ended(
            ok=False,
            error=text,
            status=int(status[1]) if status else None,
            code=as_text(error.get("type")),
        )


# --- the sessions that Gemini CLI keeps ---

_ROOT = ".project_root"  #: marks the folder of a project with the work directory
_ID_IN_NAME = 8  #: the name of a file ends with this many characters of the id
#: texts that the CLI sends to the model in the user's name
_NOT_A_PROMPT: Final = ("<session_context>", "<state_snapshot>")
_DAY_SECONDS = 86_400.0
#: how long sessions are kept, unless its settings say something else
_KEPT: Final[Mapping[str, Json]] = {"enabled": True, "maxAge": "30d", "minRetention": "1d"}
_PERIOD = re.compile(r"([0-9]{1,6})([hdwm])")
_UNIT_DAYS: Final = {"h": 1 / 24, "d": 1, "w": 7, "m": 30}
#: options with which a program opens a session to write to it
_OPENING: Final = frozenset({"--resume", "-r", "--session-id"})
#: a journal is read as a whole before its first turn is known
_LONGEST_READ: Final = 64 * 1024 * 1024
_KNOWN_MESSAGES: Final = ("user", "gemini", "info", "error", "warning")
_TOO_LONG: Final = "it is longer than the 64 MiB that are read of a Gemini session"


def _gemini_home(environ: Mapping[str, str]) -> Path:
    return home_folder(environ, "GEMINI_CLI_HOME", "") / ".gemini"


class GeminiArchive(OnePassArchive):
    """Each session is one file, in a folder for each work directory.

    A file is a journal: messages are added, a later line with the same id replaces an earlier one, and ``$set`` and
    ``$rewindTo`` change what came before.
    """

    rewrites = True

    def __init__(self, home: Path) -> None:
        self._home = home
        self._projects = home / "tmp"

    def find(self, session_id: ProviderSessionId, work_dir: str | None) -> str | None:
        """In the folder of the work directory: Gemini looks nowhere else. Without one, in the only folder that has the session.

        Each resume leaves another file with the same id and no prompt in it.
        """
        ending = _ending(session_id)
        try:
            named = [file for file in self._projects.glob("*/chats/session-*") if file.name.endswith(ending)]
            found = [file for file in named if _holds(file, session_id)]
            if work_dir is not None:
                found = [file for file in found if _is_of(file.parent.parent, work_dir)]
            if len({file.parent for file in found}) > 1:
                return None
            return str(max(found, key=lambda file: file.stat().st_mtime)) if found else None
        except (OSError, ValueError):
            return None

    def sessions(self, beginning: str = "") -> Iterator[StoredSession]:
        found: dict[tuple[str, Path], StoredSession] = {}
        try:
            files = sorted(self._projects.glob("*/chats/session-*.jsonl"))
        except OSError:
            return
        for file in files:
            session_id = ProviderSessionId(as_text(next(read_lines(file), {}).get("sessionId")))
            if session_id.startswith(beginning) and _holds(file, session_id):
                found[session_id, file.parent] = StoredSession(
                    session_id, str(file), _root(file.parent.parent)
                )
        yield from found.values()

    def title(self, path: str, session_id: ProviderSessionId) -> str | None:
        found = [
            as_text(as_object(line.get("$set")).get("summary"))
            for part in edge_lines(Path(path))
            for line in part
        ]
        return next(filter(None, reversed(found)), None)

    def sources(self, work_dir: str | None = None) -> Iterator[Source]:
        """The names of the files hold only the beginnings of the ids. The newest ones first."""
        found: list[Source] = []
        unreadable: list[Source] = []
        for folder in entries(self._projects, unreadable):
            if work_dir is not None and not _is_of(Path(folder.path), work_dir):
                continue
            for entry in entries(Path(folder.path, "chats"), unreadable):
                if entry.name.startswith("session-") and entry.name.endswith(".jsonl"):
                    source = look_at(entry.path, None)
                    if source is not None:
                        is_long = source.size > _LONGEST_READ
                        found.append(replace(source, problem=_TOO_LONG) if is_long else source)
        yield from sorted(found, key=lambda source: -source.mtime_ns)
        yield from unreadable

    def reading(
        self,
        path: str,
        facts: SessionFacts,
        *,
        after: TranscriptMark | None = None,
        room: int | None = None,
        with_events: bool = True,
    ) -> SessionReading:
        turns = _read(Path(path), facts, 0 if after is None else after.size)
        return SessionReading(turns, facts)

    def spent(self, path: str, session_id: ProviderSessionId) -> Usage | None:
        return None

    def mark(self, path: str, session_id: ProviderSessionId) -> TranscriptMark | None:
        return mark_turns(path, (turn.archived for turn in _turns(Path(path))))

    def writer(self, path: str, session_id: ProviderSessionId) -> str | None:
        """A program that was started on this session. Others are seen only while they write a line, when they have the file open."""
        for running in command_lines("gemini"):
            is_at_home = _gemini_home(running.environ).resolve() == self._home.resolve()
            if is_at_home and running.gives(_OPENING, session_id):
                return f"gemini (process {running.pid})"
        return program_that_writes(path)

    def is_intact(self, recorded: TranscriptMark, session_id: ProviderSessionId) -> bool | NotObservable:
        return are_turns_intact(recorded, (turn.archived for turn in _turns(Path(recorded.path))))

    @cached_property
    def keeps_seconds(self) -> float | None:
        """Gemini looks when a new session begins in the same project. Settings that it cannot understand switch that off."""
        settings = as_object(read_object(self._home / "settings.json").get("general"))
        rules = {**_KEPT, **as_object(settings.get("sessionRetention"))}
        longest, least = _period(rules["maxAge"]), _period(rules["minRetention"]) or _DAY_SECONDS
        return longest if rules["enabled"] and longest is not None and longest >= least else None

    def expires_at(self, path: str) -> Instant | None:
        return super().expires_at(path) if Path(path).is_relative_to(self._projects) else None

    def files(self, path: str, session_id: ProviderSessionId) -> Iterator[SessionFile]:
        """With its subagents and with tool results that were too long."""
        main = Path(path)
        project = main.parent.parent
        yield below(self._home, main, is_main=True)
        for folder in (main.parent / session_id, project / "tool-outputs" / f"session-{session_id}"):
            yield from files_in(self._home, folder)

    def is_own_name(self, name: str, session_id: ProviderSessionId) -> bool:
        match PurePosixPath(name).parts:
            case ("tmp", _, "chats", file):
                return file.startswith("session-") and file.endswith(_ending(session_id))
            case ("tmp", _, "chats", folder, _, *_):
                return folder == session_id
            case ("tmp", _, "tool-outputs", folder, _, *_):
                return folder == f"session-{session_id}"
        return False

    def place(self, name: str, session_id: ProviderSessionId, work_dir: str | None) -> str | None:
        """In the folder of the work directory: Gemini looks nowhere else."""
        _, kept, *inner = PurePosixPath("tmp", *PurePosixPath(name).parts[1:]).parts
        found = self.find(session_id, work_dir)
        if found is not None and inner[-1].endswith(_ending(session_id)):
            return found
        return str(self._project(work_dir, kept).joinpath(*inner))

    def compare(
        self, name: str, kept: Iterable[bytes], session_id: ProviderSessionId, work_dir: str | None
    ) -> Comparison:
        """By what was asked and answered: the file of a session is rewritten before it is resumed."""
        path = Path(str(self.place(name, session_id, work_dir)))
        if not path.is_file():
            return Comparison.ABSENT
        if not path.name.endswith(_ending(session_id)):
            return compare_file(str(path), kept)
        lines = map(parse_line, b"".join(kept).splitlines())
        before = _replay(line for line in lines if line is not None)
        return compare_lists(_gist(_replay(read_lines(path))), _gist(before))

    def companions(self, path: str, work_dir: str) -> Iterator[tuple[str, bytes]]:
        """Without the mark of its project, Gemini would take the folder for that of another one."""
        yield str(Path(path).parent.parent / _ROOT), os.path.realpath(work_dir).encode()

    def mend(self, path: str, session_id: ProviderSessionId) -> Mending | None:
        """Gemini sends a tool's result once more with each resume, unless the file has it only once. And each resume leaves
        a file without a prompt, which Gemini deletes later on, together with the session.
        """
        main = Path(path)
        try:
            same = [file for file in main.parent.glob("session-*") if file.name.endswith(_ending(session_id))]
            empty = [str(file) for file in same if file != main and _is_empty(file, session_id)]
            is_written = main.read_bytes()
        except OSError:
            return None
        lines = (_header(main), *_answered_once(_replay(read_lines(main))))
        data = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
        return Mending(data, tuple(empty)) if empty or data != is_written else None

    def _project(self, work_dir: str | None, kept: str) -> Path:
        """The folder of the work directory, else a folder that belongs to no other, named as it was."""
        if work_dir is not None:
            named = as_object(read_object(self._home / "projects.json").get("projects"))
            for directory in (work_dir, os.path.realpath(work_dir)):
                if name := as_text(named.get(directory)):
                    return self._projects / name
        names = (kept if number == 0 else f"{kept}-{number}" for number in count())
        folders = (self._projects / name for name in names)
        return next(
            each for each in folders if _root(each) is None or work_dir is None or _is_of(each, work_dir)
        )


def _period(text: Json) -> float | None:
    found = _PERIOD.fullmatch(as_text(text))
    return (int(found[1]) * _UNIT_DAYS[found[2]] * _DAY_SECONDS or None) if found else None


@dataclass(slots=True)
class _Turn:
    key: str
    prompt: str
    began_at: Instant | None
    _ended_at: Instant | None = None
    _said: str = ""
    _is_answered: bool = False
    _calls: dict[str, Mapping[str, Json]] = field(default_factory=dict)
    usage: Usage = NO_USAGE
    model: str | None = None

    @property
    def archived(self) -> ArchivedTurn:
        calls = {call_id: bool(call.get("result")) for call_id, call in self._calls.items()}
        return ArchivedTurn(
            self.key, self.prompt, self._said or None, self._is_answered, calls,
            began_at=self.began_at, ended_at=self._ended_at,
        )  # fmt: skip

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
        tokens = as_object(message.get("tokens"))
        self.usage += Usage(*(as_count(tokens.get(kind)) for kind in ("input", "cached", "output")))
        self.model = as_text(message.get("model")) or self.model
        self._said = joined_text(message.get("content"))
        self._is_answered = self._said != "" and not called
        self._ended_at = as_instant(message.get("timestamp"))


def _read(path: Path, facts: SessionFacts, after: int) -> Iterator[ReadTurn]:
    lines, mark = JsonLines(path), TurnsMark()
    messages = _replay((line for _, line in lines), facts)
    facts.work_dir = _root(path.parent.parent)
    facts.damaged, facts.problem = lines.damaged, lines.problem
    for number, turn in enumerate(_turns_in(messages)):
        facts.first_key = facts.first_key or turn.key
        facts.model = turn.model or facts.model
        mark.add(turn.archived)
        if number >= after:
            yield ReadTurn(turn.archived, tuple(turn.called), turn.usage, turn.model)
    facts.mark, facts.before_last = mark.of(str(path)), mark.before_last(str(path))


def _turns(path: Path) -> Iterator[_Turn]:
    return _turns_in(_replay(read_lines(path)))


def _turns_in(messages: Mapping[str, Mapping[str, Json]]) -> Iterator[_Turn]:
    turn: _Turn | None = None
    for key, message in messages.items():
        prompt = _prompt(message)
        if prompt:
            if turn is not None:
                yield turn
            turn = _Turn(key, prompt, as_instant(message.get("timestamp")))
        elif turn is not None and message.get("type") == "gemini":
            turn.add(message)
    if turn is not None:
        yield turn


def _replay(
    lines: Iterable[Mapping[str, Json]], facts: SessionFacts | None = None
) -> dict[str, Mapping[str, Json]]:
    """The messages by id, as the CLI itself would load them."""
    messages: dict[str, Mapping[str, Json]] = {}
    for line in lines:
        if facts is not None:
            _note(line, facts)
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


def _note(line: Mapping[str, Json], facts: SessionFacts) -> None:
    match line:
        case {"sessionId": str(session_id)}:
            facts.id = facts.id or ProviderSessionId(session_id)
            facts.subagent_of = ProviderSessionId("") if line.get("kind") == "subagent" else None
        case {"id": str(), "type": kind}:
            parts = map(as_object, as_list(line.get("content")))
            facts.images += sum(
                as_text(as_object(part.get("inlineData")).get("mimeType")).startswith("image/")
                for part in parts
            )
            if kind not in _KNOWN_MESSAGES:
                facts.unknown[as_text(kind)[:80] or "none"] += 1
        case {"$set": dict(changed)}:
            facts.title = as_text(changed.get("summary")) or facts.title
        case {"$rewindTo": str()}:
            pass
        case _:
            facts.unknown["none"] += 1


def _prompt(message: Mapping[str, Json]) -> str:
    """The prompt as it was typed; the message also has the content of files that the prompt names."""
    if message.get("type") != "user":
        return ""
    text = joined_text(message.get("displayContent")) or joined_text(message.get("content"))
    return "" if text.startswith(_NOT_A_PROMPT) else text


def _holds(file: Path, session_id: ProviderSessionId) -> bool:
    header = next(read_lines(file), {})
    return header.get("sessionId") == session_id and next(_turns(file), None) is not None


def _root(project: Path) -> str | None:
    """The work directory whose sessions the folder holds."""
    try:
        return (project / _ROOT).read_text("utf-8").strip() or None
    except (OSError, ValueError):
        return None


def _is_of(project: Path, work_dir: str) -> bool:
    root = _root(project)
    return root is not None and Path(root) in (Path(work_dir), Path(work_dir).resolve())


def _ending(session_id: ProviderSessionId) -> str:
    """Of the name of each file of the session."""
    return f"-{session_id[:_ID_IN_NAME]}.jsonl"


def _is_empty(file: Path, session_id: ProviderSessionId) -> bool:
    return next(read_lines(file), {}).get("sessionId") == session_id and next(_turns(file), None) is None


def _gist(messages: Mapping[str, Mapping[str, Json]]) -> list[str]:
    """What was asked, by its ids, and what was answered: the CLI rewrites everything else with each resume."""
    answers = {
        key: joined_text(each.get("content"))
        for key, each in messages.items()
        if each.get("type") == "gemini"
    }
    return [f"{key} {answers.get(key, '')}" for key in messages if key in answers or _prompt(messages[key])]


def _header(path: Path) -> dict[str, Json]:
    """The first line, with everything that was set later."""
    header: dict[str, Json] = {}
    for line in read_lines(path):
        if not header:
            header = dict(line)
        header |= as_object(line.get("$set"))
    header.pop("messages", None)
    return header


def _answered_once(messages: Mapping[str, Mapping[str, Json]]) -> Iterator[Mapping[str, Json]]:
    """Each message, but of the results for one tool call only the first: a call may hold its result itself."""
    answered: set[str] = set()
    for message in messages.values():
        calls = map(as_object, as_list(message.get("toolCalls")))
        answered |= {as_text(call.get("id")) for call in calls if call.get("result")}
        content = as_list(message.get("content"))
        kept = []
        for part in content:
            result = as_object(as_object(part).get("functionResponse"))
            call_id = as_text(result.get("id"))
            if not call_id or call_id not in answered:
                kept.append(part)
            if call_id:
                answered.add(call_id)
        if kept or not content:
            yield message if len(kept) == len(content) else {**message, "content": kept}

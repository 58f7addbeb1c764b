"""Owns Gemini CLI: how it is started, what it prints, and the sessions that it keeps."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from holdfast.clock import Instant
from holdfast.domain.decisions import Fork, Fresh, NotObservable, Resume
from holdfast.domain.events import AgentEvent, Called, Ended, Named, Noted, Returned, Said, Spent
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import Rights, TranscriptMark
from holdfast.domain.redaction import Json
from holdfast.domain.runtimes import Capabilities
from holdfast.domain.usage import Usage, UsageReport
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
    BaseArchive,
    BaseProvider,
    LaunchSpec,
    Probe,
    StoredSession,
    Stream,
    home_folder,
    offers,
    read_version,
)
from holdfast.providers.failure_rules import RULES
from holdfast.providers.loose_json import as_count, as_instant, as_list, as_object, as_text, joined_text
from holdfast.providers.report import SaidText
from holdfast.providers.session_files import are_turns_intact, mark_turns, read_lines

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


class GeminiStream:
    """One run. The CLI prints the prompt again as a message of the user; that is no event."""

    def __init__(self) -> None:
        self._answer = SaidText()  #: since the last tool was called
        self._has_spoken = False
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
                yield Called(as_text(line.get("tool_id")), tool, arguments)
            case {"type": "tool_result"}:
                is_error = line.get("status") != "success"
                yield Returned(as_text(line.get("tool_id")), as_text(line.get("output")), is_error)
            case {"type": "error", "message": str(text)}:
                self._trouble = text
                yield Noted(text)
            case {"type": "result"}:
                yield from self._end(line)

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

_ID_IN_NAME = 8  #: the name of a file ends with this many characters of the id
#: texts that the CLI sends to the model in the user's name
_NOT_A_PROMPT: Final = ("<session_context>", "<state_snapshot>")
#: options with which a program opens a session to write to it
_OPENING: Final = frozenset({"--resume", "-r", "--session-id"})


def _gemini_home(environ: Mapping[str, str]) -> Path:
    return home_folder(environ, "GEMINI_CLI_HOME", "") / ".gemini"


class GeminiArchive(BaseArchive):
    """Each session is one file, in a folder for each work directory.

    A file is a journal: messages are added, a later line with the same id replaces an earlier one, and ``$set`` and
    ``$rewindTo`` change what came before.
    """

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

    def sessions(self, beginning: str = "") -> Iterator[StoredSession]:
        found: dict[tuple[str, Path], StoredSession] = {}
        try:
            files = sorted(self._projects.glob("*/chats/session-*.jsonl"))
        except OSError:
            return
        for file in files:
            session_id = ProviderSessionId(as_text(next(read_lines(file), {}).get("sessionId")))
            if session_id.startswith(beginning) and _holds(file, session_id):
                found[session_id, file.parent] = StoredSession(session_id, str(file), _root(file))
        yield from found.values()

    def turns(
        self, path: str, session_id: ProviderSessionId, after: TranscriptMark | None = None
    ) -> Iterator[ArchivedTurn]:
        turns = (turn.archived for turn in _turns(Path(path)))
        yield from islice(turns, 0 if after is None else after.size, None)

    def calls(self, path: str, session_id: ProviderSessionId) -> Iterator[tuple[str, Called | Returned]]:
        for turn in _turns(Path(path)):
            for event in turn.called:
                yield turn.key, event

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


@dataclass(slots=True)
class _Turn:
    key: str
    prompt: str
    began_at: Instant | None
    _ended_at: Instant | None = None
    _said: str = ""
    _is_answered: bool = False
    _calls: dict[str, Mapping[str, Json]] = field(default_factory=dict)

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
        self._said = joined_text(message.get("content"))
        self._is_answered = self._said != "" and not called
        self._ended_at = as_instant(message.get("timestamp"))


def _turns(path: Path) -> Iterator[_Turn]:
    turn: _Turn | None = None
    for key, message in _replay(path).items():
        prompt = _prompt(message)
        if prompt:
            if turn is not None:
                yield turn
            turn = _Turn(key, prompt, as_instant(message.get("timestamp")))
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


def _root(file: Path) -> str | None:
    """The work directory whose sessions the file's folder holds."""
    root = file.parent.parent / ".project_root"
    try:
        return root.read_text("utf-8").strip() or None
    except (OSError, ValueError):
        return None


def _is_of(file: Path, work_dir: str) -> bool:
    root = _root(file)
    return root is not None and Path(root) in (Path(work_dir), Path(work_dir).resolve())

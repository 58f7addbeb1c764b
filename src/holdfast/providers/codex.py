"""Owns Codex: how it is started, what it prints, and the sessions that it keeps."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.clock import Instant
from holdfast.domain.decisions import Fork, Fresh, Resume
from holdfast.domain.events import AgentEvent, Called, Ended, Named, Noted, Returned, Said, Spent
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import Rights, TranscriptMark
from holdfast.domain.redaction import Json
from holdfast.domain.runtimes import Capabilities
from holdfast.domain.usage import Usage, UsageReport
from holdfast.errors import InvalidInput
from holdfast.processes.process import Command
from holdfast.providers.arguments import (
    FLAG,
    VALUE,
    VALUES,
    WIDER_FLAG,
    WIDER_VALUE,
    ArgumentRules,
    Instead,
    Option,
    Takes,
)
from holdfast.providers.contract import (
    Archive,
    ArchivedTurn,
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
from holdfast.providers.session_files import (
    AppendOnlyArchive,
    parse_line,
    read_lines,
)

_SANDBOXES: Final = ("read-only", "workspace-write", "danger-full-access")
_KEYS: Final = {
    "cwd": Instead.WORK_DIR,
    "ephemeral": Instead.SAVED,
    "experimental_resume": Instead.RESUME,
    "model": Instead.MODEL,
    "sandbox_mode": Instead.MODE,
    "sqlite_home": "the home of an agent is set where it runs, with CODEX_HOME",
}
_OWNED: Final = {
    "resume": Instead.RESUME,
    "--last": Instead.RESUME,
    "--all": Instead.RESUME,
    "fork": Instead.FORK,
    "review": "ask for the review in the prompt",
    "--ephemeral": Instead.SAVED,
    "--json": Instead.OUTPUT,
    "--skip-git-repo-check": "Holdfast gives it already",
    "--cd": Instead.WORK_DIR,
    "-C": Instead.WORK_DIR,
    "--worktree": Instead.WORK_DIR,
    "--sandbox": Instead.MODE,
    "-s": Instead.MODE,
    "--model": Instead.MODEL,
    "-m": Instead.MODEL,
    "--add-dir": Instead.FOLDERS,
    "help": Instead.NOT_A_TURN,
    "--help": Instead.NOT_A_TURN,
    "-h": Instead.NOT_A_TURN,
    "--version": Instead.NOT_A_TURN,
    "-V": Instead.NOT_A_TURN,
    **{f"{option} {key}": instead for option in ("-c", "--config") for key, instead in _KEYS.items()},
}
_CONFIG: Final = Option(
    Takes.ONE,
    is_harmless=False,
    harmless_values=frozenset(
        {
            "hide_agent_reasoning",
            "model_auto_compact_token_limit",
            "model_context_window",
            "model_reasoning_effort",
            "model_reasoning_summary",
            "model_verbosity",
            "show_raw_agent_reasoning",
            "tool_output_token_limit",
        }
    ),
)
#: as ``codex exec --help`` and ``codex --help`` have them, and what older ones had
_KNOWN: Final[Mapping[str, Option]] = {
    "--approve-for-me": WIDER_FLAG,
    "--ask-for-approval": WIDER_VALUE,
    "-a": WIDER_VALUE,
    "--color": VALUE,
    "--config": _CONFIG,
    "-c": _CONFIG,
    "--cyber-access-program": WIDER_VALUE,
    "--dangerously-bypass-approvals-and-sandbox": WIDER_FLAG,
    "--dangerously-bypass-hook-trust": WIDER_FLAG,
    "--disable": WIDER_VALUE,
    "--enable": WIDER_VALUE,
    "--full-auto": WIDER_FLAG,
    "--ignore-rules": WIDER_FLAG,
    "--ignore-user-config": WIDER_FLAG,
    "--image": VALUES,
    "-i": VALUES,
    "--local-provider": WIDER_VALUE,
    "--oss": WIDER_FLAG,
    "--output-last-message": WIDER_VALUE,
    "-o": WIDER_VALUE,
    "--output-schema": VALUE,
    "--profile": WIDER_VALUE,
    "-p": WIDER_VALUE,
    "--search": WIDER_FLAG,
    "--strict-config": FLAG,
    "--thread-source": WIDER_VALUE,
    "--yolo": WIDER_FLAG,
}
#: variables that a surrounding Codex sets for its tools
_OF_THE_CALLER: Final = ("CODEX_CI", "CODEX_SESSION_ID", "CODEX_THREAD_ID", "CODEX_TOOL_CALL_ID")


class Codex(BaseProvider):
    name = "codex"
    rules_file = RULES / "codex.toml"
    probes = (("--version",), ("exec", "--help"))
    arguments = ArgumentRules(_OWNED, _KNOWN)

    def read_probe(self, outputs: tuple[str, ...]) -> Probe:
        version_text, help_text = outputs
        distribution, version = read_version(version_text)
        return Probe(
            version,
            distribution,
            Capabilities(
                can_resume=offers(help_text, "resume"),
                can_fork=offers(help_text, "fork"),
                append_only_transcript=True,
            ),
        )

    def home(self, environ: Mapping[str, str]) -> Path:
        return home_folder(environ, "CODEX_HOME", ".codex")

    def check(self, rights: Rights, *, allow_wider: bool = False) -> None:
        if rights.permission_mode is not None and rights.permission_mode not in _SANDBOXES:
            modes = ", ".join(_SANDBOXES)
            raise InvalidInput(
                "permission mode", f"{rights.permission_mode[:40]!r} is not a sandbox of Codex ({modes})"
            )
        if rights.allowed_tools:
            raise InvalidInput("allowed tools", "Codex has no list of them; use a permission mode")
        super().check(rights, allow_wider=allow_wider)

    def command(self, spec: LaunchSpec) -> Command:
        # options of `exec` come before its own commands: `exec resume` knows neither --sandbox nor --add-dir.
        # The extra arguments come first: a list among them ends at the next option.
        options = (*spec.rights.extra_args, "--json", "--skip-git-repo-check", *_options(spec))
        return Command(
            (spec.binary, "exec", *options, *_session(spec), "-"), spec.prompt, without=_OF_THE_CALLER
        )

    def interactive(self, spec: LaunchSpec) -> Command:
        argv = (spec.binary, *spec.rights.extra_args, *_options(spec), *_session(spec))
        return Command(argv, without=_OF_THE_CALLER)

    def stream(self, spec: LaunchSpec) -> Stream:
        return CodexStream()

    def archive(self, home: Path) -> Archive:
        return CodexArchive(home)


def _session(spec: LaunchSpec) -> tuple[str, ...]:
    match spec.decision:
        case Resume(provider_session_id):
            return ("resume", provider_session_id)
        case Fork(provider_session_id):
            return ("fork", provider_session_id)
        case Fresh():
            return ()


def _options(spec: LaunchSpec) -> tuple[str, ...]:
    mode = spec.rights.permission_mode
    return (
        *((f"--model={spec.model}",) if spec.model is not None else ()),
        *((f"--sandbox={mode}",) if mode is not None else ()),
        *(f"--add-dir={directory}" for directory in sorted(spec.rights.extra_dirs)),
    )


# --- what `codex exec --json` prints ---

#: the type of an item that runs something -> the fields that say what it was asked to do
_TOOLS: Final = {
    "command_execution": ("command",),
    "file_change": ("changes",),
    "mcp_tool_call": ("server", "tool", "arguments"),
    "web_search": ("query",),
    "collab_tool_call": ("tool", "prompt"),
}
_FAILED: Final = ("failed", "declined")
#: Codex continues by itself after this message
_RETRY: Final = "Reconnecting..."
_STATUS: Final = re.compile(r"unexpected status (\d{3})\b")


class CodexStream:
    def __init__(self) -> None:
        self._called: set[str] = set()
        self._has_said = False

    def read(self, line: Mapping[str, Json]) -> Iterator[AgentEvent]:
        match line.get("type"):
            case "thread.started":
                if thread_id := as_text(line.get("thread_id")):
                    yield Named(ProviderSessionId(thread_id))
            case "item.started":
                yield from self._call(as_object(line.get("item")))
            case "item.completed":
                yield from self._complete(as_object(line.get("item")))
            case "turn.completed":
                # Codex counts since the thread began, and a fork inherits the count
                yield Spent(UsageReport(_total_usage(as_object(line.get("usage"))), cumulative=True))
                yield Ended(ok=True)
            case "turn.failed":
                yield _failure(as_text(as_object(line.get("error")).get("message")))
            case "error":
                message = as_text(line.get("message"))
                yield Noted(message) if message.startswith(_RETRY) else _failure(message)

    def _complete(self, item: Mapping[str, Json]) -> Iterator[AgentEvent]:
        match item.get("type"):
            case "agent_message":
                text = as_text(item.get("text"))
                yield Said(f"\n\n{text}" if self._has_said else text)
                self._has_said = True
            case "error":  # a warning: the run continues
                yield Noted(as_text(item.get("message")))
            case _:
                yield from self._call(item)
                yield from _returned(item)

    def _call(self, item: Mapping[str, Json]) -> Iterator[AgentEvent]:
        """Some items are reported only when they have ended."""
        for call in _called(item):
            if call.call_id not in self._called:
                self._called.add(call.call_id)
                yield call


def _called(item: Mapping[str, Json]) -> Iterator[Called]:
    """The call that an item stands for, if the item runs something."""
    kind = as_text(item.get("type"))
    if kind in _TOOLS:
        yield Called(
            as_text(item.get("id")), kind, {name: item[name] for name in _TOOLS[kind] if name in item}
        )


def _failure(message: str) -> Ended:
    """Codex names the HTTP status of an error, except 400: then the message is the answer of the service."""
    named = _STATUS.match(message)
    status = int(named[1]) if named else 400 if _is_answer_of_a_service(message) else None
    return Ended(ok=False, error=message, status=status)


def _is_answer_of_a_service(message: str) -> bool:
    try:
        answer = json.loads(message)
    except (ValueError, RecursionError):
        return False
    return isinstance(answer, dict) and ("error" in answer or "detail" in answer)


def _returned(item: Mapping[str, Json]) -> Iterator[Returned]:
    """The result of such an item, once it is completed."""
    if as_text(item.get("type")) in _TOOLS:
        is_error = item.get("status") in _FAILED or item.get("error") is not None
        yield Returned(as_text(item.get("id")), _output(item), is_error)


def _output(item: Mapping[str, Json]) -> str:
    match item.get("type"):
        case "command_execution":
            return as_text(item.get("aggregated_output"))
        case "file_change":
            changes = map(as_object, as_list(item.get("changes")))
            return "\n".join(f"{as_text(c.get('kind'))} {as_text(c.get('path'))}" for c in changes)
        case _:
            found = item.get("error") or item.get("result")
            return "" if found is None else json.dumps(found, ensure_ascii=False)


def _total_usage(usage: Mapping[str, Json]) -> Usage:
    """The input tokens include the cached ones."""
    kinds = ("input_tokens", "cached_input_tokens", "output_tokens")
    return Usage(*(as_count(usage.get(kind)) for kind in kinds))


# --- the sessions that Codex keeps ---

_ACTIVE: Final = "sessions/*/*/*"
_ARCHIVED: Final = "archived_sessions"
_COMPRESSED: Final = ".zst"
_NAMES: Final = "session_index.jsonl"
_ID_LENGTH: Final = 36
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
#: calls that the stream does not report as calls: a plan, and input to a command that runs
_UNREPORTED: Final = ("update_plan", "write_stdin")
#: the output of a command that still runs begins with this; the item is completed when the command has ended
_RUNS_ON: Final = "Process running with session ID"


class CodexArchive(AppendOnlyArchive):
    """Each session is one rollout file. The file of a fork points into its parent's."""

    renames_calls = True

    def __init__(self, home: Path) -> None:
        self._home = home

    def find(self, session_id: ProviderSessionId, work_dir: str | None) -> str | None:
        """Only sessions that Codex itself would resume: not archived ones, and a fork only if its whole ancestry is there."""
        file = self._rollout(session_id, _ACTIVE)
        return str(file) if file is not None and self._is_whole(file) else None

    def sessions(self, beginning: str = "") -> Iterator[StoredSession]:
        """Of those that Codex itself lists. It keeps the names that people gave to sessions in a file of their own."""
        names = {
            as_text(line.get("id")): as_text(line.get("thread_name"))
            for line in read_lines(self._home / _NAMES)
        }
        try:
            files = list(self._home.glob(f"{_ACTIVE}/rollout-*.jsonl"))
        except OSError:
            return
        for file in files:
            session_id = file.stem[-_ID_LENGTH:]
            if not session_id.startswith(beginning):
                continue
            meta = as_object(next(read_lines(file), {}).get("payload"))
            if meta.get("id") == session_id and "subagent" not in as_object(meta.get("source")):
                work_dir, title = as_text(meta.get("cwd")), names.get(session_id)
                yield StoredSession(ProviderSessionId(session_id), str(file), work_dir or None, title or None)

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
                turn = _Turn(as_text(event.get("turn_id")), as_instant(line.get("timestamp")))
            elif turn is not None and event:
                turn.add(event)
                turn.ended_at = as_instant(line.get("timestamp"))
        if turn is not None and turn.prompts:
            yield turn.archived

    def calls(self, path: str, session_id: ProviderSessionId) -> Iterator[tuple[str, Called | Returned]]:
        turn, calls = "", _Calls()
        for line in self._history(Path(path)):
            event = _event(line)
            if event.get("type") == "task_started":
                yield from ((turn, found) for found in calls.in_order())
                turn, calls = as_text(event.get("turn_id")), _Calls()
            else:
                calls.add(line)
        yield from ((turn, found) for found in calls.in_order())

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
        return _total_usage(counted)

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
    began_at: Instant | None
    ended_at: Instant | None = None
    prompts: list[str] = field(default_factory=list)  #: more than one if a person wrote while it ran
    _answers: list[str] = field(default_factory=list)
    _is_complete: bool = False

    @property
    def archived(self) -> ArchivedTurn:
        response = "\n\n".join(self._answers) or None
        return ArchivedTurn(
            self.key, "\n\n".join(self.prompts), response, self._is_complete, calls=None,
            began_at=self.began_at, ended_at=self.ended_at,
        )  # fmt: skip

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
        event = _event(line)
        response = as_object(line.get("payload")) if line.get("type") == "response_item" else {}
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
        for call in _called(item):
            before = self._called.get(call.call_id)
            if before is None or before.tool != call.tool:  # a command may turn out to be a change of files
                self._called[call.call_id] = call
        self._returned |= {result.call_id: result for result in _returned(item)}


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


def _base(line: Mapping[str, Json]) -> Mapping[str, Json]:
    """Where the history of a fork is; its first line says so."""
    return as_object(as_object(line.get("payload")).get("history_base"))

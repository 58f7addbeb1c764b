"""Owns what Holdfast knows about its own scripted agent."""

from __future__ import annotations

import re
import sys
import sysconfig
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from holdfast.domain.decisions import Fork, Fresh, Resume
from holdfast.domain.events import AgentEvent, Called, Deferred, Denied, Ended, Named, Returned, Said, Spent
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import Rights, TranscriptMark
from holdfast.domain.records import replace
from holdfast.domain.redaction import Json
from holdfast.domain.runtimes import Capabilities
from holdfast.domain.usage import ContextUse, Usage, UsageReport
from holdfast.errors import InvalidInput
from holdfast.processes.process import Command
from holdfast.providers.arguments import FLAG, ArgumentRules, Instead
from holdfast.providers.contract import (
    ArchivedTurn,
    BaseProvider,
    LaunchSpec,
    Probe,
    SessionFile,
    StoredSession,
    below,
    with_folder_of,
)
from holdfast.providers.failure_rules import RULES
from holdfast.providers.loose_json import as_amount, as_count, as_object, as_text
from holdfast.providers.report import Draft
from holdfast.providers.scripted_agent.memory import agent_home, session_path
from holdfast.providers.scripted_agent.turn import DENIED, PERMISSION_MODES
from holdfast.providers.session_files import (
    AppendOnlyArchive,
    parse_line,
    read_lines,
)

_PROGRAM = "holdfast-scripted-agent"
#: with these, Python would import modules from the work directory
_MISLEADING = ("PYTHONHOME", "PYTHONPATH")
_VERSION = re.compile(rf"{_PROGRAM} (\d+(?:\.\d+)*)\s*\Z")


class Scripted(BaseProvider):
    name = "scripted"
    rules_file = RULES / "scripted.toml"
    modes = PERMISSION_MODES
    arguments = ArgumentRules(
        {
            "--session-id": Instead.SESSION_ID,
            "--resume": Instead.RESUME,
            "--fork": Instead.FORK,
            "--model": Instead.MODEL,
            "--permission-mode": Instead.MODE,
            "--allow-tool": Instead.TOOLS,
            "--add-dir": Instead.FOLDERS,
            "--interactive": Instead.OPEN,
            "--gate": "use holdfast run --approve-tools PATTERN",
            **dict.fromkeys(("--help", "-h", "--version"), Instead.NOT_A_TURN),
        },
        {"--no-lock": FLAG},
    )

    @property
    def binaries(self) -> tuple[str, ...]:
        """The agent is installed with Holdfast in the same environment, which need not be on PATH."""
        folders = (Path(sys.executable).parent, Path(sysconfig.get_path("scripts")))
        return (*dict.fromkeys(str(folder / _PROGRAM) for folder in folders), _PROGRAM)

    def read_probe(self, outputs: tuple[str, ...]) -> Probe:
        version, usage = (*outputs, "", "")[:2]
        found = _VERSION.match(version)
        if found is None:
            return Probe(None, "unknown", Capabilities(can_resume=False))
        return Probe(
            found[1],
            _PROGRAM,
            Capabilities(
                can_resume="--resume" in usage,
                can_fork="--fork" in usage,
                chooses_id="--session-id" in usage,
                append_only_transcript=True,
                reports_context=True,
                can_defer="--gate" in usage,
            ),
        )

    def home(self, environ: Mapping[str, str]) -> Path:
        return agent_home(environ)

    def home_variables(self, home: Path) -> Mapping[str, str]:
        return {"SCRIPTED_HOME": str(home)}

    def check(self, rights: Rights, *, allow_wider: bool = False) -> None:
        self.arguments.check(rights.extra_args, allow_wider=allow_wider)
        if rights.permission_mode not in (None, *PERMISSION_MODES):
            raise InvalidInput(
                "permission_mode", f"{rights.permission_mode!r} is not one of {', '.join(PERMISSION_MODES)}"
            )

    def allowing(self, rights: Rights, call: Called, work_dir: str) -> Rights:
        if rights.permission_mode == "plan":
            return replace(rights, permission_mode="default")
        if rights.allowed_tools:
            rights = replace(rights, allowed_tools=rights.allowed_tools | {call.tool})
        return with_folder_of(rights, as_text(call.arguments.get("path")), work_dir)

    def mint_id(self, decision: Fork | Fresh) -> ProviderSessionId:
        return ProviderSessionId(str(uuid.uuid4()))

    def command(self, spec: LaunchSpec) -> Command:
        return Command(_arguments(spec), spec.prompt, (("SCRIPTED_HOME", spec.home),), _MISLEADING)

    def interactive(self, spec: LaunchSpec) -> Command:
        environ = (("SCRIPTED_HOME", spec.home),)
        return Command((*_arguments(spec), "--interactive"), environ=environ, without=_MISLEADING)

    def stream(self, spec: LaunchSpec) -> ScriptedStream:
        return ScriptedStream()

    def archive(self, home: Path) -> ScriptedArchive:
        return ScriptedArchive(home)


def _arguments(spec: LaunchSpec) -> tuple[str, ...]:
    rights = spec.rights
    model = ("--model", spec.model) if spec.model else ()
    mode = ("--permission-mode", rights.permission_mode) if rights.permission_mode else ()
    tools = (f"--allow-tool={tool}" for tool in sorted(rights.allowed_tools))
    folders = (f"--add-dir={folder}" for folder in sorted(rights.extra_dirs))
    gate = (f"--gate={spec.gate.command}",) if spec.gate is not None else ()
    return (spec.binary, *_session(spec), *model, *mode, *tools, *folders, *gate, *rights.extra_args)


def _session(spec: LaunchSpec) -> tuple[str, ...]:
    new = ("--session-id", spec.new_id) if spec.new_id is not None else ()
    match spec.decision:
        case Resume(provider_session_id=session_id):
            return ("--resume", session_id)
        case Fork(provider_session_id=session_id):
            return ("--resume", session_id, "--fork", *new)
        case Fresh():
            return new


class ScriptedStream:
    def __init__(self) -> None:
        self._tools: dict[str, str] = {}  #: by the id of a call

    def read(self, line: Mapping[str, Json]) -> Iterable[AgentEvent]:
        match line:
            case {"type": "session", "session_id": str(session_id)} if session_id:
                yield Named(ProviderSessionId(session_id))
            case {"type": "text", "text": str(text)}:
                yield Said(text)
            case {"type": "writing", "text": str(text)}:
                yield Draft().add(text)
            case {"type": "tool_call", "id": str(call_id), "name": str(tool), "input": dict(arguments)}:
                self._tools[call_id] = tool
                yield Called(call_id, tool, arguments)
            case {
                "type": "tool_result",
                "id": str(call_id),
                "output": str(output),
                "is_error": bool(is_error),
            }:
                if is_error and output.startswith(DENIED):
                    yield Denied(call_id, self._tools.get(call_id, ""), output.removeprefix(DENIED))
                yield Returned(call_id, output, is_error)
            case {"type": "deferred", "id": str(call_id), "name": str(tool), "input": dict(arguments)}:
                yield Deferred(call_id, tool, arguments)
            case {"type": "usage"}:
                yield Spent(_usage(line))
            case {"type": "end", "ok": bool(ok)}:
                yield _end(ok, line)


def _usage(line: Mapping[str, Json]) -> UsageReport:
    usage = Usage(
        as_count(line.get("input_tokens")),
        as_count(line.get("cached_input_tokens")),
        as_count(line.get("output_tokens")),
        as_amount(line.get("cost_usd")),
    )
    context = as_object(line.get("context"))
    use = ContextUse(as_count(context.get("tokens")), as_count(context.get("window"))) if context else None
    return UsageReport(usage, context=use)


def _end(ok: bool, line: Mapping[str, Json]) -> Ended:
    status = as_count(line.get("status")) or None
    return Ended(ok, error=as_text(line.get("error")), status=status, code=as_text(line.get("code")))


class ScriptedArchive(AppendOnlyArchive):
    def __init__(self, home: Path) -> None:
        self._home = home

    def find(self, session_id: ProviderSessionId, work_dir: str | None) -> str | None:
        path = session_path(self._home, session_id)
        try:
            return str(path) if path is not None and path.is_file() else None
        except OSError:
            return None

    def sessions(self, beginning: str = "") -> Iterator[StoredSession]:
        try:
            files = list((self._home / "sessions").glob("*.jsonl"))
        except OSError:
            return
        for file in files:
            if file.name.startswith(beginning):
                yield StoredSession(ProviderSessionId(file.stem), str(file))

    def turns(
        self, path: str, session_id: ProviderSessionId, after: TranscriptMark | None = None
    ) -> Iterator[ArchivedTurn]:
        """Two programs may have written at the same time: each answer names the prompt that it answers."""
        waiting: dict[str, ArchivedTurn] = {}
        for line in read_lines(Path(path), 0 if after is None else after.size):
            match line:
                case {"type": "user", "id": str(key), "text": str(prompt)}:
                    waiting[key] = ArchivedTurn(key, prompt, None, complete=False)
                case {
                    "type": "assistant",
                    "answers": str(key),
                    "text": str(text),
                    "complete": bool(complete),
                }:
                    if key in waiting:
                        waiting[key] = ArchivedTurn(key, waiting[key].prompt, text, complete)
            while waiting and (first := next(iter(waiting.values()))).response is not None:
                yield waiting.pop(first.key)
        yield from waiting.values()

    def calls(self, path: str, session_id: ProviderSessionId) -> Iterator[tuple[str, Called | Returned]]:
        """The agent saves calls only if it is asked to, or if somebody may have to approve them."""
        turn = ""
        for line in read_lines(Path(path)):
            match line:
                case {"type": "user", "id": str(begun)}:
                    turn = begun
                case {"type": "call", "message": {"content": [dict(block)]}}:
                    name, given = as_text(block.get("name")), as_object(block.get("input"))
                    yield turn, Called(as_text(block.get("id")), name, given)
                case {"type": "result", "id": str(call_id), "output": str(output)}:
                    yield turn, Returned(call_id, output, line.get("is_error") is True)

    def files(self, path: str, session_id: ProviderSessionId) -> Iterator[SessionFile]:
        yield below(self._home, Path(path), is_main=True)

    def is_own_name(self, name: str, session_id: ProviderSessionId) -> bool:
        return name == f"sessions/{session_id}.jsonl" and session_path(self._home, session_id) is not None

    def place(self, name: str, session_id: ProviderSessionId, work_dir: str | None) -> str | None:
        return str(self._home / name)

    def is_prompt(self, line: bytes) -> bool:
        return b'"user"' in line and (parse_line(line) or {}).get("type") == "user"

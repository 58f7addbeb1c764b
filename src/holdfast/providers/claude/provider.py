"""Owns Claude Code: how it is started, what it prints, and the sessions that it keeps."""

from __future__ import annotations

import os
import re
import uuid
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Final

from holdfast.clock import Instant
from holdfast.domain.decisions import Fork, Fresh, Resume
from holdfast.domain.events import (
    AgentEvent,
    Called,
    Deferred,
    Denied,
    Ended,
    Named,
    Noted,
    Returned,
    Said,
    Spent,
    Ungated,
)
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import Rights, TranscriptMark
from holdfast.domain.records import replace
from holdfast.domain.redaction import Json
from holdfast.domain.runtimes import Capabilities
from holdfast.domain.usage import NO_USAGE, ContextUse, Usage, UsageReport
from holdfast.processes.owners import ON_LINUX, process_start
from holdfast.processes.process import Command
from holdfast.providers.arguments import (
    FLAG,
    MAYBE,
    VALUE,
    VALUES,
    WIDER_FLAG,
    WIDER_VALUE,
    WIDER_VALUES,
    ArgumentRules,
    Instead,
    Option,
)
from holdfast.providers.claude.tool_gate import (
    HOOKS_OFF,
    NOT_WITH_A_GATE,
    find_foreign_hooks,
    hook_settings,
    knows_defer,
)
from holdfast.providers.claude.transcript import SYNTHETIC
from holdfast.providers.contract import (
    Archive,
    ArchivedTurn,
    BaseProvider,
    ForeignHook,
    LaunchSpec,
    Probe,
    ReadTurn,
    SessionFacts,
    SessionFile,
    SessionReading,
    Source,
    StoredSession,
    Stream,
    below,
    files_in,
    home_folder,
    look_at,
    offers,
    read_version,
    with_folder_of,
)
from holdfast.providers.failure_rules import RULES
from holdfast.providers.loose_json import (
    as_amount,
    as_count,
    as_instant,
    as_list,
    as_object,
    as_text,
    joined_text,
)
from holdfast.providers.report import Draft
from holdfast.providers.session_files import (
    LONGEST_PROMPT,
    AppendOnlyArchive,
    JsonLines,
    OnePassArchive,
    edge_lines,
    entries,
    longest_line,
    parse_line,
    passed_over,
    read_lines,
    read_object,
)

_PARTIAL: Final = "--include-partial-messages"
_OWNED: Final = {
    "--resume": Instead.RESUME,
    "-r": Instead.RESUME,
    "--continue": Instead.RESUME,
    "-c": Instead.RESUME,
    "--from-pr": Instead.RESUME,
    "--teleport": Instead.RESUME,
    "--resume-session-at": Instead.FORK_AT,
    "--fork-session": Instead.FORK,
    "--session-id": Instead.SESSION_ID,
    "--no-session-persistence": Instead.SAVED,
    "--print": Instead.PROMPT,
    "-p": Instead.PROMPT,
    "--output-format": Instead.OUTPUT,
    "--input-format": Instead.OUTPUT,
    "--replay-user-messages": Instead.OUTPUT,
    "--include-hook-events": Instead.OUTPUT,
    _PARTIAL: Instead.OUTPUT,
    "--forward-subagent-text": Instead.OUTPUT,
    "--prompt-suggestions": Instead.OUTPUT,
    "--verbose": Instead.OUTPUT,
    "--model": Instead.MODEL,
    "--permission-mode": Instead.MODE,
    "--allowedTools": Instead.TOOLS,
    "--allowed-tools": Instead.TOOLS,
    "--add-dir": Instead.FOLDERS,
    "--worktree": Instead.WORK_DIR,
    "-w": Instead.WORK_DIR,
    "--tmux": Instead.FOREGROUND,
    "--bg": Instead.FOREGROUND,
    "--background": Instead.FOREGROUND,
    "--cloud": Instead.FOREGROUND,
    "--desktop": Instead.FOREGROUND,
    "--environment": Instead.FOREGROUND,
    "--remote-control": Instead.FOREGROUND,
    "--help": Instead.NOT_A_TURN,
    "-h": Instead.NOT_A_TURN,
    "--version": Instead.NOT_A_TURN,
    "-v": Instead.NOT_A_TURN,
}
#: as ``claude --help`` has them; an agent, a plugin, a settings file or a server of tools brings rights of its own
_KNOWN: Final[Mapping[str, Option]] = {
    "--agent": WIDER_VALUE,
    "--agents": WIDER_VALUE,
    "--allow-dangerously-skip-permissions": WIDER_FLAG,
    "--append-system-prompt": VALUE,
    "--append-system-prompt-file": WIDER_VALUE,
    "--autocompact": VALUE,
    "--ax-screen-reader": FLAG,
    "--bare": WIDER_FLAG,
    "--betas": WIDER_VALUES,
    "--brief": WIDER_FLAG,
    "--chrome": WIDER_FLAG,
    "--dangerously-skip-permissions": WIDER_FLAG,
    "--debug": MAYBE,
    "-d": MAYBE,
    "--debug-file": WIDER_VALUE,
    "--disable-slash-commands": FLAG,
    "--disallowedTools": VALUES,
    "--disallowed-tools": VALUES,
    "--effort": VALUE,
    "--exclude-dynamic-system-prompt-sections": FLAG,
    "--fallback-model": VALUE,
    "--file": WIDER_VALUES,
    "--ide": WIDER_FLAG,
    "--json-schema": VALUE,
    "--max-budget-usd": VALUE,
    "--max-thinking-tokens": VALUE,
    "--max-turns": VALUE,
    "--mcp-config": WIDER_VALUES,
    "--name": VALUE,
    "-n": VALUE,
    "--no-chrome": FLAG,
    "--permission-prompt-tool": WIDER_VALUE,
    "--permission-prompts": WIDER_VALUE,
    "--plugin-dir": WIDER_VALUE,
    "--plugin-url": WIDER_VALUE,
    "--remote-control-session-name-prefix": WIDER_VALUE,
    "--restricted": WIDER_FLAG,  # also ignores settings that may forbid more
    "--safe-mode": WIDER_FLAG,
    "--setting-sources": WIDER_VALUE,
    "--settings": WIDER_VALUE,
    "--strict-mcp-config": FLAG,
    "--system-prompt": VALUE,
    "--system-prompt-file": WIDER_VALUE,
    "--system-prompt-snapshot": VALUE,
    "--tools": VALUES,
}
_RULES: Final = ArgumentRules(_OWNED, _KNOWN)
_WITH_A_GATE: Final = ArgumentRules({**_OWNED, **NOT_WITH_A_GATE}, _KNOWN)
#: variables that a surrounding Claude Code sets for its children: with them the agent would behave as such a child
_OF_THE_CALLER: Final = (
    "AI_AGENT",
    "CLAUDECODE",
    "CLAUDE_CODE_CHILD_SESSION",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_CODE_EXECPATH",
    "CLAUDE_CODE_MESSAGING_SOCKET",
    "CLAUDE_CODE_MESSAGING_TOKEN",
    "CLAUDE_CODE_SESSION_ATTENDED",
    "CLAUDE_CODE_SESSION_ID",
    "CLAUDE_CODE_SSE_PORT",
    "CLAUDE_EFFORT",
    "CLAUDE_PID",
    "CLAUDE_PROJECT_DIR",
)


_EDITING: Final = "acceptEdits"
#: the tools that this mode is about
_EDITS: Final = frozenset({"Edit", "MultiEdit", "NotebookEdit", "Write"})
_COMPOUND: Final = re.compile(r"[;&|<>$`(){}\n\"'\\=]")


class Claude(BaseProvider):
    name = "claude"
    rules_file = RULES / "claude.toml"
    tested = "2.1.325"
    install = "npm install -g @anthropic-ai/claude-code"
    login = "start claude and type /login, or set ANTHROPIC_API_KEY"
    arguments = _RULES
    modes = ("acceptEdits", "auto", "bypassPermissions", "dontAsk", "manual", "plan")

    def read_probe(self, outputs: tuple[str, ...]) -> Probe:
        version_text, help_text = outputs
        distribution, version = read_version(version_text)
        can_resume = offers(help_text, "--resume")
        return Probe(
            version,
            distribution,
            Capabilities(
                can_resume=can_resume,
                can_fork=can_resume and offers(help_text, "--fork-session"),
                chooses_id=offers(help_text, "--session-id"),
                append_only_transcript=True,
                reports_context=True,
                can_defer=knows_defer(distribution, version),
                partial_text=offers(help_text, _PARTIAL),
            ),
        )

    def home(self, environ: Mapping[str, str]) -> Path:
        return home_folder(environ, "CLAUDE_CONFIG_DIR", ".claude")

    def home_variables(self, home: Path) -> Mapping[str, str]:
        return {"CLAUDE_CONFIG_DIR": str(home)}

    def check(self, rights: Rights, *, allow_wider: bool = False) -> None:
        rules = _WITH_A_GATE if rights.approve_tools else _RULES
        rules.check(rights.extra_args, allow_wider=allow_wider)

    def allowing(self, rights: Rights, call: Called, work_dir: str) -> Rights:
        """Of a simple command only its program is allowed, with any arguments."""
        if call.tool in _EDITS:
            path = as_text(call.arguments.get("file_path")) or as_text(call.arguments.get("notebook_path"))
            return with_folder_of(replace(rights, permission_mode=_EDITING), path, work_dir)
        tool, command = call.tool, as_text(call.arguments.get("command"))
        if tool == "Bash" and command and not _COMPOUND.search(command):
            tool = f"Bash({command.split()[0]} *)"
        mode = _EDITING if rights.permission_mode == "plan" else rights.permission_mode
        return replace(rights, permission_mode=mode, allowed_tools=rights.allowed_tools | {tool})

    def foreign_hooks(self, home: Path, work_dir: Path, rights: Rights) -> tuple[ForeignHook, ...]:
        return find_foreign_hooks(home, work_dir, rights)

    def mint_id(self, decision: Fork | Fresh) -> ProviderSessionId:
        return ProviderSessionId(str(uuid.uuid4()))

    def command(self, spec: LaunchSpec) -> Command:
        headless = ("-p", "--output-format", "stream-json", "--verbose")
        partial = (_PARTIAL,) if spec.partial_text else ()
        argv = (spec.binary, *headless, *partial, *_session(spec), *_options(spec))
        return Command(argv, stdin=spec.prompt, without=_without(spec))

    def interactive(self, spec: LaunchSpec) -> Command:
        return Command((spec.binary, *_session(spec), *_options(spec)), without=_without(spec))

    def stream(self, spec: LaunchSpec) -> Stream:
        return ClaudeStream(spec)

    def archive(self, home: Path) -> Archive:
        return ClaudeArchive(home)


def _session(spec: LaunchSpec) -> tuple[str, ...]:
    new = ("--session-id", spec.new_id) if spec.new_id is not None else ()
    match spec.decision:
        case Resume(provider_session_id):
            return ("--resume", _named(spec, provider_session_id))
        case Fork(provider_session_id):
            return ("--resume", _named(spec, provider_session_id), "--fork-session", *new)
        case Fresh():
            return new


def _named(spec: LaunchSpec, session_id: ProviderSessionId) -> str:
    """The id, or the path of a file in our own folder, to which Claude adds in place."""
    aside = Path(spec.home, _ASIDE, f"{session_id}.jsonl")
    return str(aside) if aside.is_file() else session_id


def _options(spec: LaunchSpec) -> tuple[str, ...]:
    """Each value is tied to its option: several options take a list and would swallow what follows."""
    rights = spec.rights
    return (
        *((f"--model={spec.model}",) if spec.model is not None else ()),
        *((f"--permission-mode={rights.permission_mode}",) if rights.permission_mode is not None else ()),
        *(f"--allowedTools={tool}" for tool in sorted(rights.allowed_tools)),
        *(f"--add-dir={directory}" for directory in sorted(rights.extra_dirs)),
        *((f"--settings={hook_settings(spec.gate)}",) if spec.gate is not None else ()),
        # last: an option that misses its value would take the next argument for it
        *rights.extra_args,
    )


def _without(spec: LaunchSpec) -> tuple[str, ...]:
    return _OF_THE_CALLER if spec.gate is None else (*_OF_THE_CALLER, *HOOKS_OFF)


# --- what `claude -p --output-format stream-json` prints ---

_SYSTEM_PROMPT: Final = ("--system-prompt", "--append-system-prompt")
_SNAPSHOT: Final = "--system-prompt-snapshot"
_NO_HOOKS_RUN: Final = (
    "the agent does not run the hook that makes tool calls wait for approval: hooks are switched off, perhaps by "
    "managed settings; it was ended as soon as it had begun"
)
#: some versions name the HTTP status only in their text
_STATUS: Final = re.compile(r"\AAPI Error: (\d{3})\b")
_NOT_COMPARED: Final = "what the agent ran cannot be compared with what was approved: it was ended"


class ClaudeStream:
    """One run. It may have several results: a subagent in the background leads to another answer."""

    def __init__(self, spec: LaunchSpec) -> None:
        self._spec = spec
        self._session_id: str | None = None
        self._model: str | None = None  #: of the main agent's last call
        self._prompt_tokens = 0  #: of the same call
        self._message: str | None = None  #: id of the message that was last said
        self._begun = ""  #: id of the message that is being written
        self._draft = Draft()
        self._refusal: str | None = None  #: the CLI's name for the error it wrote last
        self._resets_at = 0
        self._denied: set[str] = set()
        self._is_gated = spec.gate is None  #: no gate, or its hooks have shown that they run

    def read(self, line: Mapping[str, Json]) -> Iterator[AgentEvent]:
        yield from self._named(as_text(line.get("session_id")))
        if line.get("isReplay") is True:
            return
        match line.get("type"):
            # the first of these comes when the session's hooks have run, and before the model is asked
            case "command_lifecycle":
                yield from self._gated()
            case "system":
                yield from self._system(line)
            case "stream_event" if line.get("parent_tool_use_id") is None:
                yield from self._writing(as_object(line.get("event")))
            case "assistant":
                yield from self._assistant(line)
            case "user":
                yield from self._results(as_object(line.get("message")))
            case "rate_limit_event":
                self._limit(as_object(line.get("rate_limit_info")))
            case "result":
                yield from self._compared(None)
                yield from self._end(line)

    def _named(self, session_id: str) -> Iterator[AgentEvent]:
        if session_id and session_id != self._session_id:
            if self._session_id is None and _ignores_system_prompt(self._spec):
                yield Noted(
                    "Claude keeps the system prompt this session began with; "
                    f"add {_SNAPSHOT} off for another one to count"
                )
            self._session_id = session_id
            yield Named(ProviderSessionId(session_id))

    def _system(self, line: Mapping[str, Json]) -> Iterator[AgentEvent]:
        match line.get("subtype"):
            case "init":
                yield from self._gated()
            case "api_retry":
                why = as_text(line.get("error")) or "error"
                status = as_count(line.get("error_status"))
                attempt, most = as_count(line.get("attempt")), as_count(line.get("max_retries"))
                yield Noted(f"the model's service failed ({why}, {status}): retry {attempt} of {most}")
            case "model_fallback":
                models = [as_text(line.get(key)) for key in ("original_model", "fallback_model", "trigger")]
                yield Noted("{} was replaced by {} ({})".format(*models))
            case "permission_denied":
                yield from self._denial(line, as_text(line.get("message")))
            case "compact_boundary":
                metadata = as_object(line.get("compact_metadata"))
                before, after = as_count(metadata.get("pre_tokens")), as_count(metadata.get("post_tokens"))
                yield Noted(f"Claude compacted its context from {before} to {after} tokens")

    def _results(self, message: Mapping[str, Json]) -> Iterator[AgentEvent]:
        for result in _calls_in(message):
            if isinstance(result, Returned):
                yield result
                yield from self._compared(result)

    def _gated(self) -> Iterator[AgentEvent]:
        if not self._is_gated:
            assert self._spec.gate is not None
            self._is_gated = True
            if not self._spec.gate.armed.exists():
                yield Ungated(_NO_HOOKS_RUN)

    def _compared(self, returned: Returned | None) -> Iterator[AgentEvent]:
        """After each result, and at the end: checks that the call that ran is the call that was let through."""
        gate = self._spec.gate
        if gate is None or gate.done is None:
            return
        if gate.changed.exists():
            yield Ungated(gate.changed.read_text(errors="replace") or _NOT_COMPARED)
        elif not gate.armed.exists():
            yield Ungated(_NOT_COMPARED)
        elif gate.approved is not None and returned is not None and not returned.is_error:
            call_id, executed = gate.approved
            if returned.call_id == call_id and not executed.exists():
                yield Ungated(_NOT_COMPARED)

    def _assistant(self, line: Mapping[str, Json]) -> Iterator[AgentEvent]:
        message = as_object(line.get("message"))
        if message.get("model") == SYNTHETIC:
            self._refusal = as_text(line.get("error"))
            return
        is_subagent = line.get("parent_tool_use_id") is not None
        if not is_subagent:
            self._refusal = None
            self._count(message)
        for block in map(as_object, as_list(message.get("content"))):
            match block.get("type"):
                case "text" if not is_subagent:
                    yield self._say(as_text(message.get("id")), as_text(block.get("text")))
                case "tool_use":
                    yield _called(block)

    def _say(self, message_id: str, text: str) -> Said:
        before = self._before(message_id)
        self._message = message_id
        return Said(before + text)

    def _before(self, message_id: str) -> str:
        """What separates a message from the one before it."""
        return "" if self._message in (None, message_id) else "\n\n"

    def _writing(self, event: Mapping[str, Json]) -> Iterator[AgentEvent]:
        """A message as it is written; the whole of each of its blocks follows as a line of its own."""
        match event.get("type"):
            case "message_start":
                self._begun = as_text(as_object(event.get("message")).get("id"))
            case "content_block_start":
                self._draft.begin(self._before(self._begun))
            case "content_block_delta":
                delta = as_object(event.get("delta"))
                if delta.get("type") == "text_delta":
                    yield self._draft.add(as_text(delta.get("text")))

    def _count(self, message: Mapping[str, Json]) -> None:
        usage = as_object(message.get("usage"))
        kinds = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        self._model = as_text(message.get("model"))
        self._prompt_tokens = sum(as_count(usage.get(kind)) for kind in kinds)

    def _limit(self, info: Mapping[str, Json]) -> None:
        self._resets_at = as_count(info.get("resetsAt")) if info.get("status") == "rejected" else 0

    def _denial(self, denial: Mapping[str, Json], why: str) -> Iterator[AgentEvent]:
        call_id, tool = as_text(denial.get("tool_use_id")), as_text(denial.get("tool_name"))
        if call_id not in self._denied:
            self._denied.add(call_id)
            # a denial that only the result tells is that of a hook: no right would allow the call
            yield Denied(call_id, tool, why) if why else Noted(Denied(call_id, tool).words)

    def _end(self, line: Mapping[str, Json]) -> Iterator[AgentEvent]:
        for denial in map(as_object, as_list(line.get("permission_denials"))):
            yield from self._denial(denial, "")
        models = as_object(line.get("modelUsage"))
        if models:  # a run that called no model reports zeros, not the session's totals
            yield Spent(self._usage(models, as_amount(line.get("total_cost_usd"))))
        self._message = None
        # subtype says "success" for a failed call to the model too
        if line.get("is_error") is not False:
            yield self._failure(line)
        elif call_id := as_text((call := as_object(line.get("deferred_tool_use"))).get("id")):
            yield Deferred(call_id, as_text(call.get("name")), as_object(call.get("input")))
        else:
            yield Ended(ok=True, response=as_text(line.get("result")) or None)

    def _failure(self, line: Mapping[str, Json]) -> Ended:
        errors = [as_text(error) for error in as_list(line.get("errors"))]
        if not errors and (self._refusal is not None or self._model is None):
            # only then is it the CLI's own text; otherwise it is the agent's
            errors = [as_text(line.get("result"))]
        if self._resets_at:
            errors.append(f"resets_at={self._resets_at}")
        code = as_text(line.get("terminal_reason")) or as_text(line.get("subtype"))
        error = "\n".join(errors)
        named = _STATUS.match(error)
        return Ended(
            ok=False,
            error=error,
            status=as_count(line.get("api_error_status")) or (int(named[1]) if named else None),
            code=self._refusal if code == "api_error" and self._refusal else code,
        )

    def _usage(self, models: Mapping[str, Json], cost: float) -> UsageReport:
        """``modelUsage`` and the cost are totals since the session began, and a fork inherits them."""
        usage = _total_usage(models, cost)
        context = ContextUse(self._prompt_tokens, self._window(models)) if self._prompt_tokens else None
        return UsageReport(usage, cumulative=True, context=context)

    def _window(self, models: Mapping[str, Json]) -> int:
        """The same model may be listed with its window in the name, such as ``opus[1m]``."""
        for name, model in models.items():
            entry = as_object(model)
            if self._model in (name, name.partition("[")[0], entry.get("canonicalModel")):
                return as_count(entry.get("contextWindow"))
        return 0


def _total_usage(models: Mapping[str, Json], cost: float) -> Usage:
    usage = Usage(cost_usd=cost)
    for model in map(as_object, models.values()):
        read, written = (as_count(model.get(f"cache{kind}InputTokens")) for kind in ("Read", "Creation"))
        usage += Usage(
            as_count(model.get("inputTokens")) + read + written, read, as_count(model.get("outputTokens"))
        )
    return usage


def _calls_in(message: Mapping[str, Json]) -> Iterator[Called | Returned]:
    """The tool calls and the results of tool calls in a message."""
    for block in map(as_object, as_list(message.get("content"))):
        match block.get("type"):
            case "tool_use":
                yield _called(block)
            case "tool_result":
                call_id, output = as_text(block.get("tool_use_id")), joined_text(block.get("content"))
                yield Returned(call_id, output, block.get("is_error") is True)


def _called(block: Mapping[str, Json]) -> Called:
    return Called(as_text(block.get("id")), as_text(block.get("name")), as_object(block.get("input")))


def _ignores_system_prompt(spec: LaunchSpec) -> bool:
    names = {argument.partition("=")[0].removesuffix("-file") for argument in spec.rights.extra_args}
    is_set = not names.isdisjoint(_SYSTEM_PROMPT) and _SNAPSHOT not in names
    return is_set and not isinstance(spec.decision, Fresh)


# --- the sessions that Claude Code keeps ---

_ASIDE = (
    "holdfast"  #: a folder in Claude's home, for sessions whose own file has diverged from what was recorded
)
_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9]")
_LONGEST_NAME = 200  #: of a folder; a longer name is cut and gets a hash
_SECONDS_TO_BEGIN = 60
_DAY_SECONDS = 86_400.0
_KEPT_DAYS = 30  #: unless its settings name another number
#: lines that hold a title, and where; a person's own first
_TITLES: Final = {"custom-title": "customTitle", "ai-title": "aiTitle", "summary": "summary"}
#: the largest lines of a session, which say nothing that others do not
_NOT_READ: Final = (b'{"type":"api-request', b'{"type":"file-history-snapshot"')
#: types of lines that are known, besides those that are read
_KNOWN_LINES: Final = frozenset(
    [
        "agent-color",
        "agent-name",
        "agent-setting",
        "api-request",
        "api-request-blob",
        "api-request-shape",
        "atis-latch",
        "attachment",
        "attribution-snapshot",
        "bridge-session",
        "content-replacement",
        "cost-state",
        "file-history-snapshot",
        "last-prompt",
        "mode",
        "permission-mode",
        "pr-link",
        "progress",
        "queue-operation",
        "system",
        "tag",
        "tools-used",
        "worktree-state",
    ]
)
_SUBAGENT: Final = "agent-"  #: the names of their files begin with this
_UNFINISHED: Final = ("tool_use", "pause_turn", "")
_COMMAND = re.compile(r"<command-name>(?P<name>[^<]*)</command-name>")
_COMMAND_ARGUMENTS = re.compile(r"<command-args>(?P<arguments>.*?)</command-args>", re.DOTALL)
#: texts that the CLI writes in the place of a person's
_OF_A_COMMAND: Final = "<local-command-"
_NOT_A_PROMPT: Final = (_OF_A_COMMAND, "<task-notification>", "[Request interrupted by user")


class ClaudeArchive(OnePassArchive, AppendOnlyArchive):
    """Each session is one file, in a folder for each work directory."""

    def __init__(self, home: Path) -> None:
        self._settings = home / "settings.json"
        self._home = home
        self._projects = home / "projects"
        self._processes = home / "sessions"

    def find(self, session_id: ProviderSessionId, work_dir: str | None) -> str | None:
        """The same id may exist in the folders of two work directories: then only the given directory counts."""
        aside = self._home / _ASIDE / f"{session_id}.jsonl"
        try:
            if aside.is_file():
                return str(aside)
            found = [file for file in self._projects.glob(f"*/{session_id}.jsonl") if file.is_file()]
        except (OSError, ValueError):
            return None
        if len(found) > 1:
            found = [file for file in found if work_dir is not None and _is_folder_of(file.parent, work_dir)]
        return str(found[0]) if len(found) == 1 else None

    def sessions(self, beginning: str = "") -> Iterator[StoredSession]:
        """Older versions keep the files of subagents beside the others."""
        try:
            files = [file for file in self._projects.glob("*/*.jsonl") if file.name.startswith(beginning)]
        except OSError:
            return
        for file in files:
            if not file.name.startswith(_SUBAGENT):
                yield _stored(file)

    def title(self, path: str, session_id: ProviderSessionId) -> str | None:
        return _stored(Path(path)).title

    def sources(self, work_dir: str | None = None) -> Iterator[Source]:
        found = list(self._looked_at(work_dir))
        if work_dir is not None:
            found.sort(key=lambda source: -source.mtime_ns)
        yield from found

    def _looked_at(self, work_dir: str | None) -> Iterator[Source]:
        unreadable: list[Source] = []
        for folder in entries(self._projects, unreadable):
            if work_dir is not None and not _is_folder_of(Path(folder.name), work_dir):
                continue
            for entry in entries(folder.path, unreadable):
                name, ending = os.path.splitext(entry.name)  # noqa: PTH122 - of thousands of names
                if ending == ".jsonl":
                    source = look_at(entry.path, ProviderSessionId(name))
                    if source is not None:
                        yield source
                elif not ending:
                    yield from _subagents(Path(entry.path) / "subagents", name, unreadable)
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
        """A fork's file begins with a copy of its parent's turns, under the same keys.

        The lines are a tree: a program that continues beside another one, or rewinds, begins a branch. A line
        belongs to the turn of its parent, wherever it stands in the file.
        """
        lines = JsonLines(Path(path), 0, longest_line(room), _NOT_READ, marks=with_events)
        turns = _Reader(facts, lines, after, room, with_events=with_events).turns()
        return SessionReading(turns, facts)

    def is_prompt(self, line: bytes) -> bool:
        """Parses only lines that may be prompts: a quote within a text has a backslash."""
        if b'"user"' not in line or b'"tool_result"' in line:
            return False
        return _begin(parse_line(line) or {}) is not None

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

    @cached_property
    def keeps_seconds(self) -> float:
        """Claude looks once a day, a few seconds into any run. A project's own settings may say something else."""
        days = as_count(read_object(self._settings).get("cleanupPeriodDays"))
        return (days or _KEPT_DAYS) * _DAY_SECONDS

    def expires_at(self, path: str) -> Instant | None:
        """Files that lie elsewhere are not deleted."""
        return super().expires_at(path) if Path(path).is_relative_to(self._projects) else None

    def files(self, path: str, session_id: ProviderSessionId) -> Iterator[SessionFile]:
        """The folder of the session has the transcripts of its subagents, and tool results that were too long."""
        main = Path(path)
        yield below(self._home, main, is_main=True)
        yield from files_in(self._home, main.with_suffix(""))

    def is_own_name(self, name: str, session_id: ProviderSessionId) -> bool:
        """Other files lie beside the sessions, such as Claude's memory of a project: only a real id is a session's."""
        folder, inner = _split_name(name)
        is_of_sessions = folder in ("", _ASIDE) or folder.startswith("projects/")
        is_of_session = inner == f"{session_id}.jsonl" or inner.startswith(f"{session_id}/")
        return is_of_sessions and is_of_session and _ID.fullmatch(session_id) is not None

    def place(self, name: str, session_id: ProviderSessionId, work_dir: str | None) -> str | None:
        """In the folder that has the session, else in the folder where the file was: Claude looks in all of them."""
        folder, inner = _split_name(name)
        found = self.find(session_id, work_dir)
        return str(self._home / folder / inner if found is None else Path(found).parent / inner)

    def aside(self, name: str, session_id: ProviderSessionId) -> str | None:
        """Claude resumes any file that has the id of its session as its name, and deletes old sessions only in its own folder."""
        return str(self._home / _ASIDE / _split_name(name)[1])


def _subagents(folder: Path, parent: str, unreadable: list[Source]) -> Iterator[Source]:
    """The same id of a subagent may exist below two sessions: its own id has the session's before it."""
    for entry in entries(folder, unreadable):
        if entry.name.startswith(_SUBAGENT) and entry.name.endswith(".jsonl"):
            source = look_at(entry.path, ProviderSessionId(f"{parent}/{entry.name.removesuffix('.jsonl')}"))
            if source is not None:
                yield source


class _Reader:
    """One pass over a session: the turns of its tree, and everything else that its lines say."""

    def __init__(
        self,
        facts: SessionFacts,
        lines: JsonLines,
        after: TranscriptMark | None,
        room: int | None,
        *,
        with_events: bool,
    ) -> None:
        self._facts = facts
        self._lines = lines
        self._begin_at = 0 if after is None else after.size
        self._room = room
        self._with_events = with_events
        self._tree = _Tree()
        self._held: dict[
            str, _Turn
        ] = {}  #: turns with something that was not given yet, in the order of the file
        self._prompts = 0
        self._passed_over = 0
        self._titles: dict[str, str] = {}
        self._opened_at: Instant | None = None  #: as the first line says, if it is one of the program's own
        facts.spent = NO_USAGE
        parent, _, name = facts.id.rpartition("/")
        self._is_subagent = name.startswith(_SUBAGENT)  #: then all lines are a side chain, and none is aside
        if parent:
            facts.subagent_of = ProviderSessionId(parent)

    def turns(self) -> Iterator[ReadTurn]:
        characters = 0
        for place, line in self._lines:
            characters += self._lines.length
            self._add(place, line)
            if self._room is not None and characters > self._room:
                yield from self._give()
                characters = 0
        self._end()
        yield from self._give(whole=True)

    def _add(self, place: int, line: Mapping[str, Json]) -> None:
        tree, kind = self._tree, line.get("type")
        number, before = tree.add(line, self._is_subagent)
        turn = _begin(line, self._is_subagent) if kind == "user" else None
        if turn is not None:
            tree.begin(number, turn)
            turn.is_wanted = place >= self._begin_at
            turn.keeps_events = self._with_events and turn.is_wanted
            self._held[turn.key] = turn
            if self._with_events:
                self._facts.before_last = self._lines.mark_before(self._prompts)
            self._prompts += self._lines.length < LONGEST_PROMPT
        elif (turn := tree.turn_of(number, before)) is not None:
            turn.add(line, self._is_subagent)
            if turn.is_given:
                self._held.setdefault(turn.key, turn)
        if kind == "cost-state":
            self._facts.spent = _spent(line)
        elif self._with_events:
            self._note(line, kind, turn)

    def _note(self, line: Mapping[str, Json], kind: Json, turn: _Turn | None) -> None:
        facts = self._facts
        match kind:
            case "user" | "assistant":
                self._note_message(line)
            case "system" if line.get("subtype") == "compact_boundary":
                facts.compactions += 1
                if turn is not None:
                    turn.note(Noted("the context was compacted to a summary"))
            case "queue-operation" if self._opened_at is None and not self._prompts:
                self._opened_at = as_instant(line.get("timestamp"))
            case "custom-title" | "ai-title" | "summary":
                self._titles[kind] = as_text(line.get(_TITLES[kind]))
            case _ if kind not in _KNOWN_LINES:
                facts.unknown[as_text(kind)[:80] or "none"] += 1
        if turn is not None and len(self._lines.too_long) > self._passed_over:
            for note in passed_over(self._lines.too_long[self._passed_over :]):
                turn.note(note)
            self._passed_over = len(self._lines.too_long)

    def _note_message(self, line: Mapping[str, Json]) -> None:
        facts = self._facts
        facts.images += _images(as_object(line.get("message")).get("content"))
        branch = as_text(line.get("gitBranch"))
        facts.branch = branch if branch not in ("", "HEAD") else facts.branch
        facts.work_dir = facts.work_dir or as_text(line.get("cwd")) or None
        if self._is_subagent and not facts.subagent_of:
            facts.subagent_of = ProviderSessionId(as_text(line.get("sessionId")))

    def _end(self) -> None:
        facts, lines = self._facts, self._lines
        facts.damaged, facts.too_long, facts.problem = lines.damaged, len(lines.too_long), lines.problem
        facts.mark = lines.mark(self._prompts)
        facts.title = next((self._titles[kind] for kind in _TITLES if self._titles.get(kind)), None)
        turns = {turn.key: turn for turn in self._tree.turns if turn.counts}
        live = self._tree.branch()
        facts.dead = {key for key, turn in turns.items() if not live[turn.number]}
        first = next(iter(turns.values()), None)
        if first is not None:
            facts.first_key = first.key
            # a fork begins with a line of its own and a copy of its parent's lines, which are older
            if (first.began_at or 0) < (self._opened_at or 0):
                facts.forked_at = self._opened_at
        facts.model = next((turn.model for turn in reversed(turns.values()) if turn.model), None)

    def _give(self, *, whole: bool = False) -> Iterator[ReadTurn]:
        """What was read so far. The last turn continues most likely: its texts stay here."""
        held, self._held = self._held, {}
        newest = next(reversed(held), None)
        for key, turn in held.items():
            is_part = not whole and key == newest
            if turn.is_wanted and turn.counts:
                yield turn.read(live=key not in self._facts.dead, is_part=is_part)
            if is_part:
                self._held[key] = turn
            elif not whole:
                turn.forget()


class _Tree:
    """The parent and the turn of each line. Lines are numbered: a session may have a million of them."""

    def __init__(self) -> None:
        self.turns: list[_Turn] = []
        self._numbers: dict[str, int] = {}  #: of lines, by their ids
        self._parents = array("l")  #: by the number of a line; -1: none
        self._owners = array("l")  #: the place of its turn in ``turns``; -1: none
        self._newest = -1
        self._left_at = ""  #: where a program left the session when it ended properly

    def add(self, line: Mapping[str, Json], is_subagent: bool) -> tuple[int, int]:
        """The numbers of the line and of its parent. Where the parent is missing, Claude takes the line before it in the file."""
        if line.get("type") == "last-prompt":
            self._left_at = as_text(line.get("leafUuid"))
        key = as_text(line.get("uuid"))
        if not key or (line.get("isSidechain") is True and not is_subagent):
            return -1, self._newest
        parent = as_text(line.get("parentUuid")) or as_text(line.get("logicalParentUuid"))
        before = self._numbers.get(parent, self._newest)
        number = self._numbers.setdefault(key, len(self._parents))
        if number == len(self._parents):
            self._parents.append(before)
            self._owners.append(-1)
        self._newest = number
        return number, before

    def begin(self, number: int, turn: _Turn) -> None:
        turn.number = number
        self._owners[number] = len(self.turns)
        self.turns.append(turn)

    def turn_of(self, number: int, before: int) -> _Turn | None:
        owner = self._owners[before] if before >= 0 else -1
        if number >= 0 and self._owners[number] < 0:
            self._owners[number] = owner
        return self.turns[owner] if owner >= 0 else None

    def branch(self) -> bytearray:
        """By the number of a line: is it on the branch that ``--resume`` continues?

        That is the branch of the newest line if it leads back to where a program left, else that of the latter.
        """
        newest = self._up_from(self._newest)
        left = self._numbers.get(self._left_at, -1)
        return self._up_from(left) if left >= 0 and not newest[left] else newest

    def _up_from(self, number: int) -> bytearray:
        found = bytearray(len(self._parents))
        while number >= 0 and not found[number]:
            found[number] = 1
            number = self._parents[number]
        return found


def _stored(file: Path) -> StoredSession:
    """Claude writes the titles again when a program ends, so that the last part of the file has them."""
    first, last = edge_lines(file)
    work_dir = next((text for line in first if (text := as_text(line.get("cwd")))), None)
    titles = {
        kind: as_text(line.get(key))
        for line in (*first, *last)
        for kind, key in _TITLES.items()
        if line.get("type") == kind
    }
    title = next((titles[kind] for kind in _TITLES if titles.get(kind)), None)
    return StoredSession(ProviderSessionId(file.stem), str(file), work_dir, title)


@dataclass(slots=True)
class _Turn:
    key: str
    prompt: str
    is_command: bool  #: a command of the CLI itself; it counts as a turn only if the agent answers
    began_at: Instant | None = None
    is_wanted: bool = True  #: it began behind the mark that was asked for
    keeps_events: bool = False
    is_given: bool = False  #: a part of it was given already
    number: int = -1  #: of its first line in the tree
    model: str | None = None
    _ended_at: Instant | None = None
    _answers: list[str] = field(default_factory=list)  #: those of finished messages
    _said: str = ""  #: of the message that may continue
    _message: str = ""
    _is_finished: bool = False
    _calls: dict[str, bool] = field(default_factory=dict)
    _events: list[Called | Returned | Noted] = field(default_factory=list)
    _usage: dict[str, Mapping[str, Json]] = field(default_factory=dict)  #: by message: its last line counts

    @property
    def counts(self) -> bool:
        return not self.is_command or bool(self._answers or self._said) or self.is_given

    def archived(self, *, live: bool) -> ArchivedTurn:
        text = "\n\n".join(part for part in (*self._answers, self._said) if part)
        return ArchivedTurn(
            self.key, self.prompt, text or None, self._is_finished, self._calls, live, self.began_at,
            self._ended_at,
        )  # fmt: skip

    def read(self, *, live: bool, is_part: bool) -> ReadTurn:
        events, self._events = tuple(self._events), []
        usage = NO_USAGE if is_part else _usage_of(self._usage.values())
        self.is_given = True
        return ReadTurn(self.archived(live=live), events, usage, self.model, is_part)

    def forget(self) -> None:
        """All of it was given. What comes later is given as another part of it."""
        self.prompt = ""
        self._answers, self._said, self._calls, self._usage = [], "", {}, {}

    def note(self, event: Noted) -> None:
        if self.keeps_events:
            self._events.append(event)

    def add(self, line: Mapping[str, Json], is_subagent: bool = False) -> None:
        if not _is_of_the_agent(line, is_subagent):
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
                self._ended_at = as_instant(line.get("timestamp"))
        if self.keeps_events:
            self._events += _calls_in(message)

    def _answer(self, message: Mapping[str, Json]) -> None:
        """A message takes one line for each of its blocks. Text before a tool call is not the answer."""
        message_id = as_text(message.get("id"))
        if message_id != self._message:
            self._go_on()
            self._message, self._said = message_id, ""
        self._calls |= dict.fromkeys(_ids(message, "tool_use", "id"), False)
        self._said += joined_text(message.get("content"))
        self._is_finished = as_text(message.get("stop_reason")) not in _UNFINISHED
        if self.keeps_events:
            self.model = as_text(message.get("model")) or self.model
            self._usage[message_id] = as_object(message.get("usage"))

    def _go_on(self) -> None:
        if self._is_finished:
            self._answers.append(self._said)
            self._said = ""
        self._is_finished = False


def _begin(line: Mapping[str, Json], is_subagent: bool = False) -> _Turn | None:
    """A new turn, if the line is a prompt."""
    if line.get("type") != "user" or line.get("promptSource") == "system":
        return None
    asides = ("isMeta", "isCompactSummary") if is_subagent else ("isSidechain", "isMeta", "isCompactSummary")
    if any(line.get(flag) is True for flag in asides):
        return None
    content = as_object(line.get("message")).get("content")
    if any(as_object(block).get("type") == "tool_result" for block in as_list(content)):
        return None
    text, key = joined_text(content), as_text(line.get("uuid"))
    if not text or not key or text.startswith(_NOT_A_PROMPT):
        return None
    command = _COMMAND.search(text) if text.startswith("<command-") else None
    began_at = as_instant(line.get("timestamp"))
    if command is None:
        return _Turn(key, text, False, began_at)
    arguments = _COMMAND_ARGUMENTS.search(text)
    typed = f"{command['name']} {arguments['arguments'] if arguments else ''}"
    return _Turn(key, typed.strip(), True, began_at)


def _spent(line: Mapping[str, Json]) -> Usage:
    """The next process continues from the last line of this kind, whichever branch that is on."""
    return _total_usage(as_object(line.get("modelUsage")), as_amount(line.get("totalCostUSD")))


def _usage_of(messages: Iterable[Mapping[str, Json]]) -> Usage:
    total = NO_USAGE
    for usage in messages:
        fresh, read, written = (
            as_count(usage.get(kind))
            for kind in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        )
        total += Usage(fresh + read + written, read, as_count(usage.get("output_tokens")))
    return total


def _images(content: Json) -> int:
    """Pictures that people gave, and those in the results of tools."""
    count = 0
    for block in map(as_object, as_list(content)):
        if block.get("type") == "image":
            count += 1
        elif block.get("type") == "tool_result":
            count += _images(block.get("content"))
    return count


def _is_of_command(line: Mapping[str, Json]) -> bool:
    """Text that the CLI adds for a command of its own: the summary of /compact, or what the command printed."""
    text = joined_text(as_object(line.get("message")).get("content"))
    return line.get("isCompactSummary") is True or text.startswith(_OF_A_COMMAND)


def _is_of_the_agent(line: Mapping[str, Json], is_subagent: bool = False) -> bool:
    """Written by the main agent, not by a subagent or the CLI itself."""
    is_aside = line.get("isSidechain") is True and not is_subagent
    return not is_aside and as_object(line.get("message")).get("model") != SYNTHETIC


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


def _split_name(name: str) -> tuple[str, str]:
    """The folder of a kept session, and a file of the session within it."""
    parts = PurePosixPath(name).parts
    cut = min(
        1 if name.startswith(f"{_ASIDE}/") else 2, len(parts) - 1
    )  # projects/<folder>/<id>.jsonl, projects/<folder>/<id>/subagents/…
    return "/".join(parts[:cut]), "/".join(parts[cut:])


def _is_folder_of(folder: Path, work_dir: str) -> bool:
    name = _NOT_IN_A_NAME.sub("-", os.path.realpath(work_dir))
    return folder.name == name or (
        len(name) > _LONGEST_NAME and folder.name.startswith(name[:_LONGEST_NAME] + "-")
    )

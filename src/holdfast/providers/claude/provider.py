"""Owns Claude Code: how it is started, what it prints, and the sessions that it keeps."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.clock import Instant
from holdfast.domain.decisions import Fork, Fresh, Resume
from holdfast.domain.events import (
    AgentEvent,
    Called,
    Deferred,
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
from holdfast.domain.redaction import Json
from holdfast.domain.runtimes import Capabilities
from holdfast.domain.usage import ContextUse, Usage, UsageReport
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
    StoredSession,
    Stream,
    home_folder,
    offers,
    read_version,
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
from holdfast.providers.session_files import (
    AppendOnlyArchive,
    edge_lines,
    parse_line,
    placed_lines,
    read_lines,
)

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
    "--include-partial-messages": Instead.OUTPUT,
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


class Claude(BaseProvider):
    name = "claude"
    rules_file = RULES / "claude.toml"
    arguments = _RULES

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
            ),
        )

    def home(self, environ: Mapping[str, str]) -> Path:
        return home_folder(environ, "CLAUDE_CONFIG_DIR", ".claude")

    def check(self, rights: Rights, *, allow_wider: bool = False) -> None:
        rules = _WITH_A_GATE if rights.approve_tools else _RULES
        rules.check(rights.extra_args, allow_wider=allow_wider)

    def foreign_hooks(self, home: Path, work_dir: Path, rights: Rights) -> tuple[ForeignHook, ...]:
        return find_foreign_hooks(home, work_dir, rights)

    def mint_id(self, decision: Fork | Fresh) -> ProviderSessionId:
        return ProviderSessionId(str(uuid.uuid4()))

    def command(self, spec: LaunchSpec) -> Command:
        headless = ("-p", "--output-format", "stream-json", "--verbose")
        argv = (spec.binary, *headless, *_session(spec), *_options(spec))
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
            return ("--resume", provider_session_id)
        case Fork(provider_session_id):
            return ("--resume", provider_session_id, "--fork-session", *new)
        case Fresh():
            return new


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
        self._message: str | None = None  #: id of the message that is being written
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
            case "assistant":
                yield from self._assistant(line)
            case "user":
                for result in _calls_in(as_object(line.get("message"))):
                    if isinstance(result, Returned):
                        yield result
                        yield from self._compared(result)
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
        is_next = self._message not in (None, message_id)
        self._message = message_id
        return Said(f"\n\n{text}" if is_next else text)

    def _count(self, message: Mapping[str, Json]) -> None:
        usage = as_object(message.get("usage"))
        kinds = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        self._model = as_text(message.get("model"))
        self._prompt_tokens = sum(as_count(usage.get(kind)) for kind in kinds)

    def _limit(self, info: Mapping[str, Json]) -> None:
        self._resets_at = as_count(info.get("resetsAt")) if info.get("status") == "rejected" else 0

    def _denial(self, denial: Mapping[str, Json], why: str) -> Iterator[AgentEvent]:
        call_id = as_text(denial.get("tool_use_id"))
        if call_id not in self._denied:
            self._denied.add(call_id)
            yield Noted(f"{as_text(denial.get('tool_name'))} was not allowed: {why}".removesuffix(": "))

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

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9]")
_LONGEST_NAME = 200  #: of a folder; a longer name is cut and gets a hash
_SECONDS_TO_BEGIN = 60
#: lines that hold a title, and where; a person's own first
_TITLES: Final = (("custom-title", "customTitle"), ("ai-title", "aiTitle"), ("summary", "summary"))
_UNFINISHED: Final = ("tool_use", "pause_turn", "")
_COMMAND = re.compile(r"<command-name>(?P<name>[^<]*)</command-name>")
_COMMAND_ARGUMENTS = re.compile(r"<command-args>(?P<arguments>.*?)</command-args>", re.DOTALL)
#: texts that the CLI writes in the place of a person's
_OF_A_COMMAND: Final = "<local-command-"
_NOT_A_PROMPT: Final = (_OF_A_COMMAND, "<task-notification>", "[Request interrupted by user")


class ClaudeArchive(AppendOnlyArchive):
    """Each session is one file, in a folder for each work directory."""

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

    def sessions(self, beginning: str = "") -> Iterator[StoredSession]:
        """Older versions keep the files of subagents beside the others."""
        try:
            files = [file for file in self._projects.glob("*/*.jsonl") if file.name.startswith(beginning)]
        except OSError:
            return
        for file in files:
            if not file.name.startswith("agent-"):
                yield _stored(file)

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

    def calls(self, path: str, session_id: ProviderSessionId) -> Iterator[tuple[str, Called | Returned]]:
        for _, turn, line in _lines_of_turns(Path(path), _Tree()):
            if line is not None and _is_of_the_agent(line):
                for event in _calls_in(as_object(line.get("message"))):
                    yield turn.key, event

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
        return _total_usage(as_object(counted.get("modelUsage")), as_amount(counted.get("totalCostUSD")))

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


def _stored(file: Path) -> StoredSession:
    """Claude writes the titles again when a program ends, so that the last part of the file has them."""
    first, last = edge_lines(file)
    work_dir = next((text for line in first if (text := as_text(line.get("cwd")))), None)
    titles = {
        kind: as_text(line.get(key))
        for line in (*first, *last)
        for kind, key in _TITLES
        if line.get("type") == kind
    }
    title = next((titles[kind] for kind, _ in _TITLES if titles.get(kind)), None)
    return StoredSession(ProviderSessionId(file.stem), str(file), work_dir, title)


@dataclass(slots=True)
class _Turn:
    key: str
    prompt: str
    is_command: bool  #: a command of the CLI itself; it counts as a turn only if the agent answers
    began_at: Instant | None = None
    _ended_at: Instant | None = None
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
        return ArchivedTurn(
            self.key, self.prompt, text or None, self._is_finished, self._calls, live, self.began_at,
            self._ended_at,
        )  # fmt: skip

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
                self._ended_at = as_instant(line.get("timestamp"))

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
    began_at = as_instant(line.get("timestamp"))
    if command is None:
        return _Turn(key, text, False, began_at)
    arguments = _COMMAND_ARGUMENTS.search(text)
    typed = f"{command['name']} {arguments['arguments'] if arguments else ''}"
    return _Turn(key, typed.strip(), True, began_at)


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

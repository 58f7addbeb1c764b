"""Owns Codex: how it is started, what it prints, and the sessions that it keeps."""

from __future__ import annotations

import json
import os
import re
import shlex
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.clock import Instant
from holdfast.domain.decisions import Fork, Fresh, NotObservable, Resume
from holdfast.domain.events import AgentEvent, Called, Ended, Named, Noted, Returned, Said, Spent
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import Rights, TranscriptMark
from holdfast.domain.records import replace
from holdfast.domain.redaction import Json
from holdfast.domain.runtimes import Capabilities
from holdfast.domain.usage import NO_USAGE, Usage, UsageReport
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
    Comparison,
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
    compare_file,
    home_folder,
    look_at,
    offers,
    read_version,
)
from holdfast.providers.failure_rules import RULES
from holdfast.providers.loose_json import as_count, as_instant, as_list, as_object, as_text, joined_text
from holdfast.providers.session_files import (
    COMPRESSED,
    LONGEST_PROMPT,
    NOT_INSTALLED,
    AppendOnlyArchive,
    JsonLines,
    OnePassArchive,
    can_open,
    entries,
    first_object,
    longest_line,
    open_readonly,
    parse_line,
    passed_over,
    read_lines,
    read_object,
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
#: how a program in the sandbox is told that it cannot write, on Linux and on macOS
_KEPT_OUT: Final = ("Read-only file system", "Operation not permitted")
_EXIT: Final = re.compile(r"^Process exited with code [1-9]", re.MULTILINE)
_NO_SERVER: Final = ("-c", "features.daemon_auto_start=false")
#: variables that a surrounding Codex sets for its tools
_OF_THE_CALLER: Final = ("CODEX_CI", "CODEX_SESSION_ID", "CODEX_THREAD_ID", "CODEX_TOOL_CALL_ID")


class Codex(BaseProvider):
    name = "codex"
    rules_file = RULES / "codex.toml"
    tested = "0.166.0"
    install = "npm install -g @openai/codex"
    login = "run codex login, or set CODEX_API_KEY"
    modes = _SANDBOXES
    denies_silently = True
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

    def home_variables(self, home: Path) -> Mapping[str, str]:
        return {"CODEX_HOME": str(home)}

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
        """A server in the background would write to the session, and serve other programs, after this one has ended."""
        argv = (spec.binary, *spec.rights.extra_args, *_options(spec), *_session(spec), *_NO_SERVER)
        return Command(argv, without=_OF_THE_CALLER)

    def allowing(self, rights: Rights, call: Called, work_dir: str) -> Rights:
        """The next wider sandbox; without a mode of its own the agent can read only."""
        _, writes, everything = _SANDBOXES
        return replace(rights, permission_mode=everything if rights.permission_mode == writes else writes)

    def denial(self, rights: Rights, returned: Returned) -> str | None:
        """The sandbox shows only in what the programs in it write when they fail."""
        has_failed = returned.is_error or _EXIT.search(returned.output) is not None
        words = next((words for words in _KEPT_OUT if words in returned.output), None)
        if words is None or not has_failed or rights.permission_mode == _SANDBOXES[-1]:
            return None
        return f"the sandbox of Codex does not let it write ({words})"

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
_ENDINGS: Final = (".jsonl", f".jsonl{COMPRESSED}")
_NAMES: Final = "session_index.jsonl"
_COPIES: Final = "external_agent_session_imports.json"
_COPYING: Final = 120  #: seconds; a copy that was written to later than this was continued in Codex
_IMAGES: Final = ("image", "local_image", "Image", "LocalImage", "input_image")
#: types of lines that are known, besides those that are read
_KNOWN_LINES: Final = frozenset(
    [
        "compacted",
        "event_msg",
        "ghost_snapshot",
        "inter_agent_communication",
        "response_item",
        "session_meta",
        "token_usage_record",
        "turn_context",
        "world_state",
    ]
)
_ROLLOUT_PATH: Final = "SELECT rollout_path FROM threads WHERE id = ?"
_ID_LENGTH: Final = 36
#: of a session's file below Codex's home
_KEPT_NAME: Final = re.compile(
    rf"(sessions/([^/]+/){{3}}|{_ARCHIVED}/)?rollout-[^/]*-[0-9a-zA-Z-]{{{_ID_LENGTH}}}\.jsonl({re.escape(COMPRESSED)})?"
)
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


class CodexArchive(OnePassArchive, AppendOnlyArchive):
    """Each session is one rollout file. The file of a fork points into its parent's."""

    renames_calls = True

    def __init__(self, home: Path) -> None:
        self._home = home
        self._known_names: tuple[tuple[int, int], Mapping[str, str]] = ((-1, -1), {})
        self._places: dict[str, str] = {}  #: of files that were seen, by the id of the session

    def find(self, session_id: ProviderSessionId, work_dir: str | None) -> str | None:
        """Only sessions that Codex itself would resume: not archived ones, and a fork only if its whole ancestry is there."""
        file = self._rollout(session_id, _ACTIVE)
        return str(file) if file is not None and self._is_whole(file) else None

    def sessions(self, beginning: str = "") -> Iterator[StoredSession]:
        """Of those that Codex itself lists."""
        names = self._names()
        try:
            files = [file for ending in _ENDINGS for file in self._home.glob(f"{_ACTIVE}/rollout-*{ending}")]
        except OSError:
            return
        for file in files:
            session_id = _id_of(file.name)
            if not session_id.startswith(beginning):
                continue
            meta = as_object(next(read_lines(file), {}).get("payload"))
            if meta.get("id") == session_id and _subagent_of(meta) is None:
                work_dir = as_text(meta.get("cwd"))
                yield StoredSession(session_id, str(file), work_dir or None, names.get(session_id) or None)

    def title(self, path: str, session_id: ProviderSessionId) -> str | None:
        return self._names().get(session_id) or None

    def sources(self, work_dir: str | None = None) -> Iterator[Source]:
        """Its own ones and the archived ones. The names of the files do not tell the directory of a session."""
        copies = self._copies()
        unreadable: list[Source] = []
        for file in self._files(unreadable):
            session_id = _id_of(file.name)
            self._places.setdefault(session_id, file.path)
            problem = None if can_open(file.path) else NOT_INSTALLED
            source = look_at(file.path, session_id, problem)
            if source is None:
                continue
            if source.mtime_ns < copies.get(session_id, 0):
                source = replace(source, problem="it is Codex's copy of another agent's session")
            yield source
        yield from unreadable

    def _files(self, unreadable: list[Source]) -> Iterator[os.DirEntry[str]]:
        """The newest ones first."""
        folders = [Path(self._home, "sessions")]
        for _ in range(3):  # a folder for each year, month and day
            folders = [
                Path(found.path)
                for folder in folders
                for found in sorted(entries(folder, unreadable), key=lambda entry: entry.name, reverse=True)
                if not found.name.startswith("rollout-")
            ]
        for folder in (*folders, Path(self._home, "sessions"), self._home / _ARCHIVED):
            for found in sorted(entries(folder, unreadable), key=lambda entry: entry.name, reverse=True):
                if found.name.startswith("rollout-") and found.name.endswith(_ENDINGS):
                    yield found

    def _copies(self) -> Mapping[str, int]:
        """Sessions of other agents that Codex has copied, with the time until which they are nothing but copies."""
        records = map(as_object, as_list(read_object(self._home / _COPIES).get("records")))
        return {
            as_text(copy.get("imported_thread_id")): (as_count(copy.get("imported_at")) + _COPYING) * 10**9
            for copy in records
        }

    def _names(self) -> Mapping[str, str]:
        """Codex keeps the names that people gave to sessions in a file of their own, which is read when it has changed."""
        file = self._home / _NAMES
        try:
            found = file.stat()
        except OSError:
            return {}
        state = found.st_mtime_ns, found.st_size
        if self._known_names[0] != state:
            lines = read_lines(file)
            names = {as_text(line.get("id")): as_text(line.get("thread_name")) for line in lines}
            self._known_names = state, names
        return self._known_names[1]

    def reading(
        self,
        path: str,
        facts: SessionFacts,
        *,
        after: TranscriptMark | None = None,
        room: int | None = None,
        with_events: bool = True,
    ) -> SessionReading:
        """A fork's turns begin with those of its parent, under the same keys."""
        own = JsonLines(Path(path), 0 if after is None else after.size, longest_line(room), marks=with_events)
        lines = ((own, line) for _, line in own) if after is not None else self._history(Path(path), own)
        if with_events:
            facts.title = self._names().get(facts.id) or None
        return SessionReading(_Reader(facts, own, room, with_events=with_events).turns(lines), facts)

    def mark(self, path: str, session_id: ProviderSessionId) -> TranscriptMark | None:
        return super().mark(_where_it_is(path), session_id)

    def is_intact(self, recorded: TranscriptMark, session_id: ProviderSessionId) -> bool | NotObservable:
        """Codex compresses files that were not used for a while, and decompresses them again: the content counts."""
        return super().is_intact(replace(recorded, path=_where_it_is(recorded.path)), session_id)

    def is_prompt(self, line: bytes) -> bool:
        """Parses only lines that may be prompts: a quote within a text has a backslash."""
        if b'"UserMessage"' not in line and b'"user_message"' not in line:
            return False
        return _is_prompt(_event(parse_line(line) or {}))

    def files(self, path: str, session_id: ProviderSessionId) -> Iterator[SessionFile]:
        """A fork's file begins where it was forked: the rest is in the files of its ancestors."""
        yield below(self._home, Path(path), is_main=True)
        for file in self._ancestors(Path(path)):
            yield below(self._home, file)

    def belonging(
        self, names: Sequence[str], session_id: ProviderSessionId, read: Callable[[str], Iterable[bytes]]
    ) -> frozenset[str]:
        """The file of the session, and those of its ancestors, as the files themselves name them.

        A file may have been kept twice: as it was, and compressed.
        """
        left = {name for name in names if _KEPT_NAME.fullmatch(name)}
        wanted: set[str] = {session_id}
        own: set[str] = set()
        while found := {name for name in left if _id_of(name) in wanted}:
            own |= found
            left -= found
            wanted = {as_text(_base(first_object(name, read(name))).get("thread_id")) for name in found}
        return frozenset(own)

    def place(self, name: str, session_id: ProviderSessionId, work_dir: str | None) -> str | None:
        """Where the file is, else where Codex's list of threads says that it is: Codex looks nowhere else."""
        plain = Path(name).name.removesuffix(COMPRESSED)
        thread_id = plain.removesuffix(".jsonl")[-_ID_LENGTH:]
        found = self._rollout(thread_id, _ACTIVE, _ARCHIVED)
        if found is not None:
            return str(found)
        listed = self._listed(thread_id)
        if listed is None:
            return str(self._home / name)
        ending = COMPRESSED if name.endswith(COMPRESSED) else ""
        return listed.removesuffix(COMPRESSED) + ending

    def compare(
        self, name: str, kept: Iterable[bytes], session_id: ProviderSessionId, work_dir: str | None
    ) -> Comparison:
        """Codex compresses old sessions, and only takes them out again to continue them."""
        path = self.place(name, session_id, work_dir)
        if path is None or not Path(path).exists():
            return Comparison.ABSENT
        if path.endswith(COMPRESSED) == name.endswith(COMPRESSED):
            return compare_file(path, kept)
        return Comparison.AHEAD

    def _listed(self, thread_id: str) -> str | None:
        """The path of a thread's file, as the newest of Codex's databases has it."""
        try:
            databases = sorted(self._home.glob("state_*.sqlite"), key=_database_number)
            for database in reversed(databases):
                with closing(open_readonly(str(database))) as connection:
                    found = connection.execute(_ROLLOUT_PATH, (thread_id,)).fetchone()
                if found is not None and Path(str(found[0])).is_relative_to(self._home):
                    return str(found[0])
        except (sqlite3.Error, OSError, ValueError):
            return None
        return None

    def _rollout(self, thread_id: str, *folders: str) -> Path | None:
        """If there are several, one that is not compressed, in the first of the folders, with the latest date."""
        for ending in _ENDINGS:
            for folder in folders:
                try:
                    found = sorted(self._home.glob(f"{folder}/rollout-*-{thread_id}{ending}"))
                except (OSError, ValueError):
                    return None
                if found:
                    return found[-1]
        return None

    def _source(self, thread_id: str) -> Path | None:
        """The file of a session that others were forked from. A search takes long in a home of thousands of sessions."""
        known = self._places.get(thread_id)
        if known is not None and Path(known).is_file():
            return Path(known)
        found = self._rollout(thread_id, _ACTIVE, _ARCHIVED)
        if found is not None:
            self._places[thread_id] = str(found)
        return found

    def _is_whole(self, file: Path) -> bool:
        *_, oldest = (file, *self._ancestors(file))
        return not _parent(oldest)

    def _ancestors(self, file: Path) -> Iterator[Path]:
        """The files of the sessions that it was forked from, the nearest first, as far as they are there."""
        checked = {file}
        while parent := _parent(file):
            source = self._source(parent)
            if source is None or source in checked:
                return
            checked.add(source)
            yield source
            file = source

    def _history(
        self, file: Path, lines: JsonLines, end: int | None = None, below: frozenset[Path] = frozenset()
    ) -> Iterator[tuple[JsonLines, Mapping[str, Json]]]:
        """The lines before ordinal ``end``, each with its file; those of the session that it was forked from come first."""
        for _, line in lines:
            if end is not None and as_count(line.get("ordinal")) >= end:
                return
            base = _base(line)
            source = self._source(as_text(base.get("thread_id"))) if base else None
            if source is not None and source not in below:
                until = as_count(base.get("end_ordinal_exclusive"))
                inherited = JsonLines(source, longest=lines.longest)
                yield from self._history(source, inherited, until, below | {file})
            yield lines, line


def _id_of(name: str) -> ProviderSessionId:
    return ProviderSessionId(name.removesuffix(COMPRESSED).removesuffix(".jsonl")[-_ID_LENGTH:])


def _where_it_is(path: str) -> str:
    """The file, or the same one compressed or decompressed, if that is there instead."""
    other = path.removesuffix(COMPRESSED) if path.endswith(COMPRESSED) else path + COMPRESSED
    return other if not os.path.exists(path) and os.path.exists(other) else path  # noqa: PTH110 - two texts


class _Reader:
    """One pass over a session: turns one after the other, and everything else that its lines say."""

    def __init__(self, facts: SessionFacts, lines: JsonLines, room: int | None, *, with_events: bool) -> None:
        self._facts = facts
        self._lines = lines
        self._room = room
        self._with_events = with_events
        self._turn: _Turn | None = None
        self._prompts = 0  #: in its own file
        self._old_turns = 0
        self._passed_over = 0
        self._has_items: bool | None = (
            None  #: how it writes messages: as items, or as older versions did; None: none yet
        )
        self._total = facts.spent = NO_USAGE

    def turns(self, lines: Iterable[tuple[JsonLines, Mapping[str, Json]]]) -> Iterator[ReadTurn]:
        characters = 0
        for file, line in lines:
            characters += file.length
            turn = self._turn
            if self._begins(line):
                if turn is not None and turn.prompts:
                    yield self._read(turn)
                characters = 0
            self._add(line, is_own=file is self._lines)
            if self._room is not None and characters > self._room and self._turn is not None:
                if self._turn.prompts:
                    yield self._read(self._turn, is_part=True)
                characters = 0
        if self._turn is not None and self._turn.prompts:
            yield self._read(self._turn)
        facts, own = self._facts, self._lines
        facts.damaged, facts.too_long, facts.problem = own.damaged, len(own.too_long), own.problem
        facts.mark = own.mark(self._prompts)

    def _begins(self, line: Mapping[str, Json]) -> bool:
        """Older versions do not say where a turn begins: each prompt begins one."""
        event = _event(line)
        kind = event.get("type")
        if kind == "task_started":
            self._turn = _Turn(as_text(event.get("turn_id")), as_instant(line.get("timestamp")))
            self._facts.before_last = self._lines.mark_before(self._prompts)
            return True
        if kind == "user_message" and self._has_items is not True and (
            self._turn is None or self._turn.is_over or (self._turn.is_old and self._turn.prompts)
        ):  # fmt: skip
            at = as_text(line.get("timestamp"))
            self._turn = _Turn(f"{at} {self._old_turns}", as_instant(at), is_old=True)
            self._old_turns += 1
            self._facts.before_last = self._lines.mark_before(self._prompts)
            return True
        return False

    def _read(self, turn: _Turn, *, is_part: bool = False) -> ReadTurn:
        self._facts.first_key = self._facts.first_key or turn.key
        usage = NO_USAGE
        if not is_part:
            spent = self._facts.spent or NO_USAGE
            usage = Usage(
                *(max(0, now - then) for now, then in zip(_tokens(spent), _tokens(self._total), strict=True))
            )
            self._total = spent
        return ReadTurn(turn.archived, turn.take_events(whole=not is_part), usage, self._facts.model, is_part)

    def _add(self, line: Mapping[str, Json], *, is_own: bool) -> None:
        facts, turn, event = self._facts, self._turn, _event(line)
        if _is_prompt(event):
            if self._has_items is None:
                self._has_items = event.get("type") == "item_completed"
            self._prompts += is_own and self._lines.length < LONGEST_PROMPT
        if event.get("type") == "token_count":
            counted = as_object(as_object(event.get("info")).get("total_token_usage"))
            facts.spent = _total_usage(counted) if counted else facts.spent
        if turn is not None and event:
            turn.add(event, has_items=self._has_items is not False)
            turn.ended_at = as_instant(line.get("timestamp"))
        if self._with_events:
            if turn is not None:
                turn.calls.add(line)
            self._note(line, event)

    def _note(self, line: Mapping[str, Json], event: Mapping[str, Json]) -> None:
        facts, payload, turn = self._facts, as_object(line.get("payload")), self._turn
        match line.get("type"):
            case "session_meta" if payload.get("id") == facts.id or not facts.work_dir:
                facts.work_dir = as_text(payload.get("cwd")) or None
                facts.branch = as_text(as_object(payload.get("git")).get("branch")) or None
                facts.subagent_of = _subagent_of(payload)
                base = as_text(payload.get("forked_from_id")) or as_text(_base(line).get("thread_id"))
                facts.forked_from = ProviderSessionId(base) if base else None
                facts.forked_at = as_instant(payload.get("timestamp")) if base else None
            case "turn_context":
                facts.model = as_text(payload.get("model")) or facts.model
            case "compacted":
                facts.compactions += 1
                if turn is not None:
                    turn.notes.append(Noted("the context was compacted to a summary"))
            case "event_msg" if event.get("type") in ("item_completed", "user_message"):
                item = as_object(event.get("item")) or event
                pictures = [*as_list(item.get("content")), *as_list(item.get("images"))]
                pictures += as_list(item.get("local_images"))
                facts.images += sum(
                    1 for one in pictures if isinstance(one, str) or as_object(one).get("type") in _IMAGES
                )
            case kind if kind not in _KNOWN_LINES:
                facts.unknown[as_text(kind)[:80] or "none"] += 1
        if len(self._lines.too_long) > self._passed_over:
            if turn is not None:
                turn.notes += passed_over(self._lines.too_long[self._passed_over :])
            self._passed_over = len(self._lines.too_long)


def _tokens(usage: Usage) -> tuple[int, int, int]:
    return usage.input_tokens, usage.cached_input_tokens, usage.output_tokens


def _subagent_of(meta: Mapping[str, Json]) -> ProviderSessionId | None:
    """The session that started this one; an empty id if it is not said which."""
    source = as_object(meta.get("source"))
    if "subagent" not in source:
        return None
    spawn = as_object(as_object(source.get("subagent")).get("thread_spawn"))
    return ProviderSessionId(as_text(spawn.get("parent_thread_id")))


def _is_prompt(event: Mapping[str, Json]) -> bool:
    match event.get("type"):
        case "item_completed":
            return as_object(event.get("item")).get("type") == "UserMessage"
        case kind:
            return kind == "user_message"


@dataclass(slots=True)
class _Calls:
    """Codex writes a call up to three times: as the model asked for it, with its output, and as a completed item."""

    _called: dict[str, Called] = field(default_factory=dict)
    _returned: dict[str, Returned] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def add(self, line: Mapping[str, Json]) -> None:
        event = _event(line)
        response = as_object(line.get("payload")) if line.get("type") == "response_item" else {}
        if event.get("type") == "item_completed":
            self._item(_as_streamed(as_object(event.get("item"))))
        elif response.get("type") in _CALLS and response.get("name") not in _UNREPORTED:
            call = _written(response)
            if call.call_id not in self._taken:
                self._called.setdefault(call.call_id, call)
        elif response.get("type") in _OUTPUTS:
            output = response.get("output")
            text = joined_text(output) or joined_text(as_object(output).get("content"))
            call_id = as_text(response.get("call_id"))
            if _RUNS_ON not in text and call_id not in self._taken:
                self._returned.setdefault(call_id, Returned(call_id, text, is_error=False))

    def take(self, *, whole: bool) -> list[Called | Returned]:
        """In the order in which they began, each once; unless it is the whole, only those that have ended."""
        found: list[Called | Returned] = []
        for call_id, call in tuple(self._called.items()):
            result = self._returned.pop(call_id, None)
            if result is None and not whole:
                continue
            del self._called[call_id]
            self._taken.add(call_id)
            found += [call] if result is None else [call, result]
        return found

    def _item(self, item: Mapping[str, Json]) -> None:
        for call in _called(item):
            before = self._called.get(call.call_id)
            # a command may turn out to be a change of files
            if call.call_id not in self._taken and (before is None or before.tool != call.tool):
                self._called[call.call_id] = call
        self._returned |= {
            result.call_id: result for result in _returned(item) if result.call_id not in self._taken
        }


@dataclass(slots=True)
class _Turn:
    key: str
    began_at: Instant | None
    ended_at: Instant | None = None
    is_old: bool = False  #: of an older version, which does not say where it begins and ends
    is_over: bool = False
    prompts: list[str] = field(default_factory=list)  #: more than one if a person wrote while it ran
    calls: _Calls = field(default_factory=_Calls)
    notes: list[Noted] = field(default_factory=list)
    _answers: list[str] = field(default_factory=list)
    _is_complete: bool = False

    @property
    def archived(self) -> ArchivedTurn:
        response = "\n\n".join(self._answers) or None
        is_complete = self._is_complete or (self.is_old and response is not None)
        return ArchivedTurn(
            self.key, "\n\n".join(self.prompts), response, is_complete, calls=None,
            began_at=self.began_at, ended_at=self.ended_at,
        )  # fmt: skip

    def take_events(self, *, whole: bool) -> tuple[Called | Returned | Noted, ...]:
        notes, self.notes = self.notes, []
        return (*self.calls.take(whole=whole), *notes)

    def add(self, event: Mapping[str, Json], *, has_items: bool) -> None:
        match event.get("type"):
            case "item_completed" if has_items:
                self._item(as_object(event.get("item")))
            case "user_message" if not has_items:
                self.prompts += filter(None, [as_text(event.get("message"))])
            case "agent_message" if not has_items:
                self._answers += filter(None, [as_text(event.get("message"))])
            case "task_complete":
                self._is_complete = event.get("error") is None
                self.is_over = True
            case "turn_aborted":
                self.is_over = True

    def _item(self, item: Mapping[str, Json]) -> None:
        text = joined_text(item.get("content"))
        match item.get("type"):
            case "UserMessage" if text:
                self.prompts.append(text)
            case "AgentMessage" if text:
                self._answers.append(text)


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


def _parent(file: Path) -> str:
    """The id of the session that it was forked from, or nothing."""
    return as_text(_base(next(read_lines(file), {})).get("thread_id"))


def _database_number(database: Path) -> int:
    digits = "".join(filter(str.isdigit, database.stem))
    return int(digits) if digits else 0


def _base(line: Mapping[str, Json]) -> Mapping[str, Json]:
    """Where the history of a fork is; its first line says so."""
    return as_object(as_object(line.get("payload")).get("history_base"))

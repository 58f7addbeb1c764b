"""Owns opencode: how it is started, what it prints, and the sessions that it keeps."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, Final

from holdfast.clock import Instant
from holdfast.domain.decisions import Fork, Fresh, NotObservable, Resume
from holdfast.domain.events import AgentEvent, Called, Denied, Ended, Named, Noted, Returned, Said, Spent
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import Rights, TranscriptMark
from holdfast.domain.records import record, replace
from holdfast.domain.redaction import Json
from holdfast.domain.runtimes import Capabilities
from holdfast.domain.usage import NO_USAGE, Usage, UsageReport
from holdfast.errors import InvalidInput
from holdfast.processes.process import Command
from holdfast.processes.table import command_lines
from holdfast.providers.arguments import (
    FLAG,
    VALUE,
    WIDER_FLAG,
    WIDER_VALUE,
    WIDER_VALUES,
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
    compare_lists,
    home_folder,
    look_at,
    offers,
    read_version,
    unreadable_source,
)
from holdfast.providers.failure_rules import RULES
from holdfast.providers.loose_json import as_amount, as_count, as_instant, as_list, as_object, as_text
from holdfast.providers.report import SaidText
from holdfast.providers.session_files import (
    OnePassArchive,
    TurnsMark,
    are_turns_intact,
    mark_turns,
    open_readonly,
    parse_line,
)

#: the only permission mode: everything is allowed that the settings do not forbid
_AUTO: Final = "auto"
_MODEL: Final = "use holdfast run --model PROVIDER/MODEL"
_MODE: Final = f"use holdfast run --permission-mode {_AUTO}"
_OWNED: Final = {
    "--session": Instead.RESUME,
    "-s": Instead.RESUME,
    "--continue": Instead.RESUME,
    "-c": Instead.RESUME,
    "--fork": Instead.FORK,
    "--format": Instead.OUTPUT,
    "--dir": Instead.WORK_DIR,
    "--model": _MODEL,
    "-m": _MODEL,
    "--auto": _MODE,
    "--yolo": _MODE,
    "--dangerously-skip-permissions": _MODE,
    "--interactive": Instead.OPEN,
    "-i": Instead.OPEN,
    "--mini": Instead.OPEN,
    "--prompt": Instead.PROMPT,
    "--command": Instead.PROMPT,
    "--attach": Instead.FOREGROUND,
    "--password": Instead.FOREGROUND,
    "-p": Instead.FOREGROUND,
    "--username": Instead.FOREGROUND,
    "-u": Instead.FOREGROUND,
    "--help": Instead.NOT_A_TURN,
    "-h": Instead.NOT_A_TURN,
    "--version": Instead.NOT_A_TURN,
    "-v": Instead.NOT_A_TURN,
}
#: as ``opencode run --help`` has them
_KNOWN: Final[Mapping[str, Option]] = {
    # an agent of opencode has permissions of its own; the built-in ``plan`` edits nothing
    "--agent": Option(Takes.ONE, is_harmless=False, harmless_values=frozenset({"plan"})),
    "--file": WIDER_VALUES,
    "-f": WIDER_VALUES,
    "--log-level": VALUE,
    "--port": WIDER_VALUE,
    "--print-logs": FLAG,
    "--pure": FLAG,
    "--share": WIDER_FLAG,
    "--thinking": FLAG,
    "--title": VALUE,
    "--variant": VALUE,
}
#: this variable would select another database than the one in which sessions are looked for
_OTHER_DATABASE: Final = ("OPENCODE_DB",)


class Opencode(BaseProvider):
    name = "opencode"
    rules_file = RULES / "opencode.toml"
    tested = "1.18.33"
    install = "npm install -g opencode-ai"
    login = "run opencode auth login"
    modes = (_AUTO,)
    probes = (("--version",), ("run", "--help"))
    arguments = ArgumentRules(_OWNED, _KNOWN)

    def read_probe(self, outputs: tuple[str, ...]) -> Probe:
        """opencode prints its version without a name; the help begins with the name."""
        version_text, help_text = outputs
        product, version = read_version(version_text)
        can_resume = offers(help_text, "--session")
        return Probe(
            version,
            self.name if help_text.lstrip().startswith(self.name) else product,
            Capabilities(
                can_resume=can_resume,
                can_fork=can_resume and offers(help_text, "--fork"),
                append_only_transcript=True,
            ),
        )

    def home(self, environ: Mapping[str, str]) -> Path:
        return _opencode_home(environ)

    def home_variables(self, home: Path) -> Mapping[str, str]:
        return {"XDG_DATA_HOME": str(home.parent)}

    def check(self, rights: Rights, *, allow_wider: bool = False) -> None:
        if rights.permission_mode not in (None, _AUTO):
            raise InvalidInput(
                "permission mode", f"{rights.permission_mode[:40]!r} is not {_AUTO}, the only one of opencode"
            )
        if rights.allowed_tools:
            raise InvalidInput("allowed tools", "opencode has no such option; use its own settings")
        if rights.extra_dirs:
            raise InvalidInput("extra directories", "opencode has no such option; use its own settings")
        super().check(rights, allow_wider=allow_wider)

    def command(self, spec: LaunchSpec) -> Command:
        """From another directory than the session's, opencode would run the turn, print nothing and never end."""
        headless = ("run", "--format=json", f"--dir={spec.work_dir}")
        argv = (spec.binary, *headless, *_session(spec), *_options(spec))
        return Command(argv, stdin=spec.prompt, without=_OTHER_DATABASE, prints_to_file=True)

    def interactive(self, spec: LaunchSpec) -> Command:
        argv = (spec.binary, spec.work_dir, *_session(spec), *_options(spec))
        return Command(argv, without=_OTHER_DATABASE)

    def intake(self, binary: str, home: str, file: str) -> Command | None:
        """``import`` binds a session to the directory in which it is run, and adds what the database lacks of it."""
        return Command((binary, "import", file), without=_OTHER_DATABASE)

    def allowing(self, rights: Rights, call: Called, work_dir: str) -> Rights:
        return replace(rights, permission_mode=_AUTO)

    def stream(self, spec: LaunchSpec) -> Stream:
        return OpencodeStream()

    def archive(self, home: Path) -> Archive:
        return OpencodeArchive(home)


def _session(spec: LaunchSpec) -> tuple[str, ...]:
    match spec.decision:
        case Resume(provider_session_id):
            return (f"--session={provider_session_id}",)
        case Fork(provider_session_id):
            return (f"--session={provider_session_id}", "--fork")
        case Fresh():
            return ()


def _options(spec: LaunchSpec) -> tuple[str, ...]:
    rights = spec.rights
    return (
        *((f"--model={spec.model}",) if spec.model is not None else ()),
        *(("--auto",) if rights.permission_mode == _AUTO else ()),
        *rights.extra_args,
    )


# --- what `opencode run --format json` prints ---

#: ends of a model's answer after which the agent asks the model again
_ASKS_AGAIN: Final = ("tool-calls", "unknown", "")
#: ends of a model's answer that answer the turn
_ANSWERED: Final = ("stop", "length")
_PENDING: Final = "pending"  #: a call that the model is still writing
_RUNNING: Final = "running"
_REJECTED: Final = "The user rejected permission"  #: written when nobody could be asked, too
_NOT_GIVEN: Final = "it asks for a permission that the settings of opencode do not give"
_DONE: Final = (None, 0)  #: exit codes of a command that did not fail


class OpencodeStream:
    """One run: a step for each call to the model, each with its own tokens and cost."""

    def __init__(self) -> None:
        self._session_id = ""
        self._message = ""  #: id of the message that is being said
        self._said = SaidText()  #: by that message
        self._usage = NO_USAGE
        self._trouble = Ended(ok=True)  #: the last error; the run has failed even if it continued after it

    def read(self, line: Mapping[str, Json]) -> Iterator[AgentEvent]:
        session_id = as_text(line.get("sessionID"))
        if session_id and session_id != self._session_id:
            self._session_id = session_id
            yield Named(ProviderSessionId(session_id))
        part = as_object(line.get("part"))
        match line.get("type"):
            case "text" if part.get("synthetic") is not True:  # otherwise opencode's own text to the model
                yield self._say(as_text(part.get("messageID")), as_text(part.get("text")))
            case "tool_use":
                yield from self._call(part)
            case "step_finish":
                yield from self._finish(part)
            case "error":
                self._trouble = _failure(as_object(line.get("error")))
                yield self._trouble

    def _call(self, part: Mapping[str, Json]) -> Iterator[AgentEvent]:
        for event in _tool_use(part):
            if isinstance(event, Returned) and event.output.startswith(_REJECTED):
                yield Denied(event.call_id, as_text(part.get("tool")), _NOT_GIVEN)
            yield event

    def _say(self, message: str, text: str) -> Said:
        is_first = not self._message
        if message != self._message:
            self._message, self._said = message, SaidText()
        separator = "" if is_first else "\n\n"
        self._said.add(f"\n\n{text}" if self._said else text)
        return Said(separator + text)

    def _finish(self, step: Mapping[str, Json]) -> Iterator[AgentEvent]:
        self._usage += _usage(step)
        yield Spent(UsageReport(self._usage))
        reason, message = as_text(step.get("reason")), as_text(step.get("messageID"))
        if reason in _ASKS_AGAIN:
            return
        said = str(self._said) if message == self._message else ""
        self._message, self._said = "", SaidText()
        if reason in _ANSWERED:
            yield replace(self._trouble, ok=True, response=said or None)
        else:
            yield Ended(ok=False, error=f"the model's answer ended with {reason}", code=reason)


def _tool_use(part: Mapping[str, Json]) -> Iterator[Called | Returned]:
    """opencode prints a call once, when the tool has ended; its session has it earlier."""
    call_id, state = as_text(part.get("callID")), as_object(part.get("state"))
    yield Called(call_id, as_text(part.get("tool")), as_object(state.get("input")))
    if state.get("status") == _RUNNING:
        return
    is_done = state.get("status") == "completed" and as_object(state.get("metadata")).get("exit") in _DONE
    yield Returned(call_id, as_text(state.get("output")) or as_text(state.get("error")), is_error=not is_done)


def _usage(step: Mapping[str, Json]) -> Usage:
    tokens = as_object(step.get("tokens"))
    cache = as_object(tokens.get("cache"))
    read, written = as_count(cache.get("read")), as_count(cache.get("write"))
    return Usage(
        as_count(tokens.get("input")) + read + written,
        read,
        as_count(tokens.get("output")) + as_count(tokens.get("reasoning")),
        as_amount(step.get("cost")),
    )


def _failure(error: Mapping[str, Json]) -> Ended:
    data = as_object(error.get("data"))
    said = [as_text(data.get("message")) or as_text(error.get("message")), as_text(data.get("responseBody"))]
    return Ended(
        ok=False,
        error="\n".join(part for part in said if part),
        status=as_count(data.get("statusCode")) or None,
        code=as_text(error.get("name")),
    )


# --- the sessions that opencode keeps ---

_SESSIONS: Final = """
    SELECT id, directory, title FROM session WHERE parent_id IS NULL AND substr(id, 1, ?) = ?
"""
_SOURCES: Final = """
    SELECT s.id, COUNT(m.id), MAX(s.time_updated, COALESCE(MAX(m.time_updated), 0)) AS changed_at
    FROM session s LEFT JOIN message m ON m.session_id = s.id
    WHERE :directory IS NULL OR s.directory = :directory
    GROUP BY s.id ORDER BY changed_at DESC
"""
_SESSION: Final = "SELECT revert, directory FROM session WHERE id = ?"
_FACTS: Final = "SELECT directory, title, parent_id FROM session WHERE id = ?"
#: texts and tool calls are parts of a message; calls are read only if they are asked for
_MESSAGES: Final = """
    SELECT m.id, m.data, p.data FROM message m
    LEFT JOIN part p ON p.message_id = m.id AND (
        instr(p.data, '"type":"text"') > 0
        OR (? AND (instr(p.data, '"type":"tool"') > 0 OR instr(p.data, '"type":"file"') > 0)))
    WHERE m.session_id = ? ORDER BY m.time_created, m.id, p.id
"""
_NO_TITLE: Final = re.compile(r"(New|Child) session - \d{4}-\d\d-\d\dT")
_MESSAGE_IDS: Final = "SELECT id FROM message WHERE session_id = ? ORDER BY time_created, id"
_WITH_SUBAGENTS: Final = """
    WITH RECURSIVE family(id, depth) AS (
        SELECT id, 0 FROM session WHERE id = ?
        UNION SELECT session.id, depth + 1 FROM session JOIN family ON session.parent_id = family.id WHERE depth < 32
    )
    SELECT id FROM family GROUP BY id ORDER BY min(depth), id
"""
#: the columns of a session, under the names that an export gives them; a path leads into objects
_EXPORTED: Final = {
    "id": "id", "slug": "slug", "project_id": "projectID", "workspace_id": "workspaceID",
    "directory": "directory", "path": "path", "parent_id": "parentID", "title": "title", "agent": "agent",
    "model": "model", "version": "version", "summary_additions": "summary.additions",
    "summary_deletions": "summary.deletions", "summary_files": "summary.files",
    "summary_diffs": "summary.diffs", "share_url": "share.url", "metadata": "metadata", "cost": "cost",
    "tokens_input": "tokens.input", "tokens_output": "tokens.output", "tokens_reasoning": "tokens.reasoning",
    "tokens_cache_read": "tokens.cache.read", "tokens_cache_write": "tokens.cache.write",
    "permission": "permission", "revert": "revert", "time_created": "time.created",
    "time_updated": "time.updated", "time_compacting": "time.compacting", "time_archived": "time.archived",
}  # fmt: skip
#: of these, the columns that hold JSON
_AS_JSON: Final = frozenset({"model", "summary_diffs", "metadata", "permission", "revert"})
_EXPORTED_MESSAGES: Final = """
    SELECT m.id, m.data, p.id, p.data FROM message m LEFT JOIN part p ON p.message_id = m.id
    WHERE m.session_id = ? ORDER BY m.time_created, m.id, p.id
"""
#: a damaged database, or an id that is not text
_UNREADABLE: Final = (sqlite3.Error, OSError, ValueError)
#: options with which a program opens a session to write to it
_OPENING: Final = frozenset({"--session", "-s"})


def _opencode_home(environ: Mapping[str, str]) -> Path:
    return home_folder(environ, "XDG_DATA_HOME", ".local/share") / "opencode"


class OpencodeArchive(OnePassArchive):
    """All sessions are in one SQLite database."""

    rewrites = True

    def __init__(self, home: Path) -> None:
        self._database = home / "opencode.db"

    def find(self, session_id: ProviderSessionId, work_dir: str | None) -> str | None:
        """Only in the directory where the session began: in another one opencode would never end."""
        try:
            with closing(open_readonly(str(self._database))) as database:
                found = database.execute(_SESSION, (session_id,)).fetchone()
                is_here = found is not None and (work_dir is None or found[1] == os.path.realpath(work_dir))
        except _UNREADABLE:
            return None
        return str(self._database) if is_here else None

    def sessions(self, beginning: str = "") -> Iterator[StoredSession]:
        path = str(self._database)
        try:
            with closing(open_readonly(path)) as database:
                rows = database.execute(_SESSIONS, (len(beginning), beginning)).fetchall()
        except _UNREADABLE:
            return
        for session_id, directory, title in rows:
            yield StoredSession(ProviderSessionId(session_id), path, directory, _title(title))

    def title(self, path: str, session_id: ProviderSessionId) -> str | None:
        try:
            with closing(open_readonly(path)) as database:
                _, title, _ = database.execute(_FACTS, (session_id,)).fetchone() or (None, None, None)
        except _UNREADABLE:
            return None
        return _title(title)

    def sources(self, work_dir: str | None = None) -> Iterator[Source]:
        """Of a session in a database, the number of its messages and the time of its last change take the place of a file's."""
        path = str(self._database)
        try:
            with closing(open_readonly(path)) as database:
                rows = database.execute(_SOURCES, {"directory": work_dir}).fetchall()
        except _UNREADABLE as exc:
            if look_at(path, None) is not None:
                yield unreadable_source(path, f"the database cannot be read: {exc}")
            return
        for session_id, messages, changed_at in rows:
            place = f"{path}#{session_id}"
            yield Source(place, path, messages, changed_at * 1_000_000, ProviderSessionId(session_id))

    def reading(
        self,
        path: str,
        facts: SessionFacts,
        *,
        after: TranscriptMark | None = None,
        room: int | None = None,
        with_events: bool = True,
    ) -> SessionReading:
        turns = _read(path, facts, 0 if after is None else after.size, with_events=with_events)
        return SessionReading(turns, facts)

    def spent(self, path: str, session_id: ProviderSessionId) -> Usage | None:
        return None

    def mark(self, path: str, session_id: ProviderSessionId) -> TranscriptMark | None:
        try:
            return mark_turns(path, _archived(path, session_id))
        except _UNREADABLE:
            return None

    def writer(self, path: str, session_id: ProviderSessionId) -> str | None:
        """A program that was started on this session. The database holds all sessions and does not tell who has which one open."""
        for running in command_lines("opencode"):
            is_at_home = _opencode_home(running.environ).resolve() == self._database.parent.resolve()
            forks = "--fork" in running.arguments  # a fork only reads the session
            if is_at_home and not forks and running.gives(_OPENING, session_id):
                return f"opencode (process {running.pid})"
        return None

    def is_intact(self, recorded: TranscriptMark, session_id: ProviderSessionId) -> bool | NotObservable:
        try:
            return are_turns_intact(recorded, _archived(recorded.path, session_id))
        except _UNREADABLE:
            return False

    def files(self, path: str, session_id: ProviderSessionId) -> Iterator[SessionFile]:
        """One export for the session and for each session of its subagents, as ``opencode import`` takes them."""
        try:
            with closing(open_readonly(path)) as database:
                named = [name for (name,) in database.execute(_WITH_SUBAGENTS, (session_id,))]
                found = [(name, data) for name in named if (data := _export(database, name)) is not None]
        except _UNREADABLE:
            return
        for name, data in found:
            file = f"{self._database.name}/{name}.json"
            yield SessionFile(file, None, data, is_main=name == session_id)

    def belonging(
        self, names: Sequence[str], session_id: ProviderSessionId, read: Callable[[str], Iterable[bytes]]
    ) -> frozenset[str]:
        """``import`` goes by what is in an export: it must be of the session that its name says, or of a subagent of it."""
        parents: dict[str, str] = {}  #: of each export whose name is right
        for name in names:
            match PurePosixPath(name).parts:
                case (_, file) if file.endswith(".json"):
                    info = as_object((parse_line(b"".join(read(name))) or {}).get("info"))
                    if as_text(info.get("id")) == file.removesuffix(".json"):
                        parents[name] = as_text(info.get("parentID"))
        own: set[str] = set()
        found = {name for name in parents if PurePosixPath(name).stem == session_id}
        while found:
            own |= found
            ids = {PurePosixPath(name).stem for name in found}
            found = {name for name, parent in parents.items() if parent in ids} - own
        return frozenset(own)

    def compare(
        self, name: str, kept: Iterable[bytes], session_id: ProviderSessionId, work_dir: str | None
    ) -> Comparison:
        """By the ids of the messages: opencode changes other things when it takes a session in."""
        before = _message_ids(b"".join(kept))
        try:
            with closing(open_readonly(str(self._database))) as database:
                named = Path(name).stem
                if database.execute(_SESSION, (named,)).fetchone() is None:
                    return Comparison.ABSENT
                here = [message_id for (message_id,) in database.execute(_MESSAGE_IDS, (named,))]
        except _UNREADABLE:
            return Comparison.AHEAD if self._database.exists() else Comparison.ABSENT
        return compare_lists(here, before)


@record
class _Message:
    id: str
    data: Mapping[str, Json]
    text: str  #: without what opencode added itself
    calls: tuple[Mapping[str, Json], ...] = ()  #: its parts that are tool calls
    images: int = 0

    @property
    def role(self) -> str:
        return as_text(self.data.get("role"))

    @property
    def answers(self) -> str:
        return as_text(self.data.get("parentID"))

    @property
    def is_prompt(self) -> bool:
        return self.role == "user" and self.text != ""

    @property
    def is_answer(self) -> bool:
        """Answered to the end: a failed call to the model has an error, an interrupted one has no end at all."""
        is_ended = "completed" in as_object(self.data.get("time")) and "error" not in self.data
        return is_ended and as_text(self.data.get("finish")) in _ANSWERED


@dataclass(slots=True)
class _Turn:
    key: str
    prompt: str
    began_at: Instant | None
    is_answered: bool = False
    events: list[Called | Returned | Noted] = field(default_factory=list)
    usage: Usage = NO_USAGE
    model: str | None = None
    _said: str = ""
    _ended_at: Instant | None = None

    @property
    def archived(self) -> ArchivedTurn:
        return ArchivedTurn(
            self.key, self.prompt, self._said or None, self.is_answered, calls=None,
            began_at=self.began_at, ended_at=self._ended_at,
        )  # fmt: skip

    def add(self, message: _Message) -> None:
        """Text before a tool call is not the answer, nor is a summary of the context."""
        for part in message.calls:
            if as_object(part.get("state")).get("status") != _PENDING:
                self.events += _tool_use(part)
        self.usage += _usage(message.data)
        named = as_text(message.data.get("providerID")), as_text(message.data.get("modelID"))
        self.model = "/".join(named) if all(named) else self.model
        if message.data.get("summary") is True:
            self.events.append(Noted("the context was compacted to a summary"))
        else:
            self._said, self.is_answered = message.text, message.is_answer
            self._ended_at = as_instant(as_object(message.data.get("time")).get("completed"))


def _title(title: str | None) -> str | None:
    """Without the one that opencode gives to a session until a model has found a better one."""
    return None if title is None or _NO_TITLE.match(title) else title or None


def _read(path: str, facts: SessionFacts, after: int, *, with_events: bool) -> Iterator[ReadTurn]:
    mark = TurnsMark()
    try:
        with closing(open_readonly(path)) as database:
            found = database.execute(_FACTS, (facts.id,)).fetchone() or (None, None, None)
            facts.work_dir, title, facts.subagent_of = found
            facts.title = _title(title)
        for number, turn in enumerate(
            _turns(_counted(_messages(path, facts.id, with_calls=with_events), facts))
        ):
            facts.first_key = facts.first_key or turn.key
            facts.model = turn.model or facts.model
            mark.add(turn.archived)
            if number >= after:
                yield ReadTurn(turn.archived, tuple(turn.events), turn.usage, turn.model)
    except _UNREADABLE as exc:
        facts.problem = str(exc)
        return
    facts.mark, facts.before_last = mark.of(path), mark.before_last(path)


def _counted(messages: Iterable[_Message], facts: SessionFacts) -> Iterator[_Message]:
    for message in messages:
        facts.images += message.images
        facts.compactions += message.data.get("summary") is True and message.role == "assistant"
        yield message


def _archived(path: str, session_id: ProviderSessionId) -> Iterator[ArchivedTurn]:
    return (turn.archived for turn in _turns(_messages(path, session_id)))


def _turns(messages: Iterable[_Message]) -> Iterator[_Turn]:
    """Two programs may have written at the same time: each answer names the prompt that it answers."""
    waiting: dict[str, _Turn] = {}
    continued: dict[str, str] = {}  #: opencode's own prompt, after it compacted the context -> the turn
    for message in messages:
        if message.is_prompt:
            while waiting and (first := next(iter(waiting.values()))).is_answered:
                yield waiting.pop(first.key)
            waiting[message.id] = _Turn(
                message.id, message.text, as_instant(as_object(message.data.get("time")).get("created"))
            )
        elif message.role == "user" and waiting:
            continued[message.id] = next(reversed(waiting))
        elif (turn := waiting.get(continued.get(message.answers, message.answers))) is not None:
            turn.add(message)
    yield from waiting.values()


def _messages(path: str, session_id: ProviderSessionId, *, with_calls: bool = False) -> Iterator[_Message]:
    """In order, up to the point to which the session was undone: the next prompt deletes the rest."""
    with closing(open_readonly(path)) as database:
        session = database.execute(_SESSION, (session_id,)).fetchone()
        if session is None:
            raise sqlite3.DataError(f"no session {session_id}")
        undone = as_text(_parse(session[0]).get("messageID"))
        rows = database.execute(_MESSAGES, (with_calls, session_id))
        for (message_id, data), group in groupby(rows, key=lambda row: row[:2]):
            if message_id == undone:
                return
            parts = [_parse(part) for _, _, part in group]
            calls = tuple(part for part in parts if part.get("type") == "tool")
            images = sum(_is_image(part) for part in parts)
            yield _Message(message_id, _parse(data), _text(parts), calls, images)


def _is_image(part: Mapping[str, Json]) -> bool:
    return part.get("type") == "file" and as_text(part.get("mime")).startswith("image/")


def _export(database: sqlite3.Connection, session_id: str) -> bytes | None:
    """The session in the form of ``opencode export``. What changes with each turn stands last; the rest only grows."""
    found = database.execute("SELECT * FROM session WHERE id = ?", (session_id,))
    columns = [column[0] for column in found.description]
    values = found.fetchone()
    if values is None:
        return None
    info: dict[str, Any] = {}
    for column, value in zip(columns, values, strict=True):
        if column in _EXPORTED and value is not None:
            *folders, name = _EXPORTED[column].split(".")
            place = info
            for folder in folders:
                place = place.setdefault(folder, {})
            place[name] = json.loads(value) if column in _AS_JSON else value
    messages = []
    rows = database.execute(_EXPORTED_MESSAGES, (session_id,))
    for (message_id, data), group in groupby(rows, key=lambda row: row[:2]):
        belongs = {"sessionID": session_id, "messageID": message_id}
        parts = [{**_parse(part), "id": part_id, **belongs} for *_, part_id, part in group if part_id]
        message = {**_parse(data), "id": message_id, "sessionID": session_id}
        messages.append(_canonical({"info": message, "parts": parts}))
    written = ",\n".join(messages)
    return f'{{"messages":[\n{written}\n],"info":{_canonical(info)}}}\n'.encode()


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _message_ids(export: bytes) -> list[str]:
    messages = map(as_object, as_list((parse_line(export) or {}).get("messages")))
    return [as_text(as_object(message.get("info")).get("id")) for message in messages]


def _text(parts: Iterable[Mapping[str, Json]]) -> str:
    own = (part for part in parts if part.get("type") == "text" and part.get("synthetic") is not True)
    return "\n\n".join(text for part in own if (text := as_text(part.get("text"))))


def _parse(data: object) -> Mapping[str, Json]:
    try:
        return as_object(json.loads(data)) if isinstance(data, str) else {}
    except (ValueError, RecursionError):
        return {}

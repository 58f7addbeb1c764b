"""Owns the provider contract: everything Holdfast must know about an agent to run, resume and judge it.

A provider is declarations and pure translations; it starts no process and writes no file. ``processes`` runs the
agent, ``engine.running.agents`` finds its binary, and the provider's ``Archive`` reads the agent's own sessions. Other packages
write providers, too: see "Write a provider" in docs/reference/providers.md.
"""

from __future__ import annotations

import dataclasses
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from holdfast.clock import Instant, after
from holdfast.domain.decisions import Fork, Fresh, NotObservable, Resume
from holdfast.domain.events import AgentEvent, Called, Noted, Returned
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import Rights, TranscriptMark
from holdfast.domain.records import field, record, replace
from holdfast.domain.redaction import Json
from holdfast.domain.runtimes import Capabilities
from holdfast.domain.usage import NO_USAGE, Usage
from holdfast.domain.vault import check_file_name
from holdfast.errors import InvalidInput
from holdfast.processes.process import Command
from holdfast.providers.arguments import ArgumentRules
from holdfast.providers.failure_rules import FailureRules, load_rules


@record
class ToolGate:
    """What the agent asks before each tool call, as Claude Code asks its PreToolUse hooks. Without an answer no call is made."""

    command: str  #: a shell command that judges one call
    seconds: int  #: the command has answered long before this
    arm: str  #: a shell command, to be run when the agent's session starts ...
    armed: Path  #: ... which writes this file: it proves that the agent runs its hooks
    #: a shell command, after each call: compares the call that ran with the call that was let through ...
    done: str | None
    changed: Path  #: ... which writes this file, with the reason in it, if they differ
    #: the call that a person approved, and the file that is written if it ran unchanged
    approved: tuple[str, Path] | None


@record
class ForeignHook:
    """A hook of somebody else that may change a tool call after the gate has judged it."""

    where: str  #: the file that declares it
    what: str  #: its command, or its address

    def __str__(self) -> str:
        return f"{self.what} ({self.where})"


@record
class LaunchSpec:
    """One launch, fully decided. Only ``decision`` says which session the agent begins, resumes or forks."""

    binary: str
    home: str
    work_dir: str
    prompt: str | None  #: as it is sent, context included; None: continue with the call that was deferred
    decision: Resume | Fork | Fresh
    new_id: ProviderSessionId | None  #: for a new or forked session, where the provider lets us choose
    model: str | None
    rights: Rights
    gate: ToolGate | None = None  #: where calls wait for a person
    partial_text: bool = False  #: the agent is asked for its text while it writes it

    @property
    def expected_id(self) -> ProviderSessionId | None:
        """The session id that the agent must report; None where only the provider can choose it."""
        return self.decision.provider_session_id if isinstance(self.decision, Resume) else self.new_id


@record
class Probe:
    """What a binary said about itself."""

    version: str | None
    distribution: str  #: tells apart products whose binaries have the same name
    capabilities: Capabilities


@record
class ArchivedTurn:
    """One turn as the provider's own session holds it."""

    key: str  #: identifies the turn within the session; never changes
    prompt: str
    response: str | None
    complete: bool  #: the agent came to the end of its answer
    #: the ids of its tool calls, as the stream reports them, and whether the session holds their results;
    #: None: the provider saves each call before it makes it, so none of them can be missing
    calls: Mapping[str, bool] | None = field(default_factory=dict)
    #: False: on a branch that the session has left, so that the model no longer gets it
    live: bool = True
    began_at: Instant | None = None  #: None where the provider does not write it down, as for the next one
    ended_at: Instant | None = None  #: when the last part of the answer was saved


@record
class StoredSession:
    """A session that the provider keeps, as far as that can be told without reading all of it."""

    id: ProviderSessionId
    path: str
    work_dir: str | None = None  #: where it began
    title: str | None = None  #: a person's own, else the provider's


@record
class Source:
    """A session as a provider keeps it, seen without reading it. It has changed if its size or its time has.

    Also a folder that may hold sessions and cannot be read, with its ``problem``.
    """

    place: str  #: unique in the provider's home: the path of a file; in a database, ``#`` and the id come after it
    path: str
    size: int
    mtime_ns: int  #: 0: not known
    id: ProviderSessionId | None = None  #: None: only reading it tells
    #: why it is not read, with what to do about it; None: nothing is known against it
    problem: str | None = None


@record
class ReadTurn:
    """One turn with all that happened in it. A long turn is read in parts; the texts are whole in its last part."""

    turn: ArchivedTurn
    events: tuple[Called | Returned | Noted, ...] = ()  #: of this part, in order; a result follows its call
    usage: Usage = NO_USAGE
    model: str | None = None
    is_part: bool = False  #: more of the same turn follows


@dataclasses.dataclass(slots=True)
class SessionFacts:
    """What a session says about itself; complete once its turns were read to the end."""

    id: ProviderSessionId
    work_dir: str | None = None
    branch: str | None = None  #: of git, when the session was last used
    title: str | None = None  #: a person's own, else the provider's
    model: str | None = None  #: the one that answered last
    forked_from: ProviderSessionId | None = None
    forked_at: Instant | None = None  #: set for a fork, also where the provider does not say of which session
    subagent_of: ProviderSessionId | None = None  #: the session whose agent started this one
    first_key: str | None = (
        None  #: of its first turn; a fork has the same one where the provider copies the turns
    )
    compactions: int = 0  #: how often its context was reduced to a summary
    images: int = 0
    damaged: int = 0  #: lines that are cut off, or not JSON
    too_long: int = 0  #: lines that were passed over because of their length
    unknown: Counter[str] = dataclasses.field(default_factory=Counter)  #: lines of unknown types, by type
    dead: set[str] = dataclasses.field(
        default_factory=set
    )  #: keys of turns on branches that the session has left
    mark: TranscriptMark | None = None
    before_last: TranscriptMark | None = None  #: what the mark was before its last turn began
    spent: Usage | None = None
    problem: str | None = None  #: why it could not be read to its end


@record
class SessionReading:
    """One pass over a session: its turns, read lazily, and then the facts."""

    turns: Iterator[ReadTurn]
    facts: SessionFacts


@record
class SessionFile:
    """One file of a provider's own session, as the vault keeps it."""

    name: str  #: where it belongs below the provider's home, with forward slashes
    path: str | None  #: where its bytes are now; None: they are in ``data``
    data: bytes | None = None
    is_main: bool = False  #: holds the session itself; the others are its sidecars or ancestors


class Comparison(StrEnum):
    """What the provider has of a file, compared with what was kept of it."""

    ABSENT = "absent"
    EQUAL = "equal"
    AHEAD = "ahead"  #: it has everything that was kept, and more
    BEHIND = "behind"  #: it has a beginning of what was kept, and nothing else
    DIVERGED = "diverged"


@record
class Mending:
    """Changes to a provider's own files without which the provider would resume a damaged session."""

    data: bytes  #: the new content of the file that holds the session
    superfluous: tuple[str, ...] = ()  #: files to delete after that


class Stream(Protocol):
    """Reads the output of one run. History that the agent prints again is no event of this turn."""

    def read(self, line: Mapping[str, Json]) -> Iterable[AgentEvent]:
        """Never raises: a line of an unexpected shape gives no event, or a ``Noted``."""
        ...


class Archive(Protocol):
    """A provider's own sessions on disk. Only reads, and never raises: a damaged session counts as a missing one."""

    @property
    def renames_calls(self) -> bool:
        """The session files give tool calls other ids than the stream does."""
        ...

    @property
    def rewrites(self) -> bool:
        """Session files are written anew now and then: an older version that differs is not worth keeping."""
        ...

    def find(self, session_id: ProviderSessionId, work_dir: str | None) -> str | None:
        """The file that holds the session; None if there is none."""
        ...

    def sessions(self, beginning: str = "") -> Iterator[StoredSession]:
        """The sessions whose ids begin with a text, in no order; those of subagents are part of others, and left out."""
        ...

    def sources(self, work_dir: str | None = None) -> Iterator[Source]:
        """Every session with one look at its file and none into it, those of subagents included; in no order.

        A folder or a file that is there and cannot be looked at is a source with a ``problem``.
        With a directory, the newest ones first, without those that are known to be of another directory.
        """
        ...

    def read(
        self,
        path: str,
        session_id: ProviderSessionId | None,
        after: TranscriptMark | None = None,
        room: int | None = None,
    ) -> SessionReading:
        """All of a session in one pass. With a mark, only the turns that were added since the mark was made.

        ``room``: about how many characters of it may be held at a time. A longer session comes in parts, lines above
        ``LONGEST_READ`` are passed over, and which turns are ``live`` is known only from ``SessionFacts.dead``.
        """
        ...

    def turns(
        self, path: str, session_id: ProviderSessionId, after: TranscriptMark | None = None
    ) -> Iterator[ArchivedTurn]:
        """Oldest first, read lazily; with a mark, only the turns that were added since the mark was made."""
        ...

    def calls(self, path: str, session_id: ProviderSessionId) -> Iterator[tuple[str, Called | Returned]]:
        """The tool calls with the keys of their turns, in the order in which they began; a result follows its call."""
        ...

    def title(self, path: str, session_id: ProviderSessionId) -> str | None:
        """The title of a session, a person's own or else the provider's, without reading all of it; None: it has none."""
        ...

    def mark(self, path: str, session_id: ProviderSessionId) -> TranscriptMark | None:
        """The state of the session now; None if it cannot be read."""
        ...

    def spent(self, path: str, session_id: ProviderSessionId) -> Usage | None:
        """The totals that the provider would continue from; None where it counts from zero in each run."""
        ...

    def writer(self, path: str, session_id: ProviderSessionId) -> str | None:
        """Describes a program that has the session open and may write to it; None if no such program is seen."""
        ...

    def is_intact(self, recorded: TranscriptMark, session_id: ProviderSessionId) -> bool | NotObservable:
        """Is everything up to the mark unchanged? NotObservable where a provider rewrites its files."""
        ...

    @property
    def keeps_seconds(self) -> float | None:
        """How long after its last change a session is deleted by the provider itself; None: never."""
        ...

    def expires_at(self, path: str) -> Instant | None:
        """From when on the provider may delete this session, as its settings are now; None: never, or it is not there."""
        ...

    def files(self, path: str, session_id: ProviderSessionId) -> Iterator[SessionFile]:
        """Every file that the provider needs to resume the session, the main one first.

        Also those of its subagents, and the sessions that it was forked from. An unchanged session gives the same bytes.
        """
        ...

    def belonging(
        self, names: Sequence[str], session_id: ProviderSessionId, read: Callable[[str], Iterable[bytes]]
    ) -> frozenset[str]:
        """Those of the names that ``files`` can have given for exactly this session; no other file is put back.

        Others may have written to the vault: a name that is not known to be the session's own does not belong to it.
        ``read`` gives the bytes that were kept under a name, for files whose names do not tell whose they are.
        Only asked by ``own_names``, about paths that stay below a folder.
        """
        ...

    def place(self, name: str, session_id: ProviderSessionId, work_dir: str | None) -> str | None:
        """Where the provider looks for a file of that session that was kept under this name, whether it is there or not.

        Only asked about names that are ``belonging`` to the session.

        None: the provider keeps no such files, and takes in what was kept with ``Provider.intake``.
        """
        ...

    def aside(self, name: str, session_id: ProviderSessionId) -> str | None:
        """Like ``place``, for a session whose own file has diverged: ``find`` prefers what is here from then on.

        None: the provider resumes only what is in its own store.
        """
        ...

    def companions(self, path: str, work_dir: str) -> Iterator[tuple[str, bytes]]:
        """Files, with their content, that must be there before the session is put into ``path``; others are left alone."""
        ...

    def compare(
        self, name: str, kept: Iterable[bytes], session_id: ProviderSessionId, work_dir: str | None
    ) -> Comparison:
        """What the provider has of a file that was kept. A file that cannot be compared counts as ahead: it is left alone."""
        ...

    def mend(self, path: str, session_id: ProviderSessionId) -> Mending | None:
        """What to change before the session is resumed, and after that; None: nothing."""
        ...


class Provider(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def binaries(self) -> tuple[str, ...]:
        """The names of its program, the best one first."""
        ...

    @property
    def probes(self) -> tuple[tuple[str, ...], ...]:
        """Arguments that make the binary describe itself. ``read_probe`` gets what it prints, in this order."""
        ...

    @property
    def tested(self) -> str | None:
        """The version of its program that the provider was tested with; None: no particular one."""
        ...

    @property
    def install(self) -> str:
        """The command that installs its program; empty if there is no single one."""
        ...

    @property
    def login(self) -> str:
        """How a person logs in, as an instruction that a sentence can end with; empty if nobody has to."""
        ...

    @property
    def rules(self) -> FailureRules: ...

    @property
    def arguments(self) -> ArgumentRules:
        """Which of its own arguments would override a decision, and which are known to be harmless."""
        ...

    def read_probe(self, outputs: tuple[str, ...]) -> Probe: ...

    def home(self, environ: Mapping[str, str]) -> Path:
        """The folder of its sessions. It is part of a runtime's identity."""
        ...

    def home_variables(self, home: Path) -> Mapping[str, str]:
        """The environment variables that make ``home`` its home; empty where none can."""
        ...

    def check(self, rights: Rights, *, allow_wider: bool = False) -> None:
        """Raises InvalidInput for rights that this provider cannot express, and for arguments that are not passed on.

        ``allow_wider``: somebody accepted that the arguments may widen what the agent may do.
        """
        ...

    @property
    def modes(self) -> tuple[str, ...]:
        """The permission modes that it knows, for the help; empty if it has none."""
        ...

    @property
    def denies_silently(self) -> bool:
        """Its stream does not report the calls that it was denied: its own session is looked at, with ``denial``."""
        ...

    def denial(self, rights: Rights, returned: Returned) -> str | None:
        """Why a call with this result was denied; None: it was not. Only asked where denials are silent."""
        ...

    def allowing(self, rights: Rights, call: Called, work_dir: str) -> Rights:
        """The rights with which it may make a call that it was denied; the same rights if no option gives them."""
        ...

    def foreign_hooks(self, home: Path, work_dir: Path, rights: Rights) -> tuple[ForeignHook, ...]:
        """Everything that could change a tool call after the gate has judged it. Only asked where calls can wait."""
        ...

    def mint_id(self, decision: Fork | Fresh) -> ProviderSessionId | None:
        """A new id for the session that is about to begin; None where only the provider can choose it."""
        ...

    def command(self, spec: LaunchSpec) -> Command:
        """Runs one turn without a person. It prints one JSON object a line."""
        ...

    def interactive(self, spec: LaunchSpec) -> Command:
        """Opens the provider's own program for a person, on the session of ``spec``. The prompt is not sent."""
        ...

    def intake(self, binary: str, home: str, file: str) -> Command | None:
        """Takes a file that ``Archive.files`` gave into the provider's own store; run in the session's directory.

        None where files are put in their ``Archive.place`` instead.
        """
        ...

    def stream(self, spec: LaunchSpec) -> Stream: ...

    def archive(self, home: Path) -> Archive: ...


class BaseProvider:
    """What most providers say alike. A provider inherits it, and overrides what is different about itself."""

    name: str
    arguments: ArgumentRules
    probes: tuple[tuple[str, ...], ...] = (("--version",), ("--help",))
    rules_file: Path | None = None  #: its own failure rules, as TOML; None: the common rules alone
    tested: str | None = None
    install: str = ""
    login: str = ""
    modes: tuple[str, ...] = ()
    denies_silently = False

    @property
    def binaries(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def rules(self) -> FailureRules:
        return load_rules(self.name, self.rules_file)

    def check(self, rights: Rights, *, allow_wider: bool = False) -> None:
        """Only the arguments are checked: a provider refuses the other rights that it cannot express."""
        if rights.approve_tools:
            raise InvalidInput("approve_tools", f"not supported by this provider ({self.name})")
        self.arguments.check(rights.extra_args, allow_wider=allow_wider)

    def denial(self, rights: Rights, returned: Returned) -> str | None:
        return None

    def allowing(self, rights: Rights, call: Called, work_dir: str) -> Rights:
        return rights

    def foreign_hooks(self, home: Path, work_dir: Path, rights: Rights) -> tuple[ForeignHook, ...]:
        return ()

    def mint_id(self, decision: Fork | Fresh) -> ProviderSessionId | None:
        return None

    def home_variables(self, home: Path) -> Mapping[str, str]:
        return {}

    def intake(self, binary: str, home: str, file: str) -> Command | None:
        return None


class BaseArchive:
    """The same for archives: the sessions hold the ids of the stream, and nothing is counted across runs."""

    renames_calls = False
    rewrites = False

    @property
    def keeps_seconds(self) -> float | None:
        return None

    def sessions(self, beginning: str = "") -> Iterator[StoredSession]:
        """A provider that cannot list its sessions has none to list; each of them can still be found by its id."""
        return iter(())

    def title(self, path: str, session_id: ProviderSessionId) -> str | None:
        return None

    def sources(self, work_dir: str | None = None) -> Iterator[Source]:
        for stored in self.sessions():
            if work_dir in (None, stored.work_dir) and (seen := look_at(stored.path, stored.id)) is not None:
                yield seen

    def turns(
        self, path: str, session_id: ProviderSessionId, after: TranscriptMark | None = None
    ) -> Iterator[ArchivedTurn]:
        raise NotImplementedError

    def calls(self, path: str, session_id: ProviderSessionId) -> Iterator[tuple[str, Called | Returned]]:
        raise NotImplementedError

    def mark(self, path: str, session_id: ProviderSessionId) -> TranscriptMark | None:
        raise NotImplementedError

    def read(
        self,
        path: str,
        session_id: ProviderSessionId | None,
        after: TranscriptMark | None = None,
        room: int | None = None,
    ) -> SessionReading:
        """For a provider that reads turns and calls each by itself: in several passes, and all at once."""
        facts = SessionFacts(session_id or ProviderSessionId(""))
        return SessionReading(self._read(path, facts, after), facts)

    def _read(self, path: str, facts: SessionFacts, after: TranscriptMark | None) -> Iterator[ReadTurn]:
        facts.mark, facts.spent = self.mark(path, facts.id), self.spent(path, facts.id)
        calls: dict[str, list[Called | Returned]] = {}
        for key, event in self.calls(path, facts.id):
            calls.setdefault(key, []).append(event)
        for turn in self.turns(path, facts.id, after):
            facts.first_key = facts.first_key or turn.key
            if not turn.live:
                facts.dead.add(turn.key)
            yield ReadTurn(turn, tuple(calls.get(turn.key, ())))

    def spent(self, path: str, session_id: ProviderSessionId) -> Usage | None:
        return None

    def writer(self, path: str, session_id: ProviderSessionId) -> str | None:
        return None

    def expires_at(self, path: str) -> Instant | None:
        if self.keeps_seconds is None:
            return None
        try:
            changed_at = os.stat(path).st_mtime_ns // 1000  # noqa: PTH116 - one system call for each listed session
        except (OSError, ValueError):
            return None
        return after(Instant(changed_at), self.keeps_seconds)

    def files(self, path: str, session_id: ProviderSessionId) -> Iterator[SessionFile]:
        """A provider that does not tell its files cannot have them kept or restored."""
        return iter(())

    def belonging(
        self, names: Sequence[str], session_id: ProviderSessionId, read: Callable[[str], Iterable[bytes]]
    ) -> frozenset[str]:
        return frozenset(name for name in names if self.is_own_name(name, session_id))

    def is_own_name(self, name: str, session_id: ProviderSessionId) -> bool:
        """``belonging``, for a provider whose names tell whose files they are. One that tells no files has no names."""
        return False

    def place(self, name: str, session_id: ProviderSessionId, work_dir: str | None) -> str | None:
        return None

    def aside(self, name: str, session_id: ProviderSessionId) -> str | None:
        return None

    def companions(self, path: str, work_dir: str) -> Iterator[tuple[str, bytes]]:
        return iter(())

    def compare(
        self, name: str, kept: Iterable[bytes], session_id: ProviderSessionId, work_dir: str | None
    ) -> Comparison:
        path = self.place(name, session_id, work_dir)
        return Comparison.ABSENT if path is None else compare_file(path, kept)

    def mend(self, path: str, session_id: ProviderSessionId) -> Mending | None:
        return None


def own_names(
    archive: Archive,
    names: Sequence[str],
    session_id: ProviderSessionId,
    read: Callable[[str], Iterable[bytes]],
) -> frozenset[str]:
    """Those of the names under which files of this session, and of no other, are put back below the provider's home.

    A store has checked that they are paths below a folder; but the store may be somebody else's.
    """
    paths = tuple(name for name in names if _is_path_below(name))
    return archive.belonging(paths, session_id, read)


def _is_path_below(name: str) -> bool:
    try:
        return check_file_name(name) == name
    except InvalidInput:
        return False


def compare_file(path: str, kept: Iterable[bytes]) -> Comparison:
    """Byte by byte, in pieces: files may be larger than the memory."""
    try:
        with Path(path).open("rb") as file:
            for block in kept:
                found = file.read(len(block))
                if found != block:
                    return Comparison.BEHIND if block.startswith(found) else Comparison.DIVERGED
            return Comparison.AHEAD if file.read(1) else Comparison.EQUAL
    except FileNotFoundError:
        return Comparison.ABSENT
    except OSError:
        return Comparison.AHEAD


def compare_lists(here: Sequence[str], kept: Sequence[str]) -> Comparison:
    """The same for sessions that a provider rewrites: by the ids of what they hold, in order."""
    if here == kept:
        return Comparison.EQUAL
    if here[: len(kept)] == kept:
        return Comparison.AHEAD
    return Comparison.BEHIND if kept[: len(here)] == here else Comparison.DIVERGED


def below(home: Path, path: Path, *, is_main: bool = False) -> SessionFile:
    """The file under its name below the provider's home."""
    name = os.path.relpath(path, home) if path.is_relative_to(home) else path.name
    return SessionFile(Path(name).as_posix(), str(path), is_main=is_main)


def files_in(home: Path, folder: Path) -> Iterator[SessionFile]:
    """The files in a folder and its folders, in the order of their names; links are left out."""
    try:
        found = sorted(file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    except OSError:
        return
    for file in found:
        yield below(home, file)


#: longer lines of a session file are passed over when all of it is taken in; the vault has their bytes
LONGEST_READ = 16 * 1024 * 1024


def look_at(path: str, session_id: ProviderSessionId | None, problem: str | None = None) -> Source | None:
    """The file of a session, by one look at it; None if it is not there, or not a file."""
    if not path.isascii() and (name := os.fsencode(path).decode(errors="backslashreplace")) != path:
        return unreadable_source(name, "its name is not valid UTF-8")
    try:
        found = os.stat(path)  # noqa: PTH116 - thousands of files: a Path for each would take as long again
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as exc:
        return unreadable_source(path, f"it cannot be read: {exc.strerror}")
    if not stat.S_ISREG(found.st_mode):
        return None
    return Source(path, path, found.st_size, found.st_mtime_ns, session_id, problem)


def unreadable_source(path: str, problem: str) -> Source:
    """A file or folder of which not even the time can be told."""
    return Source(path, path, 0, 0, None, problem)


# --- for the methods ``read_probe`` and ``home`` of a provider ---

_VERSION = re.compile(r"(?<![\w.])v?(\d+\.\d+[\w.+-]*)")
_NOT_A_NAME = re.compile(r"[^a-z0-9]+")


def read_version(printed: str) -> tuple[str, str | None]:
    """Product and version from the line that has one, such as ``2.1.325 (Claude Code)`` or ``codex-cli 0.166.0``."""
    for line in printed.splitlines():
        found = _VERSION.search(line)
        if found and not line.startswith("WARNING"):
            name = line[: found.start()] + " " + line[found.end() :]
            return _NOT_A_NAME.sub("-", name.lower()).strip("-")[:40] or "unnamed", found[1]
    return "unnamed", None


def offers(help_text: str, word: str) -> bool:
    """Does the help text list this option or command?"""
    return re.search(rf"^\s*(?:-\w, )?{re.escape(word)}(?![\w-])", help_text, re.MULTILINE) is not None


def with_folder_of(rights: Rights, path: str, work_dir: str) -> Rights:
    """The rights, and those to the folder of a file that is neither in the work directory nor in an extra one."""
    folder = os.path.dirname(os.path.join(work_dir, path))  # noqa: PTH118, PTH120 - as the agent wrote it
    inside = any(Path(folder).is_relative_to(place) for place in (work_dir, *rights.extra_dirs))
    return rights if inside or not path else replace(rights, extra_dirs=rights.extra_dirs | {folder})


def home_folder(environ: Mapping[str, str], variable: str, name: str) -> Path:
    """The folder in the provider's own variable, or else ``name`` in the user's home."""
    own = environ.get(variable)
    return Path(own) if own else Path(environ.get("HOME") or "~").expanduser() / name

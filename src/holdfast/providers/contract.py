"""Owns the provider contract: everything Holdfast must know about an agent to run, resume and judge it.

A provider is declarations and pure translations; it starts no process and writes no file. ``processes`` runs the
agent, ``engine.running.agents`` finds its binary, and the provider's ``Archive`` reads the agent's own sessions. Other packages
write providers, too: see "Write a provider" in docs/reference/providers.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Protocol

from holdfast.clock import Instant
from holdfast.domain.decisions import Fork, Fresh, NotObservable, Resume
from holdfast.domain.events import AgentEvent, Called, Returned
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import Rights, TranscriptMark
from holdfast.domain.records import record
from holdfast.domain.redaction import Json
from holdfast.domain.runtimes import Capabilities
from holdfast.domain.usage import Usage
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

    def find(self, session_id: ProviderSessionId, work_dir: str | None) -> str | None:
        """The file that holds the session; None if there is none."""
        ...

    def sessions(self, beginning: str = "") -> Iterator[StoredSession]:
        """The sessions whose ids begin with a text, in no order; those of subagents are part of others, and left out."""
        ...

    def turns(
        self, path: str, session_id: ProviderSessionId, after: TranscriptMark | None = None
    ) -> Iterator[ArchivedTurn]:
        """Oldest first, read lazily; with a mark, only the turns that were added since the mark was made."""
        ...

    def calls(self, path: str, session_id: ProviderSessionId) -> Iterator[tuple[str, Called | Returned]]:
        """The tool calls with the keys of their turns, in the order in which they began; a result follows its call."""
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
    def rules(self) -> FailureRules: ...

    @property
    def arguments(self) -> ArgumentRules:
        """Which of its own arguments would override a decision, and which are known to be harmless."""
        ...

    def read_probe(self, outputs: tuple[str, ...]) -> Probe: ...

    def home(self, environ: Mapping[str, str]) -> Path:
        """The folder of its sessions. It is part of a runtime's identity."""
        ...

    def check(self, rights: Rights, *, allow_wider: bool = False) -> None:
        """Raises InvalidInput for rights that this provider cannot express, and for arguments that are not passed on.

        ``allow_wider``: somebody accepted that the arguments may widen what the agent may do.
        """
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

    def stream(self, spec: LaunchSpec) -> Stream: ...

    def archive(self, home: Path) -> Archive: ...


class BaseProvider:
    """What most providers say alike. A provider inherits it, and overrides what is different about itself."""

    name: str
    arguments: ArgumentRules
    probes: tuple[tuple[str, ...], ...] = (("--version",), ("--help",))
    rules_file: Path | None = None  #: its own failure rules, as TOML; None: the common rules alone

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

    def foreign_hooks(self, home: Path, work_dir: Path, rights: Rights) -> tuple[ForeignHook, ...]:
        return ()

    def mint_id(self, decision: Fork | Fresh) -> ProviderSessionId | None:
        return None


class BaseArchive:
    """The same for archives: the sessions hold the ids of the stream, and nothing is counted across runs."""

    renames_calls = False

    def sessions(self, beginning: str = "") -> Iterator[StoredSession]:
        """A provider that cannot list its sessions has none to list; each of them can still be found by its id."""
        return iter(())

    def spent(self, path: str, session_id: ProviderSessionId) -> Usage | None:
        return None

    def writer(self, path: str, session_id: ProviderSessionId) -> str | None:
        return None


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


def home_folder(environ: Mapping[str, str], variable: str, name: str) -> Path:
    """The folder in the provider's own variable, or else ``name`` in the user's home."""
    own = environ.get(variable)
    return Path(own) if own else Path(environ.get("HOME") or "~").expanduser() / name

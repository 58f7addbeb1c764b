"""Owns the provider contract: everything Holdfast must know about an agent to run, resume and judge it.

A provider is declarations and pure translations; it starts no process and writes no file. Who runs
processes is ``process``, who finds binaries is ``runtimes``, who reads a provider's own sessions is
its ``Archive``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Protocol

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
    """Who is asked before each tool call, as Claude Code asks its PreToolUse hooks. It fails closed."""

    command: str  #: for a shell
    seconds: int  #: it has answered long before this
    arm: str  #: for a shell, to be run when the agent's session starts ...
    armed: Path  #: ... which leaves this file: the agent does run its hooks
    done: str | None  #: for a shell, after each call: compares what ran with what was let through ...
    changed: Path  #: ... which leaves this file, with words, if they differ
    approved: (
        tuple[str, Path] | None
    )  #: the call that a person approved, and the file left if it ran as it was


@record
class ForeignHook:
    """Something that is not ours, and may change a tool call after the gate has judged it."""

    where: str  #: the file it stands in
    what: str  #: its command, or its address

    def __str__(self) -> str:
        return f"{self.what} ({self.where})"


@record
class LaunchSpec:
    """One launch, fully decided: the decision alone says which session it goes to."""

    binary: str
    home: str
    work_dir: str
    prompt: str | None  #: as it is sent, context included; None: go on with the call that was deferred
    decision: Resume | Fork | Fresh
    new_id: ProviderSessionId | None  #: for a new or forked session, where the provider lets us choose
    model: str | None
    rights: Rights
    gate: ToolGate | None = None  #: where calls wait for a person

    @property
    def expected_id(self) -> ProviderSessionId | None:
        """The session the provider must say it runs; None where only it can tell."""
        return self.decision.provider_session_id if isinstance(self.decision, Resume) else self.new_id


@record
class Probe:
    """What a binary said about itself."""

    version: str | None
    distribution: str  #: a product that answers to the same name is another one
    capabilities: Capabilities


@record
class ArchivedTurn:
    """One turn as the provider's own session holds it."""

    key: str  #: identifies it within the session, for good
    prompt: str
    response: str | None
    complete: bool  #: answered to its end
    #: the tool calls in it, by the ids that the stream gives them, and whether their results are there, too;
    #: None: the provider saves each call before it makes it, so none of them can be missing
    calls: Mapping[str, bool] | None = field(default_factory=dict)
    #: False: on a branch that the session has left, so that the model is not sent it any more
    live: bool = True


class Stream(Protocol):
    """Reads one run's output. Replayed history is not this turn's output and says nothing."""

    def read(self, line: Mapping[str, Json]) -> Iterable[AgentEvent]:
        """Total: a line of another shape than expected gives nothing, or a Notice."""
        ...


class Archive(Protocol):
    """A provider's own sessions on disk. Only reads; what is missing or damaged is never an exception."""

    @property
    def renames_calls(self) -> bool:
        """Its sessions give tool calls other ids than its stream does."""
        ...

    def find(self, session_id: ProviderSessionId, work_dir: str | None) -> str | None:
        """The file that holds the session, if there is one."""
        ...

    def turns(
        self, path: str, session_id: ProviderSessionId, after: TranscriptMark | None = None
    ) -> Iterator[ArchivedTurn]:
        """In spec, lazily; with a mark, those that were not there yet when it was made."""
        ...

    def calls(self, path: str, session_id: ProviderSessionId, key: str) -> Iterator[Called | Returned]:
        """The tool calls of one turn in the order in which they began, each with its result if that is there."""
        ...

    def mark(self, path: str, session_id: ProviderSessionId) -> TranscriptMark | None:
        """The state of the session now; None if it cannot be read."""
        ...

    def spent(self, path: str, session_id: ProviderSessionId) -> Usage | None:
        """What the provider would count from if it went on now; None where it begins anew with each run."""
        ...

    def writer(self, path: str, session_id: ProviderSessionId) -> str | None:
        """A program that has the session open and may write to it, in words; None if none can be seen."""
        ...

    def is_intact(self, recorded: TranscriptMark, session_id: ProviderSessionId) -> bool | NotObservable:
        """Is everything up to the mark still what it was? Not observable where a provider rewrites its files."""
        ...


class Provider(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def binaries(self) -> tuple[str, ...]:
        """What its executable is called, the best name first."""
        ...

    @property
    def probes(self) -> tuple[tuple[str, ...], ...]:
        """Arguments to ask the binary with; what it prints is what ``read_probe`` gets, in this order."""
        ...

    @property
    def rules(self) -> FailureRules: ...

    @property
    def arguments(self) -> ArgumentRules:
        """Which of its own arguments would override a decision, and which are known to be harmless."""
        ...

    def read_probe(self, outputs: tuple[str, ...]) -> Probe: ...

    def home(self, environ: Mapping[str, str]) -> Path:
        """Where it keeps its sessions: part of what a runtime is."""
        ...

    def check(self, rights: Rights, *, allow_wider: bool = False) -> None:
        """InvalidInput for rights that this provider has no way to express, and for arguments that are not passed on.

        ``allow_wider``: somebody accepted that the arguments may widen what the agent may do.
        """
        ...

    def foreign_hooks(self, home: Path, work_dir: Path, rights: Rights) -> tuple[ForeignHook, ...]:
        """Whatever could change a tool call between the gate and its run; only asked where calls can wait."""
        ...

    def mint_id(self, decision: Fork | Fresh) -> ProviderSessionId | None:
        """A new one for the session that is about to begin; None where only the provider can name it."""
        ...

    def command(self, spec: LaunchSpec) -> Command:
        """One turn without a person, its output one JSON object a line."""
        ...

    def interactive(self, spec: LaunchSpec) -> Command:
        """The provider's own program for people, on the session of ``spec``; its prompt is not sent."""
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

    def spent(self, path: str, session_id: ProviderSessionId) -> Usage | None:
        return None

    def writer(self, path: str, session_id: ProviderSessionId) -> str | None:
        return None

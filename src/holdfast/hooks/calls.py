"""Owns what every handler is given: what was said, where, by whom, and the store to write it to."""

from __future__ import annotations

import os
from functools import cached_property

from holdfast.clock import system_clock
from holdfast.domain.ids import make_session_id
from holdfast.hooks.places import find_project
from holdfast.processes.owners import boot_id, is_gone, make_owner, process_start

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Protocol

    from holdfast.domain.delegations import (
        Delegated,
        Delegation,
        DelegationEnd,
        EndedDelegation,
        NewDelegation,
        Question,
    )
    from holdfast.domain.ids import SessionId
    from holdfast.domain.sightings import ObservedSession, Sighting
    from holdfast.domain.telling.welcome import Welcome
    from holdfast.hooks.log import HookLog

    class HookStore(Protocol):
        """The verbs of ``contract.Store`` that hooks use."""

        def delegate(self, new: NewDelegation) -> Delegated: ...
        def ask_delegation(self, question: Question) -> Delegated: ...
        def end_delegation(self, end: DelegationEnd) -> EndedDelegation | None: ...
        def open_delegations(self, agent: str, project: str) -> tuple[Delegation, ...]: ...
        def lose_delegations(self, provider_session_id: str) -> int: ...
        def observe_session(self, seen: Sighting) -> ObservedSession: ...
        def observed_session(self, provider: str, provider_session_id: str) -> ObservedSession | None: ...
        def welcome(
            self, provider: str, provider_session_id: str, project: str, besides: str | None = None
        ) -> Welcome: ...

    Payload = Mapping[str, Any]


class HookCall:
    """One call of a hook."""

    def __init__(  # noqa: PLR0913 - everything that a handler may need
        self,
        payload: Payload,
        store: HookStore,
        environ: Mapping[str, str],
        machine: str,
        log: HookLog,
        when_done: Callable[[str], None] | None = None,
        *,
        reads_files: bool = True,
    ) -> None:
        """``when_done`` is told each session that a hook finalizes.

        ``reads_files``: whoever calls may have the files read that the payload names.
        """
        self.when_done = when_done
        self.reads_files = reads_files
        self.payload = payload
        self.store = store
        self.environ = environ
        self.log = log
        self._machine = machine

    def text(self, name: str) -> str | None:
        """A field of the payload, if it is a text that says something."""
        value = self.payload.get(name)
        return value if isinstance(value, str) and value.strip() else None

    @cached_property
    def project(self) -> str:
        return find_project(self.environ, self.text("cwd") or os.getcwd())

    def new_session_id(self) -> SessionId:
        return make_session_id(system_clock(), os.urandom(4))

    def new_delegation_id(self) -> str:
        return self.new_session_id().replace("agent-", "delegation-", 1)

    @cached_property
    def _boot(self) -> str:
        return boot_id()

    def owner(self) -> str | None:
        """The agent's program; None if it cannot be told for sure."""
        if not self.environ:  # served: the agent is not our parent, and may be on another machine
            return None
        told = self.environ.get("CLAUDE_PID", "")
        pid = int(told) if told.isascii() and told.isdecimal() and len(told) < 10 else os.getppid()
        started_at = process_start(pid)
        return None if started_at is None else make_owner(pid, started_at, self._machine, self._boot)

    def is_gone(self, owner: str | None) -> bool:
        return owner is not None and is_gone(owner, self._machine, self._boot)

"""Owns what every handler is given: what was said, where, by whom, and the store to write it to."""

from __future__ import annotations

import os
from functools import cached_property

from holdfast.clock import system_clock
from holdfast.domain.ids import check_id, make_session_id
from holdfast.errors import InvalidInput
from holdfast.hooks.places import find_project, stale_files, state_dir
from holdfast.processes.owners import boot_id, is_gone, make_owner, process_start

#: delegated sessions are given up before
_OLD_SECONDS = 2 * 24 * 3600

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
    from holdfast.domain.observed import ObservedSession, Sighting
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

    def is_lost(self, held: Delegation) -> bool:
        """True only if this very machine has delegated it, by a program that provably does not run any more.

        A machine made from the same image or snapshot shares every id, and a program that does not exist here
        may run there. What it does not share are the witnesses of what each has delegated since.
        """
        witness = self._witness_of(held.id)
        if held.owner is None or witness is None or not os.path.exists(witness):
            return False
        return is_gone(held.owner, self._machine, self._boot)

    def witness(self, delegation_id: str) -> None:
        """This machine delegates it. Without the file others wait until the session's time is over."""
        path = self._witness_of(delegation_id)
        if path is None:
            return
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as exc:
            self.log.problem(exc)

    def forget(self, delegation_id: str | None) -> None:
        """It has ended."""
        path = self._witness_of(delegation_id)
        if path is not None:
            try:
                os.unlink(path)
            except OSError:  # another machine's, or forgotten before
                pass

    def forget_old(self) -> None:
        """What nobody has ended: its session is not held any more."""
        folder = self._witnesses
        if folder is not None and os.path.isdir(folder):
            for path in stale_files(folder, lambda _: True, _OLD_SECONDS):
                self.forget(os.path.basename(path))

    @property
    def _witnesses(self) -> str | None:
        folder = state_dir(self.environ)
        return None if folder is None else f"{folder}/delegations"

    def _witness_of(self, delegation_id: str | None) -> str | None:
        """None also for what is no id: it may be a path."""
        try:
            return self._witnesses and f"{self._witnesses}/{check_id('delegation', delegation_id)}"
        except InvalidInput:
            return None

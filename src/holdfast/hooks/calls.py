"""Owns what every handler is given: the payload, the store, the project, and who delegates."""

from __future__ import annotations

import os
from functools import cached_property

from holdfast.clock import system_clock
from holdfast.domain.ids import check_id, make_session_id
from holdfast.errors import InvalidInput
from holdfast.hooks.process import find_project, stale_files, state_dir
from holdfast.processes.owners import boot_id, is_gone, make_owner, process_start

#: a delegated session is abandoned before it is that old
_OLD_SECONDS = 2 * 24 * 3600

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeAlias

    from holdfast.domain.delegations import Delegation
    from holdfast.domain.ids import SessionId
    from holdfast.hooks.light_store import LightStore
    from holdfast.hooks.process import HookLog
    from holdfast.hooks.spool import SpoolStore
    from holdfast.store.contract import Store

    #: handlers call the verbs that the contract marks with ``hooks=True``, and no others
    HookStore: TypeAlias = Store | LightStore | SpoolStore
    Payload: TypeAlias = Mapping[str, Any]


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
        spool: str | None = None,
    ) -> None:
        """``environ`` is that of the agent's program; empty if the program may be on another machine.

        ``when_done`` is called with the id of each session that the hook finalizes. Without ``reads_files``, no
        file that the payload names is opened. ``spool`` is the directory for marks of sessions that are watched; None:
        the caller takes such sessions in itself.
        """
        self.spool = spool
        self.has_news = False  #: a mark was left, and there is something to take in
        self.when_done = when_done
        self.reads_files = reads_files
        self.payload = payload
        self.store = store
        self.environ = environ
        self.log = log
        self._machine = machine

    def text(self, name: str) -> str | None:
        """A field of the payload, if it is a text that is not blank."""
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
        """The process of the agent's program; None if it is not known for sure."""
        if not self.environ:
            return None
        told = self.environ.get("CLAUDE_PID", "")
        pid = int(told) if told.isascii() and told.isdecimal() and len(told) < 10 else os.getppid()
        started_at = process_start(pid)
        return None if started_at is None else make_owner(pid, started_at, self._machine, self._boot)

    def is_lost(self, held: Delegation) -> bool:
        """True only if this very machine made the delegation, by a process that provably no longer runs.

        A machine made from the same image or snapshot has the same ids, and a process that does not exist on
        one may run on the other. The witness files of delegations made since then are on one machine only.
        """
        witness = self._witness_of(held.id)
        if held.owner is None or witness is None or not os.path.exists(witness):
            return False
        return is_gone(held.owner, self._machine, self._boot)

    def witness(self, delegation_id: str) -> None:
        """Keep a file that says that this machine makes the delegation.

        Without the file the session is held until its idle limit.
        """
        path = self._witness_of(delegation_id)
        if path is None:
            return
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as exc:
            self.log.problem(exc)

    def forget(self, delegation_id: str | None) -> None:
        """Remove the file of a delegation that has ended."""
        path = self._witness_of(delegation_id)
        if path is not None:
            try:
                os.unlink(path)
            except OSError:  # made by another machine, or removed before
                pass

    def forget_old(self) -> None:
        """Remove the files of delegations that nobody ended and that hold no session any more."""
        folder = self._witnesses
        if folder is not None and os.path.isdir(folder):
            for path in stale_files(folder, lambda _: True, _OLD_SECONDS):
                self.forget(os.path.basename(path))

    @property
    def _witnesses(self) -> str | None:
        folder = state_dir(self.environ)
        return None if folder is None else f"{folder}/delegations"

    def _witness_of(self, delegation_id: str | None) -> str | None:
        """None also for a text that is no id: it may be a path."""
        try:
            return self._witnesses and f"{self._witnesses}/{check_id('delegation', delegation_id)}"
        except InvalidInput:
            return None

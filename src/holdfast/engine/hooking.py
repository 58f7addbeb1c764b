"""Owns the work of hooks on a store that is open already: for the library, recovery, and serving hooks to others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from holdfast.config import data_dir
from holdfast.domain.delegations import Delegation
from holdfast.domain.policy import NotifyPolicy
from holdfast.hooks import pre_delegate
from holdfast.hooks.calls import HookCall
from holdfast.hooks.log import HookLog
from holdfast.hooks.main import EVENTS
from holdfast.notifying import done_notice, notify
from holdfast.processes.machine import machine_id
from holdfast.store.contract import Store


def answer_hook(
    store: Store,
    policy: NotifyPolicy,
    event: str,
    payload: Mapping[str, Any],
    *,
    reads_files: bool = True,
) -> dict[str, Any] | None:
    """As ``holdfast hook EVENT`` would answer it; KeyError for an event that there is not.

    Without ``reads_files``, the files that the payload names are written down by name and not opened.
    """
    handler = import_module(f"holdfast.hooks.{EVENTS[event]}")

    def tell(session_id: str) -> None:
        notify(policy, done_notice(store.get_session(session_id)))

    answer: dict[str, Any] | None = handler.answer(
        _call(store, event, payload, {}, tell, reads_files=reads_files)
    )
    return answer


def answer_pre_delegate(store: Store, context: object) -> dict[str, Any]:
    """The standalone form alone; a context that is no object is answered too."""
    if not isinstance(context, Mapping):
        return pre_delegate.answer_nothing(pre_delegate.INVALID_JSON)
    return pre_delegate.answer_question(_call(store, "pre-delegate", context, os.environ))


def free_lost_delegations(store: Store) -> list[Delegation]:
    """End what programs of this machine had delegated that provably do not run any more."""
    return pre_delegate.free_lost(_call(store, "recover", {}, os.environ), store.open_delegations())


def _call(
    store: Store,
    event: str,
    payload: Mapping[str, Any],
    environ: Mapping[str, str],
    when_done: Callable[[str], None] | None = None,
    *,
    reads_files: bool = True,
) -> HookCall:
    """``environ`` is the agent's: of an agent that is elsewhere, nothing is known but what it tells."""
    machine, log = machine_id(data_dir(os.environ)), HookLog(os.environ, event)
    return HookCall(payload, store, environ, machine, log, when_done, reads_files=reads_files)

"""Owns answering hooks on a store that is already open: for the library, the server and recovery."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.config import data_dir, default_url, load_settings
from holdfast.domain.delegations import Delegation
from holdfast.domain.policy import NotifyPolicy
from holdfast.hooks import delegations
from holdfast.hooks.calls import HookCall
from holdfast.hooks.main import handler_of
from holdfast.hooks.process import HookLog
from holdfast.notifying import done_notice, notify
from holdfast.processes.machine import machine_id
from holdfast.store.contract import Store
from holdfast.store.open import open_store


def answer_hook(
    store: Store,
    policy: NotifyPolicy,
    event: str,
    payload: Mapping[str, Any],
    *,
    reads_files: bool = True,
) -> dict[str, Any] | None:
    """The answer of ``holdfast hook EVENT``; KeyError for an event that does not exist.

    Without ``reads_files``, the files that the payload names are recorded by name and not opened.
    """

    def tell(session_id: str) -> None:
        notify(policy, done_notice(store.get_session(session_id)))

    return handler_of(event)(_call(store, event, payload, {}, tell, reads_files=reads_files))


def answer_pre_delegate(store: Store, context: object) -> dict[str, Any]:
    """The standalone form only. A context that is no object is answered too."""
    if not isinstance(context, Mapping):
        return delegations.answer_nothing(delegations.INVALID_JSON)
    return delegations.answer_question(_call(store, "pre-delegate", context, os.environ))


def free_lost_delegations(store: Store) -> list[Delegation]:
    """End the delegations of programs of this machine that provably no longer run."""
    return delegations.free_lost(_call(store, "recover", {}, os.environ), store.open_delegations())


def tell_done(environ: Mapping[str, str], cwd: str, session_ids: Iterable[str]) -> None:
    """Send the notices about sessions that a hook process has finalized."""
    settings = load_settings(environ=environ, cwd=Path(cwd))
    store = open_store(settings.url or default_url(environ), workspace=settings.workspace)
    try:
        for session_id in session_ids:
            notify(settings.policy.notify, done_notice(store.get_session(session_id)))
    finally:
        store.close()


def _call(
    store: Store,
    event: str,
    payload: Mapping[str, Any],
    environ: Mapping[str, str],
    when_done: Callable[[str], None] | None = None,
    *,
    reads_files: bool = True,
) -> HookCall:
    machine, log = machine_id(data_dir(os.environ)), HookLog(os.environ, event)
    return HookCall(payload, store, environ, machine, log, when_done, reads_files=reads_files)

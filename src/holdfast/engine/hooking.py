"""Owns answering hooks on a store that is open already: for the library, and for whoever serves hooks to others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from holdfast.config import data_dir
from holdfast.domain.policy import NotifyPolicy
from holdfast.hooks import pre_delegate
from holdfast.hooks.calls import HookCall
from holdfast.hooks.log import HookLog
from holdfast.hooks.main import EVENTS
from holdfast.notifying.occasions import done_notice
from holdfast.notifying.sending import notify
from holdfast.processes.machine import machine_id
from holdfast.store.contract import Store


def answer_hook(
    store: Store, policy: NotifyPolicy, event: str, payload: Mapping[str, Any]
) -> dict[str, Any] | None:
    """As ``holdfast hook EVENT`` would answer it; KeyError for an event that there is not."""
    handler = import_module(f"holdfast.hooks.{EVENTS[event]}")

    def tell(session_id: str) -> None:
        notify(policy, done_notice(store.get_session(session_id)))

    answer: dict[str, Any] | None = handler.answer(_call(store, event, payload, tell))
    return answer


def answer_pre_delegate(store: Store, context: object) -> dict[str, Any]:
    """The standalone form alone; a context that is no object is answered too."""
    if not isinstance(context, Mapping):
        return pre_delegate.answer_nothing(pre_delegate.INVALID_JSON)
    return pre_delegate.answer_question(_call(store, "pre-delegate", context))


def _call(
    store: Store, event: str, payload: Mapping[str, Any], when_done: Callable[[str], None] | None = None
) -> HookCall:
    environ = os.environ
    machine, log = machine_id(data_dir(environ)), HookLog(environ, event)
    return HookCall(payload, store, environ, machine, log, when_done)

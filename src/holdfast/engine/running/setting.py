"""Owns what the path of a turn needs besides the turn: the store, the agent, the rules, and who listens."""

from __future__ import annotations

import logging

from holdfast.domain.decisions import Decision
from holdfast.domain.events import AgentEvent
from holdfast.domain.policy import Policy
from holdfast.domain.records import record
from holdfast.engine.keywords import Observer
from holdfast.engine.running.agents import Agent
from holdfast.store.contract import Store

log = logging.getLogger("holdfast")

#: tells an agent, and all that it starts, which session it works for
SESSION_VARIABLE = "HOLDFAST_SESSION"


def ignore(_: Decision | AgentEvent) -> None:
    """The observer of a run that nobody watches."""


@record
class Setting:
    store: Store
    agent: Agent
    policy: Policy
    timeout_seconds: float
    observer: Observer = ignore


class Audience:
    """Tells an observer; one that fails, because its terminal is gone, say, is told nothing more, and the turn goes on."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def __call__(self, seen: Decision | AgentEvent) -> None:
        try:
            self._observer(seen)
        except Exception as exc:  # noqa: BLE001 - whatever a stranger's function raises
            log.warning("the observer failed and is not told any more: %s", exc)
            self._observer = ignore

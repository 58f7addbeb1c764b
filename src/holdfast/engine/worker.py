"""Owns a worker: it claims turns for the agents of this machine and sees each through, until it is told to stop."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.domain.policy import Policy
from holdfast.domain.turns import Claim, ClaimRequest
from holdfast.engine.running.agents import Agent
from holdfast.engine.running.recovery import recover_all
from holdfast.engine.running.setting import Setting
from holdfast.engine.running.turn_path import TurnPath
from holdfast.errors import HoldfastError, LeaseLost, StoreError
from holdfast.processes.machine import Machine
from holdfast.store.contract import Store

log = logging.getLogger("holdfast")

_LOOK_EVERY = 0.1


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    slots: int = 1  #: turns at the same time
    once: bool = False  #: end when there is nothing to do
    drain_seconds: float = 60.0  #: what still runs so long after the stop is handed back


class Worker:
    """``run`` in one thread; ``stop`` from any, also out of a signal handler."""

    def __init__(
        self, store: Store, machine: Machine, agents: Sequence[Agent], policy: Policy, options: WorkerOptions
    ) -> None:
        self._store = store
        self._machine = machine
        self._agents = list(agents)
        self._policy = policy
        self._options = options
        self._stopping = threading.Event()
        self._hurry = threading.Event()
        self._running: dict[threading.Thread, TurnPath] = {}

    def stop(self) -> None:
        """No new turn from now on. What runs may end within the time to drain; a second call cuts that short."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    def run(self) -> None:
        queue = self._policy.queue
        recovered_at = -queue.recover_seconds
        while not self._stopping.is_set():
            self._reap()
            if time.monotonic() - recovered_at >= queue.recover_seconds:
                self._recover()
                recovered_at = time.monotonic()
            claimed = self._claim_next()
            if claimed is None:
                if self._options.once and not self._running:
                    return
                self._stopping.wait(queue.poll_seconds)
            else:
                self._start(*claimed)
        self._drain()

    # --- claiming ---

    def _claim_next(self) -> tuple[Agent, Claim] | None:
        """None: no slot is free, nothing waits, or the store cannot be reached for the moment."""
        if len(self._running) >= self._options.slots:
            return None
        for agent in list(self._agents):
            # whoever was asked first is asked last the next time
            self._agents.append(self._agents.pop(0))
            try:
                claim = self._store.claim_turn(self._request(agent))
            except StoreError as exc:
                log.warning("nothing was claimed: %s", exc)
                return None
            if claim is not None:
                return agent, claim
        return None

    def _request(self, agent: Agent) -> ClaimRequest:
        owner, key = self._machine.this_process(), os.urandom(16).hex()
        return ClaimRequest(agent.runtime, owner, key, self._policy.queue.lease_seconds)

    def _recover(self) -> None:
        try:
            for turn in recover_all(self._store, self._machine):
                log.warning("turn %s of %s was left behind: taken over", turn.seq, turn.session_id)
        except HoldfastError as exc:
            log.warning("nothing was recovered: %s", exc)

    # --- running ---

    def _start(self, agent: Agent, claim: Claim) -> None:
        setting = Setting(self._store, agent, self._policy, self._policy.run.timeout_seconds)
        path = TurnPath(setting, claim)
        name = f"turn {claim.turn.seq} of {claim.turn.session_id}"
        thread = threading.Thread(target=_walk, args=(path, name), name=name)
        self._running[thread] = path
        thread.start()

    def _reap(self) -> None:
        for thread in [thread for thread in self._running if not thread.is_alive()]:
            thread.join()
            del self._running[thread]

    def _drain(self) -> None:
        until = time.monotonic() + self._options.drain_seconds
        while self._running and time.monotonic() < until and not self._hurry.wait(_LOOK_EVERY):
            self._reap()
        for path in self._running.values():
            path.hand_back()
        for thread in self._running:
            thread.join()


def _walk(path: TurnPath, name: str) -> None:
    """A worker outlives whatever becomes of one turn."""
    try:
        result = path.walk()
    except LeaseLost as exc:
        log.warning("%s: %s", name, exc)
    except Exception:
        log.exception("%s was given up", name)
    else:
        log.info("%s: %s", name, result.status)

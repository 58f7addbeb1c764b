"""Owns a worker: it claims turns for the agents of this machine, and runs each of them to its end."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from holdfast.domain.policy import Policy
from holdfast.domain.records import record
from holdfast.domain.turns import Claim, ClaimRequest, TurnStatus
from holdfast.engine.result import RunResult
from holdfast.engine.running.agents import Agent, Agents
from holdfast.engine.running.launching import RunContext
from holdfast.engine.running.log_subject import lines_about, turn_fields
from holdfast.engine.running.recovery import recover_all
from holdfast.engine.running.turn_path import TurnPath
from holdfast.errors import OUTAGES, HoldfastError, LeaseLost, Unauthenticated
from holdfast.store.contract import QueueWatch, Store

log = logging.getLogger("holdfast")

#: the longest wait of the main thread: a signal that the kernel gives to another thread does not end the wait, but its
#: handler runs only in the main thread
_SIGNAL_SECONDS = 1.0


@record
class WorkerOptions:
    slots: int = 1  #: turns at the same time
    once: bool = False  #: end when no turn can run now
    drain_seconds: float = 60.0  #: turns that still run so long after the stop are given to other workers
    #: writes what hooks have left: called from time to time, and when a turn has ended, because its own token is not
    #: valid any more
    hand_over: Callable[[], object] = lambda: None


@record
class _Running:
    """A turn and the thread that walks its path."""

    agent: Agent
    session_id: str
    path: TurnPath
    name: str
    about: Mapping[str, object]  #: fields of all log lines about it


class Worker:
    """Call ``run`` in one thread, and ``stop`` from any thread, also from a signal handler."""

    def __init__(
        self, store: Store, installed: Agents, agents: Sequence[Agent], policy: Policy, options: WorkerOptions
    ) -> None:
        self._store = store
        self._installed = installed
        self._agents = list(agents)
        self._policy = policy
        self._options = options
        self._stops = 0  #: how often ``stop`` was called
        # the thread of a turn that has ended; or None: stop, or look for turns again. A SimpleQueue, because a signal
        # handler may put into it even while the interrupted thread waits for it
        self._news: SimpleQueue[threading.Thread | None] = SimpleQueue()
        self._has_rung = False  #: None was put into the queue and not taken yet: one is enough
        self._running: dict[threading.Thread, _Running] = {}
        self._look_at = time.monotonic()
        self._spare_until = 0.0 if options.once else self._next_heartbeat()
        self._absent_until: dict[str, float] = {}
        self._is_cut_off = False
        self._was_let_in = False
        self._unanswered: dict[str, str] = {}  #: by runtime, the key of a claim whose reply never came

    def stop(self) -> None:
        """Start no new turn. Running turns may end within ``drain_seconds``; a second call cuts that short."""
        self._stops += 1
        self._news.put(None)

    def run(self) -> None:
        """Works until ``stop``. Waits while the store cannot be reached; raises then only with ``once``, or if the store
        has never accepted this worker's token."""
        watcher = QueueWatcher(self._store, self._ring)
        try:
            while not self._stops:
                claimed = self._next()
                if self._was_let_in and not self._options.once:
                    watcher.start()
                if claimed is not None:
                    self._start(*claimed)
                elif self._options.once and not self._running:
                    return
                else:
                    self._await_news(self._policy.queue.poll_seconds)
        finally:
            watcher.close()
            self._drain()

    def _ring(self) -> None:
        if not self._has_rung:
            self._has_rung = True
            self._news.put(None)

    def _next(self) -> tuple[Agent, Claim] | None:
        """The next turn to run; None if no slot is free, no turn can run, or the store cannot be reached now."""
        try:
            self._look_around()
            return self._claim() if len(self._running) < self._options.slots else None
        except OUTAGES as exc:
            self._sit_out(exc)
            return None

    def _sit_out(self, outage: HoldfastError) -> None:
        is_stranger = isinstance(outage, Unauthenticated) and not self._was_let_in
        if self._options.once or is_stranger:
            raise outage
        if not self._is_cut_off:
            log.warning("waiting for the store: %s", outage)
            self._is_cut_off = True
        self._look_at = self._spare_until = self._next_heartbeat()

    def _reached(self) -> None:
        if not self._was_let_in and not self._options.once:
            names = ", ".join(sorted(agent.provider.name for agent in self._agents))
            log.info("waiting for turns of %s, up to %s at a time", names, self._options.slots)
        self._was_let_in = True
        if self._is_cut_off:
            log.info("the store can be reached again")
            self._is_cut_off = False

    def _next_heartbeat(self) -> float:
        """By then every living worker has renewed the leases that expired during an outage, and keeps its turns."""
        return time.monotonic() + self._policy.queue.heartbeat_seconds

    # --- claiming ---

    def _look_around(self) -> None:
        """From time to time: registers the runtimes, and takes over from workers that are gone."""
        if time.monotonic() < self._look_at:
            return
        for agent in self._agents:
            self._store.register_runtime(agent.runtime)
        ours = {running.session_id for running in self._running.values()}
        spares = time.monotonic() < self._spare_until
        recovered = recover_all(
            self._store, self._installed, self._policy.vault, besides=ours, even_expired=not spares
        )
        for turn in recovered:
            with lines_about(turn_fields(turn)):
                log.warning(
                    "turn %s of %s was left behind: it is %s now", turn.seq, turn.session_id, turn.status
                )
        self._reached()
        self._options.hand_over()
        self._look_at = self._spare_until if spares else time.monotonic() + self._policy.queue.recover_seconds

    def _claim(self) -> tuple[Agent, Claim] | None:
        for agent in list(self._agents):
            # in turn: the agent that is first now is last the next time
            self._agents.append(self._agents.pop(0))
            if time.monotonic() < self._absent_until.get(agent.provider.name, 0.0):
                continue
            claim = self._store.claim_turn(self._request(agent))
            self._reached()
            del self._unanswered[agent.runtime.id]
            if claim is not None:
                return agent, claim
        return None

    def _request(self, agent: Agent) -> ClaimRequest:
        """The same request again until the store answers it: a lost reply may have claimed a turn."""
        owner = self._installed.machine.claimant()
        key = self._unanswered.setdefault(agent.runtime.id, os.urandom(16).hex())
        queue = self._policy.queue
        return ClaimRequest(
            agent.runtime, owner, key, queue.lease_seconds, affinity_seconds=queue.affinity_seconds
        )

    # --- running ---

    def _start(self, agent: Agent, claim: Claim) -> None:
        context = RunContext(self._store, agent, self._policy, self._policy.run.timeout_seconds)
        name = f"turn {claim.turn.seq} of {claim.turn.session_id}"
        about = turn_fields(claim.turn) | {"runtime": agent.runtime.id}
        running = _Running(agent, claim.turn.session_id, TurnPath(context, claim), name, about)
        with lines_about(about):
            log.info("%s: begun with %s, attempt %s", name, agent.provider.name, claim.lease.attempt)
        thread = threading.Thread(target=self._walk, args=(running,), name=name)
        self._running[thread] = running
        thread.start()

    def _walk(self, running: _Running) -> None:
        try:
            with lines_about(running.about):
                self._see_through(running)
        finally:
            self._news.put(threading.current_thread())

    def _see_through(self, running: _Running) -> None:
        """Runs one turn. No error of a turn ends the worker."""
        try:
            self._note(running, running.path.walk())
        except LeaseLost:
            log.warning("%s was taken over; its result here is kept as evidence", running.name)
        except HoldfastError as exc:
            log.warning("%s was given up: %s", running.name, exc)
        except Exception as exc:
            log.exception("%s was given up: %r", running.name, exc)

    def _note(self, running: _Running, result: RunResult) -> None:
        for notice in result.notices:
            log.warning("%s: %s", running.name, notice)
        if result.failure is None:
            log.info("%s: %s", running.name, result.status)
            return
        became = "put back" if result.turn_status is TurnStatus.QUEUED else result.status
        log.warning("%s: %s: %s", running.name, became, result.failure.message)
        if result.failure.then.is_put_back:
            # a worker that cannot run an agent would otherwise claim its turns again at once
            until = time.monotonic() + self._policy.queue.recover_seconds
            self._absent_until[running.agent.provider.name] = until

    def _await_news(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            with suppress(Empty):
                self._hear(self._news.get(timeout=min(left, _SIGNAL_SECONDS)))
                return

    def _hear(self, ended: threading.Thread | None) -> None:
        if ended is None:
            self._has_rung = False
        else:
            ended.join()
            del self._running[ended]
            self._options.hand_over()

    def _drain(self) -> None:
        until = time.monotonic() + self._options.drain_seconds
        if self._running:
            names = ", ".join(running.name for running in self._running.values())
            log.info("stopping; still running, for up to %g s: %s", self._options.drain_seconds, names)
        while self._running and self._stops < 2 and (left := until - time.monotonic()) > 0:
            self._await_news(left)
        # in threads: each call lasts until its agent has ended
        ending = [threading.Thread(target=running.path.hand_back) for running in self._running.values()]
        for thread in ending:
            thread.start()
        for thread in (*ending, *self._running):
            thread.join()


#: the longest wait for one notification
_WAIT_SECONDS = 600.0
#: the pause before a watch that failed is opened again: twice as long each time
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
#: how long ``close`` waits for the thread, which may be connecting; it ends by itself afterwards
_LAST_SECONDS = 2.0


class QueueWatcher:
    """Calls ``tell`` when there are new turns. Errors of the watch stay in its thread: the worker also polls."""

    def __init__(self, store: Store, tell: Callable[[], None]) -> None:
        self._store = store
        self._tell = tell
        self._closed = threading.Event()
        self._watch: QueueWatch | None = None
        self._pause = _FIRST_PAUSE
        self._thread = threading.Thread(target=self._run, name="holdfast queue watch", daemon=True)

    def start(self) -> None:
        """Idempotent."""
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """Ends the watch at once; also if it was never started."""
        self._closed.set()
        if self._watch is not None:
            self._watch.close()
        if self._thread.ident is not None:
            self._thread.join(_LAST_SECONDS)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._listen()
            except HoldfastError as exc:
                if self._pause == _FIRST_PAUSE and not self._closed.is_set():
                    log.info("not notified of new turns, polling for them instead: %s", exc)
            self._closed.wait(self._pause)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _listen(self) -> None:
        with self._store.watch_queue() as self._watch:
            self._pause = _FIRST_PAUSE
            self._tell()  # turns may have come before the watch was open
            while not self._closed.is_set():
                if self._watch.wait(_WAIT_SECONDS):
                    self._tell()

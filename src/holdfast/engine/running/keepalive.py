"""Owns keeping a lease alive: a thread renews it from the claim to the commit, another one watches whether it can."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from types import TracebackType
from typing import Self

from holdfast.domain.policy import QueuePolicy
from holdfast.domain.turns import Lease
from holdfast.errors import HoldfastError, LeaseLost
from holdfast.processes.process import StopCause
from holdfast.store.contract import Store

log = logging.getLogger("holdfast")


class KeepAlive:
    """``stop`` is called, from the thread, when the turn must end: it was cancelled, or is no longer ours.

    An outage of the store is sat out for the grace period: an expired lease that nobody took can
    still be renewed.
    """

    def __init__(self, store: Store, lease: Lease, policy: QueuePolicy) -> None:
        self._store = store
        self._lease = lease
        self._policy = policy
        self._stop: Callable[[StopCause], None] | None = None
        self._cause: StopCause | None = None
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._look_seconds = min(policy.poll_seconds, policy.heartbeat_seconds)
        self._unanswered_since: float | None = None  #: when the store was first asked without an answer
        self._given_up = False
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        for work, name in ((self._renew_on, "holdfast-lease"), (self._guard, "holdfast-grace")):
            # what it logs is about the same turn
            run = copy_context().run
            self._threads.append(threading.Thread(target=run, args=(work,), name=name, daemon=True))
            self._threads[-1].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    @property
    def cause(self) -> StopCause | None:
        """Why the turn must end, if it must."""
        return self._cause

    def replace(self, lease: Lease) -> None:
        """A fallback goes on under a new token."""
        with self._lock:
            self._lease = lease

    def watch(self, stop: Callable[[StopCause], None] | None) -> None:
        """Who to tell; told at once if there is something to tell already."""
        with self._lock:
            self._stop = stop
            cause = self._cause
        if stop is not None and cause is not None:
            stop(cause)

    def _renew_on(self) -> None:
        renewed = time.monotonic()
        is_cut_off = False
        while not self._done.wait(self._look_seconds) and not self._given_up:
            if self._unanswered_since is None:
                self._unanswered_since = time.monotonic()
            try:
                if time.monotonic() - renewed >= self._policy.heartbeat_seconds:
                    cancelled, renewed = self._renew(), time.monotonic()
                else:
                    cancelled = self._is_cancelled()
            except LeaseLost:
                self._give_up()
            except HoldfastError as exc:
                if not is_cut_off:
                    log.warning("the lease cannot be renewed for the moment: %s", exc)
                    is_cut_off = True
            else:
                if is_cut_off:
                    log.info("the lease is renewed again")
                self._unanswered_since, is_cut_off = None, False
                if cancelled:
                    self.tell(StopCause.CANCELLED)

    def _guard(self) -> None:
        """Asks the store nothing: one that neither answers nor fails holds up whoever asks it."""
        while not self._done.wait(self._look_seconds):
            since = self._unanswered_since
            if since is not None and time.monotonic() - since > self._policy.grace_seconds:
                log.warning(
                    "the store did not answer for %g s: the agent is ended", self._policy.grace_seconds
                )
                self._give_up()
                return

    def _give_up(self) -> None:
        self._given_up = True
        self.tell(StopCause.LEASE_LOST)

    def _is_cancelled(self) -> bool:
        """A look, which costs nothing to speak of: a person who cancels does not wait for the next renewal."""
        with self._lock:
            lease = self._lease
        return self._store.get_turn(lease.conversation_id, lease.seq).cancel_requested

    def _renew(self) -> bool:
        """Whether someone wants the turn to stop."""
        with self._lock:
            lease = self._lease
        try:
            return self._store.heartbeat(lease, self._policy.lease_seconds).cancel_requested
        except LeaseLost:
            with self._lock:
                replaced = lease.fence != self._lease.fence
            if not replaced:
                raise
            return False

    def tell(self, cause: StopCause) -> None:
        """The turn must end; whoever said so first counts."""
        with self._lock:
            self._cause = self._cause or cause
            stop = self._stop
        if stop is not None:
            stop(cause)

"""Owns what stops a turn from outside: a lost lease, an outage, a cancellation, a signal."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from types import FrameType, TracebackType
from typing import Self

from holdfast.clock import after
from holdfast.domain.failures import StopCause
from holdfast.domain.policy import QueuePolicy
from holdfast.domain.records import replace
from holdfast.domain.turns import Lease
from holdfast.errors import HoldfastError, LeaseLost
from holdfast.processes.machine import Machine
from holdfast.store.contract import Store

log = logging.getLogger("holdfast")

_TRIES_IN_GRACE = 4
_ENDING_SECONDS = 1.0
#: what a store may take to grant a renewal whose holder is killed before it can witness it
_GRANT_SECONDS = 5.0
#: how long the end of a turn waits for a renewal that the store has not answered yet
_LAST_RENEWAL_SECONDS = 2.0


class KeepAlive:
    """Renews a lease in a background thread, and says when the turn must end: it was cancelled, or the lease is lost.

    A second thread watches for outages. If the store grants no renewal during the grace period, the turn must end.
    The grace period is counted from the last renewal that the store granted; if it is no longer than the lease, no
    other worker can have taken the turn before. An expired lease that nobody took can still be renewed.

    Each renewal carries a random word. By it the store recognises a copy of this process, on a machine that was made
    from a snapshot of this one while it ran. The copy that renews second must end its agent.
    """

    def __init__(
        self, store: Store, lease: Lease, policy: QueuePolicy, machine: Machine | None = None
    ) -> None:
        self._store = store
        self._machine = machine  #: keeps proof that the lease is held here; None: no proof is kept
        self._lease = lease
        self._policy = policy
        self._renewal: str | None = None  #: the word of the renewal that the store has not answered yet
        self._stop: Callable[[StopCause], None] | None = None
        self._cause: StopCause | None = None
        self._lock = threading.Lock()
        self._renewing = threading.Lock()  #: held during a renewal, and during the write that ends the lease
        self._done = threading.Event()
        # the grace period lasts at least one heartbeat, and several renewals are tried within it
        self._grace = max(policy.grace_seconds, min(2 * policy.heartbeat_seconds, policy.lease_seconds))
        self._heartbeat_seconds = min(policy.heartbeat_seconds, self._grace / _TRIES_IN_GRACE)
        self._look_seconds = min(policy.poll_seconds, self._heartbeat_seconds)
        self._renewed = time.monotonic()  #: when the store was asked for the lease that it last granted
        self._given_up = False
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._witness(self._lease)
        for work, name in ((self._renew_on, "holdfast-lease"), (self._guard, "holdfast-grace")):
            # in a copy of this context: what the thread logs is about the same turn
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
        if self._machine is not None:
            self._machine.forget(self._lease)

    @property
    def cause(self) -> StopCause | None:
        """Why the turn must end; None if it need not."""
        return self._cause

    def replace(self, lease: Lease) -> None:
        """Renews this lease from now on: a fallback continues the turn with a new fencing token."""
        with self._lock:
            former, self._lease = self._lease, lease
        self._witness(lease)
        if self._machine is not None:
            self._machine.forget(former)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """For the write that ends the lease: no renewal runs beside this write, and none after it.

        A renewal would wait for the write, lock the session once more, and find the lease gone. A worker that looks for
        its next turn in that moment passes over a session that is locked, and does not look again before it polls.
        """
        is_alone = self._renewing.acquire(timeout=_LAST_RENEWAL_SECONDS)
        try:
            yield
            self._done.set()
        finally:
            if is_alone:
                self._renewing.release()

    def _witness(self, lease: Lease) -> None:
        if self._machine is not None:
            self._machine.witness(lease)

    def watch(self, stop: Callable[[StopCause], None] | None) -> None:
        """Sets the function that is told why the turn must end; calls it at once if it must already."""
        with self._lock:
            self._stop = stop
            cause = self._cause
        if stop is not None and cause is not None:
            stop(cause)

    def _renew_on(self) -> None:
        is_cut_off = False
        while not self._done.wait(self._look_seconds) and not self._given_up:
            try:
                asked = time.monotonic()
                if is_cut_off or asked - self._renewed >= self._heartbeat_seconds:
                    with self._renewing:
                        if self._done.is_set():
                            return
                        cancelled, self._renewed = self._renew(), asked
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
                is_cut_off = False
                if cancelled:
                    self.tell(StopCause.CANCELLED)

    def _guard(self) -> None:
        """Never calls the store: a store that neither answers nor fails would block this thread, too."""
        while not self._done.wait(max(0.0, min(self._look_seconds, self._left()))):
            if self._left() <= 0:
                log.warning("the store did not renew the lease for %g s: the agent is ended", self._grace)
                self._give_up()
                return

    def _left(self) -> float:
        """How many seconds of the grace period are left, minus the time that it takes to end an agent."""
        return self._renewed + self._grace - min(_ENDING_SECONDS, self._grace / 10) - time.monotonic()

    def _give_up(self) -> None:
        self._given_up = True
        self.tell(StopCause.LEASE_LOST)

    def _is_cancelled(self) -> bool:
        """Reads whether somebody cancelled the turn: reading is cheap, so this is done more often than renewing."""
        with self._lock:
            lease = self._lease
        return self._store.get_turn(lease.conversation_id, lease.seq).cancel_requested

    def _renew(self) -> bool:
        """Renews the lease. Returns whether somebody cancelled the turn."""
        with self._lock:
            lease = self._lease
        # with the time: two copies of a machine may draw the same random numbers for a moment
        self._renewal = self._renewal or f"{time.time_ns():x}-{os.urandom(8).hex()}"
        # before the store is asked: if this process is killed as soon as the store has renewed the lease, it still was
        # the last holder, and nobody has to wait for the lease to expire
        longest = time.monotonic() - self._renewed + _GRANT_SECONDS
        self._witness(replace(lease, expires_at=after(lease.expires_at, longest)))
        try:
            renewed = self._store.heartbeat(lease, self._policy.lease_seconds, self._renewal)
            self._renewal = None
            with self._lock:
                if lease.fence == self._lease.fence:
                    self._lease = renewed.lease
            self._witness(renewed.lease)
            return renewed.cancel_requested
        except LeaseLost:
            with self._lock:
                replaced = lease.fence != self._lease.fence
            if not replaced:
                raise
            return False

    def tell(self, cause: StopCause) -> None:
        """Says that the turn must end. Only the first cause is kept."""
        with self._lock:
            self._cause = self._cause or cause
            stop = self._stop
        if stop is not None:
            stop(cause)


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class HeldSignals:
    """Holds back a signal to stop until it is ``allowed``, so that an answer that has arrived is committed first.

    A second signal is obeyed at once. Outside the main thread nothing is done, because no signal arrives there; nor
    is anything done about signals that have no handler.
    """

    def __init__(self) -> None:
        self._before: dict[int, object] = {}
        self._is_allowed = False
        self._pending: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._before[number] = handler
                    signal.signal(number, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @property
    def is_pending(self) -> bool:
        return self._pending is not None

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Inside the block a signal is obeyed when it arrives; one that was held back is obeyed at once."""
        self._is_allowed = True
        try:
            if self._pending is not None:
                self._obey(*self._pending)
            yield
        finally:
            self._is_allowed = False

    def postponed(self) -> BaseException | None:
        """The exception of a signal that is still held back; None if there is none."""
        if self._pending is None:
            return None
        try:
            self._obey(*self._pending)
        except (KeyboardInterrupt, SystemExit) as exc:
            return exc
        return None

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._is_allowed or self._pending is not None:
            self._obey(number, frame)
        else:
            self._pending = (number, frame)

    def _obey(self, number: int, frame: FrameType | None) -> None:
        self._pending = None
        handler = self._before[number]
        assert callable(handler)
        handler(number, frame)

"""Owns the connections of an open store: lent to one user at a time, and none of them shared across a fork.

What nobody uses is closed before a fork; what somebody uses stays the parent's, and the child never
touches it. An interrupt may come between any two steps: a connection that is simply lost is closed by its
own end and counts no more, so nothing has to be put right afterwards.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from holdfast.errors import StoreUnavailable

#: how long a fork waits for the transactions of other threads
FORK_SECONDS = 5.0

#: the error in the child of a process fork that continues a transaction of its parent
NOT_ITS_TRANSACTION = "a transaction stays with the process that began it"

_LOOK_AGAIN_SECONDS = 0.05


class Lent(Protocol):
    """A connection; it closes itself when it is lost."""

    user: int  #: the thread that has it, 0 if none

    def close(self) -> None:
        """Idempotent; ends an open transaction without a commit."""
        ...


C = TypeVar("C", bound=Lent)


class Connector(Protocol[C]):
    @property
    def where(self) -> str: ...

    def connect(self) -> C: ...

    def abandon(self, used: Sequence[C]) -> None:
        """In the child of a fork during which some were in use, or just being made: they are the parent's."""
        ...


class _Forks:
    """Every pool of this process, halted while the process is copied."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._pools: WeakSet[Pool[Any]] = WeakSet()
        os.register_at_fork(
            before=self._before, after_in_parent=self._after_in_parent, after_in_child=self._after_in_child
        )

    def add(self, pool: Pool[Any]) -> None:
        with self.lock:
            self._pools.add(pool)

    def _before(self) -> None:
        self.lock.acquire()
        give_up = time.monotonic() + FORK_SECONDS
        for pool in self._pools:
            pool.halt(give_up)

    def _after_in_parent(self) -> None:
        for pool in self._pools:
            pool.go_on()
        self.lock.release()

    def _after_in_child(self) -> None:
        self.lock = threading.RLock()
        for pool in self._pools:
            pool.begin_again()


_forks = _Forks()


class Pool(Generic[C]):
    """Keeps at most ``keep`` unused connections; with a ``limit``, no more than that exist."""

    def __init__(
        self, connector: Connector[C], *, keep: int, limit: int | None = None, patience: float = 0.0
    ) -> None:
        self._connector = connector
        self._keep = keep
        self._limit = limit
        self._patience = patience
        self._closed = False
        self._make_empty()
        _forks.add(self)

    def _make_empty(self) -> None:
        self._lock = threading.Lock()
        self._returned = threading.Condition(self._lock)
        self._idle: list[C] = []
        self._all: WeakSet[C] = WeakSet()
        self._connecting: set[int] = set()
        self._forking = False
        self._halted = False

    def borrow(self) -> C:
        with self._lock:
            if self._idle:
                return self._take()
        return self._borrow_new()

    def give_back(self, connection: C) -> None:
        with self._lock:
            if len(self._idle) < self._keep and not (self._closed or self._forking):
                connection.user = 0
                self._idle.append(connection)
                if self._limit is not None:
                    self._returned.notify()
                return
        self.discard(connection)

    def discard(self, connection: C) -> None:
        connection.close()
        with self._lock:
            self._all.discard(connection)
            self._returned.notify()

    def discard_idle(self) -> None:
        while True:
            with self._lock:
                if not self._idle:
                    return
                connection = self._take()
            self.discard(connection)

    def close(self) -> None:
        """Idempotent. What is in use is closed when it comes back."""
        with self._lock:
            self._closed = True
        self.discard_idle()

    def _take(self) -> C:
        connection = self._idle.pop()
        connection.user = threading.get_ident()
        return connection

    def _borrow_new(self) -> C:
        me = threading.get_ident()
        try:
            connection = self._await_room(me)
            if connection is None:
                connection = self._connector.connect()
                connection.user = me
                with self._lock:
                    self._all.add(connection)
            return connection
        finally:
            self._connecting.discard(me)

    def _await_room(self, me: int) -> C | None:
        """One that came back meanwhile, or None: there is room for another one, and it is this thread's."""
        give_up = time.monotonic() + self._patience
        while True:
            with self._lock:
                if self._closed:
                    raise StoreUnavailable(self._connector.where, "the store is closed")
                if self._idle:
                    return self._take()
                if not self._forking and self._has_room():
                    self._connecting.add(me)
                    return None
                if not self._forking:
                    self._returned.wait(_LOOK_AGAIN_SECONDS)
            if self._forking:
                with _forks.lock:  # held until the fork is over
                    continue
            if time.monotonic() > give_up:
                problem = f"all connections are in use for more than {self._patience:.0f} seconds"
                raise StoreUnavailable(self._connector.where, problem)

    def _has_room(self) -> bool:
        return self._limit is None or len(self._all) + len(self._connecting) < self._limit

    # --- a fork ---

    def halt(self, give_up: float) -> None:
        """What is not lent is closed, and what is lent too, as soon as it comes back; nothing more is lent."""
        # with a deadline: a signal handler that forks may have interrupted the holder of the lock
        self._halted = self._lock.acquire(timeout=FORK_SECONDS)
        self._forking = True
        if not self._halted:
            return
        while self._idle:
            connection = self._idle.pop()
            connection.close()
            self._all.discard(connection)
        while self._used_by_others() and time.monotonic() < give_up:
            self._returned.wait(_LOOK_AGAIN_SECONDS)

    def go_on(self) -> None:
        self._forking = False
        if self._halted:
            self._halted = False
            self._lock.release()

    def begin_again(self) -> None:
        used = list(self._all)
        clean = self._halted and not used and not self._connecting
        self._make_empty()
        if not clean:
            self._connector.abandon(used)

    def _used_by_others(self) -> bool:
        me = threading.get_ident()
        return bool(self._connecting - {me}) or any(one.user not in (0, me) for one in self._all)

"""Keeping a lease alive when the store says no."""

import json
import logging
import threading
import time
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.cli.fleet import JsonLines
from holdfast.clock import Instant
from holdfast.domain.failures import StopCause
from holdfast.domain.ids import ConversationId, SessionId
from holdfast.domain.policy import QueuePolicy
from holdfast.domain.turns import Heartbeat, Lease
from holdfast.engine.running.log_subject import lease_fields, lines_about, log_about, log_subject
from holdfast.engine.running.stopping import KeepAlive
from holdfast.errors import (
    Forbidden,
    HoldfastError,
    LeaseLost,
    NotFound,
    StoreUnavailable,
    TooMany,
    Unauthenticated,
)
from holdfast.store.contract import Store

LEASE = Lease(SessionId("agent-1"), ConversationId("conv-1"), 1, 1, 1, "worker", Instant(0))
HASTY = QueuePolicy(heartbeat_seconds=0.01, lease_seconds=1, grace_seconds=0.05, poll_seconds=0.01)


class Refusing:
    """A server that lets nobody do anything any more."""

    def __init__(self, error: HoldfastError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        def refuse(*_: object) -> None:
            raise self._error

        return refuse


@pytest.mark.parametrize(
    "error", [Unauthenticated("who?"), Forbidden("no"), TooMany("later"), NotFound("turn", "1")]
)
def test_a_lease_that_cannot_be_renewed_for_longer_than_the_grace_ends_the_turn(error: HoldfastError) -> None:
    told, causes = threading.Event(), list[StopCause]()

    def stop(cause: StopCause) -> None:
        causes.append(cause)
        told.set()

    alive = KeepAlive(cast("Store", Refusing(error)), LEASE, HASTY)
    alive.watch(stop)
    with alive:
        assert told.wait(30), "its agent would run on beside the next one"

    assert causes == [StopCause.LEASE_LOST]


class Silent:
    """A store that takes every question, and answers none until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def __getattr__(self, name: str) -> Any:
        def wait(*_: object) -> None:
            self.let_go.wait()
            raise NotFound("turn", "1")

        return wait


def test_a_store_that_neither_answers_nor_fails_does_not_outlast_the_grace() -> None:
    told, causes = threading.Event(), list[StopCause]()
    silent = Silent()

    def stop(cause: StopCause) -> None:
        causes.append(cause)
        told.set()

    alive = KeepAlive(cast("Store", silent), LEASE, HASTY)
    alive.watch(stop)
    with alive:
        was_told = told.wait(30)
        silent.let_go.set()

    assert was_told, "its agent would run on beside the next one"
    assert causes == [StopCause.LEASE_LOST]


def test_what_it_logs_is_about_the_turn_that_it_keeps() -> None:
    told, logged = threading.Event(), StringIO()
    handler = logging.StreamHandler(logged)
    handler.setFormatter(JsonLines())
    logging.getLogger("holdfast").addHandler(handler)
    alive = KeepAlive(cast("Store", Refusing(TooMany("later"))), LEASE, HASTY)
    alive.watch(lambda _: told.set())
    try:
        with lines_about(lease_fields(LEASE)):
            log_about(replace(LEASE, attempt=2))
            with alive:
                assert told.wait(30)
    finally:
        logging.getLogger("holdfast").removeHandler(handler)

    lines = [json.loads(line) for line in logged.getvalue().splitlines()]
    assert len(lines) == 2, "it cannot be renewed, and the grace is over"
    assert {(line["session"], line["turn"], line["attempt"]) for line in lines} == {("agent-1", 1, 2)}
    assert dict(log_subject()) == {}, "nothing that is logged later is about it"


class Fading:
    """A store that renews once, answers looks for a while longer, and then nothing any more."""

    def __init__(self, looks: int) -> None:
        self.renewed_at = 0.0
        self._looks = looks

    def heartbeat(self, lease: Lease, *_: object) -> Heartbeat:
        if self.renewed_at:
            raise StoreUnavailable("there", "away")
        self.renewed_at = time.monotonic()
        return Heartbeat(lease, cancel_requested=False)

    def get_turn(self, *_: object) -> Any:
        self._looks -= 1
        if self._looks < 0:
            raise StoreUnavailable("there", "away")
        return SimpleNamespace(cancel_requested=False)


class Counting:
    """A store that forgets to answer every second renewal that it has made, and knows a copy by its renewals."""

    def __init__(self) -> None:
        self.last: str | None = None
        self.calls: list[tuple[str | None, str]] = []
        self.lost_replies = 0

    def heartbeat(self, lease: Lease, _: float, renewal: str) -> Heartbeat:
        if self.last not in (lease.renewal, renewal):
            raise LeaseLost(lease.session_id, lease.seq, lease.fence)
        is_new, self.last = self.last != renewal, renewal
        self.calls.append((lease.renewal, renewal))
        if is_new and len(self.calls) % 2:
            self.lost_replies += 1
            raise StoreUnavailable("there", "the reply was lost")
        return Heartbeat(replace(lease, renewal=renewal), cancel_requested=False)

    def get_turn(self, *_: object) -> Any:
        return SimpleNamespace(cancel_requested=False)


def test_of_two_copies_of_a_worker_one_ends_its_agent_and_lost_replies_end_none() -> None:
    store, stopped = Counting(), list[str]()
    patient = QueuePolicy(heartbeat_seconds=0.01, lease_seconds=30, grace_seconds=30, poll_seconds=0.01)
    told = threading.Event()

    def keep(name: str) -> KeepAlive:
        def stop(_: StopCause) -> None:
            stopped.append(name)
            told.set()

        alive = KeepAlive(cast("Store", store), LEASE, patient)
        alive.watch(stop)
        return alive

    with keep("one"), keep("other"):
        assert told.wait(30), "two agents would run on beside each other"
        before = len(store.calls)
        while len(store.calls) < before + 10:
            time.sleep(0.01)
        assert len(stopped) == 1
    assert store.lost_replies > 1


def test_the_grace_counts_from_the_last_renewal_whatever_was_answered_since() -> None:
    policy = QueuePolicy(heartbeat_seconds=0.3, lease_seconds=1.5, grace_seconds=1.5, poll_seconds=0.05)
    store, told = Fading(looks=25), threading.Event()
    alive = KeepAlive(cast("Store", store), LEASE, policy)
    alive.watch(lambda _: told.set())
    with alive:
        assert told.wait(30)
        ended = time.monotonic()

    assert alive.cause is StopCause.LEASE_LOST
    assert ended - store.renewed_at < policy.lease_seconds, "another one may hold the turn by now"


class Granting(Fading):
    """A store that grants every renewal, and remembers them."""

    def __init__(self) -> None:
        super().__init__(looks=10_000)
        self.renewals = 0

    def heartbeat(self, lease: Lease, *_: object) -> Heartbeat:
        self.renewals += 1
        return Heartbeat(lease, cancel_requested=False)

    def wait_for_renewals(self, number: int) -> None:
        until = time.monotonic() + 30
        while self.renewals < number and time.monotonic() < until:
            time.sleep(0.01)
        assert self.renewals >= number


def test_no_renewal_runs_beside_the_write_that_ends_the_lease_or_after_it() -> None:
    policy = QueuePolicy(heartbeat_seconds=0.01, lease_seconds=30, grace_seconds=30, poll_seconds=0.01)
    store = Granting()
    with KeepAlive(cast("Store", store), LEASE, policy) as alive:
        store.wait_for_renewals(3)
        with alive.ending():
            before = store.renewals
            time.sleep(0.2)  # many heartbeats

    assert store.renewals == before


def test_a_write_that_could_not_end_the_lease_leaves_it_renewed() -> None:
    policy = QueuePolicy(heartbeat_seconds=0.01, lease_seconds=30, grace_seconds=30, poll_seconds=0.01)
    store = Granting()
    with KeepAlive(cast("Store", store), LEASE, policy) as alive:
        with pytest.raises(StoreUnavailable), alive.ending():
            raise StoreUnavailable("there", "away")
        store.wait_for_renewals(store.renewals + 3)


@pytest.mark.parametrize("grace", [0.0, 0.01])
def test_a_grace_that_is_shorter_than_a_heartbeat_does_not_end_a_turn_that_is_renewed(grace: float) -> None:
    policy = QueuePolicy(heartbeat_seconds=0.2, lease_seconds=1, grace_seconds=grace, poll_seconds=0.05)
    store = Granting()
    alive = KeepAlive(cast("Store", store), LEASE, policy)
    with alive:
        store.wait_for_renewals(6)

    assert alive.cause is None

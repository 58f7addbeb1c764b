"""Owns what goes wrong in contract tests: a turn that fails, a worker that loses its lease, a guard that objects."""

from __future__ import annotations

from typing import Any

from holdfast.clock import seconds_between
from holdfast.domain.decisions import Decision, Resume
from holdfast.domain.failures import FailureClass
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import Pointer, Rights
from holdfast.domain.runtimes import Runtime
from holdfast.domain.sessions import Session
from holdfast.domain.turns import Claim, Lease, Orphan, Turn, TurnRequest
from holdfast.store.contract import Store
from holdfast.testing.builders import a_pointer, a_runtime, failed
from holdfast.testing.clock import ManualClock
from holdfast.testing.steps import claim, enqueue

#: more than any session of these tests was launched with: the guard rights_wider refuses it
WIDER = TurnRequest(rights=Rights(permission_mode="bypass", allowed_tools=frozenset({"Bash"})))


def fail(
    store: Store, session: Session, failure_class: FailureClass, runtime: Runtime | None = None, **end: Any
) -> Claim:
    """One whole turn that fails, in the provider session that it resumed if there was one."""
    enqueue(store, session, "try it")
    claimed = claim(store, session, runtime)
    store.finish_turn(claimed.lease, failed(failure_class, **end))
    return claimed


def expire(store: Store, clock: ManualClock, lease: Lease) -> Orphan:
    clock.advance(max(0.0, seconds_between(clock(), lease.expires_at)))
    return next(found for found in store.orphans() if found.lease.session_id == lease.session_id)


def lose(store: Store, clock: ManualClock, lease: Lease) -> Turn:
    """The lease expires and the turn is recovered: its worker is fenced from now on."""
    return store.recover(expire(store, clock, lease))


def decide(
    store: Store, session: Session, runtime: Runtime | None = None, request: TurnRequest | None = None
) -> Decision:
    """What the next claim from this runtime would decide; nothing changes."""
    runtime = runtime or a_runtime()
    return store.explain(session.id, runtime.provider, request or TurnRequest(), runtime)


def resumed_id(decision: Decision) -> ProviderSessionId:
    assert isinstance(decision, Resume), f"not resumed: {decision.reason}"
    return decision.provider_session_id


def point_to(store: Store, session: Session, provider_session_id: ProviderSessionId) -> None:
    """The session goes on in this provider session, as recorded on ``a_runtime()``."""
    store.register_runtime(a_runtime())
    store.set_pointer(a_pointer(session.id, provider_session_id=provider_session_id))


def pointer_of(store: Store, session: Session) -> Pointer:
    pointer = store.pointer(session.id, "claude")
    assert pointer is not None
    return pointer

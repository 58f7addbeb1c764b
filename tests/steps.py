"""Owns the steps of many tests on a store: a session is begun, a turn runs or fails, a worker loses its lease."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from holdfast.clock import seconds_between
from holdfast.domain.approvals import Approval
from holdfast.domain.decisions import Decision, Resume
from holdfast.domain.failures import FailureClass
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import Pointer, Rights
from holdfast.domain.runtimes import Runtime
from holdfast.domain.sessions import Session, SessionFilter
from holdfast.domain.turns import Claim, Launch, Lease, Orphan, Turn, TurnRequest
from holdfast.errors import HoldfastError
from holdfast.store.contract import Store
from tests.builders import (
    a_claim,
    a_pointer,
    a_provider_session_id,
    a_runtime,
    a_session,
    a_turn,
    deferred,
    done,
    failed,
)
from tests.clock import ManualClock


def begin(store: Store, **changes: Any) -> Session:
    return store.create_session(a_session(**changes))


def join(store: Store, session: Session, agent: str, **changes: Any) -> Session:
    """Another agent's session in the same conversation."""
    return begin(store, agent=agent, conversation_id=session.conversation_id, **changes)


def enqueue(store: Store, session: Session, prompt: str, **changes: Any) -> Turn:
    return store.enqueue_turn(session.id, a_turn(prompt, **changes))


def claim(store: Store, session: Session, runtime: Runtime | None = None, **changes: Any) -> Claim:
    """Claim the session's head, which must be there."""
    claimed = store.claim_turn(a_claim(runtime=runtime or a_runtime(), session_id=session.id, **changes))
    assert claimed is not None, f"nothing to claim in {session.id}"
    return claimed


def run(
    store: Store, session: Session, prompt: str = "go on", runtime: Runtime | None = None, **end: Any
) -> Claim:
    """One whole turn that succeeds, answered with ``re: prompt``; the claim says how it was decided.

    It ends in the provider session that was resumed, or in a new one.
    """
    runtime = runtime or a_runtime()
    enqueue(store, session, prompt, provider=runtime.provider)
    claimed = claim(store, session, runtime)
    decision = claimed.decision
    used = decision.provider_session_id if isinstance(decision, Resume) else a_provider_session_id()
    store.finish_turn(claimed.lease, done(**{"response": f"re: {prompt}", "provider_session_id": used} | end))
    return claimed


def defer(store: Store, session: Session, prompt: str = "apply it", **changes: Any) -> Approval:
    """One turn that comes to a call which needs an approval; what it waits for."""
    enqueue(store, session, prompt)
    claimed = claim(store, session)
    store.launch(claimed.lease, Launch(claimed.decision))
    decision = claimed.decision
    used = decision.provider_session_id if isinstance(decision, Resume) else a_provider_session_id()
    store.finish_turn(claimed.lease, deferred(provider_session_id=used, **changes))
    (approval,) = store.approvals(session_id=session.id)
    return approval


def snapshot(store: Store, *, random_ids: bool = True) -> dict[str, object]:
    """Everything there is to see in a workspace of not too many sessions: equal means nothing changed.

    Without ``random_ids`` for two stores to which the same was done.
    """
    page = store.list_sessions(SessionFilter(), 1000)
    seen: dict[str, object] = {"": (page, store.runtimes())}
    for session in page.sessions:
        turns = store.turns(session.id)
        seen[session.id] = (
            store.phase_history(session.id),
            store.get_conversation(session.conversation_id),
            store.history(session.conversation_id),
            turns,
            [
                [attempt if random_ids else replace(attempt, id=None) for attempt in found]
                for found in (store.attempts(turn.conversation_id, turn.seq) for turn in turns)
            ],
            [store.events(turn.conversation_id, turn.seq) for turn in turns],
            store.pointers(session.id),
            store.provider_sessions(session.id),
            store.children(session.id),
            store.approvals(session_id=session.id, open_only=False),
        )
    return seen


@contextmanager
def refused(store: Store, error: type[HoldfastError]) -> Iterator[pytest.ExceptionInfo[HoldfastError]]:
    """The block raises this very error, and has changed nothing."""
    before = snapshot(store)
    with pytest.raises(error) as caught:
        yield caught
    assert type(caught.value) is error
    assert snapshot(store) == before


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

"""Owns the first steps of many contract tests: a session begun, a turn run, everything there is to see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from holdfast.domain.approvals import Approval
from holdfast.domain.decisions import Resume
from holdfast.domain.runtimes import Runtime
from holdfast.domain.sessions import Session, SessionFilter
from holdfast.domain.turns import Claim, Launch, Turn
from holdfast.errors import HoldfastError
from holdfast.store.contract import Store
from holdfast.testing.builders import (
    a_claim,
    a_provider_session_id,
    a_runtime,
    a_session,
    a_turn,
    deferred,
    done,
)


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

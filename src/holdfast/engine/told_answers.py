"""Owns finding the answers that a session's agent was not told yet.

They were given since the newest turn that the agent has answered was begun: a turn that failed, or runs
again, is told them once more.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.clock import Instant
from holdfast.domain.approvals import Approval
from holdfast.domain.sessions import Session
from holdfast.domain.telling.answers import ToldAnswer, settled_at, told_answer
from holdfast.engine.own_turns import newest_first
from holdfast.store.contract import Store


def untold_answers(store: Store, session: Session, seq: int) -> tuple[ToldAnswer, ...]:
    """Oldest first, for turn ``seq``."""
    now = store.now()
    found = [
        (at, approval)
        for approval in _approvals(store, session.id)
        if (at := settled_at(approval, now)) is not None
    ]
    if not found:
        return ()
    since = _last_told(store, session, seq)
    untold = sorted((pair for pair in found if pair[0] >= since), key=lambda pair: pair[0])
    return tuple(told_answer(approval, now) for _, approval in untold)


def _approvals(store: Store, session_id: str) -> Iterator[Approval]:
    last = None
    while page := store.approvals(session_id=session_id, open_only=False, after=last):
        yield from page
        last = page[-1].id


def _last_told(store: Store, session: Session, seq: int) -> Instant:
    for turn in newest_first(store, session.id, seq):
        if turn.dropped is not None:
            continue
        for attempt in store.attempts(session.conversation_id, turn.seq):
            # the first one: what goes on after a tool call's approval is told nothing
            if attempt.status.has_spoken:
                return attempt.started_at
    return Instant(0)

"""Owns waiting for a session: until its work is done, has failed, or needs a person."""

from __future__ import annotations

import time
from enum import StrEnum

from holdfast.domain.approvals import Approval
from holdfast.domain.phases import Phase
from holdfast.domain.records import record
from holdfast.domain.sessions import Session
from holdfast.domain.turns import Turn, TurnStatus
from holdfast.engine.own_turns import newest_turn
from holdfast.store.contract import Store

_FIRST_LOOK, _LAST_LOOK = 0.1, 2.0


class Reached(StrEnum):
    DONE = "done"  #: completed, or its newest turn is done and none is open
    FAILED = "failed"  #: failed or abandoned, or its newest turn did not end well
    NEEDS_PERSON = "needs_person"  #: somebody has to answer
    STILL_OPEN = "still_open"  #: others are at work on it, or nobody has begun


@record
class Waited:
    session: Session
    reached: Reached
    turn: Turn | None = None  #: the newest one
    approval: Approval | None = None  #: the oldest that can be answered, else the oldest that expired


def wait_for(store: Store, session_id: str, timeout: float | None) -> Waited:
    """Looks now and then, and holds nothing meanwhile; without ``timeout``, for as long as it takes."""
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = _FIRST_LOOK
    while True:
        waited = look(store, session_id)
        if waited.reached is not Reached.STILL_OPEN:
            return waited
        left = pause if deadline is None else deadline - time.monotonic()
        if left <= 0:
            return waited
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LAST_LOOK)


def look(store: Store, session_id: str) -> Waited:
    """How far it has come by now."""
    session = store.get_session(session_id)
    turn = newest_turn(store, session.id)
    if session.finalized_at is not None:
        done = session.phase is Phase.COMPLETED
        return Waited(session, Reached.DONE if done else Reached.FAILED, turn)
    asked = store.approvals(session_id=session.id)
    if asked:
        now = store.now()
        in_time = (approval for approval in asked if not approval.is_expired(now))
        return Waited(session, Reached.NEEDS_PERSON, turn, next(in_time, asked[0]))
    if turn is None or turn.status.is_open:
        return Waited(session, Reached.STILL_OPEN, turn)
    return Waited(session, Reached.DONE if turn.status is TurnStatus.DONE else Reached.FAILED, turn)

"""Owns calls that happen once: a caller that repeats a call under its key gets the same answer again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

from holdfast.clock import after
from holdfast.domain.conversations import HistoryTurn
from holdfast.domain.sessions import Session
from holdfast.domain.turns import Turn
from holdfast.errors import Conflict
from holdfast.store.contract import KeyedCall
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.tables import CALLS

# on PostgreSQL this waits for the same call, if that has not ended
BEGIN = CALLS.insert_once
KNOWN = "SELECT request, answer FROM calls WHERE workspace = :ws AND caller = :caller AND key = :key"
END = """
UPDATE calls SET answer = :answer, session_id = :session_id
WHERE workspace = :ws AND caller = :caller AND key = :key"""
FORGET = """
DELETE FROM calls WHERE workspace = :ws AND (caller, key) IN (
    SELECT caller, key FROM calls WHERE workspace = :ws AND at < :cutoff ORDER BY at LIMIT :limit)"""

#: a lost reply is asked for within this time
KEPT_SECONDS = 3600.0
#: each call takes a few old ones along, so that there are never many
_A_FEW = 8

T = TypeVar("T")


def once(s: Scope, call: KeyedCall, work: Callable[[], T]) -> T:
    """Conflict if the caller has used the key for another request."""
    mine = {"caller": call.caller, "key": call.key}
    if not s.changed(BEGIN, request=call.request, at=s.now, **mine):
        request, known = s.one(KNOWN, **mine) or (None, None)
        if request != call.request:
            raise Conflict(f"the key {call.key} was used for another request", key=call.key)
        call.text = known or "null"
        answer: T = call.answer.decode(json.loads(call.text), "answer")
        return answer
    result = work()
    call.text = json.dumps(call.answer.encode(result))
    s.run(END, answer=call.text, session_id=_session_of(result), **mine)
    forget(s, _A_FEW)
    return result


def forget(s: Scope, limit: int) -> int:
    """Delete answers that are too old to be asked for, the oldest first. Returns how many."""
    return s.changed(FORGET, cutoff=after(s.now, -KEPT_SECONDS), limit=limit)


def _session_of(answer: object) -> str | None:
    """The session whose texts the answer holds: the answer is deleted with it."""
    match answer:
        case Session():
            return answer.id
        case Turn() | HistoryTurn():
            return answer.session_id
        case _:
            return None

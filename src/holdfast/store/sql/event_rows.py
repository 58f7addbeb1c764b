"""Owns the rows of events: what happened in an attempt."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain.events import Event, EventKind
from holdfast.domain.inputs import clean_text
from holdfast.domain.redaction import encode_redacted
from holdfast.domain.turns import Lease
from holdfast.errors import Conflict
from holdfast.store.driver import Row
from holdfast.store.sql import codec, leases
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.shapes import Shape, read_instant

ADD = """
INSERT INTO events (workspace, conversation_id, seq, attempt, number, kind, at, data)
VALUES (:ws, :id, :seq, :attempt, :number, :kind, :at, :data) ON CONFLICT DO NOTHING"""
OF_TURN = """
SELECT attempt, number, kind, at, data FROM events
WHERE workspace = :ws AND conversation_id = :id AND seq = :seq
    AND (attempt > :attempt OR (attempt = :attempt AND number > :after))
ORDER BY attempt, number LIMIT :limit"""
NEWEST = """
SELECT attempt, number, kind, at, data FROM events
WHERE workspace = :ws AND conversation_id = :id AND seq = :seq
ORDER BY attempt DESC, number DESC LIMIT :limit"""
BEFORE_NEWEST = """
SELECT attempt, number FROM events
WHERE workspace = :ws AND conversation_id = :id AND seq = :seq
ORDER BY attempt DESC, number DESC LIMIT 1 OFFSET :newest"""
LAST = """
SELECT COALESCE(MAX(number), 0) FROM events
WHERE workspace = :ws AND conversation_id = :id AND seq = :seq AND attempt = :attempt"""
_SHAPE = Shape("events", "attempt, number, kind, at, data")


def add(s: Scope, lease: Lease, events: Sequence[Event]) -> None:
    leases.require(s, lease)
    s.run_many(
        ADD,
        [
            {
                "id": lease.conversation_id, "seq": lease.seq, "attempt": lease.attempt,
                "number": event.number, "kind": event.kind.value, "at": event.at,
                "data": clean_text(encode_redacted(dict(event.data), codec.dump)),
            }
            for event in events
        ],
    )  # fmt: skip


def add_behind(s: Scope, lease: Lease, events: Sequence[Event]) -> None:
    """Conflict if one of their numbers is taken: whoever numbered them has not seen what was recorded since."""
    (last,) = s.one(LAST, id=lease.conversation_id, seq=lease.seq, attempt=lease.attempt) or (0,)
    if any(event.number <= last for event in events):
        raise Conflict(f"turn {lease.seq} of {lease.session_id} has recorded more meanwhile", seq=lease.seq)
    add(s, lease, events)


def of_turn(
    s: Scope, conversation_id: str, seq: int, after: tuple[int, int], limit: int
) -> tuple[tuple[int, Event], ...]:
    rows = s.all(OF_TURN, id=conversation_id, seq=seq, attempt=after[0], after=after[1], limit=limit)
    return tuple(_event(s, seq, row) for row in rows)


def newest(s: Scope, conversation_id: str, seq: int, limit: int) -> tuple[tuple[int, Event], ...]:
    rows = s.all(NEWEST, id=conversation_id, seq=seq, limit=limit)
    return tuple(_event(s, seq, row) for row in reversed(rows))


def before_newest(s: Scope, conversation_id: str, seq: int, limit: int) -> tuple[int, int]:
    """The attempt and the number behind which the newest ``limit`` of them begin."""
    attempt, number = s.one(BEFORE_NEWEST, id=conversation_id, seq=seq, newest=limit) or (0, 0)
    return attempt, number


def _event(s: Scope, seq: int, row: Row) -> tuple[int, Event]:
    return _SHAPE.read(s.where, row, _read, "event", _SHAPE.column(row, "number"), "of turn", seq)


def _read(row: Row) -> tuple[int, Event]:
    attempt, number, kind, at, data = row
    return attempt, Event(number, EventKind(kind), codec.decode_object(data), read_instant(at))

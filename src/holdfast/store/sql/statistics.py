"""Owns counting: one pass over each table of a workspace, and no row of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from holdfast.clock import Instant, seconds_between
from holdfast.domain.decisions import DecisionKind, Reason
from holdfast.domain.delegations import DelegationOutcome, DelegationReason
from holdfast.domain.failures import FailureClass
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import SessionKind
from holdfast.domain.statistics import AttemptCount, DelegationCount, SessionCount, Statistics, TurnCount
from holdfast.domain.turns import AttemptStatus, TurnStatus
from holdfast.store.driver import Row
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.shapes import MISREAD

T = TypeVar("T")

SESSIONS = """
SELECT phase, kind, COUNT(*), CAST(SUM(error_count) AS BIGINT), COUNT(finalized_at),
    CAST(COALESCE(SUM(finalized_at - created_at), 0) AS BIGINT)
FROM sessions WHERE workspace = :ws GROUP BY phase, kind ORDER BY phase, kind"""
TURNS = """
SELECT status, failure_class, COUNT(*) FROM turns WHERE workspace = :ws
GROUP BY status, failure_class ORDER BY status, failure_class"""
ATTEMPTS = """
SELECT decision, reason, status, COUNT(*) FROM attempts WHERE workspace = :ws
GROUP BY decision, reason, status ORDER BY decision, reason, status"""
DELEGATIONS = """
SELECT reason, outcome, COUNT(*) FROM delegations WHERE workspace = :ws
GROUP BY reason, outcome ORDER BY reason, outcome"""
OLDEST = """
SELECT MIN(CASE WHEN not_before > created_at THEN not_before ELSE created_at END) FROM turns INDEXED BY open_turns
WHERE workspace = :ws AND status IN ('queued', 'claimed', 'running', 'waiting') AND status = 'queued'"""
LEASES = """
SELECT COUNT(*), COUNT(CASE WHEN lease_expires_at <= :now THEN 1 END) FROM sessions
WHERE workspace = :ws AND lease_expires_at IS NOT NULL"""
APPROVALS = """
SELECT COUNT(*) FROM approvals
WHERE workspace = :ws AND status = 'open' AND (expires_at IS NULL OR expires_at > :now)"""
LATE = "SELECT COUNT(*) FROM late_reports WHERE workspace = :ws"


def count(s: Scope) -> Statistics:
    leases, orphans = s.one(LEASES, now=s.now) or (0, 0)
    (oldest,) = s.one(OLDEST) or (None,)
    (approvals,) = s.one(APPROVALS, now=s.now) or (0,)
    (late,) = s.one(LATE) or (0,)
    return Statistics(
        tuple(_understood(_sessions, s.all(SESSIONS))),
        tuple(_understood(_turns, s.all(TURNS))),
        tuple(_understood(_attempts, s.all(ATTEMPTS))),
        tuple(_understood(_delegations, s.all(DELEGATIONS))),
        0.0 if oldest is None else max(0.0, seconds_between(oldest, s.now)),
        leases,
        orphans,
        approvals,
        late,
    )


def _understood(build: Callable[[Row], T], rows: list[Row]) -> Iterator[T]:
    """What no Holdfast wrote is not counted."""
    for row in rows:
        try:
            yield build(row)
        except MISREAD:
            continue


def _sessions(row: Row) -> SessionCount:
    phase, kind, number, errors, closed, microseconds = row
    seconds = seconds_between(Instant(0), Instant(microseconds))
    return SessionCount(Phase(phase), SessionKind(kind), number, errors, closed, seconds)


def _turns(row: Row) -> TurnCount:
    status, failure, number = row
    return TurnCount(TurnStatus(status), None if failure is None else FailureClass(failure), number)


def _attempts(row: Row) -> AttemptCount:
    decision, reason, status, number = row
    return AttemptCount(DecisionKind(decision), Reason(reason), AttemptStatus(status), number)


def _delegations(row: Row) -> DelegationCount:
    reason, outcome, number = row
    return DelegationCount(
        DelegationReason(reason), None if outcome is None else DelegationOutcome(outcome), number
    )

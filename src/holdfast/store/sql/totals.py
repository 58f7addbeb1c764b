"""Owns what is counted: totals of a workspace by day, what there is in it now, and what its attempts have used.

Each measure of the totals is one SELECT, and is written once. It counts the rows that exist; rows that were deleted
were counted by the same SELECT in the transaction that deleted them, and are added. So totals cost nothing until
somebody asks for them, and nothing that was ever counted is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from holdfast.clock import DAY, SECOND, Instant, seconds_between, to_iso
from holdfast.domain.decisions import DecisionKind, Reason
from holdfast.domain.delegations import DelegationOutcome, DelegationReason
from holdfast.domain.failures import FailureClass
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import SessionKind
from holdfast.domain.statistics import (
    BOUNDS,
    AttemptCount,
    DelegationCount,
    SessionCount,
    Statistics,
    Total,
    TotalKind,
    Totals,
    TurnCount,
)
from holdfast.domain.turns import AttemptStatus, TurnStatus
from holdfast.domain.usage import Usage, UsageGroup, UsageTotal
from holdfast.store.driver import Row
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.tables import DAILY_TOTALS, MISREAD

T = TypeVar("T")

_NEVER = 2**40  #: a day that no instant is on
#: conversations that one statement counts, and what they are called in it: parameters have no digits
_CHUNK = 100
_NAMES = tuple(f"c_{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(_CHUNK))


def _bucket(begin: str, end: str, first: int = 0, last: int = len(BOUNDS)) -> str:
    """The number of the first bound that a duration is below, as text; found by halves."""
    if first == last:
        return f"'{first}'"
    middle = (first + last) // 2
    below, above = _bucket(begin, end, first, middle), _bucket(begin, end, middle + 1, last)
    return f"CASE WHEN {end} - {begin} < {round(BOUNDS[middle] * SECOND)} THEN {below} ELSE {above} END"


def _seconds(begin: str, end: str) -> str:
    return f"CAST(SUM({end} - {begin}) AS DOUBLE PRECISION) / {SECOND}"


_DELEGATED_IN_GONE = """d.session_id IS NOT NULL AND d.session_id IN (
    SELECT g.id FROM sessions g WHERE g.workspace = :ws AND g.conversation_id IN (SELECT id FROM gone))"""
# what was put back was not tried; a fallback is the same try once more
_PLACE = """CASE WHEN a.cause = 'fallback' OR a.status = 'put_back' THEN 'same'
    WHEN a.decision IN ('resume', 'fork') OR EXISTS (
        SELECT 1 FROM attempts e INDEXED BY newest_attempts
        WHERE e.workspace = a.workspace AND e.session_id = a.session_id AND e.fence < a.fence) THEN 'next'
    ELSE 'first' END"""


class _Measure(NamedTuple):
    """What is counted of which rows; everything but the kind is SQL."""

    kind: TotalKind
    rows: str
    at: str  #: the instant whose day it belongs to
    detail: str = "''"
    which: str = "TRUE"
    amount: str = "CAST(0 AS DOUBLE PRECISION)"
    agent: str = "s.agent"
    provider: str = "s.provider"
    conversation: str = (
        "s.conversation_id"  #: of a row; empty: it is of a session, see ``_DELEGATED_IN_GONE``
    )

    def select(self, of_gone: str = "", index: str = "") -> str:
        alias = self.rows.split()[1]
        return f"""SELECT {self.at} / {DAY} AS day, {self.agent} AS agent, COALESCE({self.provider}, '') AS provider,
    '{self.kind.value}' AS what, {self.detail} AS detail, COUNT(*) AS number, {self.amount} AS amount
FROM {self.rows}{index} WHERE {alias}.workspace = :ws AND {self.which}{of_gone}
GROUP BY 1, 2, 3, 5"""

    def select_gone(self) -> str:
        if not self.conversation:
            return self.select(f" AND {_DELEGATED_IN_GONE}", " INDEXED BY delegations_by_session")
        return self.select(f" AND {self.conversation} IN (SELECT id FROM gone)")


def _of_sessions(kind: TotalKind, at: str, detail: str, which: str = "TRUE", **more: str) -> _Measure:
    """Sessions that were imported say nothing about how well Holdfast works."""
    return _Measure(kind, "sessions s", at, detail, f"{which} AND s.imported_at IS NULL", **more)


def _of_attempts(kind: TotalKind, at: str, detail: str, which: str, **more: str) -> _Measure:
    return _Measure(
        kind, "attempts a JOIN sessions s ON s.workspace = a.workspace AND s.id = a.session_id", at, detail,
        which, provider="a.provider", conversation="a.conversation_id", **more,
    )  # fmt: skip


def _of_delegations(kind: TotalKind, at: str, detail: str, which: str = "TRUE") -> _Measure:
    return _Measure(kind, "delegations d", at, detail, which, agent="d.agent", provider="''", conversation="")


def _used(kind: TotalKind, column: str) -> _Measure:
    amount = f"CAST(SUM({column}) AS DOUBLE PRECISION)"
    return _of_attempts(kind, "a.started_at", "''", f"{column} <> 0", amount=amount)


_LIFE = "s.created_at", "s.finalized_at"
_RUN = "a.started_at", "a.ended_at"
_MEASURES = (
    _of_sessions(TotalKind.SESSION, "s.created_at", "s.kind"),
    _of_sessions(
        TotalKind.SESSION_WITH_ERROR, "s.created_at", "s.kind",
        "(s.last_error IS NOT NULL OR s.phase = 'failed')",
    ),
    _of_sessions(
        TotalKind.CLOSED, "s.finalized_at", "s.phase || ' ' || s.kind", "s.finalized_at IS NOT NULL",
        amount=_seconds(*_LIFE),
    ),
    _of_sessions(
        TotalKind.DURATION, "s.finalized_at", _bucket(*_LIFE),
        "s.finalized_at IS NOT NULL AND s.kind = 'delegated' AND s.phase <> 'abandoned'",
        amount=_seconds(*_LIFE),
    ),
    _of_attempts(
        TotalKind.TURN_DURATION, "a.ended_at", _bucket(*_RUN), "a.ended_at IS NOT NULL AND a.status = 'done'",
        amount=_seconds(*_RUN),
    ),
    _of_attempts(
        TotalKind.ATTEMPT, "a.started_at", f"a.decision || ' ' || a.reason || ' ' || a.status || ' ' || {_PLACE}",
        "a.status <> 'open'",
    ),
    _of_attempts(TotalKind.LOCK_WAIT, "a.started_at", "'launch'", "a.failure_class = 'locked'"),
    _Measure(
        TotalKind.TURN, "turns t JOIN sessions s ON s.workspace = t.workspace AND s.id = t.session_id",
        "t.ended_at", "t.status || ' ' || COALESCE(t.failure_class, '')",
        "t.ended_at IS NOT NULL AND (s.imported_at IS NULL OR t.attempts > 0)",
        provider="t.provider", conversation="t.conversation_id",
    ),
    _Measure(
        TotalKind.LATE_REPORT, "late_reports l", "l.at", agent="''", provider="''",
        conversation="l.conversation_id",
    ),
    _of_delegations(
        TotalKind.DELEGATION, "d.at",
        "CASE WHEN d.outcome = 'asked' THEN 'asked_' ELSE '' END || CASE WHEN d.resumed THEN 'resumed' ELSE 'new' END",
    ),
    _of_delegations(
        TotalKind.DELEGATION_END, "d.ended_at", "d.outcome", "d.ended_at IS NOT NULL AND d.outcome <> 'asked'"
    ),
    _used(TotalKind.INPUT_TOKENS, "a.input_tokens"),
    _used(TotalKind.CACHED_INPUT_TOKENS, "a.cached_input_tokens"),
    _used(TotalKind.OUTPUT_TOKENS, "a.output_tokens"),
    _used(TotalKind.COST_USD, "a.cost_usd"),
)  # fmt: skip
_AND = "\nUNION ALL\n"

_COLUMNS = DAILY_TOTALS.all().sql
_ADD_UP = """
ON CONFLICT (workspace, day, agent, provider, what, detail)
DO UPDATE SET number = daily_totals.number + excluded.number, amount = daily_totals.amount + excluded.amount"""

TOTALS = f"""
SELECT what, agent, provider, detail, CAST(SUM(number) AS BIGINT), SUM(amount), MIN(day) FROM (
{_AND.join(measure.select() for measure in _MEASURES)}
UNION ALL
SELECT {_COLUMNS} FROM daily_totals WHERE workspace = :ws) AS counted
WHERE day >= :first AND day <= :last AND (agent = :agent OR :every)
GROUP BY what, agent, provider, detail ORDER BY what, agent, provider, detail"""
# in a fixed order, so that two that delete at once do not wait for each other in a circle
FOLD = f"""
WITH gone AS (SELECT id FROM conversations WHERE workspace = :ws AND id IN ({", ".join(f":{name}" for name in _NAMES)}))
INSERT INTO daily_totals (workspace, {_COLUMNS})
SELECT :ws, {_COLUMNS} FROM (
{_AND.join(measure.select_gone() for measure in _MEASURES)}) AS counted WHERE day IS NOT NULL AND detail IS NOT NULL
ORDER BY day, agent, provider, what, detail{_ADD_UP}"""
COUNT = f"""
INSERT INTO daily_totals (workspace, {_COLUMNS})
VALUES (:ws, :day, :agent, :provider, :what, :detail, :number, 0){_ADD_UP}"""


def fold(s: Scope, conversation_ids: Sequence[str]) -> None:
    """Count what is about to be deleted."""
    for begin in range(0, len(conversation_ids), _CHUNK):
        chunk = conversation_ids[begin : begin + _CHUNK]
        s.run(FOLD, **dict(zip(_NAMES, [*chunk, *[""] * (_CHUNK - len(chunk))], strict=True)))


def count(
    s: Scope, kind: TotalKind, detail: str, number: int = 1, *, agent: str = "", provider: str = ""
) -> None:
    """What leaves no row behind that could be counted."""
    if number:
        s.run(
            COUNT, day=s.now // DAY, agent=agent, provider=provider, what=kind.value, detail=detail,
            number=number,
        )  # fmt: skip


def read(s: Scope, since: Instant | None, until: Instant | None, agent: str | None) -> Totals:
    rows = s.all(
        TOTALS,
        first=0 if since is None else since // DAY,
        last=_NEVER if until is None else until // DAY,
        agent=agent or "",
        every=agent is None,
    )
    found = [total for row in rows if (total := _read(row)) is not None]
    days = [row[-1] for row in rows if isinstance(row[-1], int)]
    return Totals(Instant(min(days) * DAY) if days else None, tuple(found))


def _read(row: Row) -> Total | None:
    """None for what no Holdfast wrote."""
    what, agent, provider, detail, number, amount, _ = row
    try:
        if not (type(agent) is type(provider) is type(detail) is str):
            return None
        return Total(TotalKind(what), agent, provider, detail, int(number), float(amount))
    except MISREAD:
        return None


# --- what there is now ---

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


def statistics(s: Scope) -> Statistics:
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
    """Rows that no Holdfast wrote are not counted."""
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


# --- what attempts have used ---

_EVER = 2**62

_KEYS = {
    UsageGroup.SESSION: "a.session_id",
    UsageGroup.AGENT: "s.agent",
    UsageGroup.PROVIDER: "a.provider",
    # whole days of UTC, counted from 1970: both engines divide whole numbers alike
    UsageGroup.DAY: f"a.started_at / {DAY}",
}


def _used_by(key: str, *, of_session: bool) -> str:
    return f"""
SELECT {key}, COUNT(*), SUM(a.input_tokens), SUM(a.cached_input_tokens), SUM(a.output_tokens), SUM(a.cost_usd)
FROM attempts a JOIN sessions s ON s.workspace = a.workspace AND s.id = a.session_id
WHERE a.workspace = :ws AND a.started_at >= :since AND a.started_at < :until
    {"AND a.session_id = :session_id" if of_session else ""}
GROUP BY {key} ORDER BY {key}"""


USED = {group: _used_by(key, of_session=False) for group, key in _KEYS.items()}
USED_BY_SESSION = {group: _used_by(key, of_session=True) for group, key in _KEYS.items()}


def usage(
    s: Scope, group: UsageGroup, since: Instant | None, until: Instant | None, session_id: str | None
) -> tuple[UsageTotal, ...]:
    period: dict[str, object] = {"since": since or 0, "until": _EVER if until is None else until}
    if session_id is None:
        rows = s.all(USED[group], **period)
    else:
        rows = s.all(USED_BY_SESSION[group], session_id=session_id, **period)
    return tuple(
        UsageTotal(
            _day(key) if group is UsageGroup.DAY else key,
            attempts,
            Usage(int(taken), int(cached), int(given), float(cost)),
        )
        for key, attempts, taken, cached, given, cost in rows
    )


def _day(number: int) -> str:
    return to_iso(Instant(number * DAY))[:10]

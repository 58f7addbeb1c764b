"""Owns the totals of a workspace by day: of the rows there are, and of those that were deleted.

Each measure is one SELECT, and is written once. Asked for, it counts the rows there are; what was deleted before
was counted by the same SELECT in the transaction that deleted it, and is added. So totals cost nothing until
somebody asks, and nothing that was ever counted is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.clock import DAY, SECOND, Instant
from holdfast.domain.statistics import BOUNDS, Total, TotalKind, Totals
from holdfast.store.driver import Row
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.shapes import MISREAD

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
    return _Measure(kind, "sessions s", at, detail, which, **more)


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
        "t.ended_at", "t.status || ' ' || COALESCE(t.failure_class, '')", "t.ended_at IS NOT NULL",
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

_COLUMNS = "day, agent, provider, what, detail, number, amount"
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

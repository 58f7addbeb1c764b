"""Owns the totals of a workspace by day: of the rows there are, and of those that were deleted.

Each measure is one SELECT, and is written once. Asked for, it counts the rows there are; what was deleted before
was counted by the same SELECT in the transaction that deleted it, and is added. So totals cost nothing until
somebody asks, and nothing that was ever counted is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.clock import DAY, SECOND, Instant
from holdfast.domain.measures import BOUNDS
from holdfast.domain.statistics import Total, TotalKind, Totals
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


_NOTHING = "CAST(0 AS DOUBLE PRECISION)"
_OF_SESSION = "sessions s"
_OF_ATTEMPT = "attempts a JOIN sessions s ON s.workspace = a.workspace AND s.id = a.session_id"
_OF_TURN = "turns t JOIN sessions s ON s.workspace = t.workspace AND s.id = t.session_id"
_OF_DELEGATION = "delegations d"
# what was put back was not tried; a fallback is the same try once more
_PLACE = """CASE WHEN a.cause = 'fallback' OR a.status = 'put_back' THEN 'same'
    WHEN a.decision IN ('resume', 'fork') OR EXISTS (
        SELECT 1 FROM attempts e INDEXED BY newest_attempts
        WHERE e.workspace = a.workspace AND e.session_id = a.session_id AND e.fence < a.fence) THEN 'next'
    ELSE 'first' END"""

#: kind; instant of the day; agent; provider; detail; amount; rows; which of them; the conversation of one
_MEASURES: tuple[tuple[TotalKind, str, str, str, str, str, str, str, str], ...] = (
    (TotalKind.SESSION, "s.created_at", "s.agent", "s.provider", "s.kind", _NOTHING, _OF_SESSION, "TRUE",
     "s.conversation_id"),
    (TotalKind.SESSION_WITH_ERROR, "s.created_at", "s.agent", "s.provider", "s.kind", _NOTHING, _OF_SESSION,
     "(s.last_error IS NOT NULL OR s.phase = 'failed')", "s.conversation_id"),
    (TotalKind.CLOSED, "s.finalized_at", "s.agent", "s.provider", "s.phase || ' ' || s.kind",
     _seconds("s.created_at", "s.finalized_at"), _OF_SESSION, "s.finalized_at IS NOT NULL",
     "s.conversation_id"),
    (TotalKind.DURATION, "s.finalized_at", "s.agent", "s.provider",
     _bucket("s.created_at", "s.finalized_at"), _seconds("s.created_at", "s.finalized_at"), _OF_SESSION,
     "s.finalized_at IS NOT NULL AND s.kind = 'delegated' AND s.phase <> 'abandoned'", "s.conversation_id"),
    (TotalKind.TURN_DURATION, "a.ended_at", "s.agent", "a.provider", _bucket("a.started_at", "a.ended_at"),
     _seconds("a.started_at", "a.ended_at"), _OF_ATTEMPT, "a.ended_at IS NOT NULL AND a.status = 'done'",
     "a.conversation_id"),
    (TotalKind.ATTEMPT, "a.started_at", "s.agent", "a.provider",
     f"a.decision || ' ' || a.reason || ' ' || a.status || ' ' || {_PLACE}", _NOTHING, _OF_ATTEMPT,
     "a.status <> 'open'", "a.conversation_id"),
    (TotalKind.LOCK_WAIT, "a.started_at", "s.agent", "a.provider", "'launch'", _NOTHING, _OF_ATTEMPT,
     "a.failure_class = 'locked'", "a.conversation_id"),
    (TotalKind.TURN, "t.ended_at", "s.agent", "t.provider", "t.status || ' ' || COALESCE(t.failure_class, '')",
     _NOTHING, _OF_TURN, "t.ended_at IS NOT NULL", "t.conversation_id"),
    (TotalKind.LATE_REPORT, "l.at", "''", "''", "''", _NOTHING, "late_reports l", "TRUE",
     "l.conversation_id"),
    (TotalKind.DELEGATION, "d.at", "d.agent", "''",
     "CASE WHEN d.outcome = 'asked' THEN 'asked' WHEN d.resumed THEN 'resumed' ELSE 'new' END", _NOTHING,
     _OF_DELEGATION, "TRUE", ""),
    (TotalKind.DELEGATION_END, "d.ended_at", "d.agent", "''", "d.outcome", _NOTHING, _OF_DELEGATION,
     "d.ended_at IS NOT NULL AND d.outcome <> 'asked'", ""),
    *(
        (kind, "a.started_at", "s.agent", "a.provider", "''", f"CAST(SUM({column}) AS DOUBLE PRECISION)",
         _OF_ATTEMPT, f"{column} <> 0", "a.conversation_id")
        for kind, column in (
            (TotalKind.INPUT_TOKENS, "a.input_tokens"),
            (TotalKind.CACHED_INPUT_TOKENS, "a.cached_input_tokens"),
            (TotalKind.OUTPUT_TOKENS, "a.output_tokens"),
            (TotalKind.COST_USD, "a.cost_usd"),
        )
    ),
)  # fmt: skip
#: delegations are of a session, which is of a conversation
_DELEGATED_IN_GONE = """d.session_id IS NOT NULL AND d.session_id IN (
    SELECT g.id FROM sessions g WHERE g.workspace = :ws AND g.conversation_id IN (SELECT id FROM gone))"""


def _all_measures(of_gone: Callable[[str], str], delegations: str) -> str:
    selects = (
        f"SELECT {at} / {DAY} AS day, {agent} AS agent, COALESCE({provider}, '') AS provider,"
        f" '{kind.value}' AS what, {detail} AS detail, COUNT(*) AS number, {amount} AS amount\n"
        f"FROM {delegations if rows is _OF_DELEGATION else rows} WHERE {rows.split()[1]}.workspace = :ws AND {which}{of_gone(conversation)}\n"
        "GROUP BY 1, 2, 3, 5"
        for kind, at, agent, provider, detail, amount, rows, which, conversation in _MEASURES
    )
    return "\nUNION ALL\n".join(selects)


def _in_gone(conversation: str) -> str:
    return f" AND {f'{conversation} IN (SELECT id FROM gone)' if conversation else _DELEGATED_IN_GONE}"


_COLUMNS = "day, agent, provider, what, detail, number, amount"
_ADD_UP = """
ON CONFLICT (workspace, day, agent, provider, what, detail)
DO UPDATE SET number = daily_totals.number + excluded.number, amount = daily_totals.amount + excluded.amount"""

TOTALS = f"""
SELECT what, agent, provider, detail, CAST(SUM(number) AS BIGINT), SUM(amount), MIN(day) FROM (
{_all_measures(lambda _: "", _OF_DELEGATION)}
UNION ALL
SELECT {_COLUMNS} FROM daily_totals WHERE workspace = :ws) AS counted
WHERE day >= :first AND day <= :last AND (agent = :agent OR :every)
GROUP BY what, agent, provider, detail ORDER BY what, agent, provider, detail"""
# in a fixed order, so that two that delete at once do not wait for each other in a circle
FOLD = f"""
WITH gone AS (SELECT id FROM conversations WHERE workspace = :ws AND id IN ({", ".join(f":{name}" for name in _NAMES)}))
INSERT INTO daily_totals (workspace, {_COLUMNS})
SELECT :ws, {_COLUMNS} FROM (
{_all_measures(_in_gone, f"{_OF_DELEGATION} INDEXED BY delegations_by_session")}) AS counted WHERE day IS NOT NULL AND detail IS NOT NULL
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

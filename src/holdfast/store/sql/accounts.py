"""Owns sums over attempts: what was used, by session, agent, provider or day."""

from __future__ import annotations

from holdfast.clock import DAY, Instant, to_iso
from holdfast.domain.usage import Usage, UsageGroup, UsageTotal
from holdfast.store.sql.scope import Scope

_EVER = 2**62

_KEYS = {
    UsageGroup.SESSION: "a.session_id",
    UsageGroup.AGENT: "s.agent",
    UsageGroup.PROVIDER: "a.provider",
    # whole days of UTC, counted from 1970: both engines divide whole numbers alike
    UsageGroup.DAY: f"a.started_at / {DAY}",
}


def _totals(key: str, *, of_session: bool) -> str:
    return f"""
SELECT {key}, COUNT(*), SUM(a.input_tokens), SUM(a.cached_input_tokens), SUM(a.output_tokens), SUM(a.cost_usd)
FROM attempts a JOIN sessions s ON s.workspace = a.workspace AND s.id = a.session_id
WHERE a.workspace = :ws AND a.started_at >= :since AND a.started_at < :until
    {"AND a.session_id = :session_id" if of_session else ""}
GROUP BY {key} ORDER BY {key}"""


ALL = {group: _totals(key, of_session=False) for group, key in _KEYS.items()}
OF_SESSION = {group: _totals(key, of_session=True) for group, key in _KEYS.items()}


def totals(
    s: Scope, group: UsageGroup, since: Instant | None, until: Instant | None, session_id: str | None
) -> tuple[UsageTotal, ...]:
    period: dict[str, object] = {"since": since or 0, "until": _EVER if until is None else until}
    if session_id is None:
        rows = s.all(ALL[group], **period)
    else:
        rows = s.all(OF_SESSION[group], session_id=session_id, **period)
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

"""Owns the rows of provider sessions that were only watched. Hooks import this: it stays light.

Events may come late, twice and out of order: the newest one decides the state, and none counts twice.
"""

from __future__ import annotations

from holdfast.domain.observed import ObservedSession
from holdfast.store.sql.tables import (
    MISREAD,
    OBSERVED_SESSIONS,
    POINTERS,
    Columns,
    read_instant,
    read_optional_instant,
    unreadable,
)

TYPE_CHECKING = False

if TYPE_CHECKING:
    from holdfast.clock import Instant
    from holdfast.domain.observed import Reading, Sighting
    from holdfast.store.driver import Row
    from holdfast.store.sql.scope import Scope

_CONTEXT_WINDOW = """
    (SELECT MAX(p.context_window) FROM pointers p INDEXED BY pointers_to_provider_sessions
        WHERE p.workspace = observed_sessions.workspace AND p.provider = observed_sessions.provider
            AND p.provider_session_id = observed_sessions.id)"""
ROWS = OBSERVED_SESSIONS.pick(
    *(name for name in OBSERVED_SESSIONS.columns if name != "compacted_at")
) + Columns(OBSERVED_SESSIONS.name, [(_CONTEXT_WINDOW, "context_window", POINTERS.columns["context_window"])])
ONE = f"""
SELECT {ROWS.sql} FROM observed_sessions WHERE workspace = :ws AND provider = :provider AND id = :id"""
NEWEST = f"""
SELECT {ROWS.sql} FROM observed_sessions WHERE workspace = :ws
ORDER BY last_seen_at DESC, provider, id LIMIT :limit"""
_KNOWN = OBSERVED_SESSIONS.pick(
    "started_at", "last_seen_at", "cwd", "transcript_path", "source", "ended_at", "end_reason",
    "transcript_offset",
)  # fmt: skip
LOCK = f"""
SELECT {_KNOWN.sql}
FROM observed_sessions WHERE workspace = :ws AND provider = :provider AND id = :id FOR UPDATE"""
SEE = """
UPDATE observed_sessions SET started_at = :started_at, last_seen_at = :last_seen_at, cwd = :cwd,
    transcript_path = :transcript_path, source = :source, ended_at = :ended_at, end_reason = :end_reason
WHERE workspace = :ws AND provider = :provider AND id = :id"""
COMPACT = """
UPDATE observed_sessions SET compactions = compactions + 1, compacted_at = :at
WHERE workspace = :ws AND provider = :provider AND id = :id AND COALESCE(compacted_at, 0) < :at"""


def _counting(form: str) -> str:
    kinds = ("input_tokens", "cached_input_tokens", "output_tokens")
    return f"""
UPDATE observed_sessions SET transcript_offset = :end, {", ".join(form.format(kind) for kind in kinds)},
    context_tokens = COALESCE(:context, context_tokens), last_message = COALESCE(:message, last_message)
WHERE workspace = :ws AND provider = :provider AND id = :id"""


ADD = _counting("{0} = {0} + :{0}")
RECOUNT = _counting("{0} = :{0}")
FORGET = "DELETE FROM observed_sessions WHERE workspace = :ws AND last_seen_at < :cutoff"


def observe(s: Scope, seen: Sighting) -> ObservedSession:
    key = {"provider": seen.provider, "id": seen.id}
    s.run(OBSERVED_SESSIONS.insert_once, **key, started_at=seen.at, last_seen_at=seen.at)
    row = s.one(LOCK, **key)
    assert row is not None
    started_at, last_seen_at, cwd, transcript_path, source, ended_at, end_reason, offset = row
    is_news = seen.at >= last_seen_at
    if seen.end_reason is not None and is_news:
        ended_at, end_reason = seen.at, seen.end_reason
    elif ended_at is not None and seen.at > ended_at:
        ended_at, end_reason = None, None  # the session continues
    s.run(
        SEE, **key, started_at=min(started_at, seen.at), last_seen_at=max(last_seen_at, seen.at),
        cwd=_newest(is_news, seen.cwd, cwd), ended_at=ended_at, end_reason=end_reason,
        transcript_path=_newest(is_news, seen.transcript_path, transcript_path),
        source=_newest(seen.at < started_at, seen.source, source),
    )  # fmt: skip
    if seen.compacts:
        s.run(COMPACT, **key, at=seen.at)
    if seen.reading is not None and seen.reading.start == offset:
        _count(s, key, seen.reading)
    found = one(s, seen.provider, seen.id)
    assert found is not None
    return found


def _newest(is_news: bool, told: str | None, known: str | None) -> str | None:
    return (told or known) if is_news else (known or told)


def _count(s: Scope, key: dict[str, str], reading: Reading) -> None:
    s.run(
        RECOUNT if reading.replaced else ADD, **key, end=reading.end, input_tokens=reading.input_tokens,
        cached_input_tokens=reading.cached_input_tokens, output_tokens=reading.output_tokens,
        context=reading.context_tokens, message=reading.last_message,
    )  # fmt: skip


def one(s: Scope, provider: str, provider_session_id: str) -> ObservedSession | None:
    row = s.one(ONE, provider=provider, id=provider_session_id)
    return None if row is None else read(s, row)


def newest(s: Scope, limit: int) -> tuple[ObservedSession, ...]:
    from holdfast.store.sql.rows import readable  # no hook asks for a list

    return tuple(readable(lambda row: _checked(s, row), s.all(NEWEST, limit=limit)))


def _checked(s: Scope, row: Row) -> ObservedSession:
    """As it may be after somebody was at the file."""
    provider, provider_session_id, *_ = row
    try:
        ROWS.check(row)
        session = read(s, row)
        read_instant(session.started_at)
        read_instant(session.last_seen_at)
        read_optional_instant(session.ended_at)
    except MISREAD as exc:
        raise unreadable(s.where, ROWS.table, f"{provider} {provider_session_id}", exc) from exc
    return session


def read(s: Scope, row: Row) -> ObservedSession:
    columns = ROWS.named(row)
    state = _state(s, columns["context_tokens"], columns["context_window"])
    return ObservedSession(**columns, context_state=state)


def _state(s: Scope, tokens: int | None, window: int | None) -> str | None:
    if not tokens or not window:
        return None
    from holdfast.domain.usage import ContextUse, context_state  # the window is seldom known

    return context_state(ContextUse(tokens, window), s.policy.resume).value


def forget(s: Scope, cutoff: Instant) -> None:
    """Those of which nothing has been seen since."""
    s.run(FORGET, cutoff=cutoff)

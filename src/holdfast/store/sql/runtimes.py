"""Owns the rows of runtimes."""

from __future__ import annotations

from holdfast.clock import after
from holdfast.domain.ids import RuntimeId
from holdfast.domain.runtimes import KnownRuntime, Runtime
from holdfast.errors import NotFound
from holdfast.store.driver import Row
from holdfast.store.sql import codec
from holdfast.store.sql.rows import Rows, coded, cut, readable
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.tables import RUNTIMES, read_instant, unreadable

ROWS = Rows(
    RUNTIMES,
    Runtime,
    "{machine} {provider} {distribution} {home}",
    capabilities=coded(codec.encode_capabilities, codec.decode_capabilities),
)
# many workers of one machine are one runtime: what one of them has just said, the others need not write again
REGISTER = f"""{RUNTIMES.insert}
ON CONFLICT (workspace, id) DO UPDATE SET version = excluded.version, capabilities = excluded.capabilities,
    last_seen_at = excluded.last_seen_at
WHERE runtimes.last_seen_at NOT BETWEEN :just_now AND :last_seen_at OR runtimes.capabilities <> excluded.capabilities
    OR COALESCE(runtimes.version, '') <> COALESCE(excluded.version, '')"""
RUNTIME = f"""
SELECT {ROWS.sql} FROM runtimes
WHERE workspace = :ws AND id = :id"""
ALL = f"""
SELECT {ROWS.sql}, last_seen_at FROM runtimes
WHERE workspace = :ws ORDER BY provider, machine, id"""

#: a runtime was seen at most so long after the moment that is recorded
_EXACT_TO_SECONDS = 5.0


def register(s: Scope, runtime: Runtime, *, refresh: bool) -> RuntimeId:
    known = ROWS.values(runtime) | {"id": runtime.id, "first_seen_at": s.now, "last_seen_at": s.now}
    if refresh:
        s.run(REGISTER, just_now=after(s.now, -_EXACT_TO_SECONDS), **known)
    else:
        s.run(RUNTIMES.insert_once, **known)
    return runtime.id


def get(s: Scope, runtime_id: str) -> Runtime:
    row = s.one(RUNTIME, id=runtime_id)
    if row is None:
        raise NotFound("runtime", runtime_id)
    return ROWS.read(s.where, row)


def all_of(s: Scope) -> tuple[KnownRuntime, ...]:
    return tuple(readable(lambda row: _read_known(s, row), s.all(ALL)))


def _read_known(s: Scope, row: Row) -> KnownRuntime:
    runtime, (last_seen_at,) = cut(row, ROWS)
    found = ROWS.read(s.where, runtime)
    try:
        return KnownRuntime(found, read_instant(last_seen_at))
    except ValueError as exc:
        raise unreadable(s.where, RUNTIMES.name, str(found.id), exc) from exc

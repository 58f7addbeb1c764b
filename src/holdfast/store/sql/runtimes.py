"""Owns the rows of runtimes."""

from __future__ import annotations

from holdfast.clock import after
from holdfast.domain.ids import RuntimeId
from holdfast.domain.runtimes import KnownRuntime, Runtime
from holdfast.errors import NotFound
from holdfast.store.driver import Row
from holdfast.store.sql import codec
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.shapes import Shape, read_instant, readable

KNOW = """
INSERT INTO runtimes (workspace, id, machine, provider, distribution, home, version, capabilities,
    first_seen_at, last_seen_at)
VALUES (:ws, :id, :machine, :provider, :distribution, :home, :version, :capabilities, :now, :now)
ON CONFLICT (workspace, id) DO {action}"""
ADD = KNOW.format(action="NOTHING")
# many workers of one machine are one runtime: what one of them has just said, the others need not write again
REGISTER = KNOW.format(
    action="""UPDATE SET version = excluded.version, capabilities = excluded.capabilities,
    last_seen_at = excluded.last_seen_at
WHERE runtimes.last_seen_at NOT BETWEEN :just_now AND :now OR runtimes.capabilities <> excluded.capabilities
    OR COALESCE(runtimes.version, '') <> COALESCE(excluded.version, '')"""
)
COLUMNS = "machine, provider, distribution, home, capabilities, version"
RUNTIME = f"""
SELECT {COLUMNS} FROM runtimes
WHERE workspace = :ws AND id = :id"""
RUNTIMES = f"""
SELECT {COLUMNS}, last_seen_at FROM runtimes
WHERE workspace = :ws ORDER BY provider, machine, id"""

#: a runtime was seen at most so long after the moment that is recorded
_EXACT_TO_SECONDS = 5.0

_SHAPE = Shape("runtimes", COLUMNS, "version")
_KNOWN = Shape("runtimes", f"{COLUMNS}, last_seen_at", "version")


def register(s: Scope, runtime: Runtime, *, refresh: bool) -> RuntimeId:
    runtime_id = runtime.id
    s.run(
        REGISTER if refresh else ADD, id=runtime_id, machine=runtime.machine,
        provider=runtime.provider, distribution=runtime.distribution, home=runtime.home,
        version=runtime.version, capabilities=codec.encode_capabilities(runtime.capabilities), now=s.now,
        just_now=after(s.now, -_EXACT_TO_SECONDS),
    )  # fmt: skip
    return runtime_id


def get(s: Scope, runtime_id: str) -> Runtime:
    row = s.one(RUNTIME, id=runtime_id)
    if row is None:
        raise NotFound("runtime", runtime_id)
    return _SHAPE.read(s.where, row, _read_runtime, *row[:4])


def all_of(s: Scope) -> tuple[KnownRuntime, ...]:
    return tuple(readable(lambda row: _KNOWN.read(s.where, row, _read_known, *row[:4]), s.all(RUNTIMES)))


def _read_known(row: Row) -> KnownRuntime:
    *runtime, last_seen_at = row
    return KnownRuntime(_read_runtime(tuple(runtime)), read_instant(last_seen_at))


def _read_runtime(row: Row) -> Runtime:
    machine, provider, distribution, home, capabilities, version = row
    return Runtime(machine, provider, distribution, home, codec.decode_capabilities(capabilities), version)

"""Owns the columns of every table: each is declared here, once. Hook processes import this, so it stays light.

A new column is one line here, one field of its record, and one migration for each engine. SELECT lists, INSERTs and
the reading of rows follow from the declaration; a test compares it with the schemas of both engines.
``workspace`` is in every table, and in no declaration: ``Scope`` gives it to each statement.
"""

from __future__ import annotations

from types import NoneType

from holdfast.clock import Instant
from holdfast.errors import StoreCorrupt

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from holdfast.store.driver import Row

#: the end of the year 9999
_LAST_INSTANT = 253_402_300_799_999_999

#: what decoding raises for a value that no Holdfast wrote
MISREAD = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def is_instant(value: object) -> bool:
    return type(value) is int and 0 <= value <= _LAST_INSTANT


def read_instant(value: object) -> Instant:
    if type(value) is not int or not 0 <= value <= _LAST_INSTANT:
        raise ValueError(f"{str(value)[:40]!r} is not an instant")
    return Instant(value)


def read_optional_instant(value: object) -> Instant | None:
    return None if value is None else read_instant(value)


def read_flag(value: int) -> bool:
    if value not in (0, 1):
        raise ValueError(f"{value} is neither true nor false")
    return bool(value)


class Kind:
    """What a column may hold. SQLite keeps any value in any column, so every row is checked when it is read."""

    __slots__ = ("decode", "is_later", "is_optional", "types")

    def __init__(
        self,
        types: tuple[type, ...],
        decode: Callable[[Any], Any] | None = None,
        *,
        is_optional: bool = False,
        is_later: bool = False,
    ) -> None:
        self.types = types
        self.decode = decode  #: None: a value is used as it is
        self.is_optional = is_optional
        self.is_later = is_later

    @property
    def or_null(self) -> Kind:
        decode = read_optional_instant if self.decode is read_instant else self.decode
        return Kind((*self.types, NoneType), decode, is_optional=True, is_later=self.is_later)

    @property
    def later(self) -> Kind:
        """A new row leaves this column to the schema's default."""
        return Kind(self.types, self.decode, is_optional=self.is_optional, is_later=True)


TEXT = Kind((str,))
WHOLE = Kind((int,))
REAL = Kind((int, float))
INSTANT = Kind((int,), read_instant)
FLAG = Kind((int, bool), read_flag)
BYTES = Kind((bytes,))

_SHOWN = {NoneType: "missing", str: "text", int: "a number", bytes: "bytes"}


class Columns:
    """The columns that a statement selects: their names in SQL, and the types that its rows must have."""

    def __init__(self, table: str, picked: Iterable[tuple[str, str, Kind]]) -> None:
        self.table = table
        self._picked = tuple(picked)  #: expression, name and kind of each
        self.names = tuple(name for _, name, _ in self._picked)
        self.kinds = tuple(kind for _, _, kind in self._picked)
        self.sql = ", ".join(expression for expression, _, _ in self._picked)
        self.width = len(self.names)
        self._types = [kind.types for kind in self.kinds]
        #: the combinations of types that were found good: there are few, and rows are many
        self._good: set[tuple[type, ...]] = set()

    def __add__(self, more: Columns) -> Columns:
        return Columns(self.table, (*self._picked, *more._picked))

    def of(self, alias: str) -> Columns:
        """The same columns in a statement that gives the table another name."""
        return Columns(self.table, ((f"{alias}.{name}", name, kind) for _, name, kind in self._picked))

    def present(self) -> Columns:
        """The same columns in a statement that finds no row where one of them is NULL."""
        return Columns(
            self.table,
            ((sql, name, Kind(kind.types[:-1] if kind.is_optional else kind.types, kind.decode))
             for sql, name, kind in self._picked),
        )  # fmt: skip

    def check(self, row: Row) -> None:
        """ValueError, naming the column, for a row that no Holdfast wrote."""
        found = tuple(map(type, row))
        if found in self._good:
            return
        for name, kind, allowed in zip(self.names, found, self._types, strict=True):
            if kind not in allowed:
                raise ValueError(f"{name} is {_SHOWN.get(kind, kind.__name__)}")
        self._good.add(found)

    def checked(self, where: str, row: Row, *key: object) -> Row:
        """StoreCorrupt, naming the row by ``key``, for a row that no Holdfast wrote."""
        try:
            self.check(row)
        except ValueError as exc:
            raise unreadable(where, self.table, " ".join(map(str, key)), exc) from exc
        return row

    def column(self, row: Row, name: str) -> Any:
        """One column, whatever it holds."""
        return row[self.names.index(name)]

    def named(self, row: Row) -> dict[str, Any]:
        return dict(zip(self.names, row, strict=True))


def unreadable(where: str, table: str, key: str, error: Exception) -> StoreCorrupt:
    problem = f"{table}: {key} cannot be read: {problem_of(error)}"
    return StoreCorrupt(where, problem, table=table, key=key)


def problem_of(error: Exception) -> str:
    """What was wrong with a value, in words."""
    if isinstance(error, KeyError):
        return f"{str(error.args[0])[:40]!r} is unknown"
    return str(error)


class Table:
    """A table's columns, in the order of the schema."""

    def __init__(self, name: str, /, **columns: Kind) -> None:
        self.name = name
        self.columns = columns
        new = [column for column, kind in columns.items() if not kind.is_later]
        names, values = ", ".join(new), ", ".join(f":{column}" for column in new)
        #: a new row; its parameters have the names of the columns
        self.insert = f"INSERT INTO {name} (workspace, {names})\nVALUES (:ws, {values})"
        self.insert_once = f"{self.insert}\nON CONFLICT DO NOTHING"
        self._nulls = {column: None for column in new if columns[column].is_optional}

    def new(self, **values: object) -> dict[str, object]:
        """The parameters of ``insert``. An optional column that is not given is NULL; every other one must be given."""
        return {**self._nulls, **values}

    def pick(self, *names: str) -> Columns:
        return Columns(self.name, ((name, name, self.columns[name]) for name in names))

    def all(self) -> Columns:
        return self.pick(*self.columns)

    def upsert(self, *key: str) -> str:
        """Insert a row, or replace all of the row with the same key."""
        rest = ", ".join(f"{name} = excluded.{name}" for name in self.columns if name not in key)
        return f"{self.insert}\nON CONFLICT (workspace, {', '.join(key)}) DO UPDATE SET {rest}"

    def copy(self, **changed: str) -> str:
        """Insert copies of rows, with other values in the ``changed`` columns; a WHERE must follow."""
        values = ", ".join(changed.get(name, name) for name in self.columns)
        return (
            f"INSERT INTO {self.name} (workspace, {', '.join(self.columns)})\n"
            f"SELECT workspace, {values} FROM {self.name}"
        )


CONVERSATIONS = Table(
    "conversations",
    id=TEXT,
    parent_id=TEXT.or_null,
    fork_seq=WHOLE.or_null,
    fork_revision=WHOLE.or_null,
    revision=WHOLE,
    generation=WHOLE,
    next_seq=WHOLE,
    created_at=INSTANT,
    indexed_next=WHOLE.later,
)
MESSAGES = Table(
    "messages",
    conversation_id=TEXT,
    seq=WHOLE,
    role=TEXT,
    revision=WHOLE,
    text=TEXT,
)
HISTORY_CHANGES = Table(
    "history_changes",
    conversation_id=TEXT,
    revision=WHOLE,
    kind=TEXT,
    first_seq=WHOLE,
    last_seq=WHOLE,
    at=INSTANT,
)
SESSIONS = Table(
    "sessions",
    id=TEXT,
    conversation_id=TEXT,
    agent=TEXT,
    kind=TEXT,
    purpose=TEXT,
    name=TEXT.or_null,
    provider=TEXT.or_null,
    phase=TEXT,
    resume_ready=FLAG,
    metadata=TEXT,
    error_count=WHOLE.later,
    last_error=TEXT.or_null.later,
    last_error_at=INSTANT.or_null.later,
    created_at=INSTANT,
    updated_at=INSTANT,
    finalized_at=INSTANT.or_null.later,
    summary=TEXT.or_null.later,
    parent_session_id=TEXT.or_null,
    input_tokens=WHOLE.later,
    cached_input_tokens=WHOLE.later,
    output_tokens=WHOLE.later,
    cost_usd=REAL.later,
    fence=WHOLE.later,
    lease_owner=TEXT.or_null.later,
    lease_expires_at=INSTANT.or_null.later,
    head_seq=WHOLE.or_null.later,
    head_provider=TEXT.or_null.later,
    head_runtime_id=TEXT.or_null.later,
    head_priority=WHOLE.or_null.later,
    ready_at=INSTANT.or_null.later,
    wake_at=INSTANT.or_null.later,
    project=TEXT.or_null,
    head_kept=FLAG.or_null.later,
    approve_tools=TEXT.or_null.later,
    imported_at=INSTANT.or_null,
    partial_text=TEXT.or_null.later,
    program_owner=TEXT.or_null.later,
    program_began_at=INSTANT.or_null.later,
    program_until=INSTANT.or_null.later,
    agent_title=TEXT.or_null.later,
)
PHASE_CHANGES = Table(
    "phase_changes",
    session_id=TEXT,
    number=WHOLE,
    from_phase=TEXT,
    to_phase=TEXT,
    at=INSTANT,
    made_by=TEXT.or_null,
    change=TEXT.or_null,
)
RUNTIMES = Table(
    "runtimes",
    id=TEXT,
    machine=TEXT,
    provider=TEXT,
    distribution=TEXT,
    home=TEXT,
    version=TEXT.or_null,
    capabilities=TEXT,
    first_seen_at=INSTANT,
    last_seen_at=INSTANT,
)
TURNS = Table(
    "turns",
    conversation_id=TEXT,
    seq=WHOLE,
    session_id=TEXT,
    provider=TEXT,
    status=TEXT,
    request=TEXT,
    priority=WHOLE,
    not_before=INSTANT.or_null,
    runtime_id=TEXT.or_null,
    foreground=FLAG,
    retry_of=WHOLE.or_null,
    attempts=WHOLE,
    tries=WHOLE,
    max_attempts=WHOLE,
    next_cause=TEXT,
    generation=WHOLE,
    dropped=WHOLE.or_null.later,
    failure_class=TEXT.or_null.later,
    error=TEXT.or_null.later,
    cancel_requested_at=INSTANT.or_null.later,
    enqueue_key=TEXT.or_null,
    created_at=INSTANT,
    ended_at=INSTANT.or_null,
    search_id=WHOLE.or_null.later,
)
ATTEMPTS = Table(
    "attempts",
    conversation_id=TEXT,
    seq=WHOLE,
    number=WHOLE,
    session_id=TEXT,
    provider=TEXT,
    runtime_id=TEXT.or_null,
    version=TEXT.or_null,
    owner=TEXT,
    claim_key=TEXT,
    fence=WHOLE,
    cause=TEXT,
    status=TEXT,
    decision=TEXT,
    reason=TEXT,
    evidence=TEXT,
    provider_session_id=TEXT.or_null,
    forked_from=TEXT.or_null,
    work_dir=TEXT.or_null,
    model=TEXT.or_null,
    rights=TEXT.or_null,
    transcript=TEXT.or_null.later,
    epoch=WHOLE,
    generation=WHOLE,
    seen=TEXT,
    process=TEXT.or_null.later,
    started_at=INSTANT,
    ended_at=INSTANT.or_null.later,
    failure_class=TEXT.or_null.later,
    error=TEXT.or_null.later,
    input_tokens=WHOLE.later,
    cached_input_tokens=WHOLE.later,
    output_tokens=WHOLE.later,
    cost_usd=REAL.later,
    id=TEXT.or_null,
    transcript_before=TEXT.or_null.later,
    renewal=TEXT.or_null.later,
)
EVENTS = Table(
    "events",
    conversation_id=TEXT,
    seq=WHOLE,
    attempt=WHOLE,
    number=WHOLE,
    kind=TEXT,
    at=INSTANT,
    data=TEXT,
)
LATE_REPORTS = Table(
    "late_reports",
    conversation_id=TEXT,
    seq=WHOLE,
    fence=WHOLE,
    verb=TEXT,
    report=TEXT,
    at=INSTANT,
)
POINTERS = Table(
    "pointers",
    session_id=TEXT,
    provider=TEXT,
    provider_session_id=TEXT,
    runtime_id=TEXT.or_null,
    version=TEXT.or_null,
    work_dir=TEXT.or_null,
    model=TEXT.or_null,
    epoch=WHOLE.or_null,
    generation=WHOLE.or_null,
    seen=TEXT.or_null,
    rights=TEXT.or_null,
    transcript=TEXT.or_null,
    context_tokens=WHOLE.or_null,
    context_window=WHOLE.or_null,
    fork_seq=WHOLE.or_null,
    updated_at=INSTANT,
)
PROVIDER_SESSIONS = Table(
    "provider_sessions",
    provider=TEXT,
    id=TEXT,
    session_id=TEXT,
    forked_from=TEXT.or_null,
    first_seen_at=INSTANT,
    last_seen_at=INSTANT,
    errors=WHOLE.later,
    failed_resumes=WHOLE.later,
    retired_at=INSTANT.or_null.later,
    retired_reason=TEXT.or_null.later,
    holder_session_id=TEXT.or_null.later,
    holder_fence=WHOLE.or_null.later,
    input_tokens=WHOLE.later,
    cached_input_tokens=WHOLE.later,
    output_tokens=WHOLE.later,
    cost_usd=REAL.later,
    reported_input_tokens=WHOLE.later,
    reported_cached_input_tokens=WHOLE.later,
    reported_output_tokens=WHOLE.later,
    reported_cost_usd=REAL.later,
)
APPROVALS = Table(
    "approvals",
    id=TEXT,
    session_id=TEXT,
    conversation_id=TEXT,
    seq=WHOLE.or_null,
    call_id=TEXT.or_null,
    tool=TEXT.or_null,
    what=TEXT,
    arguments=TEXT,
    arguments_hash=TEXT,
    nonce=TEXT,
    requested_at=INSTANT,
    requested_by=TEXT,
    expires_at=INSTANT.or_null,
    answerers=TEXT,
    status=TEXT,
    answered_at=INSTANT.or_null.later,
    answered_by=TEXT.or_null.later,
    note=TEXT.or_null.later,
    used_at=INSTANT.or_null.later,
    void_reason=TEXT.or_null.later,
    voided_at=INSTANT.or_null.later,
)
DELEGATIONS = Table(
    "delegations",
    id=TEXT,
    session_id=TEXT.or_null,
    agent=TEXT,
    project=TEXT,
    resumed=FLAG,
    reason=TEXT,
    provider_session_id=TEXT.or_null,
    owner=TEXT.or_null,
    provider_agent_id=TEXT.or_null.later,
    transcript_path=TEXT.or_null.later,
    at=INSTANT,
    ended_at=INSTANT.or_null,
    outcome=TEXT.or_null,
)
OBSERVED_SESSIONS = Table(
    "observed_sessions",
    provider=TEXT,
    id=TEXT,
    cwd=TEXT.or_null.later,
    transcript_path=TEXT.or_null.later,
    source=TEXT.or_null.later,
    started_at=INSTANT,
    last_seen_at=INSTANT,
    ended_at=INSTANT.or_null.later,
    end_reason=TEXT.or_null.later,
    compactions=WHOLE.later,
    compacted_at=INSTANT.or_null.later,
    input_tokens=WHOLE.later,
    cached_input_tokens=WHOLE.later,
    output_tokens=WHOLE.later,
    context_tokens=WHOLE.or_null.later,
    transcript_offset=WHOLE.later,
    last_message=TEXT.or_null.later,
)
SOURCES = Table(
    "sources",
    machine=TEXT,
    provider=TEXT,
    place=TEXT,
    home=TEXT,
    size=WHOLE,
    mtime_ns=WHOLE,
    provider_session_id=TEXT.or_null,
    session_id=TEXT.or_null,
    work_dir=TEXT.or_null,
    first_key=TEXT.or_null,
    reason=TEXT.or_null,
)
TOMBSTONES = Table(
    "tombstones",
    provider=TEXT,
    provider_session_id=TEXT,
    removed_at=INSTANT,
)
TOKENS = Table(
    "tokens",
    id=TEXT,
    role=TEXT,
    name=TEXT,
    digest=TEXT,
    created_at=INSTANT,
    expires_at=INSTANT.or_null,
    last_used_at=INSTANT.or_null.later,
    revoked_at=INSTANT.or_null.later,
)
AGENT_TOKENS = Table(
    "agent_tokens",
    session_id=TEXT,
    id=TEXT,
    digest=TEXT,
    fence=WHOLE,
    created_at=INSTANT,
)
CALLS = Table(
    "calls",
    caller=TEXT,
    key=TEXT,
    request=TEXT,
    at=INSTANT,
    answer=TEXT.or_null.later,
    session_id=TEXT.or_null.later,
)
DAILY_TOTALS = Table(
    "daily_totals",
    day=WHOLE,
    agent=TEXT,
    provider=TEXT,
    what=TEXT,
    detail=TEXT,
    number=WHOLE,
    amount=REAL,
)
VAULT_CHUNKS = Table(
    "vault_chunks",
    digest=TEXT,
    size=WHOLE,
    codec=TEXT,
    stored=WHOLE,
    touched_at=INSTANT,
    data=BYTES,
)
VAULT_BUNDLES = Table(
    "vault_bundles",
    provider=TEXT,
    provider_session_id=TEXT,
    branch=TEXT,
    home=TEXT,
    runtime_id=TEXT.or_null,
    work_dir=TEXT.or_null,
    kept_at=INSTANT,
    revision=WHOLE,
    stored_bytes=WHOLE,
)
VAULT_FILES = Table(
    "vault_files",
    provider=TEXT,
    provider_session_id=TEXT,
    branch=TEXT,
    number=WHOLE,
    name=TEXT,
    size=WHOLE,
)
VAULT_PARTS = Table(
    "vault_parts",
    provider=TEXT,
    provider_session_id=TEXT,
    branch=TEXT,
    file=WHOLE,
    number=WHOLE,
    digest=TEXT,
    size=WHOLE,
    stored=WHOLE,
)

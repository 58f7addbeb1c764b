"""Owns the rows of provider sessions, with their writer, failures and usage, and of the pointers to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.domain.conversations import SeenTurns
from holdfast.domain.guards import not_for_others
from holdfast.domain.ids import SessionId
from holdfast.domain.pointers import NOTHING_YET, Pointer, ProviderSession, ProviderSessionTotals
from holdfast.domain.records import replace
from holdfast.domain.redaction import redact_text
from holdfast.domain.turns import LONGEST_LEASE, Attempt, AttemptStatus, Lease
from holdfast.domain.usage import NO_CALL_YET, NO_USAGE, ContextUse, Usage, check_usage
from holdfast.errors import Conflict, InvalidInput, Refused
from holdfast.store.driver import Row
from holdfast.store.sql import codec, runtimes, sessions
from holdfast.store.sql.rows import Rows, coded, cut, part
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.tables import MISREAD, POINTERS, PROVIDER_SESSIONS, TEXT, Columns


def _context(tokens: int | None, window: int | None) -> ContextUse | None:
    return None if tokens is None or window is None else ContextUse(tokens, window)


def _encode_context(context: ContextUse | None) -> tuple[int | None, int | None]:
    return (None, None) if context is None else (context.tokens, context.window)


POINTER_ROWS = Rows(
    POINTERS,
    Pointer,
    "{provider} pointer of {session_id}",
    seen=coded(codec.encode_seen, codec.decode_seen),
    rights=coded(codec.encode_rights, codec.decode_rights),
    transcript=coded(codec.encode_transcript, codec.decode_transcript),
    context=part(_context, "context_tokens", "context_window", encode=_encode_context),
)
#: a pointer cannot be read without these
_NEEDED = frozenset({"session_id", "provider", "provider_session_id", "updated_at", "fork_seq"})

GET_POINTER = f"""
SELECT {POINTER_ROWS.sql} FROM pointers
WHERE workspace = :ws AND session_id = :session_id AND provider = :provider"""
POINTERS_OF_SESSION = (
    f"SELECT {POINTER_ROWS.sql} FROM pointers WHERE workspace = :ws AND session_id = :session_id"
)
WRITE_POINTER = POINTERS.upsert("session_id", "provider")
CLEAR_POINTER = """
DELETE FROM pointers
WHERE workspace = :ws AND session_id = :session_id AND provider = :provider
    AND provider_session_id = :provider_session_id"""
# the runtime of an attempt that produced another session id says nothing about this one
PRODUCER = """
SELECT runtime_id FROM attempts
WHERE workspace = :ws AND session_id = :session_id AND provider = :provider
    AND provider_session_id = :provider_session_id AND runtime_id IS NOT NULL
ORDER BY fence DESC LIMIT 1"""
_FORK_SEQ = "CASE WHEN fork_seq < :fork_seq THEN fork_seq ELSE :fork_seq END"
COPY_POINTERS = f"""{POINTERS.copy(session_id=":child", fork_seq=_FORK_SEQ)}
WHERE workspace = :ws AND session_id = :parent"""

TOTALS_ROWS = Rows(
    PROVIDER_SESSIONS,
    ProviderSessionTotals,
    "{provider} {id}",
    retired=part(None, "retired_reason"),
    usage=part(Usage, "input_tokens", "cached_input_tokens", "output_tokens", "cost_usd"),
)
_STATE = PROVIDER_SESSIONS.pick("errors", "failed_resumes", "retired_reason").of("p") + Columns(
    PROVIDER_SESSIONS.name, [("h.id", "id", TEXT.or_null)]
)
STATE = f"""
SELECT {_STATE.sql}
FROM provider_sessions p LEFT JOIN sessions h ON h.workspace = p.workspace
    AND h.id = p.holder_session_id AND h.fence = p.holder_fence AND h.lease_expires_at > :now
    AND h.lease_expires_at <= :now + {LONGEST_LEASE}
WHERE p.workspace = :ws AND p.provider = :provider AND p.id = :id"""
LOCK = """
SELECT holder_session_id, holder_fence, retired_at FROM provider_sessions
WHERE workspace = :ws AND provider = :provider AND id = :id FOR UPDATE"""
LIVES = f"""
SELECT 1 FROM sessions
WHERE workspace = :ws AND id = :session_id AND fence = :fence AND lease_expires_at > :now
    AND lease_expires_at <= :now + {LONGEST_LEASE}"""
HOLD = """
UPDATE provider_sessions SET holder_session_id = :session_id, holder_fence = :fence, last_seen_at = :now
WHERE workspace = :ws AND provider = :provider AND id = :id"""
KNOW = f"""{PROVIDER_SESSIONS.insert}
ON CONFLICT (workspace, provider, id) DO UPDATE SET last_seen_at = excluded.last_seen_at"""
RETIRE = """
UPDATE provider_sessions SET retired_at = COALESCE(retired_at, :now),
    retired_reason = COALESCE(retired_reason, :reason)
WHERE workspace = :ws AND provider = :provider AND id = :id"""
_HELD_AGAINST = PROVIDER_SESSIONS.pick("errors", "failed_resumes", "retired_reason")
_REPORTED = PROVIDER_SESSIONS.pick(
    "reported_input_tokens", "reported_cached_input_tokens", "reported_output_tokens", "reported_cost_usd"
)
_ACCOUNT = _HELD_AGAINST + _REPORTED
ACCOUNT = f"""
SELECT {_ACCOUNT.sql}
FROM provider_sessions WHERE workspace = :ws AND provider = :provider AND id = :id FOR UPDATE"""
INHERIT_ACCOUNT = f"""
UPDATE provider_sessions SET ({_REPORTED.sql}) = (SELECT {_REPORTED.of("p").sql}
    FROM provider_sessions p WHERE p.workspace = :ws AND p.provider = :provider AND p.id = :source)
WHERE workspace = :ws AND provider = :provider AND id = :id AND reported_input_tokens = 0
    AND EXISTS (SELECT 1 FROM provider_sessions p
        WHERE p.workspace = :ws AND p.provider = :provider AND p.id = :source)"""
COUNT_FROM = """
UPDATE provider_sessions SET reported_input_tokens = :input, reported_cached_input_tokens = :cached,
    reported_output_tokens = :output, reported_cost_usd = :cost
WHERE workspace = :ws AND provider = :provider AND id = :id"""
ADD_USAGE = """
UPDATE provider_sessions SET input_tokens = input_tokens + :input, cached_input_tokens = cached_input_tokens + :cached,
    output_tokens = output_tokens + :output, cost_usd = cost_usd + :cost
WHERE workspace = :ws AND provider = :provider AND id = :id"""
SETTLE = """
UPDATE provider_sessions SET errors = :errors, failed_resumes = :failed_resumes, last_seen_at = :now,
    input_tokens = input_tokens + :input, cached_input_tokens = cached_input_tokens + :cached,
    output_tokens = output_tokens + :output, cost_usd = cost_usd + :cost,
    reported_input_tokens = :reported_input, reported_cached_input_tokens = :reported_cached,
    reported_output_tokens = :reported_output, reported_cost_usd = :reported_cost
WHERE workspace = :ws AND provider = :provider AND id = :id"""
# UNION, because both may find the same one
TOTALS = f"""
SELECT {TOTALS_ROWS.sql}, first_seen_at
FROM provider_sessions INDEXED BY provider_sessions_by_session
WHERE workspace = :ws AND session_id = :session_id
UNION
SELECT {TOTALS_ROWS.of("p").sql}, p.first_seen_at
FROM pointers a JOIN provider_sessions p
    ON p.workspace = a.workspace AND p.provider = a.provider AND p.id = a.provider_session_id
WHERE a.workspace = :ws AND a.session_id = :session_id AND a.fork_seq IS NULL
ORDER BY first_seen_at, id"""
# of this workspace, only attempts that have saved something, or may yet; the pointer of a fork names its source's
OWNERS = """
SELECT workspace, session_id, started_at AS since FROM attempts INDEXED BY attempts_by_provider_session
WHERE provider_session_id = :id AND provider = :provider
    AND (workspace <> :ws OR status IN ('done', 'deferred', :also) OR transcript IS NOT NULL)
UNION ALL
SELECT workspace, session_id, updated_at FROM pointers INDEXED BY pointers_to_provider_sessions
WHERE provider_session_id = :id AND provider = :provider AND fork_seq IS NULL
UNION ALL
SELECT k.workspace, k.session_id, k.first_seen_at FROM provider_sessions k
JOIN sessions o ON o.workspace = k.workspace AND o.id = k.session_id AND o.imported_at IS NOT NULL
WHERE k.workspace = :ws AND k.provider = :provider AND k.id = :id
ORDER BY since DESC LIMIT 1000"""


_SAVED = AttemptStatus.DONE.value


class Owner(NamedTuple):
    """A session that has used a provider session. Callers do not show the id of one in another workspace."""

    session_id: str
    is_elsewhere: bool


def state(s: Scope, provider: str, provider_session_id: str, besides: str | None = None) -> ProviderSession:
    """``besides``: a holder that is not another one."""
    row = s.one(STATE, provider=provider, id=provider_session_id, now=s.now)
    if row is None:
        return ProviderSession()
    errors, failed_resumes, retired, held_by = _STATE.checked(s.where, row, provider, provider_session_id)
    return ProviderSession(errors, failed_resumes, retired, None if held_by == besides else held_by)


def are_retired(s: Scope, wanted: Sequence[tuple[str, str]]) -> list[bool]:
    """For each provider and provider session."""
    asked = [{"provider": provider, "id": id_, "now": s.now} for provider, id_ in wanted]
    rows = [found[0] if found else None for found in s.all_many(STATE, asked)]
    return [
        row is not None and _STATE.checked(s.where, row, *about)[2] is not None
        for row, about in zip(rows, wanted, strict=True)
    ]


def owner_of(
    s: Scope, provider: str, provider_session_id: str, besides: str | None = None
) -> SessionId | None:
    """See ``Store.owner_of``."""
    rows = s.all(OWNERS, provider=provider, id=provider_session_id, also=_SAVED)
    owners = [SessionId(str(owner)) for workspace, owner, _ in rows if workspace == s.ws]
    return None if besides in owners else next(iter(owners), None)


def refuse_retired(s: Scope, provider: str, provider_session_id: str) -> None:
    retired = state(s, provider, provider_session_id).retired
    if retired is not None:
        raise Refused("retired", f"{provider_session_id} was retired: {retired}")


def find_owner(s: Scope, provider: str, provider_session_id: str, besides: str) -> Owner | None:
    """The session that has used it last, of whatever workspace, unless ``besides`` has used it, too."""
    return _owner(s, s.all(OWNERS, provider=provider, id=provider_session_id, also=_SAVED), besides)


def find_owners(s: Scope, wanted: Sequence[tuple[str, str, str]]) -> list[Owner | None]:
    """``find_owner`` for each provider, provider session and session; also one whose turn runs, and has saved nothing yet."""
    also = AttemptStatus.OPEN.value
    asked = [{"provider": provider, "id": id_, "also": also} for provider, id_, _ in wanted]
    found = zip(s.all_many(OWNERS, asked), wanted, strict=True)
    return [_owner(s, rows, besides) for rows, (*_, besides) in found]


def _owner(s: Scope, rows: Sequence[Row], besides: str) -> Owner | None:
    if (s.ws, besides) in {(workspace, session_id) for workspace, session_id, _ in rows}:
        return None
    found = [Owner(session_id, workspace != s.ws) for workspace, session_id, _ in rows]
    return next((owner for owner in found if owner.is_elsewhere), next(iter(found), None))


def refuse_owned(
    s: Scope, provider: str, provider_session_id: str, besides: str, *, elsewhere_only: bool = False
) -> None:
    """Conflict if another session has used it; with ``elsewhere_only``, only a session of another workspace counts."""
    owner = find_owner(s, provider, provider_session_id, besides)
    if owner is None or (elsewhere_only and not owner.is_elsewhere):
        return
    whose = "another workspace" if owner.is_elsewhere else f"session {owner.session_id}"
    raise Conflict(
        f"{provider} session {provider_session_id} belongs to {whose}",
        provider_session_id=provider_session_id,
    )


def take(
    s: Scope, provider: str, provider_session_id: str, lease: Lease, forked_from: str | None = None
) -> bool:
    """Become the one writer; False if it is retired, or another live lease is.

    A writer locks this row first, and looks only then: see ``is_taken``.
    """
    row = s.one(LOCK, provider=provider, id=provider_session_id)
    if row is None:
        know(s, provider, provider_session_id, lease.session_id, forked_from)
        row = s.one(LOCK, provider=provider, id=provider_session_id)
    if row is None:
        return False
    holder, fence, retired_at = row
    if retired_at is not None or (holder not in (None, lease.session_id) and _lives(s, holder, fence)):
        return False
    s.run(
        HOLD, provider=provider, id=provider_session_id, session_id=lease.session_id, fence=lease.fence,
        now=s.now,
    )  # fmt: skip
    return True


def is_taken(s: Scope, provider: str, provider_session_id: str, lease: Lease) -> bool:
    """Whether someone else has become the writer since this lease did."""
    row = s.one(LOCK, provider=provider, id=provider_session_id)
    return row is not None and row[:2] != (lease.session_id, lease.fence)


def _lives(s: Scope, session_id: str, fence: int) -> bool:
    return s.one(LIVES, session_id=session_id, fence=fence, now=s.now) is not None


def inherit_account(s: Scope, provider: str, fork: str, source: str) -> None:
    """A native fork continues counting from where its source stands now."""
    s.run(INHERIT_ACCOUNT, provider=provider, id=fork, source=source)


def know(
    s: Scope, provider: str, provider_session_id: str, session_id: str, forked_from: str | None = None
) -> None:
    s.run(
        KNOW, provider=provider, id=provider_session_id, session_id=session_id, forked_from=forked_from,
        first_seen_at=s.now, last_seen_at=s.now,
    )  # fmt: skip


def account(s: Scope, provider: str, provider_session_id: str) -> tuple[ProviderSession | None, Usage]:
    """What is held against it, and the cumulative figures that it last reported itself."""
    row = s.one(ACCOUNT, provider=provider, id=provider_session_id)
    if row is None:
        return None, NO_USAGE
    errors, failed_resumes, retired, *reported = _ACCOUNT.checked(s.where, row, provider, provider_session_id)
    return ProviderSession(errors, failed_resumes, retired), Usage(*reported)


def count_from(s: Scope, provider: str, provider_session_id: str, counted: Usage) -> None:
    s.run(
        COUNT_FROM, provider=provider, id=provider_session_id, input=counted.input_tokens,
        cached=counted.cached_input_tokens, output=counted.output_tokens, cost=counted.cost_usd,
    )  # fmt: skip


def add_usage(s: Scope, provider: str, provider_session_id: str, used: Usage) -> None:
    """Add the usage of turns that were made in the provider's own program."""
    s.run(
        ADD_USAGE, provider=provider, id=provider_session_id, input=used.input_tokens,
        cached=used.cached_input_tokens, output=used.output_tokens, cost=used.cost_usd,
    )  # fmt: skip


def settle(s: Scope, attempt: Attempt, state: ProviderSession, used: Usage, reported: Usage) -> None:
    """The end of an attempt, as far as its provider session is concerned; its holder stays, without a lease."""
    s.run(
        SETTLE, provider=attempt.provider, id=attempt.provider_session_id, errors=state.errors,
        failed_resumes=state.failed_resumes, now=s.now, input=used.input_tokens,
        cached=used.cached_input_tokens, output=used.output_tokens, cost=used.cost_usd,
        reported_input=reported.input_tokens, reported_cached=reported.cached_input_tokens,
        reported_output=reported.output_tokens, reported_cost=reported.cost_usd,
    )  # fmt: skip


def totals(s: Scope, session_id: str) -> tuple[ProviderSessionTotals, ...]:
    found = (cut(row, TOTALS_ROWS) for row in s.all(TOTALS, session_id=session_id))
    return tuple(TOTALS_ROWS.read(s.where, totals) for totals, _ in found)


def mark_retired(s: Scope, provider: str, provider_session_id: str, session_id: str, reason: str) -> None:
    """For good: the first reason stays."""
    know(s, provider, provider_session_id, session_id)
    s.run(RETIRE, provider=provider, id=provider_session_id, reason=redact_text(reason), now=s.now)


# --- pointers ---


def read_pointer(s: Scope, row: Row) -> Pointer:
    """A column that cannot be understood counts as never recorded, and then so does the epoch: nothing resumes there."""
    try:
        return POINTER_ROWS.build(row)
    except MISREAD:
        lost = POINTER_ROWS.misread(row) - _NEEDED | {"epoch"}
        kept = (None if name in lost else value for name, value in zip(POINTER_ROWS.names, row, strict=True))
        return POINTER_ROWS.read(s.where, tuple(kept))


def pointer(s: Scope, session_id: str, provider: str) -> Pointer | None:
    """The stored pointer; a missing runtime is filled in from the attempt that produced this very id."""
    row = s.one(GET_POINTER, session_id=session_id, provider=provider)
    if row is None:
        return None
    pointer = read_pointer(s, row)
    if pointer.runtime_id is not None:
        return pointer
    (producer,) = s.one(
        PRODUCER, session_id=session_id, provider=provider, provider_session_id=pointer.provider_session_id
    ) or (None,)
    return replace(pointer, runtime_id=producer)


def pointers_of(s: Scope, session_id: str) -> tuple[Pointer, ...]:
    return tuple(read_pointer(s, row) for row in s.all(POINTERS_OF_SESSION, session_id=session_id))


def set_pointer(s: Scope, pointer: Pointer, counted: Usage | None = None, *, unowned: bool = False) -> None:
    """Write a pointer that a caller gives. ``counted`` are the provider session's cumulative figures now."""
    if counted is not None:
        check_usage(counted)
    if not pointer.provider_session_id:
        raise InvalidInput("provider_session_id", "must not be empty")
    sessions.require_open(s, pointer.session_id)
    if pointer.runtime_id is not None:
        runtimes.get(s, pointer.runtime_id)
    stored = s.one(GET_POINTER, session_id=pointer.session_id, provider=pointer.provider)
    if stored is None or POINTER_ROWS.column(stored, "provider_session_id") != pointer.provider_session_id:
        refuse_owned(
            s, pointer.provider, pointer.provider_session_id, pointer.session_id, elsewhere_only=True
        )
    # known first, which locks it: it cannot be retired, or become another one's, behind our back
    know(s, pointer.provider, pointer.provider_session_id, pointer.session_id)
    refuse_retired(s, pointer.provider, pointer.provider_session_id)
    if unowned:
        _refuse_of_others(s, pointer)
    if counted is not None:
        count_from(s, pointer.provider, pointer.provider_session_id, counted)
    write_pointer(s, pointer)


def _refuse_of_others(s: Scope, pointer: Pointer) -> None:
    provider, named = pointer.provider, pointer.provider_session_id
    owner = owner_of(s, provider, named, besides=pointer.session_id)
    if owner is not None:
        raise not_for_others(provider, named, owner, is_closed=sessions.is_closed(s, owner))


def write_pointer(s: Scope, pointer: Pointer) -> None:
    """Write it as a whole. The caller knows that its id is not retired."""
    s.run(WRITE_POINTER, **POINTER_ROWS.values(pointer))


def move_pointer(s: Scope, pointer: Pointer, *, answered: bool = False, is_empty: bool = False) -> None:
    """Write a pointer of an attempt; what it did not see anew stays known while the id is the same.

    Only an answer, or a transcript with another turn, shows that the prompt was sent. As long as nobody
    knows, the session has seen what it had seen before: to be told twice is better than never. An empty
    answer that left the transcript as it was has not stayed in the session, nor has its prompt.
    """
    stored = s.one(GET_POINTER, session_id=pointer.session_id, provider=pointer.provider)
    if stored and POINTER_ROWS.column(stored, "provider_session_id") == pointer.provider_session_id:
        known, mark = read_pointer(s, stored), pointer.transcript
        is_taken_back = is_empty and mark is not None and mark == known.transcript
        has_more = mark is not None and mark.has_more_turns_than(known.transcript)
        sent = has_more or (answered and not is_taken_back)
        pointer = replace(
            pointer,
            # what a person said there while the turn ran was seen, too
            seen=_both(pointer.seen, known.seen) if sent else known.seen,
            epoch=pointer.epoch if sent else known.epoch,
            transcript=known.transcript if mark in (None, NOTHING_YET) else mark,
            context=known.context if pointer.context in (None, NO_CALL_YET) else pointer.context,
        )
    write_pointer(s, pointer)


def _both(seen: SeenTurns | None, known: SeenTurns | None) -> SeenTurns | None:
    return seen if seen is None or known is None else seen.union(known)


def clear_pointer(s: Scope, session_id: str, provider: str, expected: str) -> bool:
    """Only if it still names ``expected``."""
    return bool(
        s.changed(CLEAR_POINTER, session_id=session_id, provider=provider, provider_session_id=expected)
    )


def copy_pointers(s: Scope, parent: str, child: str, fork_seq: int) -> None:
    """What the parent itself inherited keeps its earlier fork point."""
    s.run(COPY_POINTERS, parent=parent, child=child, fork_seq=fork_seq)


def retire(s: Scope, session_id: str, provider: str, provider_session_id: str, reason: str) -> None:
    """For good: the first reason stays, and no pointer of this session names it any more."""
    mark_retired(s, provider, provider_session_id, session_id, reason)
    s.run(CLEAR_POINTER, session_id=session_id, provider=provider, provider_session_id=provider_session_id)

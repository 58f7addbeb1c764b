"""Owns the rows of pointers: where a provider can pick up, written whole."""

from __future__ import annotations

from holdfast.domain.conversations import SeenTurns
from holdfast.domain.guards import not_for_others
from holdfast.domain.pointers import NOTHING_YET, Pointer
from holdfast.domain.records import replace
from holdfast.domain.usage import NO_CALL_YET, ContextUse, Usage, check_usage
from holdfast.errors import InvalidInput
from holdfast.store.driver import Row
from holdfast.store.sql import codec, provider_sessions, runtimes, sessions
from holdfast.store.sql.rows import Rows, coded, part
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.tables import MISREAD, POINTERS


def _context(tokens: int | None, window: int | None) -> ContextUse | None:
    return None if tokens is None or window is None else ContextUse(tokens, window)


def _encode_context(context: ContextUse | None) -> tuple[int | None, int | None]:
    return (None, None) if context is None else (context.tokens, context.window)


ROWS = Rows(
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

GET = f"""
SELECT {ROWS.sql} FROM pointers
WHERE workspace = :ws AND session_id = :session_id AND provider = :provider"""
OF_SESSION = f"SELECT {ROWS.sql} FROM pointers WHERE workspace = :ws AND session_id = :session_id"
WRITE = POINTERS.upsert("session_id", "provider")
CLEAR = """
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
COPY_AS_FORK_SOURCE = f"""{POINTERS.copy(session_id=":child", fork_seq=_FORK_SEQ)}
WHERE workspace = :ws AND session_id = :parent"""


def read_pointer(s: Scope, row: Row) -> Pointer:
    """A column that cannot be understood counts as never recorded, and then so does the epoch: nothing resumes there."""
    try:
        return ROWS.build(row)
    except MISREAD:
        lost = ROWS.misread(row) - _NEEDED | {"epoch"}
        kept = (None if name in lost else value for name, value in zip(ROWS.names, row, strict=True))
        return ROWS.read(s.where, tuple(kept))


def get(s: Scope, session_id: str, provider: str) -> Pointer | None:
    """The stored pointer; a missing runtime is filled in from the attempt that produced this very id."""
    row = s.one(GET, session_id=session_id, provider=provider)
    if row is None:
        return None
    pointer = read_pointer(s, row)
    if pointer.runtime_id is not None:
        return pointer
    (producer,) = s.one(
        PRODUCER, session_id=session_id, provider=provider, provider_session_id=pointer.provider_session_id
    ) or (None,)
    return replace(pointer, runtime_id=producer)


def of_session(s: Scope, session_id: str) -> tuple[Pointer, ...]:
    return tuple(read_pointer(s, row) for row in s.all(OF_SESSION, session_id=session_id))


def adopt(s: Scope, pointer: Pointer, counted: Usage | None = None, *, unowned: bool = False) -> None:
    """Write a pointer that a caller gives. ``counted`` are the provider session's cumulative figures now."""
    if counted is not None:
        check_usage(counted)
    if not pointer.provider_session_id:
        raise InvalidInput("provider_session_id", "must not be empty")
    sessions.require_open(s, pointer.session_id)
    if pointer.runtime_id is not None:
        runtimes.get(s, pointer.runtime_id)
    stored = s.one(GET, session_id=pointer.session_id, provider=pointer.provider)
    if stored is None or ROWS.column(stored, "provider_session_id") != pointer.provider_session_id:
        provider_sessions.refuse_owned(
            s, pointer.provider, pointer.provider_session_id, pointer.session_id, elsewhere_only=True
        )
    # known first, which locks it: it cannot be retired, or become another one's, behind our back
    provider_sessions.know(s, pointer.provider, pointer.provider_session_id, pointer.session_id)
    provider_sessions.refuse_retired(s, pointer.provider, pointer.provider_session_id)
    if unowned:
        _refuse_of_others(s, pointer)
    if counted is not None:
        provider_sessions.count_from(s, pointer.provider, pointer.provider_session_id, counted)
    write(s, pointer)


def _refuse_of_others(s: Scope, pointer: Pointer) -> None:
    provider, named = pointer.provider, pointer.provider_session_id
    owner = provider_sessions.owner_of(s, provider, named, besides=pointer.session_id)
    if owner is not None:
        raise not_for_others(provider, named, owner, is_closed=sessions.is_closed(s, owner))


def write(s: Scope, pointer: Pointer) -> None:
    """Write it as a whole. The caller knows that its id is not retired."""
    s.run(WRITE, **ROWS.values(pointer))


def move(s: Scope, pointer: Pointer, *, answered: bool = False, is_empty: bool = False) -> None:
    """Write a pointer of an attempt; what it did not see anew stays known while the id is the same.

    Only an answer, or a transcript with another turn, shows that the prompt was sent. As long as nobody
    knows, the session has seen what it had seen before: to be told twice is better than never. An empty
    answer that left the transcript as it was has not stayed in the session, nor has its prompt.
    """
    stored = s.one(GET, session_id=pointer.session_id, provider=pointer.provider)
    if stored and ROWS.column(stored, "provider_session_id") == pointer.provider_session_id:
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
    write(s, pointer)


def _both(seen: SeenTurns | None, known: SeenTurns | None) -> SeenTurns | None:
    return seen if seen is None or known is None else seen.union(known)


def clear(s: Scope, session_id: str, provider: str, expected: str) -> bool:
    """Only if it still names ``expected``."""
    return bool(s.changed(CLEAR, session_id=session_id, provider=provider, provider_session_id=expected))


def copy_as_fork_source(s: Scope, parent: str, child: str, fork_seq: int) -> None:
    """What the parent itself inherited keeps its earlier fork point."""
    s.run(COPY_AS_FORK_SOURCE, parent=parent, child=child, fork_seq=fork_seq)


def retire(s: Scope, session_id: str, provider: str, provider_session_id: str, reason: str) -> None:
    """For good: the first reason stays, and no pointer of this session names it any more."""
    provider_sessions.mark_retired(s, provider, provider_session_id, session_id, reason)
    s.run(CLEAR, session_id=session_id, provider=provider, provider_session_id=provider_session_id)

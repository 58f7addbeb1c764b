"""Owns the situation of a session: reading it, and adopting the turns that change it before a turn is sent."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter

from holdfast.domain.approvals import Approval
from holdfast.domain.decisions import DecisionKind
from holdfast.domain.records import replace
from holdfast.domain.sessions import Session
from holdfast.domain.turns import (
    MOST_TRIES,
    Adoption,
    AttemptStatus,
    Lease,
    NewTurn,
    Situation,
    TriedTurn,
    Try,
    TurnStatus,
    last_told,
)
from holdfast.domain.usage import NO_USAGE
from holdfast.errors import Conflict
from holdfast.store.driver import Row
from holdfast.store.sql import approvals, attempts, codec, history, leases, provider_sessions, sessions, turns
from holdfast.store.sql.rows import Rows, coded, computed, part
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.tables import ATTEMPTS, FLAG, MISREAD, TURNS, unreadable

_SEQ = ATTEMPTS.pick("seq").of("a")
_TRIES = Rows(
    ATTEMPTS,
    Try,
    "attempt {number} under fence {fence}",
    alias="a",
    status=AttemptStatus,
    kind=part(DecisionKind, "decision"),
    launched=computed("a.process IS NOT NULL", FLAG, bool),
    saved=computed("a.transcript IS NOT NULL", FLAG, bool),
    rights=coded(codec.encode_rights, codec.decode_rights),
    failure=part(codec.decode_failure, "failure_class", "error"),
)
_TRY = _SEQ + _TRIES
_TURN = TURNS.pick("status", "dropped", "failure_class", "error", "request").of("t")
# The walk goes back along the index of this session's attempts, so it does not depend on how many turns other
# agents have made in the same conversation.
TRIED = f"""
SELECT {_TRY.sql}, {_TURN.sql}
FROM attempts a INDEXED BY newest_attempts
JOIN turns t ON t.workspace = a.workspace AND t.conversation_id = a.conversation_id AND t.seq = a.seq
WHERE a.workspace = :ws AND a.session_id = :session_id AND a.fence < :before
ORDER BY a.fence DESC LIMIT :limit"""
#: whether a session has ever asked people for something
HAS_ASKED = """EXISTS (SELECT 1 FROM approvals p INDEXED BY approvals_of_sessions
    WHERE p.workspace = {workspace} AND p.session_id = {session_id})"""
ONE_ASKED = """
SELECT 1 FROM approvals INDEXED BY approvals_of_sessions
WHERE workspace = :ws AND session_id = :session_id LIMIT 1"""
WITHHELD = """
SELECT call_id FROM approvals INDEXED BY approvals_of_sessions
WHERE workspace = :ws AND session_id = :session_id AND call_id IS NOT NULL"""
# when an answer came, or could no longer come, as ``domain.telling.answers.settled_at`` says it
SETTLED_SINCE = f"""
SELECT {approvals.ROWS.sql} FROM approvals INDEXED BY approvals_of_sessions
WHERE workspace = :ws AND session_id = :session_id AND CASE
    WHEN seq IS NOT NULL THEN
        status = 'voided' AND used_at IS NULL AND COALESCE(answered_at, requested_at) >= :since
    WHEN status IN ('approved', 'denied') THEN answered_at >= :since
    ELSE expires_at >= :since AND (void_reason = 'expired' OR (status = 'open' AND expires_at <= :now)) END
ORDER BY requested_at, id"""

#: above every fence
_NEWEST = 2**62


def complete(s: Scope, known: Situation, *, seq: int, fence: int, has_asked: bool) -> Situation:
    """What is ``known`` when turn ``seq`` is claimed under ``fence``, and what was tried and answered before."""
    # the first attempt of a session has none before it
    tried = _tried(s, known.session, fence) if fence > 1 else ()
    if has_asked:
        untold, withheld = _answers(s, known.session.id, tried, seq)
        return replace(known, tried=tried, untold=untold, withheld=withheld)
    return replace(known, tried=tried) if tried else known


def has_asked(s: Scope, session_id: str) -> bool:
    return s.one(ONE_ASKED, session_id=session_id) is not None


def of_session(s: Scope, session_id: str, provider: str | None) -> Situation:
    """As of now, for the turn that comes next; without a decision."""
    session = sessions.get(s, session_id)
    conversation = history.get(s, session.conversation_id)
    provider = provider or session.provider or _pointed_at(s, session_id)
    pointer = None if provider is None else provider_sessions.pointer(s, session_id, provider)
    tried = _tried(s, session, _NEWEST)
    # the turn that is open and was tried is the one that comes next
    seq = tried[-1].seq if tried and tried[-1].status.is_open else conversation.next_seq
    untold, withheld = _answers(s, session_id, tried, seq)
    holder = leases.holder(s, session_id)
    return Situation(session, conversation, provider, pointer, s.now, tried, untold, withheld, holder)


def adopt(s: Scope, adoption: Adoption, lease: Lease | None) -> Situation | None:
    """None: a turn of another worker runs there, or the pointer is another one by now."""
    before = adoption.before
    turns.lock_both(s, before.session_id)
    if lease is not None:
        leases.require(s, lease)
        if lease.session_id != before.session_id:
            raise Conflict(f"the lease is of {lease.session_id}, not of {before.session_id}")
    elif leases.holder(s, before.session_id) is not None:
        return None
    if provider_sessions.pointer(s, before.session_id, before.provider) != before:
        return None
    seen = adoption.seen
    for turn in adoption.turns:
        new = NewTurn(turn.prompt, before.provider, key=turn.key)
        made = turns.record(
            s, before.session_id, new, turn.response, NO_USAGE, began_at=turn.began_at, ended_at=turn.ended_at
        )
        attempts.write_events(s, made.conversation_id, made.seq, attempts.OUTSIDE, turn.events)
        seen = seen.with_turn(made.seq)
    if adoption.title is not None:
        sessions.entitle(s, sessions.get(s, before.session_id), adoption.title)
    if adoption.moves:
        moved = replace(before, seen=seen, transcript=adoption.transcript, updated_at=s.now)
        provider_sessions.set_pointer(s, moved, adoption.counted)
    after = of_session(s, before.session_id, before.provider)
    if lease is None:
        return after
    known = replace(after, tried=(), untold=(), withheld=frozenset(), holder=None)
    has_asked_before = has_asked(s, before.session_id)
    return complete(s, known, seq=lease.seq, fence=lease.fence, has_asked=has_asked_before)


def _pointed_at(s: Scope, session_id: str) -> str | None:
    return next((pointer.provider for pointer in provider_sessions.pointers_of(s, session_id)), None)


def _tried(s: Scope, session: Session, before: int) -> tuple[TriedTurn, ...]:
    """Back to the first attempt of the newest turn that was answered and is not dropped; oldest first."""
    rows = s.all(TRIED, session_id=session.id, before=before, limit=1)
    if rows and not _begins_answered(rows[0]):  # seldom: the turn before was not answered at once
        fence = _TRY.column(rows[0], "fence")
        rows += s.all(TRIED, session_id=session.id, before=fence, limit=MOST_TRIES - 1)
        end = next((place for place, row in enumerate(rows) if _begins_answered(row)), len(rows))
        rows = rows[: end + 1]
    by_turn = groupby(reversed(rows), key=itemgetter(0))
    return tuple(_turn(s, seq, list(tries), session.id) for seq, tries in by_turn)


def _begins_answered(row: Row) -> bool:
    """Whether it is the first attempt of a turn that was answered and is not dropped."""
    status, dropped, *_ = row[_TRY.width :]
    return _TRY.column(row, "number") == 1 and status == TurnStatus.DONE and dropped is None


def _turn(s: Scope, seq: int, rows: list[Row], session_id: str) -> TriedTurn:
    tries = tuple([_TRIES.read(s.where, row[_SEQ.width : _TRY.width]) for row in rows])
    own = rows[-1][_TRY.width :]
    try:
        _TURN.check(own)
        status, dropped, failure_class, error, request = own
        return TriedTurn(
            seq, TurnStatus(status), dropped is not None, codec.decode_failure(failure_class, error),
            codec.decode_request(request).work_dir, tries,
        )  # fmt: skip
    except MISREAD as exc:
        raise unreadable(s.where, TURNS.name, f"turn {seq} of {session_id}", exc) from exc


def _answers(
    s: Scope, session_id: str, tried: Iterable[TriedTurn], seq: int
) -> tuple[tuple[Approval, ...], frozenset[str]]:
    """Those that the agent is to be told of with turn ``seq``, and the calls that ever waited for one."""
    since = last_told(tried, seq)
    rows = s.all(SETTLED_SINCE, session_id=session_id, since=since, now=s.now)
    waited = s.all(WITHHELD, session_id=session_id)
    return (
        tuple(approvals.read_approval(s, row) for row in rows),
        frozenset(call_id for (call_id,) in waited),
    )

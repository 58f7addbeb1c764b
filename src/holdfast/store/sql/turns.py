"""Owns the rows of turns: enqueueing, recording, cancelling and ending them, and changes of the history."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.clock import Instant
from holdfast.domain.approvals import Answer, Approval
from holdfast.domain.conversations import Conversation, HistoryTurn
from holdfast.domain.failures import WAS_CANCELLED, Failure
from holdfast.domain.ids import SessionId
from holdfast.domain.phases import Phase
from holdfast.domain.records import replace
from holdfast.domain.redaction import redact_text
from holdfast.domain.sessions import Session
from holdfast.domain.turns import AttemptCause, NewTurn, Turn, TurnStatus
from holdfast.domain.usage import Usage
from holdfast.errors import Conflict, InvalidInput, NotFound, SessionClosed, StoreCorrupt
from holdfast.store.driver import Row
from holdfast.store.sql import (
    approvals,
    codec,
    heads,
    history,
    runtimes,
    sessions,
)
from holdfast.store.sql.rows import Rows, coded, computed, cut, part
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.session_statements import record_deed
from holdfast.store.sql.tables import TEXT, TURNS, is_instant


def newest_text(role: str) -> str:
    """Of ``turns t``: one SELECT gives a turn and its texts."""
    return f"""
    (SELECT m.text FROM messages m
    WHERE m.workspace = t.workspace AND m.conversation_id = t.conversation_id AND m.seq = t.seq
        AND m.role = '{role}' ORDER BY m.revision DESC LIMIT 1)"""


def _or_empty(text: str | None) -> str:
    return text or ""


def _is_set(value: int | None) -> bool:
    return value is not None


ROWS = Rows(
    TURNS,
    Turn,
    "turn {seq} of {session_id}",
    alias="t",
    status=TurnStatus,
    prompt=computed(newest_text("prompt"), TEXT.or_null, _or_empty),
    response=computed(newest_text("response"), TEXT.or_null),
    request=coded(codec.encode_request, codec.decode_request),
    failure=part(codec.decode_failure, "failure_class", "error"),
    cancel_requested=part(_is_set, "cancel_requested_at"),
    next_cause=AttemptCause,
)

# conversation first: the one order in which all lock them
LOCK_BOTH = f"""
SELECT {history.ROWS.of("c").sql}, s.phase, s.finalized_at, s.approve_tools, s.head_seq
FROM conversations c JOIN sessions s ON s.workspace = c.workspace AND s.conversation_id = c.id
WHERE s.workspace = :ws AND s.id = :session_id FOR UPDATE"""
GET = f"SELECT {ROWS.sql} FROM turns t WHERE workspace = :ws AND conversation_id = :id AND seq = :seq"
OF_SESSION = f"""
SELECT {ROWS.sql} FROM turns t
WHERE workspace = :ws AND conversation_id = :id AND session_id = :session_id AND seq > :after AND seq <= :last
ORDER BY seq LIMIT :limit"""
NEWEST_OF_SESSION = f"""
SELECT {ROWS.sql} FROM turns t
WHERE workspace = :ws AND conversation_id = :id AND session_id = :session_id AND seq < :before
    AND (dropped IS NULL OR :dropped)
ORDER BY seq DESC LIMIT :limit"""
NEWEST_SEQS = """
SELECT seq FROM turns
WHERE workspace = :ws AND conversation_id = :id AND session_id = :session_id AND seq < :before
    AND (dropped IS NULL OR :dropped)
ORDER BY seq DESC LIMIT :limit"""
HEAD_OF_SESSION = f"""
SELECT {ROWS.sql} FROM turns t INDEXED BY open_turns
WHERE workspace = :ws AND conversation_id = :id AND session_id = :session_id
    AND status IN ('queued', 'claimed', 'running', 'waiting')
ORDER BY seq LIMIT 1"""
BY_KEY = "SELECT seq FROM turns WHERE workspace = :ws AND session_id = :session_id AND enqueue_key = :key"
REQUEUE = """
UPDATE turns SET status = 'queued', not_before = :not_before, next_cause = :cause, tries = :tries
WHERE workspace = :ws AND conversation_id = :id AND seq = :seq"""
WAIT = """
UPDATE turns SET status = 'waiting', not_before = NULL, tries = :tries
WHERE workspace = :ws AND conversation_id = :id AND seq = :seq"""
END = """
UPDATE turns SET status = :status, failure_class = :failure_class, error = :error, ended_at = :now
WHERE workspace = :ws AND conversation_id = :id AND seq = :seq"""
REQUEST_CANCEL = """
UPDATE turns SET cancel_requested_at = COALESCE(cancel_requested_at, :now)
WHERE workspace = :ws AND conversation_id = :id AND seq = :seq"""
CANCEL_WAITING = """
UPDATE turns INDEXED BY open_turns SET status = 'cancelled', failure_class = 'cancelled',
    error = 'cancelled', ended_at = :now
WHERE workspace = :ws AND conversation_id = :id AND session_id = :session_id
    AND status IN ('queued', 'claimed', 'running', 'waiting') AND status IN ('queued', 'waiting')"""
REQUEST_CANCEL_RUNNING = """
UPDATE turns INDEXED BY open_turns SET cancel_requested_at = COALESCE(cancel_requested_at, :now)
WHERE workspace = :ws AND conversation_id = :id AND session_id = :session_id
    AND status IN ('queued', 'claimed', 'running', 'waiting') AND status IN ('claimed', 'running')"""
OPEN_SEQS = """
SELECT seq FROM turns INDEXED BY open_turns
WHERE workspace = :ws AND conversation_id = :id AND status IN ('queued', 'claimed', 'running', 'waiting')
    AND seq < :before"""
TOUCH = """
UPDATE sessions SET updated_at = CASE WHEN updated_at < :now THEN :now ELSE updated_at END, error_count = 0,
    input_tokens = input_tokens + :input, cached_input_tokens = cached_input_tokens + :cached,
    output_tokens = output_tokens + :output, cost_usd = cost_usd + :cost
WHERE workspace = :ws AND id = :session_id"""


class Locked(NamedTuple):
    """An open session and its conversation. No other transaction changes them until this one ends."""

    session_id: SessionId
    conversation: Conversation
    approve_tools: frozenset[str]
    head_seq: int | None


def get(s: Scope, conversation_id: str, seq: int) -> Turn:
    row = s.one(GET, id=conversation_id, seq=seq)
    if row is None:
        raise NotFound("turn", str(seq), conversation_id=conversation_id)
    return read_turn(s, row)


def of_session(
    s: Scope, session: Session, after: int, limit: int, last: int = history.LAST_SEQ
) -> tuple[Turn, ...]:
    rows = s.all(
        OF_SESSION, id=session.conversation_id, session_id=session.id, after=after, last=last, limit=limit
    )
    return tuple(read_turn(s, row) for row in rows)


def newest_of_session(
    s: Scope, session: Session, before: int, limit: int, *, dropped: bool
) -> tuple[Turn, ...]:
    rows = s.all(
        NEWEST_OF_SESSION, id=session.conversation_id, session_id=session.id, before=before, limit=limit,
        dropped=dropped,
    )  # fmt: skip
    return tuple(read_turn(s, row) for row in reversed(rows))


def newest_seqs(s: Scope, session: Session, before: int, limit: int, *, dropped: bool) -> list[int]:
    """The numbers of those that ``newest_of_session`` finds, without their texts."""
    rows = s.all(
        NEWEST_SEQS, id=session.conversation_id, session_id=session.id, before=before, limit=limit,
        dropped=dropped,
    )  # fmt: skip
    return [seq for (seq,) in reversed(rows)]


def head_of_session(s: Scope, session: Session) -> Turn | None:
    row = s.one(HEAD_OF_SESSION, id=session.conversation_id, session_id=session.id)
    return None if row is None else read_turn(s, row)


def read_turn(s: Scope, row: Row) -> Turn:
    return ROWS.read(s.where, row)


def enqueue(s: Scope, session_id: str, new: NewTurn) -> Turn:
    """Idempotent by ``new.key``."""
    locked = lock_both(s, session_id)
    there = known(s, locked, new)
    if there is not None:
        return there
    turn = put(s, locked, new)
    record_deed(s, session_id, "enqueue_turn", turn.seq)
    return turn


def lock_both(s: Scope, session_id: str) -> Locked:
    """Raises SessionClosed."""
    row = s.one(LOCK_BOTH, session_id=session_id)
    if row is None:
        raise history.without_conversation(s, session_id)
    found, (phase, finalized_at, approve_tools, head_seq) = cut(row, history.ROWS)
    if finalized_at is not None:
        raise SessionClosed(session_id, phase)
    conversation = history.read_conversation(s, found)
    return Locked(
        SessionId(session_id), conversation, approvals.read_tools(s, approve_tools, session_id), head_seq
    )


def known(s: Scope, locked: Locked, new: NewTurn) -> Turn | None:
    if new.key is None:
        return None
    (seq,) = s.one(BY_KEY, session_id=locked.session_id, key=new.key) or (None,)
    return None if seq is None else get(s, locked.conversation.id, seq)


def put(
    s: Scope, locked: Locked, new: NewTurn, retry_of: int | None = None, taker: heads.Taker | None = None
) -> Turn:
    session_id, conversation = locked.session_id, locked.conversation
    if new.not_before is not None and not is_instant(new.not_before):
        raise InvalidInput("not_before", "must be an instant before the year 10000")
    seq = history.take_seq(s, conversation)
    request = approvals.keep_tools(s, session_id, locked.approve_tools, new.request)
    turn = make(
        conversation, seq, session_id, replace(new, request=request) if request is not new.request else new,
        now=s.now, retry_of=retry_of, max_attempts=_max_attempts(s, new),
    )  # fmt: skip
    _insert(s, turn, new.key)
    history.add_text(s, conversation.id, seq, conversation.revision, prompt=new.prompt, response=None)
    if locked.head_seq is None:
        heads.promote_head(s, conversation.id, session_id, taker)
    return turn


def make(  # noqa: PLR0913 - what differs between the turns that are made, by keyword
    conversation: Conversation,
    seq: int,
    session_id: SessionId,
    new: NewTurn,
    *,
    now: Instant,
    status: TurnStatus = TurnStatus.QUEUED,
    response: str | None = None,
    retry_of: int | None = None,
    max_attempts: int = 1,
) -> Turn:
    """A turn as it is before anything was tried; one that is done already ends now."""
    is_open = status.is_open
    return Turn(
        conversation_id=conversation.id,
        seq=seq,
        session_id=session_id,
        provider=new.provider,
        status=status,
        prompt=new.prompt,
        response=response,
        request=new.request,
        priority=new.priority,
        not_before=new.not_before if is_open else None,
        runtime_id=new.runtime_id,
        foreground=new.foreground,
        retry_of=retry_of,
        attempts=0,
        max_attempts=max_attempts,
        generation=conversation.generation,
        dropped=None,
        failure=None,
        cancel_requested=False,
        created_at=now,
        ended_at=None if is_open else now,
    )


def _max_attempts(s: Scope, new: NewTurn) -> int:
    return s.policy.queue.max_attempts if new.max_attempts is None else new.max_attempts


def record(  # noqa: PLR0913 - all that is known of a turn that happened elsewhere
    s: Scope,
    session_id: str,
    new: NewTurn,
    response: str | None,
    used: Usage,
    *,
    began_at: Instant | None = None,
    ended_at: Instant | None = None,
) -> Turn:
    """A turn that has already happened: one write for both messages and the session's state."""
    locked = lock_both(s, session_id)
    there = known(s, locked, new)
    if there is not None:
        return there
    conversation = locked.conversation
    said = None if response is None else history.kept_response(response)
    seq = history.take_seq(s, conversation)
    for field, at in (("began_at", began_at), ("ended_at", ended_at)):
        if at is not None and not is_instant(at):
            raise InvalidInput(field, "is not an instant")
    ended_at = ended_at or began_at or s.now
    turn = make(
        conversation, seq, locked.session_id, new, now=began_at or s.now, status=TurnStatus.DONE, response=said,
        max_attempts=_max_attempts(s, new),
    )  # fmt: skip
    turn = replace(turn, ended_at=ended_at)
    _insert(s, turn, new.key)
    history.add_text(s, conversation.id, seq, conversation.revision, prompt=new.prompt, response=said)
    s.run(
        TOUCH, session_id=session_id, now=ended_at, input=used.input_tokens, cached=used.cached_input_tokens,
        output=used.output_tokens, cost=used.cost_usd,
    )  # fmt: skip
    return turn


def _insert(s: Scope, turn: Turn, key: str | None) -> None:
    if turn.runtime_id is not None:
        runtimes.get(s, turn.runtime_id)
    s.run(TURNS.insert, enqueue_key=key, **ROWS.values(turn))


def retry(s: Scope, session_id: str, seq: int, prompt: str | None) -> Turn:
    """Run a turn again: it and everything after it leave the history, a new turn takes its place."""
    conversation = lock_both(s, session_id).conversation
    again = history.visible_turn(s, conversation, seq)
    row = None
    for segment in history.segments(s, conversation):
        row = row or s.one(GET, id=segment.id, seq=seq)
    if row is None:
        raise NotFound("turn", str(seq), conversation_id=conversation.id)
    old = read_turn(s, row)
    # another agent's turn is that agent's to repeat; an inherited one is ours
    target = old.session_id if old.conversation_id == conversation.id else session_id
    sessions.require_open(s, target)
    _, waiting = history.truncate(s, conversation, seq - 1)
    _were_dropped(s, conversation.id, waiting)
    # an id that was asked for by name belongs to the old turn
    request = replace(old.request, provider_session_id=None)
    new = NewTurn(
        prompt=again.prompt if prompt is None else prompt, provider=old.provider, request=request,
        priority=old.priority, runtime_id=old.runtime_id, max_attempts=old.max_attempts,
    )  # fmt: skip
    turn = put(s, lock_both(s, target), new, retry_of=seq)
    record_deed(s, target, "retry_turn", turn.seq)
    return turn


def edit_history(
    s: Scope, session_id: str, seq: int, prompt: str | None, response: str | None
) -> HistoryTurn:
    edited = history.edit(s, lock_both(s, session_id).conversation, seq, prompt, response)
    _was_changed(s, session_id, "edit_turn", seq)
    return edited


def truncate_history(s: Scope, session_id: str, keep: int) -> Conversation:
    conversation = lock_both(s, session_id).conversation
    changed, waiting = history.truncate(s, conversation, keep)
    _were_dropped(s, conversation.id, waiting)
    _was_changed(s, session_id, "truncate", keep)
    return changed


def begin_again(s: Scope, session_id: str) -> Conversation:
    conversation = lock_both(s, session_id).conversation
    changed, waiting = history.new_generation(s, conversation)
    _were_dropped(s, conversation.id, waiting)
    _was_changed(s, session_id, "new_generation")
    return changed


def _was_changed(s: Scope, session_id: str, did: str, turn: int | None = None) -> None:
    """The history was: the session counts as active now."""
    s.run(sessions.TOUCH, id=session_id, now=s.now)
    record_deed(s, session_id, did, turn)


def _were_dropped(s: Scope, conversation_id: str, session_ids: Iterable[str]) -> None:
    """Turns of these sessions left the history before they ran."""
    for session_id in session_ids:
        heads.promote_head(s, conversation_id, session_id)
        if approvals.void_of_ended_turns(s, session_id, "turn_dropped"):
            leave_approval(s, sessions.get(s, session_id))


def wait(s: Scope, turn: Turn) -> None:
    """For an approval, which does not count as a try."""
    s.run(WAIT, id=turn.conversation_id, seq=turn.seq, tries=turn.tries - 1)


def end(s: Scope, turn: Turn, status: TurnStatus, failure: Failure | None) -> None:
    """End a turn for good. Its approval becomes void, unless the turn has acted on the answer."""
    if turn.status is TurnStatus.WAITING or turn.has_unused_answer:
        approvals.void_of_turn(s, turn, f"turn_{status}")
    s.run(
        END, id=turn.conversation_id, seq=turn.seq, status=status.value, now=s.now,
        failure_class=failure.failure_class.value if failure else None,
        error=redact_text(failure.message) if failure else None,
    )  # fmt: skip


def requeue(
    s: Scope, conversation_id: str, seq: int, not_before: int | None, cause: AttemptCause, tries: int
) -> None:
    s.run(REQUEUE, id=conversation_id, seq=seq, not_before=not_before, cause=cause.value, tries=tries)


def cancel(s: Scope, session_id: str, seq: int) -> Turn:
    """Cancel a waiting turn at once; ask a running turn to stop. Idempotent."""
    session = sessions.lock(s, session_id)
    turn = get(s, session.conversation_id, seq)
    if turn.session_id != session.id:
        raise NotFound("turn", str(seq), session_id=session_id)
    if turn.status in (TurnStatus.QUEUED, TurnStatus.WAITING):
        end(s, turn, TurnStatus.CANCELLED, WAS_CANCELLED)
        heads.promote_head(s, session.conversation_id, session.id)
        if turn.status is TurnStatus.WAITING:
            leave_approval(s, session)
        record_deed(s, session_id, "cancel_turn", seq)
    elif turn.status.is_open:
        if not turn.cancel_requested:
            record_deed(s, session_id, "cancel_turn", seq)
        s.run(REQUEST_CANCEL, id=session.conversation_id, seq=seq, now=s.now)
    elif turn.status is not TurnStatus.CANCELLED:
        raise Conflict(f"turn {seq} of {session_id} has already ended: {turn.status}", status=turn.status)
    return get(s, session.conversation_id, seq)


def answer_approval(s: Scope, approval_id: str, given: Answer) -> Approval:
    """A turn that waited for the answer is queued again."""
    session = sessions.lock(s, approvals.get(s, approval_id).session_id)
    # read again, now that the lock keeps others from answering it
    approval = approvals.get(s, approval_id)
    approvals.check_answer(s, approval, given, closed=session.finalized_at is not None)
    if approval.status is given.status:
        return approval
    answered = approvals.answer(s, approval, given)
    if approval.seq is None:
        sessions.enter(s, session, session.phase)
        return answered
    turn = get(s, approval.conversation_id, approval.seq)
    if turn.status is not TurnStatus.WAITING:
        raise StoreCorrupt(s.where, f"approvals: {approval.id} is open, but its turn is {turn.status}")
    requeue(s, turn.conversation_id, turn.seq, None, AttemptCause.APPROVAL, turn.tries)
    heads.promote_head(s, turn.conversation_id, turn.session_id)
    leave_approval(s, session)
    return answered


def leave_approval(s: Scope, session: Session) -> None:
    """Back to the phase before, unless something else is asked. The session must be locked."""
    if session.phase is Phase.APPROVAL and not approvals.has_open(s, session.id):
        sessions.enter(s, session, sessions.before_approval(s, session))


def cancel_all(s: Scope, conversation_id: str, session_id: str) -> None:
    """The session ends: its waiting turns are cancelled, and a running turn is asked to stop."""
    where = {"id": conversation_id, "session_id": session_id, "now": s.now}
    if s.changed(CANCEL_WAITING, **where):
        heads.promote_head(s, conversation_id, session_id)
    s.run(REQUEST_CANCEL_RUNNING, **where)


def open_before(s: Scope, conversation_id: str, seq: int) -> list[int]:
    return [open_seq for (open_seq,) in s.all(OPEN_SEQS, id=conversation_id, before=seq)]

"""Owns asking for approvals, finding and answering them, and the turns that wait for one."""

from __future__ import annotations

from holdfast.domain.approvals import (
    Answer,
    AnswerRefusal,
    Approval,
    NewApproval,
    expired_when,
    refusal_of,
    why_it_waits,
)
from holdfast.domain.ids import ApprovalId
from holdfast.domain.phases import Phase
from holdfast.domain.turns import AttemptCause, Turn, TurnStatus
from holdfast.errors import (
    AmbiguousId,
    HoldfastError,
    NotFound,
    Refused,
    SessionClosed,
    StoreCorrupt,
)
from holdfast.store.sql import approval_rows, heads, sessions, turns
from holdfast.store.sql.approval_rows import COLUMNS, GET
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.shapes import readable

BY_PREFIX = """
SELECT id FROM approvals WHERE workspace = :ws AND id >= :low AND id < :high ORDER BY id DESC LIMIT 6"""
NEWEST_OF_SESSION = """
SELECT id, status, expires_at FROM approvals INDEXED BY approvals_of_sessions
WHERE workspace = :ws AND session_id = :session_id ORDER BY requested_at DESC, id DESC LIMIT 50"""
HEAD = """
SELECT t.conversation_id, t.seq, t.status FROM sessions s JOIN turns t
    ON t.workspace = s.workspace AND t.conversation_id = s.conversation_id AND t.seq = s.head_seq
WHERE s.workspace = :ws AND s.id = :id"""


def request(s: Scope, session_id: str, new: NewApproval) -> Approval:
    session = sessions.lock(s, session_id)
    if s.one(GET, id=new.id) is not None:
        return approval_rows.add(s, session.id, session.conversation_id, None, new)
    if session.finalized_at is not None:
        raise SessionClosed(session.id, session.phase)
    asked = approval_rows.add(s, session.id, session.conversation_id, None, new)
    sessions.enter(s, session, Phase.APPROVAL)
    return asked


def find(s: Scope, given: str) -> ApprovalId:
    if s.one(GET, id=given) is not None:
        return ApprovalId(given)
    fits = [found for (found,) in s.all(BY_PREFIX, low=given, high=given + sessions.AFTER_ALL)]
    if not fits:
        try:
            session_id = sessions.resolve(s, given)
        except NotFound:
            raise NotFound("approval", given) from None
        fits = _of_session(s, session_id)
    if len(fits) > 1:
        raise AmbiguousId(given, tuple(fits[:5]), "approval")
    if not fits:
        raise NotFound("approval of session", given)
    return ApprovalId(fits[0])


def _of_session(s: Scope, session_id: str) -> list[str]:
    """Those that can be answered now; else the newest, which says why it cannot, or has been."""
    known = s.all(NEWEST_OF_SESSION, session_id=session_id)
    open_ones = [found for found, status, until in known if status == "open" and _lasts(until, s.now)]
    return open_ones or [found for found, _, _ in known[:1]]


def _lasts(until: object, now: int) -> bool:
    """What is no instant is for whoever reads the row to complain about."""
    return not isinstance(until, int) or until > now


def listed(
    s: Scope, session_id: str | None, after: str | None, limit: int, *, open_only: bool
) -> tuple[Approval, ...]:
    conditions, params = ["workspace = :ws"], dict[str, object](limit=limit)
    if session_id is not None:
        conditions.append("session_id = :session_id")
        params["session_id"] = session_id
    if open_only:
        conditions.append("status = 'open'")
    if after is not None:
        conditions.append("(requested_at, id) > (:requested_at, :after)")
        params |= {"requested_at": approval_rows.get(s, after).requested_at, "after": after}
    sql = (
        f"SELECT {COLUMNS} FROM approvals WHERE {' AND '.join(conditions)} "
        "ORDER BY requested_at, id LIMIT :limit"
    )
    return tuple(readable(lambda row: approval_rows.read_approval(s, row), s.all(sql, **params)))


def answer(s: Scope, approval_id: str, given: Answer) -> Approval:
    session = sessions.lock(s, approval_rows.get(s, approval_id).session_id)
    # again, now that nobody else can answer it
    approval = approval_rows.get(s, approval_id)
    refusal = refusal_of(approval, given, s.now, closed=session.finalized_at is not None)
    if refusal is not None:
        raise _refused(approval, given, refusal)
    if approval.status is given.status:
        return approval
    answered = approval_rows.answer(s, approval, given)
    if approval.seq is None:
        sessions.enter(s, session, session.phase)
        return answered
    turn = turns.get(s, approval.conversation_id, approval.seq)
    if turn.status is not TurnStatus.WAITING:
        raise StoreCorrupt(s.where, f"approvals: {approval.id} is open, but its turn is {turn.status}")
    turns.requeue(s, turn.conversation_id, turn.seq, None, AttemptCause.APPROVAL, turn.tries)
    heads.promote_head(s, turn.conversation_id, turn.session_id)
    turns.leave_approval(s, session)
    return answered


def _refused(approval: Approval, given: Answer, refusal: AnswerRefusal) -> Refused:
    message = f"approval {approval.id} cannot be {given.status}: {_why(approval, refusal)}"
    return Refused(refusal, message, approval_id=approval.id)


def _why(approval: Approval, refusal: AnswerRefusal) -> str:
    match refusal:
        case AnswerRefusal.OTHER_ARGUMENTS:
            return "this answer is for other arguments than those that were asked about"
        case AnswerRefusal.OTHER_NONCE:
            return "this answer is to another request"
        case AnswerRefusal.ANSWERED:
            return f"{approval.answered_by} has {approval.status} it"
        case AnswerRefusal.CLOSED:
            return f"session {approval.session_id} is closed"
        case AnswerRefusal.VOIDED:
            return f"it is void: {approval.void_reason}"
        case AnswerRefusal.NOT_AMONG:
            return f"only these may answer it: {', '.join(sorted(approval.answerers))}"
        case AnswerRefusal.EXPIRED:
            return f"it has expired{expired_when(approval)}"


def refuse_unanswered(s: Scope, session_id: str | None) -> None:
    """If the head of this session waits for an answer, nothing of it runs until then."""
    row = None if session_id is None else s.one(HEAD, id=session_id)
    if row is not None and row[-1] == TurnStatus.WAITING:
        conversation_id, seq, _ = row
        raise _unanswered(s, turns.get(s, conversation_id, seq))


def _unanswered(s: Scope, turn: Turn) -> HoldfastError:
    approval = approval_rows.of_turn(s, turn)
    if approval is None:
        raise NotFound("approval of turn", str(turn.seq), session_id=turn.session_id)
    return why_it_waits(approval, s.now)

"""Owns the rows of approvals, and which tool calls of a session wait for one: asked once, answered once, used once, or void."""

from __future__ import annotations

import os
from collections.abc import Iterator

from holdfast.domain.approvals import (
    Answer,
    AnswerRefusal,
    Approval,
    ApprovalStatus,
    NewApproval,
    expired_when,
    hash_arguments,
    refusal_of,
    why_it_stays,
)
from holdfast.domain.ids import ApprovalId, ConversationId, SessionId
from holdfast.domain.inputs import clean_text
from holdfast.domain.phases import Phase
from holdfast.domain.records import replace
from holdfast.domain.redaction import encode_redacted, redact_text
from holdfast.domain.turns import Turn, TurnRequest
from holdfast.errors import AmbiguousId, Conflict, NotFound, Refused, SessionClosed
from holdfast.store.driver import Row
from holdfast.store.sql import codec, json_text, sessions
from holdfast.store.sql.rows import Rows, coded, part, readable
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.tables import APPROVALS, MISREAD, SESSIONS, unreadable

ROWS = Rows(
    APPROVALS,
    Approval,
    "{id}",
    arguments=part(json_text.decode_object, "arguments"),
    answerers=coded(codec.encode_texts, codec.decode_texts),
    status=ApprovalStatus,
)
UNUSED = "used_at IS NULL AND status <> 'voided'"

GET = f"SELECT {ROWS.sql} FROM approvals WHERE workspace = :ws AND id = :id"
# at most one: a turn waits for one answer at a time, and a used or voided one is over
OF_TURN = f"""
SELECT {ROWS.sql} FROM approvals INDEXED BY approvals_of_sessions
WHERE workspace = :ws AND session_id = :session_id AND seq = :seq AND {UNUSED}
ORDER BY requested_at DESC, id DESC LIMIT 1"""
ANSWER = """
UPDATE approvals SET status = :status, answered_at = :now, answered_by = :by, note = :note
WHERE workspace = :ws AND id = :id"""
USE = f"""
UPDATE approvals INDEXED BY approvals_of_sessions SET used_at = :now
WHERE workspace = :ws AND session_id = :session_id AND seq = :seq AND status <> 'open' AND {UNUSED}"""
VOID_OF_TURN = f"""
UPDATE approvals INDEXED BY approvals_of_sessions SET status = 'voided', void_reason = :reason, voided_at = :now
WHERE workspace = :ws AND session_id = :session_id AND seq = :seq AND {UNUSED}"""
VOID_OF_ENDED_TURNS = f"""
UPDATE approvals INDEXED BY approvals_of_sessions SET status = 'voided', void_reason = :reason, voided_at = :now
WHERE workspace = :ws AND session_id = :session_id AND {UNUSED} AND seq IN (
    SELECT t.seq FROM turns t
    WHERE t.workspace = :ws AND t.conversation_id = approvals.conversation_id AND t.ended_at IS NOT NULL)"""
OPEN_OF_SESSION = f"""
SELECT {ROWS.sql} FROM approvals INDEXED BY approvals_of_sessions
WHERE workspace = :ws AND session_id = :session_id AND status = 'open' ORDER BY requested_at, id"""
VOID_EXPIRED = """
UPDATE approvals INDEXED BY approvals_of_sessions SET status = 'voided', void_reason = 'expired', voided_at = :now
WHERE workspace = :ws AND session_id = :session_id AND status = 'open'"""
HAS_OPEN = """
SELECT 1 FROM approvals INDEXED BY approvals_of_sessions
WHERE workspace = :ws AND session_id = :session_id AND status = 'open' LIMIT 1"""

BY_PREFIX = """
SELECT id FROM approvals WHERE workspace = :ws AND id >= :low AND id < :high ORDER BY id DESC LIMIT 6"""
NEWEST_OF_SESSION = """
SELECT id, status, expires_at FROM approvals INDEXED BY approvals_of_sessions
WHERE workspace = :ws AND session_id = :session_id ORDER BY requested_at DESC, id DESC LIMIT 50"""
KEEP_TOOLS = "UPDATE sessions SET approve_tools = :patterns WHERE workspace = :ws AND id = :id"
COPY_TOOLS = """
UPDATE sessions SET approve_tools =
    (SELECT p.approve_tools FROM sessions p WHERE p.workspace = :ws AND p.id = :parent_id)
WHERE workspace = :ws AND id = :id"""


_BEHIND = "(requested_at, id) > (:requested_at, :after)"
#: rows of a list that are read at once
_STEP = 100


def read_approval(s: Scope, row: Row) -> Approval:
    return ROWS.read(s.where, row)


def get(s: Scope, approval_id: str) -> Approval:
    row = s.one(GET, id=approval_id)
    if row is None:
        raise NotFound("approval", approval_id)
    return read_approval(s, row)


def add(s: Scope, session_id: str, conversation_id: str, seq: int | None, new: NewApproval) -> Approval:
    """Idempotent by ``new.id``; Conflict if that is another request's."""
    asked = Approval(
        id=new.id,
        session_id=SessionId(session_id),
        conversation_id=ConversationId(conversation_id),
        seq=seq,
        call_id=None if new.call_id is None else clean_text(new.call_id),
        tool=None if new.tool is None else clean_text(new.tool),
        what=redact_text(clean_text(new.what)),
        arguments=new.arguments,
        arguments_hash=hash_arguments(new.arguments),
        nonce=os.urandom(8).hex(),
        requested_at=s.now,
        requested_by=new.requested_by,
        expires_at=new.expires_at,
        answerers=new.answerers,
        status=ApprovalStatus.OPEN,
        answered_at=None,
        answered_by=None,
        note=None,
        used_at=None,
        void_reason=None,
    )
    shown = clean_text(encode_redacted(dict(new.arguments), json_text.dump))
    written = s.changed(APPROVALS.insert_once, **ROWS.values(asked) | {"arguments": shown})
    known = get(s, new.id)
    same = (known.session_id, known.seq, known.arguments_hash) == (session_id, seq, asked.arguments_hash)
    if not written and not same:
        raise Conflict(f"approval {new.id} is of another request", approval_id=new.id)
    return known


def of_turn(s: Scope, turn: Turn) -> Approval | None:
    """The one that the turn waits for, or the answer that it has not acted on."""
    row = s.one(OF_TURN, session_id=turn.session_id, seq=turn.seq)
    return None if row is None else read_approval(s, row)


def check_answer(s: Scope, approval: Approval, given: Answer, *, closed: bool) -> None:
    """Raises Refused for an answer that does not count; ``closed``: the approval's session is."""
    refusal = refusal_of(approval, given, s.now, closed=closed)
    if refusal is not None:
        message = f"approval {approval.id} cannot be {given.status}: {_why(approval, refusal)}"
        raise Refused(refusal, message, approval_id=approval.id)


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


def answer(s: Scope, approval: Approval, given: Answer) -> Approval:
    note = None if given.note is None else redact_text(given.note)
    s.run(ANSWER, id=approval.id, status=given.status.value, now=s.now, by=given.signature, note=note)
    return replace(approval, status=given.status, answered_at=s.now, answered_by=given.signature, note=note)


def use(s: Scope, session_id: str, seq: int) -> None:
    s.run(USE, session_id=session_id, seq=seq, now=s.now)


def void_of_turn(s: Scope, turn: Turn, reason: str) -> None:
    s.run(VOID_OF_TURN, session_id=turn.session_id, seq=turn.seq, reason=reason, now=s.now)


def void_of_ended_turns(s: Scope, session_id: str, reason: str) -> int:
    return s.changed(VOID_OF_ENDED_TURNS, session_id=session_id, reason=reason, now=s.now)


def leave_behind(s: Scope, session_id: str) -> None:
    """Raises Conflict if an approval can still be answered, or a turn waits for one. Expired ones become void."""
    left = [read_approval(s, row) for row in s.all(OPEN_OF_SESSION, session_id=session_id)]
    conflict = why_it_stays(left, s.now)
    if conflict is not None:
        raise conflict
    if left:
        s.run(VOID_EXPIRED, session_id=session_id, now=s.now)


def has_open(s: Scope, session_id: str) -> bool:
    return s.one(HAS_OPEN, session_id=session_id) is not None


def request(s: Scope, session_id: str, new: NewApproval) -> Approval:
    session = sessions.lock(s, session_id)
    if s.one(GET, id=new.id) is not None:
        return add(s, session.id, session.conversation_id, None, new)
    if session.finalized_at is not None:
        raise SessionClosed(session.id, session.phase)
    asked = add(s, session.id, session.conversation_id, None, new)
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
    """Returns those that can be answered now; else the newest, whose row says why it cannot."""
    known = s.all(NEWEST_OF_SESSION, session_id=session_id)
    open_ones = [found for found, status, until in known if status == "open" and _lasts(until, s.now)]
    return open_ones or [found for found, _, _ in known[:1]]


def _lasts(until: object, now: int) -> bool:
    """A value that is no instant counts as lasting: reading the whole row raises the error."""
    return not isinstance(until, int) or until > now


def listed(
    s: Scope, session_id: str | None, after: str | None, limit: int, *, open_only: bool
) -> tuple[Approval, ...]:
    conditions, params = ["workspace = :ws"], dict[str, object]()
    if session_id is not None:
        conditions.append("session_id = :session_id")
        params["session_id"] = session_id
    if open_only:
        conditions.append("status = 'open'")
    if after is not None:
        conditions.append(_BEHIND)
        params |= {"requested_at": get(s, after).requested_at, "after": after}
    found: list[Approval] = []
    size = 0
    for row in _in_steps(s, conditions, params, limit):
        size += sum(len(value) for value in row if isinstance(value, str))
        found += readable(lambda row: read_approval(s, row), [row])
        if size > sessions.PAGE_CHARACTERS:
            break
    return tuple(found)


def _in_steps(s: Scope, conditions: list[str], params: dict[str, object], limit: int) -> Iterator[Row]:
    """Reads the rows as far as they are looked at: those of one step may be long."""
    while limit > 0:
        sql = (
            f"SELECT {ROWS.sql} FROM approvals WHERE {' AND '.join(conditions)} "
            "ORDER BY requested_at, id LIMIT :limit"
        )
        step = min(limit, _STEP)
        rows = s.all(sql, limit=step, **params)
        yield from rows
        if len(rows) < step:
            return
        limit -= step
        conditions = [condition for condition in conditions if condition != _BEHIND] + [_BEHIND]
        last = ROWS.named(rows[-1])
        params |= {"requested_at": last["requested_at"], "after": last["id"]}


def read_tools(s: Scope, approve_tools: str | None, session_id: str) -> frozenset[str]:
    """The patterns in a session's row."""
    try:
        return frozenset() if approve_tools is None else codec.decode_texts(approve_tools)
    except MISREAD as exc:
        raise unreadable(s.where, SESSIONS.name, session_id, exc) from exc


def keep_tools(s: Scope, session_id: str, before: frozenset[str], request: TurnRequest) -> TurnRequest:
    """Returns the request with every pattern that was ever asked for in this session.

    Only a request that allows wider rights may leave patterns out.
    """
    asked = request.rights.approve_tools if request.rights is not None else frozenset[str]()
    starts_over = request.allow_wider_rights and request.rights is not None
    patterns = asked if starts_over else before | asked | request.approve_tools
    if patterns != before:
        s.run(KEEP_TOOLS, id=session_id, patterns=json_text.dump(sorted(patterns)) if patterns else None)
    return request if patterns == request.approve_tools else replace(request, approve_tools=patterns)


def copy_tools(s: Scope, parent_id: str, child_id: str) -> None:
    s.run(COPY_TOOLS, parent_id=parent_id, id=child_id)

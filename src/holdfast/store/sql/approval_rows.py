"""Owns the rows of approvals: written once, answered once, used once, or voided."""

from __future__ import annotations

import secrets
from dataclasses import replace

from holdfast.domain.approvals import (
    Answer,
    Approval,
    ApprovalStatus,
    NewApproval,
    hash_arguments,
    why_it_stays,
)
from holdfast.domain.inputs import clean_text
from holdfast.domain.redaction import encode_redacted, redact_text
from holdfast.domain.turns import Turn
from holdfast.errors import Conflict, NotFound
from holdfast.store.driver import Row
from holdfast.store.sql import codec
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.shapes import Shape, read_instant, read_optional_instant

COLUMNS = """id, session_id, conversation_id, seq, call_id, tool, what, arguments, arguments_hash, nonce,
    requested_at, requested_by, expires_at, answerers, status, answered_at, answered_by, note, used_at,
    void_reason, voided_at"""
UNUSED = "used_at IS NULL AND status <> 'voided'"

GET = f"SELECT {COLUMNS} FROM approvals WHERE workspace = :ws AND id = :id"
INSERT = """
INSERT INTO approvals (workspace, id, session_id, conversation_id, seq, call_id, tool, what, arguments,
    arguments_hash, nonce, requested_at, requested_by, expires_at, answerers, status)
VALUES (:ws, :id, :session_id, :conversation_id, :seq, :call_id, :tool, :what, :arguments,
    :arguments_hash, :nonce, :now, :requested_by, :expires_at, :answerers, 'open')
ON CONFLICT (workspace, id) DO NOTHING"""
# at most one: a turn waits for one answer at a time, and a used or voided one is over
OF_TURN = f"""
SELECT {COLUMNS} FROM approvals INDEXED BY approvals_of_sessions
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
SELECT {COLUMNS} FROM approvals INDEXED BY approvals_of_sessions
WHERE workspace = :ws AND session_id = :session_id AND status = 'open' ORDER BY requested_at, id"""
VOID_EXPIRED = """
UPDATE approvals INDEXED BY approvals_of_sessions SET status = 'voided', void_reason = 'expired', voided_at = :now
WHERE workspace = :ws AND session_id = :session_id AND status = 'open'"""
HAS_OPEN = """
SELECT 1 FROM approvals INDEXED BY approvals_of_sessions
WHERE workspace = :ws AND session_id = :session_id AND status = 'open' LIMIT 1"""

_SHAPE = Shape(
    "approvals",
    COLUMNS,
    "seq call_id tool expires_at answered_at answered_by note used_at void_reason voided_at",
)
_STATUSES = {status.value: status for status in ApprovalStatus}


def read_approval(s: Scope, row: Row) -> Approval:
    return _SHAPE.read(s.where, row, _read, row[0])


def _read(row: Row) -> Approval:
    (
        approval_id, session_id, conversation_id, seq, call_id, tool, what, arguments, arguments_hash, nonce,
        requested_at, requested_by, expires_at, answerers, status, answered_at, answered_by, note, used_at,
        void_reason, voided_at,
    ) = row  # fmt: skip
    return Approval(
        approval_id, session_id, conversation_id, seq, call_id, tool, what, codec.decode_object(arguments),
        arguments_hash, nonce, read_instant(requested_at), requested_by, read_optional_instant(expires_at),
        codec.decode_texts(answerers), _STATUSES[status], read_optional_instant(answered_at), answered_by,
        note, read_optional_instant(used_at), void_reason, read_optional_instant(voided_at),
    )  # fmt: skip


def get(s: Scope, approval_id: str) -> Approval:
    row = s.one(GET, id=approval_id)
    if row is None:
        raise NotFound("approval", approval_id)
    return read_approval(s, row)


def add(s: Scope, session_id: str, conversation_id: str, seq: int | None, new: NewApproval) -> Approval:
    """Idempotent by ``new.id``; Conflict if that is another request's."""
    asked, tool = redact_text(clean_text(new.what)), None if new.tool is None else clean_text(new.tool)
    arguments_hash = hash_arguments(new.arguments)
    written = s.changed(
        INSERT, id=new.id, session_id=session_id, conversation_id=conversation_id, seq=seq,
        call_id=None if new.call_id is None else clean_text(new.call_id), tool=tool, what=asked,
        arguments=clean_text(encode_redacted(dict(new.arguments), codec.dump)),
        arguments_hash=arguments_hash, nonce=secrets.token_hex(8), now=s.now,
        requested_by=new.requested_by, expires_at=new.expires_at,
        answerers=codec.dump(sorted(new.answerers)),
    )  # fmt: skip
    known = get(s, new.id)
    same = (known.session_id, known.seq, known.arguments_hash) == (session_id, seq, arguments_hash)
    if not written and not same:
        raise Conflict(f"approval {new.id} is of another request", approval_id=new.id)
    return known


def of_turn(s: Scope, turn: Turn) -> Approval | None:
    """The one that the turn waits for, or the answer that it has not acted on."""
    row = s.one(OF_TURN, session_id=turn.session_id, seq=turn.seq)
    return None if row is None else read_approval(s, row)


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
    """Conflict if one can still be answered, or its turn waits on; those that only expired are void."""
    left = [read_approval(s, row) for row in s.all(OPEN_OF_SESSION, session_id=session_id)]
    conflict = why_it_stays(left, s.now)
    if conflict is not None:
        raise conflict
    if left:
        s.run(VOID_EXPIRED, session_id=session_id, now=s.now)


def has_open(s: Scope, session_id: str) -> bool:
    return s.one(HAS_OPEN, session_id=session_id) is not None

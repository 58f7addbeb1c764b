"""Owns approvals: questions to people, who may answer them, and which answers count."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from hashlib import sha256

from holdfast.clock import Instant, after, to_iso
from holdfast.domain.ids import ApprovalId, ConversationId, SessionId
from holdfast.domain.inputs import check_text
from holdfast.domain.records import field, record
from holdfast.domain.redaction import Json
from holdfast.domain.telling.quoting import on_one_line
from holdfast.errors import Conflict, HoldfastError, InvalidInput, NeedsApproval, Refused

MAX_WORDS = 10_000  #: of a question, and of the note that answers it
_SHOWN = 200  #: characters of a question in an error


class ApprovalStatus(StrEnum):
    OPEN = "open"  #: not answered; after ``expires_at`` it has expired
    APPROVED = "approved"
    DENIED = "denied"
    VOIDED = "voided"  #: its tool call will not run, or not with these arguments


class AnswerRefusal(StrEnum):
    """Why an answer does not count; nothing was changed then."""

    OTHER_ARGUMENTS = "other_arguments"  #: given for other arguments than those that were asked about
    OTHER_NONCE = "other_nonce"  #: given to another request
    ANSWERED = "already_answered"  #: with the other verdict
    CLOSED = "session_closed"
    VOIDED = "approval_voided"
    NOT_AMONG = "not_an_answerer"
    EXPIRED = "approval_expired"


@record
class NewApproval:
    id: ApprovalId
    what: str
    arguments: Mapping[str, Json] = field(default_factory=dict, hash=False)
    expires_at: Instant | None = None  #: None: never
    answerers: frozenset[str] = frozenset()  #: empty: anyone
    requested_by: str = ""
    call_id: str | None = None  #: of the tool call that waits for it
    tool: str | None = None


@record
class Approval:
    id: ApprovalId
    session_id: SessionId
    conversation_id: ConversationId
    seq: int | None  #: the turn that waits for it; None: the agent asked by itself
    call_id: str | None
    tool: str | None
    what: str
    arguments: Mapping[str, Json] = field(hash=False)  #: redacted, for display
    arguments_hash: str  #: of the exact arguments
    nonce: str
    requested_at: Instant
    requested_by: str
    expires_at: Instant | None
    answerers: frozenset[str]
    status: ApprovalStatus
    answered_at: Instant | None
    answered_by: str | None
    note: str | None
    used_at: Instant | None  #: when the answer was used, which happens once
    void_reason: str | None
    voided_at: Instant | None = None  #: None: not voided, or voided by a version that did not record it

    def is_expired(self, now: Instant) -> bool:
        """An answer at ``expires_at`` itself is too late."""
        return self.status is ApprovalStatus.OPEN and self.expires_at is not None and now >= self.expires_at


@record
class Answer:
    """Bound to one approval by ``nonce``, and to the exact arguments by ``arguments_hash``."""

    approved: bool
    by: str
    arguments_hash: str
    nonce: str
    note: str | None = None
    token: str | None = None  #: the id of the token of the request, if it came over HTTP

    @property
    def signature(self) -> str:
        """Who answered, as it is recorded."""
        return self.by if self.token is None else f"{self.by} ({self.token})"

    @property
    def status(self) -> ApprovalStatus:
        return ApprovalStatus.APPROVED if self.approved else ApprovalStatus.DENIED


def check_note(note: str | None) -> None:
    if note is not None and not check_text("note", note, limit=MAX_WORDS).strip():
        raise InvalidInput("note", "must not be empty: leave it out, or tell the agent something")


def hash_arguments(arguments: Mapping[str, Json]) -> str:
    """The hash of the canonical JSON: equal for equal arguments."""
    text = json.dumps(dict(arguments), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256(text.encode()).hexdigest()


def expiry(now: Instant, seconds: float | None) -> Instant | None:
    return None if seconds is None else after(now, seconds)


def refusal_of(approval: Approval, answer: Answer, now: Instant, *, closed: bool) -> AnswerRefusal | None:
    """Why the answer does not count; None: it counts, or repeats the answer that was given. ``closed``: the session is final."""
    if answer.arguments_hash != approval.arguments_hash:
        return AnswerRefusal.OTHER_ARGUMENTS
    if answer.nonce != approval.nonce:
        return AnswerRefusal.OTHER_NONCE
    if approval.status is answer.status:
        return None
    if approval.status in (ApprovalStatus.APPROVED, ApprovalStatus.DENIED):
        return AnswerRefusal.ANSWERED
    if closed:
        return AnswerRefusal.CLOSED
    if approval.status is ApprovalStatus.VOIDED:
        return AnswerRefusal.VOIDED
    if approval.answerers and approval.answerers.isdisjoint({answer.by, answer.token}):
        return AnswerRefusal.NOT_AMONG
    return AnswerRefusal.EXPIRED if approval.is_expired(now) else None


def why_it_waits(approval: Approval, now: Instant) -> HoldfastError:
    """Why the turn of an open approval cannot run now."""
    session_id, seq = approval.session_id, approval.seq or 0
    if approval.is_expired(now):
        return Refused(
            AnswerRefusal.EXPIRED,
            f"turn {seq} of {session_id} waits for approval {approval.id}, which has expired"
            f"{expired_when(approval)}; to continue without it: holdfast cancel {session_id} --turn {seq}",
            approval_id=approval.id,
            session_id=session_id,
            seq=seq,
        )
    return NeedsApproval(session_id, seq, approval.id, approval.what)


def why_it_stays(left: Sequence[Approval], now: Instant) -> Conflict | None:
    """Why the session of these open approvals cannot leave phase ``approval``; None: it can."""
    wanted = [approval for approval in left if approval.seq is not None or not approval.is_expired(now)]
    if not wanted:
        return None
    approval = wanted[0]
    session_id, seq = approval.session_id, approval.seq
    if approval.is_expired(now):
        why = (
            f"approval {approval.id} has expired{expired_when(approval)}; "
            f"give its turn up: holdfast cancel {session_id} --turn {seq}"
        )
    else:
        more = f" and {len(wanted) - 1} more" if len(wanted) > 1 else ""
        why = (
            f'a person has to answer approval {approval.id} ("{on_one_line(approval.what, _SHOWN)}"){more} first; '
            f"to withdraw the question: holdfast deny {approval.id}"
        )
    return Conflict(
        f"session {session_id} stays in phase approval: {why}",
        session_id=session_id,
        approval_id=approval.id,
    )


def expired_when(approval: Approval) -> str:
    return "" if approval.expires_at is None else f" ({to_iso(approval.expires_at)})"

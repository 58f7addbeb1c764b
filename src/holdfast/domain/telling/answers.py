"""Owns how an agent is told the answers to its approvals: once, and quoted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from holdfast.clock import Instant
from holdfast.domain.approvals import Approval, ApprovalStatus
from holdfast.domain.records import record
from holdfast.domain.redaction import redact_text
from holdfast.domain.telling.quoting import fitted, on_one_line, quoted, shortened

_MOST_CHARACTERS = 2000  #: of a question, and of a note
_MOST_ANSWERS = 10
_LONGEST_NAME = 200
_NO_REASON = "no reason was given"


@record
class ToldAnswer:
    approval_id: str
    what: str
    verdict: str
    by: str | None  #: None: the approval has expired
    note: str | None
    why_void: str | None = None  #: it was about a tool call, which was never made


def settled_at(approval: Approval, now: Instant) -> Instant | None:
    """When the approval was answered or expired; None while it is open, or if it was withdrawn.

    The agent learns the answer to a tool call by the call itself. Only a void one is told, as of its answer, or else
    of its request.
    """
    if approval.seq is not None:
        voided = approval.status is ApprovalStatus.VOIDED and approval.used_at is None
        return (approval.answered_at or approval.requested_at) if voided else None
    if approval.status in (ApprovalStatus.APPROVED, ApprovalStatus.DENIED):
        return approval.answered_at
    return approval.expires_at if _has_expired(approval, now) else None


def told_answer(approval: Approval, now: Instant) -> ToldAnswer:
    """What the agent is told of a settled approval, without secrets."""
    note = approval.note
    if note is None and approval.status is ApprovalStatus.DENIED:
        note = _NO_REASON
    return ToldAnswer(
        approval.id,
        shortened(redact_text(approval.what), _MOST_CHARACTERS),
        "expired" if _has_expired(approval, now) else approval.status.value,
        approval.answered_by,
        None if note is None else shortened(redact_text(note), _MOST_CHARACTERS),
        None if approval.seq is None else approval.void_reason or "no reason is recorded",
    )


def answers_text(answers: Sequence[ToldAnswer], size: int) -> str:
    """The answers in at most ``size`` bytes, the oldest left out first; "" if not even the newest fits."""
    for first in range(max(0, len(answers) - _MOST_ANSWERS), len(answers)):
        text = fitted(partial(_rendered, answers, first), _MOST_CHARACTERS, size)
        if text:
            return text
    return ""


def _has_expired(approval: Approval, now: Instant) -> bool:
    return approval.is_expired(now) or approval.void_reason == "expired"


def _rendered(answers: Sequence[ToldAnswer], first: int, limit: int) -> str:
    lines = [f"[... {first} earlier left out ...]"] if first else []
    for answer in answers[first:]:
        by = "" if answer.by is None else f" by {on_one_line(answer.by, _LONGEST_NAME)}"
        if answer.why_void is None:
            lines += [f"Approval {answer.approval_id} is {answer.verdict}{by}. You had asked:"]
        else:
            why = on_one_line(answer.why_void, _LONGEST_NAME)
            lines += [f"Approval {answer.approval_id} is void ({why}). This call did NOT run:"]
        lines += [quoted(answer.what, limit)]
        if answer.note is not None:
            lines += ["The answer says:", quoted(answer.note, limit)]
    return "\n".join(lines)

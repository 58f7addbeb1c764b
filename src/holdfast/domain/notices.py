"""Owns notices to people: the occasions, and the JSON object that is sent for one."""

from __future__ import annotations

from enum import StrEnum

from holdfast.clock import Instant, to_iso
from holdfast.domain.ids import ApprovalId, SessionId
from holdfast.domain.records import record
from holdfast.domain.redaction import Json, redact_value

_LONGEST_WHAT = 2_000


class Occasion(StrEnum):
    APPROVAL_WANTED = "approval_wanted"  #: an agent waits for a person's answer
    TURN_FAILED = "turn_failed"  #: and is not retried automatically
    LIMIT_REACHED = "limit_reached"  #: a usage limit of the provider
    SESSION_DONE = "session_done"  #: completed, failed or abandoned


@record
class Notice:
    occasion: Occasion
    session_id: SessionId
    agent: str
    what: str  #: a sentence: what is asked for, what went wrong, what came of it
    command: str  #: what a person types to answer, to continue, or to look at the session
    at: Instant
    turn: int | None = None
    approval_id: ApprovalId | None = None  #: what a person is asked


def notice_document(notice: Notice, page: str | None = None) -> Json:
    """The notice as JSON, bounded and without secrets. The same occasion always has the same ``id``.

    ``page`` is the address of the page; with it, the notice links to the question, else to the session.
    """
    place = f"s/{notice.session_id}" if notice.approval_id is None else f"a/{notice.approval_id}"
    at = to_iso(notice.at)
    what = notice.what if len(notice.what) <= _LONGEST_WHAT else f"{notice.what[:_LONGEST_WHAT]}…"
    return redact_value(
        {
            "schema_version": 1,
            "id": f"{notice.session_id}/{notice.turn or 0}/{notice.occasion}/{at}",
            "event": notice.occasion.value,
            "session_id": notice.session_id,
            "turn": notice.turn,
            "agent": notice.agent,
            "what": what,
            "command": notice.command,
            "link": None if page is None else f"{page.rstrip('/')}/{place}",
            "at": at,
        }
    )

"""Owns reading what happened in a session: its events from a position on, and its audit trail."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from holdfast.clock import Instant
from holdfast.domain.approvals import Approval, ApprovalStatus
from holdfast.domain.events import Event
from holdfast.domain.phases import FINAL_PHASES
from holdfast.domain.records import record, replace
from holdfast.domain.redaction import Json
from holdfast.domain.sessions import Session, SessionChange
from holdfast.domain.turns import Turn
from holdfast.processes.machine import describe_owner
from holdfast.store.contract import Store
from holdfast.store.pages import Pace

#: events that are read at a time; one may have 32 KiB
_EVENTS = 64


class EventPosition(NamedTuple):
    """The place of one event in a session, or of the end of a turn."""

    turn: int
    attempt: int
    number: int

    @classmethod
    def end_of(cls, turn: int) -> EventPosition:
        return cls(turn, _AFTER_ALL_ATTEMPTS, 0)

    @property
    def is_end(self) -> bool:
        return self.attempt == _AFTER_ALL_ATTEMPTS


_AFTER_ALL_ATTEMPTS = 10**15
BEGINNING = EventPosition(0, 0, 0)


def events_after(
    store: Store, session_id: str, place: EventPosition, only: int | None = None
) -> Iterator[tuple[EventPosition, Event]]:
    """The events after ``place``, in order; with ``only``, those of this turn."""
    for found, what in log_after(store, session_id, place, only):
        if isinstance(what, Event):
            yield found, what


def log_after(
    store: Store, session_id: str, place: EventPosition, only: int | None = None
) -> Iterator[tuple[EventPosition, Event | Turn]]:
    """The events after ``place``, in order, and behind the events of each turn that has ended, the turn."""
    is_before_open = True
    for turn in _turns(store, session_id, max(0, place.turn - 1)):
        if only is not None and turn.seq != only:
            continue
        behind = (place.attempt, place.number) if turn.seq == place.turn else (0, 0)
        while found := store.events(turn.conversation_id, turn.seq, after=behind, limit=_EVENTS):
            for tried, event in found:
                yield EventPosition(turn.seq, tried, event.number), event
            behind = (found[-1][0], found[-1][1].number)
        # a turn that was cancelled behind an open one is told after that one
        is_before_open = is_before_open and not turn.status.is_open
        end = EventPosition.end_of(turn.seq)
        if is_before_open and place < end:
            yield end, turn


def is_over(store: Store, session_id: str, only: int | None = None) -> bool:
    """Whether no more events can come: the session is closed or, with ``only``, that turn has ended."""
    session = store.get_session(session_id)
    if only is None:
        return session.finalized_at is not None
    return not store.get_turn(session.conversation_id, only).status.is_open


def _turns(store: Store, session_id: str, after: int) -> Iterator[Turn]:
    pace = Pace()
    while found := store.turns(session_id, after=after, limit=pace.size):
        yield from found
        pace.adapt(found)
        after = found[-1].seq


# --- the audit trail: who changed a session, how and when ---

_PAGE = 500
_HOLDFAST = (
    "holdfast"  #: the author of what Holdfast itself does: an approval expires, is used or becomes void
)


#: by the verb
_DEEDS = {
    "cancel_turn": "cancelled turn {turn}",
    "edit_turn": "edited turn {turn}",
    "enqueue_turn": "put turn {turn} into the queue",
    "fork": "forked it from another session, up to turn {turn}",
    "new_generation": "began again with an empty history",
    "rename_session": "renamed it",
    "restore": "restored the agent's files",
    "retry_turn": "ran a turn again, as turn {turn}",
    "truncate": "took the turns after {turn} out of the history",
}


class AuditKind(StrEnum):
    CREATED = "created"
    PHASE = "phase"
    METADATA = "metadata"
    ERROR = "error"  #: counted by a caller, or the failure of an attempt
    ERRORS_CLEARED = "errors_cleared"
    SUMMARY = "summary"
    APPROVAL = "approval"  #: asked, approved, denied, used, voided or expired
    FINALIZED = "finalized"
    DID = "did"  #: something that changes no phase, by its verb


@record
class AuditEntry:
    at: Instant
    kind: AuditKind
    by: str | None  #: None: not recorded
    words: str  #: for a person
    data: dict[str, Json]  #: for a program
    turn: int | None = None
    key: tuple[object, ...] = ()  #: identifies the entry, whenever the trail is read


def audit_trail(store: Store, session_id: str) -> list[AuditEntry]:
    """All entries, oldest first."""
    session = store.get_session(session_id)
    now = store.now()
    entries = [
        AuditEntry(session.created_at, AuditKind.CREATED, None, session.purpose, {"purpose": session.purpose})
    ]
    number = 0
    while changes := store.trail(session.id, after=number, limit=_PAGE):
        for change in changes:
            entries += _of_change(change)
        number = changes[-1].number
    last: str | None = None
    while approvals := store.approvals(session_id=session.id, open_only=False, after=last, limit=_PAGE):
        for approval in approvals:
            entries += _of_approval(approval, now)
        last = approvals[-1].id
    entries += _failures(store, session)
    return sorted(entries, key=lambda entry: entry.at)


def _of_change(change: SessionChange) -> Iterator[AuditEntry]:
    def entry(kind: AuditKind, words: str, **data: Json) -> AuditEntry:
        return AuditEntry(change.at, kind, change.by, words, data, key=(change.number, kind))

    if change.did is not None:
        words = _DEEDS.get(change.did, change.did).format(turn=change.turn)
        yield replace(entry(AuditKind.DID, words, verb=change.did, turn=change.turn), turn=change.turn)
    if change.metadata:
        yield entry(AuditKind.METADATA, ", ".join(change.metadata), keys=list(change.metadata))
    if change.cleared_errors:
        yield entry(AuditKind.ERRORS_CLEARED, "counted from zero")
    if change.error is not None:
        yield entry(AuditKind.ERROR, change.error, message=change.error)
    if change.summary:
        yield entry(AuditKind.SUMMARY, "was given")
    if change.from_phase != change.to_phase:
        kind = AuditKind.FINALIZED if change.to_phase in FINAL_PHASES else AuditKind.PHASE
        words = f"{change.from_phase} → {change.to_phase}"
        yield entry(kind, words, from_phase=change.from_phase, to_phase=change.to_phase)


def _of_approval(approval: Approval, now: Instant) -> Iterator[AuditEntry]:
    def entry(at: Instant, what: str, by: str | None, words: str = "", **data: Json) -> AuditEntry:
        told = f"{what} {approval.id}" + (f": {words}" if words else "")
        shown: dict[str, Json] = {"what": what, "approval_id": approval.id, **data}
        return AuditEntry(at, AuditKind.APPROVAL, by, told, shown, approval.seq, (approval.id, what))

    yield entry(approval.requested_at, "asked", approval.requested_by, approval.what, question=approval.what)
    if approval.answered_at is not None:
        # an approval that became void after its answer no longer says what the answer was
        answer = "answered" if approval.status is ApprovalStatus.VOIDED else approval.status.value
        note = approval.note or ""
        yield entry(approval.answered_at, answer, approval.answered_by, note, note=approval.note)
    if approval.used_at is not None:
        yield entry(approval.used_at, "used", _HOLDFAST)
    has_expired = approval.is_expired(now) or approval.void_reason == "expired"
    if has_expired and approval.expires_at is not None:
        yield entry(approval.expires_at, "expired", _HOLDFAST)
    if approval.status is ApprovalStatus.VOIDED and approval.voided_at is not None:
        reason = approval.void_reason or ""
        yield entry(approval.voided_at, "voided", _HOLDFAST, reason, reason=approval.void_reason)


def _failures(store: Store, session: Session) -> Iterator[AuditEntry]:
    after = 0
    while found := store.turns(session.id, after=after, limit=_PAGE):
        for turn in found:
            for attempt in store.attempts(turn.conversation_id, turn.seq):
                failure = attempt.failure
                if failure is None or attempt.ended_at is None:
                    continue
                kind, message = failure.failure_class.value, failure.message
                yield AuditEntry(
                    attempt.ended_at, AuditKind.ERROR, describe_owner(attempt.owner), f"{kind}: {message}",
                    {"class": kind, "message": message, "attempt": attempt.number}, turn.seq,
                    (turn.seq, attempt.number),
                )  # fmt: skip
        after = found[-1].seq

"""Owns the figures of a workspace: what there is now, and what there ever was, counted by words of which there are few."""

from __future__ import annotations

from enum import StrEnum

from holdfast.clock import Instant
from holdfast.domain.decisions import DecisionKind, Reason
from holdfast.domain.delegations import DelegationOutcome, DelegationReason
from holdfast.domain.failures import FailureClass
from holdfast.domain.phases import Phase
from holdfast.domain.records import record
from holdfast.domain.sessions import SessionKind
from holdfast.domain.turns import AttemptStatus, TurnStatus


@record
class SessionCount:
    phase: Phase
    kind: SessionKind
    count: int
    errors: int  #: since each one's last success
    closed: int
    closed_seconds: float  #: from begin to end, of those that are closed


@record
class TurnCount:
    status: TurnStatus
    failure: FailureClass | None
    count: int


@record
class AttemptCount:
    decision: DecisionKind
    reason: Reason
    status: AttemptStatus
    count: int


@record
class DelegationCount:
    reason: DelegationReason
    outcome: DelegationOutcome | None  #: None: still under way
    count: int


@record
class Statistics:
    sessions: tuple[SessionCount, ...]
    turns: tuple[TurnCount, ...]
    attempts: tuple[AttemptCount, ...]
    delegations: tuple[DelegationCount, ...]
    oldest_queued_seconds: float  #: how long the turn could have run that could for longest
    leases: int
    orphans: int  #: leases that have expired
    open_approvals: int  #: that can still be answered, whoever asked
    late_reports: int  #: of workers that had lost their lease


class DelegationStart(StrEnum):
    """Which session a delegation begins in. Of a question that a script asked: what it was answered."""

    NEW = "new"
    RESUMED = "resumed"
    ASKED_NEW = "asked_new"
    ASKED_RESUMED = "asked_resumed"


class TotalKind(StrEnum):
    """What is added up; the ``detail`` of a total says of which sort, in words with spaces between."""

    SESSION = "session"  #: begun; its kind
    SESSION_WITH_ERROR = "session_with_error"  #: that ever had one, or failed; its kind
    CLOSED = "closed"  #: its phase and kind; the amount is seconds
    DURATION = "duration"  #: of a delegated session that was completed or failed; the number of its bucket
    TURN_DURATION = "turn_duration"  #: of an attempt that answered; the number of its bucket
    ATTEMPT = "attempt"  #: ended: decision, reason, status, and ``first``, ``next`` or ``same`` for its place
    TURN = "turn"  #: ended: status and class of failure
    LOCK_WAIT = (
        "lock_wait"  #: for a provider session that another process writes to: at ``claim`` or ``launch``
    )
    LATE_REPORT = "late_report"
    DELEGATION = "delegation"  #: see ``DelegationStart``
    DELEGATION_END = "delegation_end"  #: its outcome
    CLEANUP = "cleanup"  #: sessions that were ``abandoned`` or ``deleted`` by it, or ``removed`` by hand
    INPUT_TOKENS = "input_tokens"
    CACHED_INPUT_TOKENS = "cached_input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    COST_USD = "cost_usd"


@record
class Total:
    what: TotalKind
    agent: str  #: empty: nobody's
    provider: str  #: empty: none
    detail: str
    number: int
    amount: float  #: a sum, where there is something to add up


@record
class Totals:
    """Of whole days of UTC, also of what was deleted since."""

    first_day: Instant | None  #: the beginning of the first day with anything in it
    rows: tuple[Total, ...]

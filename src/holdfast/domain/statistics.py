"""Owns the figures of a workspace: what there is now, counted by words of which there are few."""

from __future__ import annotations

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

"""Owns the figures of one workspace: states as they are, and counters of what was added to it, whoever did."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from holdfast.domain.decisions import DecisionKind
from holdfast.domain.delegations import DelegationOutcome, DelegationReason
from holdfast.domain.failures import FailureClass
from holdfast.domain.sessions import SessionKind
from holdfast.domain.statistics import AttemptCount, Statistics
from holdfast.domain.turns import AttemptStatus, TurnStatus
from holdfast.store.contract import Store

#: counting takes a look at every table: those who ask more often get the same figures again
_COUNTED_SECONDS: Final = 5.0

#: a family without its prefix, and the values of its labels
_Series: TypeAlias = tuple[str, ...]

_COUNTERS: Final = {
    "sessions_created": ("Sessions that were begun", ("kind",)),
    "turns_ended": ("Turns that ended, and the class of failure of those that failed", ("status", "failure")),
    "attempts": (
        "Attempts that ended: what was decided for them, and what came of it",
        ("decision", "reason", "status"),
    ),
    "resume_attempts": ("Attempts to go on in a provider's own session", ()),
    "resume_successes": ("Of those, the ones in which the agent answered", ()),
    "fallbacks": ("Turns that started fresh because the provider refused its session", ()),
    "leases_lost": ("Attempts taken from a worker that was gone or did not renew its lease", ()),
    "late_reports": ("Results of workers that had lost their lease, kept as evidence", ()),
    "delegations": ("Delegations of subagents: in a new session or a resumed one, or only asked", ("start",)),
    "delegations_ended": ("Delegations that ended, and how", ("outcome",)),
}
#: there from the beginning, where all labels are known: Prometheus does not count the step to a series' first value
_AT_FIRST: Final[tuple[_Series, ...]] = (
    *((name,) for name, (_, labels) in _COUNTERS.items() if not labels),
    *(("sessions_created", kind) for kind in SessionKind),
    *(("delegations", start) for start in ("new", "resumed", "asked")),
    ("turns_ended", TurnStatus.DONE, ""),
    ("turns_ended", TurnStatus.CANCELLED, FailureClass.CANCELLED),
    *(("turns_ended", TurnStatus.FAILED, failure) for failure in FailureClass),
    *(("delegations_ended", outcome) for outcome in DelegationOutcome if outcome != DelegationOutcome.ASKED),
)
_SESSION_COUNT: Final = "session_duration_seconds_count"
_SESSION_SUM: Final = "session_duration_seconds_sum"


class StoreFigures:
    """Counters begin at nothing, with the first look. They go up by what is more than at the look before, so
    that nothing is taken back when sessions are deleted."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._lock = threading.Lock()
        self._counted: tuple[float, bytes] | None = None
        self._last: Mapping[_Series, float] | None = None
        self._grown: dict[_Series, float] = {}

    def exposition(self) -> bytes:
        with self._lock:
            if self._counted is None or time.monotonic() - self._counted[0] >= _COUNTED_SECONDS:
                text = generate_latest(self._registry)
                self._counted = (time.monotonic(), text)
            return self._counted[1]

    def collect(self) -> Iterator[Metric]:
        """Called by the registry, under the lock."""
        found = self._store.statistics()
        self._grow(_totals(found))
        yield from _states(found, self._store.bytes_used())
        for name, (words, labels) in _COUNTERS.items():
            family = CounterMetricFamily(f"holdfast_{name}", words, labels=labels)
            for values, value in self._series(name):
                family.add_metric(values, value)
            yield family
        took = SummaryMetricFamily(
            "holdfast_session_duration_seconds", "From begin to end", labels=["phase", "kind"]
        )
        for values, seconds in self._series(_SESSION_SUM):
            took.add_metric(values, int(self._grown[_SESSION_COUNT, *values]), seconds)
        yield took

    def _series(self, name: str) -> Iterator[tuple[_Series, float]]:
        return ((series[1:], value) for series, value in self._grown.items() if series[0] == name)

    def _grow(self, totals: Mapping[_Series, float]) -> None:
        last = totals if self._last is None else self._last
        for series, total in totals.items():
            more = max(0.0, total - last.get(series, 0.0))
            self._grown[series] = self._grown.get(series, 0.0) + more
        self._last = totals


def _totals(found: Statistics) -> Mapping[_Series, float]:
    """What only ever grows, but for deletions."""
    totals: dict[_Series, float] = dict.fromkeys(_AT_FIRST, 0.0)
    for series, count in (*_begun_and_closed(found), *_worked(found), *_delegated(found)):
        totals[series] = totals.get(series, 0) + count
    return totals


def _begun_and_closed(found: Statistics) -> Iterator[tuple[_Series, float]]:
    for session in found.sessions:
        yield ("sessions_created", session.kind), session.count
        if session.closed:
            yield (_SESSION_COUNT, session.phase, session.kind), session.closed
            yield (_SESSION_SUM, session.phase, session.kind), session.closed_seconds


def _worked(found: Statistics) -> Iterator[tuple[_Series, float]]:
    for turn in found.turns:
        if not turn.status.is_open:
            yield ("turns_ended", turn.status, turn.failure or ""), turn.count
    for attempt in found.attempts:
        if attempt.status is not AttemptStatus.OPEN:
            yield ("attempts", attempt.decision, attempt.reason, attempt.status), attempt.count
            for name in _meanings(attempt):
                yield (name,), attempt.count
    yield ("late_reports",), found.late_reports


def _meanings(attempt: AttemptCount) -> Iterator[str]:
    """What was put back was not tried."""
    resumes = attempt.decision in (DecisionKind.RESUME, DecisionKind.FORK)
    if resumes and attempt.status is not AttemptStatus.PUT_BACK:
        yield "resume_attempts"
        if attempt.status.has_spoken:
            yield "resume_successes"
    if attempt.status is AttemptStatus.FELL_BACK:
        yield "fallbacks"
    if attempt.status is AttemptStatus.INTERRUPTED:
        yield "leases_lost"


def _delegated(found: Statistics) -> Iterator[tuple[_Series, float]]:
    for one in found.delegations:
        if one.outcome is DelegationOutcome.ASKED:
            yield ("delegations", "asked"), one.count
            continue
        start = "resumed" if one.reason is DelegationReason.RESUMABLE else "new"
        yield ("delegations", start), one.count
        if one.outcome is not None:
            yield ("delegations_ended", one.outcome), one.count


def _states(found: Statistics, size: int) -> Iterator[Metric]:
    sessions = GaugeMetricFamily("holdfast_sessions", "Sessions there are", labels=["phase", "kind"])
    errors = GaugeMetricFamily(
        "holdfast_session_errors",
        "Errors of sessions since the last success of each",
        labels=["phase", "kind"],
    )
    for session in found.sessions:
        sessions.add_metric([session.phase, session.kind], session.count)
        errors.add_metric([session.phase, session.kind], session.errors)
    turns = GaugeMetricFamily("holdfast_turns", "Turns there are", labels=["status", "failure"])
    for turn in found.turns:
        turns.add_metric([turn.status, turn.failure or ""], turn.count)
    yield from (sessions, errors, turns)
    queued = sum(turn.count for turn in found.turns if turn.status is TurnStatus.QUEUED)
    delegated = sum(one.count for one in found.delegations if one.outcome is None)
    plain = {
        "queue_depth": ("Turns that wait for a worker", queued),
        "queue_oldest_age_seconds": (
            "How long the oldest of them has waited, from when it might run",
            found.oldest_queued_seconds,
        ),
        "approvals_waiting": ("Approvals that nobody has answered yet", found.open_approvals),
        "delegations_open": ("Delegations under way", delegated),
        "leases": ("Turns that somebody works on", found.leases),
        "orphans": ("Of those, the ones whose lease has expired", found.orphans),
        "store_bytes": ("Size of the whole store", size),
    }
    for name, (words, value) in plain.items():
        yield GaugeMetricFamily(f"holdfast_{name}", words, value)

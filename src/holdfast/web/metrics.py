"""Owns the figures for Prometheus: of one workspace, from its store, and of this process. No label is an id."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Final, TypeAlias

from fastapi import APIRouter
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from holdfast.clock import after, seconds_between
from holdfast.domain.decisions import DecisionKind
from holdfast.domain.delegations import DelegationOutcome
from holdfast.domain.failures import FailureClass
from holdfast.domain.sessions import SessionKind
from holdfast.domain.statistics import BOUNDS, DelegationStart, Statistics, Total, TotalKind, Totals
from holdfast.domain.turns import AttemptCause, AttemptStatus, Claim, ClaimRequest, TurnStatus
from holdfast.store import counters
from holdfast.store.contract import Store
from holdfast.web.access import Guarded
from holdfast.web.serving import Served

#: counting reads every table. Figures are kept for so many seconds, and for so many times as long as counting took:
#: however large the store is, counting takes a twentieth of the time at most
_COUNTED_SECONDS: Final = 5.0
_PART: Final = 20

#: a family without its prefix, and the values of its labels
_Series: TypeAlias = tuple[str, ...]

_COUNTERS: Final = {
    "sessions_created": ("Sessions that were begun", ("kind",)),
    "agent_sessions_created": ("Sessions that were begun, by agent", ("agent",)),
    "turns_ended": ("Turns that ended, and the class of failure of those that failed", ("status", "failure")),
    "attempts": (
        "Attempts that ended: what was decided for them, and what came of it",
        ("decision", "reason", "status"),
    ),
    "continuations": (
        "Attempts that had something to continue: what was decided for them",
        ("decision", "reason"),
    ),
    "resume_attempts": ("Attempts to continue a provider's own session", ()),
    "resume_successes": ("Of those, the ones in which the agent answered", ()),
    "fallbacks": ("Turns that started fresh because the provider refused its session", ()),
    "leases_lost": ("Attempts taken from a worker that was gone or did not renew its lease", ()),
    "sessions_with_errors": ("Sessions that ever had an error, or failed", ()),
    "cleanups": ("Sessions that cleanup abandoned or deleted, or that were removed manually", ("action",)),
    "input_tokens": ("Tokens that agents were sent, cached ones included", ()),
    "cached_input_tokens": ("Of those, the ones that were cached", ()),
    "output_tokens": ("Tokens that agents answered with", ()),
    "cost_usd": ("What agents said that it cost, in US dollars", ()),
    "late_reports": ("Results of workers that had lost their lease, kept as evidence", ()),
    "delegations": (
        "Delegations of subagents, and questions of scripts: a new session or a resumed one",
        ("start",),
    ),
    "delegations_ended": ("Delegations that ended, and how", ("outcome",)),
}
#: series that begin at 0, where all labels are known: Prometheus does not count the step to a series' first value
_AT_FIRST: Final[tuple[_Series, ...]] = (
    *((name,) for name, (_, labels) in _COUNTERS.items() if not labels),
    *(("sessions_created", kind) for kind in SessionKind),
    *(("cleanups", action) for action in ("abandoned", "deleted", "removed")),
    *(("delegations", start) for start in DelegationStart),
    ("turns_ended", TurnStatus.DONE, ""),
    ("turns_ended", TurnStatus.CANCELLED, FailureClass.CANCELLED),
    *(("turns_ended", TurnStatus.FAILED, failure) for failure in FailureClass),
    *(("delegations_ended", outcome) for outcome in DelegationOutcome if outcome != DelegationOutcome.ASKED),
)
_SUMS: Final = {
    TotalKind.INPUT_TOKENS,
    TotalKind.CACHED_INPUT_TOKENS,
    TotalKind.OUTPUT_TOKENS,
    TotalKind.COST_USD,
}
_NAMES: Final = {
    TotalKind.SESSION: "sessions_created",
    TotalKind.SESSION_WITH_ERROR: "sessions_with_errors",
    TotalKind.TURN: "turns_ended",
    TotalKind.ATTEMPT: "attempts",
    TotalKind.LATE_REPORT: "late_reports",
    TotalKind.DELEGATION: "delegations",
    TotalKind.DELEGATION_END: "delegations_ended",
    TotalKind.CLEANUP: "cleanups",
    **{kind: kind.value for kind in _SUMS},
}
_HISTOGRAMS: Final = {
    TotalKind.DURATION: ("delegated_duration", "From begin to end, of delegated sessions with an outcome"),
    TotalKind.TURN_DURATION: ("turn_duration", "From claim to end, of attempts that answered"),
}
#: the bounds of durations that are shown; the targets are among them
_SHOWN_BOUNDS: Final = range(0, len(BOUNDS), 5)


class StoreFigures:
    """Reads all figures from the store: they are the same on every server, and after a restart."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._lock = threading.Lock()
        self._counted: tuple[float, bytes] | None = None  #: until when they are kept, and the figures

    def exposition(self) -> bytes:
        with self._lock:
            began = time.monotonic()
            if self._counted is None or began >= self._counted[0]:
                text = generate_latest(self._registry)
                now = time.monotonic()
                self._counted = (now + max(_COUNTED_SECONDS, _PART * (now - began)), text)
            return self._counted[1]

    def collect(self) -> Iterator[Metric]:
        """Called by the registry, under the lock."""
        totals = self._store.totals()
        yield from _states(
            self._store.statistics(), self._store.bytes_used(), self._store.vault_figures().all_bytes
        )
        counted: dict[_Series, float] = dict.fromkeys(_AT_FIRST, 0.0)
        for total in totals.rows:
            for series, value in _series(total):
                counted[series] = counted.get(series, 0.0) + value
        for name, (words, labels) in _COUNTERS.items():
            family = CounterMetricFamily(f"holdfast_{name}", words, labels=labels)
            for series, value in counted.items():
                if series[0] == name:
                    family.add_metric(series[1:], value)
            yield family
        yield _closed(totals)
        for kind, (name, words) in _HISTOGRAMS.items():
            yield _durations(totals, kind, f"holdfast_{name}_seconds", words)
        yield _lock_waits(totals)


def _series(total: Total) -> Iterator[tuple[_Series, float]]:
    """The counters that a total is part of; their labels are the first words of its detail."""
    name = _NAMES.get(total.what)
    if name is None:
        return  # has a family of its own
    _, labels = _COUNTERS[name]
    words = total.detail.split(" ")
    yield (name, *words[: len(labels)]), total.amount if total.what in _SUMS else total.number
    if total.what is TotalKind.SESSION:
        yield ("agent_sessions_created", total.agent), total.number
    if total.what is TotalKind.ATTEMPT:
        decision, reason, status, place = words
        if place == "next":
            yield ("continuations", decision, reason), total.number
        for meaning in _meanings(decision, status):
            yield (meaning,), total.number


def _meanings(decision: str, status: str) -> Iterator[str]:
    """An attempt that was put back does not count as tried."""
    if decision in (DecisionKind.RESUME, DecisionKind.FORK) and status != AttemptStatus.PUT_BACK:
        yield "resume_attempts"
        if AttemptStatus(status).has_spoken:
            yield "resume_successes"
    if status == AttemptStatus.FELL_BACK:
        yield "fallbacks"
    if status == AttemptStatus.INTERRUPTED:
        yield "leases_lost"


def _closed(totals: Totals) -> Metric:
    took = SummaryMetricFamily(
        "holdfast_session_duration_seconds", "From begin to end", labels=["phase", "kind"]
    )
    found: dict[tuple[str, ...], tuple[int, float]] = {}
    for total in totals.rows:
        if total.what is TotalKind.CLOSED:
            key = tuple(total.detail.split(" "))
            number, seconds = found.get(key, (0, 0.0))
            found[key] = number + total.number, seconds + total.amount
    for key, (number, seconds) in found.items():
        took.add_metric(key, number, seconds)
    return took


def _durations(totals: Totals, kind: TotalKind, name: str, words: str) -> Metric:
    """The same durations from which ``holdfast stats`` takes its median and p95."""
    rows = [total for total in totals.rows if total.what is kind]
    buckets = [
        (str(round(BOUNDS[shown], 3)), sum(row.number for row in rows if int(row.detail) <= shown))
        for shown in _SHOWN_BOUNDS
    ]
    family = HistogramMetricFamily(name, words)
    whole = sum(row.number for row in rows)
    family.add_metric([], [*buckets, ("+Inf", whole)], sum(row.amount for row in rows))
    return family


def _lock_waits(totals: Totals) -> Metric:
    waits = CounterMetricFamily(
        "holdfast_lock_waits",
        "Turns held up by another writer of the provider's session, and waits for the database",
        labels=["lock"],
    )
    in_store = sum(total.number for total in totals.rows if total.what is TotalKind.LOCK_WAIT)
    waits.add_metric(["provider_session"], in_store)
    for (
        lock,
        number,
    ) in counters.waits().items():  # of this process alone: SQLite reports waits to nobody else
        waits.add_metric([lock], number)
    return waits


def _states(found: Statistics, size: int, vault: int) -> Iterator[Metric]:
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
        "approvals_waiting": ("Approvals that are not answered yet", found.open_approvals),
        "delegations_open": ("Delegations under way", delegated),
        "leases": ("Turns that somebody works on", found.leases),
        "orphans": ("Of those, the ones whose lease has expired", found.orphans),
        "store_bytes": ("Size of the whole store", size),
        "vault_bytes": ("Of that, what the vault's chunks take", vault),
    }
    for name, (words, value) in plain.items():
        yield GaugeMetricFamily(f"holdfast_{name}", words, value)


router = APIRouter(tags=["metrics"], route_class=Guarded)

_MOST_WORKSPACES: Final = 1000
_WAITS: Final = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 60, 300, 1800, 3600)

# else each series has a second one, with the time when it was first seen
disable_created_metrics()  # type: ignore[no-untyped-call] # prometheus_client does not say


class Meters:
    """Counts what this process has seen. Labels are verbs, statuses and codes: a limited number."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "holdfast_requests", "Requests that were answered", ["verb", "status"], registry=registry
        )
        self._seconds = Histogram(
            "holdfast_request_duration_seconds", "Until a request was answered", ["verb"], registry=registry
        )
        self._refusals = Counter(
            "holdfast_refusals", "Requests that were answered with a problem", ["code"], registry=registry
        )
        self._claims = Histogram(
            "holdfast_claim_latency_seconds",
            "From when a turn could be claimed to its first claim",
            buckets=_WAITS,
            registry=registry,
        )
        registry.register(_Tallied())
        self._workspaces: dict[Store, StoreFigures] = {}

    def answered(self, verb: str, status: int, seconds: float, code: str | None) -> None:
        self._requests.labels(verb, str(status)).inc()
        self._seconds.labels(verb).observe(seconds)
        if code is not None:
            self._refusals.labels(code).inc()

    def claimed(self, request: object, claim: object) -> None:
        if not isinstance(request, ClaimRequest) or not isinstance(claim, Claim):
            return
        if claim.cause is AttemptCause.FIRST:
            at = after(claim.lease.expires_at, -request.lease_seconds)
            ready = max(claim.turn.created_at, claim.turn.not_before or claim.turn.created_at)
            self._claims.observe(max(0.0, seconds_between(ready, at)))

    def exposition(self, store: Store) -> bytes:
        if store not in self._workspaces and len(self._workspaces) >= _MOST_WORKSPACES:
            self._workspaces.clear()
        figures = self._workspaces.setdefault(store, StoreFigures(store))
        return generate_latest(self._registry) + figures.exposition()


class _Tallied:
    """What the store counts in this process."""

    def collect(self) -> Iterator[Metric]:
        decisions = CounterMetricFamily(
            "holdfast_decisions",
            "Decisions at claims: how a turn may continue, and why",
            labels=["decision", "reason"],
        )
        for words, number in counters.decisions().items():
            decisions.add_metric(words, number)
        yield decisions


@router.get(
    "/metrics",
    name="statistics",
    response_class=Response,
    responses={200: {"description": "Figures", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(request: Request, holdfast: Served) -> Response:
    """For Prometheus: of the workspace, and of this process."""
    meters: Meters = request.app.state.meters
    return Response(meters.exposition(holdfast.store), media_type=CONTENT_TYPE_LATEST)

"""Owns the figures for Prometheus: what this process has seen, and what the store counts. No label is an id."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from holdfast.clock import after, seconds_between
from holdfast.domain.statistics import Statistics
from holdfast.domain.turns import AttemptCause, Claim, ClaimRequest, TurnStatus
from holdfast.store.contract import Store
from holdfast.web.access import Guarded
from holdfast.web.serving import Served

router = APIRouter(tags=["metrics"], route_class=Guarded)

#: counting takes a look at every table: those who ask more often get the same figures again
_COUNTED_SECONDS: Final = 5.0
_MOST_WORKSPACES: Final = 1000
_WAITS: Final = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 60, 300, 1800, 3600)


class Meters:
    """What this process has seen. Labels are verbs, statuses and codes: there are as many as the code names."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "holdfast_requests", "Requests that were answered", ["verb", "status"], registry=registry
        )
        self._seconds = Histogram(
            "holdfast_request_seconds", "Until a request was answered", ["verb"], registry=registry
        )
        self._refusals = Counter(
            "holdfast_refusals",
            "Requests that were refused; busy: had to wait for a lock; lease_lost: came too late",
            ["code"],
            registry=registry,
        )
        self._claims = Histogram(
            "holdfast_claim_latency_seconds",
            "From when a turn could be claimed to its first claim",
            buckets=_WAITS,
            registry=registry,
        )
        self._counted: dict[Store, tuple[float, bytes]] = {}

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
        return generate_latest(self._registry) + self._of_store(store)

    def _of_store(self, store: Store) -> bytes:
        at, text = self._counted.get(store, (-_COUNTED_SECONDS, b""))
        if time.monotonic() - at >= _COUNTED_SECONDS:
            registry = CollectorRegistry()
            registry.register(_Counted(store.statistics(), store.bytes_used()))
            text = generate_latest(registry)
            if len(self._counted) >= _MOST_WORKSPACES:
                self._counted.clear()
            self._counted[store] = (time.monotonic(), text)
        return text


class _Counted:
    """The figures of one workspace, as of now: they fall when sessions are deleted."""

    def __init__(self, found: Statistics, size: int) -> None:
        self._found = found
        self._size = size

    def collect(self) -> Iterator[Metric]:
        yield from self._sessions()
        yield from self._work()
        found = self._found
        waiting = {status: self._turns(status) for status in (TurnStatus.QUEUED, TurnStatus.WAITING)}
        plain = {
            "queue_depth": ("Turns that wait for a worker", waiting[TurnStatus.QUEUED]),
            "queue_oldest_seconds": ("How long the oldest of them has waited", found.oldest_queued_seconds),
            "approvals_waiting": ("Turns that wait for a person", waiting[TurnStatus.WAITING]),
            "leases": ("Turns that somebody works on", found.leases),
            "orphans": ("Of those, the ones whose lease has expired", found.orphans),
            "late_reports": ("Results of workers that had lost their lease", found.late_reports),
            "store_bytes": ("What the whole store takes", self._size),
        }
        for name, (words, value) in plain.items():
            yield GaugeMetricFamily(f"holdfast_{name}", words, value)

    def _sessions(self) -> Iterator[Metric]:
        labels = ["phase", "kind"]
        sessions = GaugeMetricFamily("holdfast_sessions", "Sessions", labels=labels)
        errors = GaugeMetricFamily("holdfast_session_errors", "Since the last success", labels=labels)
        took = SummaryMetricFamily("holdfast_session_seconds", "From begin to end", labels=labels)
        for one in self._found.sessions:
            words = [one.phase.value, one.kind.value]
            sessions.add_metric(words, one.count)
            errors.add_metric(words, one.errors)
            if one.closed:
                took.add_metric(words, one.closed, one.closed_seconds)
        yield from (sessions, errors, took)

    def _work(self) -> Iterator[Metric]:
        turns = GaugeMetricFamily("holdfast_turns", "Turns", labels=["status", "failure"])
        for turn in self._found.turns:
            turns.add_metric([turn.status.value, turn.failure.value if turn.failure else ""], turn.count)
        attempts = GaugeMetricFamily(
            "holdfast_attempts",
            "What was decided, and what came of it",
            labels=["decision", "reason", "status"],
        )
        for one in self._found.attempts:
            attempts.add_metric([one.decision.value, one.reason.value, one.status.value], one.count)
        yield from (turns, attempts)

    def _turns(self, status: TurnStatus) -> int:
        return sum(turn.count for turn in self._found.turns if turn.status is status)


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

"""Owns the figures for Prometheus of what this process has seen, and the page with all of them. No label is an id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fastapi import APIRouter
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from holdfast.clock import after, seconds_between
from holdfast.domain.turns import AttemptCause, Claim, ClaimRequest
from holdfast.store import tallies
from holdfast.store.contract import Store
from holdfast.web.access import Guarded
from holdfast.web.serving import Served
from holdfast.web.store_figures import StoreFigures

router = APIRouter(tags=["metrics"], route_class=Guarded)

_MOST_WORKSPACES: Final = 1000
_WAITS: Final = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 60, 300, 1800, 3600)

# a second series for each one, of when it was first seen
disable_created_metrics()  # type: ignore[no-untyped-call] # prometheus_client does not say


class Meters:
    """What this process has seen. Labels are verbs, statuses and codes: there are as many as the code names."""

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
            "Decisions at claims: how a turn may go on, and why",
            labels=["decision", "reason"],
        )
        for words, number in tallies.decisions().items():
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

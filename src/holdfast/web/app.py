"""Owns the application: which routes there are, and what every request passes first."""

from __future__ import annotations

from functools import cache
from typing import Any

from anyio import CapacityLimiter
from fastapi import FastAPI

from holdfast import __version__
from holdfast.web import (
    approvals,
    events,
    health,
    hooks,
    metrics,
    queue_news,
    sessions,
    store_calls,
    turns,
)
from holdfast.web.callers import Callers
from holdfast.web.door import Door
from holdfast.web.problems import ANSWERS, SCHEMA, answer_with_problems
from holdfast.web.rates import Rates
from holdfast.web.schemas import Schemas
from holdfast.web.serving import Workspaces
from holdfast.web.watching import Watch

_VERSION = "/v1"


def create_app(
    workspaces: Workspaces, callers: Callers, rates: Rates, public_origins: frozenset[str] = frozenset()
) -> FastAPI:
    app = FastAPI(
        title="Holdfast",
        version=__version__,
        summary="Durable sessions for coding agents",
        responses=ANSWERS,
        generate_unique_id_function=lambda route: f"{route.tags[0]}.{route.name}",
    )
    app.state.workspaces = workspaces
    app.state.callers = callers
    app.state.store_threads = CapacityLimiter(store_calls.MOST_CALLS)
    app.state.streams = events.Streams()
    app.state.queues = queue_news.Queues()
    app.state.meters = meters = metrics.Meters()
    app.add_middleware(Door, callers=callers, rates=rates, public_origins=public_origins)
    app.add_middleware(Watch, meters=meters)
    answer_with_problems(app)
    # first, as routes are looked through in their order; described below, by hand
    app.add_route(f"{_VERSION}/store/{{verb}}", store_calls.call, methods=["POST"], include_in_schema=False)
    app.include_router(health.router)
    app.include_router(health.guarded)
    app.include_router(metrics.router)
    for routes in (sessions, turns, approvals, events, queue_news, hooks):
        app.include_router(routes.router, prefix=_VERSION)
    _describe(app)
    return app


def _describe(app: FastAPI) -> None:
    """The framework's document, completed by the verbs of the Store contract."""
    generate = app.openapi

    @cache
    def described() -> dict[str, Any]:
        document, schemas = generate(), Schemas()
        for path, item in store_calls.described(schemas).items():
            document["paths"][_VERSION + path] = item
        parts = document.setdefault("components", {})
        parts["schemas"] = {**parts.get("schemas", {}), **schemas.components, "Problem": SCHEMA}
        parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
        return document

    app.openapi = described  # type: ignore[method-assign]

"""Owns the application: which routes there are, and what every request passes first."""

from __future__ import annotations

from fastapi import FastAPI

from holdfast import __version__
from holdfast.web import health, hooks, store_calls
from holdfast.web.door import Door
from holdfast.web.problems import answer_with_problems
from holdfast.web.serving import Workspaces


def create_app(workspaces: Workspaces) -> FastAPI:
    app = FastAPI(title="Holdfast", version=__version__, summary="Durable sessions for coding agents")
    app.state.workspaces = workspaces
    app.add_middleware(Door)
    answer_with_problems(app)
    app.include_router(health.router)
    app.include_router(hooks.router, prefix="/v1")
    app.include_router(store_calls.router, prefix="/v1")
    return app

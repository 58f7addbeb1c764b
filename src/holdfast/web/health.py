"""Owns what a supervisor asks: is the server alive, and can it work."""

from __future__ import annotations

from fastapi import APIRouter, Request

from holdfast.domain.sessions import SessionFilter
from holdfast.web.access import Guarded
from holdfast.web.serving import Served

router = APIRouter(tags=["health"])
guarded = APIRouter(tags=["health"], route_class=Guarded)


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", openapi_extra={"security": []})
def healthz(request: Request) -> dict[str, str]:
    """The server answers."""
    request.state.verb = "healthz"
    return {"status": "ok"}


@guarded.get("/readyz")
def readyz(holdfast: Served) -> dict[str, str]:
    """The store answers too."""
    holdfast.store.list_sessions(SessionFilter(), 1)
    return {"status": "ok"}

"""Owns how errors leave the server: one problem document each (RFC 9457), with the code of the error tree."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from holdfast.errors import (
    AmbiguousId,
    Busy,
    ConfigError,
    Conflict,
    HoldfastError,
    InvalidInput,
    LeaseLost,
    MissingBinary,
    NotFound,
    Refused,
    StoreError,
    StoreUnavailable,
)

log = logging.getLogger("holdfast.web")

MEDIA_TYPE: Final = "application/problem+json"

#: the first class that fits; what is not listed is the server's own fault
_STATUS: Final = (
    (InvalidInput, HTTPStatus.UNPROCESSABLE_ENTITY),
    (NotFound, HTTPStatus.NOT_FOUND),
    (AmbiguousId, HTTPStatus.CONFLICT),
    (Conflict, HTTPStatus.CONFLICT),
    (Refused, HTTPStatus.CONFLICT),
    (LeaseLost, HTTPStatus.CONFLICT),
    (Busy, HTTPStatus.CONFLICT),
    (StoreUnavailable, HTTPStatus.SERVICE_UNAVAILABLE),
)
#: about this machine, which is nobody else's business: the log has the rest
_KEPT_BACK: Final = (StoreError, ConfigError, MissingBinary)


def status_of(error: HoldfastError) -> HTTPStatus:
    return next(
        (status for kind, status in _STATUS if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR
    )


def problem(status: HTTPStatus, code: str, detail: str, details: object = None) -> JSONResponse:
    body = {"type": "about:blank", "title": status.phrase, "status": status, "code": code, "detail": detail}
    if details:
        body["details"] = details
    return JSONResponse(body, status_code=status, media_type=MEDIA_TYPE)


def answer_with_problems(app: FastAPI) -> None:
    app.add_exception_handler(HoldfastError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ClientDisconnect, _hung_up)
    app.add_exception_handler(Exception, _unexpected)


async def _ours(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HoldfastError)
    if isinstance(error, _KEPT_BACK):
        log.error("%s %s: %s", request.method, request.url.path, error.message)
        return problem(status_of(error), error.code, "the server's log says more")
    return problem(status_of(error), error.code, error.message, error.details)


async def _invalid(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001 - the framework's signature
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, InvalidInput.code, f"{where}: {first['msg']}")


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    answer = problem(status, status.phrase.lower().replace(" ", "_"), f"{request.method} {request.url.path}")
    answer.headers.update(error.headers or {})
    return answer


async def _hung_up(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001 - the framework's signature
    """Nobody reads the answer; without one the framework would log an error of ours."""
    return problem(HTTPStatus.BAD_REQUEST, InvalidInput.code, "the request is not complete")


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s", request.method, request.url.path, exc_info=error)
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", "the server's log says more")

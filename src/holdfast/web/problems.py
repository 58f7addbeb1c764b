"""Owns errors as answers: each is a problem document (RFC 9457) with its code from the error tree."""

from __future__ import annotations

import json
import logging
import traceback
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from holdfast.domain.redaction import Json
from holdfast.errors import (
    AmbiguousId,
    Busy,
    ConfigError,
    Conflict,
    Forbidden,
    HoldfastError,
    InvalidInput,
    LeaseLost,
    MissingBinary,
    NotFound,
    Refused,
    StoreError,
    StoreUnavailable,
    TooMany,
    Unauthenticated,
    UnreadableSession,
)
from holdfast.store.wire_errors import encode_error

log = logging.getLogger("holdfast.web")

MEDIA_TYPE: Final = "application/problem+json"

#: the first class that fits counts; an error that is not listed is the server's own fault (500)
_STATUS: Final = (
    (InvalidInput, HTTPStatus.UNPROCESSABLE_ENTITY),
    (NotFound, HTTPStatus.NOT_FOUND),
    (AmbiguousId, HTTPStatus.CONFLICT),
    (Conflict, HTTPStatus.CONFLICT),
    (Refused, HTTPStatus.CONFLICT),
    (LeaseLost, HTTPStatus.CONFLICT),
    (Busy, HTTPStatus.CONFLICT),
    (Unauthenticated, HTTPStatus.UNAUTHORIZED),
    (Forbidden, HTTPStatus.FORBIDDEN),
    (TooMany, HTTPStatus.TOO_MANY_REQUESTS),
    (StoreUnavailable, HTTPStatus.SERVICE_UNAVAILABLE),
)
_HERE: Final = "the server's store"
_MORE: Final = "the server's log says more"

#: the document, and the statuses that it may come with
SCHEMA: Final = {
    "type": "object",
    "description": "What went wrong (RFC 9457); code is one of Holdfast's reason codes.",
    "properties": {
        "type": {"const": "about:blank"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string"},
        "detail": {"type": "string"},
        "details": {"type": "object"},
        "fields": {"type": "object"},
    },
    "required": ["type", "title", "status", "code", "detail"],
    "additionalProperties": False,
}
ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    status: {
        "description": HTTPStatus(status).phrase,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for status in (400, 401, 403, 404, 408, 409, 413, 415, 421, 422, 429, 500, 503)
}


class Problem(JSONResponse):
    """In ASCII: a problem may quote text that is not Unicode. Its code goes into the log and the figures."""

    def __init__(self, status: HTTPStatus, content: dict[str, Json]) -> None:
        self._code = content["code"]
        body = {"type": "about:blank", "title": status.phrase, "status": status.value, **content}
        super().__init__(body, status_code=status, media_type=MEDIA_TYPE)

    def render(self, content: Any) -> bytes:
        return json.dumps(content).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["code"] = self._code
        await super().__call__(scope, receive, send)


def answer_to(error: HoldfastError) -> Problem:
    status = next(
        (status for kind, status in _STATUS if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR
    )
    if isinstance(error, StoreError | ConfigError | MissingBinary):
        log.error("%s", error.message)
        error = _without_places(error)
    answer = Problem(status, encode_error(error))
    if status is HTTPStatus.UNAUTHORIZED:
        answer.headers["www-authenticate"] = "Bearer"
    return answer


def problem(status: HTTPStatus, code: str, detail: str) -> Problem:
    return Problem(status, {"code": code, "detail": detail})


def answer_with_problems(app: FastAPI) -> None:
    app.add_exception_handler(HoldfastError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ClientDisconnect, _hung_up)


def _without_places(error: StoreError | ConfigError | MissingBinary) -> HoldfastError:
    """The same kind of error without paths and addresses of this machine, which callers must not see."""
    if isinstance(error, UnreadableSession):
        return UnreadableSession(_HERE, error.session_id, _MORE)
    if isinstance(error, StoreUnavailable):
        return type(error)(_HERE, f"cannot be used now; {_MORE}")
    return type(error)(_HERE, _MORE)


async def _ours(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001 - the framework's signature
    assert isinstance(error, HoldfastError)
    return answer_to(error)


async def _invalid(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001 - the framework's signature
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part)[:40] for part in first["loc"])
    return answer_to(InvalidInput(where, first["msg"]))


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    answer = problem(status, status.phrase.lower().replace(" ", "_"), f"{request.method} {request.url.path}")
    answer.headers.update(error.headers or {})
    return answer


async def _hung_up(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001 - the framework's signature
    """The caller has gone. Without an answer, the framework would log an error of the server."""
    return problem(HTTPStatus.BAD_REQUEST, InvalidInput.code, "the request is not complete")


def unexpected(verb: str, error: Exception) -> Problem:
    """Logs where the error happened, without its message: that may quote what the caller sent."""
    where = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s: %s\n%s", verb, type(error).__name__, where.rstrip())
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", _MORE)

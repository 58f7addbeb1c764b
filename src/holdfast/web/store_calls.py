"""Owns the Store contract as HTTP calls: what ``HOLDFAST_URL=http://…`` talks to."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from starlette.responses import Response

from holdfast.domain.ids import check_id
from holdfast.domain.redaction import Json
from holdfast.errors import HoldfastError, InvalidInput, NotFound
from holdfast.store.contract import Store
from holdfast.store.http_store import KEY_HEADER
from holdfast.store.sql.calls import Call
from holdfast.store.sql_store import SqlStore
from holdfast.store.verbs import HAPPENS_AGAIN, Verb, verbs
from holdfast.store.wire_errors import encode_error
from holdfast.web.problems import status_of
from holdfast.web.serving import Served

router = APIRouter(tags=["store"])

_JSON: Final = "application/json"


@router.post("/store/{verb}")
async def call(verb: str, request: Request, holdfast: Served) -> Response:
    """One verb of the Store contract: its arguments as an object, its answer as it is."""
    body = await request.body()
    key = request.headers.get(KEY_HEADER)
    status, answer = await run_in_threadpool(_answer, holdfast.store, verb, body, key)
    return Response(json.dumps(answer), status, media_type=_JSON)


def _answer(store: Store, name: str, body: bytes, key: str | None) -> tuple[HTTPStatus, Json]:
    try:
        verb = verbs().get(name)
        if verb is None:
            raise NotFound("verb", name[:40])
        return HTTPStatus.OK, _run(store, verb, body, key)
    except HoldfastError as error:
        return status_of(error), {"error": encode_error(error)}


def _run(store: Store, verb: Verb, body: bytes, key: str | None) -> Json:
    try:
        call = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise InvalidInput(verb.name, "the body is not JSON") from exc
    arguments = verb.decode_call(call)
    if key is not None and verb.name in HAPPENS_AGAIN and isinstance(store, SqlStore):
        store = store.once(Call(check_id(KEY_HEADER, key), verb.answer))
    return verb.answer.encode(getattr(store, verb.name)(**arguments))

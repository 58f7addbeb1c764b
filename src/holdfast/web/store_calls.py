"""Owns the Store contract as HTTP calls: what ``HOLDFAST_URL=http://…`` talks to, a route for each verb."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final, NoReturn, cast

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from holdfast.domain.approvals import Answer, check_note
from holdfast.domain.ids import MAX_ID
from holdfast.domain.inputs import check_text
from holdfast.domain.pointers import Pointer, Rights
from holdfast.domain.sessions import NewSession, check_new_session
from holdfast.domain.turns import NewTurn
from holdfast.engine.turn_requests import check_rights, check_turn
from holdfast.errors import HoldfastError, InvalidInput, NotFound
from holdfast.providers.registry import get_provider, is_provider
from holdfast.store.contract import KeyedCall, Store
from holdfast.store.verbs import CONTRACT, CONTRACT_HEADER, KEY_HEADER, WORKSPACE_HEADER, Verb, verbs
from holdfast.store.wire import MAX_WORD
from holdfast.web.access import caller_of, check_caller, confined
from holdfast.web.access_log import about
from holdfast.web.idempotency import once
from holdfast.web.problems import ANSWERS
from holdfast.web.schemas import Schemas
from holdfast.web.serving import served, signed

log = logging.getLogger("holdfast.web")

_JSON: Final = "application/json"
#: as OpenAPI has it
_CONTRACT_PARAMETER: Final = {
    "name": CONTRACT_HEADER,
    "in": "header",
    "required": True,
    "schema": {"type": "string", "enum": [CONTRACT]},
}
#: characters of a long answer that are read, and sent, before the next ones are read
_PIECE: Final = 256 * 1024
#: characters that are handed to the connection at a time
_SLICE: Final = 64 * 1024
#: the most rows that one call may ask for
MAX_PAGE: Final = 10_000
#: arguments that are texts; other strings are words, such as ids
_TEXTS: Final = frozenset({"prompt", "response", "summary", "why"})
#: calls of the store that may wait for it at the same time; more would only wait for a connection to the database
MOST_CALLS: Final = 40


async def call(request: Request) -> Response:
    """A plain Starlette route: workers call it all day, and FastAPI's own handling would add to every call."""
    verb = request.path_params["verb"]
    found = verbs().get(verb)
    if found is not None:
        request.state.verb = verb
    check_caller(request, verb)
    if found is None:
        raise NotFound("verb", verb[:40])
    holdfast = served(request)
    if found.facts.begins_work and request.headers.get(CONTRACT_HEADER) != CONTRACT:
        problem = f"must be {CONTRACT}: update Holdfast, so that this machine has the version of the server"
        raise InvalidInput(CONTRACT_HEADER, problem)
    holdfast = signed(request, holdfast) if found.facts.repeatable else await once(request, holdfast)
    response = await _called(found, confined(caller_of(request), holdfast).store, request)
    response.headers[CONTRACT_HEADER] = CONTRACT
    return response


def described(schemas: Schemas) -> dict[str, Any]:
    """The paths of all verbs, as OpenAPI has them."""
    return {f"/store/{verb.name}": {"post": _operation(verb, schemas)} for verb in verbs().values()}


def _operation(verb: Verb, schemas: Schemas) -> dict[str, Any]:
    headers = [WORKSPACE_HEADER, *([] if verb.facts.repeatable else [KEY_HEADER])]
    return {
        "tags": ["store"],
        "operationId": f"store.{verb.name}",
        "description": verb.words,
        "parameters": [
            {"name": name, "in": "header", "schema": {"type": "string", "maxLength": MAX_ID}}
            for name in headers
        ]
        + ([_CONTRACT_PARAMETER] if verb.facts.begins_work else []),
        "requestBody": {**_content(schemas.of_call(verb)), "required": True},
        "responses": {
            "200": {"description": "Its answer", **_content(schemas.of_answer(verb))},
            **{str(status): answer for status, answer in ANSWERS.items()},
        },
    }


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {_JSON: {"schema": schema}}}


async def _called(verb: Verb, store: Store, request: Request) -> Response:
    body = await request.body()
    threads: CapacityLimiter = request.app.state.store_threads
    answer = await run_sync(_answer, verb, store, body, request, limiter=threads)
    if isinstance(answer, str):
        return Response(answer, media_type=_JSON)
    return _LongResponse(_sent(answer, threads), media_type=_JSON)


class _LongResponse(StreamingResponse):
    """If the store fails after the answer has begun, the body breaks off, and the reader sees that it is not whole."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except HoldfastError as exc:
            log.warning("a long answer breaks off: %s", exc)


class _Long:
    """An answer whose beginning was read; the rest is read after the beginning was sent."""

    def __init__(self, begun: deque[list[str]], rest: Iterator[list[str]]) -> None:
        self.begun = begun
        self.rest = rest


async def _sent(answer: _Long, threads: CapacityLimiter) -> AsyncIterator[str]:
    while True:
        begun = answer.begun
        piece = begun.popleft() if begun else await run_sync(next, answer.rest, None, limiter=threads)
        if piece is None:
            return
        for text in piece:
            for start in range(0, len(text), _SLICE):
                yield text[start : start + _SLICE]


def _answer(verb: Verb, store: Store, body: bytes, request: Request) -> str | _Long:
    arguments = verb.decode_call(_read(verb, body))
    check_arguments(store, verb.name, arguments)
    caller = caller_of(request)
    arguments = {
        name: caller.sign(value) if isinstance(value, Answer) else value for name, value in arguments.items()
    }
    request.state.about = about(arguments, None)
    try:
        if verb.facts.in_parts:
            pieces = _pieces(verb, store.in_parts(verb.name, arguments))
            first, second = next(pieces), next(pieces, None)
            return "".join(first) if second is None else _Long(deque((first, second)), pieces)
        answer = getattr(store, verb.name)(**arguments)
        request.state.about = about(arguments, answer)
        request.app.state.meters.claimed(arguments.get("request"), answer)
        call: KeyedCall | None = getattr(request.state, "call", None)
        # a call that happens once was encoded for the store, which keeps the text
        return json.dumps(verb.answer.encode(answer)) if call is None else call.text or "null"
    except RecursionError as exc:
        raise InvalidInput(verb.name, "is nested too deeply") from exc
    except OverflowError as exc:
        raise InvalidInput(verb.name, "holds a number that is too large") from exc


def _pieces(verb: Verb, found: Iterator[tuple[Any, ...]]) -> Iterator[list[str]]:
    """The JSON of a list whose items come in parts: texts to be sent one after the other."""
    piece, size, between = ["["], 0, ""
    for items in found:
        for item in cast(list[Any], verb.answer.encode(items)):
            piece += (between, json.dumps(item))
            size, between = size + len(piece[-1]), ", "
        if size > _PIECE:
            yield piece
            piece, size = [], 0
    yield [*piece, "]"]


def _read(verb: Verb, body: bytes) -> Any:
    try:
        return json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as exc:
        raise InvalidInput(verb.name, "the body is not JSON") from exc


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def check_arguments(store: Store, verb: str, arguments: Mapping[str, object]) -> None:
    """As the engine checks what a person gives: a caller of the contract need not have used the engine."""
    for name, value in arguments.items():
        place = f"{verb}.{name}"
        match value:
            case int() if name == "limit" and value > MAX_PAGE:
                raise InvalidInput(place, f"must be at most {MAX_PAGE}")
            case str() if name in _TEXTS:
                check_text(place, value)
            case str():
                check_text(place, value, limit=MAX_WORD)
            case NewSession():
                check_new_session(value)
            case NewTurn():
                _check_turn(store, str(arguments["session_id"]), value)
            case Pointer(provider=provider, rights=Rights() as rights) if is_provider(provider):
                check_rights(rights, get_provider(provider), allow_wider=True)
            case Answer():
                check_note(value.note)
            case _:
                pass


def _check_turn(store: Store, session_id: str, new: NewTurn) -> None:
    check_turn(store, session_id, new)
    if new.key is not None:
        check_text("key", new.key, limit=MAX_WORD)

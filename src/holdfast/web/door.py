"""Owns who may talk to the server at all: what is asked before any route sees a request."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from contextlib import nullcontext
from functools import lru_cache
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.errors import HoldfastError, InvalidInput, TooMany, Unauthenticated
from holdfast.store.http_store import is_loopback
from holdfast.web.access import ANYONE, Caller
from holdfast.web.callers import Callers
from holdfast.web.large_answers import LargeAnswers, is_large
from holdfast.web.problems import answer_to, problem
from holdfast.web.rates import Rates

#: more than a hook of Claude Code sends, which may quote what a subagent wrote
MAX_BODY: Final = 16 * 1024 * 1024
#: for a whole body: whoever is slower keeps a place that others need
BODY_SECONDS: Final = 30.0
#: requests that are answered at the same time, streams among them; fewer than there may be connections, so that
#: there is a place left to say so
MOST_AT_ONCE: Final = 700
#: of them, those of one caller: a token, or an address; more than the workers that may wait with one token
MOST_OF_ONE: Final = 350
#: and those of one workspace, whatever tokens it has: others get in all the same
MOST_OF_WORKSPACE: Final = 500
#: of those, whose bodies are not here yet: whoever sends slowly does not keep others out
MOST_BODIES: Final = 64
#: of the bodies of one caller together
MOST_BYTES: Final = 4 * MAX_BODY
#: a supervisor has no token
_OPEN_TO_ALL: Final = "/healthz"
_JSON: Final = "application/json"
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
#: what a browser says of a request that a page of this server makes, or a person
_OWN_PAGES: Final = frozenset({"same-origin", "none"})
_PROXIES_SAY: Final = frozenset(
    {b"cdn-loop", b"cf-connecting-ip", b"forwarded", b"true-client-ip", b"via", b"x-client-ip", b"x-real-ip"}
)
_PROXIES_BEGIN: Final = b"x-forwarded-"


class _TooLarge(Exception):
    """The body went on after the most that is read of one."""


class _TooMuch(Exception):
    """The bodies of one caller are together more than is kept of one caller."""


class _TooSlow(Exception):
    """The body did not come in the time that is waited for one."""


class Door:
    """Lets in callers with a token; before there is any, programs on this machine.

    Without tokens, a web page that a person looks at could reach the server on their machine: by its own name
    for this address (Host), or from its own origin, which another port of this machine is, too (Origin,
    Sec-Fetch-Site). And a proxy that was put before it too early would let in everyone. None of them gets in.
    """

    def __init__(
        self, app: ASGIApp, callers: Callers, rates: Rates, public_origins: frozenset[str] = frozenset()
    ) -> None:
        """``public_origins``: if there are any, pages of exactly these are answered, and of no other."""
        self._public_origins = public_origins
        self._app = app
        self._callers = callers
        self._rates = rates
        self._at_once = 0
        self._large = LargeAnswers()
        self._requests: Counter[str] = Counter()  #: by caller and by workspace: under way
        self._bodies: Counter[str] = Counter()  #: by caller: not here yet
        self._bytes: Counter[str] = Counter()  #: by caller: of bodies whose requests are under way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif self._at_once >= MOST_AT_ONCE and scope["path"] != _OPEN_TO_ALL:
            await _overloaded()(scope, receive, send)
        else:
            self._at_once += 1
            try:
                await self._answer(scope, receive, send)
            finally:
                self._at_once -= 1

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = await self._refusal(scope)
        if refused is not None:
            await refused(scope, receive, send)
            return
        caller = scope.get("state", {}).get("caller")
        who = _bucket(caller, scope)
        workspace = f"workspace {caller.workspace}" if caller is not None and caller.id else who
        has_share = self._requests[who] < MOST_OF_ONE and self._requests[workspace] < MOST_OF_WORKSPACE
        if not has_share or self._bodies[who] >= MOST_BODIES:
            await _too_many(1.0)(scope, receive, send)
            return
        counted = {who, workspace}
        self._requests.update(counted)
        body = _Body(receive, who, self._bodies, self._bytes, is_here=not _has_body(Headers(scope=scope)))
        try:
            async with (
                self._large.one(who, workspace) if is_large(scope["method"], scope["path"]) else nullcontext()
            ):
                await self._app(scope, body.receive, send)
        except TooMany as error:
            answer = answer_to(error)
            answer.headers["retry-after"] = "1"
            await answer(scope, receive, send)
        except _TooMuch:
            await _too_many(1.0)(scope, receive, send)
        except _TooLarge:
            await _too_large()(scope, receive, send)
        except _TooSlow:
            too_slow = problem(HTTPStatus.REQUEST_TIMEOUT, "too_slow", f"a body may take {BODY_SECONDS:g} s")
            await too_slow(scope, receive, send)
        finally:
            body.close()
            self._requests.subtract(counted)
            self._requests += Counter()  # forget whoever has none under way

    async def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if (refused := _ambiguous(headers) or _oversized(headers)) is not None:
            return refused
        authorization = headers.getlist("authorization")
        caller = self._callers.remembered(authorization)
        expected = caller or self._callers.last_known(authorization)
        charged = _bucket(expected, scope)
        if wait := self._rates.take(charged):
            return _too_many(wait)
        try:
            if caller is None:
                caller = await run_in_threadpool(self._callers.identify, authorization)
        except Unauthenticated as error:
            return None if scope["path"] == _OPEN_TO_ALL else answer_to(error)
        except HoldfastError as error:
            return answer_to(error)
        if expected is None and caller.id:
            self._rates.give_back(charged)
            if wait := self._rates.take(_bucket(caller, scope)):
                return _too_many(wait)
        scope.setdefault("state", {})["caller"] = caller
        refused = _not_from_here(headers) if caller is ANYONE else None
        return refused or _foreign_page(headers, self._public_origins) or _not_json(scope["method"], headers)


def _not_from_here(headers: Headers) -> Response | None:
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not _is_here(hosts[0]):
        return problem(
            HTTPStatus.MISDIRECTED_REQUEST,
            "wrong_host",
            "this server answers to its loopback address only",
        )
    if any(name in _PROXIES_SAY or name.startswith(_PROXIES_BEGIN) for name, _ in headers.raw):
        words = "behind a proxy this server asks for tokens: holdfast token create --role admin"
        return problem(HTTPStatus.FORBIDDEN, "proxied", words)
    if all(origin == f"http://{hosts[0]}".lower() for origin in headers.getlist("origin")):
        return None
    return _foreign_origin()


def _foreign_page(headers: Headers, public_origins: frozenset[str]) -> Response | None:
    """A page on another host, port or scheme is another's.

    Nobody but the proxy knows the scheme, unless ``public_origins`` say it: then the request's Host counts for
    nothing, which a proxy may have changed.
    """
    origins, sites = headers.getlist("origin"), headers.getlist("sec-fetch-site")
    if public_origins:
        is_own = public_origins.issuperset(origins)
    else:
        own = [host.lower() for host in headers.getlist("host")]
        is_own = all([_place(origin)] == own for origin in origins)
    return None if is_own and _OWN_PAGES.issuperset(sites) else _foreign_origin()


def _foreign_origin() -> Response:
    return problem(HTTPStatus.FORBIDDEN, "foreign_origin", "this server does not answer web pages of others")


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _not_json(method: str, headers: Headers) -> Response | None:
    """What a page of another site may send without asking first is never JSON (Fetch, CORS-safelisted)."""
    kinds = [kind.partition(";")[0].strip().lower() for kind in headers.getlist("content-type")]
    if method in _READS or kinds == [_JSON] or not (_has_body(headers) or kinds):
        return None
    words = f"send a body with one header: Content-Type: {_JSON}"
    return problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", words)


@lru_cache(maxsize=256)
def _is_here(host: str) -> bool:
    """Remembered: most requests name the same place. A host is no URL: nothing stands before or behind it."""
    try:
        parts = urlsplit(f"//{host}")
        return parts.netloc == host and "@" not in host and is_loopback(parts.hostname or "")
    except ValueError:
        return False


def _place(url: str) -> str:
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return ""


def _bucket(caller: Caller | None, scope: Scope) -> str:
    """Many may come from one address, a proxy's: strangers use up that one, and nothing of a token's own."""
    if caller is not None and caller.id:
        return f"token {caller.id}"
    client = scope.get("client")
    return f"peer {client[0]}" if client else "peer"


def _too_many(wait: float) -> Response:
    answer = answer_to(TooMany("too many requests: come back a little later"))
    answer.headers["retry-after"] = str(math.ceil(wait))
    return answer


def _overloaded() -> Response:
    words = "the server answers as many requests as it can: come back a little later"
    answer = problem(HTTPStatus.SERVICE_UNAVAILABLE, "overloaded", words)
    answer.headers["retry-after"] = "1"
    return answer


def _too_large() -> Response:
    return problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", f"a body may have {MAX_BODY} bytes")


def _ambiguous(headers: Headers) -> Response | None:
    """Two ways to say where a body ends are how requests are smuggled past a proxy (RFC 9112, 6.3)."""
    if "content-length" not in headers or "transfer-encoding" not in headers:
        return None
    words = "a body has a Content-Length or a Transfer-Encoding, and not both"
    refused = problem(HTTPStatus.BAD_REQUEST, InvalidInput.code, words)
    refused.headers["connection"] = "close"
    return refused


def _oversized(headers: Headers) -> Response | None:
    length = headers.get("content-length", "0")
    is_fine = length.isdecimal() and len(length) <= 18 and int(length) <= MAX_BODY
    return None if is_fine else _too_large()


class _Body:
    """A body may come in pieces, say nothing of its length, and take its time."""

    def __init__(
        self, receive: Receive, who: str, bodies: Counter[str], kept: Counter[str], *, is_here: bool
    ) -> None:
        self._receive = receive
        self._who = who
        self._bodies = bodies
        self._kept = kept
        self._size = 0
        self._complete = is_here
        self._until = asyncio.get_running_loop().time() + BODY_SECONDS
        if not is_here:
            bodies[who] += 1

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise _TooSlow from None
        size = len(message.get("body", b""))
        self._size += size
        self._kept[self._who] += size
        if self._size > MAX_BODY:
            raise _TooLarge
        if self._kept[self._who] > MOST_BYTES:
            raise _TooMuch
        if not message.get("more_body", False):
            self._has_come()
        return message

    def close(self) -> None:
        self._has_come()
        self._kept[self._who] -= self._size
        if not self._kept[self._who]:
            del self._kept[self._who]

    def _has_come(self) -> None:
        if not self._complete:
            self._complete = True
            self._bodies[self._who] -= 1
            if not self._bodies[self._who]:
                del self._bodies[self._who]

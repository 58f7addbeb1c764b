"""Owns who may talk to the server, and how much at once: what is checked before any route sees a request."""

from __future__ import annotations

import asyncio
import hmac
import math
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import lru_cache
from http import HTTPStatus
from typing import Final, Protocol
from urllib.parse import urlsplit

from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.domain.tokens import Token, digest_of, split_token
from holdfast.errors import HoldfastError, InvalidInput, TooMany, Unauthenticated
from holdfast.store.contract import FACTS
from holdfast.store.http_store import is_loopback
from holdfast.web.access import ANYONE, Caller
from holdfast.web.page.login import credentials, is_open, is_page, to_login
from holdfast.web.problems import answer_to, problem

#: the most bytes of one body: a hook of Claude Code may quote what a subagent wrote
MAX_BODY: Final = 16 * 1024 * 1024
#: for a whole body: a slower caller keeps a place that others need
BODY_SECONDS: Final = 30.0
#: requests that are answered at the same time, streams among them; fewer than there may be connections, so that
#: the next one can be told so
MOST_REQUESTS: Final = 700
#: of them, those of one caller (a token, or an address): more than the workers that may wait with one token
MOST_REQUESTS_OF_ONE: Final = 350
#: of them, those of one workspace, whatever tokens it has: other workspaces still get in
MOST_REQUESTS_OF_WORKSPACE: Final = 500
#: requests of one caller whose bodies have not arrived yet
MOST_BODIES: Final = 64
#: bytes of all bodies of one caller together
MOST_BYTES: Final = 4 * MAX_BODY
#: large answers that are made and sent at the same time: for all callers, for one workspace, for one caller
MOST_LARGE: Final = 12
MOST_LARGE_OF_WORKSPACE: Final = 8
MOST_LARGE_OF_ONE: Final = 4
#: large answers of one caller that may wait for their turn, and for how long
MOST_LARGE_WAITING: Final = 40
LARGE_WAIT_SECONDS: Final = 20.0
#: a token that is revoked stops working after no more than this
REMEMBERED_SECONDS: Final = 1.0
_MOST_REMEMBERED: Final = 10_000
_MOST_BUCKETS: Final = 10_000

_SCHEME: Final = "bearer "
#: a supervisor has no token
_OPEN_TO_ALL: Final = "/healthz"
_JSON: Final = "application/json"
_FORM: Final = "application/x-www-form-urlencoded"
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
#: ``Sec-Fetch-Site`` of a request that a page of this server makes, or a person
_OWN_PAGES: Final = frozenset({"same-origin", "none"})
#: headers that proxies add
_PROXY_HEADERS: Final = frozenset(
    {b"cdn-loop", b"cf-connecting-ip", b"forwarded", b"true-client-ip", b"via", b"x-client-ip", b"x-real-ip"}
)
_PROXY_PREFIX: Final = b"x-forwarded-"
#: calls and pages that answer with many records; the stream of events sends a page at a time
_LARGE_CALL: Final = re.compile(
    rf".*/v1/store/(?:{'|'.join(verb for verb, facts in FACTS.items() if facts.many)})/?\Z"
)
_LARGE_PAGE: Final = re.compile(
    r".*/v1/(?:approvals|sessions(?:/[^/]+/(?:history|trail|turns(?:/[^/]+)?))?)/?\Z"
)


# --- who calls ---------------------------------------------------------------------------------------------------


class TokenBook(Protocol):
    def asks_for_tokens(self) -> bool: ...

    def check_token(self, token_id: str, secret: str) -> Token | None: ...


class Callers:
    """Finds out who calls, by the token. The answer is remembered for a second, except for agents' tokens."""

    def __init__(self, book: TokenBook, seconds: Callable[[], float] = time.monotonic) -> None:
        self._book = book
        self._seconds = seconds
        self._needs_tokens = False
        self._asked_at = -REMEMBERED_SECONDS
        #: by the digest of the whole token: the secrets themselves are not kept
        self._known: dict[str, tuple[float, Caller]] = {}

    def need_tokens(self) -> bool:
        """Whether anyone ever made a token; once that is true, it stays true."""
        if not self._needs_tokens:
            self._needs_tokens = self._book.asks_for_tokens()
            self._asked_at = self._seconds()
        return self._needs_tokens

    def remembered(self, authorization: Sequence[str]) -> Caller | None:
        """Without asking the store; None if the store has to be asked."""
        now = self._seconds()
        if not self._needs_tokens and now - self._asked_at < REMEMBERED_SECONDS:
            return ANYONE
        at, caller = self._found(authorization)
        # an agent's token ends with its lease, at once
        is_agent = caller is not None and caller.session_id is not None
        return caller if now - at < REMEMBERED_SECONDS and not is_agent else None

    def last_known(self, authorization: Sequence[str]) -> Caller | None:
        """Whose token it was when the store was last asked, however long ago: not enough to let them in."""
        return self._found(authorization)[1]

    def identify(self, authorization: Sequence[str]) -> Caller:
        """By the headers of a request; Unauthenticated does not say what was wrong with the token."""
        if not self.need_tokens():
            return ANYONE
        if len(authorization) != 1:
            raise Unauthenticated("send one header: Authorization: Bearer hft_…")
        (header,) = authorization
        parts = split_token(header[len(_SCHEME) :].strip()) if header.lower().startswith(_SCHEME) else None
        token = None if parts is None else self._book.check_token(*parts)
        if token is None:
            self._known.pop(digest_of(header), None)
            raise Unauthenticated("the token is not known here, or is not valid any more")
        caller = Caller(token.id, token.role, token.workspace, token.name, token.session_id)
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
        self._known[digest_of(header)] = (self._seconds(), caller)
        return caller

    def _found(self, authorization: Sequence[str]) -> tuple[float, Caller | None]:
        nobody = (-REMEMBERED_SECONDS, None)
        return self._known.get(digest_of(authorization[0]), nobody) if len(authorization) == 1 else nobody


class LocalCallers(Callers):
    """Lets in the person who has the key of ``holdfast ui``, and callers with tokens; nobody without either."""

    def __init__(self, book: TokenBook, key: str) -> None:
        super().__init__(book)
        self._key = key

    def remembered(self, authorization: Sequence[str]) -> Caller | None:
        if self._has_key(authorization):
            return ANYONE
        caller = super().remembered(authorization)
        return None if caller is ANYONE else caller

    def identify(self, authorization: Sequence[str]) -> Caller:
        if self._has_key(authorization):
            return ANYONE
        caller = super().identify(authorization)
        if caller is ANYONE:
            raise Unauthenticated("open the address that holdfast ui has printed")
        return caller

    def _has_key(self, authorization: Sequence[str]) -> bool:
        expected = f"Bearer {self._key}".encode()
        return len(authorization) == 1 and hmac.compare_digest(authorization[0].encode(), expected)


# --- how much at once --------------------------------------------------------------------------------------------


class Rates:
    """A bucket for each caller, which fills by ``per_second``, up to twice that."""

    def __init__(self, per_second: float, seconds: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._most = max(1.0, 2 * per_second)
        self._seconds = seconds
        #: what was left, and when; the longest unused first
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, who: str) -> float:
        """Counts one request. Returns the seconds to wait before it may be made; 0 if it may be made now."""
        now = self._seconds()
        left, at = self._left.pop(who, (self._most, now))
        left = min(self._most, left + (now - at) * self._per_second)
        wait = 0.0 if left >= 1 else (1 - left) / self._per_second
        self._left[who] = (left if wait else left - 1, now)
        if len(self._left) > _MOST_BUCKETS:
            del self._left[next(iter(self._left))]
        return wait

    def give_back(self, who: str) -> None:
        """One request that turned out to be another caller's."""
        if who in self._left:
            left, at = self._left[who]
            self._left[who] = (min(self._most, left + 1), at)


def is_large(method: str, path: str) -> bool:
    """A POST to the address of a list adds to it, and is answered with one record."""
    return (_LARGE_PAGE if method == "GET" else _LARGE_CALL).match(path) is not None


class LargeAnswers:
    """Limits how many large answers are under way, so that no reader fills the server's memory.

    An answer is under way from the first read of the store until its last byte was taken. Most of them are read and
    sent in parts (``store_calls``), so that each takes a few megabytes, however long it is.
    """

    def __init__(self) -> None:
        self._under_way: Counter[tuple[str, str]] = Counter()  #: by caller and workspace
        self._waiting: Counter[str] = Counter()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def one(self, caller: str, workspace: str) -> AsyncIterator[None]:
        """TooMany if too many of this caller wait already, or the wait takes too long."""
        await self._begin(caller, workspace)
        try:
            yield
        finally:
            async with self._changed:
                self._under_way[caller, workspace] -= 1
                self._under_way += Counter()  # drops counts of zero
                self._changed.notify_all()

    async def _begin(self, caller: str, workspace: str) -> None:
        if self._waiting[caller] >= MOST_LARGE_WAITING:
            raise TooMany(
                f"more than {MOST_LARGE_WAITING} large answers wait for this token: try again a little later"
            )
        self._waiting[caller] += 1
        try:
            async with asyncio.timeout(LARGE_WAIT_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self._has_room(caller, workspace))
                self._under_way[caller, workspace] += 1
        except TimeoutError:
            raise TooMany(
                "the server makes as many large answers as it can: try again a little later"
            ) from None
        finally:
            self._waiting[caller] -= 1
            self._waiting += Counter()  # drops counts of zero

    def _has_room(self, caller: str, workspace: str) -> bool:
        of_workspace = sum(n for (_, place), n in self._under_way.items() if place == workspace)
        return (
            self._under_way.total() < MOST_LARGE
            and of_workspace < MOST_LARGE_OF_WORKSPACE
            and self._under_way[caller, workspace] < MOST_LARGE_OF_ONE
        )


class _TooLarge(Exception):
    """A body has more than MAX_BODY bytes."""


class _TooMuch(Exception):
    """The bodies of one caller have more than MOST_BYTES together."""


class _TooSlow(Exception):
    """A body did not arrive within BODY_SECONDS."""


class _Body:
    """Counts and limits a body while it arrives: it may come in pieces, without its length, and slowly."""

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
            self._finish()
        return message

    def close(self) -> None:
        self._finish()
        self._kept[self._who] -= self._size
        if not self._kept[self._who]:
            del self._kept[self._who]

    def _finish(self) -> None:
        if not self._complete:
            self._complete = True
            self._bodies[self._who] -= 1
            if not self._bodies[self._who]:
                del self._bodies[self._who]


# --- the middleware ----------------------------------------------------------------------------------------------


class Admission:
    """Lets in callers with a token; before any token was made, programs on this machine.

    Without tokens, a web page that a person looks at could reach the server on their machine: by its own name for
    this address (Host), or from its own origin, also on another port of this machine (Origin, Sec-Fetch-Site). And
    a proxy that was put before the server too early would let in everyone. All of these are refused.
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
        self._requests: Counter[str] = Counter()  #: under way, by caller and by workspace
        self._bodies: Counter[str] = Counter()  #: not arrived yet, by caller
        self._bytes: Counter[str] = Counter()  #: of bodies whose requests are under way, by caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif self._at_once >= MOST_REQUESTS and scope["path"] != _OPEN_TO_ALL:
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
        has_share = (
            self._requests[who] < MOST_REQUESTS_OF_ONE
            and self._requests[workspace] < MOST_REQUESTS_OF_WORKSPACE
        )
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
            self._requests += Counter()  # drops counts of zero

    async def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if (refused := _ambiguous(headers) or _oversized(headers)) is not None:
            return refused
        authorization = credentials(scope)
        caller = self._callers.remembered(authorization)
        expected = caller or self._callers.last_known(authorization)
        charged = _bucket(expected, scope)
        if wait := self._rates.take(charged):
            return _too_many(wait)
        try:
            if caller is None:
                caller = await run_in_threadpool(self._callers.identify, authorization)
        except Unauthenticated as error:
            if scope["path"] == _OPEN_TO_ALL:
                return None
            if is_open(scope):
                return _foreign_page(scope, self._public_origins)
            return to_login(scope) if is_page(scope) else answer_to(error)
        except HoldfastError as error:
            return answer_to(error)
        if expected is None and caller.id:
            self._rates.give_back(charged)
            if wait := self._rates.take(_bucket(caller, scope)):
                return _too_many(wait)
        scope.setdefault("state", {})["caller"] = caller
        refused = _not_from_here(headers) if caller is ANYONE else None
        return refused or _foreign_page(scope, self._public_origins) or _wrong_body(scope)


def _not_from_here(headers: Headers) -> Response | None:
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not _is_here(hosts[0]):
        return problem(
            HTTPStatus.MISDIRECTED_REQUEST,
            "wrong_host",
            "this server answers to its loopback address only",
        )
    if any(name in _PROXY_HEADERS or name.startswith(_PROXY_PREFIX) for name, _ in headers.raw):
        words = "behind a proxy this server asks for tokens: holdfast token create --role admin"
        return problem(HTTPStatus.FORBIDDEN, "proxied", words)
    if all(origin == f"http://{hosts[0]}".lower() for origin in headers.getlist("origin")):
        return None
    return _foreign_origin()


def _foreign_page(scope: Scope, public_origins: frozenset[str]) -> Response | None:
    """A page on another host, port or scheme is foreign. It may lead a person to our page, by a link.

    Only the proxy knows the scheme, unless ``public_origins`` says it: then the request's Host does not count, which
    a proxy may have changed.
    """
    headers = Headers(scope=scope)
    origins, sites = headers.getlist("origin"), headers.getlist("sec-fetch-site")
    if scope["method"] == "GET" and is_page(scope) and headers.getlist("sec-fetch-mode") == ["navigate"]:
        sites = []
    if public_origins:
        is_own = public_origins.issuperset(origins)
    else:
        own = [host.lower() for host in headers.getlist("host")]
        is_own = all([_host_of(origin)] == own for origin in origins)
    return None if is_own and _OWN_PAGES.issuperset(sites) else _foreign_origin()


def _foreign_origin() -> Response:
    words = "this server does not answer web pages of another origin"
    return problem(HTTPStatus.FORBIDDEN, "foreign_origin", words)


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _wrong_body(scope: Scope) -> Response | None:
    """What a page of another site may send without asking first is never JSON (Fetch, CORS-safelisted).

    The page has forms, which carry a token against that.
    """
    headers, expected = Headers(scope=scope), _FORM if is_page(scope) else _JSON
    kinds = [kind.partition(";")[0].strip().lower() for kind in headers.getlist("content-type")]
    if scope["method"] in _READS or kinds == [expected] or not (_has_body(headers) or kinds):
        return None
    words = f"send a body with one header: Content-Type: {expected}"
    return problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", words)


@lru_cache(maxsize=256)
def _is_here(host: str) -> bool:
    """Cached: most requests name the same host. A Host header has no user and no path."""
    try:
        parts = urlsplit(f"//{host}")
        return parts.netloc == host and "@" not in host and is_loopback(parts.hostname or "")
    except ValueError:
        return False


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return ""


def _bucket(caller: Caller | None, scope: Scope) -> str:
    """Callers without a token share the bucket of their address, which may be a proxy's, and use up no token's."""
    if caller is not None and caller.id:
        return f"token {caller.id}"
    client = scope.get("client")
    return f"peer {client[0]}" if client else "peer"


def _too_many(wait: float) -> Response:
    answer = answer_to(TooMany("too many requests: try again a little later"))
    answer.headers["retry-after"] = str(math.ceil(wait))
    return answer


def _overloaded() -> Response:
    words = "the server answers as many requests as it can: try again a little later"
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

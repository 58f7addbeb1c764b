"""Owns the running server: its routes, its socket and connections, and how it begins and ends."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any, Final, NoReturn

import uvicorn
from anyio import CapacityLimiter
from fastapi import APIRouter, FastAPI, Request
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from holdfast import __version__
from holdfast.domain.policy import ServerPolicy
from holdfast.domain.records import record
from holdfast.domain.sessions import SessionFilter
from holdfast.engine.holdfast import Holdfast
from holdfast.errors import InvalidInput
from holdfast.store.http_store import is_loopback
from holdfast.web import api_page, changes, events, hooks, metrics, queue_news, resources, store_calls
from holdfast.web.access import Guarded
from holdfast.web.access_log import AccessLog
from holdfast.web.admission import Admission, Callers, LocalCallers, Rates
from holdfast.web.changes import Changes
from holdfast.web.page import routes
from holdfast.web.page.login import Entrance
from holdfast.web.problems import ANSWERS, SCHEMA, answer_with_problems
from holdfast.web.queue_news import Queues
from holdfast.web.schemas import Schemas
from holdfast.web.serving import Served, Workspaces
from holdfast.web.streams import Streams

#: for a whole head, from the beginning of the connection or the end of the answer before
HEAD_SECONDS: Final = 10.0
#: for a caller that does not read its answer
UNREAD_SECONDS: Final = 30.0
#: with the files of a store, they fit into the 1024 descriptors that a process usually has
MOST_CONNECTIONS: Final = 800
#: requests that are still answered after a signal has come
_LAST_ANSWERS_SECONDS: Final = 10
_BACKLOG: Final = 128
_VERSION: Final = "/v1"


class Connection(H11Protocol):
    """Closes connections that send no request in time or do not read their answer, and when there are too many.

    uvicorn's settings do not stop such callers: ``timeout_keep_alive`` ends with the first byte that comes, and
    ``limit_concurrency`` counts silent connections and refuses everyone else. A connection is silent while no
    request of it is being answered.
    """

    silent_since = 0.0
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own
        super().connection_made(transport)
        self._watch_silence()
        if len(self.connections) > MOST_CONNECTIONS:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_silence()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_silence()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget_deadline()
        self._forget_unread()

    def pause_writing(self) -> None:
        """``close`` would wait until the rest is read; ``abort`` drops it."""
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_unread()

    @property
    def is_silent(self) -> bool:
        # uvicorn declares that there is always one
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _watch_silence(self) -> None:
        if not self.is_silent or self.transport.is_closing():
            self._forget_deadline()
        elif self._deadline is None:
            self.silent_since = self.loop.time()
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _forget_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _make_room(self) -> None:
        """Closes the one that has been silent for the longest."""
        silent = [
            other
            for other in self.connections
            if isinstance(other, Connection) and other.is_silent and not other.transport.is_closing()
        ]
        if silent:
            min(silent, key=lambda other: other.silent_since).transport.close()


_health = APIRouter(tags=["health"])
_readiness = APIRouter(tags=["health"], route_class=Guarded)


@_health.head("/healthz", include_in_schema=False)
@_health.get("/healthz", openapi_extra={"security": []})
def healthz(request: Request) -> dict[str, str]:
    """The server answers."""
    request.state.verb = "healthz"
    return {"status": "ok"}


@_readiness.get("/readyz")
def readyz(holdfast: Served) -> dict[str, str]:
    """The store answers too."""
    holdfast.store.list_sessions(SessionFilter(), 1)
    return {"status": "ok"}


class BasePath:
    """Says below which path a proxy shows the server. Some proxies leave that path in their requests, others do not."""

    def __init__(self, app: ASGIApp, base_path: str) -> None:
        self._app = app
        self._base_path = base_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["root_path"] = self._base_path
        await self._app(scope, receive, send)


def create_app(
    workspaces: Workspaces,
    callers: Callers,
    rates: Rates,
    policy: ServerPolicy | None = None,
    entrance: Entrance | None = None,
) -> FastAPI:
    policy = policy or ServerPolicy()
    app = FastAPI(
        title="Holdfast",
        version=__version__,
        summary="Durable sessions for coding agents",
        responses=ANSWERS,
        docs_url=None,  # the framework's own pages load scripts from another host
        redoc_url=None,
        generate_unique_id_function=lambda route: f"{route.tags[0]}.{route.name}",
    )
    app.state.workspaces = workspaces
    app.state.callers = callers
    app.state.store_threads = CapacityLimiter(store_calls.MOST_CALLS)
    app.state.streams = Streams()
    app.state.queues = queue_news.Queues()
    app.state.changes = watched = changes.Changes()
    app.state.entrance = entrance or Entrance()
    app.state.public_origins = policy.public_origins
    app.state.meters = meters = metrics.Meters()
    app.add_middleware(Admission, callers=callers, rates=rates, public_origins=policy.public_origins)
    app.add_middleware(AccessLog, meters=meters, stir=watched.stir)
    app.add_middleware(BasePath, base_path=policy.base_path)
    answer_with_problems(app)
    # first, as routes are looked through in their order; described below, by hand
    app.add_route(f"{_VERSION}/store/{{verb}}", store_calls.call, methods=["POST"], include_in_schema=False)
    app.include_router(_health)
    app.include_router(_readiness)
    app.include_router(metrics.router)
    app.include_router(api_page.router)
    for router in (*resources.routers, events.router, changes.router, queue_news.router, hooks.router):
        app.include_router(router, prefix=_VERSION)
    app.include_router(routes.doors)
    app.include_router(routes.router)
    _describe(app)
    return app


def _describe(app: FastAPI) -> None:
    """Adds the verbs of the Store contract to the framework's document."""
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


@record
class Listening:
    host: str
    port: int
    rate: float  #: requests a second that one caller may make


def serve_until_stopped(
    holdfast: Holdfast, at: Listening, announce: Callable[[str], None], entrance: Entrance | None = None
) -> None:
    """``announce`` gets the address as soon as others can connect to it.

    With an ``entrance`` that has a key, nobody comes in without that key or a token.
    """
    store = holdfast.store
    callers = LocalCallers(store, entrance.key) if entrance and entrance.key else Callers(store)
    if not callers.need_tokens() and not is_loopback(at.host):
        words = "others are let in with tokens only; make one first: holdfast token create --role admin"
        raise InvalidInput("host", f"{at.host!r} is not a loopback address: {words}")
    workspaces = Workspaces(store.workspace, holdfast.within)
    app = create_app(workspaces, callers, Rates(at.rate), holdfast.policy.server, entrance)
    host = at.host
    with listen(host, at.port) as listening:
        shown = f"[{host}]" if ":" in host else host
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            http=Connection,
            timeout_graceful_shutdown=_LAST_ANSWERS_SECONDS,
        )
        with _ended_by_sigterm():
            announce(f"http://{shown}:{listening.getsockname()[1]}")
            _Server(config, app.state.streams, app.state.queues, app.state.changes).run([listening])


class _Server(uvicorn.Server):
    """Ends streams and watches first, then waits for the last answers."""

    def __init__(self, config: uvicorn.Config, streams: Streams, queues: Queues, changes: Changes) -> None:
        super().__init__(config)
        self._streams = streams
        self._queues = queues
        self._changes = changes

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._streams.closing = True
        self._queues.close()
        self._changes.close()
        super().handle_exit(sig, frame)


class _Stopped(BaseException):
    """SIGTERM has come: how servers are stopped, and not an error."""


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """uvicorn raises the signal again after its last answers; that ends the server without an error, too."""

    def stop(*_: object) -> NoReturn:
        raise _Stopped

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except _Stopped:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def listen(host: str, port: int) -> socket.socket:
    if not host:
        raise InvalidInput("host", "must not be empty; every address of this machine is 0.0.0.0, or ::")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # the protocol by name: only then does the event loop send small answers at once
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as exc:
        listening.close()
        problem = f"cannot listen on {host}:{port}: {exc.strerror}"
        if exc.errno == errno.EADDRINUSE:
            problem += "; stop what listens there, or choose another one: --port 0 takes a free one"
        raise InvalidInput("port", problem) from exc
    return listening

"""Owns the running server: its socket, and how it begins and ends."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

import uvicorn

from holdfast.engine.holdfast import Holdfast
from holdfast.errors import ConfigError, InvalidInput
from holdfast.store.http_store import is_loopback
from holdfast.store.sql_store import SqlStore
from holdfast.web.app import create_app
from holdfast.web.callers import Callers
from holdfast.web.connections import Connection
from holdfast.web.events import Streams
from holdfast.web.queue_news import Queues
from holdfast.web.rates import Rates
from holdfast.web.serving import Workspaces

#: requests that are still answered after a signal has come
_LAST_ANSWERS_SECONDS = 10
_BACKLOG = 128


@dataclass(frozen=True, slots=True)
class Listening:
    host: str
    port: int
    rate: float  #: requests a second that one caller may make


def serve_until_stopped(holdfast: Holdfast, at: Listening, announce: Callable[[str], None]) -> None:
    """``announce`` gets the address once somebody can connect to it."""
    store = holdfast.store
    if not isinstance(store, SqlStore):
        raise ConfigError("url", "a server works on a database, and not on another server")
    callers = Callers(store)
    if not is_loopback(at.host) and not callers.need_tokens():
        words = "others are let in with tokens only; make one first: holdfast token create --role admin"
        raise InvalidInput("host", f"{at.host!r} is not a loopback address: {words}")
    origins = holdfast.policy.server.public_origins
    app = create_app(Workspaces(store.workspace, holdfast.within), callers, Rates(at.rate), origins)
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
            _Server(config, app.state.streams, app.state.queues).run([listening])


class _Server(uvicorn.Server):
    """Tells those who wait, and those who listen, before it waits for its last answers."""

    def __init__(self, config: uvicorn.Config, streams: Streams, queues: Queues) -> None:
        super().__init__(config)
        self._streams = streams
        self._queues = queues

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._streams.closing = True
        self._queues.close()
        super().handle_exit(sig, frame)


class _Stopped(BaseException):
    """SIGTERM came: the way in which servers are ended, and no error."""


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Also after its last answers, when the server repeats to us the signal that it got."""

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
        raise InvalidInput("port", f"cannot listen on {host}:{port}: {exc.strerror}") from exc
    return listening

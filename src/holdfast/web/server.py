"""Owns the running server: its socket, and how it begins and ends."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import uvicorn

from holdfast.errors import InvalidInput
from holdfast.web.app import create_app
from holdfast.web.door import is_loopback
from holdfast.web.serving import Workspaces

#: requests that are still answered after a signal has come
_LAST_ANSWERS_SECONDS = 10
_BACKLOG = 128


def serve_until_stopped(
    workspaces: Workspaces, host: str, port: int, announce: Callable[[str], None]
) -> None:
    """``announce`` gets the address once somebody can connect to it."""
    if not is_loopback(host):
        raise InvalidInput("host", f"{host!r} is not a loopback address: others are not let in yet")
    with listen(host, port) as listening:
        shown = f"[{host}]" if ":" in host else host
        config = uvicorn.Config(
            create_app(workspaces),
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=_LAST_ANSWERS_SECONDS,
        )
        with _ended_by_sigterm():
            announce(f"http://{shown}:{listening.getsockname()[1]}")
            uvicorn.Server(config).run([listening])


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

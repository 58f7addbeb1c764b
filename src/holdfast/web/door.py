"""Owns who may talk to the server at all: what is asked before any route sees a request."""

from __future__ import annotations

from http import HTTPStatus
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.web.problems import problem

#: more than a hook of Claude Code sends, which may quote what a subagent wrote
MAX_BODY: Final = 16 * 1024 * 1024
_LOCAL_NAMES: Final = frozenset({"localhost"})


class _TooLarge(Exception):
    """The body went on after the most that is read of one."""


class Door:
    """Lets in what a program on this machine sends, and no more of it than ``MAX_BODY``.

    A web page that a person looks at can reach a server on their machine: by its own name for this address
    (Host), or from its own origin (Origin). Neither gets in.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refused = _stranger(headers) or _oversized(headers)
        if refused is not None:
            status, code, detail = refused
            await problem(status, code, detail)(scope, receive, send)
            return
        try:
            await self._app(scope, _bounded(receive), send)
        except _TooLarge:
            await problem(*_TOO_LARGE)(scope, receive, send)


_TOO_LARGE: Final = (
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "too_large",
    f"a body may have {MAX_BODY} bytes",
)


def is_loopback(host: str) -> bool:
    if host in _LOCAL_NAMES:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _stranger(headers: Headers) -> tuple[HTTPStatus, str, str] | None:
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not is_loopback(_name(f"//{hosts[0]}")):
        return (
            HTTPStatus.MISDIRECTED_REQUEST,
            "wrong_host",
            "this server answers to its loopback address only",
        )
    for origin in headers.getlist("origin"):
        if not is_loopback(_name(origin)):
            return HTTPStatus.FORBIDDEN, "foreign_origin", "this server does not answer web pages of others"
    return None


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _oversized(headers: Headers) -> tuple[HTTPStatus, str, str] | None:
    length = headers.get("content-length", "0")
    return _TOO_LARGE if not length.isdecimal() or len(length) > 18 or int(length) > MAX_BODY else None


def _bounded(receive: Receive) -> Receive:
    """A body may come in pieces, and say nothing of its length."""
    size = 0

    async def counted() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > MAX_BODY:
            raise _TooLarge
        return message

    return counted

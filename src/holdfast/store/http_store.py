"""Owns the Store contract over HTTP: every verb is one call to a Holdfast server, made with httpx."""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Final, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from holdfast.domain.ids import Workspace
from holdfast.errors import ConfigError, InvalidInput, NotFound, StoreUnavailable, Unauthenticated
from holdfast.store.contract import FACTS, QueueWatch, Store
from holdfast.store.verbs import (
    CONTRACT,
    CONTRACT_HEADER,
    KEY_HEADER,
    LONGEST_WATCH_SECONDS,
    WORKSPACE_HEADER,
    Verb,
    verbs,
)
from holdfast.store.wire_errors import decode_error, why_unreachable

_TRIES: Final = 4
_FIRST_WAIT: Final = 0.1
#: seconds to connect, and seconds for each read or write after that
_TIMEOUT: Final = httpx.Timeout(60.0, connect=20.0, pool=None)
#: no new try begins so many seconds after the first
_PATIENCE: Final = 60.0
#: a proxy, the server or its store is not available for the moment
_AGAIN: Final = (429, 502, 503, 504)
#: the longest that a server may make us wait between two tries
_LONGEST_WAIT: Final = 5.0
#: of what a proxy or a server says about an error
_LONGEST_WORDS: Final = 200
#: shorter than uvicorn's 5 seconds: a connection that the server is about to close is not used again
_KEEP_SECONDS: Final = 4.0
#: servers behind one address do not know each other's marks, and would answer every watch at once
_STRANGE_SECONDS: Final = 1.0


def open_http(url: str, workspace: str, token: str | None) -> Store:
    return cast(Store, HttpStore(_Server(url), Workspace(workspace), token))


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class _Server:
    """The address of a server, and how to connect to it: through the environment's proxy, unless it is on loopback.

    An error about the address does not quote it: somebody may have put a secret there.
    """

    def __init__(self, url: str) -> None:
        wanted = ConfigError("url", "write http://host:port or https://host")
        try:
            parts = urlsplit(url)
            is_complete = bool(parts.hostname) and parts.port != 0
            httpx.URL(url)
        except (ValueError, httpx.InvalidURL):  # ValueError: the port is not a number
            raise wanted from None
        if not is_complete or parts.query or parts.fragment:
            raise wanted
        if "@" in parts.netloc:
            raise ConfigError("url", "remove the user name: HOLDFAST_TOKEN says who you are")
        self.where = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
        self._base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/v1"
        self._proxy = _proxy_for(parts.scheme, parts.hostname or "")
        uses_tls = "https" in (parts.scheme, self._proxy and self._proxy.url.scheme)
        # the machine's certificates, or those that SSL_CERT_FILE and SSL_CERT_DIR name. Reading them takes 20 ms;
        # without TLS, a context that trusts nobody is enough
        self._tls = ssl.create_default_context() if uses_tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._urls: dict[str, httpx.URL] = {}
        self.contract: str | None = (
            None  #: the version that it speaks; None: not known yet, "": one that does not say it
        )

    def url(self, path: str) -> httpx.URL:
        """Parsed once: parsing takes a tenth of the time of a call."""
        if path not in self._urls:
            self._urls[path] = httpx.URL(self._base + path)
        return self._urls[path]

    def connections(self, keep: int | None = None) -> httpx.HTTPTransport:
        """The transport alone: a client would add a third to the time of a call, and a log line to each.

        ``keep``: how many connections stay open between calls; None: all.
        """
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=keep, keepalive_expiry=_KEEP_SECONDS
        )
        try:
            return httpx.HTTPTransport(verify=self._tls, trust_env=False, proxy=self._proxy, limits=limits)
        except (ValueError, ImportError) as exc:
            raise ConfigError("proxy", f"the proxy in the environment cannot be used: {exc}") from None


def _proxy_for(scheme: str, host: str) -> httpx.Proxy | None:
    """By HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY; never for this machine."""
    if is_loopback(host) or proxy_bypass(host):
        return None
    proxies = getproxies()
    found = proxies.get(scheme) or proxies.get("all")
    if not found:
        return None
    try:
        proxy = httpx.Proxy(found if "://" in found else f"http://{found}")
    except (ValueError, httpx.InvalidURL):
        raise ConfigError("proxy", f"{scheme.upper()}_PROXY is not a URL") from None
    if proxy.url.scheme == "https":
        proxy.ssl_context = ssl.create_default_context()
    return proxy


class HttpStore:
    """Any verb of the contract, by its name. Connections stay open between calls, and are shared by all threads."""

    def __init__(self, server: _Server, workspace: Workspace, token: str | None) -> None:
        self._server = server
        self.workspace = workspace
        self._token = token
        self._connections = server.connections()
        self._owner = os.getpid()
        self.where = server.where

    def __getattr__(self, name: str) -> Callable[..., Any]:
        verb = verbs().get(name)
        if verb is None:
            if name in FACTS:
                raise ConfigError("url", "a server works on a database, and not on another server")
            raise AttributeError(name)
        return lambda *args, **kwargs: self._call(verb, args, kwargs)

    def within(self, workspace: Workspace) -> Store:
        other = HttpStore(self._server, workspace, self._token)
        other._connections = self._connections  # connections carry no workspace
        return cast(Store, other)

    def watch_queue(self) -> QueueWatch:
        return HttpWatch(self._ask_news, self.where)

    def close(self) -> None:
        if self._owner == os.getpid():
            self._connections.close()

    def _call(self, verb: Verb, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        try:
            body = json.dumps(verb.encode_call(args, kwargs)).encode()
        except (TypeError, ValueError, RecursionError) as exc:
            raise InvalidInput(verb.name, f"cannot be sent: {exc}") from exc
        url = self._server.url(f"/store/{verb.name}")
        # all headers of the request: what httpx would add by itself takes a tenth of the time of a call
        headers = {
            "Host": url.netloc.decode(),
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **self._headers(),
        }
        if not verb.facts.repeatable:
            # a call whose reply is lost is made again under the same key: the server does it once
            headers[KEY_HEADER] = os.urandom(16).hex()
        make = partial(
            httpx.Request,
            "POST",
            url,
            headers=headers,
            stream=httpx.ByteStream(body),
            extensions={"timeout": _TIMEOUT.as_dict()},
        )
        if verb.facts.begins_work:
            self.require_same_version()
        response = self._answer(make)
        self._server.contract = response.headers.get(CONTRACT_HEADER, self._server.contract)
        try:
            return verb.answer.decode(self._content(verb.name, response), verb.name)
        except (InvalidInput, NotFound):
            if verb.name != "now":
                self.require_same_version()
            raise

    def require_same_version(self) -> None:
        """Raises ConfigError if the server speaks another version of the contract; versions before 2 do not say it."""
        if self._server.contract is None:
            self._server.contract = self._ask_version()
        if self._server.contract != CONTRACT:
            raise ConfigError(
                "url",
                f"the server {self.where} has another version of Holdfast: update Holdfast there and on this machine",
            )

    def _ask_version(self) -> str:
        self.now()  # every answer says it
        return self._server.contract or ""

    def _ask_news(self, query: Mapping[str, str], trace: Trace) -> Any:
        url = self._server.url("/queue/news").copy_with(params=query)
        extensions = {"timeout": _TIMEOUT.as_dict(), "trace": trace}
        connections = self._server.connections(keep=0)
        try:
            request = httpx.Request("GET", url, headers=self._headers(), extensions=extensions)
            response = connections.handle_request(request)
            response.read()
        finally:
            connections.close()
        return self._content("watch_queue", response)

    def _content(self, name: str, response: httpx.Response) -> Any:
        """The JSON of an answer; raises what a problem document says."""
        status = response.status_code
        if status == HTTPStatus.UNAUTHORIZED and self._token is None:
            raise Unauthenticated(f"{self.where} asks for a token: set HOLDFAST_TOKEN")
        try:
            content = json.loads(response.content)
        except ValueError as exc:
            raise _not_holdfast(self.where, name, status) from exc
        if status == HTTPStatus.OK:
            return content
        problem = content if isinstance(content, dict) else {}
        detail = str(problem.get("detail", ""))[:_LONGEST_WORDS]
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            raise InvalidInput(name, f"is more than the server takes: {detail}")
        raise decode_error(problem) or _not_holdfast(self.where, name, status, detail)

    def _answer(self, make: Callable[[], httpx.Request]) -> httpx.Response:
        """Tries again while the server cannot be reached, or says that it is not available."""
        wait = _FIRST_WAIT
        give_up = time.monotonic() + _PATIENCE
        for left in reversed(range(_TRIES)):
            try:
                response = self._exchange(make())
            except httpx.RequestError as exc:
                if not left or time.monotonic() > give_up:
                    raise _unreachable(self.where, exc) from exc
            else:
                if response.status_code not in _AGAIN or not left or time.monotonic() > give_up:
                    return response
                asked = response.headers.get("Retry-After", "")
                wait = max(wait, min(float(asked) if asked.isdecimal() else 0.0, _LONGEST_WAIT))
            time.sleep(wait)
            wait *= 2
        raise AssertionError("the last try answers or raises")

    def _exchange(self, request: httpx.Request) -> httpx.Response:
        if self._owner != os.getpid():
            # after a fork the connections are the parent's: they are dropped, not closed
            self._connections, self._owner = self._server.connections(), os.getpid()
        response = self._connections.handle_request(request)
        try:
            response.read()
        finally:
            response.close()
        return response

    def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {WORKSPACE_HEADER: self.workspace, CONTRACT_HEADER: CONTRACT}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers


def _not_holdfast(where: str, name: str, status: int, detail: str = "") -> StoreUnavailable:
    """An answer that no call of a store gets: of a proxy before the server, or of another program at its address."""
    if status < HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.NOT_IMPLEMENTED:
        return StoreUnavailable(
            where, f"this is not a Holdfast server: it answered {status} to {name}; check the address"
        )
    why = detail or "its log, or that of a proxy before it, says why"
    return StoreUnavailable(where, f"the server answered {status} to {name}: {why}")


def _unreachable(where: str, error: httpx.RequestError) -> StoreUnavailable:
    match error:
        case httpx.ConnectTimeout():
            words = f"no connection within {_TIMEOUT.connect:g} s"
        case httpx.TimeoutException():
            words = f"no answer within {_TIMEOUT.read:g} s"
        case httpx.ProxyError():
            words = f"the proxy refused: {error}"
        case httpx.LocalProtocolError():
            words = "the request cannot be sent: a header is not valid"  # its words would quote the token
        case _:
            words = why_unreachable(error)
    return StoreUnavailable(where, f"cannot be reached: {words}")


#: called by httpx with what happens on a connection, and its data
Trace = Callable[[str, Mapping[str, Any]], None]


class HttpWatch(QueueWatch):
    """Asks one long question after the other, each from the mark of the last answer."""

    def __init__(self, ask: Callable[[Mapping[str, str], Trace], Any], where: str) -> None:
        self._ask = ask
        self._where = where
        self._closed = threading.Event()
        self._socket: socket.socket | None = None
        self._strange_at = -_STRANGE_SECONDS
        self._mark = ""
        self._has_news(0.0)

    def wait(self, seconds: float) -> bool:
        give_up = time.monotonic() + seconds
        while not self._closed.is_set():
            left = max(0.0, give_up - time.monotonic())
            if self._has_news(min(left, LONGEST_WATCH_SECONDS)):
                return True
            if time.monotonic() >= give_up:
                break
        return False

    def close(self) -> None:
        """Also ends a question that another thread waits for: closing its socket would not wake that thread."""
        self._closed.set()
        self._hang_up()

    def _hang_up(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                # of the plain socket, also under TLS, which another thread is reading from
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _notice(self, event: str, info: Mapping[str, Any]) -> None:
        """TLS wraps the socket in a new one."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._socket = info["return_value"].get_extra_info("socket")
            if self._closed.is_set():
                self._hang_up()

    def _has_news(self, seconds: float) -> bool:
        query = {"seconds": f"{seconds:.3f}"} | ({"mark": self._mark} if self._mark else {})
        try:
            answer = self._ask(query, self._notice)
        except httpx.RequestError as exc:
            if self._closed.is_set():
                return False
            raise _unreachable(self._where, exc) from exc
        finally:
            self._socket = None
        return self._understand(answer)

    def _understand(self, answer: Any) -> bool:
        if self._closed.is_set():
            return False
        mark, news = (answer.get("mark"), answer.get("news")) if isinstance(answer, dict) else (None, None)
        if not isinstance(mark, str) or not isinstance(news, bool):
            raise StoreUnavailable(self._where, "the server's answer cannot be understood")
        if news and _server_of(mark) != _server_of(self._mark):
            self._closed.wait(self._strange_at + _STRANGE_SECONDS - time.monotonic())
            self._strange_at = time.monotonic()
        self._mark = mark
        return news and not self._closed.is_set()


def _server_of(mark: str) -> str:
    return mark.partition("-")[0]

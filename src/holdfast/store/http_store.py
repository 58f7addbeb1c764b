"""Owns the Store contract over HTTP: every verb is one call to a Holdfast server."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, cast
from urllib.parse import SplitResult, urlencode, urlsplit

from holdfast.domain.ids import Workspace
from holdfast.errors import ConfigError, InvalidInput, StoreUnavailable, Unauthenticated
from holdfast.store.contract import QueueWatch, Store
from holdfast.store.http_watch import HttpWatch
from holdfast.store.unreachable import why_unreachable
from holdfast.store.verbs import Verb, verbs
from holdfast.store.wire_errors import decode_error

#: a call that would happen again is made again under the same key when its reply is lost: the server does it once
KEY_HEADER = "Idempotency-Key"
_TRIES = 4
_FIRST_WAIT = 0.1
_TIMEOUT = 60.0
#: no new try begins so long after the first
_PATIENCE = 60.0
#: somebody between us and the server, or its store, is not there for the moment
_AGAIN = (429, 502, 503, 504)
#: the longest that a server may make us wait between two tries
_LONGEST_WAIT = 5.0
#: of what somebody between us and the server says
_LONGEST_WORDS = 200


def open_http(url: str, workspace: str, token: str | None) -> Store:
    return cast(Store, HttpStore(_address(url), Workspace(workspace), token))


def _address(url: str) -> SplitResult:
    """What is wrong with one is said without quoting it: somebody may have put a secret there."""
    wanted = ConfigError("url", "write http://host:port or https://host")
    try:
        parts = urlsplit(url)
        has_place = bool(parts.hostname) and parts.port != 0
    except ValueError as exc:  # its port is none
        raise wanted from exc
    if not has_place or parts.query or parts.fragment:
        raise wanted
    if "@" in parts.netloc:
        raise ConfigError("url", "name no user there: HOLDFAST_TOKEN says who you are")
    return parts


class HttpStore:
    """Any verb of the contract, by its name. Connections are kept open between calls, one for each caller at a time."""

    def __init__(self, url: SplitResult, workspace: Workspace, token: str | None) -> None:
        self._url = url
        self.workspace = workspace
        self._token = token
        self._idle: list[HTTPConnection] = []
        self._owner = os.getpid()
        self.where = f"{url.scheme}://{url.hostname}" + (f":{url.port}" if url.port else "")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        verb = verbs().get(name)
        if verb is None:
            raise AttributeError(name)
        return lambda *args, **kwargs: self._call(verb, args, kwargs)

    def within(self, workspace: Workspace) -> Store:
        other = HttpStore(self._url, workspace, self._token)
        other._idle = self._idle  # connections carry no workspace
        return cast(Store, other)

    def watch_queue(self) -> QueueWatch:
        return HttpWatch(self._connection, self._news, self.where)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _call(self, verb: Verb, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        try:
            body = json.dumps(verb.encode_call(args, kwargs)).encode()
        except (TypeError, ValueError, RecursionError) as exc:
            raise InvalidInput(verb.name, f"cannot be sent: {exc}") from exc
        headers = {} if verb.facts.repeatable else {KEY_HEADER: os.urandom(16).hex()}
        status, answer = self._answered(verb.name, body, headers)
        return verb.answer.decode(self._told(verb.name, status, answer), verb.name)

    def _news(self, connection: HTTPConnection, query: Mapping[str, str]) -> Any:
        path = f"{self._url.path.rstrip('/')}/v1/queue/news?{urlencode(query)}"
        connection.request("GET", path, headers=self._headers())
        response = connection.getresponse()
        return self._told("watch_queue", response.status, response.read())

    def _told(self, name: str, status: int, answer: bytes) -> Any:
        if status == HTTPStatus.UNAUTHORIZED and self._token is None:
            raise Unauthenticated(f"{self.where} asks for a token: set HOLDFAST_TOKEN")
        told = self._read(answer)
        if status == HTTPStatus.OK:
            return told
        problem = told if isinstance(told, dict) else {}
        detail = str(problem.get("detail"))[:_LONGEST_WORDS]
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            raise InvalidInput(name, f"is more than the server takes: {detail}")
        words = f"the server answered {status} to {name}: {detail}"
        raise decode_error(problem) or StoreUnavailable(self.where, words)

    def _read(self, answer: bytes) -> Any:
        try:
            return json.loads(answer)
        except ValueError as exc:
            raise StoreUnavailable(self.where, "the server's answer is not JSON") from exc

    def _answered(self, name: str, body: bytes, own: Mapping[str, str]) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json", **own, **self._headers()}
        path = f"{self._url.path.rstrip('/')}/v1/store/{name}"
        wait = _FIRST_WAIT
        give_up = time.monotonic() + _PATIENCE
        for left in reversed(range(_TRIES)):
            try:
                status, answer, asked = self._exchange(path, body, headers)
            except (OSError, HTTPException) as exc:
                if not left or time.monotonic() > give_up:
                    raise StoreUnavailable(self.where, f"cannot be reached: {why_unreachable(exc)}") from exc
            else:
                if status not in _AGAIN or not left or time.monotonic() > give_up:
                    return status, answer
                wait = max(wait, asked)
            time.sleep(wait)
            wait *= 2
        raise AssertionError("the last try answers or raises")

    def _exchange(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes, float]:
        """Status, body, and how many seconds the server wants us to wait before we ask again."""
        connection = self._take()
        try:
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            answer = response.read()
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        asked = response.headers.get("Retry-After", "")
        return response.status, answer, min(float(asked) if asked.isdecimal() else 0.0, _LONGEST_WAIT)

    def _take(self) -> HTTPConnection:
        if self._owner != os.getpid():
            # after a fork the connections are the parent's: they are let go of, not closed
            self._idle, self._owner = [], os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self._connection()

    def _connection(self) -> HTTPConnection:
        make = HTTPSConnection if self._url.scheme == "https" else HTTPConnection
        return make(self._url.hostname or "", self._url.port, timeout=_TIMEOUT)

    def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {"Holdfast-Workspace": self.workspace}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

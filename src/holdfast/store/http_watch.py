"""Owns watching the queue of a server: one long question after the other, each from where the last one ended."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import Any

from holdfast.errors import StoreUnavailable
from holdfast.store.contract import QueueWatch
from holdfast.store.unreachable import why_unreachable

#: how long a server keeps a question; proxies give up on answers that take half a minute
LONGEST_SECONDS = 25.0
#: servers behind one address do not know each other's marks, and would answer every question at once
_STRANGE_SECONDS = 1.0

Ask = Callable[[HTTPConnection, Mapping[str, str]], Any]


class HttpWatch(QueueWatch):
    def __init__(self, connect: Callable[[], HTTPConnection], ask: Ask, where: str) -> None:
        self._connect = connect
        self._ask = ask
        self._where = where
        self._closed = threading.Event()
        self._connection: HTTPConnection | None = None
        self._strange_at = -_STRANGE_SECONDS
        self._mark = ""
        self._has_news(0.0)

    def wait(self, seconds: float) -> bool:
        give_up = time.monotonic() + seconds
        while not self._closed.is_set():
            left = max(0.0, give_up - time.monotonic())
            if self._has_news(min(left, LONGEST_SECONDS)):
                return True
            if time.monotonic() >= give_up:
                break
        return False

    def close(self) -> None:
        self._closed.set()
        if self._connection is not None and (open_one := self._connection.sock) is not None:
            with suppress(OSError):
                # of the plain socket, also under TLS: whoever reads from it is another thread
                socket.socket.shutdown(open_one, socket.SHUT_RDWR)

    def _has_news(self, seconds: float) -> bool:
        query = {"seconds": f"{seconds:.3f}"} | ({"mark": self._mark} if self._mark else {})
        self._connection = connection = self._connect()
        try:
            connection.connect()
            # from here on there is something that can be shut down
            told = {} if self._closed.is_set() else self._ask(connection, query)
        except (OSError, HTTPException) as exc:
            if not self._closed.is_set():
                raise StoreUnavailable(self._where, f"cannot be reached: {why_unreachable(exc)}") from exc
            told = {}
        finally:
            connection.close()
        return self._understand(told)

    def _understand(self, told: Any) -> bool:
        if self._closed.is_set():
            return False
        mark, news = (told.get("mark"), told.get("news")) if isinstance(told, dict) else (None, None)
        if not isinstance(mark, str) or not isinstance(news, bool):
            raise StoreUnavailable(self._where, "the server's answer cannot be understood")
        if news and _server_of(mark) != _server_of(self._mark):
            self._closed.wait(self._strange_at + _STRANGE_SECONDS - time.monotonic())
            self._strange_at = time.monotonic()
        self._mark = mark
        return news and not self._closed.is_set()


def _server_of(mark: str) -> str:
    return mark.partition("-")[0]

"""Connections to a real server: those who ask nothing keep nobody out, and those who ask are not cut off."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from holdfast.web import server as web_server
from holdfast.web.server import Connection, listen

ASK = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"
PATIENCE = 30.0
HEAD_SECONDS = 0.3
#: more than fits into the buffers of two sockets
LARGE = 2**26


class App:
    """Answers at once, but for the path ``/slow``: that waits until it may go on."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_end = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            self.began.set()
            await asyncio.to_thread(self.may_end.wait, PATIENCE)
        body = b"x" * LARGE if scope["path"] == "/large" else b"ok"
        length = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def address(app: App, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(web_server, "HEAD_SECONDS", HEAD_SECONDS)
    config = uvicorn.Config(app, http=Connection, log_config=None, lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        yield listening.getsockname()
        app.may_end.set()
        server.should_exit = True
        thread.join(PATIENCE)


def connect(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, PATIENCE)


def answer(connection: socket.socket) -> bytes:
    """As far as its body; what came before if the server closes the connection."""
    told = b""
    while not told.endswith(b"ok") and (more := connection.recv(4096)):
        told += more
    return told


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def dribble(connection: socket.socket, byte: bytes) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        connection.sendall(byte)
        time.sleep(HEAD_SECONDS / 10)


def test_who_says_nothing_is_let_go(address: tuple[str, int]) -> None:
    with connect(address) as silent:
        assert is_closed(silent)


@pytest.mark.parametrize("first", [b"", ASK % b"/"], ids=["at first", "after an answer"])
def test_a_byte_now_and_then_does_not_help(address: tuple[str, int], first: bytes) -> None:
    with connect(address) as slow:
        slow.sendall(first)
        if first:
            assert answer(slow).endswith(b"ok")
        with pytest.raises(OSError, match=r"reset|[Bb]roken"):
            dribble(slow, b"G")


def test_a_body_that_comes_after_its_answer_keeps_no_connection(address: tuple[str, int]) -> None:
    with connect(address) as slow:
        slow.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
        assert answer(slow).endswith(b"ok")
        with pytest.raises(OSError, match=r"reset|[Bb]roken"):
            dribble(slow, b" ")


def test_an_answer_may_take_its_time(address: tuple[str, int], app: App) -> None:
    with connect(address) as asking, connect(address) as silent:
        asking.sendall(ASK % b"/slow")
        assert is_closed(silent), "by now, the time for a head is over"
        app.may_end.set()
        assert answer(asking).endswith(b"ok")
        asking.sendall(ASK % b"/")
        assert answer(asking).endswith(b"ok"), "and the connection is still good"


def test_who_does_not_take_an_answer_is_let_go(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_server, "UNREAD_SECONDS", HEAD_SECONDS / 10)
    with connect(address) as asking, connect(address) as silent:
        asking.sendall(ASK % b"/large")
        assert is_closed(silent), "by now, the time to take it is over"
        taken = 0
        while more := asking.recv(2**20):
            taken += len(more)
        assert taken < LARGE, "what was on its way comes, and no more"


def test_who_says_nothing_for_the_longest_makes_room(
    address: tuple[str, int], app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_server, "HEAD_SECONDS", PATIENCE)
    monkeypatch.setattr(web_server, "MOST_CONNECTIONS", 5)
    with ExitStack() as opened:
        asking = opened.enter_context(connect(address))
        asking.sendall(ASK % b"/slow")
        assert app.began.wait(PATIENCE)
        crowd = [opened.enter_context(connect(address)) for _ in range(20)]

        for other in crowd[:15]:
            assert is_closed(other)
        crowd[-1].sendall(ASK % b"/")
        assert answer(crowd[-1]).endswith(b"ok")
        app.may_end.set()
        assert answer(asking).endswith(b"ok"), "who is being answered stays"

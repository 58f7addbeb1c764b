"""The model server without any agent: it follows its script, and it breaks only what the script breaks."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.agents.lab.model_servers.chat import ChatCompletions
from tests.agents.lab.model_servers.replies import CutStream, EmptyStream, Fail, Hang, Say
from tests.agents.lab.model_servers.server import ModelServer

PATH = "/v1/chat/completions"


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(ChatCompletions()) as server:
        yield server


def test_the_script_comes_first_and_then_what_holds_otherwise(server: ModelServer) -> None:
    server.script(Say("one"), Fail(429, headers={"retry-after": "7"}))
    server.otherwise(lambda request: Say(f"answer {request.step}"))

    assert "one" in _ask(server)[1]
    assert _ask(server)[0] == 429
    assert "answer 3" in _ask(server)[1]


def test_an_errand_leaves_the_script_alone(server: ModelServer) -> None:
    server.script(Say("for the conversation"))

    assert "for the conversation" not in _ask(server, tools=False)[1]
    assert "for the conversation" in _ask(server)[1]
    assert (len(server.errands), len(server.requests)) == (1, 1)


def test_a_cut_stream_is_a_broken_connection_and_an_empty_one_is_not(server: ModelServer) -> None:
    server.script(CutStream("partial"), EmptyStream())

    with pytest.raises(http.client.IncompleteRead) as cut:
        _ask(server)
    assert b"partial" in cut.value.partial
    assert _ask(server) == (200, "")


def test_the_end_of_the_server_lets_go_of_who_hangs() -> None:
    hang = Hang("partial")
    with ModelServer(ChatCompletions()) as server:
        server.script(hang)
        client = threading.Thread(target=_ask, args=(server,))
        client.start()
        hang.await_reached()
        assert client.is_alive()
    client.join(timeout=10)
    assert not client.is_alive()


def test_what_is_wanted_from_elsewhere_is_refused_and_noted(server: ModelServer) -> None:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
    connection.set_tunnel("example.com", 443)

    with pytest.raises(OSError, match="Tunnel connection failed"):
        connection.request("GET", "/")

    assert server.strays == ["CONNECT example.com:443"]


def test_waiting_for_a_request_that_never_comes_ends(server: ModelServer) -> None:
    started = time.monotonic()
    with pytest.raises(AssertionError, match="0 of 1 requests"):
        server.await_requests(1, seconds=0.1)
    assert time.monotonic() - started < 10


def _ask(server: ModelServer, *, tools: bool = True) -> tuple[int, str]:
    body = {
        "model": "lab",
        "messages": [{"role": "user", "content": "hello"}],
        "tools": [{}] if tools else [],
    }
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
    try:
        connection.request("POST", PATH, json.dumps(body))
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()

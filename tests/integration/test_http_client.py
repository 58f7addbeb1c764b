"""How a store over HTTP reaches its server: proxies, certificates, timeouts, and the words where it does not."""

import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar, cast

import httpx
import pytest

from holdfast.errors import ConfigError, StoreUnavailable
from holdfast.store import http_store
from holdfast.store.contract import Store
from holdfast.store.http_store import open_http
from holdfast.store.open import open_store
from tests.builders import a_claim
from tests.contract.served import serving
from tests.steps import begin, enqueue

#: its own authority, for 127.0.0.1, made with openssl; nobody trusts it but the tests below
CERTIFICATE = Path(__file__).with_name("loopback_certificate.pem")
#: where nobody listens
NOBODY = "http://127.0.0.1:1"


class Answering(BaseHTTPRequestHandler):
    """Answers any verb with 7, and notes what it was asked for; refuses to connect to others."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[str]]
    may_answer: ClassVar[threading.Event]

    def do_POST(self) -> None:
        self.asked.append(self.path)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.may_answer.wait(30)
        self.send_response(200)
        self.send_header("Content-Length", "1")
        self.end_headers()
        self.wfile.write(b"7")

    def do_CONNECT(self) -> None:
        self.asked.append(self.path)
        self.send_error(403)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def answering(tls: bool = False) -> Iterator[tuple[str, type[Answering]]]:
    class Handler(Answering):
        asked: ClassVar[list[str]] = []
        may_answer: ClassVar[threading.Event] = threading.Event()

    handler = Handler
    handler.may_answer.set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}", handler
    finally:
        handler.may_answer.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_store, "_TRIES", 1)


def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering() as (url, proxy):
        monkeypatch.setenv("HTTP_PROXY", url)
        with closing(open_http("http://fleet.example:8787", "default", None)) as store:
            assert store.now() == 7

    assert proxy.asked == ["http://fleet.example:8787/v1/store/now"]


def test_no_turn_is_claimed_from_a_server_of_another_version() -> None:
    with answering() as (url, server), closing(open_http(url, "default", None)) as store:
        for _ in range(2):
            with pytest.raises(ConfigError, match="another version of Holdfast: update"):
                store.claim_turn(a_claim())

    assert server.asked == ["/v1/store/now"]


def test_a_server_gives_no_turn_to_a_client_of_another_version() -> None:
    with serving() as served, closing(open_store("sqlite:///:memory:")) as behind:
        session = begin(behind)
        enqueue(behind, session, "one")
        room = served.room_of(behind)
        headers = {"Holdfast-Workspace": room, "Holdfast-Contract": "1"}

        answer = httpx.post(f"{served.url}/v1/store/claim_turn", json={}, headers=headers)

        assert (answer.status_code, "update Holdfast" in answer.text) == (422, True)
        assert behind.turns(session.id)[0].attempts == 0


def test_no_proxy_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", NOBODY)
    monkeypatch.setenv("NO_PROXY", "fleet.example")

    assert http_store._proxy_for("http", "fleet.example") is None
    found = http_store._proxy_for("https", "other.example")
    assert found is not None
    assert found.url == httpx.URL(NOBODY)


def test_this_machine_is_never_asked_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", NOBODY)
    monkeypatch.setenv("ALL_PROXY", NOBODY)
    with answering() as (url, server), closing(open_http(url, "default", None)) as store:
        assert store.now() == 7

    assert server.asked == ["/v1/store/now"]
    assert [http_store._proxy_for("http", host) for host in ("localhost", "::1", "127.9.9.9")] == [None] * 3


@pytest.mark.usefixtures("one_try")
def test_a_proxy_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering() as (url, proxy):
        monkeypatch.setenv("HTTPS_PROXY", url)
        with (
            closing(open_http("https://fleet.example", "default", None)) as store,
            pytest.raises(
                StoreUnavailable, match=r"https://fleet\.example: cannot be reached: the proxy refused: 403"
            ),
        ):
            store.now()

    assert proxy.asked == ["fleet.example:443"]


def test_a_proxy_that_is_no_address_is_an_error_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "gopher://ada:hunter2@proxy.example")

    with pytest.raises(ConfigError, match="HTTP_PROXY") as refused:
        open_http("http://fleet.example", "default", None)

    assert "hunter2" not in str(refused.value)


def test_certificates_of_ones_own_are_trusted_where_the_environment_names_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with answering(tls=True) as (url, _):
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        with closing(open_http(url, "default", None)) as store:
            assert store.now() == 7


@pytest.mark.usefixtures("one_try")
def test_a_certificate_that_nobody_vouches_for_is_refused() -> None:
    with (
        answering(tls=True) as (url, _),
        closing(open_http(url, "default", None)) as store,
        pytest.raises(StoreUnavailable, match="certificate verify failed"),
    ):
        store.now()


@pytest.mark.usefixtures("one_try")
def test_a_server_that_does_not_answer_in_time_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_store, "_TIMEOUT", httpx.Timeout(0.2))
    with answering() as (url, server):
        server.may_answer.clear()
        with (
            closing(open_http(url, "default", None)) as store,
            pytest.raises(StoreUnavailable, match=r"no answer within 0\.2 s"),
        ):
            store.now()


@pytest.mark.usefixtures("one_try")
def test_a_server_that_is_not_there_is_said_in_the_words_of_the_system() -> None:
    with (
        closing(open_http(NOBODY, "default", None)) as store,
        pytest.raises(StoreUnavailable, match="cannot be reached: Connection refused"),
    ):
        store.now()


def test_a_token_that_cannot_be_sent_is_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_store, "_TRIES", 1)
    with (
        closing(open_http(NOBODY, "default", "hft_x\nhunter2")) as store,
        pytest.raises(StoreUnavailable) as refused,
    ):
        store.now()

    assert "hunter2" not in str(refused.value)


def test_calls_share_a_connection_and_a_forked_child_makes_its_own() -> None:
    with serving() as served:
        room = served.room_of(cast(Store, _Now()))
        with closing(open_http(served.url, room, None)) as store:
            for _ in range(3):
                assert store.now() == 7
            assert len(_open_to(store)) == 1
            child = os.fork()
            if child == 0:
                os._exit(0 if store.now() == 7 and len(_open_to(store)) == 1 else 1)
            assert os.waitpid(child, 0)[1] == 0
            assert store.now() == 7


class _Now:
    where = "here"

    def now(self) -> int:
        return 7


def _open_to(store: object) -> list[object]:
    assert isinstance(store, http_store.HttpStore)
    return list(store._connections._pool.connections)

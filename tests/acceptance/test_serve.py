"""The server: holdfast serve."""

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from tests.acceptance.command import HOLDFAST, holdfast
from tests.acceptance.served import ask, server


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server("--url", f"sqlite:///{tmp_path_factory.mktemp('served')}/holdfast.db") as (url, _):
        yield url


def test_it_says_where_it_listens_and_answers_there(url: str) -> None:
    for path in ("/healthz", "/readyz"):
        response, answer = ask(url, "GET", path)
        assert (response.status, answer) == (200, {"status": "ok"})


def test_the_command_works_on_a_server_as_on_a_file(url: str) -> None:
    env = {"HOLDFAST_URL": url}
    session = holdfast("create", "--agent", "terraform-architect", env=env).out.strip()

    assert holdfast("update", session, "--phase", "approval", env=env).code == 0
    assert holdfast("should-resume", session, env=env).code == 0
    assert holdfast("get", session, env=env).json["phase"] == "approval"
    assert session in holdfast("list", env=env).out
    assert holdfast("get", "nobody", env=env).code == 3
    ran = holdfast("run", "hello", "--provider", "scripted", "--json", env=env).json
    assert ran["status"] == "done"
    again = holdfast("resume", ran["session_id"], "and on", "--json", env=env).json
    assert (again["status"], again["decision"]["kind"]) == ("done", "resume")


def test_workspaces_are_apart(url: str) -> None:
    env = {"HOLDFAST_URL": url, "HOLDFAST_WORKSPACE": "theirs"}
    session = holdfast("create", "--agent", "a", env=env).out.strip()

    assert holdfast("list", env=env).out.startswith(session)
    assert session not in holdfast("list", env={"HOLDFAST_URL": url}).out


@pytest.mark.parametrize(
    "host",
    [
        "holdfast.example",
        "10.0.0.7:8787",
        "",
        "127.0.0.1.example",
        "evil@127.0.0.1",
        "127.0.0.1#.evil",
        "127.0.0.1/.evil",
        "127.0.0.1?.evil",
    ],
)
def test_it_answers_to_its_own_address_only(url: str, host: str) -> None:
    response, problem = ask(url, "GET", "/healthz", headers={"Host": host})

    assert (response.status, problem["code"]) == (421, "wrong_host")
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "http://127.0.0.1.example",
        "http://localhost:3000",
        "http://127.0.0.1:3000",
        "http://127.0.0.1",
        "http://[::1]",
        "",
    ],
)
def test_a_web_page_of_others_is_not_answered(url: str, origin: str) -> None:
    response, problem = ask(url, "POST", "/v1/store/now", b"{}", {"Origin": origin})

    assert (response.status, problem["code"]) == (403, "foreign_origin")


def test_a_page_of_this_server_is(url: str) -> None:
    own = {"Origin": url, "Sec-Fetch-Site": "same-origin"}
    response, _ = ask(url, "POST", "/v1/store/now", b"{}", own)

    assert response.status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_another_site_asks_for_is_not_answered_even_without_an_origin(url: str, site: str) -> None:
    response, problem = ask(url, "GET", "/v1/sessions", headers={"Sec-Fetch-Site": site})

    assert (response.status, problem["code"]) == (403, "foreign_origin")


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "", "text/plain; application/json"]
)
def test_a_body_that_a_page_of_others_could_send_unasked_is_not_read(url: str, kind: str) -> None:
    for method, path in (("POST", "/v1/store/now"), ("POST", "/v1/sessions"), ("POST", "/v1/hooks/stop")):
        response, problem = ask(url, method, path, b"{}", {"Content-Type": kind})
        assert (response.status, problem["code"]) == (415, "unsupported_media_type")
    assert (
        ask(url, "POST", "/v1/store/now", b"{}", {"Content-Type": "application/json; charset=utf-8"})[
            0
        ].status
        == 200
    )


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/store/get_session", b'{"session_id": "nobody"}', 404, "not_found"),
        ("/v1/store/get_session", b"[", 422, "invalid_input"),
        ("/v1/store/get_session", b"[" * 100_000, 422, "invalid_input"),
        (
            "/v1/store/create_session",
            b'{"new": {"id": "x", "agent": "a", "metadata": ' + b'{"a":' * 2000 + b"1" + b"}" * 2002,
            422,
            "invalid_input",
        ),
        ("/v1/store/get_session", b"{}", 422, "invalid_input"),
        ("/v1/store/get_session", b'{"session_id": 7}', 422, "invalid_input"),
        ("/v1/store/get_session", b'{"session_id": "a", "x": 1}', 422, "invalid_input"),
        ("/v1/store/get_session", b'{"session_id": "' + b"a" * 2000 + b'"}', 422, "invalid_input"),
        ("/v1/store/orphans", b'{"limit": NaN}', 422, "invalid_input"),
        ("/v1/store/orphans", b'{"limit": 1' + b"0" * 30 + b"}", 422, "invalid_input"),
        ("/v1/store/orphans", b'{"limit": 10001}', 422, "invalid_input"),
        ("/v1/store/close", b"{}", 404, "not_found"),
        ("/v1/store/__init__", b"{}", 404, "not_found"),
    ],
)
def test_a_call_that_cannot_be_made_says_why(
    url: str, path: str, body: bytes, status: int, code: str
) -> None:
    response, answer = ask(url, "POST", path, body)

    assert (response.status, answer["code"]) == (status, code)


def test_a_body_that_is_too_large_is_refused_before_it_is_read(url: str) -> None:
    response, problem = ask(url, "POST", "/v1/store/now", headers={"Content-Length": str(10**9)})

    assert (response.status, problem["code"]) == (413, "too_large")


def test_a_text_that_is_too_large_for_a_server_is_not_tried_again(url: str) -> None:
    env = {"HOLDFAST_URL": url}
    session = holdfast("create", "--agent", "a", env=env).out.strip()

    ended = holdfast("enqueue", session, "-", "--provider", "scripted", stdin="x" * (2**24 - 8), env=env)

    assert ended.code == 2
    assert "is more than the server takes" in ended.one_line_error()


def test_a_first_turn_that_is_too_large_for_a_server_leaves_no_session_behind(url: str) -> None:
    env = {"HOLDFAST_URL": url}

    # each character is six bytes when it travels
    ended = holdfast("enqueue", "--agent", "huge", "--provider", "scripted", "-", stdin="…" * 2**22, env=env)

    assert ended.code == 2
    assert holdfast("list", "--agent", "huge", "--json", env=env).json["sessions"] == []


def test_a_body_without_a_length_is_read_up_to_the_limit(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        head = f"POST /v1/store/now HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())
        try:
            for _ in range(40):
                connection.sendall(b"80000\r\n" + b" " * 0x80000 + b"\r\n")
        except OSError:
            pass  # it hung up, which is as good
        assert b" 413 " in connection.recv(100)


def test_a_body_that_ends_in_two_ways_is_refused_and_nothing_behind_it_is_answered(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    head = f"POST /v1/store/now HTTP/1.1\r\nHost: {host}\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
    behind = f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(f"{head}2\r\n{{}}\r\n0\r\n\r\n{behind}".encode())
        answered = b"".join(iter(lambda: connection.recv(4096), b""))

    assert answered.count(b"HTTP/1.1 ") == 1
    assert answered.startswith(b"HTTP/1.1 400 ")


def test_what_is_not_there_is_a_problem_too(url: str) -> None:
    response, problem = ask(url, "GET", "/v1/nothing")

    assert (response.status, problem["title"], problem["status"]) == (404, "Not Found", 404)


def test_a_store_that_fails_says_nothing_about_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.db"
    with server("--url", f"sqlite:///{file}") as (url, _):
        for left in tmp_path.iterdir():
            left.write_bytes(b"garbage" * 1000)
        response, problem = ask(url, "GET", "/readyz")

    assert response.status in (500, 503)
    assert str(tmp_path) not in json.dumps(problem)


def test_a_crowd_that_asks_nothing_keeps_nobody_out(url: str) -> None:
    parts = urlsplit(url)
    with ExitStack() as crowd:
        for _ in range(900):
            crowd.enter_context(socket.create_connection((str(parts.hostname), parts.port), 30))

        assert ask(url, "GET", "/healthz")[1] == {"status": "ok"}
        assert holdfast("list", env={"HOLDFAST_URL": url}).code == 0


def test_sigterm_ends_it_well() -> None:
    with server() as (_, process):
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


def test_two_cannot_have_one_port(url: str) -> None:
    port = url.rpartition(":")[2]

    ended = holdfast("serve", "--port", port)

    assert ended.code == 2
    assert f"cannot listen on 127.0.0.1:{port}" in ended.one_line_error()


@pytest.mark.parametrize("host", ["0.0.0.0", "example.com", "::"])
def test_others_are_not_let_in(host: str) -> None:
    ended = holdfast("serve", "--host", host)

    assert ended.code == 2
    assert "is not a loopback address" in ended.one_line_error()


def test_a_server_that_is_not_there_is_said_in_one_line() -> None:
    ended = holdfast("list", env={"HOLDFAST_URL": "http://127.0.0.1:9"})

    assert ended.code == 1
    assert "http://127.0.0.1:9: cannot be reached" in ended.one_line_error()


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_server_that_cannot_begin_says_so_in_its_log(tmp_path: Path, form: tuple[str, ...]) -> None:
    """The log is JSON from its first line to its last; what the command says on standard output stays."""
    ended = holdfast(
        "serve", "--log-json", "--host", "0.0.0.0", "--url", f"sqlite:///{tmp_path}/holdfast.db", *form
    )

    line = json.loads(ended.err)
    assert (ended.code, line["level"], line["code"]) == (2, "error", "invalid_input")
    assert json.loads(ended.out)["error"]["code"] == "invalid_input" if form else ended.out == ""


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:99999", "write http://host:port"),
        ("http://127.0.0.1:port", "write http://host:port"),
        ("http://127.0.0.1:8787?token=swordfish", "write http://host:port"),
        ("https://me:swordfish@127.0.0.1:8787", "HOLDFAST_TOKEN says who you are"),
    ],
)
def test_an_address_that_cannot_be_one_is_not_quoted(url: str, words: str) -> None:
    ended = holdfast("list", env={"HOLDFAST_URL": url})

    assert ended.code == 2
    assert words in ended.one_line_error()
    assert "swordfish" not in ended.err


def test_tls_where_there_is_none_is_said(url: str) -> None:
    ended = holdfast("list", env={"HOLDFAST_URL": url.replace("http:", "https:")})

    assert ended.code == 1
    assert "does not speak TLS there" in ended.one_line_error()


def test_json_logs_are_json_from_the_first_line() -> None:
    command = [str(HOLDFAST), "serve", "--port", "0", "--log-json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        with urlopen(Request(f"{url}/healthz", method="HEAD")) as answer:
            assert answer.status == 200
        assert holdfast("worker", "--provider", "scripted", "--once", env={"HOLDFAST_URL": url}).code == 0
        ask(url, "SWORDFISH", "/healthz")
        ask(url, "GET", "/readyz")
        process.terminate()
        lines = process.stdout.read().splitlines()

    told = [json.loads(line)["message"] for line in lines]
    assert (told[0], told[-1]) == ("HEAD healthz", "GET readyz")
    assert "POST register_runtime" in told
    assert told[-2] == "other none"
    assert "POST claim_turn" not in told, "a worker that finds nothing to do is no news"

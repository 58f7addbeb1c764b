"""Tokens, from the command that makes them to the server that asks for them."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.command import Ended, holdfast, ok
from tests.acceptance.served import ask, server

TOKEN = re.compile(r"hft_[0-9a-f]{12}_[0-9a-f]{64}")


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/holdfast.db"


def make(store: str, role: str, *options: str) -> str:
    made = ok("token", "create", "--role", role, "--url", store, *options).out.strip()
    assert TOKEN.fullmatch(made)
    return made


def test_a_token_is_shown_once_and_never_kept(store: str, tmp_path: Path) -> None:
    token = make(store, "worker", "--name", "build machines", "--expires", "3600")
    _, token_id, secret = token.split("_")

    (listed,) = ok("token", "list", "--url", store, "--json").json["tokens"]

    assert (listed["token_id"], listed["role"], listed["name"]) == (token_id, "worker", "build machines")
    assert listed["revoked_at"] is None
    assert secret not in ok("token", "list", "--url", store).out
    for file in tmp_path.iterdir():
        assert secret.encode() not in file.read_bytes()


def test_a_revoked_token_is_listed_as_such(store: str) -> None:
    token_id = make(store, "reader").split("_")[1]

    assert ok("token", "revoke", token_id, "--url", store).out.split("\t")[0] == token_id
    assert "revoked" in ok("token", "list", "--url", store).out
    assert holdfast("token", "revoke", "0" * 12, "--url", store).code == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["create"], "give --role"),
        (["revoke"], "give the ID of a token"),
        (["list", "--role", "reader"], "--role is not an option of list"),
        (["create", "--role", "king"], "'king' is not one of"),
        (["create", "--role", "reader", "--expires", "0"], "0"),
        (["create", "--role", "reader", "--name", "a\nb"], "name"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: list[str], words: str) -> None:
    ended = holdfast("token", *arguments)

    assert ended.code == 2
    assert words in ended.one_line_error()


def test_once_there_is_a_token_the_server_asks_for_one(store: str) -> None:
    with server("--url", store) as (url, _):
        assert holdfast("list", env={"HOLDFAST_URL": url}).code == 0
        token = make(store, "operator")
        wait_until_closed(url)

        ended = holdfast("list", env={"HOLDFAST_URL": url})
        assert ended.code == 4
        assert "asks for a token: set HOLDFAST_TOKEN" in ended.one_line_error()

        env = {"HOLDFAST_URL": url, "HOLDFAST_TOKEN": token}
        session = ok("create", "--agent", "terraform-architect", env=env).out.strip()
        assert ok("get", session, env=env).json["phase"] == "initializing"
        for path in ("/docs", "/openapi.json", "/readyz", "/v1/store/now", "/nothing"):
            response, problem = ask(url, "GET", path)
            assert (response.status, problem["code"]) == (401, "unauthenticated")
            assert response.headers["www-authenticate"] == "Bearer"
        assert ask(url, "GET", "/healthz")[1] == {"status": "ok"}


def wait_until_closed(url: str) -> None:
    for _ in range(100):
        if ask(url, "GET", "/readyz")[0].status == 401:
            return
        time.sleep(0.1)
    raise AssertionError("it still lets everyone in")


def test_no_address_is_not_every_address(store: str) -> None:
    make(store, "admin")

    ended = holdfast("serve", "--host", "", "--url", store)

    assert ended.code == 2
    assert "host: must not be empty" in ended.one_line_error()


def test_a_role_and_a_workspace_are_kept(store: str) -> None:
    reader = make(store, "reader")
    theirs = make(store, "admin", "--workspace", "theirs")
    with server("--url", store) as (url, _):
        env = {"HOLDFAST_URL": url, "HOLDFAST_TOKEN": reader}
        ended = holdfast("create", "--agent", "a", env=env)
        assert ended.code == 4
        assert "a token of the role reader does not do create_session" in ended.one_line_error()

        env = {"HOLDFAST_URL": url, "HOLDFAST_TOKEN": theirs}
        assert "set HOLDFAST_WORKSPACE=theirs" in holdfast("list", env=env).one_line_error()
        env["HOLDFAST_WORKSPACE"] = "theirs"
        made = ok("token", "create", "--role", "reader", "--json", env=env).json
        assert made["workspace"] == "theirs"
        assert len(ok("token", "list", "--json", env=env).json["tokens"]) == 2, "those of its workspace"


@pytest.fixture
def open_to_others(store: str) -> Iterator[tuple[str, str]]:
    token = make(store, "reader")
    with server("--url", store, "--host", "0.0.0.0") as (url, _):
        yield url.replace("0.0.0.0", "127.0.0.1"), token


def test_with_a_token_others_are_let_in_by_any_name_but_not_their_pages(
    open_to_others: tuple[str, str],
) -> None:
    url, token = open_to_others
    known = {"Authorization": f"Bearer {token}", "Host": "fleet.example"}

    assert ask(url, "GET", "/readyz", headers=known)[0].status == 200
    same = {**known, "Origin": "https://fleet.example", "X-Forwarded-For": "10.0.0.7"}
    assert ask(url, "GET", "/readyz", headers=same)[0].status == 200
    for origin in ("https://evil.example", "null", "https://fleet.example.evil.example"):
        response, problem = ask(url, "GET", "/readyz", headers={**known, "Origin": origin})
        assert (response.status, problem["code"]) == (403, "foreign_origin")


def test_behind_a_proxy_pages_of_exactly_the_public_origins_are_answered(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"Authorization": f"Bearer {make(store, 'reader')}", "Host": "127.0.0.1:8787"}

    def asked(url: str, **headers: str) -> int:
        return ask(url, "GET", "/readyz", headers=known | headers)[0].status

    public = "https://fleet.example,https://fleet.example:8443"
    monkeypatch.setenv("HOLDFAST_SERVER__PUBLIC_ORIGINS", public)
    with server("--url", store) as (url, _):
        assert asked(url) == 200, "a program names no origin"
        assert asked(url, Origin="https://fleet.example") == 200
        assert asked(url, Origin="https://fleet.example:8443") == 200
        for origin in ("http://fleet.example", "https://fleet.example:444", "http://127.0.0.1:8787", "null"):
            response, problem = ask(url, "GET", "/readyz", headers={**known, "Origin": origin})
            assert (response.status, problem["code"]) == (403, "foreign_origin"), origin
        site = {"Sec-Fetch-Site": "cross-site"}
        assert asked(url, Origin="https://fleet.example", **site) == 403
    monkeypatch.delenv("HOLDFAST_SERVER__PUBLIC_ORIGINS")
    with server("--url", store) as (url, _):
        assert asked(url, Origin="https://fleet.example") == 403, "nobody has said that it is its own"
        assert asked(url, Origin="http://127.0.0.1:8787") == 200


def test_a_server_does_not_begin_with_an_origin_that_no_browser_sends(store: str) -> None:
    env = {"HOLDFAST_SERVER__PUBLIC_ORIGINS": "https://fleet.example/"}
    ended = holdfast("serve", "--port", "0", "--url", store, env=env)

    assert ended.code == 2
    told = ended.one_line_error()
    assert (
        "HOLDFAST_SERVER__PUBLIC_ORIGINS: server.public_origins must be origins as browsers send them" in told
    )
    assert "has more than a scheme, a host and a port" in told


@pytest.mark.parametrize(
    "header", ["X-Forwarded-For", "X-Forwarded-Proto", "Forwarded", "Via", "X-Real-IP", "CF-Connecting-IP"]
)
def test_a_proxy_before_a_server_without_tokens_lets_nobody_in(store: str, header: str) -> None:
    with server("--url", store) as (url, _):
        response, problem = ask(url, "GET", "/readyz", headers={header: "for=10.0.0.7"})

    assert (response.status, problem["code"]) == (403, "proxied")


def test_too_many_requests_are_told_when_to_come_back(store: str) -> None:
    with server("--url", store, "--rate", "1") as (url, _):
        answers = [ask(url, "GET", "/readyz")[0] for _ in range(4)]

        refused = [answer for answer in answers if answer.status == 429]
        assert refused
        assert all(answer.headers["retry-after"] == "1" for answer in refused)
        assert holdfast("list", env={"HOLDFAST_URL": url}).code == 0, "the command waits its turn"


def test_a_server_is_no_store_for_another_server(store: str) -> None:
    with server("--url", store) as (url, _):
        ended = holdfast("serve", "--port", "0", "--url", url)

    assert ended.code == 2
    assert "not on another server" in ended.one_line_error()


@pytest.mark.parametrize("token", ["two words", "a\tb", "schlüssel"])
def test_a_token_that_cannot_be_one_is_said_before_anything_is_sent(token: str) -> None:
    ended = holdfast("list", env={"HOLDFAST_URL": "http://127.0.0.1:9", "HOLDFAST_TOKEN": token})

    assert ended.code == 2
    assert "token" in ended.one_line_error()


def test_an_operator_enqueues_and_a_worker_runs(store: str) -> None:
    operator, worker, reader = (make(store, role) for role in ("operator", "worker", "reader"))
    with server("--url", store) as (url, _):

        def on_server(token: str, *arguments: str) -> Ended:
            return holdfast(*arguments, env={"HOLDFAST_URL": url, "HOLDFAST_TOKEN": token})

        given = ("enqueue", "--agent", "a", "--provider", "scripted", "--name", "infra", "hello")
        assert on_server(operator, *given).code == 0
        assert on_server(operator, "enqueue", "infra", "and on").code == 0
        assert on_server(operator, "worker", "--provider", "scripted", "--once").code != 0
        assert on_server(worker, "worker", "--provider", "scripted", "--once").code == 0
        shown = on_server(reader, "log", "infra", "--json")
        assert (shown.code, '"turn": 2' in shown.out) == (0, True)
        assert on_server(worker, "enqueue", "infra", "more").code == 4
        assert on_server(reader, "cancel", "infra").code == 4


def test_the_trail_names_the_token_that_changed_a_session(store: str) -> None:
    operator = make(store, "operator", "--name", "ada")
    with server("--url", store) as (url, _):
        env = {"HOLDFAST_URL": url, "HOLDFAST_TOKEN": operator}
        session = holdfast("create", "--agent", "a", env=env).out.strip()
        assert holdfast("update", session, "--phase", "planning", env=env).code == 0
        headers = {"Authorization": f"Bearer {operator}", "Content-Type": "application/json"}
        changed, _ = ask(url, "PATCH", f"/v1/sessions/{session}", '{"error": "no"}', headers)
        assert changed.status == 200
        lines = holdfast("log", session, "--json", env=env).lines

    _, phase, error = (json.loads(line) for line in lines)
    _, token_id, _ = operator.split("_")
    assert phase["by"] == error["by"] == f"ada ({token_id})"

"""A project file that nobody trusted: it takes neither tokens nor passwords, and `holdfast trust` is what changes that."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from holdfast.domain.tokens import ENTROPY, Role, make_token
from holdfast.hooks.main import EVENTS
from tests.acceptance.command import holdfast
from tests.integration.hook_process import log_of
from tests.processes import until

TOKEN = make_token(Role.OPERATOR, "ada", None, bytes(ENTROPY))[1]


class Thief:
    """A server that writes down what it is sent; it sends everyone on to ``elsewhere``, if there is one."""

    def __init__(self, elsewhere: str | None = None) -> None:
        self.heads: list[str] = []
        thief = self

        class Handler(BaseHTTPRequestHandler):
            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                thief.heads.append(f"{self.requestline}\n{self.headers}")
                self.send_response(401 if elsewhere is None else 307)
                if elsewhere is not None:
                    self.send_header("Location", elsewhere)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def thief() -> Iterator[Thief]:
    thief = Thief()
    yield thief
    thief.close()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    clone = tmp_path / "clone"
    (clone / ".git").mkdir(parents=True)
    return clone


def everything(clone: Path, **variables: str) -> None:
    """Whatever happens when somebody works there, with a command typed or without."""
    payload = json.dumps({"session_id": "s", "cwd": str(clone), "agent_name": "a"})
    for event in EVENTS:
        assert holdfast("hook", event, cwd=clone, env=variables, stdin=payload).code == 0
    holdfast("list", cwd=clone, env=variables)
    holdfast("hooks", "status", cwd=clone, env=variables)


def hooks_over_http(clone: Path, url: str) -> None:
    """As a project's settings for Claude Code have them."""
    holdfast("hooks", "install", "--project", "--http", url, cwd=clone)
    assert url in (clone / ".claude" / "settings.json").read_text()


def test_a_token_is_not_sent_to_a_server_that_a_checkout_names(clone: Path, thief: Thief, home: Path) -> None:
    (clone / ".holdfast.toml").write_text(f'url = "{thief.url}"\nworkspace = "clone"\n')
    hooks_over_http(clone, thief.url)
    everything(clone, HOLDFAST_TOKEN=TOKEN)
    # `hooks status` asks the server that the hooks of Claude Code are sent to, without the token
    assert [head.splitlines()[0] for head in thief.heads] == ["GET /v1/hooks HTTP/1.1"]
    assert TOKEN not in "".join(thief.heads)
    assert (home / ".local/share/holdfast/holdfast.db").exists()
    (logged,) = {line["why"] for line in log_of(home) if line["what"] == "not trusted"}
    assert logged.startswith(
        f"{clone}/.holdfast.toml: ignored url, workspace: you have not trusted this file;"
    )


def test_after_trust_the_server_is_used_and_still_gets_no_token_of_another_one(
    clone: Path, thief: Thief, home: Path
) -> None:
    (clone / ".holdfast.toml").write_text(f'url = "{thief.url}"\n')
    assert holdfast("trust", cwd=clone).code == 0
    everything(clone, HOLDFAST_TOKEN=TOKEN)
    told = holdfast("list", cwd=clone, env={"HOLDFAST_TOKEN": TOKEN})
    assert (
        f"HOLDFAST_TOKEN: this token is for no server that you have named and is not sent to {thief.url}"
        in told.err
    )
    until(lambda: thief.heads)
    assert TOKEN not in "".join(thief.heads)
    holdfast("list", cwd=clone, env={"HOLDFAST_TOKEN": TOKEN, "HOLDFAST_URL": thief.url})
    assert TOKEN in thief.heads[-1]


def test_a_redirection_does_not_take_the_token_along(thief: Thief, clone: Path) -> None:
    first = Thief(elsewhere=f"{thief.url}/v1/x")
    try:
        holdfast("list", cwd=clone, env={"HOLDFAST_TOKEN": TOKEN, "HOLDFAST_URL": first.url})
        assert TOKEN in "".join(first.heads)
    finally:
        first.close()
    assert thief.heads == []


def test_a_password_is_not_sent_to_a_database_that_a_checkout_names(clone: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.5)
        port = listening.getsockname()[1]
        (clone / ".holdfast.toml").write_text(f'url = "postgresql://ada@127.0.0.1:{port}/x"\n')
        everything(clone, PGPASSWORD="hunter2-hunter2")
        with pytest.raises(TimeoutError):
            listening.accept()


def test_what_is_ignored_is_said_in_one_line(clone: Path) -> None:
    (clone / ".holdfast.toml").write_text('workspace = "w"\n[retention]\nmax_age_hours = 0.001\n')
    listed = holdfast("list", "--json", cwd=clone)
    assert listed.code == 0
    assert listed.json["sessions"] == []
    assert listed.err == (
        f"holdfast: warning: {clone}/.holdfast.toml: ignored retention.max_age_hours, workspace: "
        "you have not trusted this file; read it, then: holdfast trust\n"
    )


def test_trust_is_given_shown_and_taken_back(clone: Path) -> None:
    file = clone / ".holdfast.toml"
    file.write_text('url = "postgresql://ada:hunter2@db.example.net/x"\n[continue]\nmax_errors = 5\n')
    below = clone / "src"
    below.mkdir()

    shown = holdfast("trust", "--show", cwd=below)
    assert shown.lines[0] == f"not trusted: {file}"
    assert "hunter2" not in shown.out
    assert [line.split() for line in shown.lines[1:]] == [
        ["continue.max_errors", "5"],
        ["url", "postgresql://db.example.net", "(ignored)"],
    ]
    assert holdfast("trust", cwd=below).lines[0] == f"trusted: {file}"
    assert holdfast("trust", "--show", "--json", cwd=clone).json["trusted"] is True
    file.write_text(file.read_text() + "# changed\n")
    assert holdfast("trust", "--show", "--json", str(clone), cwd=Path("/")).json["trusted"] is False
    holdfast("trust", cwd=clone)
    assert holdfast("trust", "--revoke", cwd=clone).lines[0] == f"no longer trusted: {file}"
    assert holdfast("trust", "--revoke", cwd=clone).lines[0] == f"was not trusted: {file}"


def test_trust_needs_a_person_and_a_file_without_mistakes(clone: Path) -> None:
    missing = holdfast("trust", cwd=clone)
    assert (missing.code, missing.err) == (
        2,
        f"holdfast: {clone}: no .holdfast.toml in this directory, nor above it in the same repository\n",
    )
    (clone / ".holdfast.toml").write_text('workspace = "w"\n')
    refused = holdfast("trust", cwd=clone, env={"HOLDFAST_SESSION": "agent-1"})
    assert (refused.code, "only a person can" in refused.err) == (4, True)
    (clone / ".holdfast.toml").write_text("workspace = 5\n")
    wrong = holdfast("trust", cwd=clone)
    assert (wrong.code, "workspace: expected string, found 5" in wrong.err) == (2, True)
    assert holdfast("trust", "--show", "--revoke", cwd=clone).code == 2


@pytest.mark.parametrize("trusted", [False, True])
def test_hooks_use_the_store_of_a_project_once_it_is_trusted(clone: Path, home: Path, trusted: bool) -> None:
    """Also when a hook was called before: what it had read is not used any longer."""
    (clone / ".holdfast.toml").write_text('url = "sqlite:///team.db"\n')

    def delegate() -> None:
        question = json.dumps({"agent_name": "a", "cwd": str(clone)})
        assert holdfast("hook", "pre-delegate", cwd=clone, stdin=question).code == 0

    delegate()
    if trusted:
        holdfast("trust", cwd=clone)
        delegate()
        holdfast("trust", "--revoke", cwd=clone)
        made = (clone / "team.db").stat().st_mtime_ns
        delegate()
        assert (clone / "team.db").stat().st_mtime_ns == made
    assert (clone / "team.db").exists() is trusted

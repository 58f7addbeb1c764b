"""Mistakes that people make: what went wrong, where, and the next thing to type. One row a mistake."""

import os
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.acceptance.command import holdfast, ok
from tests.acceptance.screen import terminal


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["resume"], 2, "the ID of a session is missing; holdfast list shows them (see: holdfast resume --help)"),
        (["fork"], 2, "the ID of a session is missing; holdfast list shows them (see: holdfast fork --help)"),
        (["resume", "nosuch", "go on"], 3, "session not found: nosuch; holdfast list shows the sessions"),
        (["run", "hello", "--provider", "clod"], 2, "provider: 'clod' is not one of claude, codex, "),
        (["run", "hello", "--provider", "cluade"], 2,
         "provider: 'cluade' is not one of claude, codex, opencode, gemini, scripted; did you mean claude?"),
        (["run", "hello", "--provider", "claude"], 2,
         "claude: its command claude is not on PATH; install it with npm install -g @anthropic-ai/claude-code, or name its binary with HOLDFAST_CLAUDE_BINARY"),
        (["run", "hello", "--provider", "scripted", "--cwd", "/no/such"], 2, "cwd: /no/such is not a directory"),
        (["approve", "nosuch"], 3, "approval not found: nosuch; holdfast approvals lists the open ones"),
        (["token", "revoke", "nosuch"], 3, "token not found: nosuch; holdfast token list shows the tokens"),
        (["token", "create", "ci", "--role", "reader"], 2, "create takes no ID; name the token with --name ci "),
        (["search"], 2, "WORDS is missing (see: holdfast search --help)"),
        (["list", "--url", "http://127.0.0.1:1"], 1,
         "http://127.0.0.1:1: cannot be reached: Connection refused; is holdfast serve running there? Check --url and HOLDFAST_URL"),
        (["list", "--url", "/srv/holdfast.db"], 2, "url: '/srv/holdfast.db' is not a store; write sqlite:////srv/holdfast.db"),
        (["list", "--url", "data.db"], 2, "url: 'data.db' is not a store; write sqlite:///data.db"),
        (["list", "--url", "mysql://x"], 2, "url: 'mysql' is not a store (sqlite:///path, "),
        (["delete", "nosuch"], 2, "command not found: delete; did you mean rm? (see: holdfast --help)"),
        (["serv"], 2, "command not found: serv; did you mean serve? (see: holdfast --help)"),
    ],
    ids=repr,
)  # fmt: skip
def test_a_mistake_is_named_with_what_to_do_next(
    arguments: list[str], code: int, message: str, tmp_path: Path
) -> None:
    wrong = holdfast(*arguments, env={"PATH": str(tmp_path)})

    assert wrong.one_line_error().startswith(message)
    assert wrong.code == code


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("HOLDFAST_RUN_PROVIDER", "; did you mean HOLDFAST_RUN__PROVIDER?"),
        ("HOLDFAST_WORKSPAC", "; did you mean HOLDFAST_WORKSPACE?"),
        ("HOLDFAST_XQZ", ""),
    ],
)
def test_a_variable_that_means_nothing_is_reported(variable: str, told: str) -> None:
    listed = holdfast("list", env={variable: "scripted"})

    assert listed.code == 0
    assert listed.err == (
        f"holdfast: warning: environment: {variable} is not a setting and is ignored{told}\n"
    )


def test_variables_that_holdfast_uses_are_not_reported(library: Holdfast) -> None:
    library.create("a")
    known = ("AGENT_TOKEN", "ATTEMPT", "CLAUDE_BINARY", "DEBUG", "LOG_LEVEL", "REQUIRE", "SESSION", "TEST_X")

    assert holdfast("list", env={f"HOLDFAST_{name}": "" for name in known}).err == ""


def test_a_current_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    def leave_nowhere() -> None:
        gone = tmp_path / "gone"
        gone.mkdir()
        os.chdir(gone)
        gone.rmdir()

    wrong = holdfast("run", "hello", "--provider", "scripted", before=leave_nowhere)

    assert wrong.code == 1
    assert wrong.one_line_error() == (
        "the current directory was deleted or moved: change to one that exists, and try again"
    )


@pytest.fixture(
    params=[(404, b"<html>not here</html>"), (200, b"<html>hello</html>"), (404, b"{}")], ids=repr
)
def other_server(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """A web server that is not Holdfast."""
    status, body = request.param

    class Other(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(HTTPStatus(status))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", status
        finally:
            server.shutdown()
            thread.join()


def test_a_server_that_is_something_else_is_named(other_server: tuple[str, int]) -> None:
    url, status = other_server

    wrong = holdfast("list", "--url", url)

    assert wrong.code == 1
    assert wrong.one_line_error() == (
        f"{url}: this is not a Holdfast server: it answered {status} to now; check the address"
    )


def test_a_port_that_is_taken_is_named_with_a_way_out() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        wrong = holdfast("serve", "--port", str(port))

    assert wrong.code == 2
    assert wrong.one_line_error() == (
        f"port: cannot listen on 127.0.0.1:{port}: Address already in use; "
        "stop what listens there, or choose another one: --port 0 takes a free one"
    )


@pytest.mark.parametrize("name", ["deploy", "x" * 200])
def test_a_name_that_was_offered_can_be_taken(name: str) -> None:
    ok("create", "--agent", "a", "--name", name)
    free = holdfast("create", "--agent", "a", "--name", name, "--json").json["error"]["details"]["free"]

    assert ok("create", "--agent", "a", "--name", free).lines


def test_a_turn_that_is_not_there_is_named_with_the_command_that_shows_the_turns(
    scripted_place: Path,
) -> None:
    assert holdfast("run", "--name", "plan", "hello").code == 0

    for wrong in (holdfast("log", "plan", "--turn", "9"), holdfast("fork", "plan", "--at", "9")):
        assert (wrong.code, wrong.one_line_error()) == (
            3,
            "turn not found: 9; holdfast log ID shows the turns",
        )


def test_a_database_of_a_newer_version_is_named_with_the_command_that_updates(tmp_path: Path) -> None:
    file = tmp_path / "newer.db"
    ok("create", "--agent", "a", "--url", f"sqlite:///{file}")
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA user_version = 99")
        database.commit()

    wrong = holdfast("list", "--url", f"sqlite:///{file}")

    assert wrong.code == 1
    assert "made by a newer Holdfast" in wrong.one_line_error()
    assert wrong.one_line_error().endswith("; update this one: pipx upgrade holdfast-sessions")

    other = tmp_path / "holdfast"
    other.write_text("#!/bin/sh\necho holdfast 99.0.0\n")
    other.chmod(0o755)
    wrong = holdfast("list", "--url", f"sqlite:///{file}", env={"PATH": f"{os.environ['PATH']}:{tmp_path}"})

    assert f"; use the other one on PATH, {other} (99.0.0), or update this one: " in wrong.one_line_error()


def test_an_old_python_is_named() -> None:
    asked = "import sys; sys.version_info = (3, 10, 2); import holdfast"
    ran = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stderr) == (1, "holdfast needs Python 3.11 or newer; this is Python 3.10.2\n")


def test_a_long_sentence_ends_its_lines_between_words_and_keeps_a_command_whole() -> None:
    with terminal("run", "hello", "--provider", "claude", env={"PATH": "/nowhere"}) as screen:
        assert screen.end() == 2

    assert screen.shown == (
        "holdfast: claude: its command claude is not on PATH; install it with\n"
        "npm install -g @anthropic-ai/claude-code, or name its binary with\n"
        "HOLDFAST_CLAUDE_BINARY\n"
    )

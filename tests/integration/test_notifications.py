"""Notices reach a command or a server, again when it failed, and never hold up a turn."""

import json
import re
import shlex
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import Instant
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.ids import ApprovalId, SessionId
from holdfast.domain.notices import Notice, Occasion, notice_document
from holdfast.domain.policy import NotifyPolicy, Policy
from holdfast.domain.redaction import Json
from holdfast.domain.turns import TurnStatus
from holdfast.engine.running.turn_path import turn_notice
from holdfast.notifying import notify
from tests.integration.workshop import Workshop, eventually

FAILS = "FAIL 401 who are you"
#: much less than a notice may take, and more than a turn needs on a busy machine
PROMPT_SECONDS = 8.0


class Server(ThreadingHTTPServer):
    """Answers with these codes in order, the last one again and again; 0 is silence until the end."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.answers = [204]
        self.received: list[dict[str, Any]] = []
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook?key=swordfish"


class _Receiver(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.received.append(json.loads(body))
        answers = self.server.answers
        code = answers.pop(0) if len(answers) > 1 else answers[0]
        if code == 0:
            self.server.over.wait(60)
            return
        self.send_response(code)
        self.send_header("location", "/elsewhere")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def log(home: Path) -> Path:
    return home / ".local" / "state" / "holdfast" / "notify.log"


def logged(log: Path) -> dict[str, Any]:
    text = eventually(lambda: log.exists() and log.read_text())
    (line,) = text.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def told(**rules: Any) -> Policy:
    return Policy(notify=NotifyPolicy(**rules))


def a_notice(**changes: Any) -> Notice:
    fine = {
        "occasion": Occasion.TURN_FAILED,
        "session_id": SessionId("agent-20260108-180530-abc12345"),
        "agent": "planner",
        "what": "auth: who are you",
        "command": "holdfast resume deploy",
        "at": Instant(0),
        "turn": 3,
    }
    return Notice(**{**fine, **changes})


def test_a_failed_turn_is_told_with_what_to_type_next(shop: Workshop, server: Server) -> None:
    hf = shop.open(told(webhook=server.url))

    failed = hf.run(FAILS, provider="scripted", agent="planner", cwd=str(shop.work_dir))

    (notice,) = eventually(lambda: server.received)
    assert notice["event"] == "turn_failed"
    assert (notice["session_id"], notice["turn"], notice["agent"]) == (failed.session_id, 1, "planner")
    assert "who are you" in notice["what"]
    assert notice["command"] == failed.continue_with


def test_a_limit_is_told_as_a_limit(shop: Workshop, server: Server) -> None:
    hf = shop.open(told(webhook=server.url))

    hf.run("FAIL 429 usage limit reached, resets at 4102444800", provider="scripted", cwd=str(shop.work_dir))

    (notice,) = eventually(lambda: server.received)
    assert notice["event"] == "limit_reached"


def test_a_session_that_is_done_is_told_once(shop: Workshop, server: Server) -> None:
    hf = shop.open(told(webhook=server.url))
    session = hf.create("planner")

    assert hf.finalize_session(session.id, "completed", "Terraform applied")
    assert not hf.finalize_session(session.id, "completed", "again")

    (notice,) = eventually(lambda: server.received)
    assert (notice["event"], notice["what"]) == ("session_done", "completed: Terraform applied")
    assert notice["command"] == f"holdfast show {session.id}"


def test_a_turn_that_is_tried_again_by_itself_is_not_told_unless_it_waits_for_a_limit(shop: Workshop) -> None:
    result = replace(shop.begin(), turn_status=TurnStatus.QUEUED)

    def occasion(kind: FailureClass) -> Occasion | None:
        notice = turn_notice(replace(result, failure=Failure(kind, "no")), "planner", Instant(0))
        return None if notice is None else notice.occasion

    assert turn_notice(result, "planner", Instant(0)) is None
    assert occasion(FailureClass.TRANSIENT) is None
    assert occasion(FailureClass.LIMIT) is Occasion.LIMIT_REACHED


def test_the_notice_on_the_page_is_a_notice() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "notifications.md"
    (shown,) = re.findall(r"```json\n(.*)\n```", page.read_text())
    (written,) = re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
    made = notice_document(a_notice())

    assert isinstance(made, dict)
    assert json.loads(shown).keys() == made.keys()
    assert NotifyPolicy(**tomllib.loads(written)["notify"]).wants(Occasion.TURN_FAILED)


@pytest.mark.parametrize("page", ["https://fleet.example/holdfast", "https://fleet.example/holdfast/"])
def test_a_notice_links_to_what_it_is_about(page: str) -> None:
    asks = a_notice(occasion=Occasion.APPROVAL_WANTED, approval_id=ApprovalId("apr-1"))

    def link(notice: Notice, to: str | None) -> Json:
        document = notice_document(notice, to)
        assert isinstance(document, dict)
        return document["link"]

    assert link(asks, page) == "https://fleet.example/holdfast/a/apr-1"
    assert link(a_notice(), page) == "https://fleet.example/holdfast/s/agent-20260108-180530-abc12345"
    assert link(asks, None) is None


def test_what_is_not_wanted_is_not_told(shop: Workshop, server: Server) -> None:
    hf = shop.open(told(webhook=server.url, events=frozenset({"session_done"})))

    failed = hf.run(FAILS, provider="scripted", cwd=str(shop.work_dir))
    done = hf.run("SAY yes", provider="scripted", cwd=str(shop.work_dir))
    hf.finalize(failed.session_id, "failed")

    eventually(lambda: server.received)
    assert done.ok
    assert [notice["event"] for notice in server.received] == ["session_done"]


def test_a_server_that_fails_is_asked_again_for_the_same_notice(server: Server, log: Path) -> None:
    server.answers = [500, 429, 204]

    notify(NotifyPolicy(webhook=server.url), a_notice())

    eventually(lambda: len(server.received) == 3)
    assert len({notice["id"] for notice in server.received}) == 1
    assert not log.exists()


@pytest.mark.parametrize("answer", [404, 302])
def test_a_server_that_does_not_want_it_is_asked_once_and_never_named(
    answer: int, server: Server, log: Path
) -> None:
    server.answers = [answer]

    notify(NotifyPolicy(webhook=server.url), a_notice())

    line = logged(log)
    assert (line["to"], line["problem"]) == ("webhook", f"the server answered {answer}")
    assert len(server.received) == 1
    assert "swordfish" not in log.read_text()
    assert log.stat().st_mode & 0o077 == 0


def test_a_server_that_hangs_does_not_hold_up_the_turn(shop: Workshop, server: Server) -> None:
    server.answers = [0]
    hf = shop.open(told(webhook=server.url))
    began = time.monotonic()

    failed = hf.run(FAILS, provider="scripted", cwd=str(shop.work_dir))

    assert not failed.ok
    assert time.monotonic() - began < PROMPT_SECONDS
    eventually(lambda: server.received)


def test_a_command_gets_the_notice_on_its_input_without_a_shell(tmp_path: Path) -> None:
    target = tmp_path / "the notice; $HOME"
    program = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"
    command = shlex.join([sys.executable, "-c", program, str(target)])

    notify(NotifyPolicy(command=command), a_notice())

    assert json.loads(eventually(lambda: target.exists() and target.read_text()))["agent"] == "planner"


def test_a_command_that_fails_is_run_again(tmp_path: Path, log: Path) -> None:
    tries = tmp_path / "tries"
    program = "import sys; f = open(sys.argv[1], 'a+'); f.write('x'); f.seek(0); sys.exit(f.read() != 'xx')"

    notify(NotifyPolicy(command=shlex.join([sys.executable, "-c", program, str(tries)])), a_notice())

    eventually(lambda: tries.exists() and tries.read_text() == "xx")
    assert not log.exists()


def test_a_command_that_is_missing_is_a_line_in_the_log(log: Path) -> None:
    notify(NotifyPolicy(command="/gone/tell-me loudly"), a_notice())

    line = logged(log)
    assert line["problem"] == "/gone/tell-me: No such file or directory"
    assert (line["event"], line["turn"]) == ("turn_failed", 3)


def test_one_way_that_fails_does_not_keep_the_other_waiting(server: Server, log: Path) -> None:
    notify(NotifyPolicy(command="/gone/tell-me", webhook=server.url), a_notice())

    eventually(lambda: server.received)
    assert logged(log)["to"] == "command"


def test_secrets_are_taken_out_and_long_texts_are_cut(server: Server) -> None:
    secret = "ghp_" + "a1B2" * 9
    notify(NotifyPolicy(webhook=server.url), a_notice(what=f"token {secret} " + "x" * 100_000))

    (notice,) = eventually(lambda: server.received)
    assert secret not in notice["what"]
    assert len(notice["what"]) < 3_000


def test_a_notice_that_cannot_be_handed_over_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/gone/python")

    notify(NotifyPolicy(command="true"), a_notice())

    assert "the notice about turn_failed was not sent" in caplog.text

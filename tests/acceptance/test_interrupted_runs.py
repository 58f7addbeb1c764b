"""A command that is stopped while an agent works says once what its turn came to."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.command import HOLDFAST, environment, holdfast, ok, on_terminal
from tests.acceptance.served import ask, server
from tests.integration.agents import until

PROMPT = 'TOOL write {"path": "started", "text": ""}\nHANG'


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "terminate"]
)
def test_a_stopped_run_prints_one_document(number: signal.Signals, exit_code: int, tmp_path: Path) -> None:
    with subprocess.Popen(
        [HOLDFAST, "run", "--json", "--provider", "scripted", PROMPT],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        until((tmp_path / "started").exists)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)

    assert process.returncode == exit_code
    assert json.loads(out)["status"] == "interrupted"
    assert "interrupted" not in err


def test_an_answer_that_has_arrived_survives_a_stop_that_comes_too_late(tmp_path: Path) -> None:
    # a child of the agent's that holds its output keeps the turn from ending for a while
    prompt = "SAY all done\nSPAWN_HOLDING"
    with subprocess.Popen(
        [HOLDFAST, "run", "--json-stream", "--provider", "scripted", "--name", "late", prompt],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        events = (json.loads(line) for line in process.stdout)
        assert any(event["type"] == "end" for event in events)
        process.send_signal(signal.SIGINT)
        result = next(event for event in events if event["type"] == "result")

    assert process.returncode == 130
    assert (result["text"] or "").startswith("all done")
    assert result["continue_with"].startswith("holdfast resume ")


def test_an_error_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    missing = {"HOLDFAST_SCRIPTED_BINARY": str(tmp_path / "nothing")}
    shown = on_terminal("run", "--provider", "scripted", "SAY hello", env=missing)
    assert shown.code == 2
    assert shown.out.count("\x1b[?25l") == shown.out.count("\x1b[?25h")


def test_a_stream_of_events_ends_with_its_error(tmp_path: Path) -> None:
    missing = {"HOLDFAST_SCRIPTED_BINARY": str(tmp_path / "nothing")}
    ended = holdfast("run", "--provider", "scripted", "--json-stream", "SAY hello", env=missing)
    assert ended.code == 2
    assert json.loads(ended.out)["error"]["code"] == "missing_binary"


def test_a_log_that_is_followed_ends_with_its_session() -> None:
    assert holdfast("run", "--provider", "scripted", "--name", "over", "SAY hello").code == 0
    assert "hello" in holdfast("log", "over", "--turn", "1", "-f").out
    assert holdfast("finalize", "over", "completed").code == 0
    assert "hello" in holdfast("log", "over", "-f").out


def test_a_turn_whose_holdfast_was_killed_is_not_said_to_wait(tmp_path: Path) -> None:
    with subprocess.Popen(
        [HOLDFAST, "run", "--provider", "scripted", "--name", "killed", PROMPT],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        until((tmp_path / "started").exists)
        process.kill()

    why = holdfast("why", "killed", "--json").json

    assert why["decision"]["kind"] == "resume"
    assert why["verdict"].startswith(
        "Turn 1 was cut off: what ran it is gone. To continue it: holdfast resume "
    )
    assert "cut off" in holdfast("show", "killed").out
    assert "running" not in holdfast("show", "killed").out
    assert "interrupted: what ran it is gone" in ok("log", "killed").out
    assert "interrupted" in on_terminal("list").out
    for options in ((), ("--status", "interrupted")):
        assert [one["status"] for one in ok("list", "--json", *options).json["sessions"]] == ["interrupted"]
    assert ok("list", "--json", "--status", "running").json["sessions"] == []
    assert ok("get", "killed").json["status"] == "interrupted"
    with server() as (url, _):
        listed = ask(url, "GET", "/v1/sessions")[1]["sessions"]
    assert [one["status"] for one in listed] == ["interrupted"]
    assert ok("ps").out == ""
    assert holdfast("resume", "killed", "--json").json["decision"]["kind"] == "resume"

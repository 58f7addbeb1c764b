"""The log of a worker as JSON: every line is one object, and says which session, turn and attempt it is about."""

import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.command import HOLDFAST, environment, holdfast, ok

SECRET = "sk-ant-api03-" + "a1B2" * 20
#: a worker whose path of a turn has a bug; Python imports this file before anything else
BUGGY = f"""
from holdfast.engine.running import turn_path

def walk(self):
    raise RuntimeError("no way with {SECRET}")

turn_path.TurnPath.walk = walk
"""


@pytest.fixture(autouse=True)
def place(scripted_place: Path) -> Path:
    return scripted_place


def enqueue(prompt: str, *arguments: str) -> str:
    """The session's id."""
    return ok("enqueue", *(arguments or ("--agent", "a")), prompt).out.split()[0]


def work(*arguments: str, env: Mapping[str, str] | None = None, code: int = 0) -> list[dict[str, Any]]:
    """What a worker logs until nothing can be run any more: each line of it is JSON."""
    ended = holdfast("worker", "--provider", "scripted", "--once", "--log-json", *arguments, env=env)
    assert ended.code == code, ended
    return list(map(json.loads, ended.err.splitlines()))


def about(line: Mapping[str, object]) -> tuple[object, ...]:
    return line.get("session"), line.get("turn"), line.get("attempt"), line.get("provider")


def test_each_line_about_a_turn_says_which(place: Path) -> None:
    session = enqueue("SAY hello", "--agent", "a", "--cwd", str(place))
    enqueue("SAY more", session)

    lines = work()

    assert [about(line) for line in lines] == [(session, seq, 1, "scripted") for seq in (1, 1, 2, 2)], lines
    assert {line["level"] for line in lines} == {"info"}
    known = ok("runtimes", "--json").json["runtimes"]
    (here,) = [runtime["runtime_id"] for runtime in known if runtime["provider"] == "scripted"]
    assert {line["runtime"] for line in lines} == {here}
    assert "hello" not in json.dumps(lines), "no prompts"


def test_a_turn_that_fails_is_a_warning_about_it() -> None:
    session = enqueue(f"FAIL 401 who are you, {SECRET}")

    *_, failed = work()

    assert (failed["level"], about(failed)) == ("warning", (session, 1, 1, "scripted"))
    assert "who are you" in failed["message"]
    assert SECRET not in json.dumps(failed)


def test_a_resume_that_was_refused_goes_on_in_the_next_attempt(place: Path) -> None:
    session = enqueue("SAY hello", "--agent", "a", "--cwd", str(place))
    work()
    enqueue("FAIL_ONCE gone session_not_found no such session", session)

    begun, ended = work()

    assert (about(begun)[2], about(ended)[2]) == (1, 2)


def test_a_bug_is_one_line_with_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BUGGY)
    session = enqueue("SAY hello")

    lines = work(env={"PYTHONPATH": str(tmp_path)})

    line = next(line for line in lines if "traceback" in line)
    assert (line["level"], about(line)) == ("error", (session, 1, 1, "scripted"))
    assert "RuntimeError" in line["traceback"]
    assert SECRET not in json.dumps(lines)


def test_what_a_dead_worker_left_behind_is_told_of(place: Path) -> None:
    hangs_once = {"command": "test -e begun || { touch begun; sleep 300; }"}
    session = enqueue(f"TOOL shell {json.dumps(hangs_once)}", "--agent", "a", "--cwd", str(place))
    dead = subprocess.Popen(
        [HOLDFAST, "worker", "--provider", "scripted"], env=environment(), stderr=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + 30
        while not (place / "begun").exists():
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        dead.kill()
        dead.wait()

    left_behind, begun, ended = work()

    assert "left behind" in left_behind["message"]
    assert (left_behind["level"], about(left_behind)) == ("warning", (session, 1, 1, "scripted"))
    assert about(begun) == about(ended) == (session, 1, 2, "scripted")


def test_a_worker_that_cannot_work_says_so_as_json() -> None:
    (line,) = work("--url", "http://127.0.0.1:1", code=1)

    assert (line["level"], line["code"]) == ("error", "store_unavailable")


def test_for_people_the_lines_stay_as_they_are() -> None:
    session = enqueue("FAIL 401 who are you")

    ended = holdfast("worker", "--provider", "scripted", "--once")

    assert ended.err.splitlines()[0] == (
        f"holdfast: info: turn 1 of {session}: begun with scripted, attempt 1"
    )
    assert ended.err.splitlines()[1].startswith(f"holdfast: warning: turn 1 of {session}: failed: ")

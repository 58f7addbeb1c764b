"""The audit trail: who did what to a session, and when."""

import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from tests.acceptance.command import create, holdfast, ok

ME = pwd.getpwuid(os.getuid()).pw_name


def entries(session: str, *options: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ok("log", session, "--json", *options).lines]


def told(session: str) -> list[tuple[str, str | None, dict[str, Any]]]:
    return [(one["kind"], one["by"], one["data"]) for one in entries(session)]


def test_the_log_of_a_delegated_session_tells_every_change_in_order(each_engine: str) -> None:
    session = create("--purpose", "apply the plan", "--metadata", '{"task_id": "T001"}')
    secret = "ghp_" + "a" * 36
    ok("update", session, "--phase", "planning", "--metadata", f'{{"plan": "{secret}", "file": "p.json"}}')
    ok("update", session, "--error", "terraform plan failed")
    ok("update", session, "--clear-errors")
    ok("update", session, "--summary", "half of it")
    ok("finalize", session, "completed", "--summary", "all of it")

    assert told(session) == [
        ("created", None, {"purpose": "apply the plan"}),
        ("metadata", ME, {"keys": ["file", "plan"]}),
        ("phase", ME, {"from_phase": "initializing", "to_phase": "planning"}),
        ("error", ME, {"message": "terraform plan failed"}),
        ("errors_cleared", ME, {}),
        ("summary", ME, {}),
        ("finalized", ME, {"from_phase": "planning", "to_phase": "completed"}),
    ]
    lines = [line.split("\t") for line in ok("log", session, "--raw").lines]
    assert lines[2][:2] == ["-", "-"]
    assert lines[2][3:] == ["phase", f"initializing → planning (by {ME})"]
    assert secret not in ok("log", session).out
    history = ok("get", session).json["history"]
    assert [(change["from_phase"], change["to_phase"]) for change in history] == [
        ("initializing", "planning"),
        ("planning", "completed"),
    ]


def test_approvals_are_told_from_the_question_to_its_end(library: Holdfast) -> None:
    session = create()
    first = library.request_approval(session, "apply to staging?")
    library.approve(first.id, "go on", by="ada")
    second = library.request_approval(session, "apply to prod?")
    ok("finalize", session, "abandoned")

    asked = [(by, data) for kind, by, data in told(session) if kind == "approval"]

    assert [(by, data["what"], data["approval_id"]) for by, data in asked] == [
        ("terraform-architect", "asked", first.id),
        ("ada", "approved", first.id),
        ("terraform-architect", "asked", second.id),
        ("holdfast", "voided", second.id),
    ]
    assert (asked[1][1]["note"], asked[3][1]["reason"]) == ("go on", "session_abandoned")


def test_an_approval_that_nobody_answered_is_told_as_expired(library: Holdfast) -> None:
    session = create()
    library.request_approval(session, "apply?", expires=0.001)
    ok("update", session, "--phase", "executing")

    what = [data["what"] for kind, _, data in told(session) if kind == "approval"]

    assert what == ["asked", "expired", "voided"]


def test_a_conversation_shows_its_trail_when_it_is_asked_for(scripted_place: Path) -> None:
    holdfast("run", "--provider", "scripted", "--name", "talk", "SAY hello")
    holdfast("resume", "talk", "FAIL 401 who are you")

    assert "phase" not in {one["kind"] for one in entries("talk")}
    kinds = [(one["kind"], one["turn"]) for one in entries("talk", "--audit")]
    assert kinds == [("created", None), ("phase", None), ("error", 2)]
    (error,) = entries("talk", "--audit", "--turn", "2")
    assert error["data"]["class"] == "auth"
    assert error["by"].startswith("process ")


@pytest.mark.parametrize("options", [(), ("-f",)])
def test_a_closed_session_is_told_once_and_to_its_end(options: tuple[str, ...]) -> None:
    session = create()
    ok("update", session, "--phase", "planning")
    ok("finalize", session, "failed")

    assert [one["kind"] for one in entries(session, *options)] == ["created", "phase", "finalized"]

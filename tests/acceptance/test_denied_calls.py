"""The first refusal teaches: what an agent was not allowed to do, and the command that allows it."""

import shlex
from pathlib import Path

import pytest

from tests.acceptance.command import HOLDFAST, holdfast, on_terminal

WRITE = 'TOOL write {"path": "a.txt", "text": "x"}'


@pytest.fixture(autouse=True)
def place(scripted_place: Path) -> Path:
    return scripted_place


def test_a_run_ends_with_what_was_denied_and_the_command_that_allows_it(place: Path) -> None:
    denied = holdfast("run", "--name", "it", "--permission-mode", "plan", WRITE, cwd=place)

    assert denied.code == 0
    *_, what, how, go_on = denied.err.splitlines()
    assert what == "holdfast: the agent was not allowed to use write: a.txt"
    assert how.startswith('holdfast: to allow it: holdfast resume it "try again" --permission-mode default')
    assert go_on.startswith("holdfast: continue with: ")
    command = shlex.split(how.partition("to allow it: holdfast ")[2])
    allowed = holdfast(*[WRITE if word == "try again" else word for word in command], cwd=place)
    assert (allowed.code, (place / "a.txt").read_text()) == (0, "x"), allowed
    assert "not allowed" not in allowed.err


def test_json_and_its_stream_say_what_was_denied() -> None:
    result = holdfast("run", "--permission-mode", "plan", WRITE, "--json").json

    assert result["denied"] == [
        {"tool": "write", "what": "write: a.txt", "why": "write", "call_id": "call-1-1"}
    ]
    session = result["session_id"]
    assert result["allow_with"] == (
        f'holdfast resume {session} "try again" --permission-mode default --allow-wider-rights'
    )
    streamed = holdfast("resume", session, WRITE, "--json-stream").lines
    assert any('"type": "denied"' in line and '"tool": "write"' in line for line in streamed)
    nothing = holdfast("resume", session, "SAY hello", "--json").json
    assert (nothing["denied"], nothing["allow_with"]) == ([], None)


def test_fail_on_denied_gives_an_exit_code() -> None:
    plan = ("run", "--permission-mode", "plan", "--fail-on-denied")

    assert holdfast(*plan, WRITE).code == 6
    assert holdfast(*plan, WRITE, "--json").code == 6
    assert holdfast(*plan, "SAY hello").code == 0
    assert holdfast(*plan, f"{WRITE}\nFAIL 401 who are you").code == 1


def test_the_command_repeats_the_rights_that_the_session_has() -> None:
    given = ("--allow-tool", "shell", "--add-dir", "/tmp")
    allowing = holdfast("run", "--name", "it", *given, WRITE, "--json").json["allow_with"]

    assert allowing == (
        'holdfast resume it "try again" --allow-tool shell --allow-tool write --add-dir /tmp --allow-wider-rights'
    )


def test_the_help_lists_the_modes_of_each_provider() -> None:
    told = " ".join(holdfast("run", "--help").out.split())

    assert "claude: acceptEdits, auto, bypassPermissions, dontAsk, manual, plan; codex: read-only," in told
    assert "scripted: default, plan." in told


WIDER = ("resume", "it", "--permission-mode", "default", "SAY more")
QUESTION = b"Continue? [y/N]"


@pytest.fixture
def careful() -> None:
    assert holdfast("run", "--name", "it", "--permission-mode", "plan", "SAY one").code == 0


@pytest.mark.usefixtures("careful")
def test_a_person_on_a_terminal_is_asked_once() -> None:
    agreed = on_terminal(*WIDER, question=QUESTION, keys=b"y\n")

    assert "This gives the agent more rights: permission mode default." in " ".join(agreed.out.split())
    assert (agreed.code, "more\n" in agreed.out) == (0, True), agreed
    again = on_terminal(*WIDER)
    assert (again.code, "more rights" in again.out) == (0, False), again


@pytest.mark.usefixtures("careful")
@pytest.mark.parametrize("keys", [b"n\n", b"\n"])
def test_a_no_changes_nothing(keys: bytes) -> None:
    refused = on_terminal(*WIDER, question=QUESTION, keys=keys)

    assert (refused.code, "nothing was done" in refused.out) == (4, True), refused
    assert len(holdfast("show", "it", "--json").json["turns"]) == 1


@pytest.mark.usefixtures("careful")
def test_a_script_is_refused_and_not_asked() -> None:
    refused = holdfast(*WIDER, stdin="y\n")

    assert (refused.code, "--allow-wider-rights" in refused.err) == (4, True)
    assert holdfast(*WIDER, "--allow-wider-rights").code == 0


@pytest.mark.usefixtures("careful")
@pytest.mark.parametrize(
    "variable", ["HOLDFAST_SESSION", "HOLDFAST_ATTEMPT", "CLAUDECODE", "CODEX_THREAD_ID"]
)
def test_an_agent_with_a_terminal_is_refused_and_not_asked(variable: str) -> None:
    refused = on_terminal(*WIDER, env={variable: "1"})

    assert (refused.code, "more rights" in refused.out) == (4, False), refused


@pytest.mark.usefixtures("careful")
def test_a_terminal_below_an_agent_is_the_agents(tmp_path: Path) -> None:
    agent = tmp_path / "codex"
    agent.write_text(f"#!/bin/sh\n{HOLDFAST} {shlex.join(WIDER)}\nexit $?\n")
    agent.chmod(0o755)

    refused = on_terminal(program=agent)

    assert (refused.code, "more rights" in refused.out) == (4, False), refused


def test_arguments_that_may_widen_the_rights_of_a_new_session_are_asked_about() -> None:
    asked = on_terminal("run", "SAY one", "--", "--unknown", question=QUESTION, keys=b"n\n")

    assert (asked.code, "more rights: --unknown." in " ".join(asked.out.split())) == (4, True), asked
    assert holdfast("list", "--json").json["sessions"] == []
    assert holdfast("run", "SAY one", "--", "--unknown").code == 2

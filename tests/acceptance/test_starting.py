"""Beginning a session in the agent's own program: what a person, a pipe and a program see of it."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.command import HOLDFAST, environment, holdfast, on_terminal

NEW = ("open", "--new", "--provider", "scripted")


@pytest.fixture(autouse=True)
def place(scripted_place: Path) -> Path:
    return scripted_place


def sessions() -> list[dict[str, object]]:
    found: list[dict[str, object]] = holdfast("list", "--json").json["sessions"]
    return found


def test_what_is_said_in_the_program_is_in_the_history(place: Path) -> None:
    opened = holdfast(*NEW, "--name", "it", stdin="SAY one\nSAY two\nquit\n", cwd=place)

    assert (opened.code, opened.out) == (0, "one\ntwo\n"), opened
    assert opened.err == (
        "holdfast: 2 turns are in the history; continue with: holdfast resume it, or holdfast open it\n"
    )
    assert holdfast("resume", "it", "RECALL two").out == "RECALL two: from the session: SAY two\n"
    shown = holdfast("show", "it", "--json").json
    assert [turn["prompt"] for turn in shown["turns"]] == ["SAY one", "SAY two", "RECALL two"]
    again = holdfast("open", "it", stdin="RECALL two\nquit\n")
    assert "from the session" in again.out


def test_on_a_terminal_the_person_talks_to_the_program() -> None:
    opened = on_terminal(*NEW, "--name", "it", "--", "SAY hello", question=b"hello", keys=b"quit\r")

    assert opened.code == 0, opened
    assert "1 turn is in the history; continue with: holdfast resume it" in opened.out


def test_json_says_what_became_of_the_session() -> None:
    opened = holdfast(*NEW, "--json", "--agent", "architect", stdin="SAY one\nquit\n")

    printed, document = opened.out.split("\n", 1)
    told = json.loads(document)
    assert (printed, told["turns"], told["other_sessions"], told["exit_code"]) == ("one", 1, 0, 0)
    (session,) = sessions()
    assert (session["agent_id"], session["agent_name"]) == (told["session_id"], "architect")


def test_a_program_in_which_nothing_is_said_leaves_no_session() -> None:
    opened = holdfast(*NEW, "--name", "it", stdin="quit\n")

    assert (opened.code, opened.err) == (0, "holdfast: nothing was said: no session was kept\n")
    assert sessions() == []
    nothing = holdfast(*NEW, "--json", stdin="quit\n").json
    assert (nothing["session_id"], nothing["turns"]) == (None, 0)


def test_the_exit_code_is_that_of_the_program() -> None:
    opened = holdfast(*NEW, "--name", "it", "--", "--allow-tool", "x", "EXIT 7 so it is")

    assert opened.code == 7, opened


def test_a_closed_terminal_keeps_what_was_said() -> None:
    with subprocess.Popen(
        [HOLDFAST, *NEW, "--name", "it"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment(), text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("SAY one\n")
        process.stdin.flush()
        assert process.stdout.readline() == "one\n"
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=60)

    assert process.returncode == 129
    assert [turn["prompt"] for turn in holdfast("show", "it", "--json").json["turns"]] == ["SAY one"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("open",), "give the ID of a session, or --new"),
        (("open", "x", "--new"), "a new session has no ID yet"),
        (("open", "x", "--name", "y"), "are for --new"),
        ((*NEW, "--", "--resume", "x"), "holdfast open ID"),
        ((*NEW, "--", "--session-id=x"), "holdfast open ID"),
        (("open", "--new", "--provider", "nobody"), "nobody"),
        ((*NEW, "--cwd", "/nowhere"), "is not a directory"),
        (("claude",), "claude"),
    ],
)
def test_a_mistake_is_told_and_leaves_nothing_behind(arguments: tuple[str, ...], words: str) -> None:
    refused = holdfast(*arguments, env={"PATH": "/usr/bin:/bin"})

    assert (refused.code, words in refused.one_line_error()) == (2, True), refused
    assert sessions() == []


def test_the_help_of_an_agents_command_is_ours() -> None:
    told = holdfast("codex", "--help")

    assert (told.code, told.out.startswith("Usage: holdfast codex [ARGUMENTS OF THE PROGRAM]")) == (0, True)

"""A chat on a terminal: lines that can be edited, a history, commands, and a terminal that is as it was afterwards."""

import json
import os
import signal
import stat
from pathlib import Path

import pytest

from holdfast.config import data_dir
from tests.acceptance.command import holdfast
from tests.acceptance.screen import (
    CTRL_C,
    CTRL_D,
    ENTER,
    ESCAPE,
    TAB,
    UP,
    Terminal,
    terminal,
    wait_for_screen,
)

pytestmark = pytest.mark.usefixtures("scripted_place")
#: a key with the form that a real one has
SECRET = "sk-ant-api03-" + "x7Qp2mZ9" * 6


def history_file() -> Path:
    return data_dir(os.environ) / "chat_history"


def begin(name: str) -> None:
    assert holdfast("run", "--name", name, "SAY the plan").code == 0


def ready(chat: Terminal, turns: int = 0) -> None:
    """Waits for the prompt after so many turns."""
    chat.wait_for(lambda shown: shown.count("holdfast: turn ") == turns and chat.row == ">")


@pytest.mark.parametrize("columns", [80, 200])
def test_a_chat_looks_like_this(columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # of a directory below it, the screen shows no more
    begin("plan")
    with terminal("chat", "plan", columns=columns) as chat:
        ready(chat)
        chat.press("/model tiny", ENTER)
        chat.wait_for(lambda shown: "model: tiny" in shown and chat.row == ">")
        chat.press("/help", ENTER)
        chat.wait_for(lambda shown: "as Ctrl-D does" in shown and chat.row == ">")
        chat.press("SAY one", ESCAPE + ENTER, "SAY two")
        wait_for_screen(chat, f"chat-{columns}", "  SAY two")
        chat.press(ENTER)
        ready(chat, 1)
        assert "one\ntwo\n" in chat.shown
        chat.press(CTRL_D)
        assert chat.end() == 0
        assert chat.shown.endswith("holdfast: paused; continue with: holdfast chat plan\n")


def test_a_chat_says_how_to_continue_and_ends_as_its_last_turn_did() -> None:
    begin("plan")
    with terminal("chat", "plan") as chat:
        ready(chat)
        chat.press("FAIL 401 who are you", ENTER)
        ready(chat, 1)
        chat.press("/quit", ENTER)
        assert chat.end() == 1
        assert "paused; continue with: holdfast chat plan" in chat.shown
    with terminal("chat", "plan") as chat:
        ready(chat)
        chat.press("SAY better", ENTER)
        ready(chat, 1)
        chat.press("QUIT", ENTER)
        assert chat.end() == 0


def test_ctrl_c_drops_the_line_stops_a_turn_and_on_an_empty_line_leaves() -> None:
    begin("plan")
    with terminal("chat", "plan") as chat:
        ready(chat)
        chat.press("SAY never")
        chat.wait_for("> SAY never")
        chat.press(CTRL_C)
        chat.wait_for(lambda _: chat.row == ">")
        chat.press("SLEEP 60", ENTER)
        chat.wait_for("Continuing your scripted session")
        chat.press(CTRL_C)
        ready(chat, 1)
        assert "interrupted" in chat.shown
        chat.press(CTRL_C)
        assert chat.end() == 130
        assert "paused; continue with: holdfast chat plan" in chat.shown


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_at_the_prompt_leaves_the_terminal_as_it_was(number: signal.Signals) -> None:
    with terminal("chat") as chat:
        ready(chat)
        chat.press("SAY one", ENTER)
        ready(chat, 1)
        chat.press("half a li")
        chat.wait_for("half a li")
        chat.process.send_signal(number)
        assert chat.end() == 128 + number
        assert "paused; continue with: holdfast chat agent-" in chat.shown


def test_what_is_pasted_is_one_turn() -> None:
    with terminal("chat") as chat:
        ready(chat)
        chat.press("\x1b[200~SAY one\nSAY two\n\x1b[201~", ENTER)
        ready(chat, 1)
        assert "one\ntwo\n" in chat.shown


def test_a_backslash_before_enter_begins_a_new_line() -> None:
    with terminal("chat") as chat:
        ready(chat)
        chat.press("SAY one\\", ENTER, "SAY two", ENTER)
        ready(chat, 1)
        assert "> SAY one\n  SAY two\n" in chat.shown


def test_what_is_typed_while_a_turn_runs_is_the_next_turn(tmp_path: Path) -> None:
    with terminal("chat") as chat:
        ready(chat)
        chat.press("SLEEP 1", ENTER)
        chat.wait_for("Starting a new scripted session")
        chat.press("SAY more", ENTER)
        ready(chat, 2)
        assert "\nmore\n" in chat.shown


def test_a_fork_in_a_chat_leaves_the_session_as_it_was() -> None:
    begin("plan")
    with terminal("chat", "plan") as chat:
        ready(chat)
        chat.press("/fork", ENTER)
        chat.wait_for("to come back: holdfast chat plan")
        chat.press("HISTORY", ENTER)
        ready(chat, 1)
        assert "1. SAY the plan" in chat.shown
        chat.press("/fork SAY elsewhere", ENTER)
        ready(chat, 2)
        chat.press(CTRL_D)
        assert chat.end() == 0
        assert "paused; continue with: holdfast chat agent-" in chat.shown
    sessions = holdfast("list", "--json").json["sessions"]
    assert len(sessions) == 3
    (plan,) = (one for one in sessions if one["name"] == "plan")
    assert len(holdfast("show", plan["session_id"], "--json").json["turns"]) == 1


def test_commands_need_something_to_work_on_and_a_path_is_no_command() -> None:
    with terminal("chat", lines=60) as chat:  # /why says more than 24 lines hold
        ready(chat)
        for command, answer in (
            ("/why", "the first line starts a new session"),
            ("/fork", "there is nothing to fork"),
            ("/model", "model: the provider's default"),
            ("/nope", "there is no /nope, see /help; a space before it sends it as text"),
        ):
            chat.press(command, ENTER)
            chat.wait_for(answer)
            chat.wait_for(lambda _: chat.row == ">")
        chat.press("/etc/hosts is wrong", ENTER)
        ready(chat, 1)
        assert "I was told: /etc/hosts is wrong" in chat.shown
        chat.press("/wh", TAB)
        chat.wait_for(lambda _: chat.row == "> /why")
        chat.press(ENTER)
        chat.wait_for("The next turn resumes")


def test_the_model_of_the_next_turns_can_be_chosen() -> None:
    begin("plan")
    with terminal("chat", "plan") as chat:
        ready(chat)
        chat.press("/model tiny", ENTER)
        chat.wait_for("model: tiny")
        chat.press("SAY one", ENTER)
        ready(chat, 1)
        chat.press(CTRL_D)
        assert chat.end() == 0
    with terminal("chat", "plan") as chat:
        ready(chat)
        chat.press("/model", ENTER)
        chat.wait_for("model: tiny")


def test_what_was_typed_is_there_in_the_next_chat_and_secrets_are_not() -> None:
    with terminal("chat") as chat:
        ready(chat)
        chat.press("SAY one", ESCAPE + ENTER, "SAY two", ENTER)
        ready(chat, 1)
        chat.press(f"SAY {SECRET}", ENTER)
        ready(chat, 2)
        chat.press(UP)
        chat.wait_for(lambda _: SECRET[:20] in chat.row)  # this chat still has it
        chat.press(CTRL_C, CTRL_D)
        chat.end()
    assert stat.S_IMODE(history_file().stat().st_mode) == 0o600
    assert [json.loads(line) for line in history_file().read_text().splitlines()] == ["SAY one\nSAY two"]
    with terminal("chat") as chat:
        ready(chat)
        chat.press(UP)
        chat.wait_for("> SAY one\n  SAY two")
        chat.press(CTRL_C, CTRL_D)
        assert chat.end() == 0


def test_a_damaged_history_is_read_as_far_as_it_can_be_and_a_long_one_is_shortened() -> None:
    history_file().parent.mkdir(parents=True)
    long = json.dumps("SAY " + "x" * 1000) + "\n"
    history_file().write_bytes(long.encode() * 1200 + b'"SAY kept"\n{not json\n\xff\xfe\n7\n')
    with terminal("chat") as chat:
        ready(chat)
        chat.press(UP)
        chat.wait_for("> SAY kept")
    assert history_file().stat().st_size < 600_000


def test_a_history_that_cannot_be_written_costs_no_chat() -> None:
    history_file().mkdir(parents=True)
    with terminal("chat") as chat:
        chat.wait_for("what you type is not kept for the next chat")
        ready(chat)
        chat.press("SAY one", ENTER)
        ready(chat, 1)
        chat.press(CTRL_D)
        assert chat.end() == 0
        assert chat.shown.count("is not kept") == 1


def test_a_terminal_that_cannot_draw_gets_plain_lines_with_the_same_commands() -> None:
    with terminal("chat", env={"TERM": "dumb"}) as chat:
        chat.wait_for(lambda _: chat.row == ">")
        chat.press("SAY one\n")
        ready(chat, 1)
        chat.press("/model\n")
        chat.wait_for("model: the provider's default")
        chat.press(CTRL_D)
        assert chat.end() == 0
        assert b"\x1b[?2004h" not in chat.printed
        assert "paused; continue with: holdfast chat agent-" in chat.shown


def test_an_agent_that_chats_on_a_terminal_gets_no_commands() -> None:
    with terminal("chat", env={"HOLDFAST_SESSION": "agent-x"}) as chat:
        chat.wait_for(lambda _: chat.row == ">")
        chat.press("/model\n")
        ready(chat, 1)
        assert "I was told: /model" in chat.shown


def test_no_color_is_kept_at_the_prompt() -> None:
    with terminal("chat", env={"NO_COLOR": "1"}) as chat:
        ready(chat)
        chat.press(CTRL_D)
        assert chat.end() == 0
        assert b"\x1b[3" not in chat.printed.replace(b"\x1b[39", b"")


def test_a_resize_redraws_the_line() -> None:
    with terminal("chat") as chat:
        ready(chat)
        chat.press("SAY " + "word " * 12)
        chat.wait_for("word word")
        chat.resize(40, 24)
        chat.wait_for(lambda shown: shown.count("word") == 12 and max(map(len, shown.splitlines())) <= 40)
        chat.press(CTRL_C, CTRL_D)
        assert chat.end() == 0


def test_a_chat_without_its_agent_ends_before_anything_is_typed(tmp_path: Path) -> None:
    missing = {"HOLDFAST_SCRIPTED_BINARY": str(tmp_path / "nothing")}
    for arguments, env in ((("-p", "nonesuch"), {}), (("-p", "scripted"), missing)):
        with terminal("chat", *arguments, env=env) as chat:
            assert chat.end() == 2
            assert "Enter sends" not in chat.shown

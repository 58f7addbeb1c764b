"""Choosing a session on a terminal, and the newest one of this directory without choosing."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import NewSession
from tests.acceptance.command import default_database, environment, holdfast, on_terminal
from tests.acceptance.screen import (
    CTRL_C,
    CTRL_D,
    DOWN,
    ENTER,
    ESCAPE,
    UP,
    Terminal,
    ctrl,
    terminal,
    wait_for_screen,
)

#: each would do something to a terminal that printed it
HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07 clears the screen",
    "\u202eoverride reads backwards",
    "[red]markup[/red] :boom:\nsecond line\ttab",
    "漢字" * 30,
    "👩‍👩‍👧 family " * 20,
    "x" * 5000,
)


@pytest.fixture(autouse=True)
def here(scripted_place: Path) -> Path:
    return scripted_place


def begin(name: str, said: str = "SAY the plan") -> None:
    assert holdfast("run", "--name", name, said).code == 0


def a_session(library: Holdfast, here: Path, purpose: str, session_id: str | None = None) -> str:
    given = library.new_id() if session_id is None else SessionId(session_id)
    new = NewSession(given, "claude", purpose, provider="claude", project=str(here))
    return str(library.store.create_session(new).id)


def opened(picker: Terminal) -> str:
    return picker.wait_for("Esc leave")


def marked(picker: Terminal) -> str:
    """The line with the mark; an empty one while the screen is drawn."""
    return next((line for line in picker.shown.splitlines() if line.startswith("❯ ")), "")


def at_prompt(picker: Terminal) -> None:
    picker.wait_for(lambda _: picker.row == ">")


# --- what is shown ---


@pytest.mark.parametrize("arguments", [(), ("resume",)])
def test_without_sessions_it_says_what_to_do_first(arguments: tuple[str, ...]) -> None:
    with terminal(*arguments) as picker:
        assert picker.end() == (3 if arguments else 0)
        shown = picker.shown.rstrip("\n").split("\n")
    assert shown[0].startswith("No sessions in /")
    assert "Start one: holdfast chat" in picker.shown
    assert "holdfast import" in picker.shown


@pytest.mark.parametrize("columns", [80, 200])
def test_the_picker_looks_like_this(library: Holdfast, here: Path, columns: int) -> None:
    for number in range(30):
        a_session(library, here, f"Fix bug {number}. Then tell me.")
    env = {"HOME": str(here.parent), "HOLDFAST_URL": f"sqlite:///{default_database()}"}
    with terminal(columns=columns, env=env) as picker:
        opened(picker)
        picker.press("bug 1")
        wait_for_screen(picker, f"picker-{columns}", "12 of 30 sessions in")


def test_the_last_active_session_is_the_first_and_others_directories_are_left_out(
    here: Path, tmp_path: Path
) -> None:
    begin("older")
    begin("newer")
    (tmp_path / "elsewhere").mkdir()
    assert holdfast("run", "--name", "away", "SAY x", cwd=tmp_path / "elsewhere").code == 0
    assert holdfast("resume", "older", "SAY again").code == 0
    with terminal() as picker:
        shown = opened(picker)
        assert shown.index("older") < shown.index("newer")
        assert "away" not in shown
        assert shown.startswith("2 sessions in ")
        picker.press(ESCAPE)
        assert picker.end() == 0


def by_hand(here: Path, home: Path, native: str, said: str, at: str) -> None:
    """A session that a person had in Claude Code."""
    folder = home / ".claude" / "projects" / re.sub(r"[^A-Za-z0-9]", "-", str(here))
    folder.mkdir(parents=True, exist_ok=True)
    common = {"cwd": str(here), "sessionId": native, "timestamp": at}
    answer = {
        "id": "m",
        "model": "opus",
        "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "yes"}],
    }
    lines = (
        {"type": "user", "uuid": "u", "parentUuid": None, "message": {"content": said}, **common},
        {"type": "assistant", "uuid": "a", "parentUuid": "u", "message": answer, **common},
    )
    (folder / f"{native}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_what_was_begun_in_the_agents_own_program_is_there(here: Path, home: Path) -> None:
    by_hand(here, home, "6a13a176-1111-4222-8333-123456789abc", "which colour?", "2026-03-02T08:00:00.000Z")
    with terminal() as picker:
        opened(picker)
        picker.wait_for(lambda _: "which colour" in marked(picker))
        by_hand(
            here, home, "7b13a176-1111-4222-8333-123456789abc", "which stone?", "2026-03-03T08:00:00.000Z"
        )
        picker.press(CTRL_D)
        assert picker.end() == 0
    with terminal("resume") as picker:
        opened(picker)
        picker.wait_for(lambda _: "which stone" in marked(picker))
        picker.press(CTRL_D)
        assert picker.end() == 0


@pytest.mark.parametrize("columns", [80, 200])
def test_hostile_titles_do_nothing_to_the_screen(library: Holdfast, here: Path, columns: int) -> None:
    for title in HOSTILE:
        a_session(library, here, title)
    with terminal(columns=columns) as picker:
        shown = opened(picker)
        lines = shown.rstrip("\n").split("\n")
        assert lines[0].startswith(f"{len(HOSTILE)} sessions in ")
        assert lines[-1].startswith("Enter continue")
        assert sum("claude" in line for line in lines) == len(HOSTILE)
        assert "\\x1b[2J" in shown
        assert "\\u202eoverride" in shown
        assert b"\x1b]0;owned" not in picker.printed
        picker.press(CTRL_D)
        assert picker.end() == 0


def test_no_color_turns_the_colours_off(library: Holdfast, here: Path) -> None:
    library.finalize(a_session(library, here, "one"), "failed")
    for env, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        with terminal(env=env) as picker:
            opened(picker)
            picker.press(CTRL_D)
            picker.end()
            assert (b"31m" in picker.printed or b";31" in picker.printed) is coloured


def test_a_resize_draws_the_list_anew(library: Holdfast, here: Path) -> None:
    for number in range(50):
        a_session(library, here, f"bug {number}")
    with terminal() as picker:
        opened(picker)
        picker.press(*[DOWN] * 15)
        picker.wait_for(lambda _: "bug 34" in marked(picker))
        picker.resize(60, 10)
        picker.wait_for(lambda shown: "PROVIDER" not in shown and shown.count("bug ") == 6)
        picker.wait_for(lambda _: "bug 34" in marked(picker))
        picker.resize(200, 50)
        picker.wait_for(lambda shown: "AGENT" in shown and shown.count("bug ") == 46)
        picker.wait_for(lambda _: "bug 34" in marked(picker))
        picker.press(ESCAPE)
        assert picker.end() == 0


def test_ten_thousand_sessions_can_be_looked_through(library: Holdfast, here: Path) -> None:
    for number in range(10_000):
        # of so many ids that are drawn within seconds, two may be the same
        a_session(library, here, f"bug-{number}", f"agent-20260108-120000-{number:08x}")
    with terminal() as picker:
        opened(picker)
        picker.wait_for(lambda shown: shown.startswith("10,000 sessions in …"))
        picker.press("bug-1234")
        picker.wait_for("1 of 10,000 sessions in")
        picker.press(ESCAPE)
        picker.wait_for(lambda shown: shown.startswith("10,000 "))
        picker.press("\x1b[F")  # End
        picker.wait_for(lambda _: "bug-0" in marked(picker))
        picker.press(ESCAPE)
        assert picker.end() == 0


# --- the keys ---


def test_a_whole_name_comes_before_longer_ones(library: Holdfast, here: Path) -> None:
    for name in ("s1", "s11", "s12"):
        library.rename(a_session(library, here, "work"), name)
    with terminal() as picker:
        opened(picker)
        picker.wait_for(lambda _: "s12" in marked(picker))
        picker.press("s1")
        picker.wait_for(lambda _: " s1 " in marked(picker))
        picker.press(ESCAPE, ESCAPE)
        assert picker.end() == 0


def test_typing_filters_and_escape_widens_again(library: Holdfast, here: Path) -> None:
    for title in ("fix the parser", "fix the lexer", "write docs"):
        a_session(library, here, title)
    with terminal() as picker:
        opened(picker)
        picker.press("FIX lex")
        picker.wait_for("1 of 3 sessions in")
        picker.wait_for(lambda _: "fix the lexer" in marked(picker))
        picker.press("nothing")
        picker.wait_for("nothing fits")
        picker.press(ENTER)  # chooses nothing
        picker.press(ESCAPE)
        picker.wait_for(lambda shown: shown.startswith("3 "))
        picker.press(ESCAPE)
        assert picker.end() == 0


def test_enter_continues_the_marked_session(library: Holdfast) -> None:
    begin("older")
    begin("newer")
    with terminal() as picker:
        opened(picker)
        picker.press(DOWN, DOWN, UP, DOWN)  # there are only two
        picker.wait_for(lambda _: "older" in marked(picker))
        picker.press(ENTER)
        picker.wait_for("$ holdfast resume older")
        at_prompt(picker)
        picker.press("HISTORY", ENTER)
        picker.wait_for("1. SAY the plan")
        at_prompt(picker)
        picker.press(CTRL_D)
        assert picker.end() == 0
        assert "paused; continue with: holdfast chat older" in picker.shown


def test_enter_continues_a_turn_that_was_stopped(library: Holdfast) -> None:
    with terminal("run", "--name", "long", "SLEEP 60") as run:
        run.wait_for("Starting")
        run.press(CTRL_C)
        assert run.end() == 130
    with terminal("resume") as picker:
        opened(picker)
        picker.press(ENTER)
        assert picker.end() == 0  # no prompt: it asks for nothing
        assert "holdfast: turn 2 of long" in picker.shown


@pytest.mark.parametrize(
    ("key", "command", "shows"),
    [
        ("l", "log plan", "the plan"),
        ("y", "why plan", "The next turn resumes"),
        ("o", "open plan", "joined the history"),
    ],
)
@pytest.mark.parametrize("arguments", [(), ("resume",)])
def test_ctrl_keys_run_other_commands(
    key: str, command: str, shows: str, arguments: tuple[str, ...], library: Holdfast
) -> None:
    begin("plan")
    with terminal(*arguments, lines=60, env={"PAGER": "cat"}) as picker:
        opened(picker)
        picker.press(ctrl(key))
        picker.wait_for(f"$ holdfast {command}")
        if key == "o":
            picker.press(CTRL_D)
        assert picker.end() == 0
        assert shows in picker.shown


def test_ctrl_f_talks_to_a_fork(library: Holdfast) -> None:
    begin("plan")
    with terminal() as picker:
        opened(picker)
        picker.press(ctrl("f"))
        picker.wait_for("$ holdfast chat --fork plan")
        at_prompt(picker)
        picker.press("HISTORY", ENTER)
        picker.wait_for("1. SAY the plan")
        at_prompt(picker)
        picker.press(CTRL_D)
        assert picker.end() == 0
    assert len(holdfast("list", "--json").json["sessions"]) == 2


@pytest.mark.parametrize(("key", "code"), [(CTRL_C, 130), (CTRL_D, 0), (ESCAPE, 0)])
@pytest.mark.parametrize("arguments", [(), ("resume",)])
def test_leaving_leaves_the_terminal_as_it_was(
    key: str, code: int, arguments: tuple[str, ...], library: Holdfast, here: Path
) -> None:
    a_session(library, here, "one")
    with terminal(*arguments) as picker:
        opened(picker)
        picker.press(key)
        assert picker.end() == code


def test_a_signal_leaves_the_terminal_as_it_was(library: Holdfast, here: Path) -> None:
    a_session(library, here, "one")
    with terminal() as picker:
        opened(picker)
        picker.process.send_signal(signal.SIGTERM)
        assert picker.end() == 143


# --- without the screen ---


def test_a_terminal_that_cannot_draw_asks_for_a_number(library: Holdfast) -> None:
    begin("older")
    begin("newer")
    with terminal(env={"TERM": "dumb"}) as picker:
        picker.wait_for("(Enter: none):")
        picker.press("3\n")
        picker.wait_for("a number from 1 to 2")
        picker.press("2\n")
        picker.wait_for("$ holdfast resume older")
        at_prompt(picker)
        picker.press(CTRL_D)
        assert picker.end() == 0
        assert b"\x1b" not in picker.printed
    for keys in ("\n", CTRL_D):
        with terminal(env={"TERM": "dumb"}) as picker:
            picker.wait_for("(Enter: none):")
            picker.press(keys)
            assert picker.end() == 0


def test_a_pipe_gets_the_help_and_a_resume_without_an_id_the_next_command(library: Holdfast) -> None:
    helped = holdfast()
    assert (helped.code, helped.out.startswith("Usage: holdfast")) == (2, True)
    missing = holdfast("resume")
    assert (missing.code, "holdfast list shows them" in missing.one_line_error()) == (2, True)


def test_an_agent_on_a_terminal_gets_no_picker(library: Holdfast) -> None:
    begin("plan")
    assert on_terminal(env={"HOLDFAST_SESSION": "agent-x"}).out.startswith("Usage: holdfast")
    assert on_terminal("resume", env={"HOLDFAST_SESSION": "agent-x"}).code == 2


def test_the_screen_is_only_loaded_where_it_is_shown() -> None:
    script = (
        "import sys\nfrom holdfast.cli.main import main\n"
        "for words in (['list'], ['resume', '--last'], []):\n"
        "    sys.argv = ['holdfast', *words]; main()\n"
        "print('prompt_toolkit' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == "False"


# --- the newest one, here ---


@pytest.mark.parametrize("words", [("resume", "--last"), ("resume", "-c"), ("-c",)])
def test_last_is_the_open_session_of_this_directory_that_was_active_last(
    words: tuple[str, ...], here: Path, tmp_path: Path, library: Holdfast
) -> None:
    begin("older", "SAY older")
    begin("newer", "SAY newer")
    begin("closed")
    library.finalize(library.find("closed"), "completed")
    (tmp_path / "elsewhere").mkdir()
    assert holdfast("run", "--name", "away", "SAY x", cwd=tmp_path / "elsewhere").code == 0

    assert holdfast(*words, "HISTORY").out == "1. SAY newer\n"
    assert holdfast("resume", "older", "SAY again").code == 0
    assert holdfast(*words, "-", stdin="HISTORY").lines == ["1. SAY older", "2. SAY again"]
    assert (
        holdfast(*words, "HISTORY", cwd=tmp_path).lines[0] == "1. SAY older"
    )  # of a directory below it, too


def test_last_without_one_says_what_to_do_next(here: Path, tmp_path: Path) -> None:
    begin("away")
    (tmp_path / "elsewhere").mkdir()
    for words in (("resume", "--last"), ("-c",), ("chat", "-c")):
        none = holdfast(*words, cwd=tmp_path / "elsewhere")
        assert none.code == 3
        assert "holdfast chat starts one" in none.one_line_error()
    assert (
        holdfast("resume", "--last", "--json", cwd=tmp_path / "elsewhere").json["error"]["code"]
        == "not_found"
    )


def test_last_takes_no_id() -> None:
    begin("plan")
    assert holdfast("resume", "--last", "plan", "SAY x").code == 2
    assert holdfast("chat", "--last", "plan", stdin="SAY x\n").code == 2


def test_last_on_a_terminal_without_a_prompt_is_a_chat() -> None:
    begin("plan")
    with terminal("-c") as chat:
        at_prompt(chat)
        chat.press("HISTORY", ENTER)
        chat.wait_for("1. SAY the plan")
        at_prompt(chat)
        chat.press(CTRL_D)
        assert chat.end() == 0
    assert holdfast("chat", "--last", stdin="RECALL plan\n").code == 0

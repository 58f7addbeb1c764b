"""What a person sees of an answer while it is written."""

import re
from pathlib import Path

import pytest

from tests.acceptance.command import holdfast
from tests.acceptance.screen import terminal

ESCAPE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
#: what the live line begins with
STATUS = re.compile(r"^\d+ s", re.MULTILINE)


def go(place: Path, name: str) -> None:
    (place / name).touch()


@pytest.mark.parametrize("columns", [80, 200])
def test_text_appears_as_it_is_written(scripted_place: Path, columns: int) -> None:
    prompt = "WRITE first line\\nsecond\nAWAIT one\nWRITE line\\nthird\nAWAIT two\nSAY line"
    with terminal("run", prompt, columns=columns) as run:
        shown = run.wait_for("first line\nsecond\n")
        assert STATUS.search(shown), "the live line is below it"
        go(scripted_place, "one")
        run.wait_for("first line\nsecond line\nthird\n")
        go(scripted_place, "two")
        assert run.end() == 0
    assert "first line\nsecond line\nthird line\nholdfast: turn 1 of " in run.shown
    assert run.shown.count("first line") == 1
    assert not STATUS.search(run.shown)


def test_the_live_line_names_the_running_tool(scripted_place: Path) -> None:
    wait = "while [ ! -e one ]; do sleep 0.05; done"
    prompt = f'TOOL shell {{"command": "{wait}"}}\nWRITE it is\nAWAIT two\nSAY done'
    with terminal("run", prompt) as run:
        run.wait_for(lambda shown: re.search(r"^\d+ s.*, shell: while", shown, re.MULTILINE) is not None)
        go(scripted_place, "one")
        run.wait_for("it is\n")
        run.wait_for(lambda shown: re.search(r"^\d+ s.*shell", shown, re.MULTILINE) is None)
        go(scripted_place, "two")
        assert run.end() == 0
    assert "it is done\n" in run.shown


def test_a_paragraph_that_is_longer_than_the_screen_shows_its_end(scripted_place: Path) -> None:
    words = " ".join(f"word{number}" for number in range(400))
    with terminal("run", f"WRITE {words}\nAWAIT one\nSAY end", columns=60, lines=12) as run:
        shown = run.wait_for("word399\n")
        assert STATUS.search(shown)
        go(scripted_place, "one")
        assert run.end() == 0
    assert "word399 end\n" in run.shown
    told = b"".join(ESCAPE.sub(b"", run.printed).split())
    assert told.count(b"word0word1word2") == 1


def test_nothing_disappears_while_lines_are_printed(scripted_place: Path) -> None:
    """Whenever the live line is drawn, the unfinished line is above it."""
    steps = "\n".join(f"WRITE line{n}\\nnext\nAWAIT go{n}" for n in range(5))
    with terminal("run", f"{steps}\nSAY end") as run:
        for number in range(5):
            run.wait_for(f"line{number}\nnext\n")
            go(scripted_place, f"go{number}")
        assert run.end() == 0
    assert "line4\nnext end\n" in run.shown
    drawn = re.findall(rb"([^\r\n]*)\r\n\d+ s", ESCAPE.sub(b"", run.printed))
    begun = drawn[drawn.index(b"next") :]
    assert len(begun) >= 5
    assert {line for line in begun if not line.startswith(b"next")} == set()


def test_a_turn_that_is_stopped_leaves_what_was_written(scripted_place: Path) -> None:
    with terminal("run", "WRITE half of the answer\nHANG") as run:
        run.wait_for("half of the answer\n")
        run.press("\x03")
        assert run.end() == 130
    assert "half of the answer\n" in run.shown


def test_a_chat_streams_too(scripted_place: Path) -> None:
    assert holdfast("run", "--name", "plan", "SAY the plan").code == 0
    with terminal("chat", "plan") as chat:
        chat.wait_for(lambda _: chat.row == ">")
        chat.press("WRITE half of", "\x1b\r", "AWAIT one", "\x1b\r", "SAY it", "\r")
        chat.wait_for("half of\n")
        go(scripted_place, "one")
        chat.wait_for(lambda shown: "half of it\n" in shown and chat.row == ">")
        chat.press("\x04")
        assert chat.end() == 0


def test_a_log_that_follows_shows_what_a_worker_is_writing(scripted_place: Path) -> None:
    assert holdfast("run", "--name", "plan", "SAY the plan").code == 0
    prompt = "WRITE half of the\nAWAIT one\nWRITE long\nAWAIT two\nSAY answer"
    assert holdfast("enqueue", "plan", prompt).code == 0
    with terminal("worker", "--once") as worker, terminal("log", "plan", "--follow", "--turn", "2") as log:
        log.wait_for("\n  half of\n")  # a word that may not be whole is not shown
        go(scripted_place, "one")
        log.wait_for("\n  half of the\n")
        go(scripted_place, "two")
        assert log.end() == 0
        assert worker.end() == 0
    assert "\n  half of the long answer\n" in log.shown
    assert log.shown.count("\n  half of") == 1


def test_a_log_that_follows_shows_what_was_said_in_pieces(scripted_place: Path) -> None:
    assert holdfast("run", "--name", "plan", "SAY the plan").code == 0
    assert holdfast("enqueue", "plan", "SAY one\nAWAIT one\nWRITE two and\nAWAIT two\nSAY three").code == 0
    with terminal("worker", "--once") as worker, terminal("log", "plan", "--follow", "--turn", "2") as log:
        log.wait_for("\n  one\n")
        go(scripted_place, "one")
        log.wait_for("\n  one\n  two\n")
        go(scripted_place, "two")
        assert log.end() == 0
        assert worker.end() == 0
    assert "two and three\n" in log.shown
    assert log.shown.count("\n  one") == 1

"""What a person sees: colours, tables that fit, and nothing that a text in the store could do to them."""

import re

import pytest

from holdfast import Holdfast
from tests import steps
from tests.acceptance.command import ok, on_terminal

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07 [red]markup[/red] [link=file:///]x[/link] :boom: \u202eoverride\nsecond line"
)


def plain(text: str) -> str:
    return ESCAPE.sub("", text)


def test_list_is_a_coloured_table(library: Holdfast) -> None:
    ids = [library.create("a-rather-long-agent-name", "a purpose " * 30, name=f"n{n}").id for n in range(3)]
    library.finalize(ids[0], "failed")

    shown = on_terminal("list")

    assert shown.code == 0
    header, *rows = plain(shown.out).splitlines()
    assert header.split() == ["SESSION", "STATUS", "PROVIDER", "PROJECT", "TITLE", "ACTIVE"]
    assert [row.split()[0] for row in rows] == [ids[0][-8:], ids[2][-8:], ids[1][-8:]]
    assert all(len(row) <= 80 for row in rows)
    assert "\x1b[31mfailed" in shown.out


def test_a_wide_terminal_shows_whole_ids_and_a_narrow_one_their_ends(library: Holdfast) -> None:
    session = library.create("a-rather-long-agent-name", "some purpose", name="a-name-of-its-own")

    assert session.id in plain(on_terminal("list", columns=120).out)
    header, row = plain(on_terminal("list", columns=40).out).splitlines()
    assert header.split() == ["SESSION", "STATUS", "TITLE", "ACTIVE"]
    assert row.split()[0] == session.id[-8:]


def test_a_terminal_shows_fifty_sessions_unless_asked_for_more(library: Holdfast) -> None:
    for _ in range(51):
        library.create("a")
    env = {"PAGER": "cat"}

    assert plain(on_terminal("list", env=env).out).count("idle") == 50
    assert "there are more: --all shows them" in plain(on_terminal("list", "--limit", "2").out)
    everything = plain(on_terminal("list", "--all", env=env).out)
    assert everything.count("idle") == 51
    assert "there are more" not in everything


@pytest.mark.parametrize("command", ["list", "show", "why"])
def test_no_color_turns_the_colours_off(command: str, library: Holdfast) -> None:
    session = library.create("a")
    arguments = [command] if command == "list" else [command, session.id]

    shown = on_terminal(*arguments, env={"NO_COLOR": "1"})

    assert shown.code == 0
    assert session.id[-8:] in plain(shown.out)
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", shown.out)


def test_hostile_text_does_nothing_to_the_terminal(library: Holdfast) -> None:
    session = library.create("agent", HOSTILE, {"key": HOSTILE})
    library.update(session.id, error=HOSTILE)
    steps.run(library.store, session, HOSTILE, response=HOSTILE)

    for arguments in (["list"], ["show", session.id], ["get", session.id], ["tree", session.id]):
        shown = plain(on_terminal(*arguments, columns=400).out)
        assert not set(shown) & set("\x1b\x07\u202e"), arguments
    shown = plain(on_terminal("show", session.id, columns=400).out)
    assert "\\x1b[2J\\x1b]0;owned\\x07 [red]markup[/red] [link=file:///]x[/link] :boom:" in shown


def test_why_and_should_resume_speak_to_a_person(library: Holdfast) -> None:
    session = library.create("a")
    library.update(session.id, phase="approval")

    told = " ".join(plain(on_terminal("why", session.id).out).split())
    begins = "The next turn starts a fresh claude session with the whole context: no earlier session is"
    assert told.startswith(begins)
    assert "earlier session on record no: no earlier session is on record; asks for a fresh start" in told
    assert "resuming switched on ✓ resume_disabled" in told
    assert "earlier session on record ✗ nothing to resume is recorded no_pointer" in told

    answer = on_terminal("should-resume", session.id)
    assert (answer.code, answer.out) == (0, "yes: session_resumable (all conditions are met)\n")


def test_json_on_a_terminal_is_indented_and_the_same(library: Holdfast) -> None:
    session = library.create("a", "é\x9b")

    shown = on_terminal("get", session.id)

    assert '\n  "agent_id": ' in shown.out
    assert "é\\u009b" in shown.out
    assert shown.json == ok("get", session.id).json


def test_an_empty_store_says_so_to_a_person() -> None:
    assert plain(on_terminal("list").out) == "no sessions\n"

"""search: sessions by what was said in them, on a terminal, in a pipe and as JSON."""

import re
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.domain.turns import NewTurn
from holdfast.errors import ConfigError
from holdfast.store.sql import sqlite_words
from tests.acceptance.command import holdfast, ok, on_terminal

HOSTILE = "\x1b[2J\x1b]0;owned\x07 [red]topic[/red] \u202eoverride\x9b\r\nsecond line \x00"


def asked(library: Holdfast, prompt: str, response: str = "done", **given: str) -> str:
    session = library.create("planner", given.pop("purpose", ""), **given)  # type: ignore[arg-type] # a name
    library.record(session.id, prompt, response, NewTurn(prompt, "claude"))
    return session.id


def test_a_pipe_gets_one_line_for_each_session(each_engine: str, library: Holdfast) -> None:
    session_id = asked(library, "look at src/app/parser.py", name="deploy")
    asked(library, "something else")

    (line,) = ok("search", "parser.py").lines

    fields = line.split("\t")
    assert fields[:2] == [session_id, "1"]
    assert fields[3:] == [
        "planner", "deploy", str(Path.cwd()), "prompt", "look at src/app/[parser.py]", 'holdfast resume deploy "..."'
    ]  # fmt: skip


def test_json_says_where_the_matches_are(library: Holdfast) -> None:
    session_id = asked(library, "the topic is this")

    found = ok("search", "TOPIC", "--json").json

    assert {name: found[name] for name in ("schema_version", "more", "all_words", "pending")} == {
        "schema_version": 1, "more": False, "all_words": True, "pending": 0,
    }  # fmt: skip
    (hit,) = found["hits"]
    (start, end) = hit["marks"][0]
    assert (hit["session_id"], hit["snippet"][start:end], hit["found_in"]) == (session_id, "topic", "prompt")


def test_nothing_found_is_exit_code_3(library: Holdfast) -> None:
    asked(library, "topic")

    ended = holdfast("search", "unicorn")
    assert (ended.code, ended.out) == (3, "")
    assert ended.one_line_error() == "words not found: unicorn"

    as_json = holdfast("search", "unicorn", "--json")
    assert (as_json.code, as_json.json["hits"]) == (3, [])


def test_some_of_the_words_are_said_to_be_some(library: Holdfast) -> None:
    asked(library, "topic")

    ended = holdfast("search", "topic", "unicorn")
    assert (ended.code, len(ended.lines)) == (0, 1)
    assert "these have some of them" in ended.err


@pytest.mark.parametrize(
    "arguments", [["!?"], ["x", "--limit", "0"], ["x", "--limit", "101"], [], ["x", "--since", "soon"]]
)
def test_what_cannot_be_searched_is_a_usage_error(arguments: list[str]) -> None:
    assert holdfast("search", *arguments).code == 2


def test_words_may_begin_with_a_dash(library: Holdfast) -> None:
    session_id = asked(library, "run it with --dry-run")

    assert ok("search", "--", "--dry-run").lines[0].startswith(session_id)


def test_a_terminal_shows_what_fits_and_nothing_that_a_text_does_to_it(library: Holdfast) -> None:
    session_id = asked(
        library, "go on", HOSTILE.replace("\x00", "") + "word " * 80, purpose="Plan\x1b[31m it " * 20
    )

    shown = on_terminal("search", "topic")

    assert shown.code == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.out)
    assert all(len(line.rstrip("\r")) <= 80 for line in text.split("\n"))
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]", text)
    assert session_id in text
    assert "holdfast resume" in text
    assert "\x1b[32mtopic" in shown.out
    ok("search", "topic", "--json")


def test_a_hit_takes_a_line_for_each_thing_that_is_known_of_it(library: Holdfast) -> None:
    title = "which colour has the wall of the first room that I painted last year?"
    session_id = asked(library, "the topic", purpose=title)

    shown = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal("search", "topic").out)

    head, about, directory, snippet, command = (line.rstrip() for line in shown.rstrip().splitlines())
    assert head == title
    assert re.fullmatch(rf"  {session_id}, planner, \d+s ago, turn 1, prompt", about)
    assert (directory, snippet) == (f"  {Path.cwd()}", "  the topic")
    assert command == f'  holdfast resume {session_id} "..."'


def test_the_directory_comes_first_if_it_is_another_one(
    scripted_place: Path, library: Holdfast, tmp_path: Path
) -> None:
    library.run("SAY topic", provider="scripted", name="deploy", cwd=str(scripted_place))
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()

    (hit,) = ok("search", "topic", "--json", cwd=elsewhere).json["hits"]
    assert hit["continue_with"] == f'cd {scripted_place} && holdfast resume deploy "..."'
    (hit,) = ok("search", "topic", "--json", cwd=scripted_place).json["hits"]
    assert hit["continue_with"] == 'holdfast resume deploy "..."'
    assert ok("search", "topic", "--project", ".", cwd=scripted_place).lines
    assert holdfast("search", "topic", "--project", ".", cwd=elsewhere).code == 3


def test_an_sqlite_without_full_text_says_what_to_do(
    library: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = asked(library, "topic")
    monkeypatch.setattr(sqlite_words, "TRIAL", "CREATE VIRTUAL TABLE words USING fts_of_another_build(word)")
    sqlite_words.require_fts5.cache_clear()

    with pytest.raises(ConfigError, match=r"built without FTS5.*PostgreSQL"):
        library.search("topic")

    library.edit(session_id, 1, prompt="everything else works")
    library.remove(session_id)

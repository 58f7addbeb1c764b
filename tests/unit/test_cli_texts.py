"""The small parts of the command that need no process: moments, escaped text, layout, exit codes."""

import json
import sys
from datetime import UTC, datetime

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import errors
from holdfast.cli import exit_codes, terminal
from holdfast.cli.arguments import parse_moment
from holdfast.cli.group import cli
from holdfast.cli.output import Column, Fields, Line, Paragraph, Table, cell, plain
from holdfast.clock import SECOND, Instant, after, age, duration, from_datetime
from holdfast.errors import HoldfastError, InvalidInput
from holdfast.escape import escape_json, one_line

NOW = Instant(1_767_895_530 * SECOND)  #: 2026-01-08T18:05:30Z


@pytest.mark.parametrize(
    ("text", "seconds_ago"),
    [
        ("45s", 45),
        ("30m", 1800),
        ("2h", 7200),
        ("3d", 259_200),
        ("1w", 604_800),
        ("1.5h", 5400),
        ("0s", 0),
        (" 2h ", 7200),
    ],
)
def test_a_time_ago_counts_back_from_now(text: str, seconds_ago: int) -> None:
    assert parse_moment("since", text, NOW) == after(NOW, -seconds_ago)


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-08T18:05:30Z",
        "2026-01-08T18:05:30",
        "2026-01-08 18:05:30",
        "2026-01-08T19:05:30+01:00",
        "20260108T180530",
    ],
)
def test_an_iso_datetime_without_a_zone_is_utc(text: str) -> None:
    assert parse_moment("since", text, NOW) == NOW


def test_a_date_is_its_first_moment() -> None:
    assert parse_moment("since", "2026-01-08", NOW) == from_datetime(datetime(2026, 1, 8, tzinfo=UTC))


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2x", "h", "-2h", "2h3m", "2026-13-01", "1e3s", "999999999w", "٣d", "\x00"]
)
def test_what_is_no_moment_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_moment("since", text, NOW)

    assert refused.value.field == "since"


@given(st.text())
def test_any_text_is_a_moment_or_refused(text: str) -> None:
    try:
        parse_moment("since", text, NOW)
    except InvalidInput:
        pass


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-5, "0s"), (0, "0s"), (59.9, "59s"), (60, "1m"), (3599, "59m"), (7200, "2h"), (90_000, "1d")],
)
def test_an_age_is_told_in_its_largest_unit(seconds: float, words: str) -> None:
    assert duration(seconds) == words
    assert age(after(NOW, -seconds), NOW) == words


@given(st.text(st.characters()))
def test_one_line_is_one_line_of_printable_characters(text: str) -> None:
    line = one_line(text)

    assert len(line.splitlines()) <= 1
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in line)
    line.encode()
    assert one_line(line) == line


@given(st.text(st.characters()))
def test_escape_json_says_the_same(text: str) -> None:
    printed = escape_json(json.dumps({"text": text}, ensure_ascii=False))

    assert json.loads(printed) == {"text": text}
    assert printed.isprintable() or not any(ord(char) < 32 for char in printed)
    printed.encode()


def test_a_long_text_is_cut_with_a_visible_sign() -> None:
    assert one_line("word " * 100, 12) == "word word wo…"
    assert one_line("short", 12) == "short"


def test_plain_blocks_are_aligned_and_have_no_trailing_spaces() -> None:
    table = Table((Column("A"), Column("B")), ((cell("long value"), cell("")), (cell("x"), cell("y"))))

    assert plain([Fields((("id", cell("7")), ("name", cell("")))), table, Line(cell("end"))]) == (
        "id    7\nname\n\nA           B\nlong value\nx           y\n\nend\n"
    )


def test_a_table_on_a_narrow_screen_is_shown_with_its_whole_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    table = Table(
        (Column("ID", whole=True), Column("NAME"), Column("TEXT")),
        ((cell("agent-20260108"), cell("a long name"), cell("[red]text[/red]")),),
    )

    terminal.show([table])

    _, row = capsys.readouterr().out.splitlines()
    assert row.split() == ["agent-20260108", "a", "lon…", "[red]…"]


def tree(error: type[HoldfastError]) -> list[type[HoldfastError]]:
    return [error, *(kind for child in error.__subclasses__() for kind in tree(child))]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.LeaseLost("agent-1", 3, 7), 75),
        (errors.Busy("turn 3"), 4),
        (errors.Refused("rights_wider", "no"), 4),
        (errors.NotFound("session", "x"), 3),
        (errors.ConfigError("file", "is wrong"), 2),
        (errors.StoreUnavailable("file", "is away"), 1),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (click.UsageError("no"), 2),
        (OSError(28, "No space left on device"), 1),
        (MemoryError(), 1),
    ],
)
def test_every_way_to_fail_has_its_exit_code(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_context: object) -> None:
        raise error

    monkeypatch.setattr(cli, "invoke", fail)

    assert exit_codes.run(["list"]) == code
    assert capsys.readouterr().err.count("\n") == 1
    assert exit_codes.run(["list", "--json"]) == code
    assert set(json.loads(capsys.readouterr().out)["error"]) == {"code", "message", "details"}


def test_the_exit_codes_of_the_error_tree_are_the_documented_ones() -> None:
    assert {kind.exit_code for kind in tree(HoldfastError)} <= {1, 2, 3, 4, 5, 75}


def test_json_is_asked_for_only_before_a_double_dash(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_codes.run(["get", "--", "--json", "x"]) == 2

    printed = capsys.readouterr()
    assert (printed.out, printed.err.startswith("holdfast: ")) == ("", True)


def test_a_command_without_any_output_stream_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)

    assert exit_codes.run(["no-such-command"]) == 2
    assert exit_codes.run(["no-such-command", "--json"]) == 2


def test_a_command_to_copy_is_never_broken_by_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    command = "cd /srv/a/rather/long/directory && holdfast resume deploy"
    terminal.show([Paragraph(((cell("deploy"),), (cell("word " * 20),)), cell(command))])
    *_, last = capsys.readouterr().out.splitlines()
    assert last == f"  {command}"

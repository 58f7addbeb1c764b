"""Reading a session: as a conversation on a terminal and in a pipe, and as a file to keep or to share."""

import json
import os
import re
import stat
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import holdfast as library_module
from holdfast import Holdfast
from holdfast.errors import InvalidInput
from tests.acceptance.command import holdfast, ok, on_terminal

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07 [red]markup[/red] \u202eoverride &#x202e;entity\n\n<script>alert(1)</script>\n\n"
    "Turn 9 · 2026-01-08 12:00:00\n\n```\nnever closed\n"
)
ANSWER = """# Findings

The parser drops the **last** token, see [the issue](https://example.org/42).

- read `parser.py`
- use <b>tags</b>
"""


def plain(text: str) -> str:
    return ESCAPE.sub("", text)


def without_times(text: str) -> str:
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", text)
    text = re.sub(r"\d+ s, \d+ tokens in, \d+ out, <\$0\.0001", "SPENT", text)
    return re.sub(r"agent-\d{8}-\d{6}-[0-9a-f]{8}", "ID", text)


@pytest.fixture
def place(scripted_place: Path) -> Path:
    return scripted_place


@pytest.fixture
def it(place: Path) -> str:
    """A session of three turns: with tool calls, recorded by hand, and without an answer."""
    order = 'SAY I look.\nTOOL shell {"command": "echo hi"}\nTOOL shell {"command": "ls /nowhere"}\nSAY Not there.'
    assert holdfast("run", order, "--name", "it").code == 0
    with library_module.open() as opened:
        session = opened.find("it")
        opened.record(session, "by hand", ANSWER)
        opened.record(session, "and then?", None)
    return "it"


def test_a_pipe_gets_the_conversation_as_plain_text(it: str) -> None:
    shown = without_times(ok("log", it).out).replace("scripted", "AGENT")
    assert shown == (
        "session ID · name it · agent AGENT · provider AGENT\n"
        "\n"
        "Turn 1 · TIME\n"
        "  > SAY I look.\n"
        '  > TOOL shell {"command": "echo hi"}\n'
        '  > TOOL shell {"command": "ls /nowhere"}\n'
        "  > SAY Not there.\n"
        "\n"
        "  I look.\n"
        "\n"
        "  ✓ shell: echo hi\n"
        "  ✗ shell: ls /nowhere  ls: cannot access '/nowhere': No such file or directory\n"
        "\n"
        "  Not there.\n"
        "\n"
        "  SPENT\n"
        "\n"
        "Turn 2 · TIME\n"
        "  > by hand\n"
        "\n"
        "  # Findings\n"
        "\n"
        "  The parser drops the **last** token, see [the issue](https://example.org/42).\n"
        "\n"
        "  - read `parser.py`\n"
        "  - use <b>tags</b>\n"
        "\n"
        "\n"
        "Turn 3 · TIME\n"
        "  > and then?\n"
        "\n"
        "  no answer\n"
    )


def test_times_are_local(library: Holdfast) -> None:
    session = library.create("a")
    library.record(session.id, "when?", "now")
    hours = [
        re.findall(r"^Turn 1 · \S+ (\d\d)", ok("log", session.id, env={"TZ": zone}).out, re.MULTILINE)[0]
        for zone in ("UTC", "UTC-5")
    ]
    assert (int(hours[0]) + 5) % 24 == int(hours[1])


def test_one_turn_or_the_last_ones_can_be_read_alone(it: str) -> None:
    assert re.findall("^Turn (.)", ok("log", it, "--turn", "2").out, re.MULTILINE) == ["2"]
    assert re.findall("^Turn (.)", ok("log", it, "--tail", "2").out, re.MULTILINE) == ["2", "3"]
    assert holdfast("log", it, "--turn", "9").code == 3
    for other in ("--raw", "--audit", "--json"):
        assert holdfast("log", it, "--tail", "2", other).code == 2


def test_a_terminal_gets_markdown_laid_out_within_its_width(it: str) -> None:
    shown = on_terminal("log", it, "--no-pager")
    text = plain(shown.out)

    assert shown.code == 0
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "# Findings" not in text
    assert "The parser drops the last token, see the issue" in text
    assert "(https://example.org/42)" in text
    assert " • use <b>tags</b>" in text
    (failed,) = (line for line in text.splitlines() if line.startswith("  ✗"))
    assert failed.startswith("  ✗ shell: ls /nowhere  ls: cannot access")
    assert "\x1b[31m  ✗" in shown.out


def test_no_color_turns_the_colours_of_the_log_off(it: str) -> None:
    shown = on_terminal("log", it, "--no-pager", env={"NO_COLOR": "1"})
    assert "The parser drops the last token" in plain(shown.out)
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", shown.out)


@pytest.mark.parametrize("where", ["terminal", "pipe"])
def test_hostile_text_does_nothing_and_cannot_look_like_a_turn(library: Holdfast, where: str) -> None:
    session = library.create("agent", name="it")
    library.record(session.id, HOSTILE, HOSTILE)
    library.record(session.id, "x" * 5_000_000, "[" * 5_000_000)

    shown = ok("log", "it").out if where == "pipe" else plain(on_terminal("log", "it", "--no-pager").out)

    assert not set(shown) & set("\x1b\x07\u202e")
    assert "\\x1b[2J\\x1b]0;owned\\x07 [red]markup[/red] \\u202eoverride" in shown
    assert "<script>alert(1)</script>" in shown
    assert re.findall("^Turn (.)", shown, re.MULTILINE) == ["1", "2"]
    assert shown.count("[[[[[[[[[[") > 100_000


def test_what_is_longer_than_the_screen_is_shown_in_the_pager(library: Holdfast, tmp_path: Path) -> None:
    pager = tmp_path / "pager with spaces"
    pager.write_text(
        f"#!{sys.executable}\nimport sys\nprint('IN THE PAGER', sys.argv[1:])\nsys.stdin.readline()\n"
    )
    pager.chmod(0o755)
    session = library.create("agent", name="short")
    library.record(session.id, "a", "b")
    long = library.create("agent", name="long")
    for number in range(200):
        library.record(long.id, f"prompt {number}", "many words " * 500)
    settings = {"PAGER": f"'{pager}' -x"}

    assert "IN THE PAGER" not in on_terminal("log", "short", env=settings).out
    paged = on_terminal("log", "long", env=settings)
    assert (paged.code, plain(paged.out)) == (0, "IN THE PAGER ['-x']\n")
    for others in (["--no-pager"], ["-f", "--turn", "1"]):
        assert "IN THE PAGER" not in on_terminal("log", "long", *others, env=settings).out
    assert "prompt 199" in on_terminal("log", "long", env={"PAGER": "cat"}).out
    assert "prompt 199" in on_terminal("log", "long", env={"PAGER": "no-such-program"}).out
    assert "prompt 199" in ok("log", "long", env=settings).out


def test_ctrl_c_belongs_to_the_pager(library: Holdfast, tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text(
        f"#!{sys.executable}\nimport signal, sys\n"
        "signal.signal(signal.SIGINT, lambda *_: (print('the pager goes on', flush=True), sys.exit(0)))\n"
        "print('ready', flush=True)\nsignal.pause()\n"
    )
    pager.chmod(0o755)
    session = library.create("agent", name="long")
    for number in range(50):
        library.record(session.id, f"prompt {number}", "words")

    shown = on_terminal("log", "long", question=b"ready", keys=b"\x03", env={"PAGER": str(pager)})

    assert "the pager goes on" in shown.out
    assert shown.code == 0


# --- export ---


def test_markdown_is_the_default_and_quotes_what_others_wrote(it: str) -> None:
    text = without_times(ok("export", it).out).replace("scripted", "AGENT")
    assert ok("export", it, "--markdown").out == ok("export", it).out
    assert text.startswith("# Session `it`\n\n- session: `ID`\n- name: `it`\n- agent: `AGENT`\n")
    assert text.partition("**Agent**")[2] == (
        "\n\n"
        "> I look.\n"
        "\n"
        "- ✓ `shell: echo hi`\n"
        "- ✗ `shell: ls /nowhere`: `ls: cannot access '/nowhere': No such file or directory`\n"
        "\n"
        "**Answer**\n"
        "\n"
        "> Not there.\n"
        "\n"
        "End: `SPENT`\n"
        "\n"
        "## Turn 2 · TIME UTC\n"
        "\n"
        "**Prompt**\n"
        "\n"
        "> by hand\n"
        "\n"
        "**Answer**\n"
        "\n"
        "> ```text\n"
        "> # Findings\n"
        ">\n"
        "> The parser drops the **last** token, see [the issue](https://example.org/42).\n"
        ">\n"
        "> - read `parser.py`\n"
        "> - use <b>tags</b>\n"
        ">\n"
        "> ```\n"
        "\n"
        "## Turn 3 · TIME UTC\n"
        "\n"
        "**Prompt**\n"
        "\n"
        "> and then?\n"
        "\n"
        "End: `no answer`\n"
    )


def test_no_text_leaves_its_quotation_in_markdown(library: Holdfast) -> None:
    session = library.create("a`gent", "a purpose with ``backticks`` and <b>", name="it")
    library.record(session.id, HOSTILE, HOSTILE)

    text = ok("export", "it").out

    assert not set(text) & set("\x1b\x07\u202e")
    assert [line for line in text.splitlines() if line.startswith(("```", "<", "Turn"))] == []
    assert "- agent: ``a`gent``" in text
    assert "- purpose: ```a purpose with ``backticks`` and <b>```" in text


@pytest.mark.parametrize(
    "text",
    [
        "![x](https://tracker.example/p.png)",
        "![x][1]\n\n[1]: https://tracker.example/p.png",
        "look: <img src=https://tracker.example/p.png>",
        "<script>alert(1)</script>",
        "- item\n\n  ```html\n  <img src=x>\n  ```\n<img src=https://tracker.example/p.png>",
        "````\n```\n<!-- -->\n````\n<?php",
        "```\n> ```\n<a href='https://tracker.example'>",
    ],
)
def test_a_viewer_of_the_markdown_loads_nothing(library: Holdfast, text: str) -> None:
    session = library.create("agent", name="it")
    library.record(session.id, text, text)

    page = _Page(MarkdownIt("commonmark").render(ok("export", "it").out))

    assert set(page.tags) <= {"h1", "h2", "p", "ul", "li", "code", "pre", "strong", "blockquote"}
    assert text.splitlines()[-1] in page.text


def test_plain_markdown_stays_markdown(library: Holdfast) -> None:
    session = library.create("agent", name="it")
    library.record(session.id, "1 < 2, a <- b", "**bold**, [a link](https://example.org), `x < y`")
    page = _Page(MarkdownIt("commonmark").render(ok("export", "it").out))
    assert {"strong", "a"} <= set(page.tags)
    assert "pre" not in page.tags


@pytest.mark.parametrize(
    "given",
    [("--html", "--markdown"), ("--markdown", "--html"), ("--json", "--html"), ("--json", "--markdown")],
)
def test_an_export_has_one_form(it: str, given: tuple[str, str]) -> None:
    ended = holdfast("export", it, *given)
    assert (ended.code, ended.out.startswith("#")) == (2, False)
    assert "exclude each other" in ended.err + ended.out


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}
        self.text = ""
        self.attributes: list[tuple[str, str, str | None]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_html_page_runs_nothing_and_loads_nothing(library: Holdfast, it: str, tmp_path: Path) -> None:
    for text in (
        HOSTILE,
        "<img src=x onerror=alert(1)>",
        "![i](https://tracker.example/x.png)",
        '"><svg onload=x>',
    ):
        library.record(library.find(it), text, text)
    library.rename(library.find(it), "</title><script>alert(1)</script>")
    file = tmp_path / "it.html"

    ok("export", library.find("</title><script>alert(1)</script>"), "--html", "-o", str(file))

    text = file.read_text("utf-8")
    page = _Page(text)
    assert set(page.tags) <= {
        "html", "head", "meta", "title", "style", "body", "header", "main", "article", "h1", "h2", "small", "dl", "dt",
        "dd", "div", "details", "summary", "pre", "b", "span", "p", "a", "ul", "li", "code", "strong",
    }  # fmt: skip
    assert page.tags["style"] == 1
    assert {name for _, name, _ in page.attributes} == {
        "lang", "charset", "http-equiv", "content", "name", "id", "href", "class", "rel",
    }  # fmt: skip
    (policy,) = (
        value
        for tag, name, value in page.attributes
        if tag == "meta" and name == "content" and "src" in (value or "")
    )
    assert re.fullmatch(
        r"default-src 'none'; style-src 'sha256-[^']+'; base-uri 'none'; form-action 'none'", policy or ""
    )
    links = [value or "" for tag, name, value in page.attributes if name == "href"]
    assert all(link.startswith(("#turn-", "https://")) for link in links)
    assert "https://example.org/42" in links
    assert not set(text) & set("\x1b\x07\u202e")


def test_the_json_has_everything_on_record(it: str, tmp_path: Path) -> None:
    file = tmp_path / "it.json"
    told = ok("export", it, "--json", "-o", str(file)).json
    assert (told["file"], told["bytes"]) == (str(file), file.stat().st_size)

    document = json.loads(file.read_text("utf-8"))
    assert document["schema_version"] == 1
    assert document["session"]["name"] == "it"
    first, by_hand, unanswered = document["turns"]
    assert [event["kind"] for event in first["events"]] == [
        "text", "tool_call", "tool_result", "tool_call", "tool_result", "text", "usage", "notice",
    ]  # fmt: skip
    assert first["events"][3]["data"]["arguments"] == {"command": "ls /nowhere"}
    assert first["events"][4]["data"]["is_error"] is True
    (attempt,) = first["attempts"]
    assert (attempt["status"], attempt["usage"]["output_tokens"] > 0) == ("done", True)
    assert (by_hand["prompt"], by_hand["response"], by_hand["attempts"]) == ("by hand", ANSWER, [])
    assert unanswered["response"] is None
    assert document == json.loads(ok("export", it, "--json").out)


def test_a_file_is_private_and_never_replaced_unasked(it: str, tmp_path: Path) -> None:
    file = tmp_path / "it.md"
    ok("export", it, "-o", str(file))
    before = file.read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    refused = holdfast("export", it, "--html", "-o", str(file))

    assert refused.code == 4
    assert refused.one_line_error() == f"{file} exists; --force replaces it"
    pipe = file.with_name("pipe")
    os.mkfifo(pipe)
    refused = holdfast("export", it, "-o", str(pipe), "--force")
    assert (refused.code, "is not a file" in refused.one_line_error(), pipe.is_fifo()) == (2, True, True)
    assert file.read_bytes() == before
    ok("export", it, "--html", "--force", "-o", str(file))
    assert file.read_bytes().startswith(b"<!doctype html>")
    assert [found.name for found in tmp_path.glob("*it.md*")] == ["it.md"]


def test_an_export_that_fails_leaves_no_file(it: str, tmp_path: Path) -> None:
    assert (
        "is not a directory" in holdfast("export", it, "-o", str(tmp_path / "no" / "x.md")).one_line_error()
    )
    assert holdfast("export", "nobody", "-o", str(tmp_path / "x.md")).code == 3
    assert holdfast("export", it, "--html", "--json").code == 2
    assert list(tmp_path.glob("*x.md*")) == []


def test_html_without_its_extra_says_what_to_install(it: str, tmp_path: Path) -> None:
    (tmp_path / "nh3.py").write_text("raise ImportError('not here')")
    without = holdfast("export", it, "--html", env={"PYTHONPATH": str(tmp_path)})
    assert without.code == 2
    assert "pip install 'holdfast-sessions[export]'" in without.one_line_error()
    assert without.out == ""


def test_the_library_exports_piece_by_piece(library: Holdfast) -> None:
    session = library.create("a")
    library.record(session.id, "q", "a")
    assert "".join(library.export(session.id)).endswith("**Answer**\n\n> a\n")
    assert json.loads("".join(library.export(session.id, "json")))["turns"][0]["response"] == "a"
    with pytest.raises(InvalidInput):
        library.export(session.id, "pdf")

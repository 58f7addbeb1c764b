"""What a person sees on terminals of 80 and 200 columns, kept as text: lists, and what runs."""

import os
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from rich.cells import cell_len

from holdfast import Holdfast
from holdfast.cli.group import SECTIONS
from holdfast.cli.output import money
from holdfast.clock import to_datetime, to_iso
from holdfast.domain.events import Called, Event, Recorded, Spent
from holdfast.domain.ids import short_id
from holdfast.domain.sessions import SessionKind
from holdfast.domain.usage import Usage, UsageReport
from tests import steps
from tests.acceptance.command import default_database, holdfast, ok, on_terminal
from tests.acceptance.screen import WRITE, without_what_varies

HOUR = 3600
SCREENS = Path(__file__).with_name("screens")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def screen(*arguments: str, columns: int = 80, **env: str) -> str:
    """What stands on the screen, without colours and without spaces at the ends of lines."""
    shown = on_terminal(*arguments, columns=columns, env={"PAGER": "cat", **env})
    assert shown.code == 0, shown.out
    return "\n".join(line.rstrip() for line in ESCAPE.sub("", shown.out).splitlines())


def write(statement: str, **values: object) -> None:
    with closing(sqlite3.connect(default_database())) as connection, connection:
        connection.execute(statement, values)


def a_session(library: Holdfast, end: str, ago: float, purpose: str = "", **given: str | None) -> str:
    """A session whose id ends like this, and that was last active so many seconds ago."""
    agent, project, phase = given.pop("agent", None), given.pop("project", None), given.pop("phase", None)
    made = library.create(agent or "claude", purpose, **given)  # type: ignore[arg-type]
    new_id = f"agent-20260108-180530-{end}"
    at = int((time.time() - ago) * 1_000_000)
    write("UPDATE sessions SET id = :new, updated_at = :at, project = :project, phase = COALESCE(:phase, phase) "
          "WHERE id = :id", new=new_id, id=made.id, at=at, project=project, phase=phase)  # fmt: skip
    return new_id


@pytest.fixture
def some(library: Holdfast) -> None:
    """One of each kind, the last active one made first."""
    asked = "Fix the login bug. Then write a test for it, and commit."
    a_session(library, "aaaaaaa1", 42.5 * 60, asked, provider="claude", project="/srv/shop")
    a_session(library, "aaaaaaa2", 2 * HOUR + 5, "修复登录页面的布局问题，并且在所有浏览器上测试，然后提交代码。谢谢",
              provider="codex", project="/srv/a-project-with-a-rather-long-name")  # fmt: skip
    a_session(library, "aaaaaaa3", 26 * HOUR, "\x1b[2J\x1b]0;owned\x07 [red]markup[/red] \u202eoverride",
              provider="gemini", project="/srv/\x1b[31mred")  # fmt: skip
    a_session(library, "aaaaaaa4", 27 * HOUR, agent="terraform-architect", name="network", phase="planning")
    waits = a_session(library, "aaaaaaa5", 28 * HOUR, agent="terraform-architect", phase="approval")
    a_session(library, "aaaaaaa6", 29 * HOUR, "x" * 5000, provider="claude", project="/")
    ok("request-approval", waits, "apply the plan", "--answerer", "alice")
    write("UPDATE sessions SET updated_at = updated_at - 3600000000 * 28 WHERE id = :id", id=waits)


def same_as_kept(name: str, shown: str) -> None:
    """The screen as it was looked at and kept."""
    if os.environ.get(WRITE):
        (SCREENS / f"{name}.txt").write_text(shown + "\n", "utf-8")
    assert shown + "\n" == (SCREENS / f"{name}.txt").read_text("utf-8")


@pytest.mark.parametrize("columns", [50, 80, 200])
def test_a_list_is_as_it_was_looked_at(some: None, columns: int) -> None:
    shown = screen("list", columns=columns)

    same_as_kept(f"list-{columns}", shown)
    assert all(cell_len(line) <= columns for line in shown.splitlines())


@pytest.fixture
def told(library: Holdfast) -> None:
    """A session of two turns, and one whose turn runs."""
    asked = "Fix the login bug. Then write a test for it, and commit."
    done = library.create("claude", asked, kind=SessionKind.CONVERSATION, name="login", provider="claude")
    steps.run(library.store, done, asked, response="The cookie had no path.\n\n- `login.py` sets it now")
    steps.run(library.store, done, "And the test?", response="It is in `test_login.py`, and passes.")
    runs = library.create("claude", "Count the words.", kind=SessionKind.CONVERSATION, provider="claude")
    steps.enqueue(library.store, runs, "Count the words.")
    lease = steps.claim(library.store, runs).lease
    said: list[Recorded] = [
        Spent(UsageReport(Usage(1200, 300, 45))),
        Called("c1", "Bash", {"command": "wc -w README.md"}),
    ]
    at = library.store.now()
    library.store.record_events(lease, [Event(n, one.kind, one.data, at) for n, one in enumerate(said, 1)])
    write("UPDATE attempts SET started_at = started_at - 7500000000 WHERE ended_at IS NULL")


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize(("name", "words"), [("show", ["login"]), ("why", ["login"]), ("ps", [])])
def test_a_screen_is_as_it_was_looked_at(told: None, name: str, words: list[str], columns: int) -> None:
    shown = screen(name, *words, columns=columns)

    assert all(cell_len(line) <= columns for line in shown.splitlines())
    same_as_kept(f"{name}-{columns}", without_what_varies(shown))


def test_each_first_column_of_a_list_names_its_session(some: None) -> None:
    for line in screen("list").splitlines()[1:]:
        (shown, *_) = line.split()
        assert ok("get", shown).json["agent_id"] == f"agent-20260108-180530-{shown}"


def test_what_fits_several_sessions_lists_them_with_their_titles(some: None) -> None:
    asked = on_terminal("show", "agent-2026")

    assert asked.code == 3
    told = f"holdfast: agent-20260108-180530-aaaaaaa6: claude, idle, {'x' * 60}…, 1d ago"
    assert told in " ".join(asked.out.split())
    assert holdfast("show", "agent-2026").one_line_error().startswith("'agent-2026' fits several sessions")


def test_filters_and_the_order_of_a_list(some: None) -> None:
    def found(*options: str) -> list[str]:
        return [line.split("\t")[0][-1] for line in ok("list", *options).lines]

    assert found() == found("--sort", "created") == list("654321")
    assert found("--sort", "activity") == list("123456")
    assert found("-p", "claude") == list("61")
    assert found("--project", "/srv") == list("321")
    assert found("--project", "/srv/shop/") == ["1"]
    assert found("--grep", "LOGIN") == ["1"]
    assert found("--grep", "登录", "--provider", "codex") == ["2"]
    assert [one["title"] for one in ok("list", "--json", "--grep", "login").json["sessions"]] == [
        "Fix the login bug"
    ]


def test_a_mistyped_provider_or_directory_gets_a_hint(some: None, tmp_path: Path) -> None:
    (tmp_path / "website").mkdir()
    mistyped = str(tmp_path / "webiste")
    provider = "holdfast: no provider is called cluade; did you mean claude?\n"
    project = (
        f"holdfast: there is no directory {mistyped} on this machine; did you mean {tmp_path}/website?\n"
    )

    assert holdfast("list", "-p", "cluade").err == provider
    assert holdfast("list", "--project", mistyped).err == project
    nothing = "holdfast: words not found: login\n"
    assert holdfast("search", "-p", "cluade", "login").err == provider + nothing
    assert holdfast("search", "--project", mistyped, "login").err == project + nothing
    assert holdfast("search", "-p", "gemini", "login").err == nothing
    assert "there are claude, codex" in holdfast("list", "-p", "zzz").err


def test_a_list_that_is_longer_than_the_screen_opens_the_pager(library: Holdfast) -> None:
    for number in range(60):
        library.create("a", f"purpose {number}")
    pager = "sh -c 'echo paged; cat'"

    assert "paged" in screen("list", PAGER=pager).splitlines()[0]
    assert "paged" not in screen("list", "--no-pager", PAGER=pager)
    assert "paged" not in screen("list", "--limit", "5", PAGER=pager)
    assert screen("list", "--all").count("purpose ") == 60


def test_none_one_and_ten_thousand_sessions(library: Holdfast) -> None:
    assert screen("list") == "no sessions"
    library.create("a", "the only one")
    assert len(screen("list").splitlines()) == 2
    write("""
        WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 9999)
        INSERT INTO conversations (workspace, id, revision, generation, next_seq, created_at)
        SELECT 'default', 'conv-' || n, 0, 0, 1, n FROM numbers""")
    write("""
        WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 9999)
        INSERT INTO sessions (workspace, id, conversation_id, agent, kind, purpose, phase, resume_ready, metadata,
            created_at, updated_at)
        SELECT 'default', 'agent-' || n, 'conv-' || n, 'a', 'conversation', 'number ' || n, 'investigating', 1, '{}',
            n, n FROM numbers""")

    first = screen("list").splitlines()
    assert (first[1].split()[-4:-1], first[-1]) == (
        ["the", "only", "one"],
        "there are more: --all shows them",
    )
    assert len(screen("list", "--all").splitlines()) == 10_001


def test_show_says_where_the_turns_are_that_it_leaves_out(library: Holdfast) -> None:
    session = library.create("claude", "Count", kind=SessionKind.CONVERSATION)
    for number in range(1, 4):
        steps.run(library.store, session, f"Count to {number}", response=str(number))
    them = f"All turns: holdfast log {short_id(session.id)}"

    assert them in screen("show", session.id, "--turns", "2")
    assert "Count to 1" not in screen("show", session.id, "--turns", "2")
    assert them not in screen("show", session.id, "--turns", "3")


def test_the_help_fits_a_screen_and_names_every_command() -> None:
    shown = screen("--help")

    assert len(shown.splitlines()) <= 50
    assert "..." not in shown.partition("\n")[2], "no description is cut"
    words = set(shown.replace(",", " ").split())
    assert words >= {name for section in SECTIONS.values() for name in section}


def test_show_has_local_times_the_last_answer_laid_out_and_no_cost_that_is_not_known(
    library: Holdfast,
) -> None:
    session = library.create("claude", "Fix the login bug. Then test it.", kind=SessionKind.CONVERSATION)
    steps.run(
        library.store, session, "Fix it", response="# Done\n\n- the *first* thing\n- `code` \x1b[31mred"
    )

    shown = screen("show", session.id, TZ="Asia/Tokyo")

    assert "Answer of turn 1\n" in shown
    answer = shown.partition("Answer of turn 1\n")[2]
    assert "• the first thing" in answer
    assert "\\x1b[31mred" in answer
    assert "0 tokens in (0 cached), 0 out, –" in shown
    at = to_datetime(session.created_at).astimezone(ZoneInfo("Asia/Tokyo"))
    assert re.search(f"^created +{at:%Y-%m-%d %H:%M:%S}", shown, re.MULTILINE)
    assert "\nphase" not in shown
    piped = ok("show", session.id).out
    assert to_iso(session.created_at) in piped
    assert "\nphase" in piped


def test_a_long_answer_is_cut_and_the_log_is_named(library: Holdfast) -> None:
    session = library.create("claude")
    steps.run(library.store, session, "count", response="\n\n".join(map(str, range(100))))

    shown = screen("show", session.id)

    assert f"more lines: holdfast log {session.id} --turn 1" in shown
    assert len(shown.splitlines()) < 80


@pytest.mark.parametrize(
    ("cost", "shown"), [(0, "–"), (0.00001, "<$0.0001"), (0.0001, "$0.0001"), (12.5, "$12.5000")]
)
def test_money(cost: float, shown: str) -> None:
    assert money(cost) == shown

"""Both entrances of the command give the same answers and write the same rows; the light one loads next to nothing."""

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from holdfast.cli import light
from holdfast.cli.command import GLOBAL_OPTIONS
from holdfast.cli.group import cli
from tests.integration.hook_process import environment

#: what the standard library may give: these, and whatever they bring along
ALLOWED = "import sqlite3, json, argparse, signal, fcntl, pwd, zlib, __future__"
PREPARED = "import sys; from holdfast.cli.main import prepare_streams; prepare_streams(); "
LIGHT = PREPARED + "from holdfast.cli.light import answer; code = answer(sys.argv[1:]); {}"
ONLY_LIGHT = LIGHT.format("assert code is not None, 'left to the command'; sys.exit(code)")
LEFT_ALONE = LIGHT.format("assert code is None, 'answered'")
LOADED = LIGHT.format("print(*sys.modules, file=sys.stderr)")
WHOLE = PREPARED + "from holdfast.cli.exit_codes import run; sys.exit(run(sys.argv[1:]))"
TABLES = ("sessions", "conversations", "phase_changes", "approvals", "turns", "delegations")
HEAVY = {
    "click", "dataclasses", "inspect", "logging", "pathlib", "rich", "typing", "holdfast.config",
    "holdfast.engine.holdfast", "holdfast.store.open", "holdfast.store.sql.codec", "holdfast.cli.command",
}  # fmt: skip


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def start(
    program: str, arguments: Sequence[str | bytes], environ: Mapping[str, str], cwd: Path | None = None
) -> Ended:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environ,
        cwd=cwd,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


class Place:
    """A home of its own, in which one of the entrances does everything."""

    def __init__(self, program: str, home: Path) -> None:
        self.home = home
        self._program = program
        self.environ = environment({"HOME": str(home)})
        self.ids: list[str] = []
        home.mkdir()
        assert self.whole("list").code == 0  # makes the store
        start(LOADED, ["list"], self.environ, home)  # and the cache of settings

    @property
    def store(self) -> Path:
        return self.home / ".local/share/holdfast/holdfast.db"

    def whole(self, *arguments: str | bytes) -> Ended:
        return start(WHOLE, arguments, self.environ, self.home)

    def make(self, *arguments: str) -> None:
        """By the whole command in both places: the sessions that the others are called with."""
        ended = self.whole("create", *arguments)
        assert ended.code == 0, ended
        self.ids.append(ended.out.strip())

    def call(self, *arguments: str | bytes) -> Ended:
        """``{0}`` is the first session."""
        named = [self.ids[0] if one == "{0}" else one for one in arguments]
        return Ended(*map(self.alike, start(self._program, named, self.environ, self.home)))

    def alike(self, value: Any) -> Any:
        """Without what differs between two runs: ids, moments and the home."""
        if type(value) is int:
            return "instant" if value > 10**15 else value
        if not isinstance(value, str):
            return value
        for number, known in enumerate(self.ids):
            value = value.replace(known, f"id {number}").replace(
                known.replace("agent-", "conv-"), f"conv {number}"
            )
        value = re.sub(r"(agent|conv|apr)-\d{8}-\d{6}-[0-9a-f]{8}", r"\1 new", value)
        value = re.sub(r"^[0-9a-f]{16,64}$", "digest", value)  # of an approval, and of its session
        value = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "moment", value)
        value = re.sub(r'"duration_seconds": [\d.]+', '"duration_seconds": some', value)
        return value.replace(str(self.home), "home")

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        with closing(sqlite3.connect(self.store)) as sql:
            found = {name: sql.execute(f"SELECT * FROM {name}").fetchall() for name in TABLES}
        return {
            name: sorted((tuple(map(self.alike, row)) for row in rows), key=repr)
            for name, rows in found.items()
        }


class Both(NamedTuple):
    light: Place
    whole: Place

    def make(self, *arguments: str) -> None:
        self.light.make(*arguments)
        self.whole.make(*arguments)

    def prepare(self, *arguments: str) -> None:
        for place in self:
            ended = place.whole(*(place.ids[0] if one == "{0}" else one for one in arguments))
            assert ended.code == 0, ended

    def agree(self, *arguments: str | bytes) -> Ended:
        one, other = self.light.call(*arguments), self.whole.call(*arguments)
        assert one == other
        assert self.light.rows() == self.whole.rows()
        return one


@pytest.fixture
def both(tmp_path: Path) -> Both:
    return Both(Place(ONLY_LIGHT, tmp_path / "light"), Place(WHOLE, tmp_path / "whole"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(LEFT_ALONE, tmp_path / "home")
    made.make("--agent", "a", "--name", "deploy")
    return made


def test_an_approval_workflow_is_the_same(both: Both) -> None:
    both.agree("create", "--agent", "terraform-architect", "--purpose", "approval_workflow")
    both.make("--agent", "terraform-architect", "--purpose", "approval_workflow", "--name", "deploy")
    both.agree("update", "{0}", "--phase", "investigating")
    both.agree(
        "update", "{0}", "--phase=planning", "--metadata", '{"plan_file": "plan.json", "resources": [1, 2]}'
    )
    both.agree("should-resume", "deploy")
    both.agree("update", "{0}", "--phase", "approval", "--json")
    assert both.agree("should-resume", "{0}") == Ended(0, "session_resumable\n", "")
    both.agree("should-resume", "{0}", "--json")
    both.agree("get", "deploy")
    both.agree("get", "{0}", "--json")
    both.agree("update", "deploy", "--expect", "approval", "--phase", "executing", "--json")
    both.agree("update", "{0}", "--phase", "completed", "--summary", "Terraform applied")
    assert both.agree("should-resume", "{0}") == Ended(4, "session_final\n", "")
    both.agree("list")
    both.agree("list", "--json")


def test_an_investigation_with_errors_is_the_same(both: Both) -> None:
    both.make("--agent", "gitops-operator", "--metadata", '{"issue": "pod-crash-loop"}')
    for number in range(3):
        both.agree("update", "{0}", "--error", f"kubectl failed: {number}", "--json")
    assert both.agree("should-resume", "{0}").code == 4
    both.agree("should-resume", "{0}", "--json")
    both.agree(
        "update", "{0}", "--clear-errors", "--phase", "investigating", "--summary", "found it", "--json"
    )
    both.agree("get", "{0}")


HOSTILE = (
    "zwölf Boxkämpfer 漢字 🚀 e\u0301", "tab\tand\nlines\r\n", "\x1b[31mred\x1b[0m \u202e\u2028", "'; DROP TABLE sessions; --",
    "password: hunter2hunter2", "ghp_" + "a1B2" * 10, "https://user:pw12345@example.com/x", "a" * 9000, "%_!\\ {0} {1}",
)  # fmt: skip


def test_whatever_a_text_holds_is_kept_and_printed_the_same(both: Both) -> None:
    both.make("--agent", "a")
    for text in HOSTILE:
        metadata = json.dumps({"k": text, text[:20]: 1})
        both.agree("create", "--agent", "a", "--purpose", text, "--metadata", metadata, "--json")
        both.agree("update", "{0}", "--error", text)
        both.agree("update", "{0}", "--summary", text, "--metadata", metadata, "--json")
    both.agree("get", "{0}")
    both.agree("list")
    both.agree("list", "--json", "--grep", HOSTILE[0])


def test_every_way_to_name_a_session_finds_the_same(both: Both) -> None:
    both.make("--agent", "a", "--name", "deploy", "--purpose", "Mend the parser. Then rest.")
    for named in ("{0}", "deploy", "mend the parser"):
        both.agree("get", named)
        both.agree("update", named, "--phase", "planning")
    for place in both:
        (session_id,) = place.ids
        for part in (session_id[:-2], session_id[-8:]):
            assert place.call("get", part).code == 0


LISTS: tuple[tuple[str, ...], ...] = (
    (), ("--json",), ("--active-only",), ("--agent", "b"), ("--agent=nobody",), ("-p", "claude"), ("--provider=codex", "--json"),
    ("--grep", "PARSER"), ("--grep", ""), ("--status", "idle"), ("--status=done", "--json"), ("--resumable",),
    ("--metadata", "task=T1"), ("--metadata", "task=none"), ("--sort", "activity"), ("--sort", "created"), ("--limit", "2"),
    ("--limit=2", "--json"), ("--limit", "500"), ("--all",), ("--all", "--limit", "1"), ("--active-only", "--agent", "a", "--json"),
)  # fmt: skip


def test_every_plain_list_is_the_same(both: Both) -> None:
    both.make(
        "--agent", "a", "-p", "claude", "--purpose", "mend the parser", "--metadata", '{"task": ["T1"]}'
    )
    both.make("--agent", "b", "-p", "codex", "-n", "second")
    both.make("--agent", "b", "--metadata", '{"task": "T1"}')
    both.prepare("update", "{0}", "--phase", "approval")
    both.prepare("update", "second", "--phase", "failed")
    for options in LISTS:
        both.agree("list", *options)


def test_a_session_that_waits_for_people_is_the_same(both: Both) -> None:
    both.make("--agent", "a")
    both.prepare("request-approval", "{0}", "apply it")
    both.agree("should-resume", "{0}", "--json")
    both.agree("get", "{0}")
    both.agree("list", "--status", "waiting")
    both.agree("update", "{0}", "--phase", "failed", "--json")  # the approval is void then


def test_a_session_leaves_the_phase_approval_the_same(both: Both) -> None:
    both.make("--agent", "a")
    both.prepare("update", "{0}", "--phase", "approval")
    both.agree("update", "{0}", "--phase", "executing", "--json")


def test_a_session_with_a_queued_turn_ends_the_same(both: Both) -> None:
    both.make("--agent", "a", "--provider", "scripted")
    both.prepare("enqueue", "{0}", "say hello")
    both.agree("get", "{0}")
    both.agree("update", "{0}", "--phase", "abandoned", "--json")


NOT_PLAIN: tuple[tuple[str | bytes, ...], ...] = (
    (), ("get",), ("get", "--help"), ("get", "-h"), ("get", "--", "deploy"), ("get", "deploy", "more"), ("get", ""), ("get", "none"),
    ("--json", "get", "deploy"), ("get", "deploy", "--json", "--json"), ("get", "deploy", "--url", "sqlite:///x"),
    ("get", "deploy", "--json=1"), ("get", b"\xff"), ("ls",), ("show", "deploy"), ("hook", "stop", "x"), ("get", "-"),
    ("create",), ("create", "--agent"), ("create", "--agent", ""), ("create", "--agent", "-"), ("create", "--agent", "a", "b"),
    ("create", "--agent", "a", "--purpose", "-"), ("create", "--agent", "a", "--metadata", "[]"),
    ("create", "--agent", "a", "--metadata", "{"), ("create", "--agent", "a", "-ndeploy"), ("create", "--agent", "a", "-n", "deploy"),
    ("create", "--agent", "a", "-p", "NO"), ("create", "--agent", b"\xff"), ("create", "--agent", "a", "--agent", "b"),
    ("update", "deploy", "--phase", "nonsense"), ("update", "deploy", "--expect", "planning", "--error", "x"),
    ("update", "deploy", "--error", b"\xff"), ("update", "none", "--phase", "planning"), ("should-resume", "none"),
    ("list", "--since", "2h"), ("list", "--limit", "0"), ("list", "--limit", "x"), ("list", "--limit", "9" * 5000),
    ("list", "--status", "nonsense"), ("list", "--sort", "x"), ("list", "-p", "codex"), ("list", "--metadata", "x"),
    ("list", "--agent", b"\xff"), ("list", "--project", "."), ("list", "x"),
)  # fmt: skip


def test_what_is_not_plain_is_left_to_the_command_and_nothing_is_written(place: Place) -> None:
    before = place.rows()
    for arguments in NOT_PLAIN:
        assert place.call(*arguments) == Ended(0, "", ""), arguments
    assert place.rows() == before


def test_a_store_elsewhere_or_of_another_kind_is_left_to_the_command(place: Place, tmp_path: Path) -> None:
    def left(**variables: str) -> None:
        place.environ = environment({"HOME": str(place.home), **variables})
        assert place.call("get", "deploy") == Ended(0, "", ""), variables
        assert place.call("create", "--agent", "a") == Ended(0, "", ""), variables

    left(HOLDFAST_URL="postgresql://127.0.0.1:1/none")
    left(HOLDFAST_URL=f"sqlite:///{tmp_path}/none.db")
    left(HOLDFAST_URL="sqlite:///:memory:")
    left(HOLDFAST_URL="nonsense")
    left(_HOLDFAST_COMPLETE="bash_complete")
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("version", [1, 10_000])
def test_another_schema_is_left_to_the_command(place: Place, version: int) -> None:
    with closing(sqlite3.connect(place.store)) as sql:
        sql.execute(f"PRAGMA user_version = {version}")
    assert place.call("create", "--agent", "a") == Ended(0, "", "")
    with closing(sqlite3.connect(place.store)) as sql:
        assert sql.execute("SELECT COUNT(*) FROM sessions").fetchone() == (1,)
        assert sql.execute("PRAGMA user_version").fetchone() == (version,)


def test_what_hooks_have_left_is_taken_in_by_the_command(place: Place) -> None:
    spool = spool_of(place)
    spool.mkdir(parents=True)
    (spool / "1-2.claude.abc.watched").touch()
    assert place.call("list") == Ended(0, "", "")
    assert start(ONLY_LIGHT, ["get", "deploy"], place.environ, place.home).code == 0
    (spool / "1-2.record").touch()
    assert place.call("get", "deploy") == Ended(0, "", "")


def spool_of(place: Place) -> Path:
    (settings,) = json.loads((place.home / ".cache/holdfast/hook-settings.json").read_text()).values()
    return Path(settings["spool"])


def test_a_row_that_cannot_be_read_is_left_to_the_command(place: Place) -> None:
    with closing(sqlite3.connect(place.store)) as sql:
        sql.execute("UPDATE sessions SET metadata = 'no json'")
        sql.commit()
    for arguments in (
        ["get", "deploy"],
        ["list"],
        ["should-resume", "deploy"],
        ["update", "deploy", "--error", "x"],
    ):
        assert place.call(*arguments) == Ended(0, "", ""), arguments


def test_an_answer_that_cannot_be_written_ends_as_the_command_ends(place: Place) -> None:
    said = []
    for program in (ONLY_LIGHT, WHOLE):
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                [sys.executable, "-c", program, "get", "deploy"],
                env=place.environ, cwd=place.home, stdout=full, stderr=subprocess.PIPE, check=False,
            )  # fmt: skip
        said.append((done.returncode, done.stderr))
    assert said[0] == said[1]
    assert said[0][0] == 1


def test_a_commit_that_fails_is_reported_and_not_tried_again(place: Place) -> None:
    before = place.rows()
    with closing(sqlite3.connect(place.store, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT 1 FROM sessions").fetchone()  # keeps the log from being used again
        assert place.whole("update", "deploy", "--summary", "a" * 100_000).code == 0
        most = Path(f"{place.store}-wal").stat().st_size
        limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most})); "
        ended = start(limit + ONLY_LIGHT, ["update", "deploy", "--error", "x"], place.environ, place.home)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"holdfast: {place.store}: ")
    (session,), (was,) = place.rows()["sessions"], before["sessions"]
    assert [one for one, other in zip(session, was, strict=True) if one != other] == ["a" * 100_000]


def test_many_writers_at_once_lose_nothing(place: Place) -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", program, "update", "deploy", "--error", "x"], env=place.environ, cwd=place.home,
                         stdout=subprocess.DEVNULL)
        for _ in range(5) for program in (ONLY_LIGHT, WHOLE)
    ]  # fmt: skip
    assert [process.wait(60) for process in running] == [0] * 10
    assert json.loads(place.whole("get", "deploy").out)["error_count"] == 10


# --- what it loads, and what it knows of the commands ---

CALLS = (
    ["create", "--agent", "a", "--purpose", "plan it", "--metadata", '{"k": "v"}', "--json"], ["get", "deploy"],
    ["update", "deploy", "--phase", "planning", "--error", "it failed", "--json"], ["should-resume", "deploy", "--json"],
    ["list", "--json"], ["list", "--limit", "10"],
)  # fmt: skip


def test_nothing_is_imported_that_the_answer_does_not_need(place: Place) -> None:
    bare = set(start(f"import sys; {ALLOWED}; print(*sys.modules)", [], place.environ).out.split())
    for call in CALLS:
        ended = start(LOADED, call, place.environ, place.home)
        found = set(ended.err.split())
        assert ended.out, call
        assert {name for name in found - bare if not name.startswith("holdfast")} == set(), call
        assert found & HEAVY == set(), call


#: words before the cursor, as a shell gives them, and whether the light entrance answers
TYPED = {
    "holdfast ": True,
    "holdfast re": True,
    "holdfast zzz": True,
    "holdfast show ": True,
    "holdfast show age": True,
    "holdfast show tidy": True,
    "holdfast --": False,
    "holdfast list --": False,
    "holdfast show 'a": False,
    "holdfast run --provider c": False,
}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_the_same_by_both_entrances(place: Place, shell: str) -> None:
    place.make("--agent", "claude", "--name", "tidy", "--purpose", "Tidy up: the store.")
    place.make("--agent", "claude", "--purpose", "Look at it\tagain")
    bare = set(start(f"import sys; {ALLOWED}; print(*sys.modules)", [], place.environ).out.split())
    for typed, is_light in TYPED.items():
        words = typed.split(" ")
        cursor = words[-1] if shell == "fish" else str(len(words) - 1)
        asked = {"_HOLDFAST_COMPLETE": f"{shell}_complete", "COMP_WORDS": typed, "COMP_CWORD": cursor}
        environ = {**place.environ, **asked}
        if not is_light:
            assert start(LEFT_ALONE, [], environ, place.home).code == 0, typed
            continue
        whole, told = (start(program, [], environ, place.home) for program in (WHOLE, LOADED))
        assert (told.code, told.out) == (0, whole.out), typed
        found = set(told.err.split())
        assert {name for name in found - bare if not name.startswith("holdfast")} == set(), typed
        assert found & HEAVY == set(), typed


@pytest.mark.parametrize("arguments", [["--help"], ["-h"]])
def test_the_help_is_the_same_and_loads_nothing(place: Place, arguments: list[str]) -> None:
    told = start(LOADED, arguments, place.environ)
    assert told.out == place.whole(*arguments).out
    assert [
        name for name in told.err.split() if name.startswith(("click", "holdfast.domain", "sqlite3"))
    ] == []
    wide = {**place.environ, "COLUMNS": "90"}
    assert start(LEFT_ALONE, arguments, wide).code == 0


@pytest.mark.parametrize("name", light.OPTIONS)
def test_its_options_are_those_of_the_command(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    known = {flag: option for option in (*command.params, *GLOBAL_OPTIONS) if isinstance(option, click.Option)
             for flag in option.opts}  # fmt: skip
    for flag, (parameter, kind) in light.OPTIONS[name].items():
        assert (known[flag].name, known[flag].is_flag) == (parameter, kind == light.FLAG), flag
    takes_session = any(isinstance(one, click.Argument) for one in command.params)
    assert takes_session is (name in light.NAMED)


def test_the_installed_command_takes_the_light_entrance(place: Place) -> None:
    script = Path(sys.executable).with_name("holdfast")
    traced = {**place.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run(
        [script, "get", "deploy"], env=traced, cwd=place.home, capture_output=True, check=True
    )
    assert b"holdfast.cli.light" in done.stderr
    assert b"click" not in done.stderr

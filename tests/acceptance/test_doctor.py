"""``holdfast doctor``: every finding made for real, with what it means and what mends it."""

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast as library_of
from holdfast import Holdfast
from holdfast.cli.group import SECTIONS
from holdfast.clock import DAY, Instant, after, system_clock
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.imports import SessionImport
from holdfast.domain.pointers import TranscriptMark
from holdfast.domain.policy import VaultPolicy
from holdfast.domain.records import replace
from holdfast.engine.doctor import database
from holdfast.engine.doctor.examination import CHECKS
from holdfast.engine.doctor.findings import Finding, Severity
from holdfast.engine.vault import Vault, VaultSource
from holdfast.providers.contract import SessionFile
from holdfast.store.migrate import migrations
from tests.acceptance.command import (
    HOLDFAST,
    Ended,
    create,
    default_database,
    environment,
    holdfast,
    ok,
    on_terminal,
    without_privileges,
)
from tests.acceptance.served import server
from tests.builders import a_pointer, a_session
from tests.integration.test_looking_at_stores import cut_in_the_middle, overwrite_pages
from tests.migrations.make_fixture import FIXTURES
from tests.processes import until

COMMANDS = {name for section in SECTIONS.values() for name in section}
KEYS = {"check", "code", "severity", "found", "meaning", "command", "subjects", "fixable"}
DELEGATE = '{"agent_name": "a", "task_id": "T1"}'


class Examined:
    """What the command said; each finding is complete, and names only commands that there are."""

    def __init__(self, ended: Ended) -> None:
        self.code = ended.code
        self.document = ended.json
        assert set(self.document) == {"schema_version", "problems", "warnings", "findings", "fixed", "copy"}
        self.findings: list[dict[str, Any]] = self.document["findings"]
        for finding in self.findings:
            assert set(finding) == KEYS
            assert finding["check"] in {check.name for check in CHECKS}
            if finding["severity"] != "ok":
                assert finding["meaning"].endswith("."), finding
            if (finding["command"] or "").startswith("holdfast "):
                assert finding["command"].split()[1] in COMMANDS
        assert self.code == (1 if self.document["problems"] else 0), self.findings

    def __getitem__(self, code: str) -> dict[str, Any]:
        found = [one for one in self.findings if one["code"] == code]
        assert len(found) == 1, f"{code} is not once among {[one['code'] for one in self.findings]}"
        return found[0]

    def __contains__(self, code: str) -> bool:
        return any(one["code"] == code for one in self.findings)

    @property
    def wrong(self) -> set[str]:
        """All that is not fine, but for what the machine of the tests may be like."""
        found = {one["code"] for one in self.findings if one["severity"] != "ok"}
        return found - {"holdfast_not_on_path", "holdfast_twice", "disk_low"}


def examine(*arguments: str, **options: Any) -> Examined:
    ended = holdfast("doctor", "--json", *arguments, **options)
    assert (ended.code in (0, 1), ended.err) == (True, ""), ended
    return Examined(ended)


def change(statement: str) -> None:
    """In the database, as another program, or a disk, would do it."""
    with closing(sqlite3.connect(default_database())) as connection, connection:
        connection.execute(statement)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def a_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


# --- nothing is wrong ---


def test_before_the_first_session_nothing_is_wrong_and_no_database_is_made() -> None:
    examined = examine()
    assert (examined.wrong, examined["store_new"]["severity"]) == (set(), "ok")
    assert not default_database().exists()


def test_with_sessions_nothing_is_wrong(scripted_place: Path) -> None:
    create()
    assert holdfast("run", "SAY hello").code == 0
    examined = examine("--deep")
    assert (examined.wrong, examined.code) == (set(), 0)
    assert "2 sessions" in examined["sessions_readable"]["found"]
    assert {
        "store_open",
        "store_whole",
        "clock_right",
        "orphans_none",
        "queue_moves",
        "transcripts_there",
    } <= {one["code"] for one in examined.findings}


# --- the configuration ---


def test_a_configuration_that_is_wrong_hides_nothing_else(home: Path) -> None:
    create()
    default_database().chmod(0o644)
    (home / ".config/holdfast").mkdir(parents=True)
    (home / ".config/holdfast/config.toml").write_text("url = [")
    examined = examine()
    assert "is not valid TOML" in examined["configuration_wrong"]["found"]
    assert "agent_absent" in examined


def test_settings_that_are_not_trusted_are_named(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".holdfast.toml").write_text('workspace = "payments"\n')
    found = examine(cwd=tmp_path)["configuration_ignored"]
    assert (found["severity"], found["command"]) == ("warning", "holdfast trust --show")
    assert "workspace" in found["found"]


def test_a_project_file_where_everybody_may_write_is_ignored(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    (tmp_path / ".holdfast.toml").write_text("[context]\n")
    found = examine(cwd=tmp_path)["configuration_ignored"]
    assert found["subjects"] == [str(tmp_path / ".holdfast.toml")]


def test_a_relative_directory_is_ignored() -> None:
    found = examine(env={"XDG_DATA_HOME": "data"})["configuration_ignored"]
    assert found["command"] == "unset XDG_DATA_HOME"


def test_no_secret_is_printed(home: Path) -> None:
    token = f"hft_{'1' * 12}_{'a' * 64}"
    (home / ".config/holdfast").mkdir(parents=True)
    file = home / ".config/holdfast/config.toml"
    file.write_text(f'url = "http://127.0.0.1:1"\ntoken = "{token}"\n')
    file.chmod(0o644)
    ended = holdfast("doctor", "--json", env={"HOLDFAST_AGENT_TOKEN": ""})
    assert token not in ended.out + ended.err
    assert str(file) in Examined(ended)["permissions_loose"]["subjects"]
    url = "postgresql://ada:hunter2@127.0.0.1:1/holdfast"
    ended = holdfast("doctor", "--json", "--url", url)
    assert "hunter2" not in ended.out + ended.err
    assert Examined(ended)["store_closed"]["command"].startswith("pg_isready -d postgresql://127.0.0.1:1")


# --- Holdfast itself ---


def test_two_holdfasts_on_path_are_named(tmp_path: Path) -> None:
    programs = [a_program(tmp_path / name / "holdfast", "true") for name in ("one", "two")]
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "holdfast").symlink_to(programs[0])
    path = ":".join(str(tmp_path / name) for name in ("one", "two", "three", "none"))
    examined = examine(env={"PATH": f"{path}:relative"})
    assert examined["holdfast_twice"]["subjects"] == [str(program) for program in programs]
    assert "holdfast_once" in examine(env={"PATH": str(tmp_path / "three")})
    assert "holdfast_not_on_path" in examine(env={"PATH": str(tmp_path)})


# --- the store ---


def test_a_database_that_lost_its_second_half(library: Holdfast) -> None:
    for _ in range(100):
        library.create("a", "x" * 500)
    copy = library.store.back_up()
    library.close()
    cut_in_the_middle(default_database())
    examined = examine()
    found = examined["store_damaged"]
    assert "it is damaged" in found["found"]
    assert f"The newest copy of it is {copy}." in found["meaning"]
    assert (
        found["command"] == f"sqlite3 {default_database()} .recover | sqlite3 {default_database()}.recovered"
    )
    assert {"agent_absent", "permissions_tight", "hooks_none"} <= {one["code"] for one in examined.findings}


def test_pages_that_were_overwritten(library: Holdfast) -> None:
    for _ in range(100):
        library.create("a", "x" * 500)
    library.close()
    overwrite_pages(default_database())
    found = examine()["store_damaged"]
    assert found["subjects"] == [str(default_database())]


def test_what_is_left_of_a_damaged_database_can_be_recovered(library: Holdfast) -> None:
    """The command of the finding is a real one; without the sqlite3 program only its text is known."""
    found = database._damaged(Path("/srv/a b/holdfast.db"), "damaged")
    assert (
        found.command == "sqlite3 '/srv/a b/holdfast.db' .recover | sqlite3 '/srv/a b/holdfast.db.recovered'"
    )


def test_a_newer_schema() -> None:
    create()
    change("PRAGMA user_version = 9999")
    examined = examine("--fix")
    assert "made by a newer Holdfast" in examined["schema_new"]["found"]
    assert examined.document["fixed"] == []


def test_an_older_schema_is_left_alone_until_it_is_to_be_mended() -> None:
    default_database().parent.mkdir(parents=True, mode=0o700)
    with closing(sqlite3.connect(default_database())) as connection:
        connection.executescript((FIXTURES / "v10.sqlite.sql").read_text("utf-8"))
    default_database().chmod(0o600)
    known = migrations("sqlite")[-1].version

    examined = examine()

    assert f"has version 10, this Holdfast has {known}" in examined["schema_old"]["found"]
    assert (examined["schema_old"]["fixable"], "sessions_readable" in examined) == (True, False)
    assert not list(default_database().parent.glob("*.backup"))

    mended = examine("--fix")

    assert "schema_old" not in mended
    assert "sessions_readable" in mended
    assert mended.document["fixed"][0]["code"] == "schema_old"
    assert f"{default_database()}.v10.backup" in mended.document["fixed"][0]["done"]


def test_a_directory_in_place_of_the_database() -> None:
    default_database().mkdir(parents=True)
    assert examine()["store_closed"]["severity"] == "problem"


def test_a_url_that_is_no_store() -> None:
    assert examine("--url", "mysql://x")["store_unknown"]["severity"] == "problem"


def test_postgresql_is_examined(postgres_url: str, library: Holdfast) -> None:
    ok("create", "--agent", "a", "--url", postgres_url)
    examined = examine("--url", postgres_url)
    assert examined.wrong == set()
    assert {"store_open", "store_whole", "clock_right"} <= {one["code"] for one in examined.findings}


def test_a_postgresql_with_an_older_schema(empty_postgres_url: str) -> None:
    assert "store_new" in examine("--url", empty_postgres_url)


@pytest.mark.parametrize(
    ("free", "code"), [(10**7, "disk_full"), (5 * 10**8, "disk_low"), (10**12, "disk_room")]
)
def test_little_room_on_the_disk(
    free: int, code: str, library: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    assert code in codes(library.doctor())


# --- permissions ---


def test_files_that_others_may_read_are_closed() -> None:
    create()
    default_database().chmod(0o644)
    found = examine()["permissions_loose"]
    assert (found["severity"], found["command"]) == ("warning", f"chmod 600 {default_database()}")

    mended = examine("--fix")

    assert mended.wrong == set()
    assert (mode(default_database()), mended.document["copy"]) == (0o600, None)
    assert mended.document["fixed"][0]["done"] == "set the mode of 1 path to 600"


def test_a_directory_that_others_may_write_to_is_a_problem() -> None:
    create()
    default_database().parent.chmod(0o777)
    assert examine()["permissions_loose"]["severity"] == "problem"
    assert examine("--fix").wrong == set()
    assert mode(default_database().parent) == 0o700


def test_a_directory_that_is_not_holdfasts_own_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    url = f"sqlite:///{tmp_path}/holdfast.db"
    ok("create", "--agent", "a", "--url", url)
    assert examine("--fix", "--url", url).wrong == set()
    assert mode(tmp_path) == 0o755


def test_files_of_another_user(home: Path) -> None:
    create()
    if os.geteuid() == 0:
        os.chown(default_database(), 12345, -1)
        found = examine()["owner_other"]
        assert "belongs to user 12345" in found["found"]
    else:
        found = examine(env={"HOME": "/"})["owner_other"]
    assert found["command"].startswith("sudo chown -R ")


def test_half_copies_are_removed_once_they_are_old() -> None:
    create()
    old, new = (Path(f"{default_database()}.v1.backup.{pid}.partial") for pid in (1, 2))
    for file in (old, new):
        file.touch(mode=0o600)
    os.utime(old, (0, 0))
    assert examine()["copies_half"]["subjects"] == [str(old)]
    assert examine("--fix").wrong == set()
    assert (old.exists(), new.exists()) == (False, True)


# --- the clock ---


def test_a_store_whose_clock_is_wrong(tmp_path: Path) -> None:
    late = lambda: after(system_clock(), -600)  # noqa: E731
    with library_of.open(f"sqlite:///{tmp_path}/a.db", late) as opened:
        opened.create("a")
        (skew,) = [one for one in opened.doctor() if one.code == "clock_skew"]
    assert skew.severity is Severity.WARNING
    assert re.search(r"this machine is (599|600) s ahead of that of the store", skew.found)


def test_a_session_from_the_future() -> None:
    session = create()
    change(f"UPDATE sessions SET updated_at = {after(system_clock(), 7200)}")
    found = examine()["time_future"]
    assert (found["severity"], found["subjects"]) == ("problem", [session])


# --- sessions ---


def test_a_session_that_cannot_be_read() -> None:
    session, _ = create(), create()
    change(f"UPDATE sessions SET metadata = '[' WHERE id = '{session}'")
    found = examine()["sessions_unreadable"]
    assert (found["subjects"], found["command"]) == ([session], f"holdfast get {session}")


def test_a_turn_whose_owner_was_killed_is_taken_over_after_a_copy(scripted_place: Path) -> None:
    prompt = 'TOOL write {"path": "started", "text": ""}\nHANG'
    with subprocess.Popen(
        [HOLDFAST, "run", "--name", "deploy", prompt],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        until((scripted_place / "started").exists)
        assert "orphans_none" in examine(), "its owner lives"
        process.send_signal(signal.SIGKILL)
    found = examine()["orphans"]
    assert (found["severity"], found["command"], found["fixable"]) == ("problem", "holdfast recover", True)

    mended = examine("--fix")

    assert mended.wrong == set()
    copy = Path(mended.document["copy"])
    assert (mode(copy), copy.parent) == (0o600, default_database().parent)
    assert [one["done"] for one in mended.document["fixed"]] == [
        "took over 1 turn",
        "kept the files of 1 session",
    ]
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("SELECT COUNT(*) FROM attempts WHERE status = 'open'").fetchall() == [(1,)]


def test_what_cannot_be_copied_is_not_changed() -> None:
    create()
    spool = a_record()
    # a directory in place of the half copy: the copy fails, and nothing after it is done
    for second in range(-1, 120):
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() + second))
        (default_database().parent / f"holdfast.db.{moment}.backup").mkdir()
    mended = examine("--fix")
    (failed,) = mended.document["fixed"]
    assert (failed["code"], failed["done"], mended.document["copy"]) == ("spool_waits", None, None)
    assert spool.exists()


def enqueue_long_ago() -> str:
    with library_of.open(clock=lambda: after(system_clock(), -3600)) as opened:
        session = opened.create("reviewer", provider="scripted")
        opened.enqueue(session.id, "SAY hello")
    return session.id


def test_a_turn_that_no_worker_takes(scripted_place: Path) -> None:
    session = enqueue_long_ago()
    found = examine()["queue_without_worker"]
    assert (found["severity"], found["subjects"]) == ("problem", [session])
    assert found["command"] == "holdfast worker --provider scripted --once"
    assert holdfast(*found["command"].split()[1:]).code == 0
    assert "queue_moves" in examine()


def test_a_turn_that_waits_for_a_runtime_that_is_gone(scripted_place: Path) -> None:
    session = enqueue_long_ago()
    change("UPDATE turns SET runtime_id = 'rt-000000000000000000000000'")
    assert examine()["queue_without_runtime"]["subjects"] == [session]


# --- the spool ---


def a_record(age: float = 600, ending: str = ".record") -> Path:
    """What a hook left that could not reach the store."""
    folders = list((Path(os.environ["HOME"]) / ".local/state/holdfast/spool").glob("*"))
    spool = folders[0] if folders else a_spool()
    at = after(system_clock(), -age)
    fields = {"provider": "claude", "id": "6a13a176", "at": at, "cwd": "/srv", "source": "startup"}
    file = spool / f"{at:020d}-1-0{ending}"
    file.write_text(json.dumps({"verb": "observe_session", "fields": fields, "key": None}))
    file.chmod(0o600)
    return file


def a_spool(url: str | None = None) -> Path:
    from holdfast.hooks.settings import spool_dir

    found = spool_dir(os.environ, url or f"sqlite:///{default_database()}", "default")
    assert found is not None
    Path(found).mkdir(parents=True, mode=0o700)
    (Path(found).parent).chmod(0o700)
    (Path(found).parent.parent).chmod(0o700)
    return Path(found)


def test_records_of_hooks_are_taken_to_the_store() -> None:
    create()
    record = a_record()
    found = examine()["spool_waits"]
    assert (found["severity"], found["fixable"], record.exists()) == ("warning", True, True)

    mended = examine("--fix")

    assert (mended.wrong, record.exists()) == (set(), False)
    assert [one["provider_session_id"] for one in ok("observed", "--json").json["observed"]] == ["6a13a176"]
    assert mode(Path(mended.document["copy"])) == 0o600


def test_a_record_that_is_just_written_is_fine() -> None:
    create()
    a_record(age=0)
    assert examine().wrong == set()


def test_records_that_were_set_aside_and_those_of_another_store() -> None:
    create()
    a_spool()
    a_record(ending=".broken")
    other = a_spool("postgresql://elsewhere/holdfast")
    at = after(system_clock(), -600)
    (other / f"{at:020d}-1-0.record").write_text("{}")
    examined = examine()
    assert examined.wrong == {"spool_broken", "spool_elsewhere"}
    assert examined["spool_elsewhere"]["subjects"] == [str(other)]


# --- agents ---


def a_claude(folder: Path, version: str) -> dict[str, str]:
    options = "  -r, --resume\\n  --fork-session\\n  --session-id"
    text = f'case "$1" in --version) echo "{version} (Claude Code)";; *) printf "{options}\\n";; esac'
    return {"HOLDFAST_CLAUDE_BINARY": str(a_program(folder / "claude", text))}


def the_agent(examined: Examined, name: str) -> dict[str, Any]:
    (found,) = [
        one for one in examined.findings if one["check"] == "agents" and one["found"].startswith(name)
    ]
    return found


@pytest.mark.parametrize(
    ("version", "code", "command"),
    [
        ("2.1.325", "agent_tested", None),
        ("2.2.0", "agent_untested", "pip install --upgrade holdfast-sessions"),
        ("1.0.9", "agent_untested", "holdfast runtimes"),
    ],
)
def test_the_version_of_an_agent_is_tested_or_not(
    version: str, code: str, command: str | None, tmp_path: Path
) -> None:
    found = the_agent(examine(env=a_claude(tmp_path, version)), "claude")
    assert (found["code"], found["command"]) == (code, command)
    assert version in found["found"]


def test_an_agent_that_does_not_answer(tmp_path: Path) -> None:
    binary = a_program(tmp_path / "claude", "exit 3")
    examined = examine(env={"HOLDFAST_CLAUDE_BINARY": str(binary)})
    assert "exit code 3" in examined["agent_broken"]["found"]


def test_an_agent_that_sessions_need_is_missing() -> None:
    session = create("--provider", "codex")
    found = examine()["agent_missing"]
    assert (found["severity"], found["subjects"]) == ("warning", [session])


# --- homes ---


def test_sessions_of_another_home(scripted_place: Path, tmp_path: Path) -> None:
    assert holdfast("run", "--name", "deploy", "SAY hello").code == 0
    before = os.environ["SCRIPTED_HOME"]
    examined = examine(env={"SCRIPTED_HOME": str(tmp_path / "other")})
    assert examined["home_other"]["command"] == f"export SCRIPTED_HOME={before}"
    assert "transcripts_there" in examined, "the files are in the home that the session names"


def a_claude_session(home: Path, name: str, days_ago: float = 0) -> Path:
    file = home / "projects/-srv-infra" / f"{name}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    line = {
        "type": "user",
        "uuid": "u1",
        "message": {"role": "user", "content": "hello"},
        "cwd": "/srv/infra",
    }
    file.write_text(json.dumps(line) + "\n")
    moment = time.time() - days_ago * 86_400
    os.utime(file, (moment, moment))
    return file


def test_an_agent_with_two_homes(home: Path, tmp_path: Path) -> None:
    a_claude_session(home / ".claude", "one")
    other = {"CLAUDE_CONFIG_DIR": str(tmp_path / "work")}
    assert "homes_one" in examine(env=other), "the other one has no session"
    a_claude_session(tmp_path / "work", "two")
    found = examine(env=other)["home_twice"]
    assert found["subjects"] == [str(home / ".claude"), str(tmp_path / "work")]
    assert found["command"] == f"export CLAUDE_CONFIG_DIR={home / '.claude'}"
    assert "homes_one" in examine()


# --- hooks ---


def claude_settings(home: Path) -> Path:
    return home / ".claude" / "settings.json"


def test_hooks_that_work(home: Path) -> None:
    ok("hooks", "install")
    assert examine()["hooks_work"]["severity"] == "ok"


def some_events(settings: dict[str, Any]) -> None:
    del settings["hooks"]["PreCompact"]


def no_hooks_at_all(settings: dict[str, Any]) -> None:
    settings["disableAllHooks"] = True


def the_plugin_too(settings: dict[str, Any]) -> None:
    settings["enabledPlugins"] = {"holdfast@market": True}


def a_program_that_is_gone(settings: dict[str, Any]) -> None:
    text = (
        json.dumps(settings["hooks"]).replace(str(HOLDFAST), "/nowhere/holdfast").replace(" || holdfast", "")
    )
    settings["hooks"] = json.loads(re.sub(r"command -v holdfast", "command -v /nowhere/holdfast", text))


@pytest.mark.parametrize(
    ("damage", "code"),
    [(some_events, "hooks_partly"), (no_hooks_at_all, "hooks_disabled"), (the_plugin_too, "hooks_twice")],
)
def test_hooks_that_do_not_work(damage: Callable[[dict[str, Any]], None], code: str, home: Path) -> None:
    ok("hooks", "install")
    settings = json.loads(claude_settings(home).read_text())
    damage(settings)
    claude_settings(home).write_text(json.dumps(settings))
    assert examine()[code]["check"] == "hooks"


def test_hooks_whose_program_is_gone(home: Path, tmp_path: Path) -> None:
    program = a_program(tmp_path / "bin" / "holdfast", f'exec {HOLDFAST} "$@"')
    ok("hooks", "install")
    text = claude_settings(home).read_text().replace(str(HOLDFAST), str(program))
    claude_settings(home).write_text(text)
    program.unlink()
    examined = examine(env={"PATH": "/usr/bin:/bin"})
    assert examined["hooks_broken"]["command"] == "holdfast hooks install"


def test_settings_that_cannot_be_read(home: Path) -> None:
    claude_settings(home).parent.mkdir()
    claude_settings(home).write_text("{")
    assert "is not valid JSON" in examine()["hooks_unreadable"]["found"]


def test_a_server_for_hooks_that_does_not_answer() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        ok("hooks", "install", "--http", address)
        assert examine()["hooks_server"]["subjects"] == [address]


# --- files of agents ---


def test_an_agents_own_file_that_is_gone(scripted_place: Path) -> None:
    session = holdfast("run", "--json", "SAY hello").json["session_id"]
    lose_files()
    found = examine()["transcripts_gone"]
    assert (found["severity"], found["subjects"]) == ("warning", [session])
    assert found["command"] == f"holdfast restore {session}"
    ok(*found["command"].split()[1:])
    assert "transcripts_there" in examine()


def test_every_file_that_is_gone_is_named(scripted_place: Path) -> None:
    sessions = {holdfast("run", "--json", "SAY hello").json["session_id"] for _ in range(7)}
    lose_files()
    found = examine()["transcripts_gone"]
    assert set(found["subjects"]) == sessions
    shown = " ".join(on_terminal("doctor").out.split())
    assert "of 7 open sessions are gone" in shown
    assert sum(session in shown for session in sessions) == 5
    assert "and 2 more: --json lists them" in shown


def test_a_file_that_is_gone_of_an_agent_that_is_not_installed(
    scripted_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holdfast("run", "--json", "SAY hello")
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{scripted_place / 'second.db'}")
    monkeypatch.setenv("HOLDFAST_SCRIPTED_BINARY", str(scripted_place / "none"))
    ok("import", "scripted")
    assert "transcripts_there" in examine()
    lose_files()
    assert len(examine()["transcripts_gone"]["subjects"]) == 1


@pytest.mark.parametrize("variable", ["XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"])
def test_a_folder_that_cannot_be_written(tmp_path: Path, variable: str) -> None:
    """A file in its place: root, too, cannot write there."""
    (tmp_path / "file").write_text("")
    store = {"HOLDFAST_URL": f"sqlite:///{tmp_path / 'store.db'}"}
    found = examine(env={variable: str(tmp_path / "file"), **store})["folder_read_only"]
    assert (found["severity"], found["subjects"]) == ("problem", [str(tmp_path / "file")])


def test_a_data_folder_that_is_read_only_before_there_is_a_store() -> None:
    folder = default_database().parent
    folder.mkdir(parents=True)
    folder.chmod(0o500)
    try:
        found = examine(before=without_privileges)["folder_read_only"]
    finally:
        folder.chmod(0o700)
    assert (found["severity"], found["subjects"]) == ("problem", [str(folder)])
    assert "folder_read_only" not in examine()


def test_an_agents_own_file_that_is_gone_and_was_not_kept(
    scripted_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_VAULT__MODE", "off")
    session = holdfast("run", "--json", "SAY hello").json["session_id"]
    lose_files()
    assert examine()["transcripts_gone"]["command"] == f"holdfast why {session}"


def lose_files() -> None:
    for file in Path(os.environ["SCRIPTED_HOME"]).rglob("*"):
        if file.is_file():
            file.unlink()


def test_sessions_that_their_agent_is_about_to_delete(home: Path, library: Holdfast) -> None:
    for name, days in (("new", 1), ("old", 26), ("due", 40)):
        a_claude_session(home / ".claude", name, days)
    adopt(library, "old", home)
    found = examine()["transcripts_expire"]
    assert sorted(found["subjects"]) == ["due", "old"]
    assert "2 sessions within 5 days, at its next start" in found["found"]
    assert "the history of 1 of them" in found["meaning"]
    assert found["command"] == "holdfast import claude"
    claude_settings(home).write_text('{"cleanupPeriodDays": 365}')
    assert "transcripts_stay" in examine()


def adopt(library: Holdfast, name: str, home: Path) -> str:
    """A session of ours that points to Claude's file."""
    path = str(home / ".claude/projects/-srv-infra" / f"{name}.jsonl")
    new = replace(a_session(provider="claude"), began_at=Instant(system_clock() - 40 * DAY))
    pointer = a_pointer(
        new.id, provider_session_id=name, runtime_id=None, transcript=TranscriptMark(path, 1, "", 1)
    )
    library.store.import_sessions([SessionImport(new, pointer.provider_session_id, (), pointer)])
    return new.id


def test_list_warns_of_sessions_that_their_agent_is_about_to_delete(home: Path, library: Holdfast) -> None:
    for name, days in (("new", 1), ("old", 26), ("due", 40)):
        a_claude_session(home / ".claude", name, days)
        adopt(library, name, home)
    shown = on_terminal("list")
    assert "claude will delete 2 of these sessions within 5 days: holdfast doctor" in shown.out
    assert all(len(plain(line)) <= 80 for line in shown.lines)
    assert "delete" not in ok("list").out
    claude_settings(home).write_text('{"cleanupPeriodDays": 365}')
    assert "will delete" not in on_terminal("list").out


def test_sessions_in_the_vault_are_not_lost_when_their_agent_deletes_them(
    home: Path, library: Holdfast
) -> None:
    file = a_claude_session(home / ".claude", "old", 26)
    files = (SessionFile("projects/-srv-infra/old.jsonl", str(file), is_main=True),)
    Vault(library.store, VaultPolicy()).keep(
        VaultSource("claude", ProviderSessionId("old"), files, str(home / ".claude"))
    )
    assert "transcripts_stay" in examine()


# --- the vault ---


def test_a_vault_that_has_everything(scripted_place: Path) -> None:
    assert holdfast("run", "SAY hello").code == 0
    assert examine("--deep")["vault_whole"]["found"].startswith("1 session, ")
    assert "vault_off" in examine(env={"HOLDFAST_VAULT__MODE": "off"})


def test_a_session_that_the_vault_does_not_have_is_kept(scripted_place: Path) -> None:
    result = holdfast("run", "--json", "SAY hello", env={"HOLDFAST_VAULT__MODE": "off"}).json
    found = examine()["vault_incomplete"]
    assert (found["severity"], found["subjects"], found["fixable"]) == (
        "warning",
        [result["session_id"]],
        True,
    )

    mended = examine("--fix")

    assert mended.wrong == set()
    assert [one["done"] for one in mended.document["fixed"]] == ["kept the files of 1 session"]
    assert mode(Path(mended.document["copy"])) == 0o600


def test_a_vault_that_is_nearly_full(scripted_place: Path) -> None:
    assert holdfast("run", "SAY hello").code == 0
    assert examine(env={"HOLDFAST_VAULT__LIMIT_BYTES": "1"})["vault_full"]["severity"] == "warning"


@pytest.mark.parametrize("damage", ["UPDATE vault_chunks SET data = X'00'", "DELETE FROM vault_chunks"])
def test_a_copy_that_cannot_be_read_back(damage: str, scripted_place: Path) -> None:
    result = holdfast("run", "--json", "SAY hello").json
    change(damage)
    found = examine()["vault_damaged"]
    assert (found["severity"], found["subjects"]) == ("problem", [result["provider_session_id"]])


def test_a_key_that_is_lost(scripted_place: Path, tmp_path: Path) -> None:
    key, settings = tmp_path / "vault.key", tmp_path / "config.toml"
    key.write_text("ab" * 32)
    key.chmod(0o600)
    settings.write_text(f'[vault]\nkey_file = "{key}"\n')
    with_key = {"HOLDFAST_CONFIG": str(settings)}
    result = holdfast("run", "--json", "SAY hello", env=with_key).json
    assert "vault_locked" not in examine(env=with_key)
    key.write_text("cd" * 32)
    for env in (with_key, {}):
        found = examine(env=env)["vault_locked"]
        assert (found["severity"], found["subjects"]) == ("problem", [result["provider_session_id"]])


# --- behind a server ---


@pytest.fixture
def store(tmp_path: Path) -> str:
    """What the server works on."""
    return f"sqlite:///{tmp_path}/holdfast.db"


def test_a_server_is_asked_for_what_a_client_can_see(store: str) -> None:
    with server("--url", store) as (address, _):
        ok("create", "--agent", "a", "--url", address)
        examined = examine("--url", address)
    assert examined.wrong == set()
    assert examined["server_reached"]["found"].startswith(f"{address} answers")
    assert "examined on the server" in examined["server_reached"]["meaning"]
    assert "store_whole" not in examined


@pytest.mark.parametrize("role", ["reader", "operator", "worker"])
def test_the_role_of_the_token_is_told(role: str, store: str) -> None:
    token = ok("token", "create", "--role", role, "--url", store).out.strip()
    with server("--url", store) as (address, _):
        examined = examine(env={"HOLDFAST_URL": address, "HOLDFAST_TOKEN": token})
        refused = examine(env={"HOLDFAST_URL": address})
    assert f"the token has the role {role}" in examined["server_reached"]["found"]
    assert examined.wrong == set()
    assert refused["token_refused"]["severity"] == "problem"


# --- how it is told ---


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_on_a_terminal_everything_fits_into_80_columns_but_commands_stay_whole() -> None:
    create()
    default_database().chmod(0o644)
    shown = on_terminal("doctor")
    lines = [plain(line) for line in shown.lines]
    assert [line for line in lines if len(line.rstrip()) > 80 and "$ chmod" not in line] == []
    assert f"         $ chmod 600 {default_database()}" in lines
    assert any(line.startswith("warning  permissions: other users may read") for line in lines)
    assert "holdfast doctor --fix mends 1 of them" in lines[-1]
    assert shown.code == 0, "warnings alone"

    mended = on_terminal("doctor", "--fix")

    assert "fixed  permissions: set the mode of 1 path to 600" in plain(mended.out)


def test_in_a_pipe_each_finding_is_a_line() -> None:
    create()
    default_database().chmod(0o666)
    ended = holdfast("doctor")
    assert (ended.code, ended.err) == (1, "")
    severity, check, found, command = ended.lines[0].split("\t")
    assert (severity, check, command) == ("problem", "permissions", f"chmod 600 {default_database()}")
    assert "other users may change" in found


def codes(findings: tuple[Finding, ...]) -> set[str]:
    return {finding.code for finding in findings}


def test_the_library_says_the_same(library: Holdfast) -> None:
    library.create("a")
    assert codes(library.doctor()) == {one["code"] for one in examine().findings}


def test_the_page_lists_every_check_in_order() -> None:
    page = Path(__file__).parents[2] / "docs/how-to/doctor.md"
    assert re.findall(r"^\| `(\w+)` \|", page.read_text("utf-8"), re.MULTILINE) == [
        check.name for check in CHECKS
    ]

"""Whatever happens to a hook that records, the agent goes on: exit 0, nothing or JSON, and a line in the log."""

import json
import os
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.hooks.main import EVENTS, MOST_INPUT
from holdfast.hooks.process import DEADLINE_SECONDS
from holdfast.store.migrate import migrations
from tests.integration.hook_process import (
    AGENT,
    HOLDFAST,
    a_stop,
    a_tool_call,
    environment,
    log_of,
    rows,
    run_hook,
    session_of,
    start_hook,
)
from tests.processes import until

FIXTURES = Path(__file__).parents[1] / "migrations" / "fixtures"


@pytest.fixture
def database(home: Path) -> Path:
    holdfast.open().close()
    return home / ".local/share/holdfast/holdfast.db"


def said_last(home: Path) -> dict[str, Any]:
    return log_of(home)[-1]


def test_the_first_hook_on_a_machine_makes_the_store(home: Path) -> None:
    run_hook("pre-delegate", a_tool_call()).harmless()
    assert [row["agent"] for row in rows(home, "SELECT agent FROM sessions")] == [AGENT]


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////proc/holdfast.db",
        "sqlite:////dev/null/x.db",
        "sqlite:///:memory:",
        "mysql://h/d",
        "sqlite:x",
    ],
)
def test_a_store_that_cannot_be_there(home: Path, url: str) -> None:
    answered = run_hook("pre-delegate", a_tool_call(), {"HOLDFAST_URL": url})
    answered.harmless()
    if not url.startswith("mysql"):  # a store elsewhere: what is said to it waits in the spool
        assert answered.out == b""
        assert said_last(home)["what"] == "failed"


def test_a_wrong_configuration(home: Path) -> None:
    answered = run_hook("pre-delegate", a_tool_call(), {"HOLDFAST_CONTINUE__MAX_ERRORS": "many"})
    answered.harmless()
    assert said_last(home)["error"] == "ConfigError"


def test_no_home_at_all() -> None:
    run_hook("pre-delegate", a_tool_call(), {"HOME": ""}).harmless()
    run_hook("pre-delegate", a_tool_call(), {"HOME": "/proc/nowhere"}).harmless()


@pytest.mark.parametrize("where", [".local/state", ".cache"])
def test_no_place_for_its_log_or_its_cache(home: Path, where: str) -> None:
    (home / where).parent.mkdir(parents=True, exist_ok=True)
    (home / where).write_text("a file")
    answered = run_hook("pre-delegate", a_tool_call())
    answered.harmless()
    assert AGENT in str(answered.json)


def test_a_locked_database(home: Path, database: Path, tmp_path: Path) -> None:
    run_hook("pre-delegate", a_tool_call("warm"))
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        answered = run_hook("pre-delegate", a_tool_call())
        answered.harmless()
        session = session_of(answered.prompt)
        # its end is told while nobody has taken its beginning to the store
        run_hook("subagent-stop", a_stop(tmp_path, "toolu_1", last_assistant_message="Planned.")).harmless()
    (late,) = (line for line in log_of(home) if line["what"] == "late")
    assert late["message"].endswith("holdfast.db: database is locked")
    with holdfast.open() as library:
        until(lambda: not list(home.glob(".local/state/holdfast/spool/*/*.record")))
        assert (library.session(session).agent, library.session(session).summary) == (AGENT, "Planned.")
    asked = {"agent_name": AGENT}
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        answer = run_hook("pre-delegate", asked).json
    assert (answer["reason"], answer["original_context"]) == ("error", asked)


def test_a_full_disk(home: Path, database: Path) -> None:
    run_hook("pre-delegate", a_tool_call("warm"))
    before = rows(home, "SELECT * FROM delegations")
    answered = run_hook("pre-delegate", a_tool_call(), limit="-f 0")
    answered.harmless()
    assert answered.out == b""
    assert rows(home, "SELECT * FROM delegations") == before
    assert run_hook("pre-delegate", a_tool_call()).prompt


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_file_that_is_no_database(home: Path, database: Path, content: bytes) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{database}{suffix}").unlink(missing_ok=True)
    database.write_bytes(content)
    run_hook("pre-delegate", a_tool_call()).harmless()
    if content:
        assert database.read_bytes() == content
        assert said_last(home)["what"] == "failed"


def test_another_programs_database(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE theirs (x)")
    answered = run_hook("pre-delegate", a_tool_call(), {"HOLDFAST_URL": f"sqlite:///{path}"})
    answered.harmless()
    assert said_last(home)["error"] == "StoreCorrupt"


@pytest.mark.parametrize("fixture", sorted(FIXTURES.glob("*.sqlite.sql")), ids=lambda path: path.name[:2])
def test_an_old_database_is_brought_up_to_date(home: Path, database: Path, fixture: Path) -> None:
    database.unlink()
    with closing(sqlite3.connect(database)) as old:
        old.executescript(fixture.read_text("utf-8"))
    assert run_hook("pre-delegate", a_tool_call("old")).prompt
    (version,) = rows(home, "PRAGMA user_version")
    assert version == {"user_version": migrations("sqlite")[-1].version}


def test_a_database_of_a_newer_version_is_left_alone(home: Path, database: Path) -> None:
    with closing(sqlite3.connect(database)) as newer:
        newer.execute("PRAGMA user_version = 9999")
    answered = run_hook("pre-delegate", a_tool_call())
    answered.harmless()
    assert answered.out == b""
    assert said_last(home)["error"] == "SchemaTooNew"


@pytest.mark.parametrize("event", [*EVENTS, "no-such-event"])
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000, b"{}"])
def test_input_that_is_no_such_object(home: Path, event: str, data: bytes) -> None:
    answered = run_hook(event, data)
    answered.harmless()
    if event == "pre-delegate":
        expected = "error" if data == b"{}" else "invalid_json"
        assert (answered.json["should_resume"], answered.json["reason"]) == (False, expected)
    assert log_of(home)


def test_ten_megabytes_are_read_and_more_are_not(home: Path) -> None:
    filler = "x" * (MOST_INPUT - 2000)
    run_hook("pre-delegate", a_tool_call(1, filler=filler)).harmless()
    assert said_last(home)["what"] == "delegated"
    answered = run_hook("pre-delegate", a_tool_call(2, filler=filler + "x" * 1_000_000))
    answered.harmless()
    assert answered.out == b""
    assert said_last(home)["error"] == "TooMuchInput"


def test_input_that_never_ends_is_given_up(home: Path) -> None:
    began = time.monotonic()
    with start_hook("pre-delegate") as process:
        assert process.stdin is not None
        process.stdin.write(b'{"agent_name"')
        process.stdin.flush()
        assert process.wait(60) == 0
        seconds = time.monotonic() - began
        process.communicate()
    assert seconds >= DEADLINE_SECONDS
    assert said_last(home)["error"] == "DeadlinePassed"


def test_nobody_listens(home: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{HOLDFAST} hook pre-delegate >&-"],
        input=json.dumps(a_tool_call()).encode(),
        env=environment(),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_log_is_this_users_alone_and_bounded(home: Path) -> None:
    state = home / ".local/state/holdfast"
    run_hook("subagent-stop", {"agent_id": "agent-none"})
    log = state / "hooks.log"
    assert (log.stat().st_mode & 0o777, state.stat().st_mode & 0o777) == (0o600, 0o700)
    log.write_bytes(b"x" * 1_100_000)
    for _ in range(2):
        run_hook("subagent-stop", {"agent_id": "agent-none"})
    assert log.stat().st_size < 1000
    assert (state / "hooks.log.1").stat().st_size > 1_000_000


def test_a_changed_setting_is_seen_by_the_next_hook(home: Path, database: Path) -> None:
    with holdfast.open() as library:
        session = library.create(AGENT).id
        library.update(session, phase="executing")
    asked = {"agent_name": AGENT, "agent_id": session}
    assert run_hook("pre-delegate", asked).json["reason"] == "session_not_resumable"
    config = home / ".config/holdfast/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[continue]\nresumable_phases = ["executing"]\n')
    with holdfast.open() as library:
        library.update(session, phase="executing")
    assert run_hook("pre-delegate", asked).json["reason"] == "session_resumable"


def test_no_password_gets_into_the_cache(home: Path) -> None:
    url = "postgresql://ada:hunter2@127.0.0.1:1/none"
    run_hook("subagent-stop", {"agent_id": "agent-1"}, {"HOLDFAST_URL": url}).harmless()
    files = [path for path in home.rglob("*") if path.is_file()]
    assert any(path.name == "hook-settings.json" for path in files)
    assert [path for path in files if b"hunter2" in path.read_bytes()] == []


def test_a_stop_says_nothing_when_the_store_fails(tmp_path: Path) -> None:
    answered = run_hook(
        "subagent-stop", a_stop(tmp_path, "toolu_1"), {"HOLDFAST_URL": "sqlite:////proc/x.db"}
    )
    answered.harmless()
    assert answered.out == b""


def test_a_pipe_in_the_place_of_a_subagents_file_is_not_waited_for(
    home: Path, database: Path, tmp_path: Path
) -> None:
    stop = a_stop(tmp_path, "toolu_1")
    meta = tmp_path / "agent-1.meta.json"
    meta.unlink()
    os.mkfifo(meta)
    run_hook("subagent-stop", stop).harmless()
    assert f"{meta} is not a regular file" in [line.get("message") for line in log_of(home)]

"""A hook that watches never stops the agent, whatever is wrong with its event or with the store."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import holdfast
from tests.integration.hook_process import log_of, recorded, rows, run_hook
from tests.processes import until

EVENTS = {
    "session-start": "session_start_startup",
    "stop": "stop",
    "pre-compact": "pre_compact",
    "session-end": "session_end",
}


@pytest.fixture(params=EVENTS)
def event(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def database(home: Path) -> Path:
    holdfast.open().close()
    return home / ".local/share/holdfast/holdfast.db"


def fails(event: str, limit: str = "") -> None:
    answered = run_hook(event, recorded(EVENTS[event]), limit=limit)
    answered.harmless()
    assert answered.out == b""


def errors(home: Path) -> list[str]:
    return [line["error"] for line in log_of(home) if line["what"] == "failed"]


def test_what_is_real_leaves_no_trace_in_the_log(event: str, home: Path) -> None:
    run_hook(event, recorded(EVENTS[event])).harmless()
    assert log_of(home) == []
    assert len(rows(home, "SELECT * FROM observed_sessions")) == 1


@pytest.mark.parametrize("session", [None, "", 7, "../../etc", "x" * 1000, "a b"])
def test_an_event_of_no_session(event: str, session: object, home: Path) -> None:
    answered = run_hook(event, {"session_id": session})
    answered.harmless()
    assert answered.out == b""
    assert errors(home) == ["InvalidInput"]


def test_an_event_with_nothing_but_its_session(event: str, home: Path) -> None:
    run_hook(event, {"session_id": "5b1c2d3e"}).harmless()
    assert [row["id"] for row in rows(home, "SELECT id FROM observed_sessions")] == ["5b1c2d3e"]


def test_a_store_that_cannot_be_made(event: str, home: Path) -> None:
    (home / ".local").mkdir()
    (home / ".local/share").touch()
    fails(event)
    assert len(errors(home)) == 1


def test_a_store_that_somebody_keeps_locked(event: str, home: Path, database: Path) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        fails(event)
    assert [line["what"] for line in log_of(home)] == ["late"]
    holdfast.open().close()  # whoever opens it takes there what was said meanwhile
    until(lambda: len(rows(home, "SELECT * FROM observed_sessions")) == 1)


def test_a_disk_that_is_full(event: str, home: Path, database: Path) -> None:
    fails(event, limit="-f 0")
    assert rows(home, "SELECT * FROM observed_sessions") == []

"""Every statement of the store finds its rows by an index, whatever else is in the workspace."""

import re
import sqlite3
from collections.abc import Iterator
from importlib import import_module
from itertools import count
from pkgutil import iter_modules
from typing import Any, cast

import pytest

from holdfast.clock import Instant
from holdfast.domain.records import record
from holdfast.domain.sessions import SessionFilter
from holdfast.store import sql
from holdfast.store.migrate import migrations
from holdfast.store.sql import heads, sessions, sqlite_words

#: these are about everything in a workspace
ABOUT_ALL = {
    "delegations.COUNT",
    "delegations.FREE_ANYWHERE",
    "delegations.OPEN",
    "observed.NEWEST",
    "pulse.COUNT",
    "pulse.MARKS",
    "pulse._NEAR",
    "runtimes.ALL",
    "totals.APPROVALS",
    "totals.ATTEMPTS",
    "totals.DELEGATIONS",
    "totals.LATE",
    "totals.OLDEST",
    "totals.SESSIONS",
    "totals.TURNS",
    "tokens.ALL",
    "totals.TOTALS",
    "vault.BUNDLES",
    "vault.EVERYWHERE",
    "vault.PLAIN",
    "vault.TOTAL",
    "tokens.ANY",
    "heads.ANY_READY",
    "welcomes.OPEN_APPROVALS",
    "search.COUNT_MISSING",
    "search.IN_PROJECT",
    "search.IS_ANY_MISSING",
    "search.UNFINISHED",
    "sqlite_words.EMPTY",
    "sqlite_words.LIVING",
    "sqlite_words.NEWEST",
}
#: of other engines, of the engine's own tables, and parts of statements
NOT_OURS = {"postgres_words", "sqlite_words.IS_THERE", "search._TURN"}


def statements() -> Iterator[tuple[str, str]]:
    for module in iter_modules(sql.__path__):
        for name, value in vars(import_module(f"{sql.__name__}.{module.name}")).items():
            for text in (value,) if isinstance(value, str) else value if isinstance(value, tuple) else ():
                if (
                    name.isupper()
                    and isinstance(text, str)
                    and NOT_OURS.isdisjoint((module.name, f"{module.name}.{name}"))
                    and re.match(r"\s*(SELECT|UPDATE|DELETE|WITH)", text)
                ):
                    yield (
                        f"{module.name}.{name}",
                        text.replace(" FOR UPDATE SKIP LOCKED", "").replace(" FOR UPDATE", ""),
                    )


@pytest.fixture(scope="module")
def database() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    for migration in migrations("sqlite"):
        connection.executescript(migration.sql)
    for statement in sqlite_words.MAKE:
        connection.execute(statement)
    yield connection
    connection.close()


@pytest.mark.parametrize(("name", "text"), list(statements()))
def test_it_does_not_read_the_whole_workspace(database: sqlite3.Connection, name: str, text: str) -> None:
    parameters = dict.fromkeys(re.findall(r":([a-z_]+)", text), 1)
    plan = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {text}", parameters)]
    assert plan
    made = {step.split()[-1] for step in plan if step.startswith(("CO-ROUTINE ", "MATERIALIZE "))}
    scans = {f"SCAN {name}" for name in made}  # of what the statement itself has found before
    whole = [
        step
        for step in plan
        if (step.startswith("SCAN ") and step not in scans) or step.endswith("(workspace=?)")
    ]
    assert whole == [] or name in ABOUT_ALL


FILL = """
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :many)
INSERT INTO sessions (workspace, id, conversation_id, agent, kind, purpose, phase, resume_ready, metadata,
    created_at, updated_at, head_provider, head_runtime_id, head_kept, head_priority, ready_at)
SELECT :ws, n, n, '', '', '', '', 0, '', 0, 0, 'claude', 'theirs', 1, n % 5, 1000 + n FROM numbers"""


@pytest.mark.parametrize("kept_since", [0, 10**9], ids=["too young", "old enough"])
def test_a_claim_costs_the_same_however_many_turns_are_kept_for_other_runtimes(
    database: sqlite3.Connection, kept_since: int
) -> None:
    few = steps_of_a_pick(database, f"few {kept_since}", 50, kept_since)
    many = steps_of_a_pick(database, f"many {kept_since}", 5_000, kept_since)

    assert many == pytest.approx(few, rel=0.1)


def steps_of_a_pick(database: sqlite3.Connection, ws: str, many: int, kept_since: int) -> int:
    """As SQLite counts them, among so many heads that are kept for another runtime."""
    database.execute(FILL, {"ws": ws, "many": many})
    steps = count()
    database.set_progress_handler(lambda: next(steps) < 0, 1)
    found = database.execute(
        heads.PICK.replace(" FOR UPDATE SKIP LOCKED", ""),
        {"ws": ws, "provider": "claude", "runtime_id": "mine", "levels": 64, "kept_since": kept_since},
    ).fetchall()
    database.set_progress_handler(None, 1)
    assert len(found) == (1 if kept_since else 0)
    return next(steps)


@record
class ReadOnly:
    """As much of a scope as lists need."""

    database: sqlite3.Connection
    ws: str
    now: Instant = Instant(0)
    where: str = "the test"

    def all(self, text: str, **values: object) -> list[tuple[Any, ...]]:
        return self.database.execute(text, {"ws": self.ws, **values}).fetchall()

    def one(self, text: str, **values: object) -> tuple[Any, ...] | None:
        return next(iter(self.all(text, **values)), None)


def test_the_list_of_a_project_costs_the_same_however_many_sessions_others_have(
    database: sqlite3.Connection,
) -> None:
    few, many = (steps_of_a_list(database, f"listed {number}", number) for number in (50, 5_000))

    assert many == pytest.approx(few, rel=0.1)


def steps_of_a_list(database: sqlite3.Connection, ws: str, many: int) -> int:
    """As SQLite counts them, among so many sessions of no project, and three of the one that is asked for."""
    database.execute(FILL, {"ws": ws, "many": many})
    database.execute(
        "UPDATE sessions SET project = '/srv/app' WHERE workspace = :ws AND id IN ('7', '8', '9')", {"ws": ws}
    )
    steps = count()
    database.set_progress_handler(lambda: next(steps) < 0, 1)
    wanted = SessionFilter(project="/srv/app", by_activity=True)
    page = sessions.list_page(cast("Any", ReadOnly(database, ws)), wanted, 50, None)
    database.set_progress_handler(None, 1)
    assert len(page.unreadable) == 3  # what fills the rows is no real session
    return next(steps)

"""Every statement of the store finds its rows by an index, whatever else is in the workspace."""

import re
import sqlite3
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

import pytest

from holdfast.store import sql
from holdfast.store.migrate import migrations

#: these are about everything in a workspace
ABOUT_ALL = {
    "delegations.COUNT",
    "delegations.FREE_ANYWHERE",
    "observed.NEWEST",
    "runtimes.RUNTIMES",
    "statistics.APPROVALS",
    "statistics.ATTEMPTS",
    "statistics.DELEGATIONS",
    "statistics.LATE",
    "statistics.OLDEST",
    "statistics.SESSIONS",
    "statistics.TURNS",
    "tokens.ALL",
    "totals.TOTALS",
    "tokens.ANY",
    "heads.ANY_READY",
    "heads.SHIFT_HEADS",  # every head that waits, once a store is opened or its clock was set back
    "heads.SHIFT_TURNS",
    "welcomes.OPEN_APPROVALS",
}


def statements() -> Iterator[tuple[str, str]]:
    for module in iter_modules(sql.__path__):
        for name, value in vars(import_module(f"{sql.__name__}.{module.name}")).items():
            for text in (value,) if isinstance(value, str) else value if isinstance(value, tuple) else ():
                if (
                    name.isupper()
                    and isinstance(text, str)
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

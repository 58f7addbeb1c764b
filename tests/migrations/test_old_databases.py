"""Databases that older versions made are opened by this one, say what they said, and can be worked with."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.ids import SessionId
from holdfast.domain.turns import ClaimRequest, NewTurn, TurnEnd, TurnStatus
from holdfast.store.migrate import migrations
from holdfast.store.open import open_store
from tests.builders import a_runtime
from tests.clock import ManualClock
from tests.consistency import assert_consistent
from tests.migrations.catalog import sqlite_schema
from tests.migrations.make_fixture import FIXTURES
from tests.migrations.portrait import portrait
from tests.migrations.rich_store import CHILD, GRANDCHILD, LEAD


@pytest.fixture(params=sorted(FIXTURES.glob("*.sqlite.sql")), ids=lambda path: path.name.partition(".")[0])
def fixture(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture
def database(fixture: Path, tmp_path: Path) -> Path:
    path = tmp_path / "holdfast.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(fixture.read_text("utf-8"))
    return path


@pytest.fixture
def clock() -> ManualClock:
    """Some time after the fixture was made; who held a lease then is gone."""
    clock = ManualClock()
    clock.advance(2 * 3600)
    return clock


def test_there_is_a_fixture_of_the_first_and_of_the_newest_version() -> None:
    names = {path.name.partition(".")[0] for path in FIXTURES.glob("*.sqlite.sql")}
    assert {"v1", f"v{migrations('sqlite')[-1].version}"} <= names


def test_everything_in_it_is_read_back(fixture: Path, database: Path, clock: ManualClock) -> None:
    expected = json.loads(fixture.with_name(fixture.name.replace(".sqlite.sql", ".json")).read_text("utf-8"))
    with closing(open_store(f"sqlite:///{database}", clock=clock)) as store:
        found = json.loads(json.dumps(portrait(store)))
        assert_consistent(store)
    assert missing(expected, found) == []


def missing(expected: Any, found: Any, where: str = "") -> list[str]:
    """What is not there any more; a later version may know more."""
    if isinstance(expected, dict) and isinstance(found, dict):
        lost = [f"{where}/{key}" for key in expected.keys() - found.keys()]
        for key in expected.keys() & found.keys():
            lost += missing(expected[key], found[key], f"{where}/{key}")
        return lost
    return [] if expected == found else [f"{where}: {found!r} instead of {expected!r}"]


def test_its_schema_becomes_that_of_a_new_store(database: Path, tmp_path: Path) -> None:
    open_store(f"sqlite:///{database}").close()
    open_store(f"sqlite:///{tmp_path / 'new.db'}").close()
    with (
        closing(sqlite3.connect(database)) as old,
        closing(sqlite3.connect(tmp_path / "new.db")) as new,
    ):
        assert sqlite_schema(old) == sqlite_schema(new)
        (applied,) = old.execute("SELECT max(version) FROM schema_migrations").fetchone()
    assert applied == migrations("sqlite")[-1].version


def test_the_migrations_it_was_made_with_have_not_been_edited_since(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        applied = connection.execute("SELECT version, checksum FROM schema_migrations").fetchall()
    known = {migration.version: migration.checksum for migration in migrations("sqlite")}
    assert applied == [(version, known[version]) for version, _ in applied]


def test_work_goes_on_in_it(database: Path, clock: ManualClock) -> None:
    with closing(open_store(f"sqlite:///{database}", clock=clock)) as store:
        for orphan in store.orphans():
            store.recover(orphan)
        store.enqueue_turn(GRANDCHILD, NewTurn("Go on.", "claude"))
        answered: set[str] = set()
        while claimed := store.claim_turn(ClaimRequest(a_runtime(), "new", f"key {len(answered)}", 60.0)):
            answered.add(claimed.lease.session_id)
            store.finish_turn(claimed.lease, TurnEnd(TurnStatus.DONE, "Done by the new version."))
        assert answered == {LEAD, CHILD, GRANDCHILD}
        again = store.fork(CHILD, SessionId("agent-new-fork"))
        assert store.history(again.conversation_id)[-1].response == "Done by the new version."
        assert_consistent(store)

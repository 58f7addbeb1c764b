"""A store is brought up to date once, whoever comes first; what cannot be brought up to date is not touched."""

import signal
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import pytest

from holdfast.clock import system_clock
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import NewSession
from holdfast.errors import SchemaTooNew, StoreCorrupt, StoreError
from holdfast.store.open import open_store
from holdfast.store.sqlite import SqliteDriver
from tests import processes
from tests.migrations import catalog, starters
from tests.migrations.starters import ADD_TABLE, BROKEN, newest, one_more_migration

PROCESSES = 8


class Database(Protocol):
    """A database that a test looks into behind the store's back."""

    url: str
    engine: str

    def execute(self, sql: str) -> list[Any]: ...

    def schema(self) -> catalog.Schema: ...

    def clear(self) -> None:
        """As if it had just been made."""
        ...


class SqliteDatabase:
    engine = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"

    def execute(self, sql: str) -> list[Any]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(sql).fetchall()

    def schema(self) -> catalog.Schema:
        with closing(sqlite3.connect(self.path)) as connection:
            return catalog.sqlite_schema(connection)

    def clear(self) -> None:
        for file in self.path.parent.glob(f"{self.path.name}*"):
            file.unlink()


class PostgresDatabase:
    engine = "postgres"

    def __init__(self, url: str) -> None:
        self.url = url

    def execute(self, sql: str) -> list[Any]:
        import psycopg

        with psycopg.connect(
            self.url, autocommit=True, options="-c search_path=holdfast,public"
        ) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def schema(self) -> catalog.Schema:
        return catalog.postgres_schema(self.url)

    def clear(self) -> None:
        self.execute("DROP SCHEMA IF EXISTS holdfast CASCADE")


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return SqliteDatabase(tmp_path / "holdfast.db")
    return PostgresDatabase(request.getfixturevalue("empty_postgres_url"))


@pytest.fixture
def file(tmp_path: Path) -> SqliteDatabase:
    return SqliteDatabase(tmp_path / "holdfast.db")


def use(url: str) -> None:
    """Write a session into it."""
    with closing(open_store(url)) as store:
        store.create_session(NewSession(SessionId("agent-one"), "one", metadata={"kept": True}))


def is_usable(url: str) -> bool:
    with closing(open_store(url)) as store:
        return store.get_session("agent-one").metadata == {"kept": True}


LEDGER = "SELECT version, name, checksum FROM schema_migrations ORDER BY version"

# --- many at once -------------------------------------------------------------------------------------------


def test_of_many_that_start_at_once_on_nothing_one_makes_the_schema(database: Database) -> None:
    for _ in range(3):
        database.clear()
        applied: list[list[int]] = processes.together(
            starters.start_up, [(database.url, me, None) for me in range(PROCESSES)]
        )
        assert sorted(filter(None, applied)) == [list(range(1, newest(database.engine) + 1))]
        assert len(database.execute(LEDGER)) == newest(database.engine)
        assert database.execute("SELECT count(*) FROM sessions") == [(PROCESSES,)]


def test_of_many_that_start_at_once_on_an_old_schema_one_migrates(database: Database) -> None:
    use(database.url)
    applied: list[list[int]] = processes.together(
        starters.start_up, [(database.url, me, ADD_TABLE) for me in range(PROCESSES)]
    )
    assert sorted(filter(None, applied)) == [[newest(database.engine) + 1]]
    assert database.execute("SELECT * FROM added") == [(1,)]
    assert database.execute("SELECT count(*) FROM sessions") == [(PROCESSES + 1,)]
    if isinstance(database, SqliteDatabase):
        # the copy that is kept is the one from before, also if some processes copied later
        (backup,) = backups(database)
        assert "added" not in backup.schema()
        assert backup.execute("SELECT id FROM sessions") == [("agent-one",)]
        assert leftovers(database) == []


# --- what is refused ----------------------------------------------------------------------------------------


def test_a_newer_schema_is_refused(database: Database) -> None:
    with one_more_migration(ADD_TABLE):
        use(database.url)
    before = (database.schema(), database.execute(LEDGER))

    with pytest.raises(SchemaTooNew) as refused:
        open_store(database.url)

    known = newest(database.engine)
    assert refused.value.details == {"where": refused.value.where, "found": known + 1, "known": known}
    assert (database.schema(), database.execute(LEDGER)) == before


def test_a_file_with_a_newer_schema_is_not_touched(file: SqliteDatabase) -> None:
    with one_more_migration(ADD_TABLE):
        use(file.url)
    before = file.path.read_bytes()
    with pytest.raises(SchemaTooNew):
        open_store(file.url)
    assert file.path.read_bytes() == before
    assert (backups(file), leftovers(file)) == ([], [])


def test_a_migration_that_was_changed_after_it_was_applied_is_refused(database: Database) -> None:
    use(database.url)
    database.execute("UPDATE schema_migrations SET checksum = 'another' WHERE version = 1")
    before = database.schema()
    with (
        one_more_migration(ADD_TABLE),
        pytest.raises(StoreCorrupt, match="is not the one this Holdfast knows"),
    ):
        open_store(database.url)
    assert database.schema() == before


FOREIGN = {
    "another program's": "CREATE TABLE bookmarks (url TEXT)",
    "one that counts its versions too": "CREATE TABLE bookmarks (url TEXT); PRAGMA user_version = 1",
    "one whose version is high": "CREATE TABLE bookmarks (url TEXT); PRAGMA user_version = 999",
    "one with a table like ours": "CREATE TABLE schema_migrations (version VARCHAR)",
    "one with a log like ours": "PRAGMA journal_mode = WAL; CREATE TABLE bookmarks (url TEXT)",
}


@pytest.mark.parametrize("script", FOREIGN.values(), ids=FOREIGN)
def test_a_file_of_another_program_is_refused_and_not_touched(file: SqliteDatabase, script: str) -> None:
    with closing(sqlite3.connect(file.path)) as connection:
        connection.executescript(script)
    before = file.path.read_bytes()
    with pytest.raises(StoreCorrupt, match="database of another program"):
        open_store(file.url)
    assert file.path.read_bytes() == before
    assert (backups(file), leftovers(file)) == ([], [])


def test_a_file_that_is_no_database_is_refused_and_not_touched(file: SqliteDatabase) -> None:
    file.path.write_text("Dear diary, " * 100)
    before = file.path.read_bytes()
    with pytest.raises(StoreCorrupt, match="not a database"):
        open_store(file.url)
    assert file.path.read_bytes() == before


@pytest.mark.parametrize(
    "table", ["sessions (token text)", "schema_migrations (version varchar)"], ids=["sessions", "ledger"]
)
def test_a_postgres_schema_with_other_tables_of_our_names_is_refused_and_not_touched(
    empty_postgres_url: str, table: str
) -> None:
    database = PostgresDatabase(empty_postgres_url)
    database.execute(f"CREATE SCHEMA holdfast; CREATE TABLE holdfast.{table}")
    with pytest.raises(StoreError):
        open_store(database.url)
    tables = database.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'")
    assert tables == [(table.partition(" ")[0],)]


# --- what goes wrong on the way -----------------------------------------------------------------------------


def fails(database: Database) -> None:
    with one_more_migration(BROKEN), pytest.raises(StoreError):
        open_store(database.url)


def is_killed(database: Database) -> None:
    process, connection = processes.start(starters.die_while_migrating, database.url)
    assert processes.finish(process) == -signal.SIGKILL
    process.close()
    connection.close()


@pytest.mark.parametrize("happens", [fails, is_killed])
def test_a_migration_that_breaks_off_leaves_the_old_schema(
    database: Database, happens: Callable[[Database], None]
) -> None:
    use(database.url)
    before = (database.schema(), database.execute(LEDGER))

    happens(database)

    assert (database.schema(), database.execute(LEDGER)) == before
    assert is_usable(database.url)
    with one_more_migration(ADD_TABLE):
        assert is_usable(database.url)
    assert database.execute("SELECT * FROM added") == [(1,)]


def test_a_file_is_copied_before_it_is_migrated(file: SqliteDatabase) -> None:
    use(file.url)
    before = file.schema()

    with one_more_migration(ADD_TABLE):
        assert is_usable(file.url)

    (backup,) = backups(file)
    assert stat.S_IMODE(backup.path.stat().st_mode) == 0o600
    assert backup.schema() == before
    assert backup.execute("PRAGMA integrity_check") == [("ok",)]
    assert is_usable(backup.url)
    assert leftovers(file) == []


def test_a_process_that_comes_too_late_to_copy_keeps_the_copy_of_the_first(file: SqliteDatabase) -> None:
    """It saw the old version, and then another process copied and migrated the file."""
    use(file.url)
    before = file.schema()
    with one_more_migration(ADD_TABLE):
        assert is_usable(file.url)

    with closing(SqliteDriver(file.path, system_clock)) as driver:
        driver.copy_to(Path(f"{file.path}.v{newest('sqlite')}.backup"), newest("sqlite"))

    (backup,) = backups(file)
    assert backup.schema() == before
    assert leftovers(file) == []


def test_a_new_file_and_one_that_is_up_to_date_are_not_copied(file: SqliteDatabase) -> None:
    use(file.url)
    assert is_usable(file.url)
    assert (backups(file), leftovers(file)) == ([], [])


def backups(file: SqliteDatabase) -> list[SqliteDatabase]:
    return [SqliteDatabase(path) for path in file.path.parent.glob("*.backup")]


def leftovers(file: SqliteDatabase) -> list[Path]:
    return list(file.path.parent.glob("*.partial*"))

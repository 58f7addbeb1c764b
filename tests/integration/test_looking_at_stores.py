"""Looking at a database without changing it: its schema, its damage; and copies of it."""

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import StoreCorrupt, StoreUnavailable
from holdfast.store.migrate import SchemaVersions, migrations
from holdfast.store.open import look_at_schema, open_store
from tests.builders import a_session
from tests.migrations.starters import ADD_TABLE, one_more_migration
from tests.steps import begin

KNOWN = migrations("sqlite")[-1].version


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "holdfast.db"


@pytest.fixture
def url(file: Path) -> str:
    return f"sqlite:///{file}"


def fill(url: str, sessions: int = 200) -> None:
    with closing(open_store(url, durability="normal")) as store:
        for _ in range(sessions):
            store.create_session(a_session(purpose="x" * 500))


def cut_in_the_middle(file: Path) -> None:
    """As after a copy that was broken off, or a file system that lost pages."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2 // 4096 * 4096])


def overwrite_pages(file: Path) -> None:
    """The last tenth of the file, where rows are: the schema and the marks stay whole."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    pages = file.stat().st_size // 4096
    with file.open("rb+") as opened:
        opened.seek((pages - pages // 10) * 4096)
        opened.write(b"\xff" * 4096 * (pages // 10))


# --- the schema ---


def test_looking_at_a_file_that_is_missing_makes_none(url: str, file: Path) -> None:
    assert look_at_schema(url) == SchemaVersions(0, KNOWN)
    assert list(file.parent.iterdir()) == []


def test_an_older_schema_is_seen_and_stays(url: str, file: Path) -> None:
    fill(url, 1)
    with one_more_migration(ADD_TABLE):
        assert look_at_schema(url) == SchemaVersions(KNOWN, KNOWN + 1)
        assert list(file.parent.glob("*.backup")) == []
    assert look_at_schema(url) == SchemaVersions(KNOWN, KNOWN)


def test_the_schema_of_postgresql_is_seen(postgres_url: str, empty_postgres_url: str) -> None:
    newest = migrations("postgres")[-1].version
    assert look_at_schema(postgres_url) == SchemaVersions(newest, newest)
    assert look_at_schema(empty_postgres_url) == SchemaVersions(0, newest)


def test_a_server_and_a_store_in_memory_have_no_schema_to_look_at() -> None:
    assert look_at_schema("https://fleet.example") is None
    assert look_at_schema("sqlite:///:memory:") is None


def test_what_cannot_be_looked_at_is_an_error_of_the_store(url: str, file: Path) -> None:
    file.write_text("just some text\n" * 100)
    with pytest.raises(StoreCorrupt, match="it is not a database"):
        look_at_schema(url)
    file.unlink()
    file.mkdir()
    with pytest.raises(StoreUnavailable):
        look_at_schema(url)


# --- damage ---


def test_a_whole_database_has_no_damage(url: str) -> None:
    fill(url)
    with closing(open_store(url)) as store:
        assert store.find_damage() == store.find_damage(deep=True) == ()


def test_a_database_that_lost_its_second_half_is_damaged(url: str, file: Path) -> None:
    fill(url)
    cut_in_the_middle(file)
    with pytest.raises(StoreCorrupt, match="it is damaged"):
        look_at_schema(url)


def test_a_page_that_was_overwritten_is_found(url: str, file: Path) -> None:
    fill(url)
    overwrite_pages(file)
    with closing(open_store(url)) as store:
        assert store.find_damage() != ()


def test_a_row_that_refers_to_nothing_is_found_by_a_deep_look(url: str, file: Path) -> None:
    fill(url, 1)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("DELETE FROM conversations")
    with closing(open_store(url)) as store:
        assert store.find_damage() == ()
        assert any("refers to a row of conversations" in said for said in store.find_damage(deep=True))


def test_postgresql_reports_no_failed_checksum(postgres_url: str) -> None:
    with closing(open_store(postgres_url)) as store:
        assert store.find_damage() == ()


# --- copies ---


def test_a_copy_is_whole_and_its_users_alone(url: str, file: Path) -> None:
    with closing(open_store(url)) as store:
        session = begin(store)
        copy = store.back_up()
    assert copy is not None
    assert (Path(copy).parent, Path(copy).suffix) == (file.parent, ".backup")
    assert stat.S_IMODE(Path(copy).stat().st_mode) == 0o600
    with closing(open_store(f"sqlite:///{copy}")) as store:
        assert store.get_session(session.id) == session
        assert store.find_damage(deep=True) == ()
    assert list(file.parent.glob("*.partial*")) == []


def test_a_store_in_memory_and_postgresql_make_no_copy(postgres_url: str) -> None:
    for url in ("sqlite:///:memory:", postgres_url):
        with closing(open_store(url)) as store:
            assert store.back_up() is None

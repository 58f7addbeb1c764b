"""The schema is the sum of the migrations, the same on both engines, and changes only by a new migration."""

import difflib
import sqlite3
from contextlib import closing
from pathlib import Path

from holdfast.store.migrate import migrations
from holdfast.store.open import open_store
from tests.migrations.catalog import Schema, describe, postgres_schema, sqlite_schema
from tests.migrations.make_fixture import SCHEMA


def a_fresh_schema(tmp_path: Path) -> Schema:
    path = tmp_path / "fresh.db"
    open_store(f"sqlite:///{path}").close()
    with closing(sqlite3.connect(path)) as connection:
        return sqlite_schema(connection)


def difference(one: str, other: str) -> str:
    return "\n".join(difflib.unified_diff(one.splitlines(), other.splitlines(), lineterm="", n=0))


def test_both_engines_have_the_same_tables_columns_indexes_and_foreign_keys(
    tmp_path: Path, postgres_url: str
) -> None:
    sqlite, postgres = a_fresh_schema(tmp_path), postgres_schema(postgres_url)
    assert difference(describe(sqlite), describe(postgres)) == ""
    assert sqlite == postgres
    assert len(sqlite) > 10


def test_the_schema_is_the_one_that_was_written_down(tmp_path: Path) -> None:
    """If it is meant to change: add a migration and run ``python -m tests.migrations.make_fixture``."""
    assert difference(SCHEMA.read_text("utf-8"), describe(a_fresh_schema(tmp_path))) == ""


def test_migrations_are_numbered_without_gaps_and_have_the_same_names_on_both_engines() -> None:
    sqlite, postgres = migrations("sqlite"), migrations("postgres")
    assert [migration.name for migration in sqlite] == [migration.name for migration in postgres]
    assert [migration.version for migration in sqlite] == list(range(1, len(sqlite) + 1))
    assert all(migration.name.startswith(f"{migration.version:04}_") for migration in sqlite)

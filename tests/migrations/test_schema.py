"""The schema is the sum of the migrations, the same on both engines, and changes only by a new migration."""

import difflib
import sqlite3
from contextlib import closing
from pathlib import Path

from holdfast.store.migrate import migrations
from holdfast.store.open import open_store
from holdfast.store.sql import tables
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


#: of the engines, not of the store's records
UNDECLARED = {"schema_migrations"}
HELD = {str: "text", int: "whole number", bool: "whole number", float: "real number", bytes: "bytes"}


def test_every_column_is_declared_as_both_schemas_have_it(tmp_path: Path, postgres_url: str) -> None:
    declared = {
        table.name: {name: in_words(kind) for name, kind in table.columns.items()}
        for table in vars(tables).values()
        if isinstance(table, tables.Table)
    }
    for schema in (a_fresh_schema(tmp_path), postgres_schema(postgres_url)):
        found = {
            name: {column: without_default(what) for column, what in table.columns.items()}
            for name, table in schema.items()
            if name not in UNDECLARED
        }
        for columns in found.values():
            assert columns.pop("workspace") == "text"
        assert declared == found


def test_a_new_row_gives_a_value_to_every_column_that_needs_one(tmp_path: Path) -> None:
    schema = a_fresh_schema(tmp_path)
    for table in vars(tables).values():
        if isinstance(table, tables.Table):
            left_out = [name for name, kind in table.columns.items() if kind.is_later]
            for name in left_out:
                what = schema[table.name].columns[name]
                assert "or missing" in what or "default" in what, f"{table.name}.{name}"


def in_words(kind: tables.Kind) -> str:
    held = HELD[kind.types[-2] if kind.is_optional else kind.types[-1]]
    return f"{held}, or missing" if kind.is_optional else held


def without_default(what: str) -> str:
    return what.partition(", default")[0]

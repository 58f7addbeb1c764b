"""Owns the schema's version: the first process that opens an old store brings it up to date, once.

Migrations are plain SQL files, ``NNNN_words.sql``, one folder for each engine. What was applied is
recorded with a checksum. A store made by a newer Holdfast is refused, and a SQLite file with data
is copied before it is changed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.domain.records import record
from holdfast.errors import SchemaTooNew, StoreCorrupt, StoreUnavailable
from holdfast.store.driver import Row, Transaction
from holdfast.store.sqlite import translate_error
from holdfast.store.sqlite_file import APPLICATION_ID

if TYPE_CHECKING:
    from holdfast.store.postgres import PostgresDriver
    from holdfast.store.sqlite import SqliteDriver

_FOLDER = Path(__file__).parent / "migrations"
_LEDGER = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    version     INTEGER PRIMARY KEY,
    name        TEXT    NOT NULL,
    checksum    TEXT    NOT NULL,
    applied_at  BIGINT  NOT NULL
)"""
_APPLIED = "SELECT version, name, checksum FROM schema_migrations ORDER BY version"
_MARKS = "SELECT user_version, application_id FROM pragma_user_version, pragma_application_id"
_RECORD = "INSERT INTO schema_migrations VALUES (:version, :name, :checksum, :now)"
#: the number of the lock that a migrating process holds; any number will do, as long as it stays the same
_ADVISORY_LOCK = 4_850_113_207


@record
class Migration:
    version: int
    name: str
    source: Path | str  #: the file, or the statements themselves

    @property
    def sql(self) -> str:
        """Read when it is needed: a store that is up to date needs none."""
        return self.source if isinstance(self.source, str) else self.source.read_text("utf-8")

    @property
    def checksum(self) -> str:
        import hashlib  # loads OpenSSL, and most programs that open a store have nothing to migrate

        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def statements(self) -> list[str]:
        return [part for part in self.sql.split(";\n") if part.strip()]


@cache
def migrations(engine: str) -> tuple[Migration, ...]:
    folder = _FOLDER / engine
    names = sorted(name for name in os.listdir(folder) if name.endswith(".sql"))  # noqa: PTH208 - names alone
    return tuple(Migration(int(name[:4]), name.removesuffix(".sql"), folder / name) for name in names)


def migrate_sqlite(driver: SqliteDriver) -> None:
    """Safe when many processes start at once. One statement when there is nothing to do."""
    known = _newest("sqlite")
    with driver.read() as tx:
        version = _user_version(tx, driver.where)
    _refuse_newer(driver.where, version, known)
    if version == known:
        return
    if version > 0 and driver.path is not None:
        # if another process migrates the file meanwhile, that one makes the copy
        driver.copy_to(Path(f"{driver.path}.v{version}.backup"), version)
    with driver.write() as tx:
        _user_version(tx, driver.where)
        _apply_missing(tx, "sqlite", driver.where)
        tx.run(f"PRAGMA user_version = {known}", {})
        tx.run(f"PRAGMA application_id = {APPLICATION_ID}", {})


def migrate_postgres(driver: PostgresDriver) -> None:
    """Safe when many processes start at once."""
    with driver.write() as tx:
        version = _postgres_version(tx)
        _refuse_newer(driver.where, version, _newest("postgres"))
        if version == _newest("postgres"):
            return
        tx.run(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})", {})
        if not _has_schema(tx):
            tx.run(f"CREATE SCHEMA IF NOT EXISTS {driver.schema}", {})
            if not _has_schema(tx):
                problem = "this user may use none of the schemas that its search_path names, or none exists"
                raise StoreUnavailable(driver.where, problem)
        _apply_missing(tx, "postgres", driver.where)


def _postgres_version(tx: Transaction) -> int:
    """0 where there is no schema yet."""
    table = tx.one("SELECT to_regclass(quote_ident(current_schema()) || '.schema_migrations')", {})
    if table is None or table[0] is None:
        return 0
    row = tx.one("SELECT COALESCE(MAX(version), 0) FROM schema_migrations", {})
    return int(row[0]) if row else 0


def _has_schema(tx: Transaction) -> bool:
    """Asked first: to make one that exists takes a right that not every user has."""
    return tx.one("SELECT current_schema()", {}) != (None,)


def _apply_missing(tx: Transaction, engine: str, where: str) -> None:
    tx.run(_LEDGER, {})
    applied = {int(version): (name, checksum) for version, name, checksum in tx.all(_APPLIED, {})}
    _refuse_newer(where, max(applied, default=0), _newest(engine))
    for migration in migrations(engine):
        if migration.version in applied:
            name, checksum = applied[migration.version]
            if checksum != migration.checksum:
                raise StoreCorrupt(where, f"migration {name} is not the one this Holdfast knows")
            continue
        for statement in migration.statements:
            tx.run(statement, {})
        tx.run(
            _RECORD,
            {
                "version": migration.version,
                "name": migration.name,
                "checksum": migration.checksum,
                "now": tx.now,
            },
        )


def _newest(engine: str) -> int:
    return migrations(engine)[-1].version


def _user_version(tx: Transaction, where: str) -> int:
    return _version_of(lambda sql: tx.one(sql, {}), where)


def _version_of(one: Callable[[str], Row | None], where: str) -> int:
    """Of a SQLite file; 0 for one that is new. What is some other program's is refused."""
    version, application = one(_MARKS) or (0, 0)
    if application == APPLICATION_ID:
        return int(version)
    table = one("SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 1")
    if table is not None:
        raise StoreCorrupt(where, f"it is a database of another program (it has a table {table[0]!r})")
    return 0


def _refuse_newer(where: str, version: int, known: int) -> None:
    if version > known:
        raise SchemaTooNew(
            where,
            f"its schema is version {version}, made by a newer Holdfast; this one knows {known}",
            found=version,
            known=known,
        )


# --- looking at a schema without changing it ---


@record
class SchemaVersions:
    found: int  #: in the store; 0: there is no schema yet
    known: int  #: to this Holdfast


def sqlite_schema(path: Path) -> SchemaVersions:
    """Opens the file for reading only, and makes none. Raises StoreCorrupt and StoreUnavailable."""
    from urllib.parse import quote

    if not path.exists():
        return SchemaVersions(0, _newest("sqlite"))
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as connection:
            found = _version_of(lambda sql: connection.execute(sql).fetchone(), str(path))
    except (sqlite3.Error, UnicodeDecodeError) as exc:
        raise translate_error(str(path), exc) from exc
    return SchemaVersions(found, _newest("sqlite"))


def postgres_schema(driver: PostgresDriver) -> SchemaVersions:
    with driver.read() as tx:
        return SchemaVersions(_postgres_version(tx), _newest("postgres"))

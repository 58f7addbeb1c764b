"""Owns the fixtures that give a test a PostgreSQL database of its own.

The server is the one named by ``HOLDFAST_TEST_POSTGRES_URL`` (its user must be allowed to create databases)
or one that is started for this run. A machine that has neither skips these tests and says why.
"""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests import postgres_server

URL_VARIABLE = "HOLDFAST_TEST_POSTGRES_URL"

_directory = pytest.StashKey[Path]()


# The process that the person started makes the run's directory; pytest-xdist's workers are told where it is.


def pytest_configure(config: pytest.Config) -> None:
    told = getattr(config, "workerinput", {}).get("postgres_directory")
    # directly under the temporary directory: the path of a unix socket may have about 100 characters
    config.stash[_directory] = Path(told or tempfile.mkdtemp(prefix="holdfast-pg-"))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["postgres_directory"] = str(node.config.stash[_directory])


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        postgres_server.leave(config.stash[_directory])
        shutil.rmtree(config.stash[_directory], ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_admin_url(request: pytest.FixtureRequest) -> str:
    """A server on this machine, as a user who may create databases."""
    pytest.importorskip("psycopg", reason="psycopg is not installed", exc_type=ImportError)
    if given := os.environ.get(URL_VARIABLE):
        return _on_this_machine(given)
    try:
        return postgres_server.join(request.config.stash[_directory])
    except postgres_server.ServerUnavailable as exc:
        pytest.skip(f"no PostgreSQL: {exc}; {URL_VARIABLE} can name one")


@pytest.fixture(scope="session")
def postgres_template(postgres_admin_url: str) -> Iterator[str]:
    """The name of a database with the current schema and no rows; nobody is connected to it."""
    from holdfast.store.open import open_store

    name = _new_name("template")
    _execute(postgres_admin_url, "CREATE DATABASE {}", name)
    try:
        open_store(_for_database(postgres_admin_url, name)).close()
        yield name
    finally:
        _execute(postgres_admin_url, "DROP DATABASE {} WITH (FORCE)", name)


@pytest.fixture
def postgres_url(postgres_admin_url: str, postgres_template: str) -> Iterator[str]:
    """A database of the test's own, with the current schema and no rows."""
    name = _new_name("test")
    _execute(postgres_admin_url, "CREATE DATABASE {} TEMPLATE {}", name, postgres_template)
    try:
        yield _for_database(postgres_admin_url, name)
    finally:
        _execute(postgres_admin_url, "DROP DATABASE {} WITH (FORCE)", name)


@pytest.fixture(scope="session")
def shared_postgres_url(postgres_admin_url: str, postgres_template: str) -> Iterator[str]:
    """A database for tests that follow each other; use ``emptied_postgres_url``."""
    name = _new_name("shared")
    _execute(postgres_admin_url, "CREATE DATABASE {} TEMPLATE {}", name, postgres_template)
    try:
        yield _for_database(postgres_admin_url, name)
    finally:
        _execute(postgres_admin_url, "DROP DATABASE {} WITH (FORCE)", name)


@pytest.fixture
def emptied_postgres_url(shared_postgres_url: str) -> str:
    """A database with the current schema and no rows: what the test before left is deleted, which is quick."""
    import psycopg
    from psycopg import sql

    with psycopg.connect(shared_postgres_url, options="-c search_path=holdfast") as connection:
        # whoever holds a lock is a test that did not clean up: say so instead of waiting for it
        connection.execute("SET lock_timeout = '10s'")
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'").fetchall()
        tables = [sql.Identifier(table) for (table,) in rows if table != "schema_migrations"]
        connection.execute(sql.SQL("LOCK TABLE {}").format(sql.SQL(", ").join(tables)))
        # One statement, because foreign keys are checked at its end. TRUNCATE would make the files of every
        # table anew, which takes thirty times as long.
        deletes = [sql.SQL("{0} AS (DELETE FROM {0})").format(table) for table in tables]
        connection.execute(sql.SQL("WITH {} SELECT 1").format(sql.SQL(", ").join(deletes)))
    return shared_postgres_url


@pytest.fixture
def empty_postgres_url(postgres_admin_url: str) -> Iterator[str]:
    """A database of the test's own with nothing in it, not even the schema."""
    name = _new_name("empty")
    _execute(postgres_admin_url, "CREATE DATABASE {}", name)
    try:
        yield _for_database(postgres_admin_url, name)
    finally:
        _execute(postgres_admin_url, "DROP DATABASE {} WITH (FORCE)", name)


def _new_name(purpose: str) -> str:
    return f"holdfast_{purpose}_{uuid.uuid4().hex[:12]}"


def _for_database(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{name}").geturl()


def _execute(url: str, statement: str, *names: str) -> None:
    import psycopg
    from psycopg import sql

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


def _on_this_machine(url: str) -> str:
    from psycopg.conninfo import conninfo_to_dict

    named = conninfo_to_dict(url)
    hosts = f"{named.get('host') or ''},{named.get('hostaddr') or ''}".split(",")
    for host in filter(None, hosts):
        if host not in ("localhost", "::1") and not host.startswith(("/", "127.")):
            raise pytest.UsageError(f"{URL_VARIABLE} names {host}; tests do not reach beyond this machine")
    return url

"""A store in a PostgreSQL database that others use too: its own schema, its own patience."""

import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.store.open import open_store
from tests.builders import a_session


@pytest.fixture
def url(empty_postgres_url: str) -> str:
    return empty_postgres_url


def execute(url: str, *statements: str) -> list[Any]:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def with_options(url: str, options: str) -> str:
    return f"{url}&options={quote(options)}"


def use(url: str) -> str:
    with closing(open_store(url)) as store:
        return store.create_session(a_session()).id


def sessions(url: str, schema: str) -> list[str]:
    return [row[0] for row in execute(url, f"SELECT id FROM {schema}.sessions")]


# --- where its tables are ----------------------------------------------------------------------------------


def test_the_tables_of_others_are_neither_taken_for_ours_nor_touched(url: str) -> None:
    execute(
        url,
        "CREATE TABLE schema_migrations (version integer)",
        "INSERT INTO schema_migrations VALUES (999)",
        "CREATE TABLE sessions (token text)",
    )
    session = use(url)
    assert sessions(url, "holdfast") == [session]
    assert execute(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1") == [
        ("schema_migrations",),
        ("sessions",),
    ]


def test_a_url_may_name_another_schema(url: str) -> None:
    execute(url, "CREATE SCHEMA tools")
    session = use(with_options(url, "-c search_path=tools"))
    assert sessions(url, "tools") == [session]
    assert execute(url, "SELECT 1 FROM pg_namespace WHERE nspname = 'holdfast'") == []


def test_the_environment_may_name_another_schema(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(url, "CREATE SCHEMA tools")
    monkeypatch.setenv("PGOPTIONS", "-c search_path=tools")
    session = use(url)
    assert sessions(url, "tools") == [session]


def test_other_options_of_a_url_leave_the_schema_alone(url: str) -> None:
    session = use(with_options(url, "-c statement_timeout=60s"))
    assert sessions(url, "holdfast") == [session]


def test_the_ledger_of_another_program_behind_our_schema_is_not_ours(url: str) -> None:
    execute(url, "CREATE SCHEMA tools", "CREATE TABLE schema_migrations (version varchar)")
    session = use(with_options(url, "-c search_path=tools,public"))
    assert sessions(url, "tools") == [session]


def test_a_schema_that_a_url_names_must_exist(url: str) -> None:
    with pytest.raises(StoreUnavailable, match="search_path"):
        open_store(with_options(url, "-c search_path=nowhere"))


# --- who may use it ----------------------------------------------------------------------------------------


@pytest.fixture
def guest(url: str) -> Iterator[str]:
    """A user who may connect to the database and nothing else."""
    name = f"guest_{uuid.uuid4().hex[:12]}"
    execute(url, f"CREATE ROLE {name} LOGIN")
    yield name
    execute(url, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def as_user(url: str, name: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{name}@{parts.netloc.rpartition('@')[2]}").geturl()


def test_a_user_who_may_make_no_schema_uses_the_one_there_is(url: str, guest: str) -> None:
    execute(url, f"CREATE SCHEMA holdfast AUTHORIZATION {guest}")
    session = use(as_user(url, guest))
    assert sessions(url, "holdfast") == [session]


def test_a_user_who_may_make_no_schema_hears_it(url: str, guest: str) -> None:
    with pytest.raises(StoreUnavailable, match="permission denied"):
        open_store(as_user(url, guest))


# --- how long it waits -------------------------------------------------------------------------------------


def test_who_waits_for_a_lock_gives_up_in_the_end(url: str) -> None:
    use(url)
    patient = with_options(url, "-c lock_timeout=200ms")
    with closing(open_store(url)) as holder, closing(open_store(patient)) as store:
        with holder._driver.write() as tx:  # type: ignore[attr-defined]
            tx.changed("LOCK TABLE sessions", {})
            with pytest.raises(StoreUnavailable, match="locked by another session"):
                store.create_session(a_session())
        store.create_session(a_session())


def test_a_transaction_that_stands_still_is_ended(url: str) -> None:
    use(url)
    with closing(open_store(with_options(url, "-c idle_in_transaction_session_timeout=100ms"))) as store:
        with pytest.raises(StoreUnavailable, match="stood still"):
            stand_still(store, url)
        store.create_session(a_session())


def stand_still(store: Any, url: str) -> None:
    with store._driver.write() as tx:
        (process,) = tx.one("SELECT pg_backend_pid()", {})
        while execute(url, f"SELECT 1 FROM pg_stat_activity WHERE pid = {process}"):
            pass
        tx.one("SELECT 1", {})


def test_every_connection_has_these_limits(url: str) -> None:
    from holdfast.store import postgres

    with closing(open_store(url)) as store, store._driver.read() as tx:  # type: ignore[attr-defined]
        names = ("lock_timeout", "idle_in_transaction_session_timeout")
        limits = [tx.one(f"SHOW {name}", {}) for name in names]
    assert limits == [(f"{postgres.LOCK_SECONDS}s",), (f"{postgres.STANDSTILL_SECONDS}s",)]

"""Owns the way from a URL to a store; each engine is imported only when it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from holdfast.clock import Clock, system_clock
from holdfast.domain.ids import check_workspace
from holdfast.domain.policy import Policy
from holdfast.errors import ConfigError, StoreUnavailable
from holdfast.store.contract import Store

if TYPE_CHECKING:
    from holdfast.store.migrate import SchemaVersions
    from holdfast.store.postgres import PostgresDriver

Durability = Literal["full", "normal"]

_POSTGRES = ("postgresql://", "postgres://")
_HTTP = ("http://", "https://")


def open_store(
    url: str,
    *,
    workspace: str = "default",
    clock: Clock | None = None,
    durability: Durability = "full",
    policy: Policy | None = None,
    token: str | None = None,
) -> Store:
    """``sqlite:///path``, ``sqlite:///:memory:`` or ``postgresql://…``; the schema is brought up to date.

    Or ``http(s)://…``: a Holdfast server, whose clock and policy count; ``token`` is what it lets us in with.
    ``clock`` None is the engine's own time: the host's for SQLite, the server's for PostgreSQL.
    """
    space = check_workspace(workspace)
    if url.startswith(_HTTP):
        return _open_http(url, space, token)
    from holdfast.store.sql_store import SqlStore

    if url.startswith("sqlite:"):
        from holdfast.store.migrate import migrate_sqlite
        from holdfast.store.sqlite import SqliteDriver

        driver = SqliteDriver(sqlite_path(url), clock or system_clock, durability=durability)
        try:
            migrate_sqlite(driver)
        except BaseException:
            driver.close()
            raise
        return SqlStore(driver, space, policy or Policy())
    if url.startswith(_POSTGRES):
        return _open_postgres(url, space, clock, policy or Policy())
    scheme, colon, _ = url.partition(":")
    if not colon:
        raise ConfigError("url", f"{url[:200]!r} is not a store; write sqlite:///{url[:200]}")
    raise ConfigError(
        "url",
        f"{scheme[:40]!r} is not a store (sqlite:///path, postgresql://host/database or http://host:port)",
    )


def look_at_schema(url: str) -> SchemaVersions | None:
    """The version of the schema, without changing anything; None for a server and a database in memory.

    Raises StoreError if the database cannot be read.
    """
    if url.startswith("sqlite:"):
        from holdfast.store.migrate import sqlite_schema

        path = sqlite_path(url)
        return None if path is None else sqlite_schema(path)
    if not url.startswith(_POSTGRES):
        return None
    from holdfast.store.migrate import postgres_schema

    driver = _postgres_driver(url, None)
    try:
        return postgres_schema(driver)
    finally:
        driver.close()


def sqlite_path(url: str) -> Path | None:
    """None is a database in memory. As in other tools, a fourth slash makes the path absolute.

    A relative path is meant from the directory that is current now, wherever the process goes later.
    """
    rest = url.removeprefix("sqlite:")
    if not rest.startswith("///"):
        raise ConfigError("url", f"{url[:80]!r}: write sqlite:///relative/path or sqlite:////absolute/path")
    path = rest.removeprefix("///")
    if not path:  # such as sqlite:///$FILE where FILE is not set: a database in memory would lose everything
        raise ConfigError(
            "url", f"{url!r} names no file: write sqlite:///relative/path or sqlite:////absolute/path"
        )
    if path == ":memory:":
        return None
    if "\x00" in path:
        raise ConfigError("url", "the path contains a NUL byte")
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as exc:
        raise ConfigError("url", f"{path[:80]!r}: that home directory is not known") from exc
    except FileNotFoundError as exc:
        raise StoreUnavailable(path, "the current directory was deleted; name an absolute path") from exc


def _open_http(url: str, workspace: str, token: str | None) -> Store:
    try:
        from holdfast.store.http_store import open_http
    except ImportError as exc:
        raise ConfigError(
            "url", "a Holdfast server needs an extra: pip install 'holdfast-sessions[http]'"
        ) from exc
    return open_http(url, workspace, token)


def _postgres_driver(url: str, clock: Clock | None) -> PostgresDriver:
    try:
        from holdfast.store.postgres import PostgresDriver
    except ImportError as exc:
        raise ConfigError(
            "url", "PostgreSQL needs an extra: pip install 'holdfast-sessions[postgres]'"
        ) from exc
    return PostgresDriver(url, clock)


def _open_postgres(url: str, workspace: str, clock: Clock | None, policy: Policy) -> Store:
    from holdfast.store.migrate import migrate_postgres
    from holdfast.store.sql_store import SqlStore

    driver = _postgres_driver(url, clock)
    try:
        migrate_postgres(driver)
    except BaseException:
        driver.close()
        raise
    return SqlStore(driver, check_workspace(workspace), policy)

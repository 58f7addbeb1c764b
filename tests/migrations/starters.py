"""Owns the processes of the migration tests, and the migrations that only they know."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from unittest import mock

from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import NewSession, SessionFilter
from holdfast.store import migrate
from holdfast.store.migrate import Migration
from holdfast.store.open import open_store
from tests.processes import Start

ADD_TABLE = "CREATE TABLE added (id BIGINT NOT NULL);\nINSERT INTO added VALUES (1);\n"
BROKEN = f"{ADD_TABLE}INSERT INTO nowhere VALUES (1);\n"


def newest(engine: str) -> int:
    return migrate.migrations(engine)[-1].version


@contextmanager
def one_more_migration(sql: str) -> Iterator[None]:
    """A Holdfast that is one version newer."""
    known = migrate.migrations

    def more(engine: str) -> tuple[Migration, ...]:
        version = known(engine)[-1].version + 1
        return (*known(engine), Migration(version, f"{version:04}_one_more", sql))

    with mock.patch.object(migrate, "migrations", more):
        yield


def start_up(ready: Start, url: str, me: int, more: str | None) -> list[int]:
    """Open the store as soon as the others do, and use it; the migrations that this process applied."""
    applied: list[int] = []
    written = Migration.statements.fget  # type: ignore[attr-defined] # a property

    def watched(migration: Migration) -> list[str]:
        applied.append(migration.version)
        return list(written(migration))

    with mock.patch.object(Migration, "statements", property(watched)):
        ready()
        if more is None:
            _use(url, me)
        else:
            with one_more_migration(more):
                _use(url, me)
    return applied


def _use(url: str, me: int) -> None:
    store = open_store(url)
    store.create_session(NewSession(SessionId(f"agent-{me}"), "starter"))
    assert any(session.id == f"agent-{me}" for session in store.list_sessions(SessionFilter(), 100).sessions)
    store.close()


def die_while_migrating(connection: Connection, url: str) -> None:
    """Killed after the first statement of a migration."""

    def fatal(migration: Migration) -> Iterator[str]:
        yield migration.sql.partition(";\n")[0]
        os.kill(os.getpid(), signal.SIGKILL)

    with mock.patch.object(Migration, "statements", property(fatal)), one_more_migration(ADD_TABLE):
        open_store(url)

"""Owns the floor: what a careful person writes by hand with sqlite3 alone, into the same tables.

The same rows as Holdfast, in transactions of the same extent, with the reads that its guarantees need:
the session is open, the sequence number is the next one, the lease is held, the head is the oldest. No
validation, no redaction, no records, no write lock between processes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import workload as w
from bench.floor_sessions import USER, Connection, wall_clock
from bench.floor_turns import FloorTurns
from holdfast.clock import system_clock
from holdfast.store.migrate import migrate_sqlite, migrations
from holdfast.store.sqlite import SqliteDriver

BUSY_SECONDS = 30.0
#: what keeps a statement from walking through a long history; PostgreSQL needs no telling
INDEXED = " INDEXED BY open_turns"


def connect(path: Path, *, synchronous: str = "FULL") -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, cached_statements=256)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def create_schema(path: Path, *, primary_keys_only: bool = False) -> None:
    """Holdfast's own tables; on request without any secondary index."""
    if not primary_keys_only:
        driver = SqliteDriver(path, system_clock)
        migrate_sqlite(driver)
        driver.close()
        return
    connection = connect(path)
    for migration in migrations("sqlite"):
        for statement in migration.statements:
            if not _is_about_an_index(statement):
                connection.execute(statement)
    connection.close()


def _is_about_an_index(statement: str) -> bool:
    code = [line for line in statement.splitlines() if line and not line.startswith("--")]
    return code[0].startswith(("CREATE INDEX", "CREATE UNIQUE INDEX", "DROP INDEX"))


class _WithoutIndexes:
    """A connection to tables that have none of the indexes that the statements name."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.close = connection.close

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> sqlite3.Cursor:
        return self._connection.execute(sql.replace(INDEXED, ""), parameters)

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]], /) -> sqlite3.Cursor:
        return self._connection.executemany(sql.replace(INDEXED, ""), parameters)


class Floor(FloorTurns):
    @classmethod
    def on_sqlite(
        cls,
        path: Path,
        *,
        synchronous: str = "FULL",
        primary_keys_only: bool = False,
        clock: Callable[[], int] = wall_clock,
    ) -> Floor:
        if not path.exists():
            create_schema(path, primary_keys_only=primary_keys_only)
        connection = connect(path, synchronous=synchronous)
        return cls(_WithoutIndexes(connection) if primary_keys_only else connection, clock)

    @property
    def connection(self) -> Connection:
        return self._c

    def fork(self, session_id: str, child_id: str) -> None:
        now = self._clock()
        with self._transaction() as c:
            parent = c.execute(
                "SELECT s.conversation_id, s.agent, s.kind, s.purpose, s.provider, s.metadata, c.revision,"
                " c.generation FROM sessions s"
                " JOIN conversations c ON c.workspace = s.workspace AND c.id = s.conversation_id"
                " WHERE s.workspace = ? AND s.id = ?",
                (w.WORKSPACE, session_id),
            ).fetchone()
            fork_seq = self._fork_seq(c, parent[0])
            child_conversation = w.conversation_of(child_id)
            c.execute(
                "INSERT INTO conversations (workspace, id, parent_id, fork_seq, fork_revision, revision,"
                " generation, next_seq, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    w.WORKSPACE, child_conversation, parent[0], fork_seq, parent[6], parent[6], parent[7],
                    fork_seq + 1, now,
                ),
            )  # fmt: skip
            c.execute(
                "INSERT INTO sessions (workspace, id, conversation_id, agent, kind, purpose, provider, phase,"
                " resume_ready, metadata, created_at, updated_at, parent_session_id)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, 'initializing', FALSE, ?, ?, ?, ?)",
                (w.WORKSPACE, child_id, child_conversation, *parent[1:6], now, now, session_id),
            )
            c.execute(
                "INSERT INTO pointers (workspace, session_id, provider, provider_session_id, runtime_id,"
                " version, work_dir, model, epoch, generation, seen, rights, transcript, context_tokens,"
                " context_window, fork_seq, updated_at)"
                " SELECT workspace, ?, provider, provider_session_id, runtime_id, version, work_dir, model,"
                " epoch, generation, seen, rights, transcript, context_tokens, context_window, ?, updated_at"
                " FROM pointers WHERE workspace = ? AND session_id = ?",
                (child_id, fork_seq, w.WORKSPACE, session_id),
            )

    def _fork_seq(self, c: Connection, conversation_id: str) -> int:
        """The newest turn below the first open one."""
        (first_open,) = c.execute(
            "SELECT MIN(seq) FROM turns INDEXED BY open_turns WHERE workspace = ? AND conversation_id = ?"
            " AND status IN ('queued', 'claimed', 'running', 'waiting')",
            (w.WORKSPACE, conversation_id),
        ).fetchone()
        row = c.execute(
            "SELECT seq FROM turns WHERE workspace = ? AND conversation_id = ? AND seq < ?"
            " AND dropped IS NULL ORDER BY seq DESC LIMIT 1",
            (w.WORKSPACE, conversation_id, first_open or 2**62),
        ).fetchone()
        return int(row[0]) if row else 0

    def clean_up(self, cutoff: int) -> int:
        """Set by set: delete what has been final, abandon what has been idle."""
        now = self._clock()
        with self._transaction() as c:
            deleted = self._delete_final(c, cutoff, now)
            idle = (
                "workspace = ? AND created_at < ? AND updated_at < ? AND finalized_at IS NULL"
                " AND lease_expires_at IS NULL AND head_seq IS NULL"
            )
            c.execute(
                "INSERT INTO phase_changes (workspace, session_id, number, from_phase, to_phase, at, made_by)"
                " SELECT workspace, id, (SELECT COALESCE(MAX(number), 0) + 1 FROM phase_changes p"
                " WHERE p.workspace = sessions.workspace AND p.session_id = sessions.id),"
                f" phase, 'abandoned', ?, ? FROM sessions WHERE {idle}",
                (now, USER, w.WORKSPACE, cutoff, cutoff),
            )
            abandoned = c.execute(
                "UPDATE sessions SET phase = 'abandoned', resume_ready = FALSE, finalized_at = ?, updated_at = ?"
                f" WHERE {idle}",
                (now, now, w.WORKSPACE, cutoff, cutoff),
            ).rowcount
            return deleted + int(abandoned)

    def _delete_final(self, c: Connection, cutoff: int, now: int) -> int:
        """Conversations of which everything is old and final, and that no fork reads through to."""
        gone = c.execute(
            "SELECT conversation_id FROM sessions AS s WHERE workspace = ? AND created_at < ?"
            " AND finalized_at < ? AND NOT EXISTS (SELECT 1 FROM sessions o"
            " WHERE o.workspace = s.workspace AND o.conversation_id = s.conversation_id"
            " AND (o.finalized_at IS NULL OR o.finalized_at >= ? OR o.lease_expires_at IS NOT NULL))"
            " AND NOT EXISTS (SELECT 1 FROM conversations f"
            " WHERE f.workspace = s.workspace AND f.parent_id = s.conversation_id)",
            (w.WORKSPACE, cutoff, cutoff, cutoff),
        ).fetchall()
        keys = [(w.WORKSPACE, row[0]) for row in gone]
        c.executemany(
            "INSERT INTO tombstones (workspace, provider, provider_session_id, removed_at)"
            " SELECT workspace, provider, id, ? FROM provider_sessions WHERE (workspace, session_id) IN"
            " (SELECT workspace, id FROM sessions WHERE workspace = ? AND conversation_id = ?)",
            [(now, *key) for key in keys],
        )
        for table in ("events", "attempts", "late_reports", "messages", "turns", "history_changes"):
            c.executemany(f"DELETE FROM {table} WHERE workspace = ? AND conversation_id = ?", keys)
        c.executemany(
            "DELETE FROM provider_sessions WHERE retired_at IS NULL AND (workspace, session_id) IN"
            " (SELECT workspace, id FROM sessions WHERE workspace = ? AND conversation_id = ?)",
            keys,
        )
        c.executemany("DELETE FROM sessions WHERE workspace = ? AND conversation_id = ?", keys)
        c.executemany("DELETE FROM conversations WHERE workspace = ? AND id = ?", keys)
        return len(keys)

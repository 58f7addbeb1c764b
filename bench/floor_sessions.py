"""Owns the floor for sessions: by hand, with sqlite3 alone, into Holdfast's own tables."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from bench import workload as w
from holdfast.processes.owners import this_user

#: who is put down for a change, and for which keys of the metadata
USER = this_user()
PATCHED = json.dumps({"metadata": sorted(w.PATCH)}, separators=(",", ":"))
FINAL = ("completed", "failed", "abandoned")

#: all that is known of a session
SESSION = (
    "id, conversation_id, agent, kind, purpose, name, provider, phase, resume_ready, metadata, error_count,"
    " last_error, last_error_at, created_at, updated_at, finalized_at, summary, parent_session_id, input_tokens,"
    " cached_input_tokens, output_tokens, cost_usd, project"
)

Row = tuple[Any, ...]


def wall_clock() -> int:
    return time.time_ns() // 1000


class Connection(Protocol):
    """What a sqlite3 connection offers, and a wrapped psycopg one."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Any: ...

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]], /) -> Any: ...

    def close(self) -> None: ...


class FloorSessions:
    """``/*lock*/`` is a comment to SQLite, which locks everything, and a row lock for PostgreSQL."""

    def __init__(
        self, connection: Connection, clock: Callable[[], int] = wall_clock, *, claims: int = 0
    ) -> None:
        self._c = connection
        self._clock = clock
        self._runtime_id = w.RUNTIME.id
        self._claims = claims

    def close(self) -> None:
        self._c.close()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        self._c.execute("BEGIN IMMEDIATE")
        try:
            yield self._c
        except BaseException:
            self._c.execute("ROLLBACK")
            raise
        self._c.execute("COMMIT")

    def create(self, session_id: str) -> None:
        now = self._clock()
        conversation_id = w.conversation_of(session_id)
        with self._transaction() as c:
            c.execute(
                "INSERT INTO conversations (workspace, id, revision, generation, next_seq, created_at)"
                " VALUES (?, ?, 0, 0, 1, ?)",
                (w.WORKSPACE, conversation_id, now),
            )
            c.execute(
                "INSERT INTO sessions (workspace, id, conversation_id, agent, kind, purpose, phase,"
                " resume_ready, metadata, created_at, updated_at)"
                " VALUES (?, ?, ?, ?, 'delegated', ?, 'initializing', FALSE, ?, ?, ?)",
                (
                    w.WORKSPACE,
                    session_id,
                    conversation_id,
                    w.AGENT,
                    w.PURPOSE,
                    json.dumps(w.METADATA),
                    now,
                    now,
                ),
            )

    def update(self, session_id: str) -> None:
        now = self._clock()
        with self._transaction() as c:
            phase, metadata = self._open_session(c, session_id)
            merged = json.dumps(json.loads(metadata) | w.PATCH)
            c.execute(
                "UPDATE sessions SET phase = 'planning', resume_ready = TRUE, metadata = ?, updated_at = ?"
                " WHERE workspace = ? AND id = ?",
                (merged, now, w.WORKSPACE, session_id),
            )
            if phase != "planning":
                self._record_phase(c, session_id, phase, "planning", now, PATCHED)

    def finalize(self, session_id: str) -> None:
        now = self._clock()
        with self._transaction() as c:
            row = c.execute(
                "SELECT phase, head_seq, conversation_id FROM sessions WHERE workspace = ? AND id = ? /*lock*/",
                (w.WORKSPACE, session_id),
            ).fetchone()
            if row[0] in FINAL:
                raise RuntimeError("the session is closed")
            c.execute(
                "UPDATE sessions SET phase = 'completed', resume_ready = FALSE, updated_at = ?,"
                " finalized_at = ?, summary = ? WHERE workspace = ? AND id = ?",
                (now, now, w.SUMMARY, w.WORKSPACE, session_id),
            )
            self._record_phase(c, session_id, row[0], "completed", now)
            if row[1] is not None:
                self._cancel_turns(c, session_id, row[2], now)

    def _open_session(self, c: Connection, session_id: str) -> tuple[str, str]:
        phase, metadata = c.execute(
            "SELECT phase, metadata FROM sessions WHERE workspace = ? AND id = ? /*lock*/",
            (w.WORKSPACE, session_id),
        ).fetchone()
        if phase in FINAL:
            raise RuntimeError("the session is closed")
        return phase, metadata

    def _record_phase(
        self, c: Connection, session_id: str, before: str, after: str, now: int, change: str | None = None
    ) -> None:
        c.execute(
            "INSERT INTO phase_changes (workspace, session_id, number, from_phase, to_phase, at, made_by, change)"
            " SELECT ?, ?, COALESCE(MAX(number), 0) + 1, ?, ?, ?, ?, ?"
            " FROM phase_changes WHERE workspace = ? AND session_id = ?",
            (w.WORKSPACE, session_id, before, after, now, USER, change, w.WORKSPACE, session_id),
        )

    def _cancel_turns(self, c: Connection, session_id: str, conversation_id: str, now: int) -> None:
        key = (now, w.WORKSPACE, conversation_id, session_id)
        c.execute(
            "UPDATE turns SET status = 'cancelled', failure_class = 'cancelled', ended_at = ?"
            " WHERE workspace = ? AND conversation_id = ? AND session_id = ?"
            " AND status IN ('queued', 'waiting')",
            key,
        )
        c.execute(
            "UPDATE turns SET cancel_requested_at = COALESCE(cancel_requested_at, ?)"
            " WHERE workspace = ? AND conversation_id = ? AND session_id = ?"
            " AND status IN ('claimed', 'running')",
            key,
        )
        self._promote_head(c, session_id, conversation_id, now)

    def get(self, session_id: str) -> Row:
        row: Row = self._c.execute(
            f"SELECT {SESSION} FROM sessions WHERE workspace = ? AND id = ?",
            (w.WORKSPACE, session_id),
        ).fetchone()
        return (*row, json.loads(row[9]))

    def should_resume(self, session_id: str) -> bool:
        row = self._c.execute(
            "SELECT phase, resume_ready, error_count, updated_at FROM sessions WHERE workspace = ? AND id = ?",
            (w.WORKSPACE, session_id),
        ).fetchone()
        return bool(
            row is not None
            and row[0] in ("approval", "investigating", "planning")
            and row[1]
            and row[2] < 3
            and self._clock() - row[3] < 1_800_000_000
        )

    def list_newest(self, limit: int) -> list[Row]:
        rows = self._c.execute(
            f"SELECT {SESSION} FROM sessions WHERE workspace = ? ORDER BY created_at DESC, id DESC LIMIT ?",
            (w.WORKSPACE, limit + 1),
        ).fetchall()
        return [(*row, json.loads(row[9])) for row in rows]

    def _promote_head(self, c: Connection, session_id: str, conversation_id: str, now: int) -> None:
        row = c.execute(
            "SELECT seq, provider, runtime_id, priority, not_before, status FROM turns INDEXED BY open_turns"
            " WHERE workspace = ? AND conversation_id = ? AND session_id = ?"
            " AND status IN ('queued', 'claimed', 'running', 'waiting') ORDER BY seq LIMIT 1",
            (w.WORKSPACE, conversation_id, session_id),
        ).fetchone()
        head: Row = (None, None, None, None, None, None)
        if row is not None:
            delayed = row[4] is not None and row[4] > now
            ready = now if row[5] == "queued" and not delayed else None
            head = (row[0], row[1], row[2] or "", row[3], ready, row[4] if delayed else None)
        c.execute(
            "UPDATE sessions SET head_seq = ?, head_provider = ?, head_runtime_id = ?, head_priority = ?,"
            " ready_at = ?, wake_at = ? WHERE workspace = ? AND id = ?",
            (*head, w.WORKSPACE, session_id),
        )

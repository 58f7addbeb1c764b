"""Owns the past: databases with long histories and many sessions, made row by row from real ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench import workload as w
from bench.floor import Floor
from bench.floor_sessions import Connection

#: what ``n`` stands for in the expressions given to ``multiply``
_NUMBERS = (
    "WITH RECURSIVE numbers(n) AS (SELECT CAST(? AS BIGINT) UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)"
)


def multiply(
    connection: Connection, table: str, where: str, first: int, last: int, changes: Mapping[str, str]
) -> None:
    """Copy the rows that ``where`` selects once for each ``n``; ``changes`` are SQL expressions of ``n``."""
    if last < first:
        return
    columns = [column[0] for column in connection.execute(f"SELECT * FROM {table} LIMIT 0").description]
    values = ", ".join(changes.get(column, column) for column in columns)
    connection.execute(
        f"INSERT INTO {table} ({', '.join(columns)}) {_NUMBERS} "
        f"SELECT {values} FROM {table} CROSS JOIN numbers WHERE {where}",
        (first, last),
    )


def session_with_turns(floor: Floor, turns: int) -> str:
    """A session whose turns all went through the queue; its pointer is resumable."""
    session_id = w.new_session_id()
    floor.create(session_id)
    floor.update(session_id)
    floor.queue_turn(session_id)
    grow(floor.connection, session_id, turns)
    return session_id


def grow(c: Connection, session_id: str, turns: int) -> None:
    """Turn 1 again and again, up to ``turns`` of them, as the queue would have left them."""
    conversation_id = w.conversation_of(session_id)
    first_turn = f"conversation_id = '{conversation_id}' AND seq = 1"
    c.execute("BEGIN IMMEDIATE")
    multiply(c, "turns", first_turn, 2, turns, {"seq": "n", "created_at": "created_at + n"})
    multiply(c, "messages", first_turn, 2, turns, {"seq": "n"})
    multiply(
        c, "attempts", first_turn, 2, turns,
        {
            "seq": "n", "fence": "n", "claim_key": "claim_key || '-' || n", "seen": "'1-' || n",
            "decision": "'resume'", "reason": "'resumable'", "evidence": "'[]'",
        },
    )  # fmt: skip
    _set_length(c, session_id, turns)
    c.execute("COMMIT")


def shrink(c: Connection, session_id: str, turns: int) -> None:
    """Back to ``turns`` turns and no forks, whatever has happened since."""
    conversation_id = w.conversation_of(session_id)
    c.execute("BEGIN IMMEDIATE")
    for table in ("attempts", "messages", "turns"):
        c.execute(f"DELETE FROM {table} WHERE conversation_id = ? AND seq > ?", (conversation_id, turns))
    c.execute("DELETE FROM pointers WHERE fork_seq IS NOT NULL")
    c.execute("DELETE FROM sessions WHERE parent_session_id = ?", (session_id,))
    c.execute("DELETE FROM conversations WHERE parent_id = ?", (conversation_id,))
    _set_length(c, session_id, turns)
    c.execute("COMMIT")


def _set_length(c: Connection, session_id: str, turns: int) -> None:
    conversation_id = w.conversation_of(session_id)
    seen = "1" if turns == 1 else f"1-{turns}"
    c.execute("UPDATE conversations SET next_seq = ? WHERE id = ?", (turns + 1, conversation_id))
    c.execute("UPDATE sessions SET fence = ? WHERE id = ?", (turns, session_id))
    c.execute("UPDATE pointers SET seen = ? WHERE session_id = ?", (seen, session_id))


def many_sessions(path: Path, count: int) -> None:
    """A file with ``count`` sessions, made a second apart."""
    floor = Floor.on_sqlite(path, synchronous="OFF")
    session_id = w.new_session_id()
    floor.create(session_id)
    c = floor.connection
    c.execute("BEGIN IMMEDIATE")
    multiply(c, "conversations", "TRUE", 2, count, {"id": "printf('conv-20260108-180530-m%07x', n)"})
    multiply(
        c, "sessions", "TRUE", 2, count,
        {
            "id": "printf('agent-20260108-180530-m%07x', n)",
            "conversation_id": "printf('conv-20260108-180530-m%07x', n)",
            "created_at": "created_at + n * 1000000",
            "updated_at": "updated_at + n * 1000000",
        },
    )  # fmt: skip
    c.execute("COMMIT")
    c.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    floor.close()


def old_sessions(path: Path, count: int) -> None:
    """``count`` sessions with two turns each; every second one is final, the others are idle."""
    floor = Floor.on_sqlite(path, synchronous="OFF")
    for number in range(count):
        session_id = w.new_session_id()
        floor.create(session_id)
        floor.queue_turn(session_id)
        floor.record_turn(session_id)
        if number % 2 == 0:
            floor.finalize(session_id)
    floor.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    floor.close()

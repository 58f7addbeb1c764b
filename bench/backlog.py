"""Owns a backlog: many sessions with turns that wait, made row by row from a real one, on either engine."""

from __future__ import annotations

from dataclasses import dataclass

from bench import workload as w
from bench.floor import Floor
from bench.floor_sessions import Connection
from bench.seed import multiply

_ID = "'{prefix}-20260108-180530-' || CAST(20000000 + n AS TEXT)"
_SESSION_ID = _ID.format(prefix="agent")
_CONVERSATION_ID = _ID.format(prefix="conv")


#: sessions that nobody works on; whatever waits in the others waits behind their head
_FREE = "conversation_id IN (SELECT conversation_id FROM sessions WHERE ready_at IS NOT NULL)"


@dataclass(frozen=True, slots=True)
class Backlog:
    sessions: int
    turns: int  #: that wait in each session that is free
    leased: int = 0  #: sessions whose only turn somebody else works on

    @property
    def in_all(self) -> int:
        return (self.sessions - self.leased) * self.turns

    def fill(self, floor: Floor) -> None:
        """An empty store. The sessions became ready one after the other."""
        template = w.new_session_id()
        floor.create(template)
        floor.enqueue(template)
        c = floor.connection
        c.execute("BEGIN IMMEDIATE")
        self._add_sessions(c)
        c.execute("COMMIT")
        for _ in range(self.leased):
            floor.claim()
        c.execute("BEGIN IMMEDIATE")
        for table in ("turns", "messages"):
            multiply(c, table, _FREE, 2, self.turns, {"seq": "n"})
        c.execute(
            f"UPDATE conversations SET next_seq = ? WHERE {_FREE.replace('conversation_', '', 1)}",
            (self.turns + 1,),
        )
        c.execute("COMMIT")
        c.execute("ANALYZE")

    def _add_sessions(self, c: Connection) -> None:
        for table, changes in {
            "conversations": {"id": _CONVERSATION_ID},
            "sessions": {
                "id": _SESSION_ID, "conversation_id": _CONVERSATION_ID, "created_at": "created_at + n",
                "ready_at": "ready_at + n",
            },
            "turns": {"session_id": _SESSION_ID, "conversation_id": _CONVERSATION_ID},
            "messages": {"conversation_id": _CONVERSATION_ID},
        }.items():  # fmt: skip
            multiply(c, table, "TRUE", 2, self.sessions, changes)

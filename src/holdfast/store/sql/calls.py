"""Owns calls that happen once: a caller that lost the reply gets the same answer again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from holdfast.clock import after
from holdfast.store.sql.scope import Scope
from holdfast.store.wire import Coder

# on PostgreSQL this waits for the same call, if that is still going on
BEGIN = "INSERT INTO calls (workspace, key, at) VALUES (:ws, :key, :now) ON CONFLICT DO NOTHING"
ANSWER = "SELECT answer FROM calls WHERE workspace = :ws AND key = :key"
END = "UPDATE calls SET answer = :answer WHERE workspace = :ws AND key = :key"
FORGET = """
DELETE FROM calls WHERE workspace = :ws AND key IN (
    SELECT key FROM calls WHERE workspace = :ws AND at < :cutoff ORDER BY at LIMIT 8)"""

#: nobody asks for a reply that was lost so long ago
KEPT_SECONDS = 3600.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    key: str
    answer: Coder

    def once(self, s: Scope, work: Callable[[], T]) -> T:
        if not s.run(BEGIN, key=self.key, now=s.now):
            (known,) = s.one(ANSWER, key=self.key) or (None,)
            answer: T = self.answer.decode(json.loads(known or "null"), "answer")
            return answer
        result = work()
        s.run(END, key=self.key, answer=json.dumps(self.answer.encode(result)))
        s.run(FORGET, cutoff=after(s.now, -KEPT_SECONDS))
        return result

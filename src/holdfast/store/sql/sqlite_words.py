"""Owns the full-text index on SQLite: an FTS5 table without texts, beside the turns that have their numbers in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Final

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.store.driver import Row
    from holdfast.store.sql.scope import Scope
    from holdfast.store.sql.search import Document, Question

TRIAL: Final = "CREATE VIRTUAL TABLE words USING fts5(word)"
IS_THERE: Final = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'search_words'"
MAKE: Final = (
    # the texts are in other tables: without them the index has a third of their bytes. They are folded, so the
    # plainest tokenizer is enough
    """CREATE VIRTUAL TABLE IF NOT EXISTS search_words
    USING fts5(prompt, answer, work, content = '', tokenize = 'ascii')""",
    # larger segments are written more rarely and merged less often
    "INSERT INTO search_words (search_words, rank) VALUES ('hashsize', 16777216)",
    # segments are merged less often: an import takes a seventh less time for its words, a search hardly more
    "INSERT INTO search_words (search_words, rank) VALUES ('automerge', 16)",
    # a search reads this for every match, and nothing else of the turn
    """CREATE INDEX IF NOT EXISTS turns_in_search
    ON turns (search_id, session_id, provider, ended_at, created_at) WHERE search_id IS NOT NULL""",
)
NEWEST: Final = "SELECT rowid FROM search_words ORDER BY rowid DESC LIMIT 1"
LIVING: Final = "SELECT COUNT(*) FROM turns INDEXED BY turns_in_search WHERE search_id IS NOT NULL"
EMPTY: Final = (
    "INSERT INTO search_words (search_words) VALUES ('delete-all')",
    "UPDATE turns SET search_id = NULL WHERE search_id IS NOT NULL",
    "UPDATE conversations SET indexed_next = 1 WHERE indexed_next > 1",
)
ADD: Final = (
    "INSERT INTO search_words (rowid, prompt, answer, work) VALUES (:search_id, :prompt, :answer, :work)"
)
KEEP_NUMBER: Final = """
UPDATE turns SET search_id = :search_id
WHERE workspace = :ws AND conversation_id = :conversation_id AND seq = :seq"""
_AT: Final = "COALESCE(t.ended_at, t.created_at)"

#: texts that changed or were removed leave their words in the index, under numbers that no turn has. The index is
#: made anew when more of its numbers than this, and more than half of them, are such
MOST_DEAD: Final = 1000


class SqliteWords:
    """See ``WordIndex``."""

    def is_ready(self, s: Scope) -> bool:
        return s.one(IS_THERE) is not None and require_fts5()

    def prepare(self, s: Scope) -> None:
        require_fts5()
        if s.one(IS_THERE) is None:
            for statement in MAKE:
                s.run(statement)
        (newest,) = s.one(NEWEST) or (0,)
        (living,) = s.one(LIVING) or (0,)
        if newest // 2 - living > max(living, MOST_DEAD):
            for statement in EMPTY:
                s.run(statement)

    def add(self, s: Scope, documents: Sequence[Document]) -> None:
        (newest,) = s.one(NEWEST) or (0,)
        rows = [
            {
                "search_id": 2 * number + one.is_open, "conversation_id": one.conversation_id, "seq": one.seq,
                "prompt": one.prompt, "answer": one.answer, "work": one.work,
            }
            for number, one in zip(count(newest // 2 + 1), documents, strict=False)
        ]  # fmt: skip
        s.run_many(ADD, rows)
        s.run_many(KEEP_NUMBER, rows)

    def forget(self, s: Scope, conversation_id: str, first: int, last: int) -> None:
        """Not needed: words whose number no turn has are not found."""

    def find(self, s: Scope, question: Question, limit: int) -> list[Row]:
        more, given = question.conditions(session_id="t.session_id", provider="t.provider", at=_AT)
        # CROSS JOIN: the index of words comes first
        return s.all(
            f"""
SELECT t.conversation_id, t.seq, t.session_id, t.provider, {_AT}
FROM search_words CROSS JOIN turns t INDEXED BY turns_in_search ON t.search_id = search_words.rowid
WHERE search_words MATCH :words AND t.workspace = :ws{more}
ORDER BY bm25(search_words, 3.0, 2.0, 1.0), {_AT} DESC, t.search_id DESC LIMIT :limit""",
            # in quotes a phrase is words and nothing else
            words=(" AND " if question.all_words else " OR ").join(f'"{p}"' for p in question.phrases),
            limit=limit,
            **given,
        )


@cache
def require_fts5() -> bool:
    with closing(sqlite3.connect(":memory:")) as trial:
        try:
            trial.execute(TRIAL)
        except sqlite3.OperationalError:
            raise ConfigError(
                "search",
                f"this Python's SQLite ({sqlite3.sqlite_version}) was built without FTS5, its full-text index: run "
                "Holdfast with another Python, such as the one of python.org or uv, or keep the sessions in PostgreSQL",
            ) from None
    return True

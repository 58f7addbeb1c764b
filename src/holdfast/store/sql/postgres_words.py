"""Owns the full-text index on PostgreSQL: the words of turns as ``tsvector``, by the configuration ``simple``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holdfast.store.driver import Row
    from holdfast.store.sql.scope import Scope
    from holdfast.store.sql.search import Document, Question

#: bytes of a piece: a tsvector has less than 1 MiB, and counts positions up to 16,383
PIECE: Final = 64 * 1024
#: matches that are ranked, the newest: ranking reads the words of each, and takes 50 µs
MOST_RANKED: Final = 1000

FORGET: Final = """
DELETE FROM search_words
WHERE workspace = :ws AND conversation_id = :conversation_id AND seq >= :first AND seq <= :last"""
ADD: Final = """
INSERT INTO search_words (workspace, conversation_id, seq, piece, session_id, provider, at, words)
VALUES (:ws, :conversation_id, :seq, :piece, :session_id, :provider, :at,
    setweight(to_tsvector('simple', CAST(:prompt AS TEXT)), 'A')
        || setweight(to_tsvector('simple', CAST(:answer AS TEXT)), 'B')
        || setweight(to_tsvector('simple', CAST(:work AS TEXT)), 'D'))"""
MARK: Final = """
UPDATE turns SET search_id = :search_id WHERE workspace = :ws AND conversation_id = :conversation_id AND seq = :seq"""
_WEIGHTS: Final = "'{0.33, 0.33, 0.67, 1.0}'"


class PostgresWords:
    """See ``WordIndex``."""

    def is_ready(self, s: Scope) -> bool:  # noqa: ARG002 - the contract's signature
        return True

    def prepare(self, s: Scope) -> None:
        """Nothing is needed."""

    def add(self, s: Scope, documents: Sequence[Document]) -> None:
        for one in documents:
            turn: dict[str, object] = {"conversation_id": one.conversation_id, "seq": one.seq}
            # an open turn that has ended since
            s.run(FORGET, conversation_id=one.conversation_id, first=one.seq, last=one.seq)
            more = {"session_id": one.session_id, "provider": one.provider, "at": one.at}
            s.run_many(ADD, [turn | more | {"piece": n, **p} for n, p in enumerate(_pieces(one))])
            s.run(MARK, search_id=int(one.is_open), **turn)

    def forget(self, s: Scope, conversation_id: str, first: int, last: int) -> None:
        s.run(FORGET, conversation_id=conversation_id, first=first, last=last)

    def find(self, s: Scope, question: Question, limit: int) -> list[Row]:
        names = [f"phrase_{_letters(n)}" for n in range(len(question.phrases))]
        given: dict[str, object] = dict(zip(names, question.phrases, strict=True))
        queries = [f"phraseto_tsquery('simple', CAST(:{name} AS TEXT))" for name in names]
        some = f"({' || '.join(queries)})"
        more, filters = question.conditions(session_id="session_id", provider="provider", at="at")
        if question.all_words:
            first, *others = queries
            which = f"words @@ {first}" + "".join(map(_in_another_piece, others))
            rank = f"MAX(ts_rank({_WEIGHTS}, w.words, {some}, 1))"
        else:
            which = f"words @@ {some}"
            rank = self._by_rarity(s, queries, given, some)
        return s.all(
            f"""
WITH newest AS MATERIALIZED (
    SELECT conversation_id, seq, session_id, provider, at FROM search_words
    WHERE workspace = :ws AND {which}{more}
    ORDER BY at DESC, conversation_id, seq LIMIT :ranked)
SELECT n.conversation_id, n.seq, n.session_id, n.provider, n.at
FROM newest n JOIN search_words w
    ON w.workspace = :ws AND w.conversation_id = n.conversation_id AND w.seq = n.seq
GROUP BY n.conversation_id, n.seq, n.session_id, n.provider, n.at
ORDER BY {rank} DESC, n.at DESC, n.conversation_id DESC, n.seq DESC LIMIT :limit""",
            limit=limit,
            ranked=MOST_RANKED,
            **given,
            **filters,
        )

    def _by_rarity(self, s: Scope, queries: Sequence[str], given: dict[str, object], some: str) -> str:
        """PostgreSQL ranks without knowing how rare a word is: each word that is there counts by its rarity first."""
        counts = [
            f"(SELECT COUNT(*) FROM search_words WHERE workspace = :ws AND words @@ {query})"
            for query in queries
        ]
        found = s.one(f"SELECT {', '.join(counts)}", **given) or ()
        parts = []
        for name, query, number in zip([*given], queries, found, strict=True):
            given[name.replace("phrase", "worth")] = 1.0 / (1 + int(number))
            worth = f"CAST(:{name.replace('phrase', 'worth')} AS DOUBLE PRECISION)"
            parts.append(f"CASE WHEN bool_or(w.words @@ {query}) THEN {worth} ELSE 0 END")
        return f"{' + '.join(parts)} DESC, MAX(ts_rank({_WEIGHTS}, w.words, {some}, 1))"


def _in_another_piece(query: str) -> str:
    """The words of a long turn may be in several of its pieces."""
    return f"""
        AND (conversation_id, seq) IN (
            SELECT o.conversation_id, o.seq FROM search_words o WHERE o.workspace = :ws AND o.words @@ {query})"""


def _letters(number: int) -> str:
    """Names of parameters have no digits."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


def _pieces(document: Document) -> Iterator[dict[str, object]]:
    """The columns of one piece after the other; at least one."""
    parts = {"prompt": document.prompt, "answer": document.answer, "work": document.work}
    made: dict[str, object] = dict.fromkeys(parts, "")
    room = PIECE
    for name, text in parts.items():
        for chunk in _chunks(text):
            size = len(chunk.encode())
            if size > room and room < PIECE:
                yield made
                made, room = dict.fromkeys(parts, ""), PIECE
            made[name] = f"{made[name]} {chunk}"
            room -= size
    yield made


def _chunks(text: str) -> Iterator[str]:
    """Cut at spaces; a folded word is shorter than a chunk."""
    step = PIECE // 4 if not text.isascii() else PIECE
    start = 0
    while start < len(text):
        end = start + step
        if end < len(text):
            end = text.rfind(" ", start, end) + 1 or end
        yield text[start:end]
        start = end

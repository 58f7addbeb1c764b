"""Owns searching the turns: which of them are not in the full-text index, their words, and what a search finds.

A turn is committed without its words. Every conversation knows from which turn on they may be missing, and a search
adds them first. The index itself is the engine's: see ``WordIndex``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from holdfast.clock import Instant
from holdfast.domain.events import EventKind
from holdfast.domain.records import record
from holdfast.domain.search import (
    FoundIn,
    Highlighter,
    SearchHit,
    SearchPage,
    SearchRequest,
    fold,
    words_of_event,
)
from holdfast.domain.turns import TurnStatus
from holdfast.errors import ConfigError
from holdfast.store.driver import Row
from holdfast.store.sql import json_text
from holdfast.store.sql.rows import readable
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.sessions import AFTER_ALL, DIRECTORY
from holdfast.store.sql.tables import EVENTS, MISREAD, SESSIONS, TEXT, Columns
from holdfast.store.sql.turns import newest_text

#: how long a search adds to the index before it searches
SECONDS: Final = 2.0
#: how long others wait for one transaction that does so
TRANSACTION_SECONDS: Final = 0.25
#: turns that are ranked
MOST_RANKED: Final = 1000
_STEP: Final = 32
_EVENTS: Final = 256
#: of all calls, results and intermediate texts of one turn
_WORK_CHARACTERS: Final = 8 * 1024 * 1024
_PURPOSE: Final = 200

_OPEN: Final = frozenset(status.value for status in TurnStatus if status.is_open)
#: of ``turns t``: it is not in the index, or with its prompt only although it has ended
_IS_MISSING = f"""t.dropped IS NULL AND (t.search_id IS NULL
    OR (t.search_id % 2 = 1 AND t.status NOT IN ({", ".join(f"'{status}'" for status in sorted(_OPEN))})))"""
# one count for each such conversation, and most searches find none: a join would read all turns
_HOW_MANY = f"""(SELECT COUNT(*) FROM turns t
    WHERE t.workspace = c.workspace AND t.conversation_id = c.id AND t.seq >= c.indexed_next AND {_IS_MISSING})"""
_UNFINISHED = "FROM conversations c WHERE c.workspace = :ws AND c.indexed_next < c.next_seq"
IS_ANY_MISSING = f"SELECT 1 {_UNFINISHED} AND {_HOW_MANY} > 0 LIMIT 1"
COUNT_MISSING = f"SELECT CAST(COALESCE(SUM({_HOW_MANY}), 0) AS BIGINT) {_UNFINISHED}"
# the newest first; what another search or a turn is working on at this moment is left to the next search
UNFINISHED = """
SELECT id, indexed_next, next_seq FROM conversations
WHERE workspace = :ws AND indexed_next < next_seq AND id < :below
ORDER BY id DESC LIMIT :limit FOR UPDATE SKIP LOCKED"""
LOCK = "SELECT indexed_next, next_seq FROM conversations WHERE workspace = :ws AND id = :id FOR UPDATE"
FINISHED = "UPDATE conversations SET indexed_next = :next WHERE workspace = :ws AND id = :id"
FIRST_OPEN = f"""
SELECT MIN(seq) FROM turns
WHERE workspace = :ws AND conversation_id = :id AND seq >= :first AND dropped IS NULL
    AND status IN ({", ".join(f"'{status}'" for status in sorted(_OPEN))})"""
_TURN = f"""
SELECT conversation_id, seq, session_id, provider, COALESCE(ended_at, created_at), status,
    {newest_text("prompt")}, {newest_text("response")}
FROM turns t"""
MISSING = f"""{_TURN}
WHERE workspace = :ws AND conversation_id = :id AND seq >= :first AND {_IS_MISSING}
ORDER BY seq LIMIT :limit"""
FOUND = f"{_TURN} WHERE workspace = :ws AND conversation_id = :id AND seq = :seq"
_EVENT = EVENTS.pick("attempt", "number", "kind", "data")
EVENTS_OF_TURN = f"""
SELECT {_EVENT.sql} FROM events
WHERE workspace = :ws AND conversation_id = :id AND seq = :seq AND kind IN ('text', 'tool_call', 'tool_result')
    AND (attempt > :attempt OR (attempt = :attempt AND number > :number))
ORDER BY attempt, number LIMIT :limit"""
_SESSION = SESSIONS.pick("agent", "name", "purpose", "finalized_at") + Columns(
    SESSIONS.name, [(DIRECTORY, "directory", TEXT.or_null)]
)
SESSION = f"SELECT {_SESSION.sql} FROM sessions WHERE workspace = :ws AND id = :id"
# as in ``retention``: where no project is recorded, the directories that a session worked in count instead
IN_PROJECT = """
SELECT s.id FROM sessions s
LEFT JOIN pointers p ON p.workspace = s.workspace AND p.session_id = s.id AND s.project IS NULL
WHERE s.workspace = :ws AND (COALESCE(s.project, p.work_dir) = :project
    OR SUBSTR(COALESCE(s.project, p.work_dir), 1, LENGTH(CAST(:below AS TEXT))) = :below)"""
OF_AGENT = "SELECT id FROM sessions WHERE workspace = :ws AND agent = :agent"


@record
class Document:
    """The folded words of one turn, and what a search tells turns apart by."""

    conversation_id: str
    seq: int
    session_id: str
    provider: str
    at: Instant
    is_open: bool  #: then there is only its prompt
    prompt: str
    answer: str
    work: str  #: calls, results, and texts on the way


@record
class Question:
    wanted: SearchRequest
    phrases: tuple[str, ...]
    all_words: bool  #: False: any of them

    def conditions(self, *, session_id: str, provider: str, at: str) -> tuple[str, dict[str, object]]:
        """More conditions for a WHERE, by the names of these columns, and their parameters."""
        wanted = self.wanted
        sql, given = "", dict[str, object]()
        if wanted.agent is not None:
            sql += f" AND {session_id} IN ({OF_AGENT})"
            given["agent"] = wanted.agent
        if wanted.project is not None:
            sql += f" AND {session_id} IN ({IN_PROJECT})"
            below = wanted.project.rstrip("/") + "/"
            given |= {"project": below[:-1], "below": below}
        if wanted.provider is not None:
            sql += f" AND {provider} = :provider"
            given["provider"] = wanted.provider
        if wanted.since is not None:
            sql += f" AND {at} >= :since"
            given["since"] = wanted.since
        return sql, given


# --- the index ---


def is_any_missing(s: Scope) -> bool:
    return s.one(IS_ANY_MISSING) is not None


def add_missing(s: Scope, until: float, below: str = AFTER_ALL) -> str | None:
    """Add turns to the index, for one transaction: those of conversations whose id is below ``below``.

    Returns from where to continue, or None after the last one.
    """
    until = min(until, time.monotonic() + TRANSACTION_SECONDS)
    s.words.prepare(s)
    while rows := s.all(UNFINISHED, below=below, limit=_STEP):
        for conversation_id, first, next_seq in rows:
            if _add(s, conversation_id, first, next_seq, until):
                below = conversation_id
            if time.monotonic() >= until:
                return below
    return None


def add_written(s: Scope, whole: Sequence[tuple[str, int, Iterable[Document]]], rest: Sequence[str]) -> None:
    """Add what was written in this transaction: of whole conversations, each with the number of its next turn, the
    documents; what the index lacks of the ``rest`` is read again.
    """
    if not whole and not rest:
        return
    try:
        s.words.prepare(s)
    except ConfigError:
        return  # an engine without a full-text index does everything else
    documents = [document for _, _, of_one in whole for document in of_one]
    if documents:
        s.words.add(s, documents)
    s.run_many(
        FINISHED, [{"id": conversation_id, "next": next_seq} for conversation_id, next_seq, _ in whole]
    )
    for conversation_id in rest:
        first, next_seq = s.one(LOCK, id=conversation_id) or (1, 1)
        _add(s, conversation_id, first, next_seq, math.inf)


def _add(s: Scope, conversation_id: str, first: int, next_seq: int, until: float) -> bool:
    """False if there was no time for all of them."""
    while rows := s.all(MISSING, id=conversation_id, first=first, limit=_STEP):
        s.words.add(s, [document_of(row, _events(s, row)) for row in rows])
        if time.monotonic() >= until:
            return False
    (still_open,) = s.one(FIRST_OPEN, id=conversation_id, first=first) or (None,)
    s.run(FINISHED, id=conversation_id, next=next_seq if still_open is None else still_open)
    return True


def document_of(row: Row, events: Iterable[tuple[str, str]]) -> Document:
    """Make the document of one turn: ``row`` has the columns of ``_TURN``, ``events`` the kind and data of each event."""
    conversation_id, seq, session_id, provider, at, status, _, _ = row
    texts: dict[bool, list[str]] = {True: [], False: []}
    prompt, size = "", 0
    for part, text in _parts(row, events):
        if part is FoundIn.PROMPT:
            prompt = fold(text)
            continue
        is_answer = part is FoundIn.ANSWER and not texts[True]
        size += 0 if is_answer else len(text)
        if size > _WORK_CHARACTERS:
            break
        texts[is_answer].append(fold(text))
    return Document(
        conversation_id, seq, session_id, provider, at, status in _OPEN, prompt, " ".join(texts[True]),
        " ".join(texts[False]),
    )  # fmt: skip


def _parts(row: Row, events: Iterable[tuple[str, str]]) -> Iterator[tuple[FoundIn, str]]:
    """The texts of a turn. Of one that is open, only its prompt is searched: the rest still grows."""
    *_, status, prompt, response = row
    yield FoundIn.PROMPT, _text(prompt)
    if status in _OPEN:
        return
    answer = _text(response)
    yield FoundIn.ANSWER, answer
    for kind, data in events:
        try:
            found = words_of_event(EventKind(kind), json_text.decode_object(data))
        except MISREAD:
            continue  # damaged: it has no words
        if found is None:
            continue
        part, text = found
        # an agent's last text is its answer
        if text and not (part is FoundIn.ANSWER and text in answer):
            yield part, text


def _events(s: Scope, row: Row) -> Iterator[tuple[str, str]]:
    conversation_id, seq, *_ = row
    attempt, number = -1, 0
    while rows := s.all(
        EVENTS_OF_TURN, id=conversation_id, seq=seq, attempt=attempt, number=number, limit=_EVENTS
    ):
        for attempt, number, kind, data in rows:  # noqa: B007 - the last one is where the next page begins
            yield kind, data


def _text(stored: object) -> str:
    return stored if isinstance(stored, str) else ""


# --- searching ---


def find(s: Scope, wanted: SearchRequest, phrases: tuple[str, ...]) -> SearchPage:
    (pending,) = s.one(COUNT_MISSING) or (0,)
    all_words = True
    rows = _rows(s, Question(wanted, phrases, all_words=True))
    if not rows and len(phrases) > 1:
        rows = _rows(s, Question(wanted, phrases, all_words=False))
        all_words = not rows
    by_session: dict[str, list[Row]] = {}
    for row in rows:
        by_session.setdefault(row[2], []).append(row)
    highlighter = Highlighter(phrases)
    best = [*by_session.items()][: wanted.limit]
    hits = tuple(readable(partial(_hit, s, highlighter), [tuple(turns) for _, turns in best]))
    return SearchPage(hits, len(by_session) > len(best), all_words, pending)


def _rows(s: Scope, question: Question) -> list[Row]:
    return s.words.find(s, question, MOST_RANKED) if s.words.is_ready(s) else []


def _hit(s: Scope, highlighter: Highlighter, turns: tuple[Row, ...]) -> SearchHit:
    """Of the turns of one session, the best first. StoreCorrupt for a session that no Holdfast wrote."""
    conversation_id, seq, session_id, provider, at = turns[0]
    row = s.one(SESSION, id=session_id) or (None,)
    agent, name, purpose, finalized_at, directory = _SESSION.checked(s.where, row, session_id)
    texts = s.one(FOUND, id=conversation_id, seq=seq)
    found_in, snippet = highlighter.best(() if texts is None else _parts(texts, _events(s, texts)))
    return SearchHit(
        session_id, agent, name, purpose[:_PURPOSE], provider, finalized_at is not None, directory,
        seq, at, len(turns), found_in, snippet,
    )  # fmt: skip

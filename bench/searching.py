"""Owns the section on searching: a rare and a common word among 100 000 turns, and adding turns to the index."""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from bench import workload as w
from bench.measure import calls, interleave
from bench.ours import Ours, open_sqlite
from bench.results import Findings, Table, Target
from bench.scale import Place
from holdfast.domain.search import SearchRequest
from holdfast.engine.documents import search_document

RARE_LIMIT = 50_000.0
COMMON_LIMIT = 200_000.0
TURNS_OF_A_SESSION = 10
#: one turn in so many has the rare word; every turn has the common one
RARE_EVERY = 20_000


def measure(place: Place, found: Findings) -> None:
    folder = place.directory / "searching"
    folder.mkdir()
    path = folder / "turns.db"
    turns = place.scale.searched
    _fill(path, turns)
    before = path.stat().st_size
    store, _ = open_sqlite(path, synchronous="OFF")
    start = time.process_time()
    while store.search(SearchRequest("common")).pending:
        pass
    indexing = time.process_time() - start
    tasks = {
        word: calls(
            lambda word: json.dumps(search_document(store.search(SearchRequest(word)), None)),
            lambda count, word=word: [word] * count,  # type: ignore[misc]
        )
        for word in ("rare", "common", "src/part17/module17.py", "common rare")
    }
    series = interleave(tasks, place.scale.pace, batch=1, meter="cpu")
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    grown = path.stat().st_size / before - 1
    for word, limit in (("rare", RARE_LIMIT), ("common", COMMON_LIMIT)):
        words = f"CPU: search a {word} word among {turns} turns"
        found.targets.append(Target(words, limit / 1000, series[word].typical / 1000, "ms"))
    rows = [[word, f"{one.typical / 1000:.1f}"] for word, one in series.items()]
    found.tables.append(
        Table(
            f"CPU of a search among {turns} turns, ms",
            ("words", "Holdfast"),
            rows,
            "From the request to the last byte of its JSON, on SQLite. Every turn has the common word, and one in"
            f" {RARE_EVERY} the rare one. Adding the turns to the index took {indexing / turns * 1e6:.0f} µs of CPU"
            f" for each, once, and made the file {grown:.0%} larger.",
        )
    )


def _fill(path: Path, turns: int) -> None:
    """One recorded turn, with a call and its result, again and again with other texts."""
    subject = Ours.on_sqlite(path, synchronous="OFF")
    session_id = w.new_session_id()
    subject.create(session_id)
    subject.record_turn(session_id)
    subject.close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("BEGIN")
    tables = {
        table: _template(connection, table) for table in ("conversations", "sessions", "turns", "messages")
    }
    tables["events"] = dict.fromkeys(
        ("workspace", "conversation_id", "seq", "attempt", "number", "kind", "at", "data")
    )
    for table, template in tables.items():
        connection.execute(f"DELETE FROM {table}")
        names, values = ", ".join(template), ", ".join(f":{name}" for name in template)
        connection.executemany(
            f"INSERT INTO {table} ({names}) VALUES ({values})",
            (template | row for row in _rows(table, turns)),
        )
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def _template(connection: sqlite3.Connection, table: str) -> dict[str, object]:
    cursor = connection.execute(f"SELECT * FROM {table} LIMIT 1")
    return dict(zip([column[0] for column in cursor.description], cursor.fetchone(), strict=True))


def _rows(table: str, turns: int) -> Iterator[dict[str, object]]:
    words = random.Random(7)
    for number in range(turns // TURNS_OF_A_SESSION if table in ("conversations", "sessions") else turns):
        session = number if table in ("conversations", "sessions") else number // TURNS_OF_A_SESSION
        conversation = {"conversation_id": f"conv-20260108-180530-s{session:07x}"}
        turn = {**conversation, "seq": number % TURNS_OF_A_SESSION + 1}
        session_id = f"agent-20260108-180530-s{session:07x}"
        match table:
            case "conversations":
                yield {"id": conversation["conversation_id"], "next_seq": TURNS_OF_A_SESSION + 1}
            case "sessions":
                yield {**conversation, "id": session_id, "name": None}
            case "turns":
                at = 1_767_895_530_000_000 + number * 1_000_000
                yield {
                    **turn,
                    "session_id": session_id,
                    "created_at": at,
                    "ended_at": at,
                    "enqueue_key": None,
                }
            case "messages":
                rare = " rare" if number % RARE_EVERY == 0 else ""
                yield {**turn, "role": "prompt", "text": f"the common{rare} request: {_text(words, 20)}"}
                yield {**turn, "role": "response", "text": _text(words, 100)}
            case _:
                event = {**turn, "workspace": w.WORKSPACE, "attempt": 0, "at": 0}
                part = number % 1000
                call = {"tool": "Read", "arguments": {"file_path": f"src/part{part}/module{part}.py"}}
                yield {**event, "number": 1, "kind": "tool_call", "data": json.dumps(call)}
                result = {"output": _text(words, 200), "is_error": False}
                yield {**event, "number": 2, "kind": "tool_result", "data": json.dumps(result)}


#: a few words are in most texts, and most words are in few
_VOCABULARY = [f"w{number:x}" for number in range(20_000)]
_WEIGHTS = [*accumulate(1 / (number + 1) for number in range(20_000))]


def _text(words: random.Random, length: int) -> str:
    return " ".join(words.choices(_VOCABULARY, cum_weights=_WEIGHTS, k=length))

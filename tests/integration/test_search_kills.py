"""A search that is killed while it adds to the index loses nothing and adds nothing twice."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.domain.search import SearchRequest
from holdfast.store.open import open_store
from tests.steps import begin, run

#: adds a few turns in a transaction, says so, and is killed in the middle of the next one
SEARCH = """
import sys, time
from holdfast.domain.search import SearchRequest
from holdfast.store.open import open_store
from holdfast.store.sql import search
search._STEP, search.TRANSACTION_SECONDS = 7, 0.0
store, calls, add = open_store(sys.argv[1]), [], search.document_of
def slow(s, row):
    calls.append(row)
    if len(calls) == int(sys.argv[2]):
        print("there", flush=True)
        time.sleep(60)
    return add(s, row)
search.document_of = slow
store.search(SearchRequest("topic"))
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/holdfast.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.mark.parametrize("at", [1, 3, 8, 20])
def test_a_killed_search_is_continued_by_the_next_one(url: str, at: int) -> None:
    with closing(open_store(url, durability="normal")) as store:
        session = begin(store)
        for number in range(30):
            run(store, session, f"topic number{number}")
        killed = subprocess.Popen([sys.executable, "-c", SEARCH, url, str(at)], stdout=subprocess.PIPE)
        assert killed.stdout is not None
        with killed:
            assert killed.stdout.readline() == b"there\n"
            killed.send_signal(signal.SIGKILL)
        found = store.search(SearchRequest("topic"))
        deadline = time.monotonic() + 30
        while found.pending and time.monotonic() < deadline:
            # PostgreSQL may take longer than a search waits to notice that the client is gone, and to free its rows
            found = store.search(SearchRequest("topic"))
        assert (found.pending, [hit.turns for hit in found.hits]) == (0, [30])
        for number in range(30):
            (hit,) = store.search(SearchRequest(f"number{number}")).hits
            assert (hit.turn, hit.turns) == (number + 1, 1)

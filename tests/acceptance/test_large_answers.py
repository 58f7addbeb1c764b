"""Answers with whole texts, to many readers that take them slowly."""

import json
import socket
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from holdfast.domain.turns import NewTurn
from holdfast.engine.holdfast import Holdfast
from holdfast.store.open import open_store
from holdfast.web.admission import MOST_LARGE_OF_ONE
from tests.acceptance.served import ask, server

_MB = 1024 * 1024
_TURNS = 32


class Reader:
    """Takes the beginning of an answer, and the rest when it is told to."""

    def __init__(self, url: str, conversation: str) -> None:
        body = json.dumps({"conversation_id": conversation})
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port))
        head = (
            f"POST /v1/store/history HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._socket.sendall((head + body).encode())
        self.size = 0

    def begin(self) -> bytes:
        taken = self._socket.recv(1024)
        self.size = len(taken)
        return taken

    def end(self) -> None:
        with self._socket:
            while taken := self._socket.recv(256 * 1024):
                self.size += len(taken)


def peak_of(pid: int) -> int:
    """The most memory that a process has ever had, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


@pytest.fixture
def long_session(tmp_path: Path) -> tuple[str, str, str]:
    """The store, a session with as many megabytes as it has turns, and its conversation."""
    url = f"sqlite:///{tmp_path}/holdfast.db"
    store = open_store(url, durability="normal")
    session = Holdfast(store).create("writer", "a long history")
    for _ in range(_TURNS):
        store.enqueue_turn(session.id, NewTurn("x" * _MB, "scripted"))
    store.close()
    return url, session.id, session.conversation_id


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells a process's peak in /proc")
def test_slow_readers_of_a_long_history_take_far_less_memory_than_they_are_sent(
    long_session: tuple[str, str, str],
) -> None:
    store, _, conversation = long_session
    with server("--url", store) as (url, process):
        assert ask(url, "GET", "/readyz")[0].status == 200
        before = peak_of(process.pid)
        readers = [Reader(url, conversation) for _ in range(MOST_LARGE_OF_ONE)]
        assert all(reader.begin().startswith(b"HTTP/1.1 200") for reader in readers)
        ending = [threading.Thread(target=reader.end) for reader in readers]
        for thread in ending:
            thread.start()
        for thread in ending:
            thread.join()
        assert all(reader.size > _TURNS * _MB for reader in readers), "each got all of it"
        grown = peak_of(process.pid) - before

    sent = sum(reader.size for reader in readers)
    assert grown < sent / 2, f"{grown / _MB:.0f} MB more for {sent / _MB:.0f} MB"


def test_a_page_of_long_turns_has_fewer_and_leads_to_the_others(long_session: tuple[str, str, str]) -> None:
    store, session, _ = long_session
    with server("--url", store) as (url, _):
        turns = ask(url, "GET", f"/v1/sessions/{session}/turns?limit=32")[1]
        history = ask(url, "GET", f"/v1/sessions/{session}/history?limit=32")[1]
        after, before = turns["next_after"], history["next_before"]
        following = ask(url, "GET", f"/v1/sessions/{session}/turns?limit=32&after={after}")[1]
        preceding = ask(url, "GET", f"/v1/sessions/{session}/history?limit=32&before={before}")[1]
        last = ask(url, "GET", f"/v1/sessions/{session}/turns?limit=2&after=30")[1]
        first = ask(url, "GET", f"/v1/sessions/{session}/history?limit=2&before=3")[1]

    assert [turn["turn"] for turn in turns["turns"]] == [*range(1, after + 1)]
    assert [turn["turn"] for turn in history["turns"]] == [*range(before, 33)]
    assert 1 <= len(turns["turns"]) < 8
    assert 1 <= len(history["turns"]) < 8
    assert following["turns"][0]["turn"] == after + 1
    assert preceding["turns"][-1]["turn"] == before - 1
    assert ([turn["turn"] for turn in last["turns"]], last["next_after"]) == ([31, 32], None)
    assert ([turn["turn"] for turn in first["turns"]], first["next_before"]) == ([1, 2], None)

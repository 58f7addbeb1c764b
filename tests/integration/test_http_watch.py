"""Servers behind one address that do not know each other's marks: asked in turn, they make no worker spin."""

import threading
from collections.abc import Mapping
from itertools import cycle

import pytest

from holdfast.store import http_store
from holdfast.store.http_store import HttpWatch

PATIENCE = 30.0


def test_the_second_answer_of_a_stranger_is_kept_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_store, "_STRANGE_SECONDS", 3600.0)
    asked = threading.Semaphore(0)
    servers = cycle(("one-1", "other-1"))

    def ask(query: Mapping[str, str], _trace: object) -> dict[str, object]:
        asked.release()
        return {"mark": next(servers), "news": "mark" in query}

    watch = HttpWatch(ask, "http://fleet.example")
    assert watch.wait(PATIENCE), "it may have missed something"
    for _ in range(2):
        asked.acquire()
    told: list[bool] = []
    waiting = threading.Thread(target=lambda: told.append(watch.wait(PATIENCE)))
    waiting.start()
    assert asked.acquire(timeout=PATIENCE)
    watch.close()
    waiting.join(PATIENCE)

    assert told == [False]
    assert not asked.acquire(blocking=False), "it asked again at once"

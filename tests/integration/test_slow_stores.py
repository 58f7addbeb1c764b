"""A store that takes its time holds up nobody but those who asked it."""

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from holdfast.clock import Instant
from holdfast.store.http_store import open_http
from holdfast.store.open import open_store
from holdfast.store.sql_store import SqlStore
from tests.acceptance.served import ask
from tests.contract.served import Served, serving


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as running:
        yield running


def test_others_are_answered_while_a_store_is_busy(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = threading.Event()
    with closing(open_store("sqlite:///:memory:")) as behind:
        assert isinstance(behind, SqlStore)
        room, slow = served.room_in(behind)
        now = slow.now

        def wait_and_tell() -> Instant:
            assert opened.wait(30)
            return now()

        monkeypatch.setattr(slow, "now", wait_and_tell)
        told: list[Instant] = []
        with closing(open_http(served.url, room, None)) as store:
            waiting = threading.Thread(target=lambda: told.append(store.now()))
            waiting.start()
            for _ in range(3):
                assert ask(served.url, "GET", "/healthz")[0].status == 200
            assert told == []
            opened.set()
            waiting.join()

    assert told

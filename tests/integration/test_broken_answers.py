"""A long answer whose store fails on the way: whoever reads it sees that it is not whole."""

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.domain.turns import NewTurn
from holdfast.errors import StoreUnavailable
from holdfast.store import sql_store
from holdfast.store.open import open_store
from holdfast.store.sql_store import IN_PARTS
from tests.contract.conftest import MEMORY
from tests.contract.served import serving
from tests.steps import begin

_TEXT = "x" * 300_000


def test_an_answer_that_breaks_off_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    behind = open_store(MEMORY)
    session = begin(behind)
    for _ in range(8):
        behind.enqueue_turn(session.id, NewTurn(_TEXT, "scripted"))
    expected, read, times = behind.history(session.conversation_id), IN_PARTS["history"], list[int]()

    def breaking(*args: Any, **kwargs: Any) -> Iterator[tuple[Any, ...]]:
        times.append(0)
        for number, part in enumerate(read(*args, **kwargs)):
            if number == 4 and len(times) == 1:
                raise StoreUnavailable("there", "away for the moment")
            yield part

    monkeypatch.setattr(sql_store, "IN_PARTS", {**IN_PARTS, "history": breaking})
    with serving() as served:
        store = served.store_for(behind)
        assert store.history(session.conversation_id) == expected
        store.close()
    behind.close()

    assert len(times) == 2
    assert "a long answer breaks off" in caplog.text
    assert "Traceback" not in caplog.text
    assert "RuntimeError" not in caplog.text

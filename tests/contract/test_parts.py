"""A long answer that is read in parts is the verb's own answer, on every engine."""

from itertools import chain
from typing import Any

import pytest

from holdfast.store import pages, sql_store
from holdfast.store.contract import Store
from holdfast.store.sql_store import SqlStore
from tests.builders import a_session_id, an_event
from tests.contract.served import behind_http
from tests.contract.test_history import prompts
from tests.steps import begin, claim, enqueue, join, run


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_FIRST", 1)
    monkeypatch.setattr(pages, "_LARGEST", 2)
    monkeypatch.setattr(sql_store, "PART_EVENTS", 2)


def read(store: Store, verb: str, **arguments: Any) -> list[tuple[Any, ...]]:
    behind = behind_http(store)
    assert isinstance(behind, SqlStore)
    return [*behind.in_parts(verb, arguments)]


def whole(store: Store, verb: str, **arguments: Any) -> tuple[Any, ...]:
    return tuple(chain.from_iterable(read(store, verb, **arguments)))


def a_long_conversation(store: Store) -> dict[str, Any]:
    """Ten turns, of two agents, forked; some were edited, some were dropped, some wait."""
    parent = begin(store)
    other = join(store, parent, "reviewer")
    for n in range(3):
        run(store, parent, f"parent {n}")
        run(store, other, f"other {n}")
    store.edit_turn(parent.id, 2, prompt="edited")
    child = store.fork(parent.id, a_session_id(), at=5)
    store.edit_turn(child.id, 3, response="edited in the fork")
    for n in range(4):
        run(store, child, f"child {n}")
    store.truncate(child.id, 8)
    run(store, child, "after the cut")
    enqueue(store, child, "waits")
    return {"parent": parent, "other": other, "child": child}


def test_a_history(store: Store) -> None:
    sessions = a_long_conversation(store)
    ranges: list[dict[str, Any]] = [
        {},
        {"limit": 3},
        {"limit": 0},
        {"first": 3, "last": 6},
        {"last": 7, "limit": 4},
        {"unsent": False},
    ]
    for conversation in (sessions["parent"].conversation_id, sessions["child"].conversation_id):
        for wanted in ranges:
            expected = store.history(conversation, **wanted)
            assert len(expected) > 2 or wanted == {"limit": 0}
            assert whole(store, "history", conversation_id=conversation, **wanted) == expected, wanted


def test_the_turns_of_a_session(store: Store) -> None:
    for session in a_long_conversation(store).values():
        for wanted in ({}, {"after": 4}, {"limit": 2}, {"limit": 0}, {"after": 99}):
            expected = store.turns(session.id, **wanted)
            assert whole(store, "turns", session_id=session.id, **wanted) == expected, wanted


def test_the_newest_turns_of_a_session(store: Store) -> None:
    others: list[dict[str, Any]] = [{}, {"before": 8}, {"dropped": False}]
    for session in a_long_conversation(store).values():
        for limit in (0, 1, 3, 100):
            for wanted in others:
                expected = store.newest_turns(session.id, limit, **wanted)
                found = whole(store, "newest_turns", session_id=session.id, limit=limit, **wanted)
                assert found == expected, (limit, wanted)


def test_events(store: Store) -> None:
    session = begin(store)
    enqueue(store, session, "look")
    claimed = claim(store, session)
    store.record_events(claimed.lease, [an_event(n) for n in range(1, 10)])
    turn: dict[str, Any] = {"conversation_id": session.conversation_id, "seq": 1}

    assert len(store.events(**turn)) == 9
    assert whole(store, "events", **turn, after=(1, 4)) == store.events(**turn, after=(1, 4))
    for limit in (0, 1, 4, 5, 9, 100):
        assert whole(store, "events", **turn, limit=limit) == store.events(**turn, limit=limit)
        assert whole(store, "newest_events", **turn, limit=limit) == store.newest_events(**turn, limit=limit)


def test_a_part_holds_no_more_than_a_few_long_turns(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_LARGEST", 100)
    monkeypatch.setattr(pages, "CHARACTERS", 1000)
    session = begin(store)
    for n in range(24):
        enqueue(store, session, "x" * (10 if n < 7 else 2000))

    found = read(store, "history", conversation_id=session.conversation_id)

    assert [len(part) for part in found] == [1, 2, 4, 8, 4, 2, 1, 1, 1]


def test_a_change_between_two_parts_is_not_in_a_history(store: Store) -> None:
    session = begin(store)
    for n in range(5):
        run(store, session, f"turn {n}")
    before = store.history(session.conversation_id)
    behind = behind_http(store)
    assert isinstance(behind, SqlStore)
    found = behind.in_parts("history", {"conversation_id": session.conversation_id})
    begun = next(found)

    store.edit_turn(session.id, 3, prompt="changed")
    store.truncate(session.id, 3)
    run(store, session, "another")

    assert (*begun, *chain.from_iterable(found)) == before
    assert prompts(store, session) == ["turn 0", "turn 1", "changed", "another"]

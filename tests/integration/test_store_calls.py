"""A turn asks the store few questions: each is a round trip where the store is a server."""

from dataclasses import replace

import pytest

from holdfast import Holdfast
from holdfast.domain.policy import Policy
from holdfast.domain.turns import NewTurn
from holdfast.domain.usage import NO_USAGE
from holdfast.engine.worker import WorkerOptions
from tests.counted_store import CountedStore
from tests.integration.workshop import OPENING, Workshop

#: what a turn does besides the calls that began it
TURN = ["launch", "pin", "record_events", "finish_turn", "attempts"]
#: no look whether somebody wants the turn to stop falls into a test
PATIENT = replace(Policy(), queue=replace(Policy().queue, poll_seconds=10.0, heartbeat_seconds=10.0))


@pytest.fixture
def counted(shop: Workshop) -> CountedStore:
    return CountedStore(shop.open(PATIENT).store)


@pytest.fixture
def holdfast(shop: Workshop, counted: CountedStore) -> Holdfast:
    return Holdfast(counted.as_store, PATIENT, environ=shop.environ)


def test_a_first_run(shop: Workshop, counted: CountedStore, holdfast: Holdfast) -> None:
    holdfast.run(OPENING, provider="scripted", cwd=str(shop.work_dir))
    assert counted.calls == ["create_session", "situation", "start_turn", *TURN]


def test_a_resumed_turn(shop: Workshop, counted: CountedStore, holdfast: Holdfast) -> None:
    first = shop.begin()
    holdfast.resume(first.session_id, "more")
    assert counted.calls == ["situation", "start_turn", *TURN]


def test_a_turn_of_a_worker(shop: Workshop, counted: CountedStore, holdfast: Holdfast) -> None:
    first = shop.begin()
    shop.open().enqueue(first.session_id, "more")
    holdfast.worker(["scripted"], WorkerOptions(once=True)).run()
    begun = counted.calls.index("claim_turn")
    assert counted.calls[begun:] == ["claim_turn", *TURN, "claim_turn"]


def test_a_long_history_is_not_read_to_resume(
    shop: Workshop, counted: CountedStore, holdfast: Holdfast
) -> None:
    first = shop.begin()
    holdfast.resume(first.session_id, "more")
    short = counted.bytes_read
    for _ in range(3):
        shop.open().resume(first.session_id, "x" * 20_000)
    counted.clear()
    holdfast.resume(first.session_id, "more")
    assert counted.bytes_read < 1.2 * short


def test_a_fresh_start_reads_a_long_history_in_few_calls(
    shop: Workshop, counted: CountedStore, holdfast: Holdfast
) -> None:
    first = shop.begin("CONTEXT 1000 200000\nSAY hello")
    for n in range(60):
        new = NewTurn(f"request {n} " + "p" * 900, "scripted")
        shop.open().store.record_turn(first.session_id, new, "r" * 900, NO_USAGE)
    told = holdfast.resume(first.session_id, "SAY on", fresh=True)
    assert told.past.turns == tuple(range(1, 62))
    adopting = ["attempts_in", "get_turn"]
    packet = ["read_past", "approvals", "situation"]  # what earlier attempts of this turn did
    assert counted.calls == ["situation", "start_turn", *adopting, "read_past", *packet, *TURN]

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
TURN = ["launch", "pin", "record_events", "keep_bundles", "finish_turn", "attempts"]
#: what the vault has already of a session that is resumed is asked for before the rest is kept
RESUMED = [*TURN[:3], "bundle", *TURN[3:]]
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
    assert counted.calls == ["situation", "start_turn", *RESUMED]


def test_a_turn_of_a_worker(shop: Workshop, counted: CountedStore, holdfast: Holdfast) -> None:
    first = shop.begin()
    shop.open().enqueue(first.session_id, "more")
    holdfast.worker(["scripted"], WorkerOptions(once=True)).run()
    begun = counted.calls.index("claim_turn")
    assert counted.calls[begun:] == ["claim_turn", *RESUMED, "claim_turn"]


def test_a_fork_of_a_session_that_ran_here(shop: Workshop, counted: CountedStore, holdfast: Holdfast) -> None:
    first = shop.begin()
    holdfast.fork(first.session_id)
    assert counted.calls == ["holder", "pointers", "situation", "fork"]


def test_a_fork_of_a_session_that_ran_on_another_machine(shop: Workshop, counted: CountedStore) -> None:
    first = shop.begin()
    elsewhere = {**shop.environ, "XDG_DATA_HOME": str(shop.work_dir / "data-of-another-machine")}
    Holdfast(counted.as_store, PATIENT, environ=elsewhere).fork(first.session_id)
    assert counted.calls == ["holder", "pointers", "fork"]


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

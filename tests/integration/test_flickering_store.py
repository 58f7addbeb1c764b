"""A worker whose store fails for a moment, at any step: the turn is run to its end all the same."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from holdfast import Holdfast
from holdfast.domain.events import EventKind
from holdfast.domain.policy import Policy, QueuePolicy
from holdfast.domain.turns import NewTurn, Turn, TurnRequest, TurnStatus
from holdfast.engine.worker import Worker, WorkerOptions
from holdfast.errors import StoreUnavailable
from holdfast.store.contract import Store
from tests.integration.workshop import Workshop, eventually

POLICY = Policy(
    queue=QueuePolicy(
        lease_seconds=2.0, heartbeat_seconds=0.2, poll_seconds=0.1, recover_seconds=0.2,
        retry_delay_seconds=0.1, grace_seconds=10.0,
    )
)  # fmt: skip


@dataclass
class Flickering:
    """A store that cannot be reached at the chosen calls; ``lost``: it has done what was asked by then."""

    store: Store
    verb: str
    lost: bool = False
    times: int = 1  #: that it cannot be reached
    calls: Counter[str] = field(default_factory=Counter)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        return self._flicker(found) if name == self.verb else found

    def _flicker(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def flicker(*args: object, **kwargs: object) -> object:
            self.calls[self.verb] += 1
            if self.calls[self.verb] > self.times:
                return call(*args, **kwargs)
            if self.lost:
                call(*args, **kwargs)
            raise StoreUnavailable("here", "it has just gone away")

        return flicker


def queued(shop: Workshop, *prompts: str) -> tuple[Holdfast, str]:
    hf = shop.open(POLICY)
    session = hf.begin(prompts[0], provider="scripted")
    for prompt in prompts:
        hf.store.enqueue_turn(session.id, NewTurn(prompt, "scripted", TurnRequest(str(shop.work_dir))))
    return hf, session.id


def work(hf: Holdfast, store: Store, session_id: str, policy: Policy = POLICY) -> Turn:
    """The session's last turn, once a worker has seen it through."""
    agent = hf.agents.get("scripted")
    worker = Worker(store, hf.agents, [agent], policy, WorkerOptions())
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        return cast(Turn, eventually(lambda: _ended(hf.store, session_id)))
    finally:
        worker.stop()
        thread.join()


def _ended(store: Store, session_id: str) -> Turn | None:
    turn = store.turns(session_id)[-1]
    return None if turn.status.is_open else turn


STEPS = ["now", "attempts", "launch", "record_events", "pin", "finish_turn"]


@pytest.mark.parametrize("lost", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("verb", ["claim_turn", *STEPS])
def test_a_store_that_goes_away_for_a_moment_costs_no_turn(shop: Workshop, verb: str, lost: bool) -> None:
    hf, session_id = queued(shop, "SAY red")
    flickering = Flickering(hf.store, verb, lost)

    turn = work(hf, cast(Store, flickering), session_id)

    assert (turn.status, turn.response, turn.failure) == (TurnStatus.DONE, "red", None)
    assert flickering.calls[verb], f"{verb} is no step of a turn any more"


def test_a_store_that_goes_away_while_the_past_is_read_costs_no_turn(shop: Workshop) -> None:
    hf, session_id = queued(shop, "SAY red")
    fresh = TurnRequest(str(shop.work_dir), force_fresh=True)
    hf.store.enqueue_turn(session_id, NewTurn("RECALL red", "scripted", fresh))
    flickering = Flickering(hf.store, "read_past")

    turn = work(hf, cast(Store, flickering), session_id)

    assert (turn.status, turn.response) == (TurnStatus.DONE, "RECALL red: from the prompt: > SAY red")
    assert flickering.calls["read_past"], "read_past is no step of a fresh start any more"


@pytest.mark.parametrize("lost", [False, True], ids=["before", "after"])
def test_an_answer_waits_for_the_store_and_is_not_asked_for_again(shop: Workshop, lost: bool) -> None:
    hf, session_id = queued(shop, "SAY red")

    turn = work(hf, cast(Store, Flickering(hf.store, "finish_turn", lost)), session_id)

    assert (turn.status, turn.attempts) == (TurnStatus.DONE, 1)
    assert hf.store.late_reports(turn.conversation_id) == ()


def test_events_that_an_outage_kept_back_are_recorded_before_the_turn_ends(shop: Workshop) -> None:
    hf, session_id = queued(shop, "SAY red")
    impatient = replace(POLICY, queue=replace(POLICY.queue, grace_seconds=0.5))
    away = Flickering(
        hf.store, "record_events", times=2
    )  # so that the end of the agent's output does not bring them

    turn = work(hf, cast(Store, away), session_id, impatient)

    assert (turn.status, turn.attempts) == (TurnStatus.DONE, 1)
    assert away.calls["record_events"] == 3
    recorded = hf.store.events(turn.conversation_id, turn.seq)
    assert [event.data["text"] for _, event in recorded if event.kind is EventKind.TEXT] == ["red"]


def test_a_claim_whose_reply_was_lost_is_not_left_to_run_out(shop: Workshop) -> None:
    hf, session_id = queued(shop, "SAY red")

    turn = work(hf, cast(Store, Flickering(hf.store, "claim_turn", lost=True)), session_id)

    assert (turn.status, turn.attempts) == (TurnStatus.DONE, 1)


def test_a_request_is_sent_once_however_often_its_turn_is_interrupted(shop: Workshop) -> None:
    hf, session_id = queued(shop, "SAY red", "CRASH\nAGAIN")

    turn = work(hf, hf.store, session_id)

    native = {attempt.provider_session_id for attempt in hf.store.attempts(turn.conversation_id, turn.seq)}
    assert (turn.attempts, len(native)) == (3, 1)
    assert [prompt.count("CRASH") for prompt in shop.prompts(native.pop())] == [0, 1, 0, 0]

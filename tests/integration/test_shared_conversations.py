"""Two agents in one conversation: however much one of them says, the other one's work is not lost from sight."""

import pytest

from holdfast import Holdfast
from holdfast.domain.ids import ConversationId
from holdfast.domain.sessions import NewSession
from holdfast.domain.turns import NewTurn, TurnStatus
from holdfast.domain.usage import NO_USAGE
from holdfast.engine.explain import Reached
from holdfast.engine.running.agents import Agents
from holdfast.engine.running.provider_sessions import last_directory, recognise
from tests.integration.workshop import Workshop

OTHERS = 60
FAILS = "EXIT 3 broken"


def others_talk(hf: Holdfast, session_id: str) -> None:
    conversation = hf.session(session_id).conversation_id
    joined = hf.store.create_session(
        NewSession(hf.new_id(), "reviewer", conversation_id=ConversationId(conversation))
    )
    for number in range(OTHERS):
        hf.store.record_turn(joined.id, NewTurn(f"remark {number}", "codex"), "noted", NO_USAGE)


@pytest.mark.parametrize(("prompt", "reached"), [("all well", Reached.DONE), (FAILS, Reached.FAILED)])
def test_waiting_knows_how_its_newest_turn_ended(shop: Workshop, prompt: str, reached: Reached) -> None:
    hf, first = shop.open(), shop.begin(prompt)
    others_talk(hf, first.session_id)
    waited = hf.wait(first.session_id, timeout=0)
    assert waited.reached is reached
    assert waited.turn is not None
    assert waited.turn.seq == 1


def test_waiting_knows_it_after_many_turns_were_taken_back(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin()
    for number in range(OTHERS):
        hf.store.record_turn(first.session_id, NewTurn(f"remark {number}", "scripted"), "noted", NO_USAGE)
    hf.truncate(first.session_id, 1)
    assert hf.wait(first.session_id, timeout=0).reached is Reached.DONE


def test_a_stopped_turn_is_gone_on_with(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin(FAILS)
    others_talk(hf, first.session_id)
    stopped = hf.stopped_turn(first.session_id)
    assert stopped is not None
    assert stopped.seq == 1
    assert hf.resume(first.session_id).turn_status is TurnStatus.DONE


def test_a_waiting_turn_is_named_before_another_is_started(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin()
    queued = hf.enqueue(first.session_id, "later")
    others_talk(hf, first.session_id)
    waiting = hf.waiting(first.session_id)
    assert waiting is not None
    assert waiting.turn.seq == queued.seq
    assert hf.resume(first.session_id).turn == queued.seq


def test_a_request_that_failed_is_still_recognised(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin(FAILS)
    others_talk(hf, first.session_id)
    agent, native = Agents(shop.environ).get("scripted"), first.provider_session_id
    assert native is not None
    (known,) = recognise(hf.store, agent, str(shop.transcript(native)), native)
    assert known.attempt is not None
    assert known.attempt.seq == 1


def test_where_a_session_ran_is_still_known(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin(FAILS)
    others_talk(hf, first.session_id)
    turn = hf.enqueue(first.session_id, "next")
    situation = hf.store.situation(turn.session_id)
    assert last_directory(hf.store, situation, turn.seq + 1) == str(shop.work_dir)

"""Whose turn is it? What stands in the agent's session is known by the attempt that sent it, not by its text."""

import os
import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.domain.policy import Policy, ResumePolicy
from holdfast.domain.turns import NewTurn, TurnStatus
from holdfast.engine.result import RunResult
from tests.integration.workshop import PATIENCE, Workshop, ended, eventually, kill

#: an agent that waits before it has even read what it was sent, and says who it is
STUCK = """
import time
if "--resume" in argv or "--session-id" in argv:
    open({note!r}, "w").write(str(os.getpid()))
    time.sleep({seconds})
"""
SAME = "SAY the same"


def _killed_before_the_prompt_was_stored(shop: Workshop) -> None:
    """Worker and agent, after the launch."""
    note = shop.root / "stuck"
    stuck = shop.stand_in("stuck-agent", STUCK.format(note=str(note), seconds=PATIENCE * 2))
    worker = shop.start("worker", "--once", environ={"HOLDFAST_SCRIPTED_BINARY": stuck})
    agent = int(eventually(lambda: note.exists() and note.read_text()))
    kill(worker)
    os.kill(agent, signal.SIGKILL)


def _work(shop: Workshop) -> str:
    code, _, err = ended(shop.start("worker", "--once"))
    assert code == 0, err
    return err


@pytest.fixture
def first(shop: Workshop) -> RunResult:
    return shop.begin(SAME)


def test_a_queued_turn_that_repeats_the_one_before_it_is_run_after_a_kill(
    shop: Workshop, first: RunResult
) -> None:
    store = shop.open().store
    queued = store.enqueue_turn(first.session_id, NewTurn(SAME, "scripted"))
    _killed_before_the_prompt_was_stored(shop)
    assert len(shop.prompts(first.provider_session_id)) == 1, "the agent never got to it"

    said = _work(shop)

    turn = store.get_turn(queued.conversation_id, queued.seq)
    assert (turn.status, turn.response) == (TurnStatus.DONE, "the same")
    again = shop.prompts(first.provider_session_id)[1]
    assert f"new request, not answered yet; everything above belongs to earlier turns\n{SAME}" in again
    assert "turn 2 was launched before, but" in said


def test_a_first_turn_that_never_reached_the_agent_is_sent_again(shop: Workshop) -> None:
    hf = shop.open()
    session = hf.create("alone", provider="scripted")
    queued = hf.store.enqueue_turn(session.id, NewTurn(SAME, "scripted"))
    _killed_before_the_prompt_was_stored(shop)

    _work(shop)

    turn = hf.store.get_turn(queued.conversation_id, queued.seq)
    assert (turn.status, turn.response) == (TurnStatus.DONE, "the same")


def test_a_command_of_the_provider_that_was_sent_is_known_by_its_place(
    shop: Workshop, first: RunResult
) -> None:
    """Nothing can stand before ``/…``, and the command before it was the same."""
    hf = shop.open()
    assert hf.resume(first.session_id, "/again").ok
    store = hf.store
    queued = store.enqueue_turn(first.session_id, NewTurn("/again\nSLEEP 300", "scripted"))
    worker = shop.start("worker", "--once")
    eventually(lambda: len(shop.prompts(first.provider_session_id)) == 3)
    kill(worker)

    hung = shop.start("worker", "--once")
    eventually(lambda: len(shop.prompts(first.provider_session_id)) == 4)
    kill(hung)
    eventually(lambda: not shop.left_running())  # an agent that was answering comes to its end

    sent = shop.prompts(first.provider_session_id)[3]
    assert "interrupted before it ended; its request is already above" in sent
    assert store.get_turn(queued.conversation_id, queued.seq).attempts == 2


def _copied(shop: Workshop) -> Path:
    copy = shop.root / "older.db"
    with (
        closing(sqlite3.connect(shop.root / "holdfast.db")) as source,
        closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)
    return copy


def _put_back(shop: Workshop, copy: Path) -> None:
    shop.close()
    for ending in ("-wal", "-shm"):
        (shop.root / f"holdfast.db{ending}").unlink(missing_ok=True)
    shutil.copyfile(copy, shop.root / "holdfast.db")


def test_an_older_database_that_was_put_back_adopts_what_it_does_not_know(
    shop: Workshop, first: RunResult
) -> None:
    copy = _copied(shop)
    for colour in ("violet", "amber"):
        assert shop.open().resume(first.session_id, f"SAY {colour}").ok
    _put_back(shop, copy)

    code, _, err = ended(shop.start("resume", first.session_id, "HISTORY"))

    assert code == 0, err
    assert [turn.prompt for turn in shop.open().history(first.session_id)] == [
        SAME,
        "SAY violet",
        "SAY amber",
        "HISTORY",
    ]
    assert "2 turns were made outside Holdfast" in err
    sent = shop.prompts(first.provider_session_id)[-1]
    assert "not in your session" not in sent, "the session holds them"


def test_an_older_database_that_was_put_back_starts_fresh_where_the_policy_says_so(
    shop: Workshop, first: RunResult
) -> None:
    copy = _copied(shop)
    assert shop.open().resume(first.session_id, "SAY violet").ok
    _put_back(shop, copy)

    again = shop.open(Policy(resume=ResumePolicy(transcript_ahead="fresh"))).resume(
        first.session_id, "SAY on"
    )

    assert (again.ok, again.decision.reason) == (True, "transcript_ahead")
    assert again.provider_session_id != first.provider_session_id
    assert [turn.prompt for turn in shop.open().history(first.session_id)] == [SAME, "SAY violet", "SAY on"]
    assert "SAY violet" in shop.prompts(again.provider_session_id)[0]

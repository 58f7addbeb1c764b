"""Whoever changes a session first ends what a dead owner left of it, and nothing that was made is lost."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Rights
from holdfast.domain.decisions import Fresh, Resume
from holdfast.domain.turns import TurnStatus
from holdfast.engine.result import RunResult
from holdfast.errors import SessionClosed
from tests.integration.workshop import FROM_SESSION, RECALL, Workshop, eventually


def killed(shop: Workshop, first: RunResult, prompt: str) -> None:
    """A turn whose Holdfast is killed once its agent has said something."""
    process = shop.start("resume", first.session_id, prompt)
    hf = shop.open()
    conversation = hf.session(first.session_id).conversation_id
    eventually(lambda: hf.store.newest_events(conversation, 2, 10))
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_what_was_said_before_a_kill_is_in_the_history(shop: Workshop) -> None:
    first = shop.begin()
    killed(shop, first, "SAY half of it\nHANG")

    (turn,) = shop.open().recover()

    assert (turn.status, turn.response) == (TurnStatus.FAILED, "half of it")
    assert shop.left_running() == set()
    assert shop.open().resume(first.session_id, RECALL).text == FROM_SESSION


@pytest.mark.parametrize("verb", ["new", "remove", "truncate"])
def test_changing_a_session_ends_what_a_dead_owner_left_running(shop: Workshop, verb: str) -> None:
    first = shop.begin()
    killed(shop, first, "SAY half of it\nHANG")
    hf = shop.open()
    match verb:
        case "new":
            hf.new(first.session_id)
        case "remove":
            hf.remove(first.session_id)
        case _:
            hf.truncate(first.session_id, 1)
    assert shop.left_running() == set()


def test_a_queued_turn_that_was_killed_runs_again_with_what_it_had_done(shop: Workshop) -> None:
    first = shop.begin()
    hf = shop.open()
    tool = 'TOOL shell {"command": "echo once >> ledger"}'
    hf.retry(first.session_id, 1, f"{tool}\nSLEEP 30\nSAY done")
    process = shop.start("resume", first.session_id)
    eventually((shop.work_dir / "ledger").exists)
    conversation = hf.session(first.session_id).conversation_id
    eventually(lambda: hf.store.newest_events(conversation, 2, 10))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    hf.edit(first.session_id, 2, prompt="SAY ready")

    again = hf.resume(first.session_id)

    assert again.ok
    assert isinstance(again.decision, Fresh)
    assert "echo once >> ledger" in shop.prompts(again.provider_session_id)[0]


def test_a_turn_that_waited_for_a_person_has_seen_what_they_said(shop: Workshop) -> None:
    first = shop.begin()
    slow = subprocess.Popen(
        ["holdfast-scripted-agent", "--resume", str(first.provider_session_id), "SLEEP 4\nSAY by hand"],
        cwd=shop.work_dir, env={**shop.environ, "PATH": _path()}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    eventually(lambda: len(shop.prompts(first.provider_session_id)) == 2)
    patient = {"HOLDFAST_QUEUE__LOCK_TRIES": "40"}
    process = shop.start("resume", first.session_id, "SAY mine", environ=patient)
    process.communicate(timeout=60)
    slow.wait()
    hf = shop.open()
    hf.resume(first.session_id, "SAY again")
    asked = [turn.prompt for turn in hf.history(first.session_id)]
    assert "SLEEP 4\nSAY by hand" in asked
    assert asked.count("SLEEP 4\nSAY by hand") == 1
    assert not any("by hand" in told for told in shop.prompts(first.provider_session_id)[2:]), "told again"


def test_what_was_said_by_hand_before_a_new_beginning_does_not_come_back(shop: Workshop) -> None:
    first = shop.begin()
    shop.by_hand("SAY old news", "--resume", str(first.provider_session_id))
    hf = shop.open()
    hf.new(first.session_id)
    hf.resume(first.session_id, "SAY anew")
    assert [turn.prompt for turn in hf.history(first.session_id)] == ["SAY anew"]


def test_a_fork_knows_what_was_said_by_hand(shop: Workshop) -> None:
    first = shop.begin()
    shop.by_hand("SAY by hand", "--resume", str(first.provider_session_id))
    forked = shop.open().fork(first.session_id, "HISTORY")
    assert "SAY by hand" in (forked.text or "")


def test_the_same_words_by_hand_after_a_failure_are_a_turn_of_their_own(shop: Workshop) -> None:
    first = shop.begin()
    hf = shop.open()
    prompt = "FAIL_ONCE k 500 boom\nSAY fixed"
    assert not hf.resume(first.session_id, prompt).ok
    shop.by_hand(prompt, "--resume", str(first.provider_session_id))
    again = hf.resume(first.session_id, "SAY on")
    assert isinstance(again.decision, Resume)
    assert [turn.prompt for turn in hf.history(first.session_id)][1:] == [prompt, prompt, "SAY on"]


def test_a_refused_request_is_told_to_nobody(shop: Workshop) -> None:
    first = shop.begin(rights=Rights(permission_mode="plan"))
    hf = shop.open()
    refused = hf.resume(first.session_id, "SAY rm -rf", rights=Rights(permission_mode="default"))
    assert refused.exit_code == 4
    again = hf.resume(first.session_id, "SAY on")
    assert again.ok
    assert "rm -rf" not in shop.transcript(again.provider_session_id).read_text()


def test_a_closed_session_is_not_opened(shop: Workshop) -> None:
    first = shop.begin()
    hf = shop.open()
    hf.finalize(first.session_id, "completed")
    with pytest.raises(SessionClosed):
        hf.open_native(first.session_id)
    assert len(shop.prompts(first.provider_session_id)) == 1


def _path() -> str:
    return f"{Path(sys.executable).parent}:{os.defpath}"

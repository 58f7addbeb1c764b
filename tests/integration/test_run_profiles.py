"""What a turn does not say is as it was, and what was stopped goes on as what it was."""

from dataclasses import replace
from typing import Any

import pytest

from holdfast import Rights
from holdfast.domain.decisions import Reason, Resume
from holdfast.domain.events import Said
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.policy import Policy, QueuePolicy
from holdfast.domain.turns import AttemptStatus, NewTurn, Turn, TurnRequest, TurnStatus
from holdfast.engine.worker import WorkerOptions
from holdfast.errors import Conflict, InvalidInput
from tests.integration.workshop import FROM_SESSION, OPENING, RECALL, Workshop

QUICKLY = QueuePolicy(lock_tries=1)


@pytest.mark.parametrize("words", [None, "please continue"])
def test_a_request_that_never_reached_the_agent_is_what_is_continued(
    shop: Workshop, words: str | None
) -> None:
    hf, first = shop.open(), shop.begin()
    assert first.provider_session_id is not None
    with hf.agents.get("scripted").lock(first.provider_session_id) as lock:
        assert lock.try_acquire()
        failed = shop.open(Policy(queue=QUICKLY)).resume(first.session_id, "SAY the lights are on")
    assert not failed.ok
    attempt = hf.store.newest_attempt(first.session_id)
    assert attempt is not None
    busy = "busy: a process on this machine is writing to it"
    assert (attempt.status, attempt.failure) == (AttemptStatus.PUT_BACK, Failure(FailureClass.LOCKED, busy))

    again = hf.resume(first.session_id, words)

    assert isinstance(again.decision, Resume)
    assert again.text == "the lights are on"
    sent = shop.prompts(again.provider_session_id)[-1]
    assert sent.count("SAY the lights are on") == 1
    assert sent.endswith("\nSAY the lights are on")
    assert hf.stopped_turn(first.session_id) is None


def test_rights_and_model_of_a_try_that_began_no_session_are_kept(shop: Workshop) -> None:
    agent = shop.stand_in("agent-that-cannot-begin", "sys.exit('not logged in')")
    shop.changes["HOLDFAST_SCRIPTED_BINARY"] = agent
    rights = Rights(permission_mode="plan", allowed_tools=frozenset({"shell"}))
    with pytest.raises(Exception, match="agent-that-cannot-begin"):
        shop.begin(rights=rights, model="large")
    del shop.changes["HOLDFAST_SCRIPTED_BINARY"]
    failed = shop.begin("EXIT 1 not logged in\nNO_SAVE", rights=rights, model="large")
    assert not failed.ok

    again = shop.open().resume(failed.session_id, "SAY now")

    attempt = shop.open().store.newest_attempt(again.session_id)
    assert attempt is not None
    assert (attempt.rights, attempt.model) == (rights, "large")


def test_directories_are_meant_from_where_the_caller_is(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = shop.folder("here")
    (here / "lib").mkdir()
    monkeypatch.chdir(here)
    ran = shop.begin("SAY hello", rights=Rights(extra_dirs=frozenset({"lib"})))
    attempt = shop.open().store.newest_attempt(ran.session_id)
    assert attempt is not None
    assert attempt.rights is not None
    assert attempt.rights.extra_dirs == {str(here / "lib")}
    with pytest.raises(InvalidInput, match="extra_dirs"):
        shop.begin("SAY hello", rights=Rights(extra_dirs=frozenset({"missing"})))


def test_an_observer_that_fails_is_not_told_any_more_and_the_turn_goes_on(shop: Workshop) -> None:
    told: list[Any] = []

    def fails(seen: object) -> None:
        told.append(seen)
        if isinstance(seen, Said):
            raise BrokenPipeError

    ran = shop.begin(f"{OPENING}\nSAY one\nSAY two", observer=fails)
    assert ran.ok
    assert (ran.text or "").endswith("two")
    assert sum(isinstance(seen, Said) for seen in told) == 1
    assert shop.open().resume(ran.session_id, RECALL).text == FROM_SESSION


# --- arguments of the agent's own ---


def _run_by_a_worker(shop: Workshop, new: NewTurn) -> Turn:
    """Put in past everything that checks: as by another program, or an older one."""
    hf = shop.open()
    session = hf.create("a", provider="scripted")
    turn = hf.store.enqueue_turn(session.id, new)
    hf.worker(["scripted"], WorkerOptions(once=True)).run()
    return hf.store.get_turn(turn.conversation_id, turn.seq)


@pytest.mark.parametrize("arguments", [("--unheard-of",), ("--resume", "x"), ("--resume=x",), ("a prompt",)])
def test_a_worker_launches_no_agent_with_an_argument_that_nobody_accepted(
    shop: Workshop, arguments: tuple[str, ...]
) -> None:
    request = TurnRequest(work_dir=str(shop.work_dir), rights=Rights(extra_args=arguments))

    turn = _run_by_a_worker(shop, NewTurn("SAY hello", "scripted", request))

    assert turn.failure is not None
    assert (turn.status, turn.failure.failure_class) == (TurnStatus.FAILED, FailureClass.CONFIG)
    assert turn.failure.message.startswith("provider arguments: ")
    assert not list(shop.home.rglob("*.jsonl")), "no agent was there"


def test_what_overrides_a_decision_is_not_accepted_by_anyone(shop: Workshop) -> None:
    request = TurnRequest(
        work_dir=str(shop.work_dir), rights=Rights(extra_args=("--resume=x",)), allow_wider_rights=True
    )

    turn = _run_by_a_worker(shop, NewTurn("SAY hello", "scripted", request))

    assert turn.failure is not None
    assert "holdfast resume" in turn.failure.message


def test_what_a_session_was_launched_with_is_accepted_again(shop: Workshop) -> None:
    agent = shop.stand_in("lenient", "argv = [word for word in argv if word != '--unheard-of']")
    shop.changes["HOLDFAST_SCRIPTED_BINARY"] = agent
    rights = Rights(extra_args=("--unheard-of",))
    with pytest.raises(InvalidInput, match="--allow-wider-rights"):
        shop.begin(rights=rights)
    hf, first = shop.open(), shop.begin(rights=rights, allow_wider_rights=True)
    assert first.ok, first

    repeated = NewTurn("", "scripted", TurnRequest(rights=rights))
    turns = [hf.enqueue(first.session_id, RECALL), hf.enqueue(first.session_id, RECALL, repeated)]
    hf.worker(["scripted"], WorkerOptions(once=True)).run()

    assert [hf.store.get_turn(turn.conversation_id, turn.seq).response for turn in turns] == [
        FROM_SESSION
    ] * 2
    other = NewTurn("", "scripted", TurnRequest(rights=Rights(extra_args=("--unheard-of", "--unheard-of"))))
    with pytest.raises(InvalidInput, match="--allow-wider-rights"):
        hf.enqueue(first.session_id, RECALL, other)


# --- where it works ---

GATED = Rights(approve_tools=frozenset({"shell(echo applied*)"}))
APPLY = 'TOOL shell {"command": "echo applied >> applied"}'


def test_a_session_stays_where_it_was_moved_to_after_a_turn_that_was_refused(shop: Workshop) -> None:
    """The answer was for another directory, so nothing was launched: nothing ran in the old one, either."""
    waiting = shop.begin(f"{OPENING}\n{APPLY}", rights=GATED)
    assert waiting.approval is not None
    hf = shop.open()
    hf.approve(waiting.approval.id)
    moved = hf.relocate(waiting.session_id, str(shop.folder("elsewhere")))
    assert hf.resume(waiting.session_id).decision.reason is Reason.WORKDIR_CHANGED

    after = hf.resume(waiting.session_id, RECALL)

    assert (after.work_dir, after.text) == (moved, FROM_SESSION)
    assert after.provider_session_id == waiting.provider_session_id


def test_a_turn_that_was_never_launched_moves_its_session_nowhere(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin()
    overriding = Rights(extra_args=("--resume=x",))
    elsewhere = TurnRequest(str(shop.folder("elsewhere")), rights=overriding, allow_wider_rights=True)
    turn = hf.store.enqueue_turn(first.session_id, NewTurn("SAY no", "scripted", elsewhere))
    hf.worker(["scripted"], WorkerOptions(once=True)).run()
    failure = hf.store.get_turn(turn.conversation_id, turn.seq).failure
    assert failure is not None
    assert failure.failure_class is FailureClass.CONFIG

    after = hf.resume(first.session_id, RECALL)

    assert (after.work_dir, after.text) == (str(shop.work_dir), FROM_SESSION)


def _refused_at_first(shop: Workshop, request: TurnRequest) -> Turn:
    """It asks by name for a session that is another one's."""
    hf, other = shop.open(), shop.begin()
    session = hf.create("a", provider="scripted")
    named = replace(request, provider_session_id=other.provider_session_id)
    turn = hf.store.enqueue_turn(session.id, NewTurn("SAY no", "scripted", named))
    hf.worker(["scripted"], WorkerOptions(once=True)).run()
    refused = hf.store.get_turn(turn.conversation_id, turn.seq)
    assert refused.failure is not None
    assert refused.failure.failure_class is FailureClass.REFUSED
    return refused


def test_directory_model_and_rights_of_a_first_turn_that_was_refused_are_kept(shop: Workshop) -> None:
    asked = TurnRequest(str(shop.folder("asked")), "large", Rights(permission_mode="plan"))
    refused = _refused_at_first(shop, asked)

    after = shop.open().resume(refused.session_id, "SAY now")

    attempt = shop.open().store.newest_attempt(refused.session_id)
    assert attempt is not None
    assert (after.work_dir, attempt.model, attempt.rights) == (asked.work_dir, asked.model, asked.rights)


def test_a_worker_goes_on_where_a_first_turn_that_was_refused_was_to_work(shop: Workshop) -> None:
    asked = TurnRequest(str(shop.folder("asked")))
    refused = _refused_at_first(shop, asked)
    hf = shop.open()

    hf.enqueue(refused.session_id, "SAY now")
    hf.worker(["scripted"], WorkerOptions(once=True)).run()

    attempt = hf.store.newest_attempt(refused.session_id)
    assert attempt is not None
    assert (attempt.status, attempt.work_dir) == (AttemptStatus.DONE, asked.work_dir)


def test_what_is_said_about_a_directory_that_is_gone_works(shop: Workshop) -> None:
    gone = shop.folder("gone")
    failed = shop.begin("EXIT 1 not logged in\nNO_SAVE", cwd=str(gone))
    gone.rmdir()
    with pytest.raises(InvalidInput, match=r"does not exist any more; to continue elsewhere: --cwd DIR$"):
        shop.open().resume(failed.session_id, "SAY now")
    with pytest.raises(Conflict, match="PROMPT --cwd DIR continues in another directory"):
        shop.open().relocate(failed.session_id, str(shop.work_dir))
    assert shop.open().resume(failed.session_id, "SAY now", cwd=str(shop.work_dir)).ok
    assert shop.open().resume(failed.session_id, "SAY on").work_dir == str(shop.work_dir)

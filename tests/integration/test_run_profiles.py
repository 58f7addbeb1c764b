"""What a turn does not say is as it was, and what was stopped goes on as what it was."""

from typing import Any

import pytest

from holdfast import Rights
from holdfast.domain.decisions import Resume
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.policy import Policy, QueuePolicy
from holdfast.domain.turns import AttemptStatus
from holdfast.errors import InvalidInput
from holdfast.providers.happenings import Said
from tests.integration.workshop import FROM_SESSION, OPENING, RECALL, Workshop

QUICKLY = QueuePolicy(lock_tries=1)


def test_a_request_that_never_reached_the_agent_is_what_is_continued(shop: Workshop) -> None:
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

    again = hf.resume(first.session_id)

    assert isinstance(again.decision, Resume)
    sent = shop.prompts(again.provider_session_id)[-1]
    assert "to be continued: turn 2" in sent
    assert "> SAY the lights are on" in sent


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

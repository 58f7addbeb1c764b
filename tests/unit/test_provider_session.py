"""The caller owns the id of a task's provider session: explicit beats configuration, and is always given back."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from holdfast.domain.decisions import Fresh, Reason, Resume
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.policy import Policy, ResumePolicy
from holdfast.domain.sessions import Session
from holdfast.domain.turns import NewTurn, TurnRequest
from holdfast.domain.usage import Usage, UsageReport
from holdfast.engine.holdfast import Holdfast
from holdfast.errors import InvalidInput
from holdfast.store.open import open_store
from tests.builders import a_provider_session_id, a_runtime, done
from tests.clock import ManualClock

WITHOUT_PERSISTENCE = Policy(resume=ResumePolicy(session_persistence=False))


@pytest.fixture
def holdfast() -> Iterator[Holdfast]:
    store = open_store("sqlite:///:memory:", clock=ManualClock(), policy=WITHOUT_PERSISTENCE)
    with Holdfast(store, WITHOUT_PERSISTENCE) as opened:
        yield opened


def asked_for(holdfast: Holdfast, session: Session) -> ProviderSessionId | None:
    """The id that a turn put in now would ask for."""
    return holdfast.enqueue(session.id, "go").request.provider_session_id


def run_task(holdfast: Holdfast, session: Session, named: ProviderSessionId) -> ProviderSessionId:
    """One task in a provider session of its own; the id that its agent is told to use."""
    with holdfast.provider_session(named):
        holdfast.enqueue(session.id, "the task", NewTurn("", "claude", TurnRequest(work_dir="/srv")))
    claimed = holdfast.claim(a_runtime(), "worker")
    assert claimed is not None
    assert isinstance(claimed.decision, Fresh | Resume)
    used = claimed.decision.provider_session_id
    assert used is not None
    holdfast.store.finish_turn(
        claimed.lease, done(provider_session_id=used, usage=UsageReport(Usage(input_tokens=10)))
    )
    return used


def test_a_turn_inside_the_block_asks_for_the_id(holdfast: Holdfast) -> None:
    session, named = holdfast.create("coder"), a_provider_session_id()

    with holdfast.provider_session(named):
        assert asked_for(holdfast, session) == named


def test_after_the_block_there_is_none_if_there_was_none_before(holdfast: Holdfast) -> None:
    session = holdfast.create("coder")

    with holdfast.provider_session(a_provider_session_id()):
        pass

    assert asked_for(holdfast, session) is None


def test_after_the_block_there_is_the_one_that_was_before(holdfast: Holdfast) -> None:
    session = holdfast.create("coder")
    outer, inner = a_provider_session_id(), a_provider_session_id()

    with holdfast.provider_session(outer):
        with holdfast.provider_session(inner):
            assert asked_for(holdfast, session) == inner
        assert asked_for(holdfast, session) == outer


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_block_that_raises_is_undone_as_well(holdfast: Holdfast, error: type[BaseException]) -> None:
    session = holdfast.create("coder")

    with pytest.raises(error), holdfast.provider_session(a_provider_session_id()):
        raise error

    assert asked_for(holdfast, session) is None


def test_an_id_that_the_turn_itself_names_wins(holdfast: Holdfast) -> None:
    session, named = holdfast.create("coder"), a_provider_session_id()

    with holdfast.provider_session(a_provider_session_id()):
        turn = holdfast.enqueue(
            session.id, "go", NewTurn("", "claude", TurnRequest(provider_session_id=named))
        )

    assert turn.request.provider_session_id == named


def test_a_decision_asked_for_inside_the_block_knows_the_id(holdfast: Holdfast) -> None:
    session, named = holdfast.create("coder"), a_provider_session_id()

    with holdfast.provider_session(named):
        decision = holdfast.decide(session.id, "claude", runtime=a_runtime())

    assert isinstance(decision, Fresh)
    assert decision.provider_session_id == named


def test_the_block_is_this_threads_alone(holdfast: Holdfast) -> None:
    session = holdfast.create("coder")
    elsewhere: list[ProviderSessionId | None] = []

    with holdfast.provider_session(a_provider_session_id()):
        thread = threading.Thread(target=lambda: elsewhere.append(asked_for(holdfast, session)))
        thread.start()
        thread.join()

    assert elsewhere == [None]


@pytest.mark.parametrize("nothing", ["", "../elsewhere", "two words"])
def test_what_is_no_id_is_not_accepted(holdfast: Holdfast, nothing: str) -> None:
    with pytest.raises(InvalidInput), holdfast.provider_session(nothing):
        pass


@pytest.mark.parametrize("count", [2, 10])
def test_standalone_tasks_in_a_row_each_use_the_id_they_were_given(holdfast: Holdfast, count: int) -> None:
    named = [a_provider_session_id() for _ in range(count)]
    sessions = [holdfast.create("coder") for _ in range(count)]

    used = [run_task(holdfast, session, each) for session, each in zip(sessions, named, strict=True)]

    assert used == named
    for session, each in zip(sessions, named, strict=True):
        (totals,) = holdfast.store.provider_sessions(session.id)
        assert (totals.id, totals.usage) == (each, Usage(input_tokens=10))
    assert asked_for(holdfast, sessions[0]) is None


@pytest.mark.parametrize("count", [2, 10])
def test_tasks_in_a_row_in_one_session_each_use_the_id_they_were_given(
    holdfast: Holdfast, count: int
) -> None:
    session = holdfast.create("coder")
    named = [a_provider_session_id() for _ in range(count)]

    assert [run_task(holdfast, session, each) for each in named] == named
    assert {totals.id for totals in holdfast.store.provider_sessions(session.id)} == set(named)


def test_a_task_of_several_turns_stays_in_its_provider_session(holdfast: Holdfast) -> None:
    session, named = holdfast.create("coder"), a_provider_session_id()

    assert [run_task(holdfast, session, named) for _ in range(3)] == [named] * 3


def test_without_an_id_and_without_persistence_every_turn_is_fresh(holdfast: Holdfast) -> None:
    session = holdfast.create("coder")
    run_task(holdfast, session, a_provider_session_id())
    runtime = replace(a_runtime(), version="3.0.0")

    decision = holdfast.decide(session.id, "claude", runtime=runtime)

    assert isinstance(decision, Fresh)
    assert decision.reason is Reason.RESUME_DISABLED
    assert decision.provider_session_id is None

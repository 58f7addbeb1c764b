"""Asking people through the library: how an approval bears on the work, and waiting for it."""

from collections.abc import Iterator

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.domain.phases import MayContinue
from holdfast.domain.policy import ApprovalPolicy, Policy
from holdfast.engine.explain import Reached
from holdfast.errors import InvalidInput, NotFound, Refused
from holdfast.store.open import open_store
from tests import steps
from tests.clock import ManualClock

HALF_AN_HOUR, WEEK = 1800, 7 * 24 * 3600


@pytest.fixture
def hf(clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.open("sqlite:///:memory:", clock) as opened:
        yield opened


def a_planned_session(hf: Holdfast) -> str:
    session = hf.create("terraform-architect", "approval_workflow")
    hf.update(session.id, phase="planning")
    return session.id


def test_days_may_pass_until_the_answer_and_then_half_an_hour(hf: Holdfast, clock: ManualClock) -> None:
    session = a_planned_session(hf)
    asked = hf.request_approval(session, "apply the plan", {"plan": "plan.tf"})
    clock.advance(WEEK - 1)
    assert hf.should_resume(session)

    hf.approve(asked.id)

    clock.advance(HALF_AN_HOUR - 1)
    assert hf.should_resume(session)
    clock.advance(1)
    assert hf.may_continue(session) is MayContinue.TOO_OLD


def test_what_nobody_answered_in_time_blocks_until_it_is_asked_again(
    hf: Holdfast, clock: ManualClock
) -> None:
    session = a_planned_session(hf)
    hf.request_approval(session, "apply the plan", expires=60)
    clock.advance(60)
    assert hf.may_continue(session) is MayContinue.EXPIRED
    with pytest.raises(Refused) as caught:
        hf.deny(session, "too late anyway")
    assert caught.value.reason == "approval_expired"

    clock.advance(1)
    hf.request_approval(session, "apply the plan", expires=60)

    assert hf.should_resume(session)


def test_work_that_moved_on_is_not_kept_alive_by_an_old_question(hf: Holdfast, clock: ManualClock) -> None:
    session = a_planned_session(hf)
    hf.request_approval(session, "apply the plan", expires=60)
    clock.advance(60)
    hf.update(session, phase="investigating")
    clock.advance(HALF_AN_HOUR)
    assert hf.may_continue(session) is MayContinue.TOO_OLD


@pytest.mark.parametrize("seconds", [None, 90.0])
def test_how_long_it_can_be_answered_is_a_setting(clock: ManualClock, seconds: float | None) -> None:
    policy = Policy(approvals=ApprovalPolicy(expires_seconds=seconds))
    with Holdfast(open_store("sqlite:///:memory:", clock=clock), policy) as hf:
        asked = hf.request_approval(a_planned_session(hf), "apply the plan")
    assert asked.expires_at == (None if seconds is None else clock() + 90_000_000)


def test_an_answer_says_who_gave_it(hf: Holdfast) -> None:
    session = a_planned_session(hf)
    first, second = hf.request_approval(session, "one"), hf.request_approval(session, "two")
    assert hf.approve(first.id).answered_by
    assert hf.deny(second.id, "no", by="ada").answered_by == "ada"
    assert hf.approval(first.id).status == "approved"
    known = hf.approvals(session, open_only=False)
    assert sorted(one.id for one in known) == sorted([first.id, second.id])


def test_what_is_no_answer_is_refused(hf: Holdfast) -> None:
    asked = hf.request_approval(a_planned_session(hf), "one")
    for answer in (hf.approve, hf.deny):
        with pytest.raises(InvalidInput):
            answer(asked.id, " ")
    with pytest.raises(InvalidInput):
        hf.approve(asked.id, by="")
    with pytest.raises(InvalidInput):
        hf.approve(asked.id, "x" * 10_001)
    with pytest.raises(NotFound):
        hf.approve("apr-nobody")
    assert hf.approval(asked.id) == asked


def test_waiting_tells_how_far_it_has_come(hf: Holdfast) -> None:
    session = hf.create("terraform-architect")
    assert hf.wait(session.id, 0).reached is Reached.STILL_OPEN
    asked = hf.request_approval(session.id, "apply the plan")
    waited = hf.wait(session.id)
    assert (waited.reached, waited.approval) == (Reached.NEEDS_PERSON, asked)
    hf.approve(asked.id)
    steps.enqueue(hf.store, session, "apply")
    assert hf.wait(session.id, 0).reached is Reached.STILL_OPEN
    hf.cancel(session.id, 1)
    assert hf.wait(session.id).reached is Reached.FAILED
    steps.run(hf.store, session, "apply after all")
    done = hf.wait(session.id)
    assert (done.reached, done.turn and done.turn.seq) == (Reached.DONE, 2)
    hf.finalize(session.id, "failed")
    assert hf.wait(session.id).reached is Reached.FAILED

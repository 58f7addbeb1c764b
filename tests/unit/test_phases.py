from typing import Any

import pytest

from holdfast.clock import SECOND, Instant
from holdfast.domain.phases import (
    FINAL_PHASES,
    ApprovalWindow,
    MayContinue,
    Phase,
    is_resumable_phase,
    may_continue,
    parse_outcome,
    parse_phase,
)
from holdfast.domain.policy import ContinuePolicy
from holdfast.domain.sessions import SessionKind
from holdfast.errors import InvalidInput
from tests.unit.builders import NOON, a_session

POLICY = ContinuePolicy()
HALF_AN_HOUR = 30 * 60 * SECOND
OPEN = [phase for phase in Phase if phase not in FINAL_PHASES]


def ago(microseconds: int) -> Instant:
    return Instant(NOON - microseconds)


def a_conversation(**changes: Any) -> Any:
    return a_session(kind=SessionKind.CONVERSATION, **changes)


@pytest.mark.parametrize("phase", [Phase.APPROVAL, Phase.INVESTIGATING, Phase.PLANNING])
def test_delegated_work_goes_on_in_a_resumable_phase(phase: Phase) -> None:
    assert may_continue(a_session(phase=phase), POLICY, NOON) is MayContinue.YES


@pytest.mark.parametrize("phase", [Phase.INITIALIZING, Phase.EXECUTING, Phase.VALIDATING])
def test_delegated_work_does_not_go_on_in_another_open_phase(phase: Phase) -> None:
    assert may_continue(a_session(phase=phase), POLICY, NOON) is MayContinue.PHASE


def test_the_resumable_phases_are_a_policy() -> None:
    policy = ContinuePolicy(resumable_phases=frozenset({"executing"}))

    assert may_continue(a_session(phase=Phase.EXECUTING), policy, NOON) is MayContinue.YES
    assert may_continue(a_session(phase=Phase.APPROVAL), policy, NOON) is MayContinue.PHASE


@pytest.mark.parametrize("phase", OPEN)
def test_a_conversation_goes_on_in_every_phase_that_is_not_final(phase: Phase) -> None:
    assert may_continue(a_conversation(phase=phase), POLICY, NOON) is MayContinue.YES


@pytest.mark.parametrize("kind", SessionKind)
@pytest.mark.parametrize("phase", [Phase.COMPLETED, Phase.FAILED, Phase.ABANDONED])
def test_nothing_goes_on_in_a_final_phase(phase: Phase, kind: SessionKind) -> None:
    assert phase.is_final
    assert may_continue(a_session(phase=phase, kind=kind), POLICY, NOON) is MayContinue.FINAL


@pytest.mark.parametrize("delegated", [True, False])
def test_a_final_phase_is_not_resumable_for_anyone(delegated: bool) -> None:
    assert not any(is_resumable_phase(phase, POLICY, delegated=delegated) for phase in FINAL_PHASES)


@pytest.mark.parametrize(
    ("idle", "verdict"),
    [
        (HALF_AN_HOUR - 1, MayContinue.YES),
        (HALF_AN_HOUR, MayContinue.TOO_OLD),
        (HALF_AN_HOUR + 1, MayContinue.TOO_OLD),
        (-SECOND, MayContinue.YES),
    ],
    ids=["a-microsecond-less", "exactly", "a-microsecond-more", "clock-set-back"],
)
def test_delegated_work_goes_on_for_less_than_half_an_hour_without_activity(
    idle: int, verdict: MayContinue
) -> None:
    assert may_continue(a_session(updated_at=ago(idle)), POLICY, NOON) is verdict


def test_a_conversation_goes_on_however_idle_it_was() -> None:
    assert may_continue(a_conversation(updated_at=Instant(0)), POLICY, NOON) is MayContinue.YES


def test_the_idle_limit_is_a_policy() -> None:
    session = a_session(updated_at=ago(2 * SECOND))

    assert may_continue(session, ContinuePolicy(max_idle_seconds=2.0), NOON) is MayContinue.TOO_OLD
    assert may_continue(session, ContinuePolicy(max_idle_seconds=2.000001), NOON) is MayContinue.YES


def test_without_an_idle_limit_delegated_work_goes_on_for_ever() -> None:
    policy = ContinuePolicy(max_idle_seconds=None)

    assert may_continue(a_session(updated_at=Instant(0)), policy, NOON) is MayContinue.YES


def test_an_open_approval_suspends_the_idle_limit() -> None:
    session = a_session(updated_at=Instant(0))

    assert may_continue(session, POLICY, NOON, ApprovalWindow()) is MayContinue.YES


@pytest.mark.parametrize(
    ("answered", "verdict"),
    [(HALF_AN_HOUR - 1, MayContinue.YES), (HALF_AN_HOUR, MayContinue.TOO_OLD)],
    ids=["freshly", "half-an-hour-ago"],
)
def test_an_answer_counts_as_activity(answered: int, verdict: MayContinue) -> None:
    session = a_session(updated_at=Instant(0))

    assert may_continue(session, POLICY, NOON, ApprovalWindow(answered_at=ago(answered))) is verdict


@pytest.mark.parametrize("kind", SessionKind)
@pytest.mark.parametrize(
    ("left", "verdict"), [(1, MayContinue.YES), (0, MayContinue.EXPIRED), (-1, MayContinue.EXPIRED)]
)
def test_an_approval_that_nobody_answered_in_time_blocks(
    left: int, verdict: MayContinue, kind: SessionKind
) -> None:
    session = a_session(phase=Phase.APPROVAL, kind=kind)
    window = ApprovalWindow(expires_at=Instant(NOON + left))

    assert may_continue(session, POLICY, NOON, window) is verdict


def test_an_answer_in_time_outlives_the_expiry() -> None:
    window = ApprovalWindow(answered_at=ago(2), expires_at=ago(1))

    assert may_continue(a_session(phase=Phase.APPROVAL), POLICY, NOON, window) is MayContinue.YES


def test_work_that_went_to_another_phase_is_neither_blocked_nor_kept_by_what_expired() -> None:
    window = ApprovalWindow(expires_at=NOON)

    assert may_continue(a_session(phase=Phase.PLANNING), POLICY, NOON, window) is MayContinue.YES
    idle = a_session(phase=Phase.PLANNING, updated_at=ago(HALF_AN_HOUR))
    assert may_continue(idle, POLICY, NOON, window) is MayContinue.TOO_OLD


def test_an_old_answer_does_not_hide_newer_activity() -> None:
    answered_long_ago = ApprovalWindow(answered_at=Instant(0))

    assert may_continue(a_session(), POLICY, NOON, answered_long_ago) is MayContinue.YES


@pytest.mark.parametrize("kind", SessionKind)
@pytest.mark.parametrize(
    ("errors", "verdict"),
    [(2, MayContinue.YES), (3, MayContinue.ERRORS), (4, MayContinue.ERRORS)],
)
def test_work_goes_on_with_fewer_than_three_errors(
    kind: SessionKind, errors: int, verdict: MayContinue
) -> None:
    assert may_continue(a_session(kind=kind, error_count=errors), POLICY, NOON) is verdict


def test_the_number_of_errors_is_a_policy() -> None:
    policy = ContinuePolicy(max_errors=1)

    assert may_continue(a_session(error_count=1), policy, NOON) is MayContinue.ERRORS


@pytest.mark.parametrize("kind", SessionKind)
def test_work_that_is_not_ready_does_not_go_on(kind: SessionKind) -> None:
    assert may_continue(a_session(kind=kind, resume_ready=False), POLICY, NOON) is MayContinue.NOT_READY


def test_the_first_obstacle_is_named_and_the_others_come_to_light_one_by_one() -> None:
    obstacles: dict[MayContinue, dict[str, Any]] = {
        MayContinue.FINAL: {"phase": Phase.FAILED},
        MayContinue.PHASE: {"phase": Phase.EXECUTING},
        MayContinue.NOT_READY: {"resume_ready": False},
        MayContinue.ERRORS: {"error_count": 3},
        MayContinue.TOO_OLD: {"updated_at": Instant(0)},
    }

    named = []
    for removed in range(len(obstacles) + 1):
        remaining = list(obstacles.values())[removed:]
        changes: dict[str, Any] = {}
        for obstacle in reversed(remaining):
            changes |= obstacle
        named.append(may_continue(a_session(**changes), POLICY, NOON))

    assert named == [*obstacles, MayContinue.YES]


@pytest.mark.parametrize("phase", Phase)
def test_a_phase_is_read_from_its_name(phase: Phase) -> None:
    assert parse_phase(phase.value) is phase
    assert parse_phase(phase) is phase


@pytest.mark.parametrize("text", ["", "Approval", " approval", "approved", "APPROVAL", None, 3, "\ud800"])
def test_what_is_not_a_phase_is_refused_with_the_list_of_phases(text: object) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_phase(text)

    assert refused.value.field == "phase"
    assert all(phase.value in refused.value.problem for phase in Phase)


@pytest.mark.parametrize("phase", sorted(FINAL_PHASES))
def test_an_outcome_is_a_final_phase(phase: Phase) -> None:
    assert parse_outcome(phase.value) is phase


@pytest.mark.parametrize("text", [*OPEN, "", "done", "COMPLETED", None])
def test_what_is_not_an_outcome_is_refused_with_the_list_of_outcomes(text: object) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_outcome(text)

    assert refused.value.field == "outcome"
    listed = refused.value.problem.partition("one of")[2]
    assert {phase for phase in Phase if phase.value in listed} == FINAL_PHASES


@pytest.mark.parametrize("parse", [parse_phase, parse_outcome])
def test_a_refused_phase_is_quoted_only_in_part(parse: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse("x" * 100_000)

    assert len(str(refused.value)) < 300

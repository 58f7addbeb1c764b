"""The plain library: what is old is abandoned, then deleted."""

import pytest

from holdfast.errors import InvalidInput
from tests.acceptance.face import BLINK, HOUR, Face, closed, in_phase, state
from tests.clock import ManualClock


def test_cleanup_counts_what_it_abandons_and_what_it_deletes(face: Face, clock: ManualClock) -> None:
    idle = [face.create_session("idle"), in_phase(face, "approval"), in_phase(face, "executing")]
    final = [closed(face, "completed"), closed(face, "failed")]
    clock.advance(23 * HOUR)
    recent = [in_phase(face, "planning"), closed(face, "abandoned")]
    before = [state(face, agent_id) for agent_id in recent]
    clock.advance(2 * HOUR)

    assert face.cleanup_old_sessions(24) == len(idle) + len(final)

    assert [face.get_session(agent_id) for agent_id in final] == [None, None]
    for agent_id in idle:
        found = state(face, agent_id)
        assert (found["phase"], found["finalized_at"]) == ("abandoned", "2026-01-09T13:00:00Z")
        assert found["history"][-1]["to_phase"] == "abandoned"
    assert [face.get_session(agent_id) for agent_id in recent] == before
    assert face.cleanup_old_sessions(24) == 0


def test_what_cleanup_abandoned_is_deleted_when_it_is_old_again(face: Face, clock: ManualClock) -> None:
    agent_id = face.create_session("idle")
    clock.advance(25 * HOUR)
    assert face.cleanup_old_sessions(24) == 1
    clock.advance(25 * HOUR)
    assert face.cleanup_old_sessions(24) == 1
    assert face.get_session(agent_id) is None


@pytest.mark.parametrize(("hours", "count"), [(0, 2), (1.5, 2), (2.5, 0), (1000, 0)])
def test_the_hours_say_what_is_old(face: Face, clock: ManualClock, hours: float, count: int) -> None:
    face.create_session("idle")
    closed(face)
    clock.advance(2 * HOUR)
    assert face.cleanup_old_sessions(hours=hours) == count


def test_a_session_is_old_after_a_day_if_nobody_says_otherwise(face: Face, clock: ManualClock) -> None:
    face.create_session("idle")
    clock.advance(24 * HOUR)
    assert face.cleanup_old_sessions() == 0
    clock.advance(BLINK)
    assert face.cleanup_old_sessions() == 1


@pytest.fixture
def three_days_of_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_RETENTION__MAX_AGE_HOURS", "72")


@pytest.mark.usefixtures("three_days_of_retention")
def test_the_settings_say_what_is_old_unless_the_call_does(face: Face, clock: ManualClock) -> None:
    agent_id = face.create_session("idle")
    clock.advance(48 * HOUR)
    assert face.cleanup_old_sessions() == 0
    assert state(face, agent_id)["phase"] == "initializing"
    assert face.cleanup_old_sessions(hours=24) == 1
    assert state(face, agent_id)["phase"] == "abandoned"


@pytest.mark.usefixtures("three_days_of_retention")
def test_the_settings_may_also_keep_sessions_for_longer_than_a_day(face: Face, clock: ManualClock) -> None:
    face.create_session("idle")
    clock.advance(72 * HOUR)
    assert face.cleanup_old_sessions() == 0
    clock.advance(BLINK)
    assert face.cleanup_old_sessions() == 1


@pytest.mark.parametrize("hours", [-1, float("nan"), float("inf")])
def test_no_number_of_hours_that_makes_no_sense_cleans_up(
    face: Face, clock: ManualClock, hours: float
) -> None:
    agent_id = face.create_session("idle")
    clock.advance(48 * HOUR)
    with pytest.raises(InvalidInput):
        face.cleanup_old_sessions(hours)
    assert state(face, agent_id)["phase"] == "initializing"

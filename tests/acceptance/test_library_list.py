"""The plain library: the list of sessions and its filters."""

from collections.abc import Callable

import pytest

from tests.acceptance.face import MINUTE, Face, closed, ids, in_phase, state
from tests.clock import ManualClock


@pytest.fixture
def four(face: Face, clock: ManualClock) -> dict[str, str]:
    """An open and a closed session of two agents, each a minute newer than the one before."""
    made: dict[str, Callable[[], str]] = {
        "terraform open": lambda: in_phase(face, "approval", "terraform-architect"),
        "gitops closed": lambda: closed(face, "failed", "gitops-operator"),
        "gitops open": lambda: in_phase(face, "executing", "gitops-operator"),
        "terraform closed": lambda: closed(face, "completed", "terraform-architect"),
    }
    found = {}
    for name, make in made.items():
        found[name] = make()
        clock.advance(MINUTE)
    return found


def test_an_empty_store_lists_nothing(face: Face) -> None:
    assert face.list_sessions() == []
    assert face.list_sessions(active_only=True, agent_name="terraform-architect") == []


def test_all_sessions_are_listed_whole_and_newest_first(face: Face, four: dict[str, str]) -> None:
    names = ["terraform closed", "gitops open", "gitops closed", "terraform open"]
    assert face.list_sessions() == [state(face, four[name]) for name in names]


def test_the_list_is_in_the_order_of_creation_and_not_of_activity(face: Face, four: dict[str, str]) -> None:
    before = ids(face.list_sessions())
    assert face.update_state(four["terraform open"], error="exit 1")
    assert ids(face.list_sessions()) == before


def test_active_sessions_are_those_that_are_not_closed(face: Face, four: dict[str, str]) -> None:
    assert ids(face.list_sessions(active_only=True)) == [four["gitops open"], four["terraform open"]]


def test_the_list_of_one_agent_has_no_other(face: Face, four: dict[str, str]) -> None:
    listed = face.list_sessions(agent_name="gitops-operator")
    assert ids(listed) == [four["gitops open"], four["gitops closed"]]
    assert face.list_sessions(agent_name="gitops") == []


def test_both_filters_apply_together(face: Face, four: dict[str, str]) -> None:
    assert ids(face.list_sessions(True, "terraform-architect")) == [four["terraform open"]]


def test_a_list_is_complete_however_long_it_is(face: Face) -> None:
    made = {face.create_session("one-of-many") for _ in range(520)}
    listed = ids(face.list_sessions())
    assert len(listed) == 520
    assert set(listed) == made

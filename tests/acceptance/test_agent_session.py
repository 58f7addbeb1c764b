"""AgentSession: code that was written for the earlier layer's class goes on working."""

import gc
import warnings
from pathlib import Path

import pytest

from holdfast import AgentSession, errors


@pytest.fixture
def manager(tmp_path: Path) -> AgentSession:
    return AgentSession(base_path=tmp_path / "sessions")


def test_its_sessions_are_in_one_file_of_the_directory_that_it_is_given(
    manager: AgentSession, tmp_path: Path
) -> None:
    agent_id = manager.create_session("test-agent", purpose="test_purpose", metadata={"key": "value"})

    session = manager.get_session(agent_id)

    assert session is not None
    assert (session["phase"], session["resume_ready"], session["metadata"]) == (
        "initializing",
        False,
        {"key": "value"},
    )
    assert (manager.base_path / "holdfast.db").exists()
    assert manager.base_path == tmp_path / "sessions"
    with AgentSession(str(tmp_path / "sessions")) as again:
        assert again.get_session(agent_id) == session


def test_without_a_directory_its_sessions_are_with_the_data_of_holdfast() -> None:
    with AgentSession() as manager:
        manager.create_session("test-agent")
        assert (manager.base_path / "holdfast.db").exists()


def test_active_are_those_that_are_ready_to_be_resumed(manager: AgentSession) -> None:
    first, second, third = (manager.create_session(name) for name in ("one", "two", "one"))
    manager.update_state(first, phase="approval")
    manager.update_state(second, phase="investigating")
    closed = manager.create_session("one")
    manager.update_state(closed, phase="planning")
    manager.finalize_session(closed, outcome="completed")

    def ids(**filters: object) -> set[object]:
        return {state["agent_id"] for state in manager.list_sessions(**filters)}  # type: ignore[arg-type]

    assert ids() == {first, second, third, closed}
    assert ids(active_only=True) == {first, second}
    assert ids(agent_name="one") == {first, third, closed}


def test_it_is_closed_when_nobody_has_it_any_more(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AgentSession(tmp_path).create_session("test-agent")
        gc.collect()
    with AgentSession(tmp_path) as manager:
        assert len(manager.list_sessions()) == 1
    with pytest.raises(errors.HoldfastError):
        manager.list_sessions()

"""The plain library: the functions on the default store, and the methods of an opened one."""

import inspect
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.engine import default
from holdfast.errors import InvalidInput, StoreError
from holdfast.testing.clock import ManualClock

MINUTE = 60.0
HOUR = 3600.0
#: the smallest step of a clock
BLINK = 0.000_001

UNKNOWN = "agent-20260108-000000-ffffffff"
NO_IDS = [UNKNOWN, "", "../../etc/passwd", "agent one"]

OPEN_PHASES = ["initializing", "investigating", "planning", "approval", "executing", "validating"]
RESUMABLE_PHASES = ["approval", "investigating", "planning"]
OUTCOMES = ["completed", "failed", "abandoned"]


class Face(Protocol):
    """What both have: the module, and what ``holdfast.open`` returns. mypy checks that they do."""

    def create_session(
        self, agent_name: str, purpose: str = ..., metadata: Mapping[str, Any] | None = ...
    ) -> str: ...

    def update_state(
        self,
        agent_id: str,
        phase: str | None = ...,
        metadata: Mapping[str, Any] | None = ...,
        error: str | None = ...,
    ) -> bool: ...

    def should_resume(self, agent_id: str) -> bool: ...

    def get_session(self, agent_id: str) -> dict[str, object] | None: ...

    def finalize_session(self, agent_id: str, outcome: str, summary: str | None = ...) -> bool: ...

    def cleanup_old_sessions(self, hours: float = ...) -> int: ...

    def list_sessions(
        self, active_only: bool = ..., agent_name: str | None = ...
    ) -> list[dict[str, object]]: ...


VERBS = sorted(name for name in vars(Face) if not name.startswith("_"))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def functions(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Face]:
    """The functions of the module, in a process that has used none of them, at the time of ``clock``."""
    monkeypatch.setattr(time, "time_ns", lambda: clock() * 1000)
    monkeypatch.setattr(default, "_open", {})
    yield holdfast
    for opened in default._open.values():
        opened.close()


@pytest.fixture(params=["functions", "methods"])
def face(
    request: pytest.FixtureRequest, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, file: Path
) -> Iterator[Face]:
    monkeypatch.setenv("HOLDFAST_DURABILITY", "normal")  # these tests pull no plug, and there are many
    if request.param == "functions":
        yield request.getfixturevalue("functions")
    else:
        with holdfast.open(f"sqlite:///{file}", clock) as opened:
            yield opened


@pytest.fixture
def file(home: Path) -> Path:
    """Where the default store is; the opened one of these tests is there too."""
    return home / ".local" / "share" / "holdfast" / "holdfast.db"


def state(face: Face, agent_id: str) -> dict[str, Any]:
    found = face.get_session(agent_id)
    assert found is not None
    return found


def in_phase(face: Face, phase: str, agent_name: str = "terraform-architect") -> str:
    agent_id = face.create_session(agent_name)
    assert face.update_state(agent_id, phase=phase)
    return agent_id


def closed(face: Face, outcome: str = "completed", agent_name: str = "terraform-architect") -> str:
    agent_id = face.create_session(agent_name)
    assert face.finalize_session(agent_id, outcome)
    return agent_id


def ids(states: list[dict[str, object]]) -> list[object]:
    return [found["agent_id"] for found in states]


def damage(file: Path, statement: str, agent_id: str) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        assert connection.execute(statement, (agent_id,)).rowcount == 1


# --- create_session, get_session ----------------------------------------------------------------------------


def test_a_new_session_has_every_field_of_the_published_state(face: Face) -> None:
    metadata = {"task_id": "T001", "tags": ["terraform", "infrastructure"], "dry": True, "cost": 1.5}
    agent_id = face.create_session("terraform-architect", "approval_workflow", metadata)
    assert face.get_session(agent_id) == {
        "agent_id": agent_id,
        "agent_name": "terraform-architect",
        "purpose": "approval_workflow",
        "created_at": "2026-01-08T12:00:00Z",
        "last_updated": "2026-01-08T12:00:00Z",
        "phase": "initializing",
        "metadata": metadata,
        "resume_ready": False,
        "history": [],
        "error_count": 0,
        "last_error": None,
        "finalized_at": None,
        "duration_seconds": None,
        "summary": None,
    }


def test_a_session_needs_no_more_than_the_name_of_its_agent(face: Face) -> None:
    found = state(face, face.create_session("terraform-architect"))
    assert (found["agent_name"], found["purpose"], found["metadata"]) == ("terraform-architect", "", {})


def test_an_id_says_when_it_was_made_and_no_two_are_the_same(face: Face) -> None:
    made = [face.create_session("terraform-architect") for _ in range(20)]
    assert len(set(made)) == 20
    assert all(agent_id.startswith("agent-20260108-120000-") for agent_id in made)
    assert {len(agent_id) for agent_id in made} == {len("agent-20260108-180530-abc12345")}


def test_a_session_without_an_agent_is_an_error_and_not_an_answer(face: Face) -> None:
    with pytest.raises(InvalidInput):
        face.create_session("")
    assert face.list_sessions() == []


@pytest.mark.parametrize("agent_id", NO_IDS)
def test_there_is_no_state_of_a_session_that_does_not_exist(face: Face, agent_id: str) -> None:
    face.create_session("terraform-architect")
    assert face.get_session(agent_id) is None


def test_a_session_that_cannot_be_read_is_passed_over_and_said_to_be(
    face: Face, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = in_phase(face, "approval"), in_phase(face, "approval")
    damage(file, "UPDATE sessions SET metadata = '{half' WHERE id = ?", bad)
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert face.get_session(bad) is None
    assert bad in caplog.text
    assert not face.should_resume(bad)
    assert not face.update_state(bad, phase="planning")
    assert not face.finalize_session(bad, "completed")
    assert ids(face.list_sessions()) == [good]
    assert face.should_resume(good)


def test_a_session_whose_history_cannot_be_read_is_passed_over_too(face: Face, file: Path) -> None:
    good, bad = in_phase(face, "approval"), in_phase(face, "approval")
    damage(file, "UPDATE phase_changes SET at = 'never' WHERE session_id = ?", bad)
    assert face.get_session(bad) is None
    assert ids(face.list_sessions()) == [good]


# --- update_state -------------------------------------------------------------------------------------------


def test_an_update_with_nothing_but_the_id_is_activity(face: Face, clock: ManualClock) -> None:
    agent_id = face.create_session("terraform-architect", "approval_workflow", {"task_id": "T001"})
    before = state(face, agent_id)
    clock.advance(MINUTE)
    assert face.update_state(agent_id) is True
    assert state(face, agent_id) == before | {"last_updated": "2026-01-08T12:01:00Z"}


@pytest.mark.parametrize("phase", OPEN_PHASES)
def test_an_update_moves_to_a_phase_and_leaves_the_rest(face: Face, clock: ManualClock, phase: str) -> None:
    agent_id = face.create_session("terraform-architect", "approval_workflow", {"task_id": "T001"})
    assert face.update_state(agent_id, error="exit 1")
    before = state(face, agent_id)
    clock.advance(1)
    assert face.update_state(agent_id, phase) is True
    assert {name for name, value in state(face, agent_id).items() if value != before[name]} <= {
        "phase",
        "resume_ready",
        "history",
        "last_updated",
    }
    assert (state(face, agent_id)["phase"], state(face, agent_id)["resume_ready"]) == (
        phase,
        phase in RESUMABLE_PHASES,
    )


def test_metadata_is_merged_key_by_key(face: Face) -> None:
    agent_id = face.create_session("a", metadata={"kept": 1, "replaced": {"old": True}})
    assert face.update_state(agent_id, metadata={"replaced": {"new": True}, "added": None}) is True
    assert face.update_state(agent_id, "planning", {"added": ["later"]}) is True
    found = state(face, agent_id)
    assert found["metadata"] == {"kept": 1, "replaced": {"new": True}, "added": ["later"]}
    assert found["phase"] == "planning"


def test_an_update_without_metadata_keeps_what_there_is(face: Face) -> None:
    agent_id = face.create_session("a", metadata={"kept": 1})
    assert face.update_state(agent_id, "planning", {})
    assert face.update_state(agent_id, "approval", error="exit 1")
    assert state(face, agent_id)["metadata"] == {"kept": 1}


def test_errors_are_counted_and_the_last_one_is_kept(face: Face, clock: ManualClock) -> None:
    agent_id = in_phase(face, "approval")
    assert face.update_state(agent_id, error="first") is True
    clock.advance(MINUTE)
    assert face.update_state(agent_id, "planning", {"n": 2}, "second") is True
    clock.advance(MINUTE)
    assert face.update_state(agent_id, metadata={"n": 3})
    found = state(face, agent_id)
    assert found["error_count"] == 2
    assert found["last_error"] == {"message": "second", "timestamp": "2026-01-08T12:01:00Z"}
    assert (found["phase"], found["metadata"]) == ("planning", {"n": 3})


def test_an_empty_error_is_an_error_all_the_same(face: Face) -> None:
    agent_id = in_phase(face, "approval")
    assert face.update_state(agent_id, error="")
    assert state(face, agent_id)["error_count"] == 1


@pytest.mark.parametrize("phase", ["deploying", "", "Approval", "INITIALIZING"])
def test_an_unknown_phase_is_rejected_whole(face: Face, clock: ManualClock, phase: str) -> None:
    agent_id = in_phase(face, "approval")
    before = state(face, agent_id)
    clock.advance(1)
    assert face.update_state(agent_id, phase, {"new": 1}, "exit 1") is False
    assert state(face, agent_id) == before


@pytest.mark.parametrize("agent_id", NO_IDS)
def test_a_session_that_does_not_exist_is_not_updated(face: Face, agent_id: str) -> None:
    assert face.update_state(agent_id, "planning") is False
    assert face.list_sessions() == []


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_closed_session_is_not_updated(face: Face, clock: ManualClock, outcome: str) -> None:
    agent_id = closed(face, outcome)
    before = state(face, agent_id)
    clock.advance(1)
    assert face.update_state(agent_id) is False
    assert face.update_state(agent_id, "planning", {"new": 1}, "exit 1") is False
    assert state(face, agent_id) == before


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_moving_to_a_final_phase_closes_the_session(face: Face, clock: ManualClock, outcome: str) -> None:
    agent_id = in_phase(face, "executing")
    clock.advance(MINUTE)
    assert face.update_state(agent_id, outcome) is True
    found = state(face, agent_id)
    assert (found["finalized_at"], found["duration_seconds"]) == ("2026-01-08T12:01:00Z", 60.0)
    assert face.update_state(agent_id, "planning") is False


def test_metadata_that_is_none_is_an_error_and_not_an_answer(face: Face) -> None:
    agent_id = in_phase(face, "approval")
    with pytest.raises(InvalidInput):
        face.update_state(agent_id, metadata={"when": object()})
    assert state(face, agent_id)["metadata"] == {}


# --- should_resume ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", OPEN_PHASES)
def test_only_some_phases_are_resumable(face: Face, phase: str) -> None:
    assert face.should_resume(in_phase(face, phase)) is (phase in RESUMABLE_PHASES)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_closed_session_does_not_go_on(face: Face, outcome: str) -> None:
    agent_id = in_phase(face, "approval")
    assert face.finalize_session(agent_id, outcome)
    assert face.should_resume(agent_id) is False


def test_a_session_that_was_just_made_has_nothing_to_go_on_with(face: Face) -> None:
    assert face.should_resume(face.create_session("terraform-architect")) is False


@pytest.mark.parametrize("agent_id", NO_IDS)
def test_a_session_that_does_not_exist_does_not_go_on(face: Face, agent_id: str) -> None:
    assert face.should_resume(agent_id) is False


def test_a_session_goes_on_for_less_than_thirty_minutes(face: Face, clock: ManualClock) -> None:
    agent_id = in_phase(face, "approval")
    clock.advance(30 * MINUTE - BLINK)
    assert face.should_resume(agent_id) is True
    clock.advance(BLINK)
    assert face.should_resume(agent_id) is False


def test_activity_begins_the_thirty_minutes_again(face: Face, clock: ManualClock) -> None:
    agent_id = in_phase(face, "approval")
    clock.advance(29 * MINUTE)
    assert face.update_state(agent_id)
    clock.advance(29 * MINUTE)
    assert face.should_resume(agent_id) is True


def test_the_third_error_ends_it(face: Face) -> None:
    agent_id = in_phase(face, "approval")
    went_on = []
    for _ in range(3):
        assert face.update_state(agent_id, error="exit 1")
        went_on.append(face.should_resume(agent_id))
    assert went_on == [True, True, False]


def test_asking_changes_nothing(face: Face, clock: ManualClock) -> None:
    agent_id = in_phase(face, "approval")
    before = state(face, agent_id)
    clock.advance(MINUTE)
    assert face.should_resume(agent_id)
    assert state(face, agent_id) == before


# --- finalize_session ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_session_is_closed_with_each_outcome(face: Face, clock: ManualClock, outcome: str) -> None:
    agent_id = face.create_session("terraform-architect", metadata={"task_id": "T001"})
    clock.advance(30)
    assert face.update_state(agent_id, "approval", error="exit 1")
    before = state(face, agent_id)
    clock.advance(60.5)
    assert face.finalize_session(agent_id, outcome, "Terraform applied") is True
    assert state(face, agent_id) == before | {
        "phase": outcome,
        "resume_ready": False,
        "last_updated": "2026-01-08T12:01:30.500000Z",
        "finalized_at": "2026-01-08T12:01:30.500000Z",
        "duration_seconds": 90.5,
        "summary": "Terraform applied",
        "history": before["history"]
        + [{"from_phase": "approval", "to_phase": outcome, "timestamp": "2026-01-08T12:01:30.500000Z"}],
    }


def test_a_session_may_be_closed_without_a_summary(face: Face) -> None:
    found = state(face, closed(face))
    assert (found["phase"], found["summary"], found["duration_seconds"]) == ("completed", None, 0.0)


@pytest.mark.parametrize("outcome", ["done", "", "Completed", "planning", "executing"])
def test_what_is_no_outcome_does_not_close_a_session(face: Face, clock: ManualClock, outcome: str) -> None:
    agent_id = in_phase(face, "approval")
    before = state(face, agent_id)
    clock.advance(1)
    assert face.finalize_session(agent_id, outcome, "summary") is False
    assert state(face, agent_id) == before
    assert face.should_resume(agent_id)


@pytest.mark.parametrize("agent_id", NO_IDS)
def test_a_session_that_does_not_exist_is_not_closed(face: Face, agent_id: str) -> None:
    assert face.finalize_session(agent_id, "completed") is False


def test_a_session_is_closed_once_and_the_first_outcome_stays(face: Face, clock: ManualClock) -> None:
    agent_id = face.create_session("terraform-architect")
    assert face.finalize_session(agent_id, "failed", "first") is True
    before = state(face, agent_id)
    clock.advance(1)
    assert face.finalize_session(agent_id, "completed", "second") is False
    assert face.finalize_session(agent_id, "failed", "first") is False
    assert state(face, agent_id) == before


# --- the phase history --------------------------------------------------------------------------------------


def test_every_change_of_phase_is_kept_in_order(face: Face, clock: ManualClock) -> None:
    agent_id = face.create_session("terraform-architect")
    for phase in ("investigating", "approval", "approval", "investigating"):
        clock.advance(MINUTE)
        assert face.update_state(agent_id, phase)
    clock.advance(MINUTE)
    assert face.update_state(agent_id, metadata={"no": "change of phase"}, error="exit 1")
    assert face.finalize_session(agent_id, "completed")
    assert state(face, agent_id)["history"] == [
        {"from_phase": before, "to_phase": after, "timestamp": f"2026-01-08T12:0{minute}:00Z"}
        for before, after, minute in [
            ("initializing", "investigating", 1),
            ("investigating", "approval", 2),
            ("approval", "investigating", 4),
            ("investigating", "completed", 5),
        ]
    ]


# --- cleanup_old_sessions -----------------------------------------------------------------------------------


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


# --- list_sessions ------------------------------------------------------------------------------------------


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


# --- the two examples of the published usage ----------------------------------------------------------------


def test_an_approval_workflow_pauses_and_goes_on_with_its_context(face: Face, clock: ManualClock) -> None:
    agent_id = face.create_session(
        agent_name="terraform-architect",
        purpose="approval_workflow",
        metadata={"task_id": "T001", "workspace": "prod"},
    )
    face.update_state(agent_id, phase="planning", metadata={"plan_file": "plan.json"})
    face.update_state(agent_id, phase="approval")
    clock.advance(10 * MINUTE)

    assert face.should_resume(agent_id)
    assert state(face, agent_id)["metadata"] == {
        "task_id": "T001",
        "workspace": "prod",
        "plan_file": "plan.json",
    }
    face.update_state(agent_id, phase="executing")
    face.finalize_session(agent_id, outcome="completed", summary="Terraform applied successfully")

    found = state(face, agent_id)
    assert [change["to_phase"] for change in found["history"]] == [
        "planning",
        "approval",
        "executing",
        "completed",
    ]
    assert (found["summary"], found["duration_seconds"]) == ("Terraform applied successfully", 600.0)
    assert ids(face.list_sessions(active_only=True)) == []


def test_an_investigation_gathers_findings_over_several_turns(face: Face, clock: ManualClock) -> None:
    agent_id = face.create_session(
        agent_name="gitops-operator", purpose="investigation", metadata={"issue": "pod-crash-loop"}
    )
    face.update_state(agent_id, phase="investigating", metadata={"findings": ["OOMKilled", "limits"]})
    clock.advance(5 * MINUTE)

    assert face.should_resume(agent_id)
    findings = state(face, agent_id)["metadata"]["findings"]
    face.update_state(agent_id, metadata={"findings": findings + ["config issue in deployment"]})
    face.update_state(agent_id, phase="planning", metadata={"solution": "increase memory limits"})
    face.update_state(agent_id, phase="executing")

    assert face.finalize_session(agent_id, outcome="completed", summary="Fixed pod crash loop")
    assert state(face, agent_id)["metadata"] == {
        "issue": "pod-crash-loop",
        "findings": ["OOMKilled", "limits", "config issue in deployment"],
        "solution": "increase memory limits",
    }


# --- the functions and the methods are the same -------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_a_function_is_called_like_the_method_of_its_name(verb: str) -> None:
    method = list(inspect.signature(getattr(Holdfast, verb)).parameters.values())[1:]
    assert list(inspect.signature(getattr(holdfast, verb)).parameters.values()) == method


def test_functions_and_methods_on_the_same_store_see_the_same(functions: Face, clock: ManualClock) -> None:
    by_function = in_phase(functions, "approval")
    clock.advance(MINUTE)
    with holdfast.open(clock=clock) as opened:
        by_method = opened.create_session("gitops-operator")
        assert opened.should_resume(by_function)
        assert functions.update_state(by_method, "planning", {"n": 1}, "exit 1")
        assert opened.finalize_session(by_function, "failed", "gave up")
        for agent_id in (by_function, by_method, UNKNOWN):
            assert functions.get_session(agent_id) == opened.get_session(agent_id)
            assert functions.should_resume(agent_id) == opened.should_resume(agent_id)
        for wanted in ({}, {"active_only": True}, {"agent_name": "gitops-operator"}):
            assert functions.list_sessions(**wanted) == opened.list_sessions(**wanted)
        assert ids(functions.list_sessions()) == [by_method, by_function]
        clock.advance(25 * HOUR)
        assert functions.cleanup_old_sessions() == 2
        assert opened.list_sessions() == functions.list_sessions()


def test_the_functions_work_on_the_users_own_file_and_open_it_once(functions: Face, file: Path) -> None:
    assert not file.exists()
    functions.create_session("terraform-architect")
    assert file.exists()
    opened = default.default()
    functions.list_sessions()
    assert default.default() is opened


def test_the_functions_follow_the_settings_of_the_moment(
    functions: Face, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = functions.create_session("here")
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path}/other.db")
    there = functions.create_session("there")
    monkeypatch.setenv("HOLDFAST_WORKSPACE", "elsewhere")
    assert functions.list_sessions() == []
    monkeypatch.delenv("HOLDFAST_WORKSPACE")
    assert ids(functions.list_sessions()) == [there]
    monkeypatch.delenv("HOLDFAST_URL")
    assert ids(functions.list_sessions()) == [here]


def test_an_opened_store_is_the_one_that_was_named(tmp_path: Path, clock: ManualClock, file: Path) -> None:
    with holdfast.open(f"sqlite:///{tmp_path}/mine.db", clock) as mine:
        agent_id = mine.create_session("terraform-architect")
    with holdfast.open(f"sqlite:///{tmp_path}/mine.db", clock) as again:
        assert ids(again.list_sessions()) == [agent_id]
    with holdfast.open(f"sqlite:///{tmp_path}/mine.db", clock, workspace="other") as other:
        assert other.list_sessions() == []
    assert not file.exists()


def test_a_store_that_cannot_be_used_is_an_error_in_every_verb(functions: Face, file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("this is no database, and far too long to be an empty one " * 20)
    for call in (
        lambda: functions.create_session("terraform-architect"),
        lambda: functions.update_state(UNKNOWN),
        lambda: functions.should_resume(UNKNOWN),
        lambda: functions.get_session(UNKNOWN),
        lambda: functions.finalize_session(UNKNOWN, "completed"),
        functions.cleanup_old_sessions,
        functions.list_sessions,
    ):
        with pytest.raises(StoreError):
            call()

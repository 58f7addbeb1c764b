"""Calls that an agent has made and not reported are on record, once, whoever ends its attempt."""

import json

import pytest

from holdfast import Holdfast
from holdfast.domain.events import EventKind
from holdfast.domain.turns import NewTurn, TurnRequest, TurnStatus
from tests.integration.workshop import Workshop, ended, eventually, kill

SECRET = "ghp_" + "a" * 36
LONG = f"touch started; sleep 300 # {SECRET}"
QUICK = "echo quick-result"
#: its agent reports a call only when it has ended
WORK = "\n".join(["LATE_CALLS", *(f"TOOL shell {json.dumps({'command': run})}" for run in (QUICK, LONG))])
ON_RECORD = [(QUICK, "quick-result\n"), ("touch started; sleep 300 # [redacted:github_token]", None)]


def _killed(shop: Workshop, *command: str) -> None:
    """Holdfast and its agent, while the second call runs."""
    process = shop.start(*command)
    eventually((shop.work_dir / "started").exists)
    kill(process)
    shop.kill_agent()
    eventually(lambda: not shop.left_running())


def _calls(hf: Holdfast, seq: int = 1) -> list[tuple[object, object]]:
    """The commands on record, each with its output."""
    events = [event for _, event in hf.store.events(hf.session(hf.find("work")).conversation_id, seq)]
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    called = [event.data for event in events if event.kind is EventKind.TOOL_CALL]
    returned = [event.data for event in events if event.kind is EventKind.TOOL_RESULT]
    outputs = {data["call_id"]: data["output"] for data in returned}
    assert len(outputs) == len(returned)
    return [(data["arguments"]["command"], outputs.get(data["call_id"])) for data in called]  # type: ignore[index, call-overload]


def _told(shop: Workshop, hf: Holdfast) -> str:
    after = hf.resume(hf.find("work"), "SAY next", fresh=True)
    return shop.prompts(after.provider_session_id)[-1]


def test_a_call_in_flight_when_all_were_killed_is_found_by_who_recovers(shop: Workshop) -> None:
    _killed(shop, "run", "--name", "work", WORK)
    hf = shop.open()

    hf.recover()

    assert _calls(hf) == ON_RECORD
    assert "in_flight: shell" in _told(shop, hf)


def test_of_a_later_turn_too(shop: Workshop) -> None:
    shop.begin("SAY violet", name="work")
    _killed(shop, "resume", "work", WORK)
    hf = shop.open()

    hf.recover()

    assert _calls(hf, seq=2) == ON_RECORD


def test_a_call_in_flight_at_the_time_limit_is_on_record(shop: Workshop) -> None:
    code, _, _ = ended(shop.start("run", "--name", "work", "--timeout", "3", WORK))
    hf = shop.open()

    assert code == 1
    assert _calls(hf) == ON_RECORD
    assert "in_flight: shell" in _told(shop, hf)


def test_a_call_in_flight_when_its_agent_was_killed_is_on_record(shop: Workshop) -> None:
    process = shop.start("run", "--name", "work", WORK)
    eventually((shop.work_dir / "started").exists)
    shop.kill_agent(besides=process.pid)
    ended(process)

    assert _calls(shop.open()) == ON_RECORD


def test_a_turn_that_runs_again_is_told_of_it(shop: Workshop) -> None:
    hf = shop.open()
    session = hf.begin(WORK, provider="scripted", name="work")
    hf.store.enqueue_turn(session.id, NewTurn(WORK, "scripted", TurnRequest(str(shop.work_dir))))
    _killed(shop, "worker", "--once")

    (turn,) = hf.recover()

    assert turn.status is TurnStatus.QUEUED
    assert _calls(hf) == ON_RECORD


def test_in_another_home_nothing_is_found(shop: Workshop) -> None:
    _killed(shop, "run", "--name", "work", WORK)
    hf = shop.open(SCRIPTED_HOME=str(shop.folder("another")))

    hf.recover()

    assert ON_RECORD[1] not in _calls(hf)


@pytest.mark.parametrize("late", ["LATE_CALLS", "SAY not late"])
def test_what_was_reported_is_not_recorded_twice(shop: Workshop, late: str) -> None:
    shop.begin(f"{late}\nTOOL shell {json.dumps({'command': QUICK})}\nEXIT 3 no", name="work")

    assert _calls(shop.open()) == ON_RECORD[:1]

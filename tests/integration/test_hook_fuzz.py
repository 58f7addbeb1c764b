"""Whatever an agent's program may say one day: a hook answers with nothing or with an object, and raises nothing."""

import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.hooks.main import EVENTS, main, respond
from holdfast.hooks.process import HookLog
from tests.integration.hook_process import RECORDED, a_tool_call, run_hook

PAYLOADS = [json.loads(path.read_text()) for path in sorted(RECORDED.glob("*.json"))] + [
    a_tool_call(),
    {"agent_name": "a", "task_id": "T", "agent_id": "agent-1", "task_description": "d", "metadata": {}},
    {"agent_id": "agent-1", "exit_code": 0},
]
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
EVENT = st.sampled_from(sorted(EVENTS))
QUICK = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """A real payload, with some of its fields missing, or something else."""
    payload: dict[str, Any] = copy.deepcopy(draw(st.sampled_from(PAYLOADS)))
    for _ in range(draw(st.integers(1, 4))):
        where = payload
        while isinstance(where.get("tool_input"), dict) and draw(st.booleans()):
            where = where["tool_input"]
        name = draw(st.sampled_from(sorted(where) or ["agent_id"]) | st.text(max_size=8))
        if draw(st.booleans()):
            where.pop(name, None)
        else:
            where[name] = draw(JSON)
    return payload


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One store for all examples."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("fuzzed")
        patch.setenv("HOLDFAST_URL", f"sqlite:///{path}/holdfast.db")
        patch.setenv("HOLDFAST_DURABILITY", "normal")
        yield path


def answer(event: str, data: bytes, place: Path) -> None:
    environ = {**os.environ, "HOLDFAST_URL": f"sqlite:///{place}/holdfast.db", "XDG_CACHE_HOME": str(place)}
    answered = respond(event, data, environ, HookLog(environ, event))
    assert answered is None or isinstance(answered, dict)
    json.loads(json.dumps(answered))


@QUICK
@given(EVENT, st.binary(max_size=200))
def test_any_bytes(place: Path, event: str, data: bytes) -> None:
    answer(event, data, place)


@QUICK
@given(EVENT, JSON)
def test_any_json(place: Path, event: str, value: Any) -> None:
    answer(event, json.dumps(value).encode(), place)


@QUICK
@given(EVENT, mutated())
def test_real_payloads_with_something_else_in_them(place: Path, event: str, payload: dict[str, Any]) -> None:
    answer(event, json.dumps(payload).encode(), place)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(EVENT, mutated())
def test_real_processes(event: str, payload: dict[str, Any]) -> None:
    run_hook(event, payload).harmless()


def test_a_defect_of_our_own_does_not_stop_the_agent(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def defect() -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr("holdfast.hooks.main._read_input", defect)
    assert main("pre-delegate") == 0
    assert capfd.readouterr() == ("", "")

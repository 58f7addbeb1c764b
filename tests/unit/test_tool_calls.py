"""Tool calls read out of events, of any shape that a provider may leave behind."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.clock import Instant
from holdfast.domain.events import Event, EventKind
from holdfast.domain.redaction import Json
from holdfast.domain.telling.tool_calls import CallOutcome, tool_calls


def called(call_id: str, tool: str = "Bash", **arguments: Json) -> Event:
    data: dict[str, Json] = {"call_id": call_id, "tool": tool, "arguments": dict(arguments)}
    return Event(1, EventKind.TOOL_CALL, data, Instant(0))


def returned(call_id: str, output: str = "fine", *, is_error: bool = False) -> Event:
    return Event(
        2, EventKind.TOOL_RESULT, {"call_id": call_id, "output": output, "is_error": is_error}, Instant(0)
    )


def outcomes(*events: Event, settled: bool = False, attempt: int = 1) -> list[CallOutcome]:
    return [call.outcome for call in tool_calls(1, [(attempt, event) for event in events], settled=settled)]


def test_a_call_ends_with_its_own_result() -> None:
    assert outcomes(
        called("a"), called("b"), called("c"), returned("b", is_error=True), returned("a")
    ) == [CallOutcome.OK, CallOutcome.ERROR, CallOutcome.IN_FLIGHT]  # fmt: skip


def test_nothing_is_in_flight_once_the_turn_was_answered() -> None:
    assert outcomes(called("a"), settled=True) == [CallOutcome.NOT_REPORTED]


def test_a_result_of_another_attempt_is_not_this_calls() -> None:
    (call,) = tool_calls(1, [(1, called("a")), (2, returned("a"))], settled=False)
    assert call.outcome is CallOutcome.IN_FLIGHT


def test_a_result_whose_call_is_not_there_says_nothing() -> None:
    assert outcomes(returned("a")) == []


@pytest.mark.parametrize(
    ("tool", "arguments", "files"),
    [
        ("Write", {"file_path": "/a.py", "content": "x"}, ("/a.py",)),
        ("MultiEdit", {"file_path": "/a.py"}, ("/a.py",)),
        ("NotebookEdit", {"notebook_path": "/a.ipynb"}, ("/a.ipynb",)),
        ("write_file", {"path": "a.py"}, ("a.py",)),
        ("edit", {"filePath": "/a.py"}, ("/a.py",)),
        ("file_change", {"changes": [{"path": "/a", "kind": "add"}, {"path": "/b"}, 7]}, ("/a", "/b")),
        ("Read", {"file_path": "/a.py"}, ()),
        ("Write", {"file_path": 7}, ()),
    ],
)
def test_files_written_are_recognised(tool: str, arguments: dict[str, Any], files: tuple[str, ...]) -> None:
    (call,) = tool_calls(1, [(1, called("a", tool, **arguments))], settled=True)
    assert call.written == files


def test_long_arguments_and_outputs_are_cut() -> None:
    events = [(1, called("a", command="x" * 100_000)), (1, returned("a", "y" * 100_000))]
    (call,) = tool_calls(1, events, settled=True)
    call = call.within(2000)
    assert len(call.arguments) + len(call.output) < 5000
    assert "characters left out" in call.arguments


_leaf = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
_json = _leaf | st.lists(_leaf, max_size=2) | st.dictionaries(st.text(max_size=5), _leaf, max_size=2)
_data = st.dictionaries(st.sampled_from(["call_id", "tool", "arguments", "output", "is_error"]), _json)


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(EventKind), _data), max_size=4))
def test_events_of_any_shape_are_read(events: list[tuple[int, EventKind, dict[str, Json]]]) -> None:
    found = tool_calls(1, [(a, Event(1, kind, data, Instant(0))) for a, kind, data in events], settled=False)
    assert len(found) == sum(kind is EventKind.TOOL_CALL for _, kind, _ in events)

from typing import Any

import pytest

from holdfast.domain.events import AgentEvent, Called, Ended, Named, Noted, Returned, Said, Spent
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.usage import Usage, UsageReport
from holdfast.providers.codex import CodexStream
from tests.unit.providers.builders import read_all, recorded, report_of, the_end


def events_of(case: str) -> list[AgentEvent]:
    return read_all(CodexStream(), recorded("codex", case))


def items(*items: dict[str, Any]) -> list[AgentEvent]:
    return read_all(CodexStream(), [{"type": "item.completed", "item": item} for item in items])


def test_a_turn_names_its_thread_and_answers() -> None:
    events = events_of("turn")
    first, *_ = recorded("codex", "turn")
    assert events[0] == Named(ProviderSessionId(first["thread_id"]))
    assert [type(event) for event in events] == [Named, Noted, Said, Spent, Ended]
    assert the_end(events).ok
    assert report_of(events).response


def test_a_resume_names_the_old_thread_and_a_fork_a_new_one() -> None:
    resumed, forked = events_of("resume")[0], events_of("fork")[0]
    assert isinstance(resumed, Named)
    assert isinstance(forked, Named)
    assert resumed != forked


def test_a_command_is_called_and_returns() -> None:
    events = events_of("tool")
    [called] = [event for event in events if isinstance(event, Called)]
    [returned] = [event for event in events if isinstance(event, Returned)]
    assert called.tool == "command_execution"
    assert returned.call_id == called.call_id
    assert not returned.is_error


def test_a_failed_command_says_so() -> None:
    [returned] = [event for event in events_of("failed_tool") if isinstance(event, Returned)]
    assert returned.is_error


def test_an_item_that_only_ends_was_called_too() -> None:
    change = {"id": "1", "type": "file_change", "changes": [{"path": "a.py", "kind": "add"}]}
    call = {"id": "2", "type": "mcp_tool_call", "server": "db", "tool": "query", "error": {"message": "no"}}
    assert items(change | {"status": "completed"}, call) == [
        Called("1", "file_change", {"changes": [{"path": "a.py", "kind": "add"}]}),
        Returned("1", "add a.py", is_error=False),
        Called("2", "mcp_tool_call", {"server": "db", "tool": "query"}),
        Returned("2", '{"message": "no"}', is_error=True),
    ]


def test_thoughts_and_lists_are_neither_text_nor_tool() -> None:
    assert items({"id": "1", "type": "reasoning", "text": "hm"}, {"id": "2", "type": "todo_list"}) == []


def test_several_messages_are_one_answer() -> None:
    events = items(*({"id": text, "type": "agent_message", "text": text} for text in ("first", "second")))
    assert report_of(events).response == "first\n\nsecond"


def test_tokens_count_since_the_thread_began() -> None:
    usage = {"input_tokens": 203, "cached_input_tokens": 40, "output_tokens": 14}
    spent, ended = read_all(CodexStream(), [{"type": "turn.completed", "usage": usage}])
    assert spent == Spent(UsageReport(Usage(203, 40, 14), cumulative=True))
    assert ended == Ended(ok=True)


@pytest.mark.parametrize(
    "case", ["http_400", "http_401", "http_429", "http_500", "http_529", "cut_stream", "empty_stream"]
)
def test_a_failed_turn_is_a_failure_with_its_message(case: str) -> None:
    ended = the_end(events_of(case))
    assert not ended.ok
    assert ended.error == recorded("codex", case)[-1]["error"]["message"]


def test_a_retry_is_not_the_end() -> None:
    lines = recorded("codex", "http_500")
    retry = next(line for line in lines if line["type"] == "error")
    assert read_all(CodexStream(), [retry]) == [Noted(retry["message"])]


def test_an_error_without_a_failed_turn_is_the_end() -> None:
    assert the_end(read_all(CodexStream(), [{"type": "error", "message": "boom"}])) == Ended(
        ok=False, error="boom"
    )


@pytest.mark.parametrize("case", ["interrupted", "resume_not_found"])
def test_a_run_that_stops_has_no_end(case: str) -> None:
    assert report_of(events_of(case)).ended is None

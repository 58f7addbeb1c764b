from typing import Any

import pytest

from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.usage import Usage, UsageReport
from holdfast.providers.codex.stream import CodexStream
from holdfast.providers.happenings import Called, Ended, Happening, Named, Noted, Returned, Said, Spent
from tests.unit.providers.builders import read_all, recorded, report_of, the_end


def happenings_of(case: str) -> list[Happening]:
    return read_all(CodexStream(), recorded("codex", case))


def items(*items: dict[str, Any]) -> list[Happening]:
    return read_all(CodexStream(), [{"type": "item.completed", "item": item} for item in items])


def test_a_turn_names_its_thread_and_answers() -> None:
    happenings = happenings_of("turn")
    first, *_ = recorded("codex", "turn")
    assert happenings[0] == Named(ProviderSessionId(first["thread_id"]))
    assert [type(happening) for happening in happenings] == [Named, Noted, Said, Spent, Ended]
    assert the_end(happenings).ok
    assert report_of(happenings).response


def test_a_resume_names_the_old_thread_and_a_fork_a_new_one() -> None:
    resumed, forked = happenings_of("resume")[0], happenings_of("fork")[0]
    assert isinstance(resumed, Named)
    assert isinstance(forked, Named)
    assert resumed != forked


def test_a_command_is_called_and_returns() -> None:
    happenings = happenings_of("tool")
    [called] = [happening for happening in happenings if isinstance(happening, Called)]
    [returned] = [happening for happening in happenings if isinstance(happening, Returned)]
    assert called.tool == "command_execution"
    assert returned.call_id == called.call_id
    assert not returned.is_error


def test_a_failed_command_says_so() -> None:
    [returned] = [happening for happening in happenings_of("failed_tool") if isinstance(happening, Returned)]
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
    happenings = items(*({"id": text, "type": "agent_message", "text": text} for text in ("first", "second")))
    assert report_of(happenings).response == "first\n\nsecond"


def test_tokens_count_since_the_thread_began() -> None:
    usage = {"input_tokens": 203, "cached_input_tokens": 40, "output_tokens": 14}
    spent, ended = read_all(CodexStream(), [{"type": "turn.completed", "usage": usage}])
    assert spent == Spent(UsageReport(Usage(203, 40, 14), cumulative=True))
    assert ended == Ended(ok=True)


@pytest.mark.parametrize(
    "case", ["http_400", "http_401", "http_429", "http_500", "http_529", "cut_stream", "empty_stream"]
)
def test_a_failed_turn_is_a_failure_with_its_message(case: str) -> None:
    ended = the_end(happenings_of(case))
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
    assert report_of(happenings_of(case)).ended is None

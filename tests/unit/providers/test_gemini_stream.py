from typing import Any

import pytest

from holdfast.domain.events import AgentEvent, Called, Ended, Named, Noted, Returned, Said, Spent
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.usage import Usage, UsageReport
from holdfast.providers.gemini import GeminiStream
from holdfast.providers.report import MAX_RESPONSE
from tests.unit.providers.builders import read_all, recorded, report_of, the_end

SHELL = "run_shell_command__run_shell_command_1794783144954_0"


def events_of(case: str) -> list[AgentEvent]:
    return read_all(GeminiStream(), recorded("gemini", case))


def assistant(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": text, "delta": True}


def test_a_turn_names_its_session_and_answers_without_the_echo_of_the_prompt() -> None:
    session = recorded("gemini", "turn")[0]["session_id"]
    assert events_of("turn") == [
        Named(ProviderSessionId(session)),
        Said("violet"),
        Spent(UsageReport(Usage(201, 40, 14))),
        Ended(ok=True, response="violet"),
    ]


def test_a_tool_is_called_and_returns() -> None:
    called, returned = (found for found in events_of("tool") if isinstance(found, Called | Returned))
    assert called == Called(SHELL, "run_shell_command", {"command": "echo made by a tool"})
    assert returned == Returned(SHELL, "made by a tool", is_error=False)


def test_a_tool_that_is_not_allowed_returns_an_error_and_fails_nothing() -> None:
    events = events_of("tool_with_default_rights")
    [returned] = [found for found in events if isinstance(found, Returned)]
    assert returned.is_error
    assert the_end(events).ok


def test_pieces_of_text_are_one_answer_and_what_was_said_before_a_tool_is_none() -> None:
    events = read_all(
        GeminiStream(),
        [
            assistant("let me "),
            assistant("see"),
            {"type": "tool_use", "tool_id": "1", "tool_name": "glob"},
            assistant("do"),
            assistant("ne"),
            {"type": "result", "status": "success"},
        ],
    )
    assert "".join(found.text for found in events if isinstance(found, Said)) == "let me see\n\ndone"
    assert report_of(events).response == "done"


@pytest.mark.parametrize(
    ("case", "status"), [("http_400", 400), ("http_401", 401), ("cut_stream", None), ("empty_stream", None)]
)
def test_a_failed_turn_has_a_message_and_the_status_in_it(case: str, status: int | None) -> None:
    """The exit code says nothing: it is 0 where the stream was empty."""
    ended = the_end(events_of(case))
    assert not ended.ok
    assert ended.error
    assert ended.status == status


def test_an_answer_without_a_word_is_an_answer() -> None:
    """The CLI asks several times, and calls it an error."""
    empty = (
        "The model returned an empty response with no text or thoughts. This may be a transient API issue."
    )
    events = read_all(
        GeminiStream(), [{"type": "error", "message": empty}, {"type": "result", "status": "error"}]
    )
    assert the_end(events).ok
    assert Noted(empty) in events
    assert report_of(events).response is None


def test_an_error_that_the_result_does_not_repeat_is_its_message() -> None:
    events = events_of("empty_stream")
    assert Noted("Model stream ended without a finish reason.") in events
    assert the_end(events).error == "Model stream ended without a finish reason."


@pytest.mark.parametrize("case", ["interrupted", "http_429", "http_500", "resume_not_found"])
def test_a_run_that_stops_has_no_end(case: str) -> None:
    assert report_of(events_of(case)).ended is None


def test_of_an_endless_answer_no_more_is_kept_than_shows_that_it_was_cut() -> None:
    events = read_all(
        GeminiStream(), [*[assistant("x" * 4096)] * 1000, {"type": "result", "status": "success"}]
    )
    assert the_end(events).response == "x" * (MAX_RESPONSE + 1)
    assert (report_of(events).response or "").endswith("[cut: the answer was longer]")

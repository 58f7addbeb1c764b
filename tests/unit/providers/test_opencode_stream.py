from typing import Any

import pytest

from holdfast.domain.events import AgentEvent, Called, Denied, Ended, Named, Returned, Said, Spent
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.usage import Usage, UsageReport
from holdfast.providers.opencode import OpencodeStream
from holdfast.providers.report import MAX_RESPONSE
from tests.unit.providers.builders import read_all, recorded, report_of, the_end

OVERFLOW = {"name": "ContextOverflowError", "data": {"message": "too long", "responseBody": "{}"}}


def events_of(case: str) -> list[AgentEvent]:
    return read_all(OpencodeStream(), recorded("opencode", case))


def read_lines(*lines: dict[str, Any]) -> list[AgentEvent]:
    return read_all(OpencodeStream(), lines)


def text(said: str, message: str = "msg_1", **fields: Any) -> dict[str, Any]:
    return {"type": "text", "part": {"type": "text", "messageID": message, "text": said} | fields}


def finish(reason: str, message: str = "msg_1", **fields: Any) -> dict[str, Any]:
    return {"type": "step_finish", "part": {"messageID": message, "reason": reason} | fields}


def test_a_turn_names_its_session_once_and_answers() -> None:
    events = events_of("turn")
    session = recorded("opencode", "turn")[0]["sessionID"]
    assert events[:2] == [Named(ProviderSessionId(session)), Said("violet")]
    assert the_end(events) == Ended(ok=True, response="violet")


def test_a_fork_names_another_session() -> None:
    source = "ses_e1e992195ffegnOiti1iHo27GL"
    first = events_of("fork")[0]
    assert isinstance(first, Named)
    assert first.session_id != source


def test_a_tool_is_seen_when_it_has_ended() -> None:
    called, returned = (found for found in events_of("tool") if isinstance(found, Called | Returned))
    assert called == Called(
        "call_lab000001", "bash", {"command": "echo made by a tool", "description": "Run it"}
    )
    assert returned == Returned("call_lab000001", "made by a tool\n", is_error=False)


def test_a_command_that_fails_is_completed_and_yet_an_error() -> None:
    [returned] = [found for found in events_of("failed_tool") if isinstance(found, Returned)]
    assert returned == Returned("call_lab000001", "on stderr\n", is_error=True)


def test_a_tool_that_was_refused_says_why() -> None:
    state = {"status": "error", "input": {"command": "ls"}, "error": "The user rejected permission"}
    line = {"type": "tool_use", "part": {"type": "tool", "tool": "bash", "callID": "1", "state": state}}
    assert read_lines(line) == [
        Called("1", "bash", {"command": "ls"}),
        Denied("1", "bash", "it asks for a permission that the settings of opencode do not give"),
        Returned("1", "The user rejected permission", is_error=True),
    ]


def test_tokens_and_cost_of_all_steps_are_added_up() -> None:
    tokens = {"input": 81, "output": 7, "reasoning": 3, "cache": {"read": 20, "write": 5}}
    events = read_lines(
        finish("tool-calls", tokens=tokens, cost=0.25), finish("stop", tokens=tokens, cost=0.5)
    )
    spent = [found.usage for found in events if isinstance(found, Spent)]
    assert spent == [UsageReport(Usage(106, 20, 10, 0.25)), UsageReport(Usage(212, 40, 20, 0.75))]


def test_what_was_said_before_a_tool_is_no_answer() -> None:
    report = report_of(
        read_lines(text("let me see", "1"), finish("tool-calls", "1"), text("done", "2"), finish("stop", "2"))
    )
    assert report.response == "done"


def test_an_answer_that_was_cut_is_an_answer() -> None:
    assert the_end(read_lines(text("long"), finish("length"))) == Ended(ok=True, response="long")


def test_an_answer_that_was_filtered_is_none() -> None:
    ended = the_end(read_lines(finish("content-filter")))
    assert (ended.ok, ended.code) == (False, "content-filter")


@pytest.mark.parametrize("reason", ["tool-calls", "unknown", ""])
def test_a_step_that_goes_on_is_not_the_end(reason: str) -> None:
    assert report_of(read_lines(finish(reason))).ended is None


@pytest.mark.parametrize(
    "case", ["interrupted", "empty_stream", "http_500", "cut_stream", "resume_not_found"]
)
def test_a_run_that_stops_has_no_end(case: str) -> None:
    assert report_of(events_of(case)).ended is None


@pytest.mark.parametrize(("case", "status"), [("http_400", 400), ("http_401", 401)])
def test_an_error_of_the_service_is_a_failure_with_its_status(case: str, status: int) -> None:
    ended = the_end(events_of(case))
    assert (ended.ok, ended.status, ended.code) == (False, status, "APIError")
    assert ended.error.startswith(f"the laboratory answers {status}\n")


def test_its_own_words_to_the_model_are_not_said() -> None:
    assert read_lines(text("Continue if you have next steps", synthetic=True)) == []


def test_an_error_that_it_got_over_is_kept_for_the_exit_code_that_follows() -> None:
    """It compacts the context and answers; the process ends with exit code 1 all the same."""
    ended = the_end(read_lines({"type": "error", "error": OVERFLOW}, text("an answer"), finish("stop")))
    assert ended == Ended(ok=True, response="an answer", error="too long\n{}", code="ContextOverflowError")


def test_of_an_endless_answer_no_more_is_kept_than_shows_that_it_was_cut() -> None:
    events = read_lines(*[text("x" * 4096)] * 1000, finish("stop"))
    assert len(the_end(events).response or "") == MAX_RESPONSE + 1
    assert (report_of(events).response or "").endswith("[cut: the answer was longer]")

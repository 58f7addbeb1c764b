from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.events import (
    MAX_WRITING,
    AgentEvent,
    Called,
    Deferred,
    Denied,
    Ended,
    Named,
    Noted,
    Returned,
    Said,
    Spent,
    Ungated,
    Writing,
)
from holdfast.domain.pointers import Rights
from holdfast.domain.usage import ContextUse, Usage
from holdfast.providers.claude.provider import ClaudeStream
from holdfast.providers.contract import ToolGate
from tests.unit.providers.builders import (
    FORK,
    FRESH,
    OLD,
    RESUME,
    a_launch_spec,
    read_all,
    recorded,
    report_of,
    the_end,
)


def events_of(case: str, **spec: Any) -> list[AgentEvent]:
    return read_all(ClaudeStream(a_launch_spec(**spec)), recorded("claude", case))


def read_lines(*lines: dict[str, Any]) -> list[AgentEvent]:
    return read_all(ClaudeStream(a_launch_spec()), lines)


def assistant(*content: dict[str, Any], **fields: Any) -> dict[str, Any]:
    message = {"id": "msg_1", "model": "opus", "content": list(content)}
    return {"type": "assistant", "message": message, "parent_tool_use_id": None} | fields


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def test_a_turn_names_its_session_once_and_answers() -> None:
    events = events_of("turn")
    assert isinstance(events[0], Named)
    assert [type(event) for event in events] == [Named, Said, Spent, Ended]
    report = report_of(events)
    assert report.ended is not None
    assert report.ended.ok
    assert report.response == recorded("claude", "turn")[-1]["result"]


def test_a_resumed_turn_names_the_session_it_was_asked_for() -> None:
    assert events_of("resume", decision=RESUME)[0] == Named(OLD)


def test_a_forked_turn_names_another_session() -> None:
    first = events_of("fork", decision=FORK)[0]
    assert isinstance(first, Named)
    assert first.session_id != OLD


def test_a_tool_is_called_and_returns() -> None:
    events = events_of("tool")
    [called] = [event for event in events if isinstance(event, Called)]
    [returned] = [event for event in events if isinstance(event, Returned)]
    assert called.tool == "Bash"
    assert "command" in called.arguments
    assert returned.call_id == called.call_id
    assert not returned.is_error
    assert not report_of(events).in_flight


def test_a_failed_tool_says_so() -> None:
    [returned] = [event for event in events_of("failed_tool") if isinstance(event, Returned)]
    assert returned.is_error


def test_a_denied_tool_is_noted_once() -> None:
    events = events_of("tool_with_default_rights")
    (denied,) = (event for event in events if isinstance(event, Denied))
    assert denied.words.startswith("Bash was not allowed: ")
    assert the_end(events).ok


@pytest.mark.parametrize(
    ("case", "status", "code"),
    [
        ("http_400", 400, "unknown"),
        ("http_401", 401, "authentication_failed"),
        ("http_429", 429, "rate_limit"),
        ("http_500", 500, "server_error"),
        ("http_529", 529, "server_error"),
        ("cut_stream", None, "server_error"),
        ("empty_stream", None, "unknown"),
    ],
)
def test_a_failed_call_to_the_model_is_a_failure_although_its_subtype_says_success(
    case: str, status: int | None, code: str
) -> None:
    events = events_of(case)
    assert recorded("claude", case)[-1]["subtype"] == "success"
    ended = the_end(events)
    assert not ended.ok
    assert (ended.status, ended.code) == (status, code)
    assert "API Error" in ended.error
    # the CLI wrote that message itself: the agent said nothing
    assert report_of(events).response is None


def test_a_status_that_is_only_in_the_text_of_the_cli_is_known() -> None:
    lines = recorded("claude", "http_400")
    del lines[-1]["api_error_status"]
    assert the_end(read_all(ClaudeStream(a_launch_spec(decision=RESUME)), lines)).status == 400


def test_a_session_that_is_gone_is_an_error_of_the_cli() -> None:
    events = events_of("resume_not_found", decision=RESUME)
    assert "No conversation found with session ID" in the_end(events).error
    assert not any(isinstance(event, Spent) for event in events)


def test_an_interrupted_run_is_no_success_and_keeps_what_was_said() -> None:
    events = events_of("interrupted")
    assert the_end(events).code == "aborted_streaming"
    assert not the_end(events).ok
    assert report_of(events).response == "partial"


def test_the_agents_own_words_never_reach_the_failure_channel() -> None:
    said = "No conversation found with session ID: nothing"
    events = read_lines(
        assistant(text(said)), {"type": "result", "is_error": True, "subtype": "success", "result": said}
    )
    assert the_end(events).error == ""


def test_cost_and_tokens_count_since_the_session_began() -> None:
    [spent] = [event for event in events_of("resume") if isinstance(event, Spent)]
    line = recorded("claude", "resume")[-1]
    [model] = line["modelUsage"].values()
    everything = model["inputTokens"] + model["cacheReadInputTokens"] + model["cacheCreationInputTokens"]
    assert spent.usage.cumulative
    assert spent.usage.usage == Usage(
        everything, model["cacheReadInputTokens"], model["outputTokens"], line["total_cost_usd"]
    )
    assert everything > line["usage"]["input_tokens"] + line["usage"]["cache_read_input_tokens"]


def test_the_context_is_what_the_last_call_of_the_main_agent_sent() -> None:
    def call(tokens: int, **fields: Any) -> dict[str, Any]:
        line = assistant(text("x"), **fields)
        usage = {"input_tokens": tokens, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 3}
        line["message"]["usage"] = usage
        return line

    models = {
        "haiku": {"inputTokens": 900, "contextWindow": 200},
        "opus[1m]": {"inputTokens": 1, "contextWindow": 1000},
    }
    events = read_lines(
        call(100),
        call(700),
        call(5, parent_tool_use_id="toolu_1"),
        {"type": "result", "is_error": False, "result": "x", "modelUsage": models},
    )
    [spent] = [event for event in events if isinstance(event, Spent)]
    assert spent.usage.context == ContextUse(723, 1000)


def test_a_subagents_words_are_not_the_answer_but_its_tools_count() -> None:
    tool = {"type": "tool_use", "id": "toolu_2", "name": "Bash", "input": {}}
    events = read_lines(assistant(text("sub-answer"), tool, parent_tool_use_id="toolu_1"))
    assert events == [Called("toolu_2", "Bash", {})]


def test_every_result_of_a_run_is_part_of_the_answer() -> None:
    results = [{"type": "result", "is_error": False, "result": text} for text in ("started", "finished")]
    assert report_of(read_lines(*results)).response == "started\n\nfinished"


def test_messages_that_no_result_repeats_are_kept_apart() -> None:
    other = assistant(text("second"))
    other["message"]["id"] = "msg_2"
    events = read_lines(assistant(text("first, ")), assistant(text("still first")), other)
    assert report_of(events).response == "first, still first\n\nsecond"


def test_replayed_history_says_nothing() -> None:
    assert read_lines(assistant(text("old"), isReplay=True), {"type": "result", "isReplay": True}) == []


def test_retries_fallbacks_and_compaction_are_noted() -> None:
    notes = read_lines(
        {"type": "system", "subtype": "api_retry", "attempt": 1, "max_retries": 10, "error_status": 529},
        {
            "type": "system",
            "subtype": "model_fallback",
            "original_model": "sonnet",
            "fallback_model": "haiku",
            "trigger": "overloaded",
        },
        {
            "type": "system",
            "subtype": "compact_boundary",
            "compact_metadata": {"pre_tokens": 900, "post_tokens": 20},
        },
    )
    assert notes == [
        Noted("the model's service failed (error, 529): retry 1 of 10"),
        Noted("sonnet was replaced by haiku (overloaded)"),
        Noted("Claude compacted its context from 900 to 20 tokens"),
    ]


def test_a_usage_limit_tells_when_it_ends() -> None:
    ended = the_end(
        read_lines(
            {
                "type": "rate_limit_event",
                "rate_limit_info": {"status": "rejected", "resetsAt": 1794790000},
            },
            {"type": "result", "is_error": True, "result": "You've hit your session limit"},
        )
    )
    assert ended.error == "You've hit your session limit\nresets_at=1794790000"


@pytest.mark.parametrize("argument", ["--append-system-prompt=x", "--system-prompt", "--system-prompt-file"])
def test_a_system_prompt_that_a_resumed_session_ignores_is_noted(argument: str) -> None:
    rights = Rights(extra_args=(argument,))
    ignored = events_of("resume", decision=RESUME, rights=rights)[0]
    assert isinstance(ignored, Noted)
    assert "keeps the system prompt" in ignored.text
    assert events_of("turn", decision=FRESH, rights=rights)[0] != ignored
    off = Rights(extra_args=(argument, "--system-prompt-snapshot", "off"))
    assert events_of("resume", decision=RESUME, rights=off)[0] == Named(OLD)


def test_an_empty_result_repeats_nothing() -> None:
    """A turn that waits for an approval ends with one."""
    events = read_lines(assistant(text("Let me see.")), {"type": "result", "is_error": False, "result": ""})
    assert report_of(events).response == "Let me see."


DEFERRED = {
    "type": "result", "is_error": False, "result": "", "stop_reason": "tool_deferred",
    "deferred_tool_use": {"id": "toolu_01", "name": "Bash", "input": {"command": "terraform apply"}},
}  # fmt: skip


def test_a_deferred_call_ends_the_run() -> None:
    assert read_lines(DEFERRED) == [Deferred("toolu_01", "Bash", {"command": "terraform apply"})]


def test_a_call_that_was_deferred_again_before_the_prompt_ran_is_not_how_it_ended() -> None:
    report = report_of(read_lines(DEFERRED, {"type": "result", "is_error": False, "result": "done"}))
    assert report.deferred is None
    assert report.response == "done"


def a_gate(folder: Path, approved: str | None = None) -> ToolGate:
    executed = None if approved is None else (approved, folder / "executed")
    return ToolGate("gate", 1, "arm", folder / "armed", "done", folder / "changed", executed)


@pytest.mark.parametrize("first", [{"type": "system", "subtype": "init"}, {"type": "command_lifecycle"}])
def test_an_agent_that_has_not_run_its_hooks_by_its_first_line_is_ungated(
    first: dict[str, Any], tmp_path: Path
) -> None:
    gate = a_gate(tmp_path)
    (ungated,) = ClaudeStream(a_launch_spec(gate=gate)).read(first)
    assert isinstance(ungated, Ungated)
    assert "does not run the hook" in ungated.why
    assert list(ClaudeStream(a_launch_spec()).read(first)) == []
    gate.armed.touch()
    assert list(ClaudeStream(a_launch_spec(gate=gate)).read(first)) == []


def a_result(call_id: str, *, is_error: bool = False) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": call_id, "content": "x", "is_error": is_error}
    return {"type": "user", "message": {"content": [block]}}


END = {"type": "result", "is_error": False, "result": "done"}


def ungated(gate: ToolGate, *lines: dict[str, Any]) -> list[str]:
    stream = ClaudeStream(a_launch_spec(gate=gate))
    return [found.why for line in lines for found in stream.read(line) if isinstance(found, Ungated)]


@pytest.mark.parametrize("line", [a_result("toolu_01"), END], ids=["when it returns", "at the end"])
def test_a_call_that_something_changed_is_told_at_once(line: dict[str, Any], tmp_path: Path) -> None:
    gate = a_gate(tmp_path)
    gate.armed.touch()
    assert ungated(gate, line) == []
    gate.changed.write_text("Bash did not run as it was approved")
    assert ungated(gate, line) == ["Bash did not run as it was approved"]


def test_an_approved_call_must_have_been_compared(tmp_path: Path) -> None:
    gate = a_gate(tmp_path, approved="toolu_01")
    gate.armed.touch()
    assert ungated(gate, a_result("toolu_02"), a_result("toolu_01", is_error=True)) == []
    (why,) = ungated(gate, a_result("toolu_01"))
    assert "cannot be compared" in why
    assert gate.approved is not None
    gate.approved[1].touch()
    assert ungated(gate, a_result("toolu_01"), END) == []


def test_an_agent_that_removes_its_gates_folder_is_ungated(tmp_path: Path) -> None:
    assert len(ungated(a_gate(tmp_path / "removed"), END)) == 1


def partial(event: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "stream_event", "event": event, "parent_tool_use_id": None} | fields


def begun(message_id: str, block: str = "text") -> tuple[dict[str, Any], dict[str, Any]]:
    return (
        partial({"type": "message_start", "message": {"id": message_id}}),
        partial({"type": "content_block_start", "index": 0, "content_block": {"type": block}}),
    )


def piece(written: str) -> dict[str, Any]:
    return partial({"type": "content_block_delta", "delta": {"type": "text_delta", "text": written}})


def test_partial_messages_show_the_text_as_far_as_it_is_written() -> None:
    events = events_of("partial_messages")
    assert [event for event in events if isinstance(event, Said | Writing)] == [
        Writing("vio"),
        Writing("violet"),
        Said("violet"),
    ]
    assert report_of(events).response == "violet"


def test_the_text_of_a_later_message_begins_as_it_will_be_said() -> None:
    found = read_lines(
        *begun("msg_1"),
        piece("I look"),
        assistant(text("I look")),
        *begun("msg_2"),
        piece("found"),
        assistant(text("found"), message={"id": "msg_2", "model": "opus", "content": [text("found")]}),
    )
    assert found == [Writing("I look"), Said("I look"), Writing("\n\nfound"), Said("\n\nfound")]


def test_a_message_that_is_written_anew_begins_at_its_beginning() -> None:
    assert read_lines(*begun("msg_1"), piece("It was"), *begun("msg_2"), piece("It is")) == [
        Writing("It was"),
        Writing("It is"),
    ]


def test_of_a_long_text_the_end_is_shown_and_how_much_came_before() -> None:
    *_, last = read_lines(*begun("msg_1"), piece("x" * MAX_WRITING), piece("end"))
    assert last == Writing("x" * (MAX_WRITING - 3) + "end", skipped=3)


@pytest.mark.parametrize(
    "line",
    [
        piece("of a subagent") | {"parent_tool_use_id": "toolu_1"},
        partial({"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}}),
        partial({"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hm"}}),
        partial({"type": "content_block_delta", "delta": None}),
        partial({}),
        {"type": "stream_event", "event": 7},
    ],
)
def test_what_is_no_text_of_the_agent_shows_nothing(line: dict[str, Any]) -> None:
    assert read_lines(*begun("msg_1"), line) == []

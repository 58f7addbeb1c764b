from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.providers.registry import get_provider
from tests.unit.providers.builders import RESUME, a_launch_spec, read_all, recorded, report_of

PROVIDERS = ("claude", "codex", "opencode", "gemini")
WORDS = st.sampled_from(
    ["system", "assistant", "user", "result", "rate_limit_event", "init", "api_retry", "permission_denied"]
    + ["thread.started", "turn.started", "turn.completed", "turn.failed", "item.started", "item.completed"]
    + ["step_finish", "step_start", "stop", "tool-calls", "message", "success", "completed"]
    + ["error", "text", "tool_use", "tool_result", "agent_message", "command_execution", "mcp_tool_call"]
)
KEYS = st.sampled_from(
    ["type", "subtype", "message", "content", "usage", "modelUsage", "session_id", "thread_id", "item"]
    + ["is_error", "errors", "result", "permission_denials", "rate_limit_info", "resetsAt", "error", "model"]
    + [
        "input_tokens",
        "contextWindow",
        "total_cost_usd",
        "api_error_status",
        "compact_metadata",
        "id",
        "changes",
    ]
    + ["sessionID", "part", "state", "reason", "tokens", "cache", "cost", "data", "statusCode", "status"]
    + ["role", "stats", "tool_id", "tool_name", "parameters", "output", "synthetic", "messageID", "metadata"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
LINES = st.dictionaries(KEYS, VALUES, max_size=6) | st.dictionaries(st.text(max_size=5), VALUES, max_size=4)


@pytest.mark.parametrize("provider", PROVIDERS)
@given(lines=st.lists(LINES, max_size=4))
def test_any_json_objects_can_be_read(provider: str, lines: list[dict[str, Any]]) -> None:
    report_of(read_all(get_provider(provider).stream(a_launch_spec(decision=RESUME)), lines))


@pytest.mark.parametrize("provider", PROVIDERS)
@given(data=st.data())
def test_a_real_line_with_one_field_of_another_shape_can_be_read(provider: str, data: st.DataObject) -> None:
    lines = recorded(provider, data.draw(st.sampled_from(["turn", "tool", "http_400", "failed_tool"])))
    line = data.draw(st.sampled_from(lines))
    place = line
    while True:
        key = data.draw(st.sampled_from(sorted(place)))
        inner = place[key]
        if not isinstance(inner, dict) or not inner or data.draw(st.booleans()):
            break
        place = inner
    place[key] = data.draw(VALUES)
    report_of(read_all(get_provider(provider).stream(a_launch_spec(decision=RESUME)), lines))

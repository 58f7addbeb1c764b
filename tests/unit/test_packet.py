"""The packet: what it says, and what gives way first when there is no room."""

import json

from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.inputs import utf8_size
from holdfast.domain.policy import ContextPolicy
from holdfast.domain.telling.packet import (
    GroundTruth,
    Packet,
    TurnFailure,
    frame_markdown,
    packet_document,
    packet_markdown,
)
from holdfast.domain.telling.tool_calls import CallOutcome, ToolCall
from holdfast.domain.usage import BYTES_PER_TOKEN, estimate_tokens
from tests.unit.past import a_packet, a_turn, packets

POLICY = ContextPolicy()
SMALLEST = ContextPolicy(packet_tokens=500)
APPLY = ToolCall(9, "Bash", '{"command": "terraform apply"}', CallOutcome.IN_FLIGHT)


def test_a_packet_tells_everything_in_order() -> None:
    titles = [
        line.removeprefix("## ")
        for line in packet_markdown(a_packet(in_flight=(APPLY,), open_approval="apply it?"), POLICY).splitlines()
        if line.startswith("## ")
    ]  # fmt: skip
    assert titles == [
        "Why this is a fresh session",
        "Goal",
        "Phase and step",
        "Ground truth",
        "In flight when it stopped: check before repeating",
        "Open approval",
        "What failed",
        "Last turns",
        "Tool calls",
        "Files written",
        "How turns were started",
        "Next step",
    ]


def test_what_is_empty_has_no_heading() -> None:
    text = packet_markdown(a_packet(failures=(), artifacts=(), tool_calls=()), POLICY)
    assert "What failed" not in text
    assert "Open approval" not in text


def test_a_directory_that_cannot_be_asked_says_so() -> None:
    truth = GroundTruth("/gone", problem="There is no such directory on this machine.")
    text = packet_markdown(a_packet(ground_truth=truth), POLICY)
    assert "- Directory: /gone\n- There is no such directory on this machine." in text
    assert "HEAD" not in text


def test_short_of_room_the_ground_truth_stays_and_the_past_gives_way() -> None:
    crowded = a_packet(
        in_flight=(APPLY,),
        turns=tuple(a_turn(n, "p" * 5000, "r" * 5000) for n in range(1, 9)),
        tool_calls=tuple(ToolCall(n, "Bash", "x" * 400, CallOutcome.OK) for n in range(1, 99)),
        artifacts=tuple(f"/project/{n}" for n in range(1000)),
    )
    text = packet_markdown(crowded, SMALLEST)
    assert "- HEAD: abc123 Add tests" in text
    assert "> a.py | 2 +-" in text.replace(">  ", "> ")
    assert "terraform apply" in text
    assert "earlier left out ...]" in text


def test_of_a_list_that_is_too_long_the_newest_stay() -> None:
    failures = tuple(TurnFailure(n, "unknown", "it broke " * 20) for n in range(1, 99))
    text = packet_markdown(a_packet(failures=failures), SMALLEST)
    assert "- turn 98, unknown: it broke" in packet_markdown(a_packet(failures=failures), POLICY)
    assert "- turn 1, unknown" not in text
    assert "earlier left out ...]" in text


def test_of_a_huge_diff_something_stays() -> None:
    truth = GroundTruth("/project", "main", "abc123", "?? new\n" * 100_000, "a | 1\n" * 100_000)
    text = packet_markdown(a_packet(ground_truth=truth), SMALLEST)
    assert "> ?? new" in text
    assert "characters left out" in text


@given(packets, st.integers(500, 4000), st.integers(600, 12_000))
def test_a_packet_never_exceeds_its_budget(packet: Packet, tokens: int, size: int) -> None:
    policy = ContextPolicy(packet_tokens=tokens)
    assert estimate_tokens(packet_markdown(packet, policy)) <= tokens
    frame = frame_markdown(packet, policy, size)
    assert utf8_size(frame) <= min(size, tokens * BYTES_PER_TOKEN)


def test_the_frame_leaves_out_what_stands_beside_it() -> None:
    frame = frame_markdown(a_packet(in_flight=(APPLY,)), POLICY, 100_000)
    for title in ("Why this is a fresh session", "Last turns", "Tool calls"):
        assert f"## {title}" not in frame
    assert "## Ground truth" in frame
    assert "terraform apply" in frame


@given(packets)
def test_no_text_can_add_a_line_of_ours(packet: Packet) -> None:
    lines = packet_markdown(packet, POLICY).splitlines()
    assert not [line for line in lines if line.startswith("[holdfast]")]
    assert sum(line == "## Ground truth" for line in lines) == 1


def test_the_next_step_is_to_check_what_was_in_flight() -> None:
    assert "calls in flight" in a_packet(in_flight=(APPLY,)).next_step
    assert "begun before" in a_packet(interrupted=True).next_step
    assert a_packet(failures=(TurnFailure(8, "auth", "401"),)).next_step.startswith("Turn 8 failed")
    assert a_packet().next_step == "Take up the request of turn 9."


def test_the_document_is_plain_json_with_a_version() -> None:
    document = json.loads(json.dumps(packet_document(a_packet(in_flight=(APPLY,)))))
    assert document["schema_version"] == 1
    assert document["why_fresh"]["reason"] == "runtime_changed"
    assert document["ground_truth"]["branch"] == "main"
    assert document["in_flight"][0]["tool"] == "Bash"
    assert document["open_approval"] is None

"""What a turn is sent: the request can always be told from the past, and the past is never silently lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.conversations import HistoryTurn, SeenTurns
from holdfast.domain.decisions import Because, Reason
from holdfast.domain.ids import AttemptId
from holdfast.domain.policy import ContextPolicy
from holdfast.domain.telling.answers import ToldAnswer
from holdfast.domain.telling.context import (
    Marker,
    NewRequest,
    compose_fresh,
    compose_resumed,
    current_request,
    most_turns,
    read_marker,
    read_past,
)
from holdfast.domain.telling.packet import Packet
from holdfast.domain.telling.tool_calls import CallOutcome, ToolCall
from holdfast.domain.telling.transcript import PastTold, PastTurn, ranges, transcript
from holdfast.domain.usage import estimate_tokens
from tests.unit.past import a_packet, a_turn, answers, histories, packets, requests, turns

History = Sequence[HistoryTurn]

POLICY = ContextPolicy()
SMALL = ContextPolicy(transcript_tokens=500, packet_tokens=500)
policies = st.builds(
    ContextPolicy,
    transcript_tokens=st.integers(500, 3000),
    packet_tokens=st.integers(500, 3000),
    message_characters=st.integers(1, 3000),
)
#: our own lines: why it is fresh, the marker, the gaps
OUR_OWN_TOKENS = 300


WHY = Because(Reason.RUNTIME_CHANGED, evidence="recorded on r-1, claimed by r-2")


def fresh(
    prompt: str, history: History = (), packet: Packet | None = None, policy: ContextPolicy = POLICY
) -> str:
    return compose_fresh(NewRequest(prompt, 9), as_past(history), packet, WHY, policy).text


def resumed(
    request: NewRequest, history: History, policy: ContextPolicy, *, interrupted: bool = False
) -> str:
    return compose_resumed(request, as_past(history), policy, interrupted=interrupted).text


def as_past(history: History) -> tuple[PastTurn, ...]:
    return tuple(PastTurn(turn) for turn in history)


# --- the request can be told from the past ---


@given(requests, histories, st.none() | packets, policies)
def test_no_past_can_pose_as_the_request_of_a_fresh_session(
    prompt: str, history: History, packet: Packet | None, policy: ContextPolicy
) -> None:
    assert current_request(fresh(prompt, history, packet, policy)) == prompt


@given(requests, histories, policies)
def test_no_catch_up_can_pose_as_the_request_of_a_resumed_session(
    prompt: str, history: History, policy: ContextPolicy
) -> None:
    assert current_request(resumed(NewRequest(prompt, 9), history, policy)) == prompt


@given(requests, answers, histories, policies)
def test_no_answer_can_pose_as_the_request(
    prompt: str, given: tuple[ToldAnswer, ...], history: History, policy: ContextPolicy
) -> None:
    request = NewRequest(prompt, 9, given)
    for sent in (
        resumed(request, history, policy),
        compose_fresh(request, as_past(history), None, WHY, policy).text,
    ):
        assert current_request(sent) == prompt


def test_the_newest_of_many_answers_are_told_and_the_others_counted() -> None:
    given = tuple(ToldAnswer(f"apr-{n}", "x" * 2000, "approved", "ada", "y" * 2000) for n in range(1, 31))
    for policy in (POLICY, SMALL):
        sent = resumed(NewRequest("Go.", 7, given), (), policy)
        assert "apr-30 is approved by ada" in sent
        assert "earlier left out ...]" in sent
        assert "apr-1 " not in sent
        assert estimate_tokens(sent) < policy.packet_tokens // 4 + OUR_OWN_TOKENS


def test_a_request_that_quotes_our_own_marker_is_sent_as_it_is() -> None:
    marker = resumed(NewRequest("", 3), (), POLICY)
    prompt = f"What does this mean?\n{marker}and this?"
    for sent in (
        fresh(prompt),
        fresh(prompt, turns(2)),
        resumed(NewRequest(prompt, 9), turns(1), POLICY),
    ):
        assert sent.endswith(prompt)
        assert current_request(sent) == prompt
    assert current_request(fresh(marker)) == marker


# --- resumed ---


def test_a_resumed_turn_is_marked_as_new() -> None:
    sent = resumed(NewRequest("Now the docs.", 7), (), POLICY)
    assert sent.splitlines() == [
        "[holdfast] turn 7: new request, not answered yet; everything above belongs to earlier turns",
        "Now the docs.",
    ]


def test_what_is_sent_says_which_attempt_sends_it() -> None:
    request = NewRequest("Now the docs.", 7, attempt_id=AttemptId("00ff00ff00ff00ff"))
    sent = resumed(request, (), POLICY)
    assert sent.startswith("[holdfast] turn 7, attempt 00ff00ff00ff00ff: new request, not answered yet;")
    assert (read_marker(sent), current_request(sent)) == (
        Marker(7, AttemptId("00ff00ff00ff00ff"), interrupted=False),
        "Now the docs.",
    )
    interrupted = resumed(request, (), POLICY, interrupted=True)
    assert read_marker(interrupted) == Marker(7, AttemptId("00ff00ff00ff00ff"), interrupted=True)


def test_what_older_versions_sent_is_still_read() -> None:
    sent = "[holdfast] turn 7: new request, not answered yet; everything above belongs to earlier turns\nGo."
    assert (read_marker(sent), current_request(sent)) == (Marker(7, None, interrupted=False), "Go.")
    assert read_marker("Go.") is None


def test_a_providers_own_command_is_sent_as_it_is_when_nothing_stands_before_it() -> None:
    assert resumed(NewRequest("/compact", 7), (), POLICY) == "/compact"
    assert resumed(NewRequest("/compact", 7), turns(1), POLICY).endswith("\n/compact")


def test_turns_of_others_come_before_the_request_and_are_quoted() -> None:
    sent = resumed(NewRequest("Go.", 7), [a_turn(5, "Review it.", "Looks\nfine.", agent="reviewer")], POLICY)
    assert "Turn 5, agent reviewer, done.\nRequest:\n> Review it.\nAnswer:\n> Looks\n> fine.\n" in sent
    assert sent.index("Looks") < sent.index("turn 7: new request")


def test_an_interrupted_turn_is_not_sent_its_request_again() -> None:
    sent = resumed(NewRequest("Deploy to production.", 7), (), POLICY, interrupted=True)
    assert "Deploy" not in sent
    assert sent.startswith("[holdfast] turn 7: interrupted before it ended; its request is already above\n")
    assert "Check what was already done" in current_request(sent)


def test_an_interrupted_command_of_a_provider_is_not_sent_again_either() -> None:
    assert "/compact" not in resumed(NewRequest("/compact", 7), (), POLICY, interrupted=True)


# --- fresh ---


def test_a_first_request_is_sent_as_it_is() -> None:
    assert fresh("Write the parser.") == "Write the parser."
    assert fresh("/init") == "/init"
    assert fresh("Write the parser.", (), a_packet(turns=())) == "Write the parser."


def test_a_history_that_fits_is_sent_whole_and_in_order() -> None:
    sent = fresh("Next.", turns(30), a_packet())
    places = [sent.index(f"answer {n} ") for n in range(1, 31)]
    assert places == sorted(places)
    assert "left out" not in sent
    assert "Ground truth" not in sent


def test_a_fresh_session_is_told_why_it_is_one_and_what_is_unknown() -> None:
    sent = fresh("Next.", turns(1))
    assert sent.startswith(
        "[holdfast] fresh session: runtime_changed, the earlier session belongs to another"
    )
    assert "Ids, background processes and the state of tools in an earlier session are unknown" in sent


def test_a_long_history_is_sent_whole_within_two_fifths_of_the_window() -> None:
    history = as_past(turns(61, 940))
    composed = compose_fresh(NewRequest("Next.", 62), history, a_packet(), WHY, POLICY)
    assert all(f"answer {n} {'r' * 940}" in composed.text for n in range(1, 62))
    assert composed.past == PastTold(tuple(range(1, 62)))
    assert "left out" not in composed.text
    assert "## Ground truth" not in composed.text


def test_of_a_history_that_does_not_fit_the_newest_is_whole_and_the_oldest_in_short() -> None:
    policy = ContextPolicy(transcript_tokens=20_000)
    request = NewRequest("Next.", 101, session_id="claude-1")
    composed = compose_fresh(request, as_past(turns(100, 1000)), a_packet(), WHY, policy)
    sent, cuts = composed.text, composed.past.cuts
    assert f"answer 100 {'r' * 1000}" in sent
    assert all(f"Request: request {n} " in sent for n in cuts.first_lines)
    assert cuts.first_lines[0] == 1
    assert cuts.left_out == ()
    assert composed.past.turns == tuple(range(1, 101))
    last = cuts.first_lines[-1]
    assert f"[... turns 1-{last} are summarised to their first lines; `holdfast log claude-1 --json`" in sent
    assert "`holdfast show claude-1 --turns 101 --json` the texts ...]" in sent
    assert "## Ground truth" in sent
    assert estimate_tokens(sent) <= 20_000 + OUR_OWN_TOKENS


def test_turns_are_left_out_only_when_not_even_their_first_lines_fit() -> None:
    policy = ContextPolicy(transcript_tokens=5_000)
    composed = compose_fresh(NewRequest("Next.", 999), as_past(turns(900, 1000)), None, WHY, policy)
    cuts = composed.past.cuts
    assert cuts.left_out[0] == 1
    assert cuts.first_lines[0] == cuts.left_out[-1] + 1
    assert "answer 900 " in composed.text
    assert f"[... turns 1-{cuts.left_out[-1]} are left out; " in composed.text


def test_a_tools_calls_and_results_are_part_of_the_past() -> None:
    calls = (
        ToolCall(1, "Bash", '{"command": "make"}', CallOutcome.OK, "42 passed\n[holdfast] fine"),
        ToolCall(1, "Bash", '{"command": "apply"}', CallOutcome.NOT_RUN, "approval apr-1 became void"),
    )
    sent = compose_fresh(NewRequest("Next.", 2), [PastTurn(a_turn(1), calls)], None, WHY, POLICY).text
    assert 'Tool calls:\n- ok: Bash {"command": "make"}\n> 42 passed\n> [holdfast] fine\n' in sent
    assert '- did NOT run: Bash {"command": "apply"}\n> approval apr-1 became void\nAnswer:' in sent


def test_results_of_tools_give_way_before_a_turn_is_told_by_its_first_lines() -> None:
    calls = tuple(ToolCall(1, "Bash", "{}", CallOutcome.OK, "x" * 5000) for _ in range(4))
    past = [PastTurn(a_turn(1), calls), PastTurn(a_turn(2))]
    composed = compose_fresh(NewRequest("Next.", 3), past, None, WHY, ContextPolicy(transcript_tokens=2_000))
    assert composed.past.cuts.results == 4
    assert composed.past.cuts.first_lines == ()
    assert composed.text.count("- ok: Bash {}") == 4
    assert "[... 4 tool results shortened ...]" in composed.text


def test_the_budget_is_a_share_of_the_window_that_is_known() -> None:
    history = as_past(turns(61, 940))
    for window, whole in ((1_000_000, True), (200_000, True), (50_000, False)):
        composed = compose_fresh(NewRequest("Next.", 62, window=window), history, None, WHY, POLICY)
        assert bool(composed.past.cuts) is not whole
        assert estimate_tokens(composed.text) <= 0.4 * window + OUR_OWN_TOKENS


def test_no_evidence_can_pose_as_a_line_of_ours() -> None:
    why = Because(Reason.RETIRED, evidence=f"it said\n{resumed(NewRequest('evil', 3), (), POLICY)}")
    sent = compose_fresh(NewRequest("Next.", 9), as_past(turns(1)), None, why, POLICY).text
    assert current_request(sent) == "Next."


def test_what_was_in_flight_is_told_even_if_the_history_fits() -> None:
    call = ToolCall(9, "Bash", "terraform apply", CallOutcome.IN_FLIGHT)
    sent = fresh("Apply it.", turns(2), a_packet(interrupted=True, in_flight=(call,)))
    assert "answer 2 " in sent
    assert "## In flight when it stopped: check before repeating" in sent
    assert "terraform apply" in sent


def test_a_first_turn_that_was_interrupted_is_told_what_it_had_begun() -> None:
    call = ToolCall(1, "Bash", "terraform apply", CallOutcome.IN_FLIGHT)
    sent = fresh("Apply it.", (), a_packet(turns=(), interrupted=True, in_flight=(call,)))
    assert "terraform apply" in sent
    assert current_request(sent) == "Apply it."


def test_a_long_message_is_cut_in_the_middle_only_where_it_does_not_fit() -> None:
    history = [a_turn(1, "x" * 20_000 + "end", "fine")]
    assert "x" * 20_000 in fresh("Next.", history)
    sent = fresh("Next.", history, policy=ContextPolicy(transcript_tokens=5_000))
    assert "[... 1 message shortened ...]" in sent
    assert "characters left out ...]" in sent
    assert "end\n" in sent


def test_what_no_program_takes_is_cleaned() -> None:
    sent = fresh("Next.", [a_turn(1, "a\x00b", "\ud800")], a_packet(goal="\x00", interrupted=True))
    assert "\x00" not in sent
    sent.encode()


@given(requests, histories, st.none() | packets, policies)
def test_the_past_never_costs_more_than_its_budget(
    prompt: str, history: History, packet: Packet | None, policy: ContextPolicy
) -> None:
    budget = policy.past_tokens(None)
    for sent in (
        fresh(prompt, history, packet, policy),
        resumed(NewRequest(prompt, 9), history, policy),
    ):
        assert estimate_tokens(sent) <= budget + estimate_tokens(prompt) + OUR_OWN_TOKENS


@pytest.mark.parametrize("huge", ["y" * 5_000_000, "\n" * 1_000_000, "\U0001f600" * 1_000_000])
def test_huge_texts_stay_within_the_budget(huge: str) -> None:
    history = [a_turn(n, huge, huge, agent=huge) for n in range(1, 4)]
    packet = a_packet(goal=huge, turns=tuple(history), artifacts=(huge,) * 3)
    for sent in (fresh("continue", history, packet), fresh("continue", history, None)):
        assert estimate_tokens(sent) <= POLICY.past_tokens(None) + OUR_OWN_TOKENS


def test_more_turns_than_could_ever_fit_need_not_be_read() -> None:
    shortest = [a_turn(1, "", None, agent="a") for _ in range(most_turns(SMALL))]
    assert "left out" in fresh("Next.", shortest, None, SMALL)


def test_however_many_gaps_a_cut_has_it_is_said_in_one_line() -> None:
    past = [PastTurn(a_turn(n, "x" * (9_000 if n % 2 else 10))) for n in range(1, 60)]
    policy = ContextPolicy(transcript_tokens=5_000, message_characters=8_000)
    composed = compose_fresh(NewRequest("Next.", 60, session_id="claude-1"), past, None, WHY, policy)
    assert " of the turns " in composed.past.cuts.words
    assert composed.past.cuts.words in composed.text
    assert "Turn 59, " in composed.text


# --- what went along with a request is read from what was sent ---


@given(requests, histories, policies)
def test_the_turns_that_went_along_are_read_from_what_was_sent(
    prompt: str, history: History, policy: ContextPolicy
) -> None:
    numbered = [replace(turn, seq=number) for number, turn in enumerate(history, 1)]
    composed = compose_resumed(NewRequest(prompt, 99), as_past(numbered), policy)
    told = sorted((*composed.past.turns, *composed.past.cuts.left_out))
    assert read_past(composed.text) == SeenTurns(ranges(told))


def test_turns_that_were_left_out_and_one_to_be_continued_count_as_told() -> None:
    past = [PastTurn(a_turn(n, "x" * 300)) for n in range(2, 60)]
    cut = compose_resumed(NewRequest("Next.", 60), past, SMALL)
    assert cut.past.cuts.left_out
    assert read_past(cut.text) == SeenTurns(((2, 59),))

    stopped = a_turn(7, "build it", None)
    meant = compose_resumed(NewRequest("continue", 8), [PastTurn(stopped)], POLICY, stopped=[stopped])
    assert read_past(meant.text) == SeenTurns(((7, 7),))


def test_nothing_went_along_with_what_was_sent_as_it_is() -> None:
    assert read_past("Turn 3, agent a, done.\nand more") == SeenTurns()


# --- "continue" ---


@pytest.mark.parametrize(
    "words", ["continue", "Continue!", "  go on ", "WEITER", "keep going…", "ok, please continue where you left off"]
)  # fmt: skip
def test_a_bare_continue_names_the_request_that_it_means(words: str) -> None:
    history = [a_turn(1, "Port the parser to Rust."), a_turn(2, "continue", None, status="failed")]
    sent = fresh(words, history)
    assert "[holdfast] to be continued: turn 1, whose request was\n> Port the parser to Rust.\n" in sent
    assert current_request(sent) == words


@pytest.mark.parametrize(
    "words", ["continue with the tests", "go to the next file", "resume parser: fix it", "go on " * 30]
)
def test_a_request_of_its_own_means_itself(words: str) -> None:
    assert "to be continued" not in fresh(words, turns(2))


def test_continue_names_the_request_even_if_the_history_does_not_fit() -> None:
    history = [a_turn(1, "Port the parser."), *(a_turn(n, "continue", "r" * 9000) for n in range(2, 30))]
    assert "> Port the parser.\n" in fresh("continue", history, a_packet(turns=tuple(history[-3:])))


def test_continue_with_nothing_to_continue_is_just_sent() -> None:
    assert fresh("continue") == "continue"
    assert "to be continued" not in fresh("continue", [a_turn(1, "weiter", None)])


def test_no_past_is_told_as_nothing_even_without_any_room() -> None:
    assert transcript((), -1, 1).text == ""

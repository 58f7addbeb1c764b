"""What a turn is sent: the request can always be told from the past, and the past is never silently lost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.conversations import HistoryTurn
from holdfast.domain.decisions import Reason
from holdfast.domain.policy import ContextPolicy
from holdfast.domain.telling.answers import ToldAnswer
from holdfast.domain.telling.context import (
    NewRequest,
    compose_fresh,
    compose_resumed,
    current_request,
    most_turns,
)
from holdfast.domain.telling.fresh_reasons import FRESH_REASONS
from holdfast.domain.telling.packet import Packet
from holdfast.domain.telling.tool_calls import CallOutcome, ToolCall
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


def fresh(
    prompt: str, history: History = (), packet: Packet | None = None, policy: ContextPolicy = POLICY
) -> str:
    return compose_fresh(NewRequest(prompt, 9), history, packet, Reason.RUNTIME_CHANGED, policy)


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
    assert current_request(compose_resumed(NewRequest(prompt, 9), history, policy)) == prompt


@given(requests, answers, histories, policies)
def test_no_answer_can_pose_as_the_request(
    prompt: str, given: tuple[ToldAnswer, ...], history: History, policy: ContextPolicy
) -> None:
    request = NewRequest(prompt, 9, given)
    for sent in (
        compose_resumed(request, history, policy),
        compose_fresh(request, history, None, Reason.RUNTIME_CHANGED, policy),
    ):
        assert current_request(sent) == prompt


def test_the_newest_of_many_answers_are_told_and_the_others_counted() -> None:
    given = tuple(ToldAnswer(f"apr-{n}", "x" * 2000, "approved", "ada", "y" * 2000) for n in range(1, 31))
    for policy in (POLICY, SMALL):
        sent = compose_resumed(NewRequest("Go.", 7, given), (), policy)
        assert "apr-30 is approved by ada" in sent
        assert "earlier left out ...]" in sent
        assert "apr-1 " not in sent
        assert estimate_tokens(sent) < policy.packet_tokens // 4 + OUR_OWN_TOKENS


def test_a_request_that_quotes_our_own_marker_is_sent_as_it_is() -> None:
    marker = compose_resumed(NewRequest("", 3), (), POLICY)
    prompt = f"What does this mean?\n{marker}and this?"
    for sent in (
        fresh(prompt),
        fresh(prompt, turns(2)),
        compose_resumed(NewRequest(prompt, 9), turns(1), POLICY),
    ):
        assert sent.endswith(prompt)
        assert current_request(sent) == prompt
    assert current_request(fresh(marker)) == marker


# --- resumed ---


def test_a_resumed_turn_is_marked_as_new() -> None:
    sent = compose_resumed(NewRequest("Now the docs.", 7), (), POLICY)
    assert sent.splitlines() == [
        "[holdfast] turn 7: new request, not answered yet; everything above belongs to earlier turns",
        "Now the docs.",
    ]


def test_a_providers_own_command_is_sent_as_it_is_when_nothing_stands_before_it() -> None:
    assert compose_resumed(NewRequest("/compact", 7), (), POLICY) == "/compact"
    assert compose_resumed(NewRequest("/compact", 7), turns(1), POLICY).endswith("\n/compact")


def test_turns_of_others_come_before_the_request_and_are_quoted() -> None:
    sent = compose_resumed(
        NewRequest("Go.", 7), [a_turn(5, "Review it.", "Looks\nfine.", agent="reviewer")], POLICY
    )
    assert "Turn 5, agent reviewer, done.\nRequest:\n> Review it.\nAnswer:\n> Looks\n> fine.\n" in sent
    assert sent.index("Looks") < sent.index("turn 7: new request")


def test_an_interrupted_turn_is_not_sent_its_request_again() -> None:
    sent = compose_resumed(NewRequest("Deploy to production.", 7), (), POLICY, interrupted=True)
    assert "Deploy" not in sent
    assert sent.startswith("[holdfast] turn 7: interrupted before it ended; its request is already above\n")
    assert "Check what was already done" in current_request(sent)


def test_an_interrupted_command_of_a_provider_is_not_sent_again_either() -> None:
    assert "/compact" not in compose_resumed(NewRequest("/compact", 7), (), POLICY, interrupted=True)


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
    assert sent.startswith("[holdfast] fresh session: runtime_changed, it ran on another machine")
    assert "Ids, background processes and the state of tools in an earlier session are unknown" in sent


def test_every_reason_has_words() -> None:
    assert set(FRESH_REASONS) == set(Reason)


def test_a_history_that_does_not_fit_is_replaced_by_the_packet() -> None:
    sent = fresh("Next.", turns(200, 1000), a_packet(turns=turns(200)[-3:]))
    assert "## Ground truth" in sent
    assert "answer 200 " in sent
    assert "answer 100 " not in sent


def test_without_a_packet_the_newest_turns_stay_and_the_rest_is_counted() -> None:
    sent = fresh("Next.", turns(200, 1000), None)
    assert "answer 200 " in sent
    assert "answer 1 " not in sent
    kept = sent.count("Request:")
    assert f"[... {200 - kept} earlier turns left out, " in sent


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


def test_a_message_over_the_cap_is_cut_in_the_middle_and_says_so() -> None:
    sent = fresh("Next.", [a_turn(1, "x" * 20_000 + "end", "fine")])
    assert "[... 8,041 characters left out ...]" in sent
    assert "end\n" in sent


def test_what_no_program_takes_is_cleaned() -> None:
    sent = fresh("Next.", [a_turn(1, "a\x00b", "\ud800")], a_packet(goal="\x00", interrupted=True))
    assert "\x00" not in sent
    sent.encode()


@given(requests, histories, st.none() | packets, policies)
def test_the_past_never_costs_more_than_its_budget(
    prompt: str, history: History, packet: Packet | None, policy: ContextPolicy
) -> None:
    budget = max(policy.transcript_tokens, policy.packet_tokens)
    for sent in (
        fresh(prompt, history, packet, policy),
        compose_resumed(NewRequest(prompt, 9), history, policy),
    ):
        assert estimate_tokens(sent) <= budget + estimate_tokens(prompt) + OUR_OWN_TOKENS


@pytest.mark.parametrize("huge", ["y" * 5_000_000, "\n" * 1_000_000, "\U0001f600" * 1_000_000])
def test_huge_texts_stay_within_the_budget(huge: str) -> None:
    history = [a_turn(n, huge, huge, agent=huge) for n in range(1, 4)]
    packet = a_packet(goal=huge, turns=tuple(history), artifacts=(huge,) * 3)
    for sent in (fresh("continue", history, packet), fresh("continue", history, None)):
        assert estimate_tokens(sent) <= POLICY.transcript_tokens + OUR_OWN_TOKENS


def test_more_turns_than_could_ever_fit_need_not_be_read() -> None:
    shortest = [a_turn(1, "", None, agent="a") for _ in range(most_turns(SMALL))]
    assert "left out" in fresh("Next.", shortest, None, SMALL)


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

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.policy import ResumePolicy
from holdfast.domain.usage import (
    NO_USAGE,
    ContextState,
    ContextUse,
    Usage,
    UsageReport,
    check_report,
    check_usage,
    context_state,
    estimate_tokens,
    usage_delta,
)
from holdfast.errors import InvalidInput

counts = st.integers(min_value=0, max_value=2**53)
#: cents as binary fractions, so that sums are exact
costs = st.integers(min_value=0, max_value=2**20).map(lambda n: n / 64)
usages = st.builds(Usage, counts, counts, counts, costs)


def test_usage_adds_up_field_by_field() -> None:
    assert Usage(1, 2, 3, 0.5) + Usage(10, 20, 30, 0.25) == Usage(11, 22, 33, 0.75)


@given(usages)
def test_no_usage_changes_nothing(usage: Usage) -> None:
    assert usage + NO_USAGE == NO_USAGE + usage == usage


@given(usages, usages)
def test_the_delta_of_a_growing_counter_is_what_was_added(before: Usage, added: Usage) -> None:
    assert usage_delta(before + added, before) == added


@given(usages)
def test_a_first_report_is_all_new(reported: Usage) -> None:
    assert usage_delta(reported, NO_USAGE) == reported


def test_a_counter_that_went_down_was_reset_and_is_all_new() -> None:
    assert usage_delta(Usage(5, 5, 5, 0.5), Usage(100, 100, 100, 2.0)) == Usage(5, 5, 5, 0.5)


@given(usages, usages)
def test_a_delta_is_never_negative(reported: Usage, baseline: Usage) -> None:
    delta = usage_delta(reported, baseline)

    assert min(delta.input_tokens, delta.cached_input_tokens, delta.output_tokens, delta.cost_usd) >= 0


@pytest.mark.parametrize(
    ("tokens", "state"),
    [
        (0, ContextState.OK),
        (69_999, ContextState.OK),
        (70_000, ContextState.WARN),
        (79_999, ContextState.WARN),
        (80_000, ContextState.REFRESH),
        (94_999, ContextState.REFRESH),
        (95_000, ContextState.CRITICAL),
        (100_000, ContextState.CRITICAL),
        (250_000, ContextState.CRITICAL),
    ],
)
def test_a_window_is_watched_at_70_left_at_80_and_closed_at_95_percent(
    tokens: int, state: ContextState
) -> None:
    assert context_state(ContextUse(tokens, 100_000), ResumePolicy()) is state


def test_the_prompt_that_is_about_to_be_sent_counts() -> None:
    use = ContextUse(70_000, 100_000)

    assert context_state(use, ResumePolicy(), extra_tokens=9_999) is ContextState.WARN
    assert context_state(use, ResumePolicy(), extra_tokens=10_000) is ContextState.REFRESH


def test_the_thresholds_are_a_policy() -> None:
    policy = ResumePolicy(context_warn=0.1, context_refresh=0.2, context_critical=0.3)

    states = [context_state(ContextUse(tokens, 10), policy) for tokens in range(4)]

    assert states == [ContextState.OK, ContextState.WARN, ContextState.REFRESH, ContextState.CRITICAL]


@given(st.integers(), st.integers(max_value=0), st.integers())
def test_a_window_that_is_not_known_is_never_full(tokens: int, window: int, extra: int) -> None:
    assert context_state(ContextUse(tokens, window), ResumePolicy(), extra) is ContextState.OK


@pytest.mark.parametrize(
    ("tokens", "window", "state"),
    [
        (10**400, 1, ContextState.CRITICAL),
        (10**400, 10**401, ContextState.OK),
        (-(10**400), 1, ContextState.OK),
        (1, 10**400, ContextState.OK),
    ],
    ids=["overfull", "both-huge", "negative", "huge-window"],
)
def test_no_number_is_too_large_to_judge(tokens: int, window: int, state: ContextState) -> None:
    assert context_state(ContextUse(tokens, window), ResumePolicy()) is state


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("a", 1),
        ("abc", 1),
        ("abcd", 2),
        ("é", 1),
        ("éé", 2),
        ("漢字", 2),
        ("🦀", 2),
        ("\ud800", 1),
    ],
    ids=["empty", "one", "three", "four", "two-bytes", "four-bytes", "six-bytes", "emoji", "lone-surrogate"],
)
def test_three_bytes_are_guessed_to_be_a_token(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


@given(st.text(), st.text())
def test_more_text_is_never_fewer_tokens(text: str, more: str) -> None:
    assert estimate_tokens(text + more) >= estimate_tokens(text)


@given(usages)
def test_what_was_used_is_accepted(usage: Usage) -> None:
    check_usage(usage)


@pytest.mark.parametrize("field", ["input_tokens", "cached_input_tokens", "output_tokens"])
@pytest.mark.parametrize("count", [-1, 2**53 + 1, 1.5, True, "7", None])
def test_what_is_no_count_of_tokens_is_refused(field: str, count: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_usage(replace(NO_USAGE, **{field: count}))

    assert refused.value.field == field


@pytest.mark.parametrize("cost", [-0.01, float("nan"), float("inf"), float("-inf"), 1e300, "1", None, True])
def test_what_is_no_cost_is_refused(cost: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_usage(Usage(cost_usd=cost))

    assert refused.value.field == "cost_usd"


@pytest.mark.parametrize("context", [ContextUse(-1, 200_000), ContextUse(7, -1), ContextUse(2**60, 2**60)])
def test_a_context_that_cannot_be_is_refused(context: ContextUse) -> None:
    with pytest.raises(InvalidInput):
        check_report(UsageReport(context=context))

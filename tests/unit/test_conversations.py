"""What a provider session has seen, kept as ranges, behaves like the plain set of its turns."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.conversations import SeenTurns
from tests.unit.builders import a_truncation, an_edit

LAST = 30
turns = st.integers(min_value=1, max_value=LAST)
turn_sets = st.sets(turns)
#: also what is no turn at all
numbers = st.integers(min_value=-3, max_value=LAST + 3)


def seen(members: Iterable[int]) -> SeenTurns:
    wanted = set(members)
    return SeenTurns.up_to(LAST, without=set(range(1, LAST + 1)) - wanted)


def spelled_out(ranges: Iterable[tuple[int, int]]) -> list[int]:
    return [turn for first, last in ranges for turn in range(first, last + 1)]


def are_ranges_as_wide_as_possible(ranges: tuple[tuple[int, int], ...]) -> bool:
    covered = spelled_out(ranges)
    gaps = sum(later - earlier > 1 for earlier, later in pairwise(covered))
    return covered == sorted(set(covered)) and len(ranges) == (gaps + 1 if covered else 0)


@given(turn_sets, numbers)
def test_a_turn_is_in_it_exactly_when_it_is_in_the_set(members: set[int], turn: int) -> None:
    assert (turn in seen(members)) == (turn in members)


@given(turn_sets)
def test_ranges_are_sorted_separate_and_as_wide_as_possible(members: set[int]) -> None:
    ranges = seen(members).ranges

    assert spelled_out(ranges) == sorted(members)
    assert are_ranges_as_wide_as_possible(ranges)


@given(st.integers(min_value=-3, max_value=LAST), st.lists(numbers))
def test_up_to_covers_everything_but_the_holes(last: int, holes: list[int]) -> None:
    assert spelled_out(SeenTurns.up_to(last, holes).ranges) == sorted(set(range(1, last + 1)) - set(holes))


@given(turn_sets)
def test_what_is_written_is_read_back(members: set[int]) -> None:
    written = str(seen(members))

    assert SeenTurns.parse(written) == seen(members)


@given(turn_sets)
def test_the_last_turn_is_the_largest(members: set[int]) -> None:
    assert seen(members).last == max(members, default=0)


@given(turn_sets, turns, turns)
def test_a_truncation_touches_it_when_one_of_its_turns_is_affected(
    members: set[int], one: int, other: int
) -> None:
    first, last = sorted((one, other))

    touched = seen(members).touched_by(a_truncation(first, last, revision=1))

    assert touched == bool(members & set(range(first, last + 1)))


@given(turn_sets, turns)
def test_an_edit_touches_it_when_the_turn_was_seen(members: set[int], turn: int) -> None:
    assert seen(members).touched_by(an_edit(turn, revision=1)) == (turn in members)


@given(turn_sets, st.integers(min_value=-3, max_value=LAST + 10))
def test_what_is_missing_is_everything_else_up_to_there(members: set[int], last: int) -> None:
    missing = seen(members).missing_up_to(last)

    assert spelled_out(missing) == sorted(set(range(1, last + 1)) - members)
    assert are_ranges_as_wide_as_possible(missing)


@pytest.mark.parametrize(
    ("written", "ranges"),
    [("", ()), ("7", ((7, 7),)), ("1-4,6", ((1, 4), (6, 6))), ("1-10000", ((1, 10_000),))],
)
def test_ranges_are_written_as_on_a_printed_page(written: str, ranges: tuple[tuple[int, int], ...]) -> None:
    assert SeenTurns.parse(written) == SeenTurns(ranges)
    assert str(SeenTurns(ranges)) == written


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "1-",
        "-1",
        "0",
        "0-3",
        "4-1",
        "1-4,4",
        "1-4,2-3",
        "6,1-4",
        "1,",
        ",1",
        "1,,2",
        "1 - 4",
        " 1",
        "1\n",
        "+1",
        "01",
        "1-1",
        "1_0",
        "1-2-3",
        "1.0",
        "\u0661",
        "9" * 5000,
    ],
)
def test_anything_else_is_not_read(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # int() has its own words
        SeenTurns.parse(text)


@given(st.text(alphabet="0123456789-, x", max_size=12))
def test_what_can_be_read_is_what_would_be_written(text: str) -> None:
    try:
        parsed = SeenTurns.parse(text)
    except ValueError:
        return
    assert str(parsed) == text


def test_ten_thousand_turns_are_one_range() -> None:
    assert len(SeenTurns.up_to(10_000).ranges) == 1


@given(turn_sets, turn_sets)
def test_two_of_them_add_up_and_are_taken_from_each_other_as_sets_are(one: set[int], other: set[int]) -> None:
    assert seen(one).union(seen(other)) == seen(one | other)
    assert seen(one).without(seen(other)) == seen(one - other)

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import clock as clock_module
from holdfast.clock import (
    SECOND,
    Instant,
    after,
    from_datetime,
    running_from,
    seconds_between,
    system_clock,
    to_datetime,
    to_iso,
)
from tests.clock import give_time

FIRST = datetime(1, 1, 1, tzinfo=UTC)
LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)

moments = st.datetimes(
    min_value=FIRST.replace(tzinfo=None), max_value=LAST.replace(tzinfo=None), timezones=st.just(UTC)
)
instants = moments.map(from_datetime)


@given(moments)
def test_a_moment_is_kept_to_the_microsecond(moment: datetime) -> None:
    assert to_datetime(from_datetime(moment)) == moment


@given(instants)
def test_an_instant_is_read_back_from_its_iso_text(instant: Instant) -> None:
    assert from_datetime(datetime.fromisoformat(to_iso(instant))) == instant


@given(instants, instants)
def test_instants_are_ordered_like_the_moments_they_stand_for(one: Instant, other: Instant) -> None:
    assert (one < other) == (to_datetime(one) < to_datetime(other))


@pytest.mark.parametrize(
    ("instant", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_767_895_530 * SECOND, "2026-01-08T18:05:30Z"),
        (1_767_895_530 * SECOND + 1, "2026-01-08T18:05:30.000001Z"),
        (1_767_895_530 * SECOND + 500_000, "2026-01-08T18:05:30.500000Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
    ],
)
def test_an_instant_is_written_in_utc_with_a_fraction_only_where_there_is_one(
    instant: int, text: str
) -> None:
    assert to_iso(Instant(instant)) == text


def test_a_moment_elsewhere_is_the_same_instant() -> None:
    elsewhere = datetime(2026, 1, 8, 20, 5, 30, tzinfo=timezone(timedelta(hours=2)))

    assert to_iso(from_datetime(elsewhere)) == "2026-01-08T18:05:30Z"


def test_a_moment_without_a_zone_is_taken_as_utc() -> None:
    naive = datetime(2026, 1, 8, 18, 5, 30)  # noqa: DTZ001  # that is the point

    assert to_iso(from_datetime(naive)) == "2026-01-08T18:05:30Z"


@pytest.mark.parametrize(
    ("seconds", "microseconds"),
    [(0, 0), (1800, 1_800_000_000), (0.000001, 1), (0.1, 100_000), (-1.5, -1_500_000), (2.000001, 2_000_001)],
)
def test_after_is_exact_to_the_microsecond(seconds: float, microseconds: int) -> None:
    assert after(Instant(7), seconds) == 7 + microseconds


@given(st.integers(min_value=-(10**6), max_value=10**6), st.integers(min_value=0, max_value=10**9))
def test_seconds_between_is_what_after_added(start: int, microseconds: int) -> None:
    end = after(Instant(start), microseconds / SECOND)

    assert seconds_between(Instant(start), end) == microseconds / SECOND


def test_the_system_clock_says_what_time_it_is() -> None:
    before = datetime.now(UTC)
    said = to_datetime(system_clock())
    behind = datetime.now(UTC)

    assert before <= said <= behind


def test_a_clock_that_was_set_runs_on_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = iter([7 * 10**9, 7 * 10**9, 9_500_000 * 10**3])
    give_time(clock_module, monkeypatch, monotonic_ns=lambda: next(passed))
    clock = running_from(Instant(1_000 * SECOND))

    assert clock() == 1_000 * SECOND
    assert clock() == 1_002.5 * SECOND

"""The measures: what each is computed from, its target, and that no data is not met."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.clock import DAY, Instant
from holdfast.domain.statistics import BOUNDS, Measure, Total, TotalKind, Totals, figures, quantile

NOW = Instant(20_000 * DAY + DAY // 2)


def a_total(what: TotalKind, detail: str, number: int = 1, agent: str = "a", amount: float = 0.0) -> Total:
    return Total(what, agent, "claude", detail, number, amount)


def measured(*rows: Total, since: Instant | None = None) -> dict[str, Measure]:
    first = Instant(19_999 * DAY) if rows else None
    return {one.name: one for one in figures(Totals(first, rows), NOW, 5_000_000, since).measures}


def bucket_of(seconds: float) -> int:
    return sum(seconds >= bound for bound in BOUNDS)


def test_without_data_no_target_is_met_or_missed_but_that_of_the_storage() -> None:
    found = measured()
    assert found.pop("storage").met is True
    assert found.pop("vault").met is None
    assert {(one.value, one.met) for one in found.values()} == {(None, None)}
    assert found["resume_rate"].target == "> 60%"


def test_the_vault_does_not_count_against_the_target_of_the_storage() -> None:
    told = figures(Totals(None, ()), NOW, 300_000_000, vault=250_000_000).measures
    found = {one.name: one for one in told}
    assert (found["storage"].value, found["storage"].met) == (50_000_000, True)
    assert (found["vault"].value, found["vault"].met) == (250_000_000, None)


def test_the_resume_rate_leaves_out_first_attempts_and_second_halves_of_a_try() -> None:
    found = measured(
        a_total(TotalKind.ATTEMPT, "fresh no_pointer done first", 10),
        a_total(TotalKind.ATTEMPT, "resume resumable done next", 5),
        a_total(TotalKind.ATTEMPT, "fork resumable failed next", 1),
        a_total(TotalKind.ATTEMPT, "resume resumable fell_back next", 1),
        a_total(TotalKind.ATTEMPT, "fresh retired done same", 1),
        a_total(TotalKind.ATTEMPT, "resume resumable put_back same", 4),
        a_total(TotalKind.ATTEMPT, "fresh workdir_changed done next", 3),
    )
    rate, success = found["resume_rate"], found["resume_success"]
    assert (rate.value, rate.met, rate.of) == (0.7, True, {"resumed": 7, "could_resume": 10})
    assert (success.met, success.of) == (False, {"answered": 5, "resumed": 7})


def test_delegations_and_questions_of_scripts_count_alike() -> None:
    found = measured(
        a_total(TotalKind.DELEGATION, "new", 1),
        a_total(TotalKind.DELEGATION, "resumed", 2),
        a_total(TotalKind.DELEGATION, "asked_new", 3),
        a_total(TotalKind.DELEGATION, "asked_resumed", 4),
    )
    assert found["delegations_resumed"].of == {"resumed": 6, "delegations": 10}


def test_a_target_that_is_only_just_reached_is_not_met() -> None:
    found = measured(
        a_total(TotalKind.ATTEMPT, "resume resumable done next", 6),
        a_total(TotalKind.ATTEMPT, "fresh busy done next", 4),
        a_total(TotalKind.SESSION, "delegated", 10),
        a_total(TotalKind.SESSION_WITH_ERROR, "delegated", 1),
    )
    assert (found["resume_rate"].value, found["resume_rate"].met) == (0.6, False)
    assert (found["error_rate"].value, found["error_rate"].met) == (0.1, False)


def test_the_creation_rate_is_by_day_of_the_window() -> None:
    rows = (a_total(TotalKind.SESSION, "delegated", 6), a_total(TotalKind.SESSION, "conversation", 3, "b"))
    assert measured(*rows)["creation_rate"].value == 9 / 1.5
    assert measured(*rows, since=Instant(19_991 * DAY))["creation_rate"].value == 9 / 9.5
    assert measured(*rows, since=Instant(20_000 * DAY))["creation_rate"].value == 9


def test_the_lists_begin_with_the_largest() -> None:
    rows = (
        a_total(TotalKind.SESSION, "delegated", 1, "a"),
        a_total(TotalKind.SESSION, "delegated", 2, "b"),
        a_total(TotalKind.SESSION, "conversation", 1, "b"),
        a_total(TotalKind.ATTEMPT, "fresh no_pointer done first", 7),
        a_total(TotalKind.ATTEMPT, "fresh busy done next", 1),
        a_total(TotalKind.ATTEMPT, "fresh context_full failed next", 2),
        a_total(TotalKind.ATTEMPT, "resume resumable fell_back next", 3),
    )
    found = figures(Totals(NOW, rows), NOW, 0)
    assert list(found.agents.items()) == [("b", 3), ("a", 1)]
    assert found.fresh_starts == {"context_full": 2, "busy": 1}
    assert found.fallbacks == 3


@given(st.lists(st.floats(0.25, 2_000_000), min_size=1), st.sampled_from([0.5, 0.95]))
def test_a_quantile_is_right_to_within_ten_percent_and_on_the_right_side_of_its_target(
    durations: list[float], share: float
) -> None:
    buckets: dict[int, int] = {}
    for seconds in durations:
        buckets[bucket_of(seconds)] = buckets.get(bucket_of(seconds), 0) + 1
    exact = sorted(durations)[max(0, -(-int(share * 100) * len(durations) // 100) - 1)]
    told = quantile(buckets, share)
    assert told is not None
    assert exact / 1.1 <= told <= exact * 1.1
    for target in (300, 1800):
        assert (told < target) == (exact < target)

"""Counters of a store say what ever happened in it, whoever asks, and never fall, whatever is deleted."""

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.domain.phases import Phase
from holdfast.store.contract import Store
from holdfast.store.open import open_store
from holdfast.web import metrics
from holdfast.web.metrics import StoreFigures
from tests.steps import begin, run


@pytest.fixture
def store() -> Iterator[Store]:
    opened = open_store("sqlite:///:memory:")
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_COUNTED_SECONDS", 0.0)
    monkeypatch.setattr(metrics, "_PART", 0)


def sums(figures: StoreFigures) -> dict[str, float]:
    """Each figure, whatever its labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(figures.exposition().decode()):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def test_what_was_there_before_the_first_look_is_counted(store: Store) -> None:
    session = begin(store)
    run(store, session)
    store.remove_session(session.id)
    run(store, begin(store))

    seen = sums(StoreFigures(store))

    assert seen["holdfast_sessions"] == 1
    assert (seen["holdfast_sessions_created_total"], seen["holdfast_turns_ended_total"]) == (2, 2)


def test_what_has_not_happened_yet_is_nothing_and_not_missing(store: Store) -> None:
    seen = sums(StoreFigures(store))

    for name in ("sessions_created", "delegations", "delegations_ended", "fallbacks", "resume_attempts"):
        assert seen[f"holdfast_{name}_total"] == 0


def test_what_is_deleted_stays_counted(store: Store) -> None:
    figures = StoreFigures(store)
    sums(figures)
    sessions = [begin(store), begin(store)]
    run(store, sessions[0])
    store.finalize_session(sessions[0].id, Phase.COMPLETED, None)
    before = sums(figures)

    store.remove_session(sessions[0].id)
    after = sums(figures)

    assert (before["holdfast_sessions"], after["holdfast_sessions"]) == (2, 1)
    for name in (
        "holdfast_sessions_created_total",
        "holdfast_turns_ended_total",
        "holdfast_attempts_total",
        "holdfast_session_duration_seconds_count",
    ):
        assert after[name] == before[name] > 0, name
    begin(store)
    assert sums(figures)["holdfast_sessions_created_total"] == 3


def test_those_who_ask_often_get_the_same_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_COUNTED_SECONDS", 3600.0)
    figures = StoreFigures(store)
    first = figures.exposition()
    begin(store)

    assert figures.exposition() == first

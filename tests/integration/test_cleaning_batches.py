"""Cleaning up in batches: what happens between two of them, and what is left when the next one never comes."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from holdfast.clock import Instant, after
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import Old, Session, SessionUpdate
from holdfast.store.contract import Store
from holdfast.store.open import open_store
from holdfast.store.sql import retention
from tests.builders import a_session_id
from tests.clock import ManualClock
from tests.consistency import assert_consistent, driver_of
from tests.steps import begin, run

BATCH = 2


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Iterator[Store]:
    with closing(open_store("sqlite:///:memory:", clock=clock)) as store:
        yield store


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", BATCH)


@pytest.fixture
def before_batch(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int, Callable[[], object]], None]:
    """Something happens just before a batch begins."""
    driver = driver_of(store)

    def arrange(number: int, happens: Callable[[], object]) -> None:
        write, begun = driver.write, iter(range(1, 100))

        def hooked(**how: Any) -> object:
            if next(begun) == number:
                monkeypatch.setattr(driver, "write", write)
                happens()
            return write(**how)

        monkeypatch.setattr(driver, "write", hooked)

    return arrange


def final(store: Store, session: Session) -> Session:
    return store.finalize_session(session.id, Phase.COMPLETED, None)


def soon(store: Store) -> Instant:
    return after(store.now(), 60)


class Interrupted(BaseException):
    pass


def interrupt() -> None:
    raise Interrupted


def test_the_report_is_the_sum_of_all_batches(store: Store) -> None:
    old = {final(store, begin(store)).id for _ in range(2 * BATCH)}
    idle = {begin(store).id for _ in range(BATCH + 1)}

    foreseen = store.clean_up(Old(soon(store)), dry_run=True)
    report = store.clean_up(Old(soon(store)))

    assert (set(report.deleted), set(report.abandoned)) == (old, idle)
    assert foreseen == report
    assert_consistent(store)


def test_an_interruption_leaves_whole_batches_and_the_next_call_goes_on(
    store: Store, clock: ManualClock, before_batch: Callable[[int, Callable[[], object]], None]
) -> None:
    parent = begin(store)
    run(store, parent)
    clock.advance(1)
    family = [parent, *(store.fork(parent.id, a_session_id()) for _ in range(BATCH + 1))]
    for member in family:
        final(store, member)
    before_batch(2, interrupt)

    with pytest.raises(Interrupted):
        store.clean_up(Old(soon(store)))

    left = {child.id for child in store.children(parent.id)}
    assert len(left) == len(family) - 1 - BATCH, "the forks of the first batch are gone, and nothing else"
    assert_consistent(store)
    assert set(store.clean_up(Old(soon(store))).deleted) == {parent.id, *left}


def test_what_comes_to_life_between_two_batches_is_spared(
    store: Store, clock: ManualClock, before_batch: Callable[[int, Callable[[], object]], None]
) -> None:
    parent = begin(store)
    run(store, parent)
    clock.advance(1)
    for session in (parent, *(begin(store) for _ in range(BATCH))):
        final(store, session)
    idle = [begin(store) for _ in range(2 * BATCH)]
    cutoff = soon(store)

    def others_work() -> None:
        clock.advance(120)
        store.fork(parent.id, a_session_id())
        store.update_session(idle[-1].id, SessionUpdate(metadata={"still": "here"}))

    before_batch(2, others_work)
    report = store.clean_up(Old(cutoff))

    assert parent.id not in report.deleted, "its fork reads through to it"
    assert set(report.abandoned) == {session.id for session in idle[:-1]}
    assert_consistent(store)

"""Races that a crowd meets too rarely: one side stands still before its commit, the other waits, and then sees.

On SQLite, with its one writer, there is nothing to meet.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

import pytest

from holdfast.clock import after
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import Old, Session
from holdfast.domain.turns import Claim, Launch, TurnStatus
from holdfast.errors import Conflict, LeaseLost, Refused
from holdfast.store.contract import Store
from holdfast.store.open import open_store
from holdfast.store.sql import claims, history, leases, provider_sessions
from holdfast.store.sql.heads import QueueMemory
from holdfast.store.sql.scope import Scope
from holdfast.store.sql_store import SqlStore
from tests.builders import a_claim, a_pointer, a_provider_session_id, a_runtime, a_session_id
from tests.clock import ManualClock
from tests.consistency import assert_consistent
from tests.processes import LIMIT_SECONDS, until
from tests.steps import begin, claim, enqueue, join, point_to, resumed_id, run

WAITING_FOR_A_LOCK = """
SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"""

pytestmark = pytest.mark.timeout(60)
T = TypeVar("T")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(postgres_url: str, clock: ManualClock) -> Iterator[SqlStore]:
    with closing(open_store(postgres_url, clock=clock)) as store:
        assert isinstance(store, SqlStore)
        yield store
        assert_consistent(store)


def race(store: SqlStore, first: Callable[[Scope], object], second: Callable[[], T]) -> Future[T]:
    """The second side, which had to wait until the first one was committed."""
    with ThreadPoolExecutor(1) as pool, store._writing() as s:
        assert first(s) is not False
        s.one("SELECT 1")  # what it has done without asking for an answer is sent by now
        waiting = pool.submit(second)
        until(lambda: waits_for_a_lock(store) or waiting.done())
        assert not waiting.done(), "it did not wait"
    return waiting


def waits_for_a_lock(store: SqlStore) -> bool:
    with store._driver.read() as tx:
        return bool(tx.all(WAITING_FOR_A_LOCK, {}))


def claims_in(session: Session) -> Callable[[Scope], bool]:
    return lambda s: claims.claim(s, a_claim(session_id=session.id), QueueMemory()) is not None


def two_in_one(store: Store) -> tuple[Session, Session, ProviderSessionId]:
    """Two sessions that both want to go on in one provider session."""
    shared = a_provider_session_id()
    one, other = begin(store), begin(store)
    for session in (one, other):
        point_to(store, session, shared)
        enqueue(store, session, "go on")
    return one, other, shared


def an_expired_writer(store: Store, clock: ManualClock) -> tuple[Claim, Session]:
    """The claim of one whose lease has expired, and the session that may take its provider session."""
    one, other, _ = two_in_one(store)
    held = claim(store, one)
    clock.advance(61)
    return held, other


def test_two_claims_never_take_one_provider_session(store: SqlStore) -> None:
    one, other, _ = two_in_one(store)

    second = race(store, claims_in(one), lambda: store.claim_turn(a_claim(session_id=other.id)))

    assert second.result(LIMIT_SECONDS) is None


def test_a_late_heartbeat_sees_who_has_just_become_the_writer(store: SqlStore, clock: ManualClock) -> None:
    held, other = an_expired_writer(store, clock)

    beat = race(store, claims_in(other), lambda: store.heartbeat(held.lease, 60))

    with pytest.raises(LeaseLost):
        beat.result(LIMIT_SECONDS)


def test_a_claim_sees_the_heartbeat_that_has_just_come(store: SqlStore, clock: ManualClock) -> None:
    held, other = an_expired_writer(store, clock)

    second = race(
        store,
        lambda s: leases.heartbeat(s, held.lease, 60),
        lambda: store.claim_turn(a_claim(session_id=other.id)),
    )

    assert second.result(LIMIT_SECONDS) is None
    store.heartbeat(held.lease, 60)


def test_recovery_does_not_wait_for_a_transaction_that_stands_still(
    store: SqlStore, clock: ManualClock
) -> None:
    """As that of a machine which lost its power: every worker would wait for it, and nobody would claim."""
    session = begin(store)
    enqueue(store, session, "work")
    held = claim(store, session)
    clock.advance(61)
    (orphan,) = store.orphans()

    with store._writing() as s, ThreadPoolExecutor(1) as pool:
        assert leases.is_held(s, held.lease)
        with pytest.raises(Conflict):
            pool.submit(store.recover, orphan).result(LIMIT_SECONDS)

    assert store.recover(orphan).status is TurnStatus.QUEUED


def test_a_late_launch_sees_who_has_just_become_the_writer(store: SqlStore, clock: ManualClock) -> None:
    held, other = an_expired_writer(store, clock)
    assert resumed_id(held.decision)

    launched = race(store, claims_in(other), lambda: store.launch(held.lease, Launch(held.decision)))

    with pytest.raises(LeaseLost):
        launched.result(LIMIT_SECONDS)


def test_a_pointer_is_not_set_to_what_is_just_being_retired(store: SqlStore) -> None:
    store.register_runtime(a_runtime())
    pointer = a_pointer(begin(store).id)
    retire = provider_sessions.retire

    second = race(
        store,
        lambda s: retire(s, pointer.session_id, "claude", pointer.provider_session_id, "by hand"),
        lambda: store.set_pointer(pointer),
    )

    with pytest.raises(Refused, match="retired"):
        second.result(LIMIT_SECONDS)


def test_retiring_takes_away_the_pointer_that_is_just_being_set(store: SqlStore) -> None:
    store.register_runtime(a_runtime())
    pointer = a_pointer(begin(store).id)

    second = race(
        store,
        lambda s: provider_sessions.set_pointer(s, pointer),
        lambda: store.retire(pointer.session_id, "claude", pointer.provider_session_id, "by hand"),
    )

    second.result(LIMIT_SECONDS)
    assert store.pointer(pointer.session_id, "claude") is None


def test_truncating_never_drops_the_turn_that_another_agent_is_just_claiming(store: SqlStore) -> None:
    mine = begin(store)
    theirs = join(store, mine, "theirs")
    enqueue(store, theirs, "work")

    truncated = race(store, claims_in(theirs), lambda: store.truncate(mine.id, 0))

    with pytest.raises(Conflict):
        truncated.result(LIMIT_SECONDS)
    assert store.get_turn(mine.conversation_id, 1).dropped is None


def test_cleaning_up_does_not_wait_and_spares_what_is_just_being_forked(store: SqlStore) -> None:
    parent = begin(store)
    run(store, parent)
    store.finalize_session(parent.id, Phase.COMPLETED, None)

    with store._writing() as s:
        child = history.fork(s, parent.id, a_session_id(), None, None)
        report = store.clean_up(Old(after(store.now(), 60)))

    assert report.count == 0
    assert [turn.response for turn in store.history(child.conversation_id)] == ["re: go on"]


def test_what_a_deadlock_undoes_is_done_again(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Someone locks in the other order; the server ends the wait that began first, which is ours."""
    import psycopg

    monkeypatch.setenv("PGOPTIONS", "-c deadlock_timeout=3s")
    patient = "-c search_path=holdfast -c deadlock_timeout=60s"
    with (
        closing(open_store(postgres_url)) as ours,
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(postgres_url, options=patient) as stranger,
    ):
        assert isinstance(ours, SqlStore)
        session = begin(ours)
        stranger.execute("SELECT 1 FROM sessions FOR UPDATE")
        recorded = pool.submit(run, ours, session)
        until(lambda: waits_for_a_lock(ours))

        stranger.execute("SELECT 1 FROM conversations FOR UPDATE")
        stranger.commit()

        recorded.result(LIMIT_SECONDS)
        assert [turn.response for turn in ours.history(session.conversation_id)] == ["re: go on"]
        assert_consistent(ours)

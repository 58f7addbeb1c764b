"""Long chains of forks cost what their length costs; a chain that closes to a ring is named, and walked by nobody."""

from collections.abc import Callable, Iterator

import pytest

from holdfast.domain.sessions import Session
from holdfast.engine.holdfast import Holdfast
from holdfast.errors import StoreCorrupt
from holdfast.store.contract import Store
from holdfast.store.open import open_store
from tests.builders import a_claim, a_session_id
from tests.clock import ManualClock
from tests.integration.sqlite_file import driver_of
from tests.steps import begin, enqueue, run


@pytest.fixture
def store() -> Iterator[Store]:
    opened = open_store("sqlite:///:memory:", clock=ManualClock())
    yield opened
    opened.close()


def fork(store: Store, session: Session) -> Session:
    return store.fork(session.id, a_session_id())


def chain(store: Store, length: int) -> Session:
    """The youngest of a chain of forks, of which the oldest has run one turn."""
    session = begin(store)
    run(store, session, "one")
    for _ in range(length):
        session = fork(store, session)
    return session


def statements(store: Store, verb: Callable[[], object]) -> int:
    """How many it takes."""
    seen: list[str] = []
    with driver_of(store).raw() as connection:
        connection.set_trace_callback(seen.append)
    verb()
    with driver_of(store).raw() as connection:
        connection.set_trace_callback(None)
    return len(seen)


def test_a_fork_costs_the_same_however_long_the_chain_is(store: Store) -> None:
    young, old = chain(store, 40), chain(store, 2)
    assert statements(store, lambda: fork(store, young)) == statements(store, lambda: fork(store, old))


def test_a_history_costs_what_its_chain_is_long(store: Store) -> None:
    short, middle, long = (chain(store, length).conversation_id for length in (20, 40, 80))
    costs = [
        statements(store, lambda: store.history(short)),
        statements(store, lambda: store.history(middle)),
        statements(store, lambda: store.history(long)),
    ]
    assert costs[2] - costs[1] == 2 * (costs[1] - costs[0])
    assert [turn.prompt for turn in store.history(long)] == ["one"]


def test_a_fork_at_an_earlier_turn_of_an_ancestor_is_found_through_the_chain(store: Store) -> None:
    session = begin(store)
    for prompt in ("one", "two", "three"):
        run(store, session, prompt)
    youngest = fork(store, fork(store, session))
    store.truncate(youngest.id, 2)
    child = fork(store, youngest)
    assert [turn.prompt for turn in store.history(child.conversation_id)] == ["one", "two"]
    assert [
        turn.seq for turn in store.history(store.fork(child.id, a_session_id(), at=1).conversation_id)
    ] == [1]


@pytest.fixture
def ring(store: Store) -> Session:
    """A session with a turn that waits, forked from its own grandchild."""
    first = begin(store)
    run(store, first, "one")
    last = fork(store, fork(store, first))
    enqueue(store, first, "two", priority=9)
    with driver_of(store).write() as tx:
        tx.run(
            "UPDATE sessions SET parent_session_id = :last WHERE id = :first",
            {"first": first.id, "last": last.id},
        )
        tx.run(
            "UPDATE conversations SET parent_id = :last, fork_seq = 1, fork_revision = 1 WHERE id = :first",
            {"first": first.conversation_id, "last": last.conversation_id},
        )
    return first


def test_whoever_walks_a_ring_is_told(store: Store, ring: Session) -> None:
    holdfast = Holdfast(store)
    verbs: tuple[Callable[[], object], ...] = (
        lambda: holdfast.tree(ring.id),
        lambda: holdfast.history(ring.id),
        lambda: holdfast.edit(ring.id, 1, prompt="again"),
        lambda: holdfast.truncate(ring.id, 0),
        lambda: holdfast.retry(ring.id, 1),
    )
    for verb in verbs:
        with pytest.raises(StoreCorrupt, match="its own ancestor"):
            verb()


def test_a_ring_holds_up_no_other_session(store: Store, ring: Session) -> None:
    other = begin(store)
    enqueue(store, other, "go on")
    claims = [store.claim_turn(a_claim()) for _ in range(2)]
    assert other.id in {claim.turn.session_id for claim in claims if claim}
    assert Holdfast(store).cleanup(0).count >= 0

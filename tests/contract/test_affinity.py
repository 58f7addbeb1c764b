"""Owns the clauses on affinity: whoever holds a session's runtime comes first, for a while, and then anyone."""

from __future__ import annotations

import pytest

from holdfast.clock import after
from holdfast.domain.decisions import Resume
from holdfast.domain.policy import Policy, QueuePolicy
from holdfast.domain.runtimes import Runtime
from holdfast.domain.sessions import Session
from holdfast.domain.turns import Claim
from holdfast.errors import InvalidInput
from holdfast.store.contract import Store
from tests.builders import (
    a_claim,
    a_codex_runtime,
    a_provider_session_id,
    a_runtime,
    a_session_id,
    failed,
)
from tests.clock import ManualClock
from tests.contract.conftest import MakeStore
from tests.steps import begin, claim, enqueue, point_to, run

pytestmark = pytest.mark.usefixtures("watched")

HERE, THERE = a_runtime(), a_runtime(machine="build-8")
AFFINITY = 30.0


def look(store: Store, runtime: Runtime, affinity: float | None = None) -> str | None:
    """The prompt of what this runtime is given, if anything."""
    claimed = store.claim_turn(a_claim(runtime=runtime, affinity_seconds=affinity))
    return None if claimed is None else claimed.turn.prompt


class TestAffinity:
    @pytest.fixture
    def store(self, make_store: MakeStore) -> Store:
        return make_store(policy=Policy(queue=QueuePolicy(affinity_seconds=AFFINITY)))

    @pytest.fixture
    def session(self, store: Store) -> Session:
        """It ran here."""
        session = begin(store)
        run(store, session, runtime=HERE)
        return session

    def test_at_first_a_turn_is_for_the_runtime_that_its_session_ran_on(
        self, store: Store, session: Session
    ) -> None:
        enqueue(store, session, "go on")

        assert look(store, THERE) is None
        assert look(store, HERE) == "go on"

    def test_after_a_while_it_is_for_anyone(self, store: Store, clock: ManualClock, session: Session) -> None:
        enqueue(store, session, "go on")

        clock.advance(AFFINITY - 1)
        assert look(store, THERE) is None
        clock.advance(1)
        assert look(store, THERE) == "go on"

    def test_then_its_own_runtime_may_still_have_it(
        self, store: Store, clock: ManualClock, session: Session
    ) -> None:
        enqueue(store, session, "go on")
        clock.advance(AFFINITY)

        assert look(store, HERE) == "go on"

    def test_it_keeps_its_place_in_the_queue(
        self, store: Store, clock: ManualClock, session: Session
    ) -> None:
        enqueue(store, session, "older")
        clock.advance(1)
        enqueue(store, begin(store), "newer")
        clock.advance(AFFINITY)

        assert [look(store, THERE), look(store, THERE)] == ["older", "newer"]

    def test_more_turns_of_the_session_do_not_make_it_longer(
        self, store: Store, clock: ManualClock, session: Session
    ) -> None:
        enqueue(store, session, "one")
        clock.advance(AFFINITY - 1)
        enqueue(store, session, "two")
        clock.advance(1)

        assert look(store, THERE) == "one"

    def test_a_session_that_ran_nowhere_is_for_anyone_at_once(self, store: Store) -> None:
        enqueue(store, begin(store), "begin")

        assert look(store, THERE) == "begin"

    def test_what_another_provider_did_does_not_count(self, store: Store, session: Session) -> None:
        enqueue(store, session, "review", provider="codex")

        assert look(store, a_codex_runtime(machine="build-8")) == "review"

    def test_a_branch_is_for_the_runtime_that_can_branch_off(self, store: Store, session: Session) -> None:
        branch = store.fork(session.id, a_session_id())
        enqueue(store, branch, "another way")

        assert look(store, THERE) is None
        assert look(store, HERE) == "another way"

    def test_who_asks_for_the_session_itself_does_not_wait(self, store: Store, session: Session) -> None:
        enqueue(store, session, "go on")

        assert claim(store, session, THERE).turn.prompt == "go on"

    def test_a_pinned_turn_is_never_anyones(self, store: Store, clock: ManualClock, session: Session) -> None:
        store.register_runtime(THERE)
        enqueue(store, session, "only there", runtime_id=THERE.id)
        clock.advance(10 * AFFINITY)

        assert look(store, HERE) is None
        assert store.claim_turn(a_claim(runtime=HERE, session_id=session.id)) is None
        assert look(store, THERE) == "only there"

    def test_it_begins_when_a_turn_could_run(
        self, store: Store, clock: ManualClock, session: Session
    ) -> None:
        enqueue(store, session, "later", not_before=after(clock(), 3600))
        clock.advance(3600)

        assert look(store, THERE) is None
        clock.advance(AFFINITY)
        assert look(store, THERE) == "later"

    @pytest.mark.parametrize("ending", ["finished", "to be retried", "put back", "recovered"])
    def test_it_begins_again_with_what_comes_next(
        self, store: Store, clock: ManualClock, session: Session, ending: str
    ) -> None:
        enqueue(store, session, "one")
        enqueue(store, session, "two")
        clock.advance(AFFINITY)
        _end(store, clock, claim(store, session, HERE), ending)

        assert look(store, THERE) is None
        assert look(store, HERE) == ("two" if ending == "finished" else "one")

    def test_the_runtime_that_took_over_is_the_next_to_come_first(
        self, store: Store, clock: ManualClock, session: Session
    ) -> None:
        enqueue(store, session, "go on")
        clock.advance(AFFINITY)
        run(store, session, "and on", THERE)
        enqueue(store, session, "again")

        assert look(store, HERE) is None
        claimed = claim(store, session, THERE)
        assert isinstance(claimed.decision, Resume)

    def test_it_can_be_turned_off(self, make_store: MakeStore) -> None:
        store = make_store(policy=Policy(queue=QueuePolicy(affinity_seconds=0)))
        session = begin(store)
        run(store, session, runtime=HERE)
        enqueue(store, session, "go on")

        assert look(store, THERE) == "go on"

    @pytest.mark.parametrize("enqueuers", [0.0, AFFINITY, 3600.0])
    def test_how_long_is_for_the_one_who_claims_to_say(
        self, make_store: MakeStore, clock: ManualClock, enqueuers: float
    ) -> None:
        store = make_store(policy=Policy(queue=QueuePolicy(affinity_seconds=enqueuers)))
        session = begin(store)
        run(store, session, runtime=HERE)
        enqueue(store, session, "go on")
        clock.advance(59)

        assert look(store, THERE, 3600) is None
        assert look(store, THERE, 60) is None
        clock.advance(1)
        assert look(store, THERE, 60 + 1e-6) is None
        assert look(store, THERE, 60) == "go on"

    def test_who_does_not_wait_takes_nothing_from_those_who_do(
        self, store: Store, clock: ManualClock, session: Session
    ) -> None:
        """A worker that was offered many takes one; the others stay with their runtime as long as others say."""
        enqueue(store, session, "one")
        clock.advance(1)
        second = begin(store)
        run(store, second, runtime=HERE)
        enqueue(store, second, "two")

        assert look(store, THERE, 0) == "one"
        assert look(store, THERE, AFFINITY) is None
        assert look(store, HERE) == "two"

    @pytest.mark.parametrize("seconds", [-1.0, 1e300])
    def test_how_long_must_be_a_time(self, store: Store, seconds: float) -> None:
        with pytest.raises(InvalidInput, match="affinity_seconds"):
            store.claim_turn(a_claim(affinity_seconds=seconds))

    def test_the_most_urgent_of_those_that_waited_long_enough_comes_first(
        self, store: Store, clock: ManualClock
    ) -> None:
        for priority, advance in ((0, 1), (5, 1), (5, AFFINITY), (9, 0)):
            session = begin(store)
            run(store, session, runtime=HERE)
            enqueue(store, session, f"of priority {priority} at {clock()}", priority=priority)
            clock.advance(advance)
        found = [look(store, THERE) or "none" for _ in range(4)]

        assert [prompt.partition(" at ")[0] for prompt in found] == [
            "of priority 5", "of priority 5", "of priority 0", "none",
        ]  # fmt: skip
        assert found[0] < found[1]
        assert str(look(store, HERE)).startswith("of priority 9")

    @pytest.mark.parametrize("back", [60, 400 * 24 * 3600])
    def test_it_lasts_no_longer_though_the_clock_is_set_back(
        self, store: Store, clock: ManualClock, session: Session, back: int
    ) -> None:
        assert look(store, THERE) is None
        enqueue(store, session, "one")
        clock.advance(3)
        second = begin(store)
        run(store, second, runtime=HERE)
        enqueue(store, second, "two")

        clock.advance(-back)

        assert look(store, THERE, 4) is None
        clock.advance(4)
        assert [look(store, THERE, 4), look(store, THERE, 4)] == ["one", "two"]

    def test_what_had_to_wait_for_its_provider_session_is_not_for_anyone_either(
        self, store: Store, clock: ManualClock
    ) -> None:
        shared, holder, waiting = a_provider_session_id(), begin(store), begin(store)
        for session in (holder, waiting):
            point_to(store, session, shared)
        enqueue(store, holder, "holds the provider session")
        held = claim(store, holder, HERE, lease_seconds=3600.0)
        enqueue(store, waiting, "must wait")
        assert look(store, HERE) is None
        store.finish_turn(held.lease, failed())
        clock.advance(QueuePolicy().lock_delay_seconds)

        assert look(store, THERE) is None
        assert look(store, HERE) == "must wait"


def _end(store: Store, clock: ManualClock, claimed: Claim, how: str) -> None:
    match how:
        case "finished":
            store.finish_turn(claimed.lease, failed())
        case "to be retried":
            store.finish_turn(claimed.lease, failed(retry_at=clock()))
        case "put back":
            store.put_back(claimed.lease)
        case _:
            clock.advance(3600)
            (orphan,) = store.orphans()
            store.recover(orphan)

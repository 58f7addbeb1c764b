"""Owns the clauses on the queue: what waits, in which order it is claimed, and by whom."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.clock import SECOND, Instant, after
from holdfast.domain.failures import FailureClass
from holdfast.domain.phases import Phase
from holdfast.domain.turns import Claim, TurnStatus
from holdfast.errors import InvalidInput, NotFound, SessionClosed
from holdfast.store.contract import Store
from tests.builders import (
    a_claim,
    a_codex_runtime,
    a_provider_session_id,
    a_runtime,
    a_turn,
    done,
    failed,
)
from tests.clock import ManualClock
from tests.steps import WIDER, begin, claim, enqueue, join, point_to, refused, run, snapshot

pytestmark = pytest.mark.usefixtures("watched")

MICROSECOND = 1 / SECOND


def take(store: Store) -> Claim:
    """Claim whatever comes next; something must."""
    claimed = store.claim_turn(a_claim())
    assert claimed is not None
    return claimed


class TestQueue:
    # --- enqueueing ---

    def test_a_new_turn_waits_with_the_next_sequence_number(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)

        first, second = enqueue(store, session, "one"), enqueue(store, session, "two")

        assert (first.seq, second.seq) == (1, 2)
        assert second.status is TurnStatus.QUEUED
        assert (second.prompt, second.response, second.attempts) == ("two", None, 0)
        assert (second.created_at, second.ended_at) == (clock(), None)
        assert store.turns(session.id) == (first, second)

    def test_the_same_key_gives_the_same_turn(self, store: Store) -> None:
        session = begin(store)
        first = enqueue(store, session, "one", key="k")
        before = snapshot(store)

        assert enqueue(store, session, "two", key="k") == first
        assert snapshot(store) == before

    def test_a_key_is_remembered_after_its_turn_has_ended(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "one", key="k")
        ended = store.finish_turn(claim(store, session).lease, done())

        assert enqueue(store, session, "one", key="k") == ended
        assert store.claim_turn(a_claim()) is None

    def test_the_same_key_in_another_session_is_another_turn(self, store: Store) -> None:
        one, other = begin(store), begin(store)

        assert enqueue(store, one, "go", key="k").session_id == one.id
        assert enqueue(store, other, "go", key="k").session_id == other.id

    def test_turns_without_a_key_are_never_the_same(self, store: Store) -> None:
        session = begin(store)

        assert enqueue(store, session, "go").seq != enqueue(store, session, "go").seq

    def test_a_closed_session_takes_no_turns(self, store: Store) -> None:
        session = begin(store)
        store.finalize_session(session.id, Phase.COMPLETED, None)
        before = snapshot(store)

        with pytest.raises(SessionClosed):
            enqueue(store, session, "one more thing")
        assert snapshot(store) == before

    def test_an_unknown_session_is_not_found(self, store: Store) -> None:
        with pytest.raises(NotFound):
            store.enqueue_turn("agent-20260108-120000-ffffffff", a_turn())

    def test_a_turn_cannot_be_pinned_to_an_unknown_runtime(self, store: Store) -> None:
        session = begin(store)
        before = snapshot(store)

        with pytest.raises(NotFound):
            enqueue(store, session, "go", runtime_id=a_runtime().id)
        assert snapshot(store) == before

    # --- order ---

    def test_an_empty_queue_gives_nothing(self, store: Store) -> None:
        begin(store)

        assert store.claim_turn(a_claim()) is None

    def test_the_turns_of_a_session_run_in_order(self, store: Store) -> None:
        session = begin(store)
        for prompt in ("one", "two", "three"):
            enqueue(store, session, prompt)

        ran = []
        for _ in range(3):
            claimed = take(store)
            ran.append(claimed.turn.prompt)
            store.finish_turn(claimed.lease, done())

        assert ran == ["one", "two", "three"]

    def test_the_turns_of_a_session_run_one_at_a_time(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "one")
        enqueue(store, session, "two")
        running = take(store)

        assert store.claim_turn(a_claim()) is None
        assert store.claim_turn(a_claim(session_id=session.id)) is None
        store.finish_turn(running.lease, failed())
        assert take(store).turn.prompt == "two"

    def test_sessions_run_at_the_same_time_also_in_one_conversation(self, store: Store) -> None:
        session = begin(store)
        other = join(store, session, "reviewer")
        enqueue(store, session, "plan it")
        enqueue(store, other, "review it")

        assert {take(store).turn.session_id, take(store).turn.session_id} == {session.id, other.id}

    def test_priority_orders_sessions(self, store: Store, clock: ManualClock) -> None:
        for prompt, priority in (("low", -1), ("usual", 0), ("high", 5)):
            enqueue(store, begin(store), prompt, priority=priority)
            clock.advance(1)

        assert [take(store).turn.prompt for _ in range(3)] == ["high", "usual", "low"]

    def test_priority_never_orders_the_turns_within_a_session(self, store: Store) -> None:
        session, other = begin(store), begin(store)
        enqueue(store, session, "first", priority=0)
        enqueue(store, session, "urgent, but second", priority=9)
        enqueue(store, other, "other", priority=5)

        assert take(store).turn.prompt == "other"
        first = take(store)
        assert first.turn.prompt == "first"
        store.finish_turn(first.lease, done())
        assert take(store).turn.prompt == "urgent, but second"

    def test_of_equals_the_one_that_waited_longest_comes_first(
        self, store: Store, clock: ManualClock
    ) -> None:
        for prompt in ("one", "two", "three"):
            enqueue(store, begin(store), prompt)
            clock.advance(1)

        assert [take(store).turn.prompt for _ in range(3)] == ["one", "two", "three"]

    def test_more_work_behind_a_head_does_not_cost_its_place(self, store: Store, clock: ManualClock) -> None:
        session, other = begin(store), begin(store)
        enqueue(store, session, "first in line")
        clock.advance(1)
        enqueue(store, other, "second in line")
        clock.advance(1)
        later = enqueue(store, session, "behind the first")
        store.cancel_turn(session.id, later.seq)

        assert take(store).turn.prompt == "first in line"

    # --- time ---

    def test_heads_that_must_wait_do_not_hold_up_the_others_for_good(
        self, store: Store, clock: ManualClock
    ) -> None:
        shared, holder = a_provider_session_id(), begin(store)
        point_to(store, holder, shared)
        enqueue(store, holder, "holds the provider session")
        claim(store, holder, lease_seconds=3600.0)
        for _ in range(50):
            waiting = begin(store)
            point_to(store, waiting, shared)
            enqueue(store, waiting, "must wait", priority=9)
        enqueue(store, begin(store), "may run")
        claimed = None
        for _ in range(50):
            claimed = claimed or store.claim_turn(a_claim())
            clock.advance(10)

        assert claimed is not None
        assert claimed.turn.prompt == "may run"

    def test_every_delayed_turn_is_claimed_when_it_is_due(self, store: Store, clock: ManualClock) -> None:
        for number in range(30):
            enqueue(store, begin(store), f"{number}", not_before=after(clock(), 60))
        late = begin(store)
        enqueue(store, late, "by name", not_before=after(clock(), 90))
        clock.advance(90)

        assert claim(store, late).turn.prompt == "by name"
        assert {take(store).turn.prompt for _ in range(30)} == {f"{number}" for number in range(30)}

    @pytest.mark.parametrize("never", [-1, 2**60])
    def test_a_turn_is_not_put_in_for_a_time_that_cannot_be_told(self, store: Store, never: int) -> None:
        session = begin(store)
        with refused(store, InvalidInput):
            enqueue(store, session, "never", not_before=Instant(never))

    def test_a_delayed_turn_is_claimed_at_its_time_and_not_before(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        enqueue(store, session, "later", not_before=after(clock(), 60))

        assert store.claim_turn(a_claim()) is None
        clock.advance(60 - MICROSECOND)
        assert store.claim_turn(a_claim()) is None
        clock.advance(MICROSECOND)
        assert take(store).turn.prompt == "later"

    @pytest.mark.parametrize("back", [60, 2 * 3600, 400 * 24 * 3600])
    def test_a_wait_lasts_as_long_as_it_was_asked_for_though_the_clock_is_set_back(
        self, store: Store, clock: ManualClock, back: int
    ) -> None:
        session = begin(store)
        enqueue(store, session, "later", not_before=after(clock(), 30))
        assert store.claim_turn(a_claim()) is None

        clock.advance(-back)

        assert store.claim_turn(a_claim()) is None
        assert store.get_turn(session.conversation_id, 1).not_before == after(clock(), 30)
        enqueue(store, session, "behind it")
        clock.advance(29)
        assert store.claim_turn(a_claim()) is None
        clock.advance(1)
        assert take(store).turn.prompt == "later"

    def test_a_retry_waits_as_long_as_it_was_to_though_the_clock_is_set_back(
        self, store: Store, clock: ManualClock
    ) -> None:
        enqueue(store, begin(store), "again")
        store.finish_turn(take(store).lease, failed(retry_at=after(clock(), 6)))

        clock.advance(-2 * 3600)

        assert store.claim_turn(a_claim()) is None
        clock.advance(6)
        assert take(store).turn.prompt == "again"

    def test_waits_that_began_after_the_clock_was_set_back_are_left_alone(
        self, store: Store, clock: ManualClock
    ) -> None:
        enqueue(store, begin(store), "before", not_before=after(clock(), 30))
        assert store.claim_turn(a_claim()) is None
        clock.advance(-7200)
        enqueue(store, begin(store), "after", not_before=after(clock(), 10))
        assert store.claim_turn(a_claim()) is None
        clock.advance(10)
        assert take(store).turn.prompt == "after"
        clock.advance(20)
        assert take(store).turn.prompt == "before"

    def test_a_delayed_head_holds_its_session_and_no_other(self, store: Store, clock: ManualClock) -> None:
        session, other = begin(store), begin(store)
        enqueue(store, session, "later", not_before=after(clock(), 60))
        enqueue(store, session, "behind it", priority=9)
        enqueue(store, other, "elsewhere")

        assert take(store).turn.prompt == "elsewhere"
        assert store.claim_turn(a_claim()) is None
        clock.advance(60)
        assert take(store).turn.prompt == "later"

    @pytest.mark.parametrize("seconds", [0, -60])
    def test_a_time_that_has_come_is_no_delay(self, store: Store, clock: ManualClock, seconds: int) -> None:
        enqueue(store, begin(store), "now", not_before=Instant(clock() + seconds * SECOND))

        assert take(store).turn.prompt == "now"

    def test_a_delay_behind_the_head_counts_from_when_it_is_the_head(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        enqueue(store, session, "first")
        enqueue(store, session, "later", not_before=after(clock(), 60))
        first = take(store)
        store.finish_turn(first.lease, done())

        assert store.claim_turn(a_claim()) is None
        clock.advance(60)
        assert take(store).turn.prompt == "later"

    def test_a_delayed_turn_takes_its_place_when_its_time_comes(
        self, store: Store, clock: ManualClock
    ) -> None:
        enqueue(store, begin(store), "delayed", not_before=after(clock(), 10))
        clock.advance(5)
        enqueue(store, begin(store), "before that")
        clock.advance(10)
        enqueue(store, begin(store), "after that")

        assert [take(store).turn.prompt for _ in range(3)] == ["before that", "delayed", "after that"]

    # --- who may run it ---

    def test_a_pinned_turn_is_run_by_its_runtime_only(self, store: Store) -> None:
        here, there = a_runtime(), a_runtime(machine="build-8")
        store.register_runtime(there)
        session = begin(store)
        enqueue(store, session, "there", runtime_id=there.id)
        enqueue(store, session, "anywhere, behind it")

        assert store.claim_turn(a_claim(runtime=here)) is None
        claimed = store.claim_turn(a_claim(runtime=there))
        assert claimed is not None
        assert claimed.turn.prompt == "there"

    def test_a_runtime_takes_the_better_of_what_is_pinned_to_it_and_what_anyone_may_run(
        self, store: Store, clock: ManualClock
    ) -> None:
        here = a_runtime()
        store.register_runtime(here)
        for prompt, pin, priority in (("free", None, 0), ("pinned", here.id, 0), ("pressing", None, 1)):
            enqueue(store, begin(store), prompt, runtime_id=pin, priority=priority)
            clock.advance(1)

        assert [take(store).turn.prompt for _ in range(3)] == ["pressing", "free", "pinned"]

    def test_a_turn_is_run_by_its_provider_only(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "for codex", provider="codex")
        enqueue(store, session, "for claude, behind it")

        assert store.claim_turn(a_claim(runtime=a_runtime())) is None
        claimed = store.claim_turn(a_claim(runtime=a_codex_runtime()))
        assert claimed is not None
        assert claimed.turn.prompt == "for codex"

    def test_a_claim_can_ask_for_one_session(self, store: Store) -> None:
        session, other = begin(store), begin(store)
        enqueue(store, other, "pressing", priority=9)
        enqueue(store, session, "asked for")

        assert claim(store, session).turn.prompt == "asked for"
        assert store.claim_turn(a_claim(session_id=session.id)) is None

    def test_a_claim_takes_nothing_from_another_workspace(
        self, store: Store, make_store: Callable[..., Store]
    ) -> None:
        enqueue(store, begin(store), "ours")

        assert make_store(workspace="theirs").claim_turn(a_claim()) is None

    # --- heads that cannot run ---

    def test_a_head_that_must_wait_is_passed_over_and_takes_no_lease(self, store: Store) -> None:
        shared = a_provider_session_id()
        holder, waiting, free = begin(store), begin(store), begin(store)
        for session in (holder, waiting):
            point_to(store, session, shared)
        enqueue(store, holder, "holds the provider session")
        take(store)
        turn = enqueue(store, waiting, "must wait", priority=9)
        enqueue(store, free, "may run")

        assert take(store).turn.prompt == "may run"
        assert store.get_turn(turn.conversation_id, turn.seq) == turn
        assert store.attempts(turn.conversation_id, turn.seq) == ()

    def test_a_refused_head_ends_as_failed_and_does_not_block_the_next(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        refused = enqueue(store, session, "with wider rights", request=WIDER)
        enqueue(store, session, "as before")

        assert take(store).turn.prompt == "as before"
        ended = store.get_turn(refused.conversation_id, refused.seq)
        assert ended.status is TurnStatus.FAILED
        assert ended.failure is not None
        assert ended.failure.failure_class is FailureClass.REFUSED
        assert ended.failure.message.startswith("rights_wider")
        assert store.attempts(ended.conversation_id, ended.seq) == ()

    def test_a_refused_turn_is_nothing_the_session_did_wrong(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        enqueue(store, session, "with wider rights", request=WIDER)

        assert store.claim_turn(a_claim()) is None
        assert store.get_session(session.id).error_count == 0

    def test_however_many_heads_must_wait_claiming_again_gets_past_them(self, store: Store) -> None:
        shared, crowd = a_provider_session_id(), 40
        holder = begin(store)
        point_to(store, holder, shared)
        enqueue(store, holder, "holds the provider session")
        take(store)
        for _ in range(crowd):
            waiting = begin(store)
            point_to(store, waiting, shared)
            enqueue(store, waiting, "must wait", priority=9)
        enqueue(store, begin(store), "may run")

        claimed = next(found for _ in range(crowd) if (found := store.claim_turn(a_claim())) is not None)

        assert claimed.turn.prompt == "may run"

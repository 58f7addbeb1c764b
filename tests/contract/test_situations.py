"""Owns the clauses on situations: what a claim and ``situation`` carry, and what adopting turns changes."""

from __future__ import annotations

import pytest

from holdfast.clock import Instant
from holdfast.domain.decisions import Resume
from holdfast.domain.events import Event, EventKind
from holdfast.domain.failures import FailureClass
from holdfast.domain.phases import Phase
from holdfast.domain.turns import AttemptStatus, Claim, OutsideTurn, PastRequest, TurnStatus
from holdfast.domain.usage import NO_USAGE
from holdfast.errors import Conflict, InvalidInput, LeaseLost, NotFound, SessionClosed
from holdfast.store.contract import Store
from tests.builders import (
    a_claim,
    a_turn,
    an_adoption,
    an_answer,
    an_approval,
    done,
)
from tests.clock import ManualClock
from tests.steps import begin, claim, enqueue, expire, fail, join, lose, pointer_of, run

pytestmark = pytest.mark.usefixtures("watched")

#: the year 9999
FAR = Instant(253_402_300_799_000_000)


def tried(found: Claim) -> list[tuple[int, list[AttemptStatus]]]:
    return [(turn.seq, [each.status for each in turn.tries]) for turn in found.situation.tried]


class TestSituations:
    def test_a_first_claim_carries_the_session_and_nothing_before_it(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "one")
        found = claim(store, session).situation
        assert (found.session.id, found.conversation.id) == (session.id, session.conversation_id)
        assert (found.pointer, found.tried, found.untold, found.withheld) == (None, (), (), frozenset())
        assert found.conversation.next_seq == 2

    def test_the_next_claim_reaches_back_to_the_newest_answer(self, store: Store) -> None:
        session = begin(store)
        for prompt in "ab":
            run(store, session, prompt)
        fail(store, session, FailureClass.UNKNOWN)
        enqueue(store, session, "next")
        found = claim(store, session)
        assert [seq for seq, _ in tried(found)] == [2, 3]
        assert [turn.status for turn in found.situation.tried] == [TurnStatus.DONE, TurnStatus.FAILED]

    def test_an_answer_that_left_the_history_does_not_end_the_walk(self, store: Store) -> None:
        session = begin(store)
        for prompt in "abc":
            run(store, session, prompt)
        store.truncate(session.id, 1)
        enqueue(store, session, "next")
        situation = claim(store, session).situation
        assert [(turn.seq, turn.is_dropped) for turn in situation.tried] == [(1, False), (2, True), (3, True)]

    def test_turns_of_others_are_not_in_it(self, store: Store) -> None:
        session = begin(store)
        run(store, session, "one")
        other = join(store, session, "reviewer")
        for number in range(60):
            store.record_turn(other.id, a_turn(f"another {number}"), "noted", NO_USAGE)
        enqueue(store, session, "two")
        assert [seq for seq, _ in tried(claim(store, session))] == [1]

    def test_earlier_attempts_of_the_same_turn_are_in_it(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "one")
        lose(store, clock, claim(store, session).lease)
        again = claim(store, session)
        assert tried(again) == [(again.turn.seq, [AttemptStatus.INTERRUPTED])]

    def test_a_claim_that_is_delivered_again_carries_the_same(self, store: Store) -> None:
        session = begin(store)
        run(store, session, "one")
        enqueue(store, session, "two")
        request = a_claim(session_id=session.id)
        first, again = store.claim_turn(request), store.claim_turn(request)
        assert first is not None
        assert again is not None
        assert tried(again) == tried(first)
        assert again.situation.pointer == first.situation.pointer

    def test_answers_are_told_until_the_agent_has_answered(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        run(store, session, "one")
        clock.advance(1)
        asked = store.request_approval(session.id, an_approval())
        clock.advance(1)
        store.answer_approval(asked.id, an_answer(asked))
        clock.advance(1)
        fail(store, session, FailureClass.UNKNOWN)
        enqueue(store, session, "two")
        carried = claim(store, session)
        assert [approval.id for approval in carried.situation.untold] == [asked.id]
        store.finish_turn(carried.lease, done())
        clock.advance(1)
        enqueue(store, session, "three")
        assert claim(store, session).situation.untold == ()

    def test_it_can_be_read_without_a_claim(self, store: Store) -> None:
        session = begin(store)
        run(store, session, "one")
        found = store.situation(session.id)
        assert found.pointer == pointer_of(store, session)
        assert isinstance(found.decision, Resume)
        assert found.holder is None
        enqueue(store, session, "two")
        lease = claim(store, session).lease
        held = store.situation(session.id).holder
        assert held is not None
        assert held.lease.fence == lease.fence

    def test_nobody_has_the_situation_of_a_session_that_is_not_there(self, store: Store) -> None:
        with pytest.raises(NotFound):
            store.situation("s-none")


class TestAdoption:
    def test_turns_made_by_hand_join_the_history_and_the_pointer_moves(self, store: Store) -> None:
        session = begin(store)
        run(store, session, "one")
        adoption = an_adoption(pointer_of(store, session))
        after = store.adopt_turns(adoption)
        assert after is not None
        assert [turn.prompt for turn in store.history(session.conversation_id)] == ["one", "by hand"]
        moved = pointer_of(store, session)
        assert after.pointer == moved
        assert moved.seen is not None
        assert 2 in moved.seen
        assert moved.transcript == adoption.transcript

    def test_it_happens_once(self, store: Store) -> None:
        session = begin(store)
        run(store, session, "one")
        adoption = an_adoption(pointer_of(store, session), moves=False)
        assert store.adopt_turns(adoption) is not None
        assert store.adopt_turns(adoption) is not None
        assert len(store.history(session.conversation_id)) == 2
        assert pointer_of(store, session) == adoption.before

    def test_nothing_happens_if_the_pointer_is_another_by_now(self, store: Store) -> None:
        session = begin(store)
        run(store, session, "one")
        adoption = an_adoption(pointer_of(store, session))
        run(store, session, "two")
        assert store.adopt_turns(adoption) is None
        assert len(store.history(session.conversation_id)) == 2

    def test_nothing_happens_while_a_turn_of_others_runs(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        run(store, session, "one")
        enqueue(store, session, "two")
        lease = claim(store, session).lease
        adoption = an_adoption(pointer_of(store, session))
        assert store.adopt_turns(adoption) is None
        after = store.adopt_turns(adoption, lease)
        assert after is not None
        assert after.holder is None
        assert [turn.seq for turn in after.tried] == [1]
        expire(store, clock, lease)
        lose(store, clock, lease)
        moved = an_adoption(pointer_of(store, session), turns=(OutsideTurn("another", "later", None),))
        with pytest.raises(LeaseLost):
            store.adopt_turns(moved, lease)

    def test_a_lease_of_another_session_proves_nothing(self, store: Store) -> None:
        session, other = begin(store), begin(store)
        run(store, session, "one")
        enqueue(store, other, "two")
        with pytest.raises(Conflict):
            store.adopt_turns(an_adoption(pointer_of(store, session)), claim(store, other).lease)

    def test_a_closed_session_adopts_nothing(self, store: Store) -> None:
        session = begin(store)
        run(store, session, "one")
        adoption = an_adoption(pointer_of(store, session))
        store.finalize_session(session.id, Phase.COMPLETED, None)
        with pytest.raises(SessionClosed):
            store.adopt_turns(adoption)

    def test_they_have_the_times_and_the_calls_that_the_provider_kept(self, store: Store) -> None:
        session = begin(store)
        run(store, session, "one")
        call = Event(
            1, EventKind.TOOL_CALL, {"call_id": "c1", "tool": "Bash", "arguments": {}}, Instant(1_500)
        )
        turn = OutsideTurn("key", "by hand", "done", Instant(1_000), Instant(2_000), (call,))
        assert store.adopt_turns(an_adoption(pointer_of(store, session), turns=(turn,))) is not None
        adopted = store.get_turn(session.conversation_id, 2)
        assert (adopted.created_at, adopted.ended_at) == (1_000, 2_000)
        assert store.events(session.conversation_id, 2) == ((0, call),)
        (past,) = store.read_past(session.conversation_id, 0, PastRequest(((2, 2),)))
        assert past.calls == ((0, call),)

    def test_what_was_done_long_ago_does_not_make_the_session_older(self, store: Store) -> None:
        session = begin(store)
        run(store, session, "one")
        before = store.get_session(session.id).updated_at
        turn = OutsideTurn("key", "by hand", "done", Instant(1_000), Instant(2_000))
        assert store.adopt_turns(an_adoption(pointer_of(store, session), turns=(turn,))) is not None
        assert store.get_session(session.id).updated_at == before

    def test_a_time_that_is_none_is_refused(self, store: Store) -> None:
        session = begin(store)
        run(store, session, "one")
        turn = OutsideTurn("key", "by hand", "done", Instant(-1))
        with pytest.raises(InvalidInput):
            store.adopt_turns(an_adoption(pointer_of(store, session), turns=(turn,)))

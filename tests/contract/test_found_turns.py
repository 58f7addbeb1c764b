"""Owns the clauses on which turns are found: a session's own newest ones, and those that an agent was sent."""

from __future__ import annotations

import pytest

from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.turns import Claim, Launch, TurnEnd, TurnStatus
from holdfast.domain.usage import NO_USAGE
from holdfast.errors import InvalidInput, NotFound
from holdfast.store.contract import Store
from tests.builders import a_claim, a_process, a_turn, done, failed
from tests.clock import ManualClock
from tests.steps import WIDER, begin, claim, defer, enqueue, join, lose, run

pytestmark = pytest.mark.usefixtures("watched")

CANCELLED = TurnEnd(TurnStatus.CANCELLED)


class TestOwnTurns:
    """``newest_turns`` and ``head_turn``: a session's own, whatever others say in the same conversation."""

    def test_others_do_not_hide_a_sessions_newest_turns(self, store: Store) -> None:
        session = begin(store)
        first, second = run(store, session, "one").turn, run(store, session, "two").turn
        other = join(store, session, "reviewer")
        for number in range(60):
            store.record_turn(other.id, a_turn(f"another {number}"), "noted", NO_USAGE)

        assert [turn.seq for turn in store.newest_turns(session.id, 2)] == [first.seq, second.seq]
        assert [turn.prompt for turn in store.newest_turns(session.id, 1)] == ["two"]
        assert [turn.prompt for turn in store.newest_turns(session.id, 5, before=second.seq)] == ["one"]
        assert store.newest_turns(session.id, 0) == ()
        assert store.newest_turns(other.id, 1)[0].prompt == "another 59"

    def test_turns_that_left_the_history_are_told_apart(self, store: Store) -> None:
        session = begin(store)
        for prompt in "abc":
            run(store, session, prompt)
        store.truncate(session.id, 1)

        assert [turn.prompt for turn in store.newest_turns(session.id, 2)] == ["b", "c"]
        assert [turn.prompt for turn in store.newest_turns(session.id, 2, dropped=False)] == ["a"]

    def test_the_head_is_the_oldest_open_turn(self, store: Store) -> None:
        session = begin(store)
        assert store.head_turn(session.id) is None
        run(store, session, "one")
        other = join(store, session, "reviewer")
        enqueue(store, other, "theirs")
        assert store.head_turn(session.id) is None
        first = enqueue(store, session, "two")
        enqueue(store, session, "three")
        assert store.head_turn(session.id) == first
        lease = claim(store, session).lease
        running = store.head_turn(session.id)
        assert running is not None
        assert (running.seq, running.status) == (first.seq, TurnStatus.CLAIMED)
        store.finish_turn(lease, done())
        head = store.head_turn(session.id)
        assert head is not None
        assert head.prompt == "three"

    @pytest.mark.parametrize("number", [-1, 2**63])
    def test_no_limit_is_below_nothing(self, store: Store, number: int) -> None:
        session = begin(store)
        with pytest.raises(InvalidInput):
            store.newest_turns(session.id, number)
        with pytest.raises(InvalidInput):
            store.newest_turns(session.id, 1, before=number)

    def test_an_unknown_session_has_none(self, store: Store) -> None:
        for verb in (lambda: store.newest_turns("nobody", 1), lambda: store.head_turn("nobody")):
            with pytest.raises(NotFound):
                verb()


class TestSent:
    """``history`` without ``unsent``: what agents are told of."""

    def test_what_no_agent_was_sent_is_not_told(self, store: Store) -> None:
        session = begin(store)
        run(store, session, "answered")
        refused_turn = enqueue(store, session, "with more rights", request=WIDER)
        assert store.claim_turn(a_claim(session_id=session.id)) is None
        cancelled = enqueue(store, session, "never begun")
        store.cancel_turn(session.id, cancelled.seq)
        enqueue(store, session, "waits")
        conversation = session.conversation_id

        assert store.get_turn(conversation, refused_turn.seq).failure is not None
        assert len(store.history(conversation)) == 4
        assert [turn.prompt for turn in store.history(conversation, unsent=False)] == ["answered"]
        assert [turn.prompt for turn in store.history(conversation, unsent=False, limit=1)] == ["answered"]

    @pytest.mark.parametrize(
        "why", [FailureClass.LOCKED, FailureClass.CONFIG, FailureClass.MISSING_BINARY], ids=str
    )
    def test_what_could_not_be_launched_is_not_told(self, store: Store, why: FailureClass) -> None:
        session = begin(store)
        run(store, session, "answered")
        enqueue(store, session, "while somebody else was at it")
        store.finish_turn(claim(store, session).lease, failed(why, "not now"))

        told = store.history(session.conversation_id, unsent=False)
        assert [turn.prompt for turn in told] == ["answered"]

    def test_what_its_worker_never_came_to_launch_is_not_told(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        run(store, session, "answered")
        started = store.start_turn(session.id, a_turn("lost", foreground=True), a_claim())
        assert isinstance(started, Claim)
        assert lose(store, clock, started.lease).failure is not None
        started = store.start_turn(session.id, a_turn("stopped", foreground=True), a_claim())
        assert isinstance(started, Claim)
        store.finish_turn(started.lease, CANCELLED)

        told = store.history(session.conversation_id, unsent=False)
        assert [turn.prompt for turn in told] == ["answered"]

    def test_what_failed_or_was_stopped_in_its_agent_is_told(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "fails")
        store.finish_turn(claim(store, session).lease, failed(FailureClass.AUTH, "401"))
        enqueue(store, session, "stopped")
        claimed = claim(store, session)
        store.launch(claimed.lease, Launch(claimed.decision, process=a_process()))
        store.cancel_turn(session.id, 2)
        store.finish_turn(claimed.lease, CANCELLED)

        told = store.history(session.conversation_id, unsent=False)
        assert [turn.prompt for turn in told] == ["fails", "stopped"]
        assert told[0].failure == Failure(FailureClass.AUTH, "401")

    def test_a_turn_whose_approval_became_void_was_sent(self, store: Store) -> None:
        session = begin(store)
        approval = defer(store, session, "apply it")
        store.cancel_turn(session.id, approval.seq or 0)
        assert [turn.prompt for turn in store.history(session.conversation_id, unsent=False)] == ["apply it"]

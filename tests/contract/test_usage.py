"""Owns the clauses on what a turn cost, and on the errors that a session has made since its last success."""

from __future__ import annotations

import math

import pytest

from holdfast.clock import after, to_iso
from holdfast.domain.decisions import Fork
from holdfast.domain.failures import FailureClass
from holdfast.domain.sessions import Session
from holdfast.domain.turns import Launch, TurnRequest
from holdfast.domain.usage import NO_USAGE, ContextUse, Usage, UsageGroup, UsageReport
from holdfast.errors import InvalidInput, LeaseLost
from holdfast.store.contract import Store
from tests.builders import a_provider_session_id, a_session_id, a_turn, done, failed
from tests.clock import ManualClock
from tests.steps import begin, claim, enqueue, fail, lose, pointer_of, refused, run

pytestmark = pytest.mark.usefixtures("watched")


def tokens(count: int) -> Usage:
    """So much of everything, in figures that add up exactly."""
    return Usage(count, count // 2, count // 5, count / 4)


def since_the_beginning(count: int) -> UsageReport:
    return UsageReport(tokens(count), cumulative=True)


def this_time(count: int) -> UsageReport:
    return UsageReport(tokens(count))


DAY = 86_400.0


class TestUsage:
    def used(self, store: Store, session: Session) -> list[Usage]:
        """What each turn cost, by its attempts."""
        return [
            sum((a.usage for a in store.attempts(turn.conversation_id, turn.seq)), NO_USAGE)
            for turn in store.turns(session.id)
        ]

    def test_figures_since_the_beginning_count_as_what_is_new_in_them(self, store: Store) -> None:
        session = begin(store)
        for count in (100, 260, 260):
            run(store, session, usage=since_the_beginning(count))

        assert self.used(store, session) == [tokens(100), tokens(160), NO_USAGE]
        assert store.get_session(session.id).usage == tokens(260)
        (totals,) = store.provider_sessions(session.id)
        assert totals.usage == tokens(260)

    def test_what_others_have_used_in_the_session_is_not_booked(self, store: Store) -> None:
        session = begin(store)
        run(store, session, usage=since_the_beginning(100))
        by_hand = pointer_of(store, session)
        store.set_pointer(by_hand, counted=tokens(1000))

        run(store, session, usage=since_the_beginning(1160))

        assert self.used(store, session) == [tokens(100), tokens(160)]
        (totals,) = store.provider_sessions(session.id)
        assert totals.usage == tokens(260)
        with refused(store, InvalidInput):
            store.set_pointer(by_hand, counted=Usage(input_tokens=-1))

    def test_figures_of_one_turn_count_as_they_are(self, store: Store) -> None:
        session = begin(store)
        for count in (100, 60):
            run(store, session, usage=this_time(count))

        assert self.used(store, session) == [tokens(100), tokens(60)]
        assert store.get_session(session.id).usage == tokens(160)

    @pytest.mark.parametrize(
        "usage",
        [
            Usage(input_tokens=-1),
            Usage(output_tokens=2**53 + 1),
            Usage(cost_usd=math.nan),
            Usage(cost_usd=math.inf),
        ],
        ids=["negative", "too many", "nan", "infinite"],
    )
    def test_figures_that_make_no_sense_are_refused(self, store: Store, usage: Usage) -> None:
        session = begin(store)
        enqueue(store, session, "go on")
        lease = claim(store, session).lease
        with refused(store, InvalidInput):
            store.record_turn(session.id, a_turn(), "done", usage)
        with refused(store, InvalidInput):
            store.finish_turn(lease, done(usage=UsageReport(usage)))

    def test_a_counter_that_went_down_began_again(self, store: Store) -> None:
        session = begin(store)
        for count in (100, 20, 60):
            run(store, session, usage=since_the_beginning(count))

        assert self.used(store, session) == [tokens(100), tokens(20), tokens(40)]
        assert store.get_session(session.id).usage == tokens(160)

    def test_each_provider_session_counts_for_itself(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        run(store, session, usage=since_the_beginning(100))
        first = pointer_of(store, session).provider_session_id
        clock.advance(1)
        enqueue(store, session, "anew", request=TurnRequest(force_fresh=True))
        second = a_provider_session_id()
        store.finish_turn(
            claim(store, session).lease, done(provider_session_id=second, usage=since_the_beginning(40))
        )

        totals = store.provider_sessions(session.id)

        assert [(t.id, t.usage) for t in totals] == [(first, tokens(100)), (second, tokens(40))]
        assert store.get_session(session.id).usage == tokens(140)

    def test_a_native_fork_goes_on_counting_from_its_source(self, store: Store) -> None:
        parent = begin(store)
        run(store, parent, usage=since_the_beginning(100))
        source = pointer_of(store, parent).provider_session_id
        child = store.fork(parent.id, a_session_id())

        forked = run(store, child, usage=since_the_beginning(120))
        run(store, child, usage=since_the_beginning(160))

        assert isinstance(forked.decision, Fork)
        assert self.used(store, child) == [tokens(20), tokens(40)]
        assert store.get_session(child.id).usage == tokens(60)
        assert store.get_session(parent.id).usage == tokens(100)
        (totals,) = store.provider_sessions(child.id)
        assert (totals.forked_from, totals.usage) == (source, tokens(60))

    def test_what_the_source_costs_while_its_fork_runs_is_not_the_forks(self, store: Store) -> None:
        parent = begin(store)
        run(store, parent, usage=since_the_beginning(100))
        child = store.fork(parent.id, a_session_id())
        enqueue(store, child, "in the fork")
        forked = claim(store, child)
        store.launch(forked.lease, Launch(forked.decision, provider_session_id=a_provider_session_id()))

        run(store, parent, usage=since_the_beginning(500))
        store.finish_turn(forked.lease, done(usage=since_the_beginning(120), provider_session_id=None))

        assert store.get_session(child.id).usage == tokens(20)

    def test_a_failed_turn_costs_too(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        run(store, session, usage=since_the_beginning(100))
        enqueue(store, session, "flaky")
        store.finish_turn(
            claim(store, session).lease,
            failed(FailureClass.TRANSIENT, retry_at=clock(), usage=since_the_beginning(120)),
        )
        store.finish_turn(
            claim(store, session).lease, done(provider_session_id=None, usage=since_the_beginning(200))
        )

        attempts = store.attempts(session.conversation_id, 2)

        assert [attempt.usage for attempt in attempts] == [tokens(20), tokens(80)]
        assert store.get_session(session.id).usage == tokens(200)

    def test_a_turn_without_a_provider_session_is_the_sessions_all_the_same(self, store: Store) -> None:
        session = begin(store)
        run(store, session, provider_session_id=None, usage=since_the_beginning(40))

        assert store.get_session(session.id).usage == tokens(40)
        assert store.provider_sessions(session.id) == ()

    def test_what_a_late_report_says_it_cost_is_not_counted(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "long")
        lease = claim(store, session).lease
        lose(store, clock, lease)

        with pytest.raises(LeaseLost):
            store.finish_turn(lease, done(usage=this_time(100)))

        assert store.get_session(session.id).usage == NO_USAGE

    def test_the_context_of_the_last_call_is_recorded_with_the_pointer(self, store: Store) -> None:
        session = begin(store)
        for filled in (1_000, 2_500):
            run(store, session, usage=UsageReport(context=ContextUse(filled, 200_000)))

        assert pointer_of(store, session).context == ContextUse(2_500, 200_000)


class TestErrorCount:
    def test_errors_are_counted_since_the_last_success(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        for count in (1, 2, 3):
            clock.advance(1)
            fail(store, session, FailureClass.UNKNOWN)
            counted = store.get_session(session.id)
            assert counted.error_count == count
            assert counted.last_error is not None
            assert (counted.last_error.message, counted.last_error.at) == ("it broke", clock())

        run(store, session)

        assert store.get_session(session.id).error_count == 0

    @pytest.mark.parametrize(
        "failure_class", [FailureClass.CANCELLED, FailureClass.INTERRUPTED, FailureClass.LOCKED]
    )
    def test_what_says_nothing_about_the_work_is_no_error(
        self, store: Store, failure_class: FailureClass
    ) -> None:
        session = begin(store)
        fail(store, session, FailureClass.UNKNOWN)
        fail(store, session, failure_class)

        assert store.get_session(session.id).error_count == 1

    def test_a_try_that_failed_is_an_error_also_if_it_is_tried_again(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        enqueue(store, session, "flaky")
        store.finish_turn(claim(store, session).lease, failed(FailureClass.TRANSIENT, retry_at=clock()))
        assert store.get_session(session.id).error_count == 1

        store.finish_turn(claim(store, session).lease, done())

        assert store.get_session(session.id).error_count == 0

    # --- sums ---

    def test_usage_adds_up_by_session_agent_provider_and_day(self, store: Store, clock: ManualClock) -> None:
        first, second = begin(store, agent="reviewer"), begin(store, agent="builder")
        run(store, first, usage=this_time(100))
        clock.advance(DAY)
        run(store, first, usage=this_time(60))
        run(store, second, usage=this_time(20))

        by_session = {one.key: (one.attempts, one.usage) for one in store.usage(UsageGroup.SESSION)}
        by_day = store.usage(UsageGroup.DAY)

        assert by_session == {first.id: (2, tokens(160)), second.id: (1, tokens(20))}
        assert [one.usage for one in store.usage(UsageGroup.AGENT)] == [tokens(20), tokens(160)]
        assert [(one.key, one.usage) for one in store.usage(UsageGroup.PROVIDER)] == [("claude", tokens(180))]
        assert [one.usage for one in by_day] == [tokens(100), tokens(80)]
        days = (to_iso(after(clock(), -DAY)), to_iso(clock()))
        assert [one.key for one in by_day] == [day[:10] for day in days]

    def test_usage_of_one_session_and_of_a_time(self, store: Store, clock: ManualClock) -> None:
        session, other = begin(store), begin(store)
        run(store, session, usage=this_time(100))
        run(store, other, usage=this_time(1000))
        clock.advance(DAY)
        later = clock()
        run(store, session, usage=this_time(60))

        assert [one.usage for one in store.usage(UsageGroup.DAY, session_id=session.id)] == [
            tokens(100),
            tokens(60),
        ]
        assert [one.usage for one in store.usage(UsageGroup.AGENT, since=later)] == [tokens(60)]
        assert [one.usage for one in store.usage(UsageGroup.PROVIDER, until=later)] == [tokens(1100)]

    def test_nothing_used_is_no_row(self, store: Store) -> None:
        assert store.usage(UsageGroup.AGENT) == ()
        assert store.usage(UsageGroup.DAY, session_id=begin(store).id) == ()

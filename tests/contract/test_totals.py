"""Owns the clauses on ``totals``: what ever happened, counted by day, whatever was deleted since."""

from __future__ import annotations

from holdfast.clock import after
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import Old, SessionKind, SessionUpdate
from holdfast.domain.statistics import Total, TotalKind
from holdfast.domain.usage import Usage, UsageReport
from holdfast.store.contract import Store
from tests.builders import a_claim, a_delegation, a_provider_session_id, a_question, done, failed
from tests.clock import ManualClock
from tests.steps import begin, claim, enqueue, point_to, run

DAY = 86_400
FAR = 10 * DAY


def counted(store: Store, kind: TotalKind, agent: str | None = None) -> dict[str, int]:
    """By detail."""
    found: dict[str, int] = {}
    for row in store.totals(agent=agent).rows:
        if row.what is kind:
            found[row.detail] = found.get(row.detail, 0) + row.number
    return found


def amount(store: Store, kind: TotalKind) -> float:
    return sum(row.amount for row in store.totals().rows if row.what is kind)


def old(clock: ManualClock) -> Old:
    """A day, whatever kind of session it is."""
    cutoff = after(clock(), -DAY)
    return Old(cutoff, conversations=cutoff)


def lively(store: Store, clock: ManualClock) -> None:
    """A resume, a failure, a fallback, a delegation, an error: every kind of total there is."""
    first = begin(store, kind=SessionKind.CONVERSATION)
    spent = UsageReport(Usage(100, 40, 20, 0.5))
    run(store, first, usage=spent)
    run(store, first, usage=spent)
    enqueue(store, first, "break")
    store.finish_turn(claim(store, first).lease, failed(FailureClass.AUTH))
    enqueue(store, first, "refused")
    refused = claim(store, first)
    again = store.fall_back(refused.lease, Failure(FailureClass.GONE, "no such session"), "fallback")
    clock.advance(7)
    store.finish_turn(again.lease, done())
    second = begin(store, agent="gitops-operator")
    store.update_session(second.id, SessionUpdate(error="it broke"))
    new = a_delegation()
    store.delegate(new)
    store.ask_delegation(a_question(session_id=new.new_session_id))
    store.update_session(new.new_session_id, SessionUpdate(phase=Phase.PLANNING))
    store.ask_delegation(a_question(session_id=new.new_session_id))
    store.lose_delegations("nobody")
    clock.advance(120)
    for session_id in (first.id, second.id, new.new_session_id):
        store.finalize_session(session_id, Phase.COMPLETED, None)


class TestTotals:
    def test_an_empty_store_has_none(self, store: Store) -> None:
        totals = store.totals()
        assert (totals.first_day, totals.rows) == (None, ())

    def test_everything_is_counted_where_it_belongs(self, store: Store, clock: ManualClock) -> None:
        lively(store, clock)
        assert counted(store, TotalKind.SESSION) == {"conversation": 1, "delegated": 2}
        assert counted(store, TotalKind.SESSION_WITH_ERROR) == {"conversation": 1, "delegated": 1}
        assert counted(store, TotalKind.CLOSED) == {"completed conversation": 1, "completed delegated": 2}
        assert counted(store, TotalKind.ATTEMPT) == {
            "fresh no_pointer done first": 1,
            "resume resumable done next": 1,
            "resume resumable failed next": 1,
            "resume resumable fell_back next": 1,
            "fresh retired done same": 1,
        }
        assert counted(store, TotalKind.TURN) == {"done ": 3, "failed auth": 1}
        assert counted(store, TotalKind.DELEGATION) == {"new": 1, "asked_resumed": 1, "asked_new": 1}
        assert counted(store, TotalKind.SESSION, "gitops-operator") == {"delegated": 1}
        assert counted(store, TotalKind.ATTEMPT, "gitops-operator") == {}
        assert sum(counted(store, TotalKind.DURATION).values()) == 2
        assert sum(counted(store, TotalKind.TURN_DURATION).values()) == 3
        assert amount(store, TotalKind.INPUT_TOKENS) == 200
        assert amount(store, TotalKind.COST_USD) == 1.0

    def test_what_is_deleted_stays_counted(self, store: Store, clock: ManualClock) -> None:
        lively(store, clock)
        kept = begin(store)
        run(store, kept)
        before = store.totals()

        clock.advance(FAR)
        report = store.clean_up(old(clock))

        assert len(report.deleted) == 3
        assert counted(store, TotalKind.CLEANUP) == {"deleted": 3, "abandoned": 1}
        after = store.totals()
        changed = (TotalKind.CLEANUP, TotalKind.CLOSED)
        assert _without(after.rows, *changed) == _without(before.rows, *changed)
        assert after.first_day == before.first_day

        store.remove_session(kept.id)
        assert _without(store.totals().rows, *changed) == _without(before.rows, *changed)
        assert counted(store, TotalKind.CLEANUP) == {"deleted": 3, "abandoned": 1, "removed": 1}
        assert counted(store, TotalKind.CLEANUP, "gitops-operator") == {"deleted": 1}

    def test_what_is_deleted_twice_is_added_up(self, store: Store) -> None:
        for number in (1, 2, 3):
            session = begin(store)
            run(store, session)
            store.remove_session(session.id)
            assert counted(store, TotalKind.SESSION) == {"delegated": number}
            assert counted(store, TotalKind.TURN) == {"done ": number}

    def test_a_dry_run_counts_nothing(self, store: Store, clock: ManualClock) -> None:
        lively(store, clock)
        before = store.totals()
        clock.advance(FAR)
        store.clean_up(old(clock), dry_run=True)
        assert store.totals() == before

    def test_days_are_whole(self, store: Store, clock: ManualClock) -> None:
        begin(store)
        clock.advance(DAY)
        begin(store)
        next_noon = clock()
        store.remove_session(begin(store).id)

        def begun(**window: object) -> int:
            totals = store.totals(**window)  # type: ignore[arg-type]
            return sum(row.number for row in totals.rows if row.what is TotalKind.SESSION)

        assert (begun(), begun(since=next_noon), begun(until=next_noon)) == (3, 2, 3)
        clock.advance(DAY)
        assert begun(since=clock()) == 0

    def test_a_turn_that_waits_for_a_writer_is_counted(self, store: Store) -> None:
        shared = a_provider_session_id()
        first, second = begin(store), begin(store)
        for session in (first, second):
            point_to(store, session, shared)
            enqueue(store, session, "go on")
        held = claim(store, first)
        assert store.claim_turn(a_claim(session_id=second.id)) is None
        store.put_back(held.lease, because=Failure(FailureClass.LOCKED, "held"))
        assert counted(store, TotalKind.LOCK_WAIT) == {"claim": 1, "launch": 1}


def _without(rows: tuple[Total, ...], *kinds: TotalKind) -> set[Total]:
    return {row for row in rows if row.what not in kinds}

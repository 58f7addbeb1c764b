"""Owns the clauses on the pulse: whose marks it has, and what changes a mark."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.clock import Instant, after
from holdfast.domain.sessions import Session, SessionMark, SessionStatus, SessionUpdate
from holdfast.store.contract import Store
from tests.builders import a_delegation, an_answer, done
from tests.clock import ManualClock
from tests.steps import begin, claim, defer, enqueue, run

Change = Callable[[Store, Session], object]


def marks(store: Store, since: Instant) -> dict[str, SessionMark]:
    return {mark.id: mark for mark in store.pulse(since).marks}


CHANGES: dict[str, Change] = {
    "renamed": lambda store, session: store.rename_session(session.id, "another"),
    "updated": lambda store, session: store.update_session(session.id, SessionUpdate(summary="half")),
    "asked for a turn": lambda store, session: enqueue(store, session, "go"),
    "ran": run,
    "edited": lambda store, session: store.edit_turn(session.id, 1, prompt="other words"),
    "truncated": lambda store, session: store.truncate(session.id, 0),
    "begun again": lambda store, session: store.new_generation(session.id),
    "asked": defer,
}


class TestPulse:
    def test_an_empty_workspace_has_none(self, store: Store) -> None:
        found = store.pulse(Instant(0))

        assert (found.sessions, found.marks, found.is_whole) == (0, (), True)

    def test_it_has_the_sessions_that_were_active_since(self, store: Store, clock: ManualClock) -> None:
        begin(store)
        clock.advance(60)
        since = store.now()
        new = begin(store)

        assert [*marks(store, since)] == [new.id]
        assert store.pulse(since).sessions == 2

    @pytest.mark.parametrize("change", CHANGES)
    def test_what_was_changed_is_active_and_has_another_mark(
        self, store: Store, clock: ManualClock, change: str
    ) -> None:
        session = begin(store)
        run(store, session)
        before = marks(store, Instant(0))[session.id]
        clock.advance(60)
        since = store.now()

        CHANGES[change](store, session)

        assert marks(store, since)[session.id] != before

    def test_a_turn_behind_another_one_is_seen(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "one")
        clock.advance(60)
        before = marks(store, store.now())[session.id]

        enqueue(store, session, "two")

        assert marks(store, store.now())[session.id].next_seq == before.next_seq + 1

    def test_open_work_is_seen_however_old_it_is(self, store: Store, clock: ManualClock) -> None:
        queued, delayed, running = begin(store), begin(store), begin(store)
        enqueue(store, queued, "go")
        enqueue(store, delayed, "go", not_before=after(store.now(), 7200.0))
        enqueue(store, running, "go")
        claim(store, running, lease_seconds=3600.0)
        asked = defer(store, begin(store))
        delegated = store.delegate(a_delegation()).session
        assert delegated is not None
        idle = begin(store)
        clock.advance(1800)

        found = marks(store, store.now())

        assert {mark.id: mark.status for mark in found.values()} == {
            queued.id: SessionStatus.QUEUED,
            delayed.id: SessionStatus.QUEUED,
            running.id: SessionStatus.RUNNING,
            asked.session_id: SessionStatus.WAITING,
            delegated.id: SessionStatus.RUNNING,
        }
        assert found[asked.session_id].open_approvals == 1
        assert idle.id not in found

    def test_time_alone_changes_the_mark_of_a_session_that_runs(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        enqueue(store, session, "go")
        claim(store, session, lease_seconds=60.0)
        before = marks(store, store.now())[session.id]
        clock.advance(61)

        assert marks(store, store.now())[session.id].status is not before.status

    def test_an_answer_and_an_end_are_seen(self, store: Store, clock: ManualClock) -> None:
        approval = defer(store, begin(store))
        clock.advance(60)
        since = store.now()
        store.answer_approval(approval.id, an_answer(approval))
        session = store.get_session(approval.session_id)
        assert marks(store, since)[session.id].open_approvals == 0

        clock.advance(60)
        lease = claim(store, session).lease
        before = marks(store, store.now())[session.id]
        store.finish_turn(lease, done())

        ended = marks(store, store.now())[session.id]
        assert (before.head_seq, ended.head_seq) == (1, None)

    def test_it_says_if_it_is_not_whole(self, store: Store) -> None:
        for _ in range(3):
            begin(store)

        assert not store.pulse(Instant(0), 2).is_whole
        assert store.pulse(Instant(0), 4).is_whole

"""Owns the clauses on taking sessions away: ``remove_session`` and ``clean_up``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.clock import Instant
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import CleanupReport, Old, PhaseChange, Session, SessionFilter, SessionKind
from holdfast.domain.turns import TurnRequest
from holdfast.errors import Busy, Conflict, NotFound, Refused
from holdfast.store.contract import Store
from tests.builders import (
    a_pointer,
    a_provider_session_id,
    a_runtime,
    a_session,
    a_session_id,
    an_event,
    done,
)
from tests.clock import ManualClock
from tests.steps import begin, claim, enqueue, join, refused, run, snapshot

HOUR = 3600.0
NOTHING = CleanupReport((), ())


def is_gone(store: Store, session: Session) -> bool:
    """Nothing is left that could be read of a session, its turns and its conversation."""
    for read in (
        lambda: store.get_session(session.id),
        lambda: store.find_session(session.id),
        lambda: store.get_conversation(session.conversation_id),
        lambda: store.get_turn(session.conversation_id, 1),
    ):
        try:
            read()
        except NotFound:
            continue
        return False
    left = (
        store.phase_history(session.id),
        store.attempts(session.conversation_id, 1),
        store.events(session.conversation_id, 1),
        store.pointers(session.id),
    )
    return not any(left)


def with_a_record(store: Store, **changes: str) -> Session:
    """A session with a turn, an attempt, events and a pointer."""
    session = begin(store, **changes)
    enqueue(store, session, "one")
    lease = claim(store, session).lease
    store.record_events(lease, [an_event(1), an_event(2)])
    store.finish_turn(lease, done())
    return session


def closed(store: Store, session: Session) -> Session:
    return store.finalize_session(session.id, Phase.COMPLETED, None)


def assert_remembered(store: Store, retired: str) -> None:
    """No session can point to a provider session that was retired."""
    store.register_runtime(a_runtime())
    pointer = a_pointer(begin(store).id, provider_session_id=retired)
    with refused(store, Refused) as caught:
        store.set_pointer(pointer)
    assert caught.value.details["reason"] == "retired"


class TestRemove:
    """``remove_session``."""

    def test_the_session_goes_with_everything_it_recorded(self, store: Store) -> None:
        session = with_a_record(store, name="infra")
        store.remove_session(session.id)
        assert is_gone(store, session)

    def test_nobody_else_is_touched(self, store: Store) -> None:
        with_a_record(store)
        before = snapshot(store)
        store.remove_session(with_a_record(store).id)
        assert snapshot(store) == before

    def test_its_id_and_its_name_are_free_again(self, store: Store) -> None:
        session = with_a_record(store, name="infra")
        store.remove_session(session.id)
        assert begin(store, id=session.id, name="infra", agent="someone-else").agent == "someone-else"
        assert store.turns(session.id) == ()

    def test_turns_that_wait_go_with_it(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "one")
        store.remove_session(session.id)
        assert is_gone(store, session)

    def test_it_is_busy_while_it_is_leased(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "one")
        lease = claim(store, session, owner="worker-7").lease
        with refused(store, Busy) as caught:
            store.remove_session(session.id)
        assert caught.value.details["holder"] == "worker-7"
        store.finish_turn(lease, done())
        store.remove_session(session.id)

    def test_forks_have_to_go_first(self, store: Store) -> None:
        parent = with_a_record(store)
        child = store.fork(parent.id, a_session_id())
        with refused(store, Conflict):
            store.remove_session(parent.id)
        store.remove_session(child.id)
        store.remove_session(parent.id)
        assert is_gone(store, parent)

    def test_a_conversation_that_others_share_stays(self, store: Store) -> None:
        session = with_a_record(store)
        join(store, session, "reviewer")
        with refused(store, Conflict):
            store.remove_session(session.id)

    def test_a_retired_provider_session_is_remembered(self, store: Store) -> None:
        session, retired = begin(store), a_provider_session_id()
        store.retire(session.id, "claude", retired, "gone")
        store.remove_session(session.id)
        assert_remembered(store, retired)


class TestCleanup:
    """``clean_up``."""

    def test_an_empty_store_is_clean(self, store: Store, clock: ManualClock) -> None:
        assert store.clean_up(Old(clock())) == NOTHING

    def test_what_has_been_idle_since_before_the_cutoff_is_abandoned(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = with_a_record(store)
        now = clock.advance(HOUR)
        assert store.clean_up(Old(now)) == CleanupReport((session.id,), ())
        after = store.get_session(session.id)
        assert (after.phase, after.finalized_at, after.resume_ready) == (Phase.ABANDONED, now, False)
        change = PhaseChange("initializing", "abandoned", now)
        assert store.phase_history(session.id) == (change,)
        assert store.events(session.conversation_id, 1)

    def test_what_has_been_final_since_before_the_cutoff_is_deleted_with_its_events(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = closed(store, with_a_record(store))
        assert store.clean_up(Old(clock.advance(HOUR))) == CleanupReport((), (session.id,))
        assert is_gone(store, session)

    @pytest.mark.parametrize("final", [False, True], ids=["idle", "final"])
    def test_exactly_at_the_cutoff_is_not_before_it(
        self, store: Store, clock: ManualClock, final: bool
    ) -> None:
        session = begin(store)
        cutoff = clock.advance(HOUR)
        if final:
            closed(store, session)
        else:
            store.rename_session(session.id, "active now")
        clock.advance(HOUR)
        before = snapshot(store)
        assert store.clean_up(Old(cutoff), dry_run=True) == NOTHING
        assert store.clean_up(Old(cutoff)) == NOTHING
        assert snapshot(store) == before
        assert store.clean_up(Old(Instant(cutoff + 1))).count == 1

    def test_activity_counts_and_not_the_age(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        cutoff = clock.advance(HOUR)
        run(store, session)
        assert store.clean_up(Old(cutoff)) == NOTHING

    def test_what_is_abandoned_is_deleted_only_after_as_long_again(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        abandoned = clock.advance(HOUR)
        store.clean_up(Old(abandoned))
        clock.advance(HOUR)
        assert store.clean_up(Old(abandoned)) == NOTHING
        assert store.clean_up(Old(Instant(abandoned + 1))).deleted == (session.id,)

    def test_conversations_are_kept_however_old_they_are(self, store: Store, clock: ManualClock) -> None:
        begin(store, kind=SessionKind.CONVERSATION)
        closed(store, begin(store, kind=SessionKind.CONVERSATION))
        now = clock.advance(100_000 * HOUR)
        before = snapshot(store)
        assert store.clean_up(Old(now), dry_run=True) == NOTHING
        assert store.clean_up(Old(now)) == NOTHING
        assert snapshot(store) == before

    def test_conversations_have_a_cutoff_of_their_own(self, store: Store, clock: ManualClock) -> None:
        idle = begin(store, kind=SessionKind.CONVERSATION)
        final = closed(store, begin(store, kind=SessionKind.CONVERSATION))
        delegated, began = begin(store), clock()
        now = clock.advance(HOUR)
        assert store.clean_up(Old(began, conversations=now)) == CleanupReport((idle.id,), (final.id,))
        assert store.get_session(delegated.id).finalized_at is None

    def test_a_conversation_keeps_the_delegated_work_in_it(self, store: Store, clock: ManualClock) -> None:
        kept = begin(store, kind=SessionKind.CONVERSATION)
        guest = closed(store, join(store, kept, "reviewer"))
        closed(store, kept)
        now = clock.advance(HOUR)
        assert store.clean_up(Old(now)) == NOTHING
        assert set(store.clean_up(Old(now, conversations=now)).deleted) == {kept.id, guest.id}

    @pytest.mark.parametrize("final", [False, True], ids=["idle", "final"])
    def test_with_a_project_nothing_outside_of_it_is_touched(
        self, store: Store, clock: ManualClock, final: bool
    ) -> None:
        places = ("/srv/infra", "/srv/infra/modules", "/srv/infra-2", "/srv", None)
        within, below, *_ = [begin(store, project=place) for place in places]
        talked = begin(store, kind=SessionKind.CONVERSATION)
        run(store, talked)  # in /srv/infra
        for session in store.list_sessions(SessionFilter(), 100).sessions if final else ():
            closed(store, session)
        now = clock.advance(HOUR)

        old = Old(now, conversations=now, project="/srv/infra")
        told = store.clean_up(old, dry_run=True)
        report = store.clean_up(old)

        assert set(report.deleted if final else report.abandoned) == {within.id, below.id, talked.id}
        assert told == report
        assert report.places == ("/srv/infra", "/srv/infra/modules")

    @pytest.mark.parametrize("final", [False, True], ids=["idle", "final"])
    def test_with_places_nothing_else_in_the_project_is_touched(
        self, store: Store, clock: ManualClock, final: bool
    ) -> None:
        places = ("/srv/infra", "/srv/infra/modules", "/srv/infra/vendored")
        within, below, _ = [begin(store, project=place) for place in places]
        for session in store.list_sessions(SessionFilter(), 100).sessions if final else ():
            closed(store, session)

        chosen = (*places[:2], "/srv/elsewhere")
        report = store.clean_up(Old(clock.advance(HOUR), project="/srv/infra", places=chosen))

        assert set(report.deleted if final else report.abandoned) == {within.id, below.id}

    @pytest.mark.parametrize("final", [False, True], ids=["idle", "final"])
    def test_a_session_of_another_project_that_worked_in_this_one_stays(
        self, store: Store, clock: ManualClock, final: bool
    ) -> None:
        guest = begin(store, project="/srv/app")
        run(store, guest)  # in /srv/infra
        if final:
            closed(store, guest)
        now = clock.advance(HOUR)
        assert store.clean_up(Old(now, project="/srv/infra")) == NOTHING
        assert store.clean_up(Old(now, project="/srv/app")).count == 1

    @pytest.mark.parametrize("final", [False, True], ids=["idle", "final"])
    def test_a_conversation_that_works_elsewhere_too_stays(
        self, store: Store, clock: ManualClock, final: bool
    ) -> None:
        talked = begin(store, kind=SessionKind.CONVERSATION)
        run(store, talked)  # in /srv/infra
        codex = a_runtime(provider="codex")
        enqueue(store, talked, "look", provider="codex", request=TurnRequest(work_dir="/srv/app"))
        store.finish_turn(claim(store, talked, codex).lease, done())
        if final:
            closed(store, talked)
        now = clock.advance(HOUR)
        assert store.clean_up(Old(now, conversations=now, project="/srv/infra")).count == 0
        assert store.clean_up(Old(now, conversations=now, project="/srv")).count == 1

    def test_a_conversation_that_a_session_of_another_project_shares_stays(
        self, store: Store, clock: ManualClock
    ) -> None:
        ours = closed(store, begin(store, project="/srv/infra"))
        theirs = closed(store, join(store, ours, "reviewer", project="/srv/app"))
        now = clock.advance(HOUR)
        assert store.clean_up(Old(now, project="/srv/infra")).count == 0
        assert set(store.clean_up(Old(now)).deleted) == {ours.id, theirs.id}

    def test_a_leased_session_is_not_idle(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "one")
        claim(store, session, lease_seconds=HOUR)
        assert store.clean_up(Old(clock.advance(HOUR))) == NOTHING

    def test_a_session_with_a_waiting_turn_is_not_idle(self, store: Store, clock: ManualClock) -> None:
        enqueue(store, begin(store), "one")
        enqueue(store, begin(store), "later", not_before=Instant(clock() + 10**12))
        assert store.clean_up(Old(clock.advance(HOUR))) == NOTHING

    def test_a_final_session_whose_turn_still_runs_stays(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "one")
        claim(store, session, lease_seconds=HOUR)
        closed(store, session)
        assert store.clean_up(Old(clock.advance(HOUR))) == NOTHING

    def test_what_a_living_fork_reads_through_to_stays(self, store: Store, clock: ManualClock) -> None:
        parent = closed(store, with_a_record(store))
        middle = closed(store, store.fork(parent.id, a_session_id()))
        clock.advance(HOUR)
        child = store.fork(middle.id, a_session_id())
        assert store.clean_up(Old(clock())) == NOTHING
        assert [turn.prompt for turn in store.history(child.conversation_id)] == ["one"]

    def test_what_another_agent_still_works_in_stays(self, store: Store, clock: ManualClock) -> None:
        session = closed(store, with_a_record(store))
        clock.advance(HOUR)
        join(store, session, "reviewer")
        assert store.clean_up(Old(clock())) == NOTHING
        assert [turn.prompt for turn in store.history(session.conversation_id)] == ["one"]

    @pytest.mark.parametrize("seconds", [0, 1], ids=["at once", "one after the other"])
    def test_forks_go_before_their_parents_in_one_run(
        self, store: Store, clock: ManualClock, seconds: float
    ) -> None:
        family = [with_a_record(store)]
        for _ in range(6):
            clock.advance(seconds)
            family.append(store.fork(family[-1].id, a_session_id()))
        for session in family:
            closed(store, session)
        assert set(store.clean_up(Old(clock.advance(HOUR))).deleted) == {session.id for session in family}
        assert all(is_gone(store, session) for session in family)

    def test_a_late_guest_in_the_parent_does_not_keep_it(self, store: Store, clock: ManualClock) -> None:
        parent = with_a_record(store)
        clock.advance(1)
        child = store.fork(parent.id, a_session_id())
        clock.advance(1)
        guest = join(store, parent, "reviewer")
        family = [closed(store, session) for session in (parent, child, guest)]
        assert set(store.clean_up(Old(clock.advance(HOUR))).deleted) == {session.id for session in family}

    def test_a_retired_provider_session_is_remembered(self, store: Store, clock: ManualClock) -> None:
        session, retired = begin(store), a_provider_session_id()
        store.retire(session.id, "claude", retired, "gone")
        closed(store, session)
        store.clean_up(Old(clock.advance(HOUR)))
        assert is_gone(store, session)
        assert_remembered(store, retired)

    def test_a_dry_run_says_the_same_and_changes_nothing(self, store: Store, clock: ManualClock) -> None:
        begin(store)
        parent = closed(store, with_a_record(store))
        closed(store, store.fork(parent.id, a_session_id()))
        enqueue(store, begin(store), "one")
        now = clock.advance(HOUR)
        before = snapshot(store)
        told = store.clean_up(Old(now), dry_run=True)
        assert snapshot(store) == before
        assert told == store.clean_up(Old(now))
        assert (len(told.abandoned), len(told.deleted), told.count) == (1, 2, 3)

    def test_cleaning_up_again_finds_nothing(self, store: Store, clock: ManualClock) -> None:
        begin(store)
        closed(store, with_a_record(store))
        now = clock.advance(HOUR)
        store.clean_up(Old(now))
        assert store.clean_up(Old(now)) == NOTHING

    def test_a_session_that_comes_back_under_an_old_id_has_no_past(
        self, store: Store, clock: ManualClock
    ) -> None:
        old = closed(store, with_a_record(store))
        store.clean_up(Old(clock.advance(HOUR)))
        new = store.create_session(a_session(id=old.id))
        assert new == replace(
            old, phase=Phase.INITIALIZING, created_at=clock(), updated_at=clock(), finalized_at=None
        )
        assert store.history(new.conversation_id) == ()
        assert store.provider_sessions(new.id) == ()

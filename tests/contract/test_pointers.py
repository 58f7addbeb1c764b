"""Owns the clauses on pointers: what is recorded of a provider session, and when it moves or goes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.domain.conversations import SeenTurns
from holdfast.domain.decisions import Fresh, Reason, Refuse
from holdfast.domain.failures import FailureClass
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.phases import Phase
from holdfast.domain.pointers import Pointer, Rights, TranscriptMark
from holdfast.domain.runtimes import Capabilities
from holdfast.domain.sessions import Session
from holdfast.domain.turns import Launch, Lease, TurnEnd, TurnRequest
from holdfast.domain.usage import ContextUse, UsageReport
from holdfast.errors import Conflict, InvalidInput, LeaseLost, NotFound, Refused, SessionClosed
from holdfast.store.contract import Store
from tests.builders import (
    a_codex_runtime,
    a_pointer,
    a_process,
    a_provider_session_id,
    a_runtime,
    a_session_id,
    done,
    failed,
)
from tests.clock import ManualClock
from tests.steps import begin, claim, enqueue, fail, lose, point_to, pointer_of, resumed_id, run, snapshot

pytestmark = pytest.mark.usefixtures("watched")

MARK = TranscriptMark("projects/infra/5b1c2d3e.jsonl", size=10, digest="abc", turns=1)
FRESH = Launch(Fresh(Reason.NO_POINTER, ()), a_process())


class TestPointers:
    # --- written whole ---

    def test_a_finished_turn_writes_everything_that_is_only_valid_together(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        request = TurnRequest(work_dir="/srv/infra", model="opus", rights=Rights("plan"))
        enqueue(store, session, "go", request=request)
        claimed = claim(store, session)
        clock.advance(5)
        named, context = a_provider_session_id(), ContextUse(10, 100)

        store.finish_turn(
            claimed.lease,
            done(provider_session_id=named, transcript=MARK, usage=UsageReport(context=context)),
        )

        assert pointer_of(store, session) == Pointer(
            session_id=session.id,
            provider="claude",
            provider_session_id=named,
            runtime_id=a_runtime().id,
            work_dir="/srv/infra",
            model="opus",
            epoch=claimed.epoch,
            generation=claimed.generation,
            seen=SeenTurns.up_to(1),
            rights=Rights("plan"),
            transcript=MARK,
            context=context,
            version="2.1.0",
            updated_at=clock(),
        )

    def test_an_attempt_that_was_never_launched_leaves_the_pointer_as_it_is(self, store: Store) -> None:
        session = begin(store)
        point_to(store, session, a_provider_session_id())
        before = pointer_of(store, session)
        enqueue(store, session, "go", request=TurnRequest(work_dir="/srv/elsewhere"))

        store.finish_turn(claim(store, session).lease, failed(FailureClass.REFUSED))

        assert pointer_of(store, session) == before

    def test_what_is_set_is_what_is_there(self, store: Store) -> None:
        session = begin(store)
        store.register_runtime(a_runtime())
        pointer = a_pointer(session.id)

        store.set_pointer(pointer)

        assert pointer_of(store, session) == pointer
        assert store.pointers(session.id) == (pointer,)

    def test_a_set_pointer_keeps_nothing_of_the_one_before(self, store: Store) -> None:
        session = begin(store)
        store.register_runtime(a_runtime())
        store.set_pointer(a_pointer(session.id))
        bare = a_pointer(session.id, model=None, rights=None, transcript=None, context=None, seen=None)

        store.set_pointer(bare)

        assert pointer_of(store, session) == bare

    def test_a_pointer_is_judged_before_it_is_set(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        before, other = pointer_of(store, session), a_provider_session_id()
        pointer = replace(before, provider_session_id=other)
        fresh, resumed = TurnRequest(provider_session_id=other, force_fresh=True), TurnRequest()

        refusal = store.explain(session.id, "claude", fresh, a_runtime(), pointer)
        decision = store.explain(session.id, "claude", resumed, a_runtime(), pointer)

        assert (type(refusal), refusal.reason) == (Refuse, Reason.FORCE_FRESH)
        assert resumed_id(decision) == other
        assert pointer_of(store, session) == before

    def test_each_provider_has_a_pointer_of_its_own(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        claude = pointer_of(store, session)
        run(store, session, runtime=a_codex_runtime())

        assert store.pointer(session.id, "claude") == claude
        assert {pointer.provider for pointer in store.pointers(session.id)} == {"claude", "codex"}

    def test_a_provider_session_that_was_adopted_is_listed_for_both_of_its_users(self, store: Store) -> None:
        first, adopter = begin(store), begin(store)
        run(store, first)
        shared = pointer_of(store, first).provider_session_id
        point_to(store, adopter, shared)

        for session in (first, adopter):
            assert [totals.id for totals in store.provider_sessions(session.id)] == [shared]

    def test_the_source_of_a_fork_is_not_listed_for_the_fork(self, store: Store) -> None:
        parent = begin(store)
        run(store, parent)
        child = store.fork(parent.id, a_session_id())

        assert store.provider_sessions(child.id) == ()

    def test_a_session_that_never_ran_has_none(self, store: Store) -> None:
        session = begin(store)

        assert store.pointer(session.id, "claude") is None
        assert store.pointers(session.id) == ()

    # --- what cannot be pointed at ---

    def test_an_unregistered_runtime_is_not_found(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        before = snapshot(store)

        with pytest.raises(NotFound):
            store.set_pointer(a_pointer(session.id, runtime_id=a_runtime(machine="nowhere").id))
        assert snapshot(store) == before

    def test_an_empty_id_cannot_be_set(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        before = snapshot(store)

        with pytest.raises(InvalidInput):
            store.set_pointer(a_pointer(session.id, provider_session_id=ProviderSessionId("")))
        assert snapshot(store) == before

    def test_an_unknown_session_has_no_pointer_to_set(self, store: Store) -> None:
        store.register_runtime(a_runtime())

        with pytest.raises(NotFound):
            store.set_pointer(a_pointer("agent-20260108-120000-ffffffff"))

    def test_a_closed_session_has_no_pointer_to_set(self, store: Store) -> None:
        session = begin(store)
        store.register_runtime(a_runtime())
        store.finalize_session(session.id, Phase.COMPLETED, None)

        with pytest.raises(SessionClosed):
            store.set_pointer(a_pointer(session.id))

    @pytest.mark.parametrize("named", [None, ProviderSessionId("")], ids=["none", "empty"])
    @pytest.mark.parametrize("end", [done(), failed()], ids=["done", "failed"])
    def test_an_empty_id_never_replaces_a_pointer(
        self, store: Store, named: ProviderSessionId | None, end: TurnEnd
    ) -> None:
        session = begin(store)
        run(store, session)
        known = pointer_of(store, session).provider_session_id
        enqueue(store, session, "anew", request=TurnRequest(force_fresh=True))

        store.finish_turn(claim(store, session).lease, replace(end, provider_session_id=named))

        assert pointer_of(store, session).provider_session_id == known

    # --- cleared ---

    def test_a_pointer_is_cleared_only_if_it_is_the_expected_one(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        pointer = pointer_of(store, session)

        assert not store.clear_pointer(session.id, "claude", a_provider_session_id())
        assert not store.clear_pointer(session.id, "codex", pointer.provider_session_id)
        assert pointer_of(store, session) == pointer
        assert store.clear_pointer(session.id, "claude", pointer.provider_session_id)
        assert store.pointer(session.id, "claude") is None
        assert not store.clear_pointer(session.id, "claude", pointer.provider_session_id)

    # --- a failed turn ---

    def test_a_first_turn_that_failed_is_not_pointed_at(self, store: Store) -> None:
        session = begin(store)
        fail(store, session, FailureClass.TRANSIENT, provider_session_id=a_provider_session_id())

        assert store.pointer(session.id, "claude") is None

    def test_a_first_turn_that_failed_is_pointed_at_if_the_provider_holds_it(self, store: Store) -> None:
        session, named = begin(store), a_provider_session_id()
        fail(store, session, FailureClass.TRANSIENT, provider_session_id=named, transcript=MARK)

        assert pointer_of(store, session).provider_session_id == named

    def test_a_failed_turn_was_sent_to_the_session_that_it_resumed_if_the_transcript_has_another_turn(
        self, store: Store
    ) -> None:
        session, grown = begin(store), replace(MARK, size=MARK.size + 1, digest="def", turns=2)
        run(store, session, transcript=MARK)
        fail(store, session, FailureClass.INTERRUPTED, transcript=grown)

        assert pointer_of(store, session).seen == SeenTurns.up_to(2)

    @pytest.mark.parametrize(
        "mark",
        [None, MARK, replace(MARK, size=MARK.size + 1, digest="def")],
        ids=["no mark", "the same mark", "no other turn"],
    )
    def test_a_failed_turn_was_not_sent_as_far_as_anyone_knows(
        self, store: Store, mark: TranscriptMark | None
    ) -> None:
        session = begin(store)
        run(store, session, transcript=MARK)
        fail(store, session, FailureClass.TRANSIENT, transcript=mark)

        assert pointer_of(store, session).seen == SeenTurns.up_to(1)

    @pytest.mark.parametrize("end", ["failed", "done"])
    def test_what_a_resumed_turn_does_not_report_is_kept(self, store: Store, end: str) -> None:
        session, context = begin(store), ContextUse(10, 100)
        run(store, session, transcript=MARK, usage=UsageReport(context=context))
        if end == "failed":
            fail(store, session, FailureClass.TRANSIENT)
        else:
            run(store, session)

        pointer = pointer_of(store, session)

        assert (pointer.transcript, pointer.context) == (MARK, context)

    def test_a_failed_resume_that_reports_another_id_moves_no_pointer(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        known = pointer_of(store, session).provider_session_id

        fail(store, session, FailureClass.UNKNOWN, provider_session_id=a_provider_session_id())

        assert pointer_of(store, session).provider_session_id == known

    def test_a_successful_resume_that_reports_another_id_moves_the_pointer(self, store: Store) -> None:
        session, other = begin(store), a_provider_session_id()
        run(store, session)
        run(store, session, provider_session_id=other)

        assert pointer_of(store, session).provider_session_id == other


class TestRetired:
    """A retired provider session never comes back."""

    def retired(self, store: Store) -> tuple[Session, ProviderSessionId]:
        session = begin(store)
        run(store, session)
        gone = pointer_of(store, session).provider_session_id
        store.retire(session.id, "claude", gone, "poisoned")
        return session, gone

    def test_retiring_takes_the_pointer_and_is_told_by_the_totals(self, store: Store) -> None:
        session, gone = self.retired(store)

        assert store.pointer(session.id, "claude") is None
        (totals,) = store.provider_sessions(session.id)
        assert (totals.id, totals.retired) == (gone, "poisoned")

    def test_the_first_reason_stays(self, store: Store) -> None:
        session, gone = self.retired(store)
        before = snapshot(store)

        store.retire(session.id, "claude", gone, "another reason")

        assert [totals.retired for totals in store.provider_sessions(session.id)] == ["poisoned"]
        assert snapshot(store)[""] == before[""]

    def test_retiring_another_session_leaves_the_pointer(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        known = pointer_of(store, session)

        store.retire(session.id, "claude", a_provider_session_id(), "gone")

        assert pointer_of(store, session) == known

    def test_it_cannot_be_set_again(self, store: Store) -> None:
        session, gone = self.retired(store)
        before = snapshot(store)

        with pytest.raises(Refused) as refused:
            store.set_pointer(a_pointer(session.id, provider_session_id=gone))

        assert refused.value.reason == "retired"
        assert snapshot(store) == before

    def test_it_does_not_come_back_when_a_turn_ends_in_it(self, store: Store) -> None:
        session, gone = self.retired(store)
        run(store, session, provider_session_id=gone)

        assert store.pointer(session.id, "claude") is None
        assert store.explain(session.id, "claude", TurnRequest(), a_runtime()).reason is Reason.RETIRED

    def test_it_does_not_come_back_when_it_is_pinned(self, store: Store) -> None:
        session, gone = self.retired(store)
        enqueue(store, session, "go on")
        store.pin(claim(store, session).lease, gone)

        assert store.pointer(session.id, "claude") is None

    def test_it_does_not_come_back_in_another_session(self, store: Store) -> None:
        _, gone = self.retired(store)
        other = begin(store, agent="reviewer")

        with pytest.raises(Refused):
            store.set_pointer(a_pointer(other.id, provider_session_id=gone))
        run(store, other, provider_session_id=gone)
        assert store.pointer(other.id, "claude") is None

    def test_a_pointer_of_another_session_to_it_is_not_resumed(self, store: Store) -> None:
        shared = a_provider_session_id()
        one, other = begin(store), begin(store)
        for session in (one, other):
            point_to(store, session, shared)

        store.retire(one.id, "claude", shared, "poisoned")

        assert store.explain(other.id, "claude", TurnRequest(), a_runtime()).reason is Reason.RETIRED

    def test_it_is_remembered_when_its_session_is_gone(self, store: Store) -> None:
        session, gone = self.retired(store)
        store.remove_session(session.id)

        with pytest.raises(Refused):
            store.set_pointer(a_pointer(begin(store).id, provider_session_id=gone))


#: says nothing of how many turns the transcript has
UNCOUNTED = TranscriptMark("projects/infra/5b1c2d3e.jsonl", size=10, digest="abc")


class TestPins:
    def running(self, store: Store, minted: ProviderSessionId | None = None) -> tuple[Session, Lease]:
        session = begin(store)
        enqueue(store, session, "long")
        lease = claim(store, session).lease
        store.launch(lease, replace(FRESH, provider_session_id=minted))
        return session, lease

    def test_an_id_that_was_only_minted_is_not_pointed_at(self, store: Store) -> None:
        session, _ = self.running(store, minted=a_provider_session_id())

        assert store.pointer(session.id, "claude") is None

    def test_a_pinned_session_is_pointed_at_while_its_turn_runs(
        self, store: Store, clock: ManualClock
    ) -> None:
        session, lease = self.running(store)
        pinned = a_provider_session_id()
        clock.advance(1)

        store.pin(lease, pinned, UNCOUNTED)

        pointer = pointer_of(store, session)
        assert (pointer.provider_session_id, pointer.transcript) == (pinned, UNCOUNTED)
        assert (pointer.runtime_id, pointer.work_dir) == (a_runtime().id, "/srv/infra")
        assert (pointer.seen, pointer.updated_at) == (SeenTurns.up_to(1), clock())
        attempt = store.newest_attempt(session.id)
        assert attempt is not None
        assert attempt.provider_session_id == pinned

    def test_a_turn_that_was_lost_after_its_first_pin_goes_on_in_that_session(
        self, store: Store, clock: ManualClock
    ) -> None:
        reporting = a_runtime(capabilities=Capabilities(reports_context=True))
        session = begin(store)
        enqueue(store, session, "long")
        lease = claim(store, session, reporting).lease
        store.launch(lease, FRESH)
        pinned = a_provider_session_id()
        store.pin(lease, pinned, UNCOUNTED)
        lose(store, clock, lease)

        assert resumed_id(claim(store, session, reporting).decision) == pinned

    def test_pinning_again_changes_nothing(self, store: Store) -> None:
        _, lease = self.running(store)
        pinned = a_provider_session_id()
        store.pin(lease, pinned, UNCOUNTED)
        before = snapshot(store)

        store.pin(lease, pinned, UNCOUNTED)

        assert snapshot(store) == before

    def test_an_attempt_runs_one_provider_session(self, store: Store) -> None:
        _, lease = self.running(store, minted=a_provider_session_id())
        before = snapshot(store)

        with pytest.raises(Conflict):
            store.pin(lease, a_provider_session_id())
        assert snapshot(store) == before

    def test_pinning_a_resumed_session_keeps_what_is_known_about_it(self, store: Store) -> None:
        session, context = begin(store), ContextUse(10, 100)
        run(store, session, transcript=UNCOUNTED, usage=UsageReport(context=context))
        known = pointer_of(store, session)
        enqueue(store, session, "long")
        claimed = claim(store, session)

        store.pin(claimed.lease, known.provider_session_id)

        pointer = pointer_of(store, session)
        assert (pointer.transcript, pointer.context) == (UNCOUNTED, context)

    # --- late ---

    def test_a_late_pin_fills_the_empty_slot_of_the_newest_attempt_and_moves_no_pointer(
        self, store: Store, clock: ManualClock
    ) -> None:
        session, lease = self.running(store)
        lose(store, clock, lease)
        late = a_provider_session_id()

        store.pin(lease, late, UNCOUNTED)

        attempt = store.newest_attempt(session.id)
        assert attempt is not None
        assert attempt.provider_session_id == late
        assert store.pointer(session.id, "claude") is None

    def test_what_a_late_pin_told_is_resumed(self, store: Store, clock: ManualClock) -> None:
        session, lease = self.running(store)
        lose(store, clock, lease)
        late = a_provider_session_id()
        store.pin(lease, late, UNCOUNTED)

        claimed = claim(store, session)

        assert claimed.pointer is not None
        assert (claimed.pointer.provider_session_id, claimed.pointer.transcript) == (late, UNCOUNTED)
        assert claimed.decision.reason is Reason.RESUMABLE

    def test_a_late_pin_never_beats_a_newer_attempt(self, store: Store, clock: ManualClock) -> None:
        session, lease = self.running(store)
        lose(store, clock, lease)
        claim(store, session)
        before = snapshot(store)

        with pytest.raises(LeaseLost):
            store.pin(lease, a_provider_session_id())
        assert snapshot(store) == before

    def test_a_late_pin_fills_no_slot_that_is_taken(self, store: Store, clock: ManualClock) -> None:
        minted = a_provider_session_id()
        _, lease = self.running(store, minted=minted)
        lose(store, clock, lease)
        before = snapshot(store)

        with pytest.raises(LeaseLost):
            store.pin(lease, minted, UNCOUNTED)
        with pytest.raises(Conflict):
            store.pin(lease, a_provider_session_id(), UNCOUNTED)
        assert snapshot(store) == before

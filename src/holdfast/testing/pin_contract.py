"""Owns the clauses on pinning: the provider session is known before its turn has ended, or after its lease has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.domain.conversations import SeenTurns
from holdfast.domain.decisions import Fresh, Reason
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import TranscriptMark
from holdfast.domain.runtimes import Capabilities
from holdfast.domain.sessions import Session
from holdfast.domain.turns import Launch, Lease
from holdfast.domain.usage import ContextUse, UsageReport
from holdfast.errors import Conflict, LeaseLost
from holdfast.store.contract import Store
from holdfast.testing.builders import a_process, a_provider_session_id, a_runtime
from holdfast.testing.clock import ManualClock
from holdfast.testing.mishaps import lose, pointer_of, resumed_id
from holdfast.testing.steps import begin, claim, enqueue, run, snapshot

MARK = TranscriptMark("projects/infra/5b1c2d3e.jsonl", size=10, digest="abc")
FRESH = Launch(Fresh(Reason.NO_POINTER, ()), a_process())


class PinContract:
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

        store.pin(lease, pinned, MARK)

        pointer = pointer_of(store, session)
        assert (pointer.provider_session_id, pointer.transcript) == (pinned, MARK)
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
        store.pin(lease, pinned, MARK)
        lose(store, clock, lease)

        assert resumed_id(claim(store, session, reporting).decision) == pinned

    def test_pinning_again_changes_nothing(self, store: Store) -> None:
        _, lease = self.running(store)
        pinned = a_provider_session_id()
        store.pin(lease, pinned, MARK)
        before = snapshot(store)

        store.pin(lease, pinned, MARK)

        assert snapshot(store) == before

    def test_an_attempt_runs_one_provider_session(self, store: Store) -> None:
        _, lease = self.running(store, minted=a_provider_session_id())
        before = snapshot(store)

        with pytest.raises(Conflict):
            store.pin(lease, a_provider_session_id())
        assert snapshot(store) == before

    def test_pinning_a_resumed_session_keeps_what_is_known_about_it(self, store: Store) -> None:
        session, context = begin(store), ContextUse(10, 100)
        run(store, session, transcript=MARK, usage=UsageReport(context=context))
        known = pointer_of(store, session)
        enqueue(store, session, "long")
        claimed = claim(store, session)

        store.pin(claimed.lease, known.provider_session_id)

        pointer = pointer_of(store, session)
        assert (pointer.transcript, pointer.context) == (MARK, context)

    # --- late ---

    def test_a_late_pin_fills_the_empty_slot_of_the_newest_attempt_and_moves_no_pointer(
        self, store: Store, clock: ManualClock
    ) -> None:
        session, lease = self.running(store)
        lose(store, clock, lease)
        late = a_provider_session_id()

        store.pin(lease, late, MARK)

        attempt = store.newest_attempt(session.id)
        assert attempt is not None
        assert attempt.provider_session_id == late
        assert store.pointer(session.id, "claude") is None

    def test_what_a_late_pin_told_is_resumed(self, store: Store, clock: ManualClock) -> None:
        session, lease = self.running(store)
        lose(store, clock, lease)
        late = a_provider_session_id()
        store.pin(lease, late, MARK)

        claimed = claim(store, session)

        assert claimed.pointer is not None
        assert (claimed.pointer.provider_session_id, claimed.pointer.transcript) == (late, MARK)
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
            store.pin(lease, minted, MARK)
        with pytest.raises(Conflict):
            store.pin(lease, a_provider_session_id(), MARK)
        assert snapshot(store) == before

"""Owns the clauses on claims: pick, decide and open the attempt as one, for one claimer only."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from holdfast.clock import after
from holdfast.domain.conversations import SeenTurns
from holdfast.domain.decisions import Decision, Fork, Fresh, Reason, Resume
from holdfast.domain.runtimes import Capabilities
from holdfast.domain.turns import AttemptCause, AttemptStatus, Claim, ClaimRequest, TurnRequest, TurnStatus
from holdfast.domain.usage import Usage
from holdfast.store.contract import Store
from tests.builders import (
    a_claim,
    a_provider_session_id,
    a_runtime,
    a_session_id,
    a_turn,
    done,
)
from tests.clock import ManualClock
from tests.steps import begin, claim, decide, enqueue, join, lose, point_to, resumed_id, run, snapshot

pytestmark = pytest.mark.usefixtures("watched")

HERE, THERE = a_runtime(), a_runtime(machine="build-8")


def essence(decision: Decision) -> tuple[object, ...]:
    """All of a decision but its verdicts, of which only the telling ones are kept."""
    named = decision.provider_session_id if isinstance(decision, Resume | Fork | Fresh) else None
    catch_up = decision.catch_up if isinstance(decision, Resume | Fork) else ()
    return type(decision), decision.reason, named, catch_up


class TestClaims:
    def test_a_claim_leases_the_turn_and_opens_its_attempt(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        enqueue(store, session, "go")

        claimed = claim(store, session, owner="worker-7", lease_seconds=30.0)

        lease, turn = claimed.lease, claimed.turn
        assert (lease.owner, lease.expires_at) == ("worker-7", after(clock(), 30))
        assert (lease.session_id, lease.seq, lease.attempt) == (session.id, turn.seq, 1)
        assert (turn.status, turn.attempts) == (TurnStatus.CLAIMED, 1)
        assert turn == store.get_turn(turn.conversation_id, turn.seq)
        (attempt,) = store.attempts(turn.conversation_id, turn.seq)
        assert (attempt.status, attempt.cause) == (AttemptStatus.OPEN, AttemptCause.FIRST)
        assert (attempt.owner, attempt.fence, attempt.runtime_id) == ("worker-7", lease.fence, HERE.id)

    def test_the_decision_is_stored_with_the_attempt(self, store: Store) -> None:
        session = begin(store)
        run(store, session, runtime=HERE)
        enqueue(store, session, "go on")

        claimed = claim(store, session, THERE)

        attempt = store.newest_attempt(session.id)
        assert attempt is not None
        assert (attempt.decision.kind, attempt.decision.reason) == ("fresh", "runtime_changed")
        assert isinstance(claimed.decision, Fresh)
        assert any(HERE.id in verdict.evidence for verdict in attempt.decision.verdicts)

    def test_the_decision_is_the_one_that_explain_gives(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        store.record_turn(session.id, a_turn("by hand"), "done", Usage())
        told = decide(store, session, request=a_turn().request)
        enqueue(store, session, "go on")

        assert claim(store, session).decision == told

    def test_explaining_changes_nothing(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        before = snapshot(store)

        for runtime in (HERE, THERE):
            decide(store, session, runtime)
        store.explain(session.id, "codex", TurnRequest())

        assert snapshot(store) == before

    def test_a_claim_says_what_the_agent_will_have_seen(self, store: Store) -> None:
        session = begin(store)
        other = join(store, session, "reviewer")
        run(store, session)
        enqueue(store, other, "still open")
        enqueue(store, session, "go on")

        claimed = claim(store, session)

        assert claimed.covers == SeenTurns(((1, 1), (3, 3)))
        conversation = store.get_conversation(session.conversation_id)
        assert (claimed.epoch, claimed.generation) == (conversation.revision, conversation.generation)

    def test_a_claim_makes_its_runtime_known(self, store: Store) -> None:
        enqueue(store, begin(store), "go")

        store.claim_turn(a_claim(runtime=THERE))

        assert THERE in [known.runtime for known in store.runtimes()]

    def test_a_runtime_was_seen_when_it_was_registered_last(self, store: Store, clock: ManualClock) -> None:
        store.register_runtime(THERE)
        at = clock.advance(3600)

        store.register_runtime(THERE)

        assert [known.last_seen_at for known in store.runtimes() if known.id == THERE.id] == [at]

    def test_the_workers_of_one_machine_do_not_all_write_that_they_are_there(
        self, store: Store, clock: ManualClock
    ) -> None:
        at = clock()
        store.register_runtime(THERE)
        clock.advance(4)
        store.register_runtime(THERE)
        assert [known.last_seen_at for known in store.runtimes() if known.id == THERE.id] == [at]

        updated = replace(THERE, version="9.9.9")
        store.register_runtime(updated)

        assert [known.runtime for known in store.runtimes() if known.id == THERE.id] == [updated]

    def test_a_runtime_is_seen_again_though_the_clock_was_set_back(
        self, store: Store, clock: ManualClock
    ) -> None:
        store.register_runtime(THERE)
        at = clock.advance(-3600)

        store.register_runtime(THERE)

        assert [known.last_seen_at for known in store.runtimes() if known.id == THERE.id] == [at]

    # --- one claimer only ---

    def test_claimers_at_the_same_time_never_get_the_same_turn(self, store: Store) -> None:
        waiting = {(enqueue(store, begin(store), "go").session_id) for _ in range(12)}

        def work(number: int) -> list[Claim]:
            """A worker that always finds another turn and never ends one."""
            mine = []
            while (found := store.claim_turn(a_claim(owner=f"worker-{number}"))) is not None:
                mine.append(found)
            return mine

        with ThreadPoolExecutor(4) as pool:
            claims = [found for mine in pool.map(work, range(4)) for found in mine]
        # who meets only rows that others are looking at goes away empty-handed
        claims += work(4)

        assert len(claims) == len(waiting)
        assert {found.lease.session_id for found in claims} == waiting

    def test_claimers_at_the_same_time_never_share_a_provider_session(self, store: Store) -> None:
        for _ in range(8):
            shared = a_provider_session_id()
            sessions = [begin(store) for _ in range(4)]
            for session in sessions:
                point_to(store, session, shared)
                enqueue(store, session, "go on")
            requests = [a_claim(session_id=session.id) for session in sessions]

            with ThreadPoolExecutor(4) as pool:
                claims = [found for found in pool.map(store.claim_turn, requests) if found is not None]

            assert [resumed_id(found.decision) for found in claims] == [shared]

    # --- a lost reply ---

    @pytest.mark.parametrize("case", ["fresh", "explicit", "resume", "fork"])
    def test_the_answer_to_a_lost_reply_is_the_same_claim(self, store: Store, case: str) -> None:
        session = begin(store)
        named = a_provider_session_id() if case == "explicit" else None
        if case in ("resume", "fork"):
            run(store, session)
            store.record_turn(session.id, a_turn("by hand"), "done", Usage())
        if case == "fork":
            session = store.fork(session.id, a_session_id())
        enqueue(store, session, "go", request=TurnRequest(provider_session_id=named))
        request = a_claim()
        first = store.claim_turn(request)
        before = snapshot(store)

        again = store.claim_turn(request)

        assert first is not None
        assert again is not None
        assert replace(again, decision=first.decision) == first
        assert essence(again.decision) == essence(first.decision)
        assert snapshot(store) == before

    def test_a_lost_reply_is_answered_also_after_the_lease_has_expired(
        self, store: Store, clock: ManualClock
    ) -> None:
        session, request = begin(store), a_claim()
        enqueue(store, session, "go")
        first = store.claim_turn(request)
        clock.advance(3600)

        again = store.claim_turn(request)

        assert first is not None
        assert again is not None
        assert again.lease == first.lease
        assert store.heartbeat(again.lease, 60).lease.expires_at == after(clock(), 60)

    def test_another_call_gets_another_claim(self, store: Store) -> None:
        enqueue(store, begin(store), "go")

        assert store.claim_turn(a_claim()) is not None
        assert store.claim_turn(a_claim()) is None

    @pytest.mark.parametrize("ending", ["finished", "put back", "recovered"])
    def test_once_the_attempt_has_ended_the_same_key_is_a_new_claim(
        self, store: Store, clock: ManualClock, ending: str
    ) -> None:
        session, request = begin(store), a_claim()
        enqueue(store, session, "one")
        enqueue(store, session, "two")
        first = must_claim(store, request)
        match ending:
            case "finished":
                store.finish_turn(first.lease, done())
            case "put back":
                store.put_back(first.lease)
            case _:
                lose(store, clock, first.lease)

        again = must_claim(store, request)

        assert again.lease.fence > first.lease.fence
        assert again.turn.prompt == ("two" if ending == "finished" else "one")

    # --- the claiming runtime ---

    def test_another_runtime_starts_fresh_in_the_same_work_dir(self, store: Store) -> None:
        session = begin(store)
        run(store, session, runtime=HERE)
        enqueue(store, session, "go on", request=TurnRequest())

        claimed = claim(store, session, THERE)

        assert isinstance(claimed.decision, Fresh)
        assert claimed.decision.reason is Reason.RUNTIME_CHANGED
        assert claimed.pointer is not None
        assert claimed.pointer.work_dir == "/srv/infra"
        attempt = store.newest_attempt(session.id)
        assert attempt is not None
        assert (attempt.work_dir, attempt.provider_session_id) == ("/srv/infra", None)

    def test_the_old_runtime_still_resumes_its_own_session(self, store: Store) -> None:
        session = begin(store)
        run(store, session, runtime=HERE)
        known = resumed_id(decide(store, session, HERE))
        store.register_runtime(THERE)
        enqueue(store, session, "go on")
        store.put_back(claim(store, session, THERE).lease)

        assert resumed_id(claim(store, session, HERE).decision) == known

    def test_what_a_runtime_can_do_is_part_of_it_and_its_version_is_not(self, store: Store) -> None:
        session = begin(store)
        run(store, session, runtime=HERE)

        newer = replace(HERE, version="9.9.9")
        other = replace(HERE, capabilities=Capabilities(can_resume=True))

        assert isinstance(decide(store, session, newer), Resume)
        assert decide(store, session, other).reason is Reason.RUNTIME_CHANGED


def must_claim(store: Store, request: ClaimRequest) -> Claim:
    claimed = store.claim_turn(request)
    assert claimed is not None
    return claimed

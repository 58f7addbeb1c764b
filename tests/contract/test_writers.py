"""Owns the clauses on who may write to a provider session: one at a time, and the one that was named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.clock import after
from holdfast.domain.decisions import Decision, Fresh, Reason, Refuse, Resume
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.phases import Phase
from holdfast.domain.policy import Policy, ResumePolicy
from holdfast.domain.runtimes import Capabilities, Runtime
from holdfast.domain.sessions import Old, Session
from holdfast.domain.turns import Claim, Launch, Refusal, TurnRequest, TurnStatus
from holdfast.domain.usage import NO_USAGE, Usage, UsageReport
from holdfast.errors import LeaseLost, Refused
from holdfast.store.contract import Store
from tests.builders import (
    a_claim,
    a_pointer,
    a_provider_session_id,
    a_runtime,
    a_session_id,
    a_turn,
    done,
    failed,
)
from tests.clock import ManualClock
from tests.steps import begin, claim, decide, enqueue, lose, point_to, refused, resumed_id, run

pytestmark = pytest.mark.usefixtures("watched")


class TestOneWriter:
    """Whatever session it belongs to, a provider session has one writer at a time."""

    def shared(self, store: Store) -> tuple[Session, Session, Claim]:
        """Two sessions in one provider session: the first writes, the second wants to."""
        shared = a_provider_session_id()
        writer, other = begin(store), begin(store)
        for session in (writer, other):
            point_to(store, session, shared)
            enqueue(store, session, "go on")
        return writer, other, claim(store, writer)

    def waits(self, store: Store, session: Session) -> bool:
        return store.claim_turn(a_claim(session_id=session.id)) is None

    def test_a_second_writer_waits(self, store: Store, clock: ManualClock) -> None:
        _, other, held = self.shared(store)

        assert self.waits(store, other)
        clock.advance(59)
        assert self.waits(store, other)
        assert decide(store, other).reason is Reason.BUSY
        assert store.turns(other.id)[0].status is TurnStatus.QUEUED
        store.heartbeat(held.lease, 60)

    @pytest.mark.parametrize("ending", ["finished", "put back", "fallen back", "recovered", "expired"])
    def test_the_second_writer_goes_on_when_the_first_has_ended(
        self, store: Store, clock: ManualClock, ending: str
    ) -> None:
        _, other, held = self.shared(store)
        assert self.waits(store, other)
        match ending:
            case "finished":
                store.finish_turn(held.lease, done(provider_session_id=None))
            case "put back":
                store.put_back(held.lease)
            case "fallen back":
                store.fall_back(held.lease, Failure(FailureClass.GONE, "no such session"), "fallback")
            case "recovered":
                lose(store, clock, held.lease)
            case _:
                clock.advance(60)
        clock.advance(10)

        claimed = claim(store, other)

        expected = Fresh if ending == "fallen back" else Resume
        assert isinstance(claimed.decision, expected)

    def test_a_writer_whose_lease_expired_does_not_free_it_for_a_third(
        self, store: Store, clock: ManualClock
    ) -> None:
        writer, other, held = self.shared(store)
        clock.advance(60)
        taken = claim(store, other)
        third = begin(store)
        point_to(store, third, resumed_id(taken.decision))
        enqueue(store, third, "go on")
        store.finish_turn(held.lease, done(provider_session_id=None))

        assert self.waits(store, third)
        assert not store.get_turn(writer.conversation_id, 1).status.is_open

    def test_a_writer_that_was_replaced_does_not_get_its_lease_back(
        self, store: Store, clock: ManualClock
    ) -> None:
        _, other, held = self.shared(store)
        clock.advance(60)
        taken = claim(store, other)

        with refused(store, LeaseLost):
            store.heartbeat(held.lease, 60)
        store.finish_turn(taken.lease, done(provider_session_id=None))
        with refused(store, LeaseLost):
            store.heartbeat(held.lease, 60)

    def test_a_writer_that_was_replaced_cannot_take_it_back(self, store: Store, clock: ManualClock) -> None:
        _, other, held = self.shared(store)
        clock.advance(60)
        taken = claim(store, other)
        shared = resumed_id(taken.decision)

        with refused(store, LeaseLost):
            store.pin(held.lease, shared)
        store.heartbeat(taken.lease, 60)

    @pytest.mark.parametrize("ended", [False, True], ids=["still writes", "has ended"])
    def test_a_writer_that_was_replaced_does_not_launch(
        self, store: Store, clock: ManualClock, *, ended: bool
    ) -> None:
        _, other, held = self.shared(store)
        clock.advance(60)
        taken = claim(store, other)
        if ended:
            store.finish_turn(taken.lease, done(provider_session_id=None))

        with refused(store, LeaseLost):
            store.launch(held.lease, Launch(held.decision))
        with refused(store, LeaseLost):
            store.pin(held.lease, resumed_id(held.decision))

    def test_cleaning_up_after_one_user_does_not_free_it_for_a_third(
        self, store: Store, clock: ManualClock
    ) -> None:
        first, shared = begin(store), a_provider_session_id()
        point_to(store, first, shared)
        store.finalize_session(first.id, Phase.COMPLETED, None)
        clock.advance(3600)
        writer, third = begin(store), begin(store)
        for session in (writer, third):
            point_to(store, session, shared)
            enqueue(store, session, "go on")
        claim(store, writer)

        store.clean_up(Old(after(clock(), -60)))

        assert self.waits(store, third)

    @pytest.mark.parametrize("verb", ["removing", "cleaning up"])
    def test_taking_away_its_first_user_does_not_free_it_from_a_writer_by_name(
        self, store: Store, clock: ManualClock, verb: str
    ) -> None:
        first, shared = begin(store), a_provider_session_id()
        _use_in_vain(store, first, shared)
        store.finalize_session(first.id, Phase.COMPLETED, None)
        clock.advance(3600)
        writer, third = begin(store), begin(store)
        by_name = TurnRequest(provider_session_id=shared)
        enqueue(store, writer, "writes", request=by_name)
        held = claim(store, writer)

        if verb == "removing":
            store.remove_session(first.id)
        else:
            store.clean_up(Old(after(clock(), -60)))

        assert decide(store, third, request=by_name).reason is Reason.BUSY
        store.heartbeat(held.lease, 60)
        (totals,) = store.provider_sessions(writer.id)
        assert totals.id == shared

    def test_taking_away_the_last_user_forgets_it(self, store: Store) -> None:
        first, shared = begin(store), a_provider_session_id()
        _use_in_vain(store, first, shared)
        other = begin(store)
        enqueue(store, other, "in there", request=TurnRequest(provider_session_id=shared))
        claimed = claim(store, other)
        store.launch(claimed.lease, Launch(claimed.decision))
        store.finish_turn(claimed.lease, failed(usage=UsageReport(Usage(input_tokens=7))))
        store.remove_session(first.id)
        assert [totals.id for totals in store.provider_sessions(other.id)] == [shared]

        store.remove_session(other.id)
        run(store, last := begin(store), provider_session_id=shared)

        (totals,) = store.provider_sessions(last.id)
        assert totals.usage == NO_USAGE

    def test_a_session_is_not_in_its_own_way(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        enqueue(store, session, "go on")
        store.put_back(claim(store, session).lease)

        assert isinstance(claim(store, session).decision, Resume)
        assert isinstance(decide(store, session), Resume)

    def test_other_providers_and_other_sessions_do_not_wait(self, store: Store) -> None:
        self.shared(store)
        elsewhere = begin(store)
        run(store, elsewhere)

        assert isinstance(decide(store, elsewhere), Resume)


class TestExplicitIds:
    """A provider session that is asked for by name beats configuration and is never replaced by another."""

    def ask(
        self, store: Store, session: Session, named: ProviderSessionId, runtime: Runtime | None = None
    ) -> Decision:
        """Start a turn in it; the decision, and the turn ended in it where it was allowed."""
        started = store.start_turn(
            session.id,
            a_turn(request=TurnRequest(work_dir="/srv/infra", provider_session_id=named)),
            a_claim(runtime=runtime or a_runtime()),
        )
        if isinstance(started, Claim):
            store.finish_turn(started.lease, done(provider_session_id=named))
        else:
            assert isinstance(started, Refusal)
            assert started.turn.status is TurnStatus.FAILED
        return started.decision

    def test_a_new_session_begins_with_the_id_that_was_named(self, store: Store) -> None:
        session, named = begin(store), a_provider_session_id()

        decision = self.ask(store, session, named)

        assert isinstance(decision, Fresh)
        assert decision.provider_session_id == named
        assert resumed_id(decide(store, session)) == named

    def test_the_id_that_was_named_beats_the_one_that_is_pointed_at(self, store: Store) -> None:
        session, named = begin(store), a_provider_session_id()
        run(store, session)

        decision = self.ask(store, session, named)

        assert isinstance(decision, Fresh)
        assert decision.provider_session_id == named
        assert resumed_id(decide(store, session)) == named

    @pytest.mark.parametrize(
        "rules", [ResumePolicy(session_persistence=False), ResumePolicy(native_resume=False)]
    )
    def test_naming_the_current_session_resumes_it_whatever_the_configuration(
        self, make_store: Callable[..., Store], rules: ResumePolicy
    ) -> None:
        store = make_store(policy=Policy(resume=rules))
        session, named = begin(store), a_provider_session_id()
        self.ask(store, session, named)

        assert resumed_id(self.ask(store, session, named)) == named

    def test_a_provider_that_chooses_its_own_ids_refuses(self, store: Store) -> None:
        session = begin(store)
        runtime = a_runtime(capabilities=Capabilities(can_resume=True, chooses_id=False))

        decision = self.ask(store, session, a_provider_session_id(), runtime)

        assert isinstance(decision, Refuse)
        assert decision.reason is Reason.EXPLICIT_ID

    @pytest.mark.parametrize("by", ["this session", "another session"])
    def test_a_retired_session_is_refused(self, store: Store, by: str) -> None:
        session = begin(store)
        run(store, session)
        gone = resumed_id(decide(store, session))
        store.retire(session.id, "claude", gone, "poisoned")

        decision = self.ask(store, session if by == "this session" else begin(store), gone)

        assert isinstance(decision, Refuse)
        assert decision.reason is Reason.RETIRED

    def test_a_session_that_another_one_writes_to_is_refused(self, store: Store) -> None:
        writer, session = begin(store), begin(store)
        run(store, writer)
        named = resumed_id(decide(store, writer))
        enqueue(store, writer, "writes")
        claim(store, writer)

        decision = self.ask(store, session, named)

        assert isinstance(decision, Refuse)
        assert decision.reason is Reason.BUSY

    def test_the_session_of_another_one_is_refused_and_its_owner_named(self, store: Store) -> None:
        owner, session = begin(store), begin(store)
        run(store, owner)
        named = resumed_id(decide(store, owner))

        decision = self.ask(store, session, named)

        assert isinstance(decision, Refuse)
        assert decision.reason is Reason.EXPLICIT_ID
        assert any(f"holdfast resume {owner.id}" in verdict.evidence for verdict in decision.verdicts)
        assert resumed_id(decide(store, owner)) == named

    def test_a_session_that_another_one_points_to_is_refused_though_nothing_ran_there(
        self, store: Store
    ) -> None:
        owner, session, named = begin(store), begin(store), a_provider_session_id()
        point_to(store, owner, named)
        mine = a_pointer(session.id, provider_session_id=named)

        with refused(store, Refused) as caught:
            store.set_pointer(mine, unowned=True)
        decision = self.ask(store, session, named)

        assert caught.value.details["owner"] == owner.id
        assert f"holdfast resume {owner.id}" in caught.value.message
        assert (type(decision), decision.reason) == (Refuse, Reason.EXPLICIT_ID)
        store.set_pointer(a_pointer(owner.id, provider_session_id=named), unowned=True)

    @pytest.mark.parametrize("how", ["ran there", "points there"])
    def test_the_owner_of_a_provider_session(self, store: Store, how: str) -> None:
        owner, other, named = begin(store), begin(store), a_provider_session_id()
        assert store.owner_of("claude", named) is None
        if how == "ran there":
            run(store, owner, provider_session_id=named)
        else:
            point_to(store, owner, named)

        assert store.owner_of("claude", named) == owner.id
        assert store.owner_of("claude", named, other.id) == owner.id
        assert store.owner_of("claude", named, owner.id) is None
        assert store.owner_of("codex", named) is None

    def test_a_fork_does_not_own_what_it_was_forked_from(self, store: Store) -> None:
        parent = begin(store)
        run(store, parent)
        named = resumed_id(decide(store, parent))
        store.fork(parent.id, a_session_id())

        assert store.owner_of("claude", named) == parent.id

    def test_a_new_id_that_another_one_was_promised_is_refused(self, store: Store) -> None:
        named = a_provider_session_id()
        first, second = begin(store), begin(store)
        started = store.start_turn(
            first.id, a_turn(request=TurnRequest(provider_session_id=named)), a_claim()
        )

        assert isinstance(started, Claim)
        assert isinstance(self.ask(store, second, named), Refuse)

    def promised(self, store: Store, named: ProviderSessionId) -> Claim:
        session = begin(store)
        enqueue(store, session, "in there", request=TurnRequest(provider_session_id=named))
        return claim(store, session)

    @pytest.mark.parametrize("ended", [False, True], ids=["still writes", "has ended"])
    def test_an_id_that_was_promised_is_lost_with_the_lease_once_another_one_has_it(
        self, store: Store, clock: ManualClock, *, ended: bool
    ) -> None:
        named = a_provider_session_id()
        late = self.promised(store, named)
        clock.advance(60)
        taken = self.promised(store, named)
        if ended:
            store.finish_turn(taken.lease, done(provider_session_id=named))

        for launched in (Launch(late.decision), Launch(late.decision, provider_session_id=named)):
            with refused(store, LeaseLost):
                store.launch(late.lease, launched)
        with refused(store, LeaseLost):
            store.heartbeat(late.lease, 60)
        if not ended:
            store.heartbeat(taken.lease, 60)

    @pytest.mark.parametrize("ending", ["put back", "failed", "lost"])
    def test_an_id_that_was_promised_and_never_launched_is_still_a_new_one(
        self, store: Store, clock: ManualClock, ending: str
    ) -> None:
        named = a_provider_session_id()
        claimed = self.promised(store, named)
        match ending:
            case "put back":
                store.put_back(claimed.lease)
            case "failed":
                store.finish_turn(claimed.lease, failed(FailureClass.TRANSIENT, retry_at=clock()))
            case _:
                lose(store, clock, claimed.lease)

        again = store.claim_turn(a_claim(session_id=claimed.turn.session_id))

        assert again is not None
        assert isinstance(again.decision, Fresh)
        assert again.decision.provider_session_id == named

    def test_the_current_session_is_refused_where_it_cannot_be_resumed(self, store: Store) -> None:
        session, named = begin(store), a_provider_session_id()
        self.ask(store, session, named)

        decision = self.ask(store, session, named, a_runtime(machine="build-8"))

        assert isinstance(decision, Refuse)
        assert decision.reason is Reason.RUNTIME_CHANGED


def _use_in_vain(store: Store, session: Session, provider_session_id: ProviderSessionId) -> None:
    """Nothing of it was saved there, so that another session may use the id."""
    enqueue(store, session, "one", request=TurnRequest(provider_session_id=provider_session_id))
    begun = claim(store, session)
    store.launch(begun.lease, Launch(begun.decision))
    store.finish_turn(begun.lease, failed(FailureClass.AUTH, "401"))

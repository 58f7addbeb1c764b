"""Owns the clauses on going on: which provider session the next turn resumes, and which rules switch that off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from holdfast.domain.decisions import Fresh, Reason, Resume
from holdfast.domain.failures import FailureClass
from holdfast.domain.pointers import Pointer
from holdfast.domain.policy import Policy, ResumePolicy
from holdfast.domain.runtimes import Runtime
from holdfast.domain.sessions import Session
from holdfast.domain.turns import TurnRequest
from holdfast.domain.usage import ContextUse, UsageReport
from holdfast.store.contract import Store
from tests.builders import a_pointer, a_runtime, done
from tests.steps import begin, claim, decide, enqueue, fail, resumed_id, run

pytestmark = pytest.mark.usefixtures("watched")

HERE, THERE = a_runtime(), a_runtime(machine="build-8")


class TestNewestAttempt:
    """A pointer of no runtime, or of another one, may be stale: then the newest attempt speaks for itself."""

    def attempt(self, store: Store, session: Session, runtime: Runtime = HERE) -> Pointer:
        """A fresh turn that succeeds, and the pointer that it leaves."""
        enqueue(store, session, "anew", request=TurnRequest(work_dir="/srv/infra", force_fresh=True))
        store.finish_turn(claim(store, session, runtime).lease, done())
        pointer = store.pointer(session.id, "claude")
        assert pointer is not None
        return pointer

    def without_runtime(self, store: Store, pointer: Pointer) -> None:
        """As an older store would have left it."""
        store.set_pointer(replace(pointer, runtime_id=None))

    def test_a_missing_runtime_is_that_of_the_attempt_that_made_this_very_session(self, store: Store) -> None:
        session = begin(store)
        pointer = self.attempt(store, session)
        self.without_runtime(store, pointer)

        assert store.pointer(session.id, "claude") == pointer
        assert resumed_id(decide(store, session)) == pointer.provider_session_id

    def test_a_missing_runtime_is_never_that_of_an_attempt_that_made_another_session(
        self, store: Store
    ) -> None:
        session = begin(store)
        stale = self.attempt(store, session, runtime=HERE)
        newer = self.attempt(store, session, runtime=THERE)
        self.without_runtime(store, stale)

        pointer = store.pointer(session.id, "claude")

        assert pointer is not None
        assert (pointer.provider_session_id, pointer.runtime_id) == (stale.provider_session_id, HERE.id)
        assert resumed_id(decide(store, session, THERE)) == newer.provider_session_id
        assert resumed_id(decide(store, session, HERE)) == stale.provider_session_id

    def test_a_runtime_that_no_attempt_can_tell_stays_unknown(self, store: Store) -> None:
        session = begin(store)
        self.attempt(store, session, runtime=THERE)
        store.set_pointer(a_pointer(session.id, runtime_id=None))

        pointer = store.pointer(session.id, "claude")

        assert pointer is not None
        assert pointer.runtime_id is None
        assert decide(store, session, HERE).reason is Reason.RUNTIME_CHANGED

    def test_a_pointer_of_no_runtime_gives_way_to_the_newest_attempt(self, store: Store) -> None:
        session = begin(store)
        newest = self.attempt(store, session)
        store.set_pointer(a_pointer(session.id, runtime_id=None))

        assert resumed_id(decide(store, session)) == newest.provider_session_id

    def test_a_pointer_of_another_runtime_gives_way_to_the_newest_attempt(self, store: Store) -> None:
        session = begin(store)
        newest = self.attempt(store, session, runtime=HERE)
        store.register_runtime(THERE)
        store.set_pointer(a_pointer(session.id, runtime_id=THERE.id))

        assert resumed_id(decide(store, session, HERE)) == newest.provider_session_id
        assert isinstance(decide(store, session, THERE), Resume)

    def test_the_newest_attempt_is_judged_by_all_guards(self, store: Store) -> None:
        session = begin(store)
        self.attempt(store, session)
        store.set_pointer(a_pointer(session.id, runtime_id=None))
        store.edit_turn(session.id, 1, prompt="something else")

        assert decide(store, session).reason is Reason.HISTORY_CHANGED

    def test_the_latest_attempt_decides_and_not_an_older_clean_one(self, store: Store) -> None:
        session = begin(store)
        self.attempt(store, session)
        fail(store, session, FailureClass.POISONED)
        store.set_pointer(a_pointer(session.id, runtime_id=None))

        assert decide(store, session).reason is Reason.RETIRED

    def test_a_session_is_judged_by_its_latest_turn(self, store: Store) -> None:
        session = begin(store)
        for _ in range(3):
            run(store, session)
        fail(store, session, FailureClass.POISONED)

        newest = store.newest_attempt(session.id)

        assert newest is not None
        assert newest.failure is not None
        assert newest.failure.failure_class is FailureClass.POISONED
        assert isinstance(decide(store, session), Fresh)


class TestResumePolicy:
    """The rules that a person may change, as far as a claim applies them."""

    def test_one_provider_session_serves_the_turns_of_a_session(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        known = resumed_id(decide(store, session))

        assert resumed_id(run(store, session).decision) == known
        assert resumed_id(run(store, session).decision) == known

    def test_without_persistence_every_turn_starts_a_session_of_its_own(
        self, make_store: Callable[..., Store]
    ) -> None:
        store = make_store(policy=Policy(resume=ResumePolicy(session_persistence=False)))
        session = begin(store)
        run(store, session)

        decisions = [run(store, session).decision for _ in range(3)]

        assert [decision.reason for decision in decisions] == [Reason.RESUME_DISABLED] * 3
        assert len(store.provider_sessions(session.id)) == 4

    def test_the_most_specific_switch_decides_whether_to_resume(
        self, store: Store, make_store: Callable[..., Store]
    ) -> None:
        session = begin(store)
        run(store, session)

        off = make_store(policy=Policy(resume=ResumePolicy(native_resume=False)))
        on_for_it = make_store(
            policy=Policy(resume=ResumePolicy(agents={session.agent: True}, providers={"claude": False}))
        )
        off_for_it = make_store(policy=Policy(resume=ResumePolicy(providers={"claude": False})))

        assert decide(off, session).reason is Reason.RESUME_DISABLED
        assert isinstance(decide(on_for_it, session), Resume)
        assert decide(off_for_it, session).reason is Reason.RESUME_DISABLED

    def test_a_full_context_window_starts_fresh_from_the_refresh_share_on(self, store: Store) -> None:
        session, prompt = begin(store), "x" * 30  # ten tokens
        run(store, session, usage=UsageReport(context=ContextUse(159_989, 200_000)))
        enqueue(store, session, prompt)
        below = claim(store, session)
        store.finish_turn(
            below.lease,
            done(provider_session_id=None, usage=UsageReport(context=ContextUse(159_990, 200_000))),
        )
        enqueue(store, session, prompt)

        claimed = claim(store, session)

        assert isinstance(below.decision, Resume)
        assert claimed.decision.reason is Reason.CONTEXT_FULL

    def test_three_errors_of_a_provider_session_are_too_many(self, make_store: Callable[..., Store]) -> None:
        store = make_store(policy=Policy(resume=ResumePolicy(max_failed_resumes=100)))
        session = begin(store)
        run(store, session)

        for _ in range(2):
            fail(store, session, FailureClass.UNKNOWN)
        assert isinstance(decide(store, session), Resume)
        fail(store, session, FailureClass.UNKNOWN)

        assert decide(store, session).reason is Reason.ERRORS

    def test_a_success_takes_back_the_errors_of_a_provider_session(
        self, make_store: Callable[..., Store]
    ) -> None:
        store = make_store(policy=Policy(resume=ResumePolicy(max_failed_resumes=100)))
        session = begin(store)
        run(store, session)
        for _ in range(2):
            fail(store, session, FailureClass.UNKNOWN)

        run(store, session)
        fail(store, session, FailureClass.UNKNOWN)

        assert isinstance(decide(store, session), Resume)

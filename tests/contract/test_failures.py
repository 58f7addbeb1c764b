"""Owns the clauses on what becomes of a provider session when a turn in it fails, or was not saved."""

from __future__ import annotations

import pytest

from holdfast.domain.decisions import Fresh, Reason, Resume
from holdfast.domain.failures import FailureClass
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import TranscriptMark
from holdfast.domain.runtimes import Runtime
from holdfast.domain.sessions import Session
from holdfast.domain.turns import TurnRequest
from holdfast.store.contract import Store
from tests.builders import a_provider_session_id, a_runtime
from tests.steps import begin, claim, decide, enqueue, fail, resumed_id, run

pytestmark = pytest.mark.usefixtures("watched")

HERE, THERE = a_runtime(), a_runtime(machine="build-8")
RETIRING = [FailureClass.GONE, FailureClass.POISONED, FailureClass.OVERFLOW]
KEEPING = [
    FailureClass.NOT_ACCEPTED,
    FailureClass.TRANSIENT,
    FailureClass.LIMIT,
    FailureClass.LOCKED,
    FailureClass.AUTH,
    FailureClass.CONFIG,
    FailureClass.MISSING_BINARY,
    FailureClass.CANCELLED,
    FailureClass.INTERRUPTED,
]


def known_id(store: Store, session: Session) -> ProviderSessionId:
    """One turn that succeeds; the provider session it ended in."""
    run(store, session)
    return resumed_id(decide(store, session))


class TestFailures:
    @pytest.mark.parametrize("failure_class", RETIRING)
    def test_a_session_that_cannot_go_on_is_retired(self, store: Store, failure_class: FailureClass) -> None:
        session = begin(store)
        known = known_id(store, session)

        fail(store, session, failure_class)

        assert store.pointer(session.id, "claude") is None
        assert decide(store, session).reason is Reason.RETIRED
        (totals,) = store.provider_sessions(session.id)
        assert (totals.id, totals.retired) == (known, failure_class.value)

    @pytest.mark.parametrize("failure_class", KEEPING)
    def test_a_failure_that_is_not_the_sessions_keeps_it(
        self, store: Store, failure_class: FailureClass
    ) -> None:
        session = begin(store)
        known = known_id(store, session)

        for _ in range(5):
            fail(store, session, failure_class)

        assert resumed_id(decide(store, session)) == known

    def test_two_resumes_in_a_row_that_failed_for_an_unknown_reason_retire(self, store: Store) -> None:
        session = begin(store)
        known = known_id(store, session)

        fail(store, session, FailureClass.UNKNOWN)
        assert resumed_id(decide(store, session)) == known
        fail(store, session, FailureClass.UNKNOWN)

        assert decide(store, session).reason is Reason.RETIRED

    def test_a_first_turn_that_failed_is_no_failed_resume(self, store: Store) -> None:
        session, named = begin(store), a_provider_session_id()
        mark = TranscriptMark("projects/infra/5b1c2d3e.jsonl", size=10, digest="abc")
        fail(store, session, FailureClass.UNKNOWN, provider_session_id=named, transcript=mark)

        fail(store, session, FailureClass.UNKNOWN)

        assert resumed_id(decide(store, session)) == named

    def test_a_success_between_two_failed_resumes_keeps_the_session(self, store: Store) -> None:
        session = begin(store)
        known = known_id(store, session)

        for _ in range(3):
            fail(store, session, FailureClass.UNKNOWN)
            run(store, session)

        assert resumed_id(decide(store, session)) == known

    def test_failures_that_are_not_the_sessions_do_not_make_a_row(self, store: Store) -> None:
        session = begin(store)
        known = known_id(store, session)

        for failure_class in (FailureClass.UNKNOWN, FailureClass.TRANSIENT, FailureClass.AUTH):
            fail(store, session, failure_class)

        assert resumed_id(decide(store, session)) == known

    def test_the_session_that_was_resumed_is_blamed_whatever_id_the_provider_reports(
        self, store: Store
    ) -> None:
        session = begin(store)
        known = known_id(store, session)

        for _ in range(2):
            fail(store, session, FailureClass.UNKNOWN, provider_session_id=a_provider_session_id())

        retired = {totals.id: totals.retired for totals in store.provider_sessions(session.id)}
        assert retired[known] is not None
        assert decide(store, session).reason is Reason.RETIRED

    def test_a_success_that_the_provider_did_not_save_is_not_resumed(self, store: Store) -> None:
        session = begin(store)
        run(store, session, resumable=False)

        assert store.pointer(session.id, "claude") is None
        assert isinstance(decide(store, session), Fresh)

    def test_an_empty_answer_that_left_no_trace_is_not_seen(self, store: Store) -> None:
        session, saved = begin(store), TranscriptMark("/s.jsonl", 10, "ab", 1)
        run(store, session, transcript=saved)
        known = store.pointer(session.id, "claude")

        run(store, session, response=None, transcript=saved)

        after = store.pointer(session.id, "claude")
        assert known is not None
        assert after is not None
        assert (after.seen, after.transcript) == (known.seen, saved)
        decision = decide(store, session)
        assert isinstance(decision, Resume)
        assert decision.catch_up == ((2, 2),)

    def test_an_empty_answer_that_is_in_the_session_is_seen(self, store: Store) -> None:
        session = begin(store)
        run(store, session, transcript=TranscriptMark("/s.jsonl", 10, "ab", 1))
        run(store, session, response=None, transcript=TranscriptMark("/s.jsonl", 20, "cd", 2))

        decision = decide(store, session)
        assert isinstance(decision, Resume)
        assert decision.catch_up == ()

    def test_an_unsaved_session_is_not_resumed_for_another_runtimes_pointer_either(
        self, store: Store
    ) -> None:
        session = begin(store)
        run(store, session, runtime=HERE)
        run(store, session, runtime=THERE, resumable=False)

        assert isinstance(decide(store, session, THERE), Fresh)

    @pytest.mark.parametrize("runtime", [HERE, THERE], ids=["same-runtime", "other-runtime"])
    def test_the_work_dir_outlives_the_session(self, store: Store, runtime: Runtime) -> None:
        session = begin(store)
        run(store, session)
        fail(store, session, FailureClass.GONE)
        enqueue(store, session, "go on", request=TurnRequest())

        claimed = claim(store, session, runtime)

        assert isinstance(claimed.decision, Fresh)
        attempt = store.newest_attempt(session.id)
        assert attempt is not None
        assert attempt.work_dir == "/srv/infra"
        assert claimed.pointer is not None
        assert claimed.pointer.work_dir == "/srv/infra"

    def test_a_fresh_start_that_was_asked_for_keeps_the_work_dir(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        enqueue(store, session, "anew", request=TurnRequest(force_fresh=True))

        claimed = claim(store, session)

        assert claimed.decision.reason is Reason.FORCE_FRESH
        attempt = store.newest_attempt(session.id)
        assert attempt is not None
        assert (attempt.work_dir, attempt.provider_session_id) == ("/srv/infra", None)

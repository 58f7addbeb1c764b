"""Owns the contract of approvals: asked and answered once, and which answers do not count."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any

import pytest

from holdfast.clock import after
from holdfast.domain.approvals import Approval, ApprovalStatus, hash_arguments
from holdfast.domain.phases import ApprovalWindow, Phase
from holdfast.domain.redaction import Json
from holdfast.domain.sessions import SessionUpdate
from holdfast.domain.turns import TurnStatus
from holdfast.errors import (
    AmbiguousId,
    Conflict,
    HoldfastError,
    InvalidInput,
    NotFound,
    Refused,
    SessionClosed,
)
from holdfast.store.contract import Store
from tests.builders import an_answer, an_approval, done
from tests.clock import ManualClock
from tests.steps import begin, claim, defer, enqueue, refused, snapshot

pytestmark = pytest.mark.usefixtures("watched")


def ask(store: Store, session_id: str, **changes: Any) -> Approval:
    """What an agent asks itself: no call and no turn waits for it."""
    return store.request_approval(session_id, an_approval(call_id=None, tool=None, **changes))


class TestRequest:
    def test_asking_puts_the_session_into_approval_and_records_it(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        until = after(clock(), 60)
        arguments: dict[str, Json] = {"command": "terraform apply", "targets": ["vpc"]}
        clock.advance(5)
        asked = ask(
            store, session.id, arguments=arguments, expires_at=until, answerers=frozenset({"ada", "bob"})
        )
        assert (asked.session_id, asked.conversation_id, asked.seq) == (
            session.id, session.conversation_id, None,
        )  # fmt: skip
        assert (asked.status, asked.requested_at, asked.expires_at) == (ApprovalStatus.OPEN, clock(), until)
        assert (asked.arguments, asked.arguments_hash) == (arguments, hash_arguments(arguments))
        assert (asked.answerers, asked.requested_by) == (frozenset({"ada", "bob"}), "claude")
        assert store.get_approval(asked.id) == asked
        now = store.get_session(session.id)
        assert (now.phase, now.updated_at) == (Phase.APPROVAL, clock())
        assert [c.to_phase for c in store.phase_history(session.id)] == [Phase.APPROVAL]

    def test_asking_again_with_the_same_id_is_the_same_request(self, store: Store) -> None:
        session = begin(store)
        new = an_approval()
        first = store.request_approval(session.id, new)
        before = snapshot(store)
        assert store.request_approval(session.id, new) == first
        assert snapshot(store) == before

    def test_the_id_of_another_request_is_a_conflict(self, store: Store) -> None:
        session, other = begin(store), begin(store)
        new = an_approval()
        store.request_approval(session.id, new)
        with refused(store, Conflict):
            store.request_approval(other.id, new)
        with refused(store, Conflict):
            store.request_approval(session.id, an_approval(id=new.id, arguments={"command": "rm -rf /"}))

    def test_a_closed_session_asks_nothing(self, store: Store) -> None:
        session = begin(store)
        store.finalize_session(session.id, Phase.COMPLETED, None)
        with refused(store, SessionClosed):
            ask(store, session.id)

    def test_secrets_are_not_kept_but_count_for_the_hash(self, store: Store) -> None:
        exact = {"command": "login", "password": "correct horse battery staple"}
        asked = ask(store, begin(store).id, arguments=exact, what="use password=hunter2hunter2")
        assert "correct horse" not in str(asked)
        assert "hunter2hunter2" not in asked.what
        assert asked.arguments_hash == hash_arguments(exact)

    def test_every_request_has_a_nonce_of_its_own(self, store: Store) -> None:
        session = begin(store)
        assert ask(store, session.id).nonce != ask(store, session.id).nonce


class TestFindApproval:
    def test_found_by_id_by_beginning_and_by_session(self, store: Store) -> None:
        session = begin(store, name="deploy")
        asked = ask(store, session.id)
        for given in (asked.id, asked.id[:-1], session.id, "deploy"):
            assert store.find_approval(given) == asked.id

    def test_several_that_fit_are_named(self, store: Store) -> None:
        session = begin(store)
        ids = {ask(store, session.id).id, ask(store, session.id).id}
        for given in ("apr-", session.id):
            with pytest.raises(AmbiguousId) as caught:
                store.find_approval(given)
            assert set(caught.value.candidates) == ids

    def test_of_a_session_the_newest_if_none_can_be_answered(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        with pytest.raises(NotFound):
            store.find_approval(session.id)
        asked = ask(store, session.id)
        store.answer_approval(asked.id, an_answer(asked))
        assert store.find_approval(session.id) == asked.id
        clock.advance(1)
        too_late = ask(store, session.id, expires_at=after(clock(), 1))
        clock.advance(1)
        assert store.find_approval(session.id) == too_late.id
        again = ask(store, session.id)
        assert store.find_approval(session.id) == again.id
        with pytest.raises(NotFound):
            store.find_approval("nobody")
        with pytest.raises(NotFound):
            store.get_approval("nobody")

    def test_listed_oldest_first_the_open_ones_unless_all_are_asked_for(
        self, store: Store, clock: ManualClock
    ) -> None:
        one, other = begin(store), begin(store)
        first = ask(store, one.id, expires_at=after(clock(), 1))
        clock.advance(1)
        second = ask(store, other.id)
        clock.advance(1)
        third = ask(store, one.id)
        third = store.answer_approval(third.id, an_answer(third))
        assert store.approvals() == (first, second)
        assert store.approvals(open_only=False) == (first, second, third)
        assert store.approvals(open_only=False, limit=1, after=first.id) == (second,)
        assert store.approvals(open_only=False, after=third.id) == ()
        with pytest.raises(NotFound):
            store.approvals(after="apr-nobody")
        assert store.approvals(session_id=one.id, open_only=False) == (first, third)
        assert store.approvals(limit=1) == (first,)
        assert store.approvals(session_id="nobody") == ()
        with pytest.raises(InvalidInput):
            store.approvals(limit=-1)

    def test_what_is_in_another_workspace_does_not_exist(self, make_store: Callable[..., Store]) -> None:
        here, there = make_store(), make_store("elsewhere")
        asked = ask(here, begin(here).id)
        assert there.approvals(open_only=False) == ()
        for verb in (there.get_approval, there.find_approval):
            with pytest.raises(NotFound):
                verb(asked.id)
        with pytest.raises(NotFound):
            there.answer_approval(asked.id, an_answer(asked))


class TestApprovals:
    """``approvals``."""

    def test_a_list_of_long_arguments_ends_early_and_goes_on_behind_its_last(self, store: Store) -> None:
        session = begin(store)
        arguments = {"command": "x" * 250_000}
        asked = [store.request_approval(session.id, an_approval(arguments=arguments)).id for _ in range(24)]

        found = [approval.id for approval in store.approvals(limit=1000)]

        assert 10 < len(found) < 20
        while page := store.approvals(after=found[-1], limit=1000):
            found += [approval.id for approval in page]
        assert found == asked

    def test_a_long_list_holds_each_one_once(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        asked = [store.request_approval(session.id, an_approval()).id for _ in range(203)]
        assert [approval.id for approval in store.approvals()] == asked
        assert [approval.id for approval in store.approvals(after=asked[1], limit=150)] == asked[2:152]


class TestAnswer:
    @pytest.mark.parametrize("approved", [True, False])
    def test_an_answer_says_who_and_when_and_leaves_the_phase_to_the_agent(
        self, store: Store, clock: ManualClock, approved: bool
    ) -> None:
        session = begin(store)
        asked = ask(store, session.id)
        clock.advance(3600)
        answered = store.answer_approval(asked.id, an_answer(asked, approved, note="as discussed"))
        verdict = ApprovalStatus.APPROVED if approved else ApprovalStatus.DENIED
        assert (answered.status, answered.answered_by, answered.note) == (verdict, "ada", "as discussed")
        assert (answered.answered_at, answered.used_at) == (clock(), None)
        assert store.get_approval(asked.id) == answered
        now = store.get_session(session.id)
        assert (now.phase, now.updated_at) == (Phase.APPROVAL, clock())

    def test_the_same_verdict_again_is_the_answer_that_was_given(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        asked = ask(store, session.id, expires_at=after(clock(), 60))
        given = store.answer_approval(asked.id, an_answer(asked, note="first"))
        clock.advance(60)
        before = snapshot(store)
        assert store.answer_approval(asked.id, an_answer(asked, by="bob", note="second")) == given
        assert snapshot(store) == before
        store.finalize_session(session.id, Phase.COMPLETED, None)
        assert store.answer_approval(asked.id, an_answer(asked)) == given

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"arguments_hash": hash_arguments({"command": "rm -rf /"})}, "other_arguments"),
            ({"nonce": "0" * 16}, "other_nonce"),
            ({"by": "eve"}, "not_an_answerer"),
        ],
    )
    def test_an_answer_to_something_else_or_by_somebody_else_is_refused(
        self, store: Store, change: dict[str, Any], reason: str
    ) -> None:
        asked = ask(store, begin(store).id, answerers=frozenset({"ada", "bob"}))
        with refused(store, Refused) as caught:
            store.answer_approval(asked.id, an_answer(asked, **change))
        assert caught.value.details == {"reason": reason, "approval_id": asked.id}
        store.answer_approval(asked.id, an_answer(asked, by="bob"))

    def test_a_mismatched_answer_is_refused_even_when_its_verdict_was_given_before(
        self, store: Store
    ) -> None:
        asked = ask(store, begin(store).id)
        store.answer_approval(asked.id, an_answer(asked))
        with refused(store, Refused):
            store.answer_approval(asked.id, an_answer(asked, nonce="0" * 16))

    def test_the_other_verdict_comes_too_late(self, store: Store) -> None:
        asked = ask(store, begin(store).id)
        store.answer_approval(asked.id, an_answer(asked))
        with refused(store, Refused) as caught:
            store.answer_approval(asked.id, an_answer(asked, False))
        assert caught.value.details["reason"] == "already_answered"

    @pytest.mark.parametrize(("passed", "counts"), [(59.999_999, True), (60, False), (61, False)])
    def test_at_the_moment_it_expires_it_is_too_late(
        self, store: Store, clock: ManualClock, passed: float, counts: bool
    ) -> None:
        asked = ask(store, begin(store).id, expires_at=after(clock(), 60))
        clock.advance(passed)
        if counts:
            store.answer_approval(asked.id, an_answer(asked))
            return
        with refused(store, Refused) as caught:
            store.answer_approval(asked.id, an_answer(asked))
        assert caught.value.details["reason"] == "approval_expired"

    def test_nobody_answers_for_a_closed_session(self, store: Store) -> None:
        session = begin(store)
        asked = ask(store, session.id)
        store.finalize_session(session.id, Phase.FAILED, None)
        void = store.get_approval(asked.id)
        assert (void.status, void.void_reason) == (ApprovalStatus.VOIDED, "session_failed")
        with refused(store, Refused) as caught:
            store.answer_approval(asked.id, an_answer(asked))
        assert caught.value.details["reason"] == "session_closed"

    def test_an_answer_that_an_agent_was_given_outlives_its_session(self, store: Store) -> None:
        session = begin(store)
        asked = ask(store, session.id)
        given = store.answer_approval(asked.id, an_answer(asked, False, note="not on a Friday"))
        store.finalize_session(session.id, Phase.COMPLETED, None)
        assert store.get_approval(asked.id) == given

    def test_of_two_answers_at_once_one_counts(self, make_store: Callable[..., Store]) -> None:
        store = make_store()
        asked = ask(store, begin(store).id)
        said = at_once(
            lambda: make_store().answer_approval(asked.id, an_answer(asked, True)),
            lambda: make_store().answer_approval(asked.id, an_answer(asked, False)),
        )
        (refusal,) = [answer for answer in said if isinstance(answer, HoldfastError)]
        (counted,) = [answer for answer in said if isinstance(answer, Approval)]
        assert refusal.details["reason"] == "already_answered"
        assert store.get_approval(asked.id) == counted

    def test_an_answer_and_a_cancellation_at_once_agree(self, make_store: Callable[..., Store]) -> None:
        """Either the answer was first, and what it would have done is void; or there was nothing to answer."""
        store = make_store()
        session = begin(store)
        asked = defer(store, session)
        (answered, cancelled) = at_once(
            lambda: make_store().answer_approval(asked.id, an_answer(asked)),
            lambda: make_store().cancel_turn(session.id, 1),
        )
        assert not isinstance(cancelled, HoldfastError)
        assert store.get_turn(session.conversation_id, 1).status is TurnStatus.CANCELLED
        assert store.get_approval(asked.id).status is ApprovalStatus.VOIDED
        if isinstance(answered, HoldfastError):
            assert answered.details["reason"] == "approval_voided"


def at_once(*verbs: Callable[[], object]) -> list[object]:
    """What each said, begun together: its answer, or its error."""
    said: list[object] = [None] * len(verbs)
    ready = Barrier(len(verbs))

    def say(number: int) -> None:
        ready.wait()
        try:
            said[number] = verbs[number]()
        except HoldfastError as error:
            said[number] = error

    threads = [Thread(target=say, args=(number,)) for number in range(len(verbs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said


class TestWindow:
    """How the newest approval bears on whether the work may go on."""

    def test_nothing_was_asked(self, store: Store) -> None:
        assert store.approval_window(begin(store).id) is None

    def test_the_newest_one_decides(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        until = after(clock(), 60)
        first = ask(store, session.id, expires_at=until)
        assert _window(store, session.id) == (None, until)
        clock.advance(1)
        second = ask(store, session.id)
        assert _window(store, session.id) == (None, None)
        store.answer_approval(first.id, an_answer(first))
        assert _window(store, session.id) == (None, None)
        clock.advance(1)
        store.answer_approval(second.id, an_answer(second, False))
        assert _window(store, session.id) == (clock(), None)

    def test_what_is_void_or_acted_on_says_nothing(self, store: Store) -> None:
        session = begin(store)
        defer(store, session)
        assert store.approval_window(session.id) is not None
        store.cancel_turn(session.id, 1)
        assert store.approval_window(session.id) is None


def _window(store: Store, session_id: str) -> tuple[object, object]:
    window = store.approval_window(session_id)
    assert isinstance(window, ApprovalWindow)
    return window.answered_at, window.expires_at


class TestLeaveApproval:
    """While something is asked, only an end of the session takes it out of phase ``approval``."""

    def test_a_question_without_an_answer_keeps_the_session_there(self, store: Store) -> None:
        session = begin(store)
        asked = ask(store, session.id)
        with refused(store, Conflict) as caught:
            store.update_session(session.id, SessionUpdate(phase=Phase.EXECUTING, metadata={"a": 1}))
        assert caught.value.details == {"session_id": session.id, "approval_id": asked.id}
        assert f"holdfast deny {asked.id}" in caught.value.message
        assert (
            "holdfast approve" not in caught.value.message
        )  # an agent reads it, and is not to answer itself

    @pytest.mark.parametrize("approved", [True, False])
    def test_an_answered_one_lets_it_go(self, store: Store, approved: bool) -> None:
        session = begin(store)
        asked = ask(store, session.id)
        answered = store.answer_approval(asked.id, an_answer(asked, approved))
        assert _moved(store, session.id, Phase.EXECUTING) is Phase.EXECUTING
        assert store.get_approval(asked.id) == answered

    def test_all_of_them_must_be_answered(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        first = ask(store, session.id)
        clock.advance(1)
        second = ask(store, session.id)
        store.answer_approval(second.id, an_answer(second))
        with refused(store, Conflict) as caught:
            store.update_session(session.id, SessionUpdate(phase=Phase.EXECUTING))
        assert caught.value.details["approval_id"] == first.id

    def test_one_that_expired_is_void_when_the_session_leaves(self, store: Store, clock: ManualClock) -> None:
        session = begin(store)
        asked = ask(store, session.id, expires_at=after(clock(), 60))
        clock.advance(60)
        assert _moved(store, session.id, Phase.PLANNING) is Phase.PLANNING
        left = store.get_approval(asked.id)
        assert (left.status, left.void_reason) == (ApprovalStatus.VOIDED, "expired")
        assert store.approvals() == ()
        assert store.approval_window(session.id) is None

    def test_what_a_turn_waits_for_keeps_it_there_even_when_expired(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = begin(store)
        asked = defer(store, session, approval=an_approval(expires_at=after(clock(), 60)))
        with refused(store, Conflict) as caught:
            store.update_session(session.id, SessionUpdate(phase=Phase.EXECUTING))
        assert caught.value.details["approval_id"] == asked.id
        clock.advance(60)
        with refused(store, Conflict) as caught:
            store.update_session(session.id, SessionUpdate(phase=Phase.EXECUTING))
        assert f"holdfast cancel {session.id} --turn 1" in caught.value.message
        store.cancel_turn(session.id, 1)
        assert _moved(store, session.id, Phase.EXECUTING) is Phase.EXECUTING

    def test_what_is_no_other_phase_changes_as_ever(self, store: Store) -> None:
        session = begin(store)
        ask(store, session.id)
        store.update_session(session.id, SessionUpdate(metadata={"a": 1}, error="broken"))
        assert _moved(store, session.id, Phase.APPROVAL) is Phase.APPROVAL
        assert _moved(store, session.id, Phase.ABANDONED) is Phase.ABANDONED

    def test_a_turn_that_ends_does_not_take_it_out(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "plan it, and ask")
        claimed = claim(store, session)
        ask(store, session.id)
        store.finish_turn(claimed.lease, done(phase=Phase.EXECUTING))
        assert store.get_session(session.id).phase is Phase.APPROVAL


def _moved(store: Store, session_id: str, phase: Phase) -> Phase:
    return store.update_session(session_id, SessionUpdate(phase=phase)).phase

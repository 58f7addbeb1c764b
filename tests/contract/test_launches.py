"""Owns the clauses on launching: the claim decides, the launch may only weaken, and a named id is kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.domain.conversations import SeenTurns
from holdfast.domain.decisions import Fork, Fresh, Reason, Refuse, Resume, Wait
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import TranscriptMark
from holdfast.domain.policy import Policy, QueuePolicy
from holdfast.domain.sessions import SessionUpdate
from holdfast.domain.turns import Claim, Launch, NewTurn, TurnRequest
from holdfast.domain.usage import NO_USAGE
from holdfast.errors import Conflict, Refused
from holdfast.store.contract import Store
from tests.builders import a_claim, a_pointer, a_provider_session_id, a_runtime, a_turn, done
from tests.steps import begin, claim, enqueue, pointer_of, refused, resumed_id, run

NAMED = ProviderSessionId("0b5f0c5e-9f0a-4a52-8b3c-2f6f6a3f7d10")


class TestAttempts:
    """The ids of attempts, and ``attempts_in``."""

    def test_an_attempt_has_an_id_before_it_is_launched(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "one")
        claimed = claim(store, session, key="lost")

        (attempt,) = store.attempts(claimed.turn.conversation_id, claimed.turn.seq)

        assert attempt.id
        assert claimed.attempt_id == attempt.id
        again = claim(store, session, key="lost")
        assert again.attempt_id == attempt.id, "the reply was lost, and comes again"

    def test_no_two_attempts_have_the_same_id(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        started = store.start_turn(session.id, a_turn("two"), a_claim(session_id=session.id))
        assert isinstance(started, Claim)
        fresh = store.fall_back(started.lease, Failure(FailureClass.GONE, "gone"), "fallback")
        store.put_back(fresh.lease)
        enqueue(store, session, "three")
        third = claim(store, session)

        ids = [attempt.id for seq in (1, 2, 3) for attempt in store.attempts(session.conversation_id, seq)]

        assert ids[2] == fresh.attempt_id
        assert ids[-1] == third.attempt_id
        assert len(set(ids)) == 4

    def test_it_is_known_where_the_session_stood_before_the_launch(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        enqueue(store, session, "go on")
        resumed = claim(store, session)
        mark = TranscriptMark("projects/infra/5b1c2d3e.jsonl", size=10, digest="abc", turns=1)

        store.launch(resumed.lease, Launch(resumed.decision, transcript=mark))

        first, second = (store.attempts(session.conversation_id, seq)[0] for seq in (1, 2))
        assert (first.before, second.before) == (None, mark)

    def test_the_attempts_in_a_provider_session_are_found_the_newest_first(self, store: Store) -> None:
        session, other = begin(store), begin(store)
        for prompt in ("one", "two", "three"):
            run(store, session, prompt)
        run(store, other)
        native = pointer_of(store, session).provider_session_id

        assert [attempt.seq for attempt in store.attempts_in("claude", native)] == [3, 2, 1]
        assert [attempt.seq for attempt in store.attempts_in("claude", native, 2)] == [3, 2]
        assert store.attempts_in("codex", native) == ()


class TestLaunch:
    """``launch``."""

    def test_what_the_prompt_tells_of_was_seen_once_it_is_answered(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        enqueue(store, session, "fresh", request=TurnRequest(force_fresh=True))
        recorded = store.record_turn(session.id, a_turn("meanwhile"), "done by hand", NO_USAGE)
        claimed = claim(store, session)
        native = a_provider_session_id()
        told = SeenTurns(((recorded.seq, recorded.seq),))

        store.launch(claimed.lease, Launch(claimed.decision, provider_session_id=native, told=told))
        store.finish_turn(claimed.lease, done(provider_session_id=native))

        (attempt,) = store.attempts(session.conversation_id, claimed.turn.seq)
        assert (str(claimed.covers), str(attempt.seen)) == ("1-2", "1-3")
        assert pointer_of(store, session).seen == attempt.seen

    @pytest.mark.parametrize("kind", [Resume, Fork])
    def test_a_fresh_start_is_not_turned_into_anything_stronger(
        self, store: Store, kind: type[Resume | Fork]
    ) -> None:
        session = begin(store)
        enqueue(store, session, "fresh")
        lease = claim(store, session).lease

        with refused(store, Conflict):
            store.launch(lease, Launch(kind(NAMED, (), ())))

    def test_no_other_session_is_resumed_than_the_claim_decided(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        enqueue(store, session, "go on")
        resumed = claim(store, session)

        with refused(store, Conflict):
            store.launch(resumed.lease, Launch(Resume(NAMED, (), ())))
        store.launch(resumed.lease, Launch(resumed.decision))

    @pytest.mark.parametrize("decision", [Wait(Reason.BUSY, ()), Refuse(Reason.RIGHTS_WIDER, ())])
    def test_nothing_is_launched_on_a_wait_or_a_refusal(self, store: Store, decision: Wait | Refuse) -> None:
        session = begin(store)
        enqueue(store, session, "fresh")
        lease = claim(store, session).lease

        with refused(store, Conflict):
            store.launch(lease, Launch(decision))

    def test_a_resume_may_be_weakened_to_a_fresh_start(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        enqueue(store, session, "go on")
        resumed = claim(store, session)
        weaker = Fresh(Reason.TRANSCRIPT_MISSING, ())

        store.launch(resumed.lease, Launch(weaker, provider_session_id=a_provider_session_id()))

        attempt = store.newest_attempt(session.id)
        assert attempt is not None
        assert (attempt.decision.kind, attempt.decision.reason) == ("fresh", "transcript_missing")
        assert attempt.provider_session_id != resumed_id(resumed.decision)

    def test_a_session_that_was_retired_is_not_begun_again(self, store: Store) -> None:
        session = begin(store)
        store.retire(session.id, "claude", NAMED, "poisoned")
        enqueue(store, session, "fresh")
        claimed = claim(store, session)

        with refused(store, Refused):
            store.launch(claimed.lease, Launch(claimed.decision, provider_session_id=NAMED))

    def test_the_id_that_a_turn_asked_for_is_the_one_that_is_kept(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "in there", request=TurnRequest(provider_session_id=NAMED))
        claimed = claim(store, session)
        store.launch(claimed.lease, Launch(claimed.decision))
        store.finish_turn(claimed.lease, done(provider_session_id=None))

        assert pointer_of(store, session).provider_session_id == NAMED

    def test_another_id_than_the_one_a_turn_asked_for_is_refused(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "in there", request=TurnRequest(provider_session_id=NAMED))
        claimed = claim(store, session)

        with refused(store, Conflict):
            store.launch(claimed.lease, Launch(claimed.decision, provider_session_id=a_provider_session_id()))

    def test_a_turn_runs_in_the_directory_that_was_asked_for(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "here", request=TurnRequest(work_dir="/srv/infra"))
        claimed = claim(store, session)

        with refused(store, Conflict):
            store.launch(claimed.lease, Launch(claimed.decision, work_dir="/etc"))
        store.launch(claimed.lease, Launch(claimed.decision, work_dir="/srv/infra"))
        with refused(store, Conflict):
            store.launch(claimed.lease, Launch(claimed.decision, work_dir="/etc"))

    def test_a_turn_that_asks_for_none_runs_where_its_session_ran_on_this_runtime(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        enqueue(store, session, "go on", request=TurnRequest(force_fresh=True))
        claimed = claim(store, session)

        with refused(store, Conflict):
            store.launch(claimed.lease, Launch(claimed.decision, work_dir="/etc"))
        store.launch(claimed.lease, Launch(claimed.decision, work_dir="/srv/infra"))

    def test_a_directory_that_nobody_asked_for_or_recorded_here_is_the_workers_choice(
        self, store: Store
    ) -> None:
        first, moved = begin(store), begin(store)
        enqueue(store, first, "anywhere", request=TurnRequest())
        run(store, moved)
        enqueue(store, moved, "on another machine", request=TurnRequest())
        for claimed in (claim(store, first), claim(store, moved, a_runtime(machine="another"))):
            store.launch(claimed.lease, Launch(claimed.decision, work_dir="/srv/mine"))

            attempt = store.newest_attempt(claimed.turn.session_id)
            assert attempt is not None
            assert attempt.work_dir == "/srv/mine"

    def test_a_directory_that_was_recorded_on_no_runtime_binds_every_worker(self, store: Store) -> None:
        session = begin(store)
        store.set_pointer(a_pointer(session.id, runtime_id=None, work_dir="/srv/infra"))
        enqueue(store, session, "go on", request=TurnRequest())
        claimed = claim(store, session, a_runtime(machine="made up"))

        with refused(store, Conflict):
            store.launch(claimed.lease, Launch(claimed.decision, work_dir="/etc"))
        store.launch(claimed.lease, Launch(claimed.decision, work_dir="/srv/infra"))

    def test_no_turn_gets_into_a_provider_session_of_another_session(self, store: Store) -> None:
        other, session = begin(store), begin(store)
        run(store, other)
        native = pointer_of(store, other).provider_session_id
        enqueue(store, session, "into it")
        claimed = claim(store, session)

        with refused(store, Conflict):
            store.launch(claimed.lease, Launch(claimed.decision, provider_session_id=native))
        store.launch(claimed.lease, Launch(claimed.decision, provider_session_id=NAMED))
        answered = store.finish_turn(claimed.lease, done("all the same", provider_session_id=native))

        assert answered.response == "all the same"
        assert store.pointer(session.id, "claude") is None
        assert [attempt.session_id for attempt in store.attempts_in("claude", native)] == [other.id]

    def test_no_turn_is_pinned_to_a_provider_session_of_another_session(self, store: Store) -> None:
        other, session = begin(store), begin(store)
        run(store, other)
        enqueue(store, session, "into it")
        claimed = claim(store, session)
        store.launch(claimed.lease, Launch(claimed.decision))

        with refused(store, Conflict):
            store.pin(claimed.lease, pointer_of(store, other).provider_session_id)


class TestExplain:
    """``explain``."""

    def test_the_turn_that_waits_at_the_head_is_the_one_that_is_judged(self, store: Store) -> None:
        session = begin(store)
        run(store, session)
        assert isinstance(store.explain(session.id, "claude", runtime=a_runtime()), Resume)
        enqueue(store, session, "start over", request=TurnRequest(force_fresh=True))

        explained = store.explain(session.id, "claude", runtime=a_runtime())

        assert explained.reason is Reason.FORCE_FRESH
        assert isinstance(store.explain(session.id, "claude", TurnRequest(), a_runtime()), Resume)
        assert claim(store, session).decision == explained

    def test_another_providers_head_is_not(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "for codex", provider="codex", request=TurnRequest(force_fresh=True))

        assert store.explain(session.id, "claude").reason is Reason.NO_POINTER


class TestRules:
    """What a turn or a session takes from the policy, and how a person sets it right."""

    def test_a_turn_is_tried_as_often_as_the_policy_says(self, make_store: Callable[..., Store]) -> None:
        store = make_store(policy=Policy(queue=QueuePolicy(max_attempts=7)))
        session = begin(store)
        assert store.enqueue_turn(session.id, NewTurn("by default", "claude")).max_attempts == 7
        assert store.enqueue_turn(session.id, NewTurn("once", "claude", max_attempts=1)).max_attempts == 1

    def test_errors_are_counted_from_zero_once_their_cause_is_mended(self, store: Store) -> None:
        session = begin(store)
        for _ in range(3):
            store.update_session(session.id, SessionUpdate(error="no such module"))

        mended = store.update_session(session.id, SessionUpdate(clear_errors=True))

        assert mended.error_count == 0
        assert mended.last_error is not None
        again = store.update_session(session.id, SessionUpdate(clear_errors=True, error="another"))
        assert again.error_count == 1

    def test_a_secret_in_a_purpose_is_never_written(self, store: Store) -> None:
        secret = "ghp_" + "a1B2" * 9
        session = begin(store, purpose=f"deploy with {secret}")
        assert secret not in session.purpose
        assert store.get_session(session.id).purpose == session.purpose

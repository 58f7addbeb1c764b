"""Owns the clauses on how a fork's first turn goes on from its parent's provider session, seen through claims."""

from __future__ import annotations

import pytest

from holdfast.domain.decisions import Fork, Fresh, Reason, Resume
from holdfast.domain.failures import FailureClass
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import TranscriptMark
from holdfast.domain.runtimes import Capabilities, Runtime
from holdfast.domain.sessions import Session
from holdfast.domain.turns import Claim, Launch
from holdfast.domain.usage import NO_USAGE
from holdfast.errors import Conflict
from holdfast.store.contract import Store
from tests.builders import (
    a_claim,
    a_provider_session_id,
    a_runtime,
    a_session_id,
    a_turn,
    done,
    failed,
)
from tests.contract.test_epochs import CODEX, ask, assert_fresh, caught_up, two_agents
from tests.steps import begin, decide, enqueue, refused, resumed_id, run

FORKS_AT_A_TURN = a_runtime(
    capabilities=Capabilities(can_resume=True, can_fork=True, can_fork_at_turn=True, chooses_id=True)
)


class TestForkedEpochs:
    """A fork's first turn forks the parent's provider session, if that still says what the fork reads."""

    def test_the_first_turn_of_a_fork_forks_and_the_next_resumes(self, store: Store) -> None:
        parent, source, own = begin(store), a_provider_session_id(), a_provider_session_id()
        run(store, parent, "one", provider_session_id=source)
        child = store.fork(parent.id, a_session_id())
        first = ask(store, child)
        assert isinstance(first.decision, Fork)
        assert (first.decision.provider_session_id, first.decision.catch_up) == (source, ())
        store.finish_turn(first.lease, done(provider_session_id=own))
        second = ask(store, child)
        assert isinstance(second.decision, Resume)
        assert second.decision.provider_session_id == own

    def test_a_later_change_of_the_parent_is_none_of_the_forks(self, store: Store) -> None:
        parent = begin(store)
        run(store, parent, "one")
        child = store.fork(parent.id, a_session_id())
        store.edit_turn(parent.id, 1, prompt="edited")
        assert isinstance(ask(store, child).decision, Fork)
        assert_fresh(store, ask(store, parent), Reason.HISTORY_CHANGED)

    def test_of_the_parents_changes_only_the_earlier_ones_count(self, store: Store) -> None:
        claude, codex = two_agents(store)
        run(store, claude, "one")
        run(store, codex, "two", CODEX)
        store.edit_turn(codex.id, 2, prompt="edited before the fork, and not seen")
        child = store.fork(claude.id, a_session_id())
        store.edit_turn(claude.id, 1, prompt="edited after the fork, and seen")
        assert isinstance(ask(store, child).decision, Fork)

    def test_a_change_of_the_parent_before_the_fork_is_inherited(self, store: Store) -> None:
        parent = begin(store)
        run(store, parent, "one")
        store.edit_turn(parent.id, 1, prompt="edited")
        child = store.fork(parent.id, a_session_id())
        grandchild = store.fork(child.id, a_session_id())
        assert_fresh(store, ask(store, child), Reason.HISTORY_CHANGED)
        assert_fresh(store, ask(store, grandchild), Reason.HISTORY_CHANGED)

    def test_a_change_in_the_fork_is_none_of_the_parents(self, store: Store) -> None:
        parent = begin(store)
        run(store, parent, "one")
        child = store.fork(parent.id, a_session_id())
        store.edit_turn(child.id, 1, prompt="edited")
        assert_fresh(store, ask(store, child), Reason.HISTORY_CHANGED)
        assert isinstance(ask(store, parent).decision, Resume)

    def test_a_fork_that_ends_before_what_the_provider_session_holds_starts_fresh(self, store: Store) -> None:
        parent = begin(store)
        run(store, parent, "one")
        run(store, parent, "two")
        child = store.fork(parent.id, a_session_id(), at=1)
        assert_fresh(store, ask(store, child), Reason.FORK_POINT_MOVED)

    def test_a_cut_below_the_fork_point_starts_fresh(self, store: Store) -> None:
        parent = begin(store)
        run(store, parent, "one")
        run(store, parent, "two")
        child = store.fork(parent.id, a_session_id())
        store.truncate(child.id, 1)
        assert_fresh(store, ask(store, child), Reason.HISTORY_CHANGED)

    def test_a_fork_of_a_fork_that_never_ran_forks_the_same_session(self, store: Store) -> None:
        parent, source = begin(store), a_provider_session_id()
        run(store, parent, "one", provider_session_id=source)
        child = store.fork(parent.id, a_session_id())
        decision = ask(store, store.fork(child.id, a_session_id())).decision
        assert isinstance(decision, Fork)
        assert decision.provider_session_id == source

    # --- a fork that is none ---

    def forking(self, store: Store) -> tuple[Session, Session, Claim, ProviderSessionId]:
        parent, source = begin(store), a_provider_session_id()
        run(store, parent, "one", provider_session_id=source)
        child = store.fork(parent.id, a_session_id())
        claimed = ask(store, child)
        assert isinstance(claimed.decision, Fork)
        return parent, child, claimed, source

    def test_a_fork_that_failed_with_its_sources_id_has_none_of_its_own(self, store: Store) -> None:
        parent, child, claimed, source = self.forking(store)
        mark = TranscriptMark("projects/infra/5b1c2d3e.jsonl", size=10, digest="abc")
        end = failed(FailureClass.TRANSIENT, provider_session_id=source, transcript=mark)
        store.finish_turn(claimed.lease, end)
        again = ask(store, child).decision
        assert isinstance(again, Fork)
        assert again.provider_session_id == source
        assert resumed_id(ask(store, parent).decision) == source

    @pytest.mark.parametrize("minted", [None, a_provider_session_id()], ids=["told", "minted"])
    def test_a_fork_that_ended_in_its_source_leaves_it_to_nobody(
        self, store: Store, minted: ProviderSessionId | None
    ) -> None:
        parent, child, claimed, source = self.forking(store)
        store.launch(claimed.lease, Launch(claimed.decision, provider_session_id=minted))
        turn = store.finish_turn(claimed.lease, done("forked", provider_session_id=source))
        assert turn.response == "forked"
        for session in (parent, child):
            assert isinstance(decide(store, session), Fresh)
        assert decide(store, parent).reason is Reason.RETIRED
        assert store.pointer(child.id, "claude") is None

    def test_a_fork_is_not_pinned_to_its_source(self, store: Store) -> None:
        _, _, claimed, source = self.forking(store)
        with refused(store, Conflict):
            store.pin(claimed.lease, source)

    def test_a_fork_is_not_launched_with_the_id_of_its_source(self, store: Store) -> None:
        _, _, claimed, source = self.forking(store)
        with refused(store, Conflict):
            store.launch(claimed.lease, Launch(claimed.decision, provider_session_id=source))

    # --- another branch ---

    def branched(self, store: Store, at: int, runtime: Runtime | None = None) -> Session:
        """Forked at a turn of three in one provider session, it went on with another provider; forked again."""
        parent = begin(store)
        for prompt in ("one", "two", "three"):
            run(store, parent, prompt, runtime)
        child = store.fork(parent.id, a_session_id(), at=at)
        for seq in range(at + 1, 4):
            elsewhere = a_turn(f"other {seq}", provider="codex")
            store.record_turn(child.id, elsewhere, f"re: other {seq}", NO_USAGE)
        return store.fork(child.id, a_session_id())

    def test_a_fork_of_a_fork_does_not_fork_what_went_on_in_another_branch(self, store: Store) -> None:
        assert_fresh(store, ask(store, self.branched(store, at=2)), Reason.FORK_POINT_MOVED)

    def test_a_fork_of_a_fork_is_told_what_came_after_the_earlier_fork_point(self, store: Store) -> None:
        claimed = ask(store, self.branched(store, 1, FORKS_AT_A_TURN), FORKS_AT_A_TURN)
        assert isinstance(claimed.decision, Fork)
        assert caught_up(store, claimed) == ["other 2", "other 3"]
        assert claimed.pointer is not None
        assert claimed.pointer.fork_seq == 1

    def test_a_source_that_was_forked_at_its_end_is_forked_by_later_branches_too(self, store: Store) -> None:
        claimed = ask(store, self.branched(store, at=3))
        assert isinstance(claimed.decision, Fork)
        assert caught_up(store, claimed) == []

    def test_a_change_behind_the_fork_point_is_none_of_a_source_forked_there(self, store: Store) -> None:
        forked = self.branched(store, 2, FORKS_AT_A_TURN)
        store.edit_turn(forked.id, 3, prompt="edited")
        claimed = ask(store, forked, FORKS_AT_A_TURN)
        assert caught_up(store, claimed) == ["edited"]

    def test_a_repeated_claim_of_a_fork_is_told_the_same(self, store: Store) -> None:
        forked = self.branched(store, 2, FORKS_AT_A_TURN)
        enqueue(store, forked, "next")
        request = a_claim(runtime=FORKS_AT_A_TURN, session_id=forked.id)
        first, again = store.claim_turn(request), store.claim_turn(request)
        assert first is not None
        assert again is not None
        assert caught_up(store, again) == caught_up(store, first) == ["other 3"]
        assert again.lease == first.lease

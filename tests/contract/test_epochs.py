"""Owns the clauses on what a changed history means: whose pointer it touches, and whose it leaves alone.

All of it is seen through what ``claim_turn`` decides, because that is what an agent gets.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from holdfast.domain.decisions import Fork, Fresh, Reason, Resume
from holdfast.domain.failures import FailureClass
from holdfast.domain.runtimes import Runtime
from holdfast.domain.sessions import Session
from holdfast.domain.turns import Claim, Launch, TurnEnd, TurnStatus
from holdfast.store.contract import Store
from tests.builders import (
    a_codex_runtime,
    a_process,
    a_provider_session_id,
    a_runtime,
    a_session_id,
    done,
    failed,
)
from tests.clock import ManualClock
from tests.steps import begin, claim, enqueue, join, lose, resumed_id, run

CODEX = a_codex_runtime()


def two_agents(store: Store) -> tuple[Session, Session]:
    claude = begin(store, agent="claude")
    return claude, join(store, claude, "codex", provider="codex")


def ask(store: Store, session: Session, runtime: Runtime | None = None, prompt: str = "next") -> Claim:
    """One more turn, claimed: its decision is the answer."""
    runtime = runtime or a_runtime()
    enqueue(store, session, prompt, provider=runtime.provider)
    return claim(store, session, runtime)


def caught_up(store: Store, claimed: Claim) -> list[str]:
    """The prompts of the turns that a resumed agent is told about."""
    decision = claimed.decision
    assert isinstance(decision, Resume | Fork)
    found = []
    for first, last in decision.catch_up:
        turns = store.history(claimed.turn.conversation_id, first=first, last=last)
        found += [turn.prompt for turn in turns]
    return found


def assert_fresh(store: Store, claimed: Claim, reason: Reason) -> None:
    """Decided for this reason, and no id that could be resumed comes with it."""
    assert isinstance(claimed.decision, Fresh)
    assert claimed.decision.reason is reason
    assert claimed.decision.provider_session_id is None
    attempt = store.attempts(claimed.turn.conversation_id, claimed.turn.seq)[-1]
    assert (attempt.decision.kind, attempt.decision.reason) == ("fresh", reason)
    assert attempt.provider_session_id is None


class TestEpochs:
    """Every pointer that has seen a changed turn stops being resumable; no other one does."""

    def test_nothing_changed_so_the_provider_session_goes_on(self, store: Store) -> None:
        claude = begin(store)
        used = a_provider_session_id()
        run(store, claude, "one", provider_session_id=used)
        decision = ask(store, claude).decision
        assert isinstance(decision, Resume)
        assert (decision.provider_session_id, decision.catch_up) == (used, ())

    def test_editing_a_turn_that_only_another_agent_saw_leaves_the_pointer_valid(self, store: Store) -> None:
        claude, codex = two_agents(store)
        run(store, claude, "one")
        run(store, codex, "two", CODEX)
        store.edit_turn(codex.id, 2, prompt="two, edited")
        assert caught_up(store, ask(store, claude)) == ["two, edited"]
        assert_fresh(store, ask(store, codex, CODEX), Reason.HISTORY_CHANGED)

    def test_two_agents_of_one_provider_are_told_apart(self, store: Store) -> None:
        architect = begin(store)
        reviewer = join(store, architect, "reviewer")
        run(store, architect, "one")
        run(store, reviewer, "two")
        store.edit_turn(reviewer.id, 2, response="edited")
        assert isinstance(ask(store, architect).decision, Resume)
        assert_fresh(store, ask(store, reviewer), Reason.HISTORY_CHANGED)

    @pytest.mark.parametrize("edit", [{"prompt": "edited"}, {"response": "edited"}], ids=str)
    def test_editing_a_turn_that_it_saw_does_not(self, store: Store, edit: dict[str, str]) -> None:
        claude = begin(store)
        run(store, claude, "one")
        run(store, claude, "two")
        store.edit_turn(claude.id, 1, **edit)
        assert_fresh(store, ask(store, claude), Reason.HISTORY_CHANGED)

    def test_a_foreign_turn_that_it_was_told_about_counts_as_seen(self, store: Store) -> None:
        claude, codex = two_agents(store)
        run(store, claude, "one")
        run(store, codex, "two", CODEX)
        run(store, claude, "three")
        store.edit_turn(codex.id, 2, response="edited")
        assert_fresh(store, ask(store, claude), Reason.HISTORY_CHANGED)

    def test_a_fresh_start_counts_as_having_seen_everything(self, store: Store) -> None:
        claude, codex = two_agents(store)
        run(store, codex, "one", CODEX)
        run(store, claude, "two")
        store.edit_turn(codex.id, 1, prompt="edited")
        assert_fresh(store, ask(store, claude), Reason.HISTORY_CHANGED)

    def test_truncating_a_foreign_turn_with_its_own_behind_it_does_not(self, store: Store) -> None:
        claude, codex = two_agents(store)
        run(store, claude, "one")
        run(store, codex, "two", CODEX)
        run(store, claude, "three")
        store.truncate(codex.id, 1)
        assert_fresh(store, ask(store, claude), Reason.HISTORY_CHANGED)

    def test_truncating_foreign_turns_that_it_did_not_see_leaves_the_pointer_valid(
        self, store: Store
    ) -> None:
        claude, codex = two_agents(store)
        run(store, claude, "one")
        run(store, codex, "two", CODEX)
        run(store, codex, "three", CODEX)
        store.truncate(codex.id, 1)
        assert caught_up(store, ask(store, claude)) == []

    def test_retrying_a_foreign_turn_with_its_own_behind_it_does_not(self, store: Store) -> None:
        claude, codex = two_agents(store)
        run(store, claude, "one")
        run(store, codex, "two", CODEX)
        run(store, claude, "three")
        store.retry_turn(codex.id, 2)
        store.finish_turn(claim(store, codex, CODEX).lease, done())
        assert_fresh(store, ask(store, claude), Reason.HISTORY_CHANGED)

    def test_retrying_a_foreign_turn_that_it_did_not_see_is_caught_up_with(self, store: Store) -> None:
        claude, codex = two_agents(store)
        run(store, claude, "one")
        run(store, codex, "two", CODEX)
        store.retry_turn(codex.id, 2, prompt="two again")
        store.finish_turn(claim(store, codex, CODEX).lease, done())
        assert caught_up(store, ask(store, claude)) == ["two again"]

    @pytest.mark.parametrize("verb", ["truncate", "retry", "edit"])
    def test_a_foreign_turn_that_ran_meanwhile_and_was_never_told_about(
        self, store: Store, verb: str
    ) -> None:
        claude, codex = two_agents(store)
        run(store, claude, "one")
        running = ask(store, codex, CODEX, "two")
        run(store, claude, "three")
        store.finish_turn(running.lease, done())
        if verb == "edit":  # no turn that it saw has changed
            store.edit_turn(codex.id, 2, prompt="edited")
            assert caught_up(store, ask(store, claude)) == ["edited"]
            return
        # its own turn behind it goes too
        _ = store.truncate(codex.id, 1) if verb == "truncate" else store.retry_turn(codex.id, 2)
        assert_fresh(store, ask(store, claude), Reason.HISTORY_CHANGED)

    def test_retrying_its_own_turn_does_not(self, store: Store) -> None:
        claude = begin(store)
        run(store, claude, "one")
        run(store, claude, "two")
        store.retry_turn(claude.id, 2)
        assert_fresh(store, claim(store, claude), Reason.HISTORY_CHANGED)

    def test_an_edit_during_a_turn_is_noticed_at_the_next(self, store: Store) -> None:
        claude = begin(store)
        run(store, claude, "one")
        claimed = ask(store, claude)
        assert isinstance(claimed.decision, Resume)
        store.edit_turn(claude.id, 1, prompt="edited")
        store.finish_turn(claimed.lease, done(provider_session_id=claimed.decision.provider_session_id))
        assert_fresh(store, ask(store, claude), Reason.HISTORY_CHANGED)

    def test_an_edit_of_the_very_turn_that_runs_is_noticed_at_the_next(self, store: Store) -> None:
        claude = begin(store)
        claimed = ask(store, claude)
        store.edit_turn(claude.id, 1, prompt="edited")
        store.finish_turn(claimed.lease, done())
        assert_fresh(store, ask(store, claude), Reason.HISTORY_CHANGED)

    def test_an_edit_during_a_first_turn_is_noticed_although_it_was_pinned_on_the_way(
        self, store: Store
    ) -> None:
        claude, used = begin(store), a_provider_session_id()
        run(store, claude, "one")
        store.retire(claude.id, "claude", store.provider_sessions(claude.id)[0].id, "gone")
        claimed = ask(store, claude)
        store.edit_turn(claude.id, 1, prompt="edited")
        store.pin(claimed.lease, used)
        store.finish_turn(claimed.lease, done(provider_session_id=used))
        assert_fresh(store, ask(store, claude), Reason.HISTORY_CHANGED)

    def test_an_edit_before_a_waiting_turn_is_claimed_is_known_to_it(self, store: Store) -> None:
        claude = begin(store)
        enqueue(store, claude, "old")
        store.edit_turn(claude.id, 1, prompt="new")
        store.finish_turn(claim(store, claude).lease, done())
        assert isinstance(ask(store, claude).decision, Resume)

    def test_after_a_fresh_start_the_new_session_goes_on(self, store: Store) -> None:
        claude = begin(store)
        old = a_provider_session_id()
        run(store, claude, "one", provider_session_id=old)
        store.edit_turn(claude.id, 1, prompt="edited")
        run(store, claude, "two")
        claimed = ask(store, claude)
        assert caught_up(store, claimed) == []
        assert isinstance(claimed.decision, Resume)
        assert claimed.decision.provider_session_id != old

    def test_a_change_in_another_conversation_is_none(self, store: Store) -> None:
        one, other = begin(store), begin(store)
        run(store, one, "one")
        run(store, other, "one")
        store.edit_turn(other.id, 1, prompt="edited")
        assert isinstance(ask(store, one).decision, Resume)

    @pytest.mark.parametrize("seed", range(5))
    def test_any_story_is_resumed_exactly_while_what_was_seen_is_unchanged(
        self, store: Store, seed: int
    ) -> None:
        story = TwoAgents(store, random.Random(seed))
        for _ in range(50):
            story.go_on()


class TestCatchUp:
    """Turns of others after what it has seen: resumed, and told about exactly those."""

    def test_the_turns_of_others_are_caught_up_with(self, store: Store) -> None:
        claude, codex = two_agents(store)
        run(store, claude, "one")
        for prompt in ("two", "three"):
            run(store, codex, prompt, CODEX)
        assert caught_up(store, ask(store, claude)) == ["two", "three"]

    def test_nobody_is_told_twice(self, store: Store) -> None:
        claude, codex = two_agents(store)
        run(store, claude, "one")
        run(store, codex, "two", CODEX)
        run(store, claude, "three")
        assert caught_up(store, ask(store, claude)) == []

    def test_a_turn_that_still_ran_is_caught_up_with_when_it_is_settled(self, store: Store) -> None:
        claude, codex = two_agents(store)
        run(store, claude, "one")
        running = ask(store, codex, CODEX, "two")
        run(store, claude, "three")
        store.finish_turn(running.lease, done("late"))
        assert caught_up(store, ask(store, claude)) == ["two"]

    @pytest.mark.parametrize("ending", ["failed", "cancelled", "put back", "pinned and lost"])
    def test_what_was_not_sent_is_caught_up_with_by_the_next_attempt(
        self, store: Store, clock: ManualClock, ending: str
    ) -> None:
        claude, codex = two_agents(store)
        run(store, claude, "one")
        run(store, codex, "two", CODEX)
        claimed = ask(store, claude)
        match ending:
            case "failed":
                store.finish_turn(claimed.lease, failed(FailureClass.TRANSIENT, retry_at=clock()))
            case "cancelled":
                store.finish_turn(claimed.lease, TurnEnd(TurnStatus.CANCELLED))
                enqueue(store, claude, "next")
            case "put back":
                store.put_back(claimed.lease)
            case _:
                store.pin(claimed.lease, resumed_id(claimed.decision))
                lose(store, clock, claimed.lease)
        assert "two" in caught_up(store, claim(store, claude))

    def test_an_edit_is_noticed_by_a_session_whose_last_turn_was_not_sent(self, store: Store) -> None:
        claude = begin(store)
        run(store, claude, "one")
        claimed = ask(store, claude)
        store.edit_turn(claude.id, 1, prompt="edited")
        store.finish_turn(claimed.lease, failed(FailureClass.TRANSIENT))
        assert_fresh(store, ask(store, claude), Reason.HISTORY_CHANGED)

    def test_a_resume_that_failed_does_not_say_what_was_seen_once_its_pointer_is_gone(
        self, store: Store
    ) -> None:
        claude, codex = two_agents(store)
        run(store, claude, "one")
        run(store, codex, "two", CODEX)
        claimed = ask(store, claude)
        store.launch(claimed.lease, Launch(claimed.decision, a_process()))
        store.finish_turn(claimed.lease, failed(FailureClass.TRANSIENT))
        store.clear_pointer(claude.id, "claude", resumed_id(claimed.decision))
        assert_fresh(store, ask(store, claude), Reason.HISTORY_CHANGED)

    def test_a_fork_is_caught_up_with_what_was_said_before_it(self, store: Store) -> None:
        claude, codex = two_agents(store)
        run(store, claude, "one")
        run(store, codex, "two", CODEX)
        child = store.fork(claude.id, a_session_id())
        claimed = ask(store, child)
        assert isinstance(claimed.decision, Fork)
        assert caught_up(store, claimed) == ["two"]


@dataclass
class Known:
    """What one agent's provider session was told: turns with the version they had."""

    generation: int
    turns: dict[int, int]


@dataclass
class TwoAgents:
    """Does random things to a conversation of two agents, and knows who may go on."""

    store: Store
    chance: random.Random
    prompts: dict[int, str] = field(default_factory=dict)  #: of the current history
    versions: dict[int, int] = field(default_factory=dict)
    owners: dict[int, int] = field(default_factory=dict)
    known: dict[int, Known] = field(default_factory=dict)
    generation: int = 0

    def __post_init__(self) -> None:
        self.sessions = two_agents(self.store)

    def go_on(self) -> None:
        steps = [self.talk] * 5 + [self.edit, self.edit, self.truncate, self.retry]
        self.chance.choice([*steps, self.begin_again] if self.chance.random() < 0.1 else steps)()

    def talk(self) -> None:
        owner = self.chance.randrange(2)
        runtime = (a_runtime(), CODEX)[owner]
        self.run(owner, ask(self.store, self.sessions[owner], runtime, f"turn {len(self.versions) + 1}"))

    def edit(self) -> None:
        for seq in self.some_turn():
            self.store.edit_turn(self.sessions[0].id, seq, prompt=f"edit of {seq}")
            self.prompts[seq] = f"edit of {seq}"
            self.versions[seq] += 1

    def truncate(self) -> None:
        keep = self.chance.randint(max(0, len(self.versions) - 3), len(self.versions))
        self.store.truncate(self.sessions[1].id, keep)
        self.drop_after(keep)

    def retry(self) -> None:
        for seq in self.some_turn():
            owner = self.owners[seq]
            self.store.retry_turn(self.sessions[owner].id, seq, prompt="again")
            self.drop_after(seq - 1)
            self.run(owner, claim(self.store, self.sessions[owner], (a_runtime(), CODEX)[owner]))

    def begin_again(self) -> None:
        self.store.new_generation(self.sessions[0].id)
        self.drop_after(0)
        self.generation += 1

    def run(self, owner: int, claimed: Claim) -> None:
        """Compare the decision with what this agent knows, and let the turn succeed."""
        decision = claimed.decision
        assert isinstance(decision, Resume) is self.may_resume(owner)
        if isinstance(decision, Resume):
            told = self.known[owner].turns
            assert caught_up(self.store, claimed) == [p for seq, p in self.prompts.items() if seq not in told]
        seq = claimed.turn.seq
        self.prompts[seq], self.versions[seq], self.owners[seq] = claimed.turn.prompt, 0, owner
        self.known[owner] = Known(self.generation, {each: self.versions[each] for each in self.prompts})
        used = decision.provider_session_id if isinstance(decision, Resume) else a_provider_session_id()
        self.store.finish_turn(claimed.lease, done(provider_session_id=used))

    def may_resume(self, owner: int) -> bool:
        known = self.known.get(owner)
        if known is None or known.generation != self.generation:
            return False
        return all(seq in self.prompts and self.versions[seq] == old for seq, old in known.turns.items())

    def some_turn(self) -> list[int]:
        return [self.chance.choice(list(self.prompts))] if self.prompts else []

    def drop_after(self, keep: int) -> None:
        self.prompts = {seq: prompt for seq, prompt in self.prompts.items() if seq <= keep}

"""Owns the clauses on forks: a child reads through to its parent as it stood, and neither sees the other's changes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from holdfast.domain.conversations import ForkPoint
from holdfast.domain.ids import Workspace
from holdfast.domain.phases import Phase
from holdfast.domain.policy import Policy
from holdfast.domain.sessions import Session, SessionKind, SessionUpdate
from holdfast.domain.usage import NO_USAGE
from holdfast.errors import Conflict, NotFound
from holdfast.store.contract import Store
from holdfast.store.driver import Driver, Transaction
from holdfast.store.sql_store import SqlStore
from tests.builders import a_session_id, a_turn
from tests.clock import ManualClock
from tests.contract.conftest import driver_of
from tests.contract.test_history import prompts, seqs, talked
from tests.steps import begin, claim, enqueue, join, refused, run, snapshot


def fork(store: Store, parent: Session, at: int | None = None) -> Session:
    return store.fork(parent.id, a_session_id(), at=at)


class TestFork:
    """``fork``."""

    def test_a_fork_begins_with_the_history_of_its_parent(self, store: Store) -> None:
        parent = talked(store)
        child = fork(store, parent)
        assert store.history(child.conversation_id) == store.history(parent.conversation_id)

    def test_a_fork_is_a_new_session_like_its_parent(self, store: Store, clock: ManualClock) -> None:
        parent = begin(store, kind=SessionKind.CONVERSATION, purpose="infra", metadata={"a": 1}, name="main")
        run(store, parent)
        store.update_session(parent.id, SessionUpdate(phase=Phase.EXECUTING, error="broken"))
        now = clock.advance(60)
        child = store.fork(parent.id, a_session_id(), name="try")
        assert child == store.get_session(child.id)
        assert child == replace(
            parent, id=child.id, conversation_id=child.conversation_id, name="try", created_at=now,
            updated_at=now, parent_session_id=parent.id,
        )  # fmt: skip
        assert child.conversation_id != parent.conversation_id
        assert store.get_conversation(child.conversation_id).fork_point == ForkPoint(
            parent.conversation_id, 1, 0
        )

    def test_the_parent_is_not_changed(self, store: Store, clock: ManualClock) -> None:
        parent = talked(store)
        enqueue(store, parent, "four")
        before = snapshot(store)[parent.id]
        session = store.get_session(parent.id)
        clock.advance(60)
        child = fork(store, parent)
        run(store, child, "other")
        store.remove_session(child.id)
        assert store.get_session(parent.id) == session
        assert snapshot(store)[parent.id] == before

    @pytest.mark.parametrize("at", [0, 1, 2, 3])
    def test_it_ends_where_it_was_asked_to(self, store: Store, at: int) -> None:
        child = fork(store, talked(store), at)
        assert seqs(store, child) == [1, 2, 3][:at]
        run(store, child, "next")
        assert seqs(store, child) == [*range(1, at + 1), at + 1]

    def test_by_default_it_holds_everything_before_the_first_open_turn(self, store: Store) -> None:
        parent = talked(store, "one", "two")
        other = join(store, parent, "reviewer")
        enqueue(store, other, "open")
        run(store, parent, "four")
        assert prompts(store, fork(store, parent)) == ["one", "two"]

    @pytest.mark.parametrize("at", [3, 4])
    def test_what_is_not_settled_cannot_be_forked(self, store: Store, at: int) -> None:
        parent = talked(store, "one", "two")
        other = join(store, parent, "reviewer")
        enqueue(store, other, "open")
        run(store, parent, "four")
        with refused(store, Conflict):
            fork(store, parent, at)

    @pytest.mark.parametrize("at", [3, 9, -1], ids=["dropped", "unknown", "negative"])
    def test_it_can_only_end_at_a_turn_of_the_history(self, store: Store, at: int) -> None:
        parent = talked(store)
        store.truncate(parent.id, 2)
        with refused(store, NotFound):
            fork(store, parent, at)

    def test_an_empty_session_can_be_forked(self, store: Store) -> None:
        child = fork(store, begin(store))
        assert store.history(child.conversation_id) == ()

    def test_a_final_session_can_be_forked(self, store: Store) -> None:
        parent = talked(store)
        store.finalize_session(parent.id, Phase.COMPLETED, None)
        child = fork(store, parent)
        assert child.phase is Phase.INITIALIZING
        run(store, child, "four")
        assert prompts(store, child) == ["one", "two", "three", "four"]

    def test_forking_again_with_the_same_id_returns_the_same_child(self, store: Store) -> None:
        parent, child_id = talked(store), a_session_id()
        child = store.fork(parent.id, child_id, at=3, name="try")
        store.truncate(parent.id, 1)
        before = snapshot(store)
        assert store.fork(parent.id, child_id, at=3, name="try") == child
        assert snapshot(store) == before

    def test_the_id_of_another_session_is_a_conflict(self, store: Store) -> None:
        parent, other = talked(store), talked(store)
        nephew = fork(store, other)
        for taken in (other.id, nephew.id, parent.id):
            with refused(store, Conflict):
                store.fork(parent.id, taken)

    def test_a_taken_name_is_a_conflict(self, store: Store) -> None:
        parent = begin(store, name="infra")
        with refused(store, Conflict):
            store.fork(parent.id, a_session_id(), name="infra")

    def test_turns_of_all_agents_are_inherited_and_only_one_session_is_forked(self, store: Store) -> None:
        parent = talked(store, "one")
        other = join(store, parent, "reviewer")
        run(store, other, "two")
        child = fork(store, parent)
        assert [turn.agent for turn in store.history(child.conversation_id)] == [parent.agent, "reviewer"]
        assert store.children(other.id) == ()

    def test_siblings_do_not_see_each_other(self, store: Store) -> None:
        parent = talked(store, "one")
        left, right = fork(store, parent), fork(store, parent)
        run(store, left, "left")
        run(store, right, "right")
        run(store, parent, "straight on")
        assert prompts(store, left) == ["one", "left"]
        assert prompts(store, right) == ["one", "right"]
        assert prompts(store, parent) == ["one", "straight on"]

    @pytest.mark.parametrize(
        "change",
        [
            lambda store, session: store.edit_turn(session.id, 1, prompt="edited", response="edited"),
            lambda store, session: store.truncate(session.id, 1),
            lambda store, session: store.truncate(session.id, 0),
            lambda store, session: store.retry_turn(session.id, 2),
            lambda store, session: store.new_generation(session.id),
            lambda store, session: run(store, session, "four"),
        ],
        ids=["edit", "truncate", "truncate all", "retry", "new", "append"],
    )
    def test_neither_side_sees_what_the_other_changes(
        self, store: Store, change: Callable[[Store, Session], object]
    ) -> None:
        parent = talked(store)
        child = fork(store, parent, 2)
        straight, branch = store.history(parent.conversation_id), store.history(child.conversation_id)
        change(store, parent)
        assert store.history(child.conversation_id) == branch
        sibling = talked(store)
        nephew = fork(store, sibling)
        straight = store.history(sibling.conversation_id)
        change(store, nephew)
        assert store.history(sibling.conversation_id) == straight
        assert store.history(nephew.conversation_id) != straight


class TestForkedHistory:
    """What can be done to a history that is inherited in part."""

    def test_edits_from_before_the_fork_are_inherited(self, store: Store) -> None:
        parent = talked(store)
        store.edit_turn(parent.id, 1, prompt="edited")
        child = fork(store, parent)
        store.edit_turn(parent.id, 1, prompt="edited again")
        assert prompts(store, child) == ["edited", "two", "three"]

    def test_an_inherited_turn_can_be_edited_in_the_fork_alone(self, store: Store) -> None:
        parent = talked(store)
        child = fork(store, parent)
        edited = store.edit_turn(child.id, 2, prompt="mine")
        store.edit_turn(parent.id, 2, prompt="theirs")
        assert (edited.prompt, edited.response) == ("mine", "re: two")
        assert prompts(store, child) == ["one", "mine", "three"]
        assert prompts(store, parent) == ["one", "theirs", "three"]
        store.edit_turn(child.id, 2, response="mine too")
        (turn,) = store.history(child.conversation_id, first=2, last=2)
        assert (turn.prompt, turn.response) == ("mine", "mine too")

    def test_a_turn_after_the_fork_point_cannot_be_edited_in_the_fork(self, store: Store) -> None:
        child = fork(store, talked(store), 2)
        with refused(store, NotFound):
            store.edit_turn(child.id, 3, prompt="not mine")

    @pytest.mark.parametrize("keep", [0, 1, 2, 3])
    def test_truncating_below_the_fork_point_cuts_what_is_inherited(self, store: Store, keep: int) -> None:
        parent = talked(store)
        child = fork(store, parent)
        run(store, child, "four")
        store.truncate(child.id, keep)
        run(store, child, "five")
        assert prompts(store, child) == [*["one", "two", "three"][:keep], "five"]
        assert seqs(store, child) == [*range(1, keep + 1), 5]
        assert prompts(store, parent) == ["one", "two", "three"]

    def test_an_inherited_turn_can_be_retried_in_the_fork(self, store: Store) -> None:
        parent = talked(store)
        child = fork(store, parent)
        run(store, child, "four")
        again = store.retry_turn(child.id, 2)
        assert (again.session_id, again.seq, again.retry_of, again.prompt) == (child.id, 5, 2, "two")
        assert seqs(store, child) == [1, 5]
        assert claim(store, child).turn.seq == 5
        assert seqs(store, parent) == [1, 2, 3]

    def test_a_retried_turn_can_be_retried_again_in_a_fork_of_the_fork(self, store: Store) -> None:
        child = fork(store, talked(store))
        store.retry_turn(child.id, 3, prompt="better")
        claimed = claim(store, child)
        store.cancel_turn(child.id, claimed.turn.seq)
        store.put_back(claimed.lease)
        store.cancel_turn(child.id, claimed.turn.seq)
        grandchild = fork(store, child)
        again = store.retry_turn(grandchild.id, 4)
        assert (again.seq, again.retry_of, again.prompt) == (5, 4, "better")

    def test_beginning_again_leaves_the_parent_alone(self, store: Store) -> None:
        parent = talked(store)
        child = fork(store, parent)
        store.new_generation(child.id)
        run(store, child, "fresh")
        assert (seqs(store, child), prompts(store, child)) == ([4], ["fresh"])

    def test_a_fork_of_a_fork_reads_through_both(self, store: Store) -> None:
        grandparent = talked(store, "one", "two")
        parent = fork(store, grandparent)
        run(store, parent, "three")
        store.edit_turn(parent.id, 1, prompt="one, edited by the parent")
        child = fork(store, parent)
        run(store, child, "four")
        store.edit_turn(grandparent.id, 2, prompt="too late")
        store.edit_turn(parent.id, 3, prompt="too late")
        assert prompts(store, child) == ["one, edited by the parent", "two", "three", "four"]
        store.edit_turn(child.id, 1, prompt="one, edited by the child")
        store.edit_turn(child.id, 3, prompt="three, edited by the child")
        expected = ["one, edited by the child", "two", "three, edited by the child", "four"]
        assert prompts(store, child) == expected

    def test_a_fork_of_a_fork_that_was_cut_inherits_the_cut(self, store: Store) -> None:
        parent = fork(store, talked(store))
        store.truncate(parent.id, 1)
        run(store, parent, "four")
        child = fork(store, parent)
        store.truncate(parent.id, 0)
        assert (seqs(store, child), prompts(store, child)) == ([1, 4], ["one", "four"])

    @pytest.mark.parametrize(
        ("wanted", "expected"),
        [
            ({"limit": 1}, [4]),
            ({"limit": 2}, [3, 4]),
            ({"limit": 3}, [2, 3, 4]),
            ({"first": 2, "last": 3}, [2, 3]),
            ({"last": 3, "limit": 2}, [2, 3]),
            ({"first": 4}, [4]),
            ({"last": 1}, [1]),
        ],
        ids=str,
    )
    def test_a_part_of_it_is_read_across_the_fork_points(
        self, store: Store, wanted: dict[str, Any], expected: list[int]
    ) -> None:
        grandparent = talked(store, "one", "two", "unseen")
        parent = fork(store, grandparent, 2)
        run(store, parent, "three")
        run(store, parent, "unseen")
        child = fork(store, parent, 3)
        run(store, child, "four")
        found = store.history(child.conversation_id, **wanted)
        numbers = ["", "one", "two", "three", "four"]
        assert [turn.seq for turn in found] == expected
        assert [turn.prompt for turn in found] == [numbers[seq] for seq in expected]

    @pytest.mark.parametrize("seed", range(6))
    def test_any_story_reads_as_if_every_fork_were_a_copy(self, store: Store, seed: int) -> None:
        story = Story(store, random.Random(seed))
        for _ in range(50):
            story.go_on()
            story.check()


@dataclass
class Copy:
    """A conversation as it would be if a fork copied everything."""

    session: Session
    next_seq: int = 1
    texts: dict[int, tuple[str, str]] = field(default_factory=dict)

    def keep(self, last: int) -> None:
        self.texts = {seq: text for seq, text in self.texts.items() if seq <= last}

    def append(self, prompt: str) -> None:
        self.texts[self.next_seq] = (prompt, f"re: {prompt}")
        self.next_seq += 1


class Story:
    """Does random things to a family of conversations, and the same to the copies."""

    def __init__(self, store: Store, chance: random.Random) -> None:
        self.store = store
        self.chance = chance
        self.copies = [Copy(begin(store))]
        self.count = 0

    def go_on(self) -> None:
        copy = self.chance.choice(self.copies)
        steps = [self.append, self.append, self.append, self.edit, self.truncate, self.fork, self.fork]
        self.chance.choice([*steps, self.begin_again] if self.chance.random() < 0.2 else steps)(copy)

    def check(self) -> None:
        for copy in self.copies:
            found = self.store.history(copy.session.conversation_id)
            assert {turn.seq: (turn.prompt, turn.response) for turn in found} == copy.texts
            assert [turn.seq for turn in found] == sorted(copy.texts)

    def append(self, copy: Copy) -> None:
        self.count += 1
        run(self.store, copy.session, f"prompt {self.count}")
        copy.append(f"prompt {self.count}")

    def edit(self, copy: Copy) -> None:
        if not copy.texts:
            return
        seq = self.chance.choice(sorted(copy.texts))
        self.count += 1
        self.store.edit_turn(copy.session.id, seq, response=f"edit {self.count}")
        copy.texts[seq] = (copy.texts[seq][0], f"edit {self.count}")

    def truncate(self, copy: Copy) -> None:
        keep = self.chance.randint(max(0, copy.next_seq - 4), copy.next_seq)
        self.store.truncate(copy.session.id, keep)
        copy.keep(keep)

    def begin_again(self, copy: Copy) -> None:
        self.store.new_generation(copy.session.id)
        copy.keep(0)

    def fork(self, copy: Copy) -> None:
        at = self.chance.choice([0, None, *copy.texts])
        child = Copy(fork(self.store, copy.session, at))
        child.texts = dict(copy.texts)
        if at is not None:
            child.keep(at)
        child.next_seq = max(child.texts, default=0) + 1
        self.copies.append(child)


class Counting:
    """A driver that counts the statements of its transactions."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.statements = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    @contextmanager
    def write(self, *, synced: bool = True) -> Iterator[Any]:
        with self._driver.write(synced=synced) as tx:
            yield CountingTransaction(tx, self)


class CountingTransaction:
    def __init__(self, tx: Transaction, counting: Counting) -> None:
        self.now = tx.now
        self._tx = tx
        self._counting = counting

    def __getattr__(self, name: str) -> Any:
        self._counting.statements += 1
        return getattr(self._tx, name)


@pytest.mark.parametrize("at", [None, 2])
def test_a_fork_takes_the_same_statements_however_long_the_history_is(store: Store, at: int | None) -> None:
    counts = []
    for length in (3, 60):
        parent = begin(store)
        for number in range(length):
            store.record_turn(parent.id, a_turn(f"turn {number}"), "done", NO_USAGE)
        counting = Counting(driver_of(store))
        SqlStore(counting, Workspace("default"), Policy()).fork(parent.id, a_session_id(), at=at)
        counts.append(counting.statements)
    assert counts[0] == counts[1] > 0

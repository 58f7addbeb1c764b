"""Owns the clauses on a conversation's history: append, read, edit, truncate, retry, begin again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast.clock import Instant
from holdfast.domain.conversations import HistoryTurn
from holdfast.domain.phases import Phase
from holdfast.domain.pointers import Rights
from holdfast.domain.sessions import Session, SessionFilter
from holdfast.domain.turns import PastRequest, TurnRequest, TurnStatus
from holdfast.domain.usage import NO_USAGE
from holdfast.errors import Conflict, InvalidInput, NotFound, SessionClosed
from holdfast.store.contract import Store
from tests.builders import a_claim, a_codex_runtime, a_runtime, a_session_id, a_turn, done, failed
from tests.clock import ManualClock
from tests.steps import begin, claim, enqueue, join, refused, run

UNICODE = "Grüße, 世界 \U0001f680 e\u0301\r\n\ttab"


def prompts(store: Store, session: Session) -> list[str]:
    return [turn.prompt for turn in store.history(session.conversation_id)]


def seqs(store: Store, session: Session) -> list[int]:
    return [turn.seq for turn in store.history(session.conversation_id)]


def talked(store: Store, *said: str) -> Session:
    """A session with one finished turn for each prompt."""
    session = begin(store)
    for prompt in said or ("one", "two", "three"):
        run(store, session, prompt)
    return session


class TestHistory:
    """``history``, ``get_conversation`` and how turns get there."""

    def test_several_agents_append_to_one_history(self, store: Store, clock: ManualClock) -> None:
        claude = begin(store)
        codex = join(store, claude, "codex", provider="codex")
        run(store, claude, "one")
        at = clock.advance(5)
        run(store, codex, "two", a_codex_runtime())
        run(store, claude, "three")
        found = store.history(claude.conversation_id)
        assert [(turn.seq, turn.agent, turn.prompt, turn.response) for turn in found] == [
            (1, "terraform-architect", "one", "re: one"),
            (2, "codex", "two", "re: two"),
            (3, "terraform-architect", "three", "re: three"),
        ]
        assert found[1] == HistoryTurn(
            2, "codex", codex.id, TurnStatus.DONE, 0, "two", "re: two", at, None, 1
        )

    def test_turns_are_numbered_per_conversation(self, store: Store) -> None:
        one, other = talked(store, "a", "b"), talked(store, "c")
        assert (seqs(store, one), seqs(store, other)) == ([1, 2], [1])
        assert store.get_conversation(one.conversation_id).next_seq == 3

    def test_an_open_turn_is_part_of_the_history_and_has_no_response(self, store: Store) -> None:
        session = talked(store, "one")
        enqueue(store, session, "two")
        (turn,) = store.history(session.conversation_id, first=2)
        assert (turn.status, turn.prompt, turn.response) == ("queued", "two", None)

    def test_a_turn_that_happened_elsewhere_is_appended(self, store: Store) -> None:
        session = talked(store, "one")
        store.record_turn(session.id, a_turn("two"), "done elsewhere", NO_USAGE)
        (turn,) = store.history(session.conversation_id, first=2)
        assert (turn.status, turn.prompt, turn.response) == ("done", "two", "done elsewhere")

    @pytest.mark.parametrize(
        ("wanted", "expected"),
        [
            ({"first": 3}, [3, 4, 5]),
            ({"last": 2}, [1, 2]),
            ({"first": 2, "last": 3}, [2, 3]),
            ({"limit": 2}, [4, 5]),
            ({"last": 4, "limit": 2}, [3, 4]),
            ({"first": 5, "limit": 3}, [5]),
            ({"first": 6}, []),
            ({"first": 4, "last": 3}, []),
            ({"last": 0}, []),
            ({"limit": 0}, []),
        ],
        ids=str,
    )
    def test_a_part_of_it_and_with_a_limit_its_newest_turns(
        self, store: Store, wanted: dict[str, Any], expected: list[int]
    ) -> None:
        session = talked(store, *"abcde")
        found = store.history(session.conversation_id, **wanted)
        assert [turn.seq for turn in found] == expected

    @pytest.mark.parametrize("number", [-1, 2**63, 2**70])
    def test_no_part_begins_or_ends_where_no_turn_can_be(self, store: Store, number: int) -> None:
        session = talked(store, "one")
        verbs: list[Callable[[], object]] = [
            lambda: store.history(session.conversation_id, first=number),
            lambda: store.history(session.conversation_id, last=number),
            lambda: store.history(session.conversation_id, limit=number),
            lambda: store.turns(session.id, after=number),
            lambda: store.turns(session.id, limit=number),
            lambda: store.events(session.conversation_id, 1, after=(0, number)),
            lambda: store.events(session.conversation_id, 1, limit=number),
            lambda: store.orphans(number),
            lambda: store.list_sessions(SessionFilter(), number),
        ]
        for verb in verbs:
            with pytest.raises(InvalidInput):
                verb()

    def test_texts_come_back_as_they_were(self, store: Store) -> None:
        session = begin(store)
        run(store, session, UNICODE, response=UNICODE)
        (turn,) = store.history(session.conversation_id)
        assert (turn.prompt, turn.response) == (UNICODE, UNICODE)
        assert store.get_turn(session.conversation_id, 1).prompt == UNICODE

    def test_a_token_of_holdfast_in_a_response_is_no_text_to_keep(self, store: Store) -> None:
        session, token = begin(store), f"hft_{'0a' * 6}_{'1b' * 32}"
        run(store, session, "env", response=f"TOKEN={token}\nPATH=/bin")
        store.record_turn(session.id, a_turn("by hand"), f"it is {token}.", NO_USAGE)
        store.edit_turn(session.id, 1, response=f"it was x{token}")

        told = [turn.response for turn in store.history(session.conversation_id)]

        assert told == ["it was x[redacted:holdfast_token]", "it is [redacted:holdfast_token]."]
        assert store.get_turn(session.conversation_id, 1).response == told[0]

    def test_an_unknown_conversation_is_not_found(self, store: Store) -> None:
        for read in (store.get_conversation, store.history):
            with pytest.raises(NotFound):
                read("conv-nowhere")


class TestEdit:
    """``edit_turn``."""

    def test_a_closed_sessions_history_is_closed(self, store: Store) -> None:
        session = talked(store)
        store.finalize_session(session.id, Phase.COMPLETED, None)
        with refused(store, SessionClosed):
            store.edit_turn(session.id, 1, prompt="too late")

    @pytest.mark.parametrize(
        ("edit", "expected"),
        [
            ({"prompt": "new"}, ("new", "re: two")),
            ({"response": "new"}, ("two", "new")),
            ({"prompt": "new", "response": ""}, ("new", "")),
        ],
        ids=["prompt", "response", "both"],
    )
    def test_it_changes_one_turn_and_later_turns_stay(
        self, store: Store, edit: dict[str, str], expected: tuple[str, str]
    ) -> None:
        session = talked(store)
        before = store.history(session.conversation_id)
        edited = store.edit_turn(session.id, 2, **edit)
        assert (edited.prompt, edited.response) == expected
        assert store.history(session.conversation_id) == (before[0], edited, before[2])
        turn = store.get_turn(session.conversation_id, 2)
        assert (turn.prompt, turn.response) == expected

    def test_every_edit_is_a_revision_and_the_newest_counts(self, store: Store) -> None:
        session = talked(store)
        for number in (1, 2, 3):
            edited = store.edit_turn(session.id, 2, prompt=f"version {number}")
            assert (edited.revision, edited.prompt) == (number, f"version {number}")
            assert store.get_conversation(session.conversation_id).revision == number
        assert store.edit_turn(session.id, 2, response="new").prompt == "version 3"

    def test_any_agent_of_the_conversation_may_edit_any_turn(self, store: Store) -> None:
        session = talked(store, "one")
        other = join(store, session, "reviewer")
        store.edit_turn(other.id, 1, prompt="edited")
        assert prompts(store, session) == ["edited"]

    def test_an_edit_of_nothing_is_refused(self, store: Store) -> None:
        session = talked(store)
        with refused(store, InvalidInput):
            store.edit_turn(session.id, 1)

    @pytest.mark.parametrize("seq", [0, -1, 4, 99])
    def test_a_turn_that_does_not_exist_cannot_be_edited(self, store: Store, seq: int) -> None:
        session = talked(store)
        with refused(store, NotFound):
            store.edit_turn(session.id, seq, prompt="new")

    def test_a_turn_that_left_the_history_cannot_be_edited(self, store: Store) -> None:
        session = talked(store)
        store.truncate(session.id, 1)
        with refused(store, NotFound):
            store.edit_turn(session.id, 2, prompt="new")

    def test_the_prompt_of_a_waiting_turn_is_what_will_run(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "old")
        store.edit_turn(session.id, 1, prompt="new")
        assert claim(store, session).turn.prompt == "new"

    def test_what_already_runs_keeps_its_prompt(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "old")
        claimed = claim(store, session)
        store.edit_turn(session.id, 1, prompt="new")
        store.finish_turn(claimed.lease, done("an answer to the old one"))
        assert claimed.turn.prompt == "old"
        (turn,) = store.history(session.conversation_id)
        assert (turn.prompt, turn.response) == ("new", "an answer to the old one")

    def test_an_open_turn_has_no_response_to_edit(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "one")
        with refused(store, Conflict):
            store.edit_turn(session.id, 1, response="new")
        claim(store, session)
        with refused(store, Conflict):
            store.edit_turn(session.id, 1, response="new")


class TestTruncate:
    """``truncate``."""

    @pytest.mark.parametrize("keep", [0, 1, 2])
    def test_later_turns_leave_the_history_and_their_rows_stay(self, store: Store, keep: int) -> None:
        session = talked(store)
        before = store.history(session.conversation_id)
        after = store.truncate(session.id, keep)
        assert store.history(session.conversation_id) == before[:keep]
        assert after == store.get_conversation(session.conversation_id)
        dropped = [turn.dropped for turn in store.turns(session.id)]
        assert dropped == [None] * keep + [after.revision] * (3 - keep)
        assert store.get_turn(session.conversation_id, 3).response == "re: three"

    def test_sequence_numbers_are_never_used_again(self, store: Store) -> None:
        session = talked(store)
        store.truncate(session.id, 1)
        run(store, session, "four")
        store.truncate(session.id, 1)
        run(store, session, "five")
        assert (seqs(store, session), prompts(store, session)) == ([1, 5], ["one", "five"])

    @pytest.mark.parametrize("keep", [3, 4, 99])
    def test_when_nothing_comes_after_nothing_changes(self, store: Store, keep: int) -> None:
        session = talked(store)
        before = store.get_conversation(session.conversation_id)
        assert store.truncate(session.id, keep) == before
        assert store.get_conversation(session.conversation_id) == before

    def test_truncating_again_to_the_same_turn_changes_nothing(self, store: Store) -> None:
        session = talked(store)
        assert store.truncate(session.id, 1) == store.truncate(session.id, 1)

    def test_waiting_turns_of_every_agent_are_cancelled(self, store: Store) -> None:
        session = talked(store, "one")
        other = join(store, session, "reviewer")
        for each in (session, other):
            enqueue(store, each, "waiting")
            enqueue(store, each, "later", not_before=Instant(2**57))
        store.truncate(session.id, 1)
        statuses = [turn.status for each in (session, other) for turn in store.turns(each.id, after=1)]
        assert statuses == [TurnStatus.CANCELLED] * 4
        assert store.claim_turn(a_claim()) is None

    def test_the_queue_goes_on_afterwards(self, store: Store) -> None:
        session = talked(store, "one")
        enqueue(store, session, "dropped")
        store.truncate(session.id, 1)
        enqueue(store, session, "next")
        assert claim(store, session).turn.prompt == "next"

    def test_a_waiting_turn_that_stays_still_runs(self, store: Store) -> None:
        session = talked(store, "one")
        enqueue(store, session, "stays")
        enqueue(store, session, "goes")
        store.truncate(session.id, 2)
        assert claim(store, session).turn.prompt == "stays"

    def test_a_turn_that_runs_cannot_be_dropped(self, store: Store) -> None:
        session = talked(store, "one")
        other = join(store, session, "reviewer")
        enqueue(store, other, "two")
        claim(store, other)
        enqueue(store, session, "three")
        with refused(store, Conflict):
            store.truncate(session.id, 1)
        store.truncate(session.id, 2)
        assert prompts(store, session) == ["one", "two"]


class TestRetry:
    """``retry_turn``."""

    def test_the_prompt_runs_again_as_a_new_turn_and_later_turns_go(self, store: Store) -> None:
        session = talked(store)
        again = store.retry_turn(session.id, 2)
        assert (again.seq, again.retry_of, again.prompt, again.status) == (4, 2, "two", TurnStatus.QUEUED)
        assert prompts(store, session) == ["one", "two"]
        assert seqs(store, session) == [1, 4]
        assert [turn.dropped for turn in store.turns(session.id)] == [None, 1, 1, None]
        assert claim(store, session).turn == replace(again, status=TurnStatus.CLAIMED, attempts=1, tries=1)

    def test_another_prompt_may_take_its_place(self, store: Store) -> None:
        session = talked(store)
        assert store.retry_turn(session.id, 3, prompt="three, but better").prompt == "three, but better"

    def test_the_newest_revision_of_the_prompt_is_repeated(self, store: Store) -> None:
        session = talked(store)
        store.edit_turn(session.id, 2, prompt="edited")
        assert store.retry_turn(session.id, 2).prompt == "edited"

    def test_a_retry_of_a_retry_names_the_turn_it_repeats(self, store: Store) -> None:
        session = talked(store, "one")
        for seq in (1, 2, 3):
            again = store.retry_turn(session.id, seq)
            assert (again.seq, again.retry_of) == (seq + 1, seq)
            assert [turn.retry_of for turn in store.history(session.conversation_id)] == [seq]
            store.finish_turn(claim(store, session).lease, failed())
        assert seqs(store, session) == [4]

    def test_it_is_run_as_it_was_asked_for(self, store: Store) -> None:
        store.register_runtime(a_runtime())
        session = begin(store)
        request = TurnRequest("/srv/infra", "opus", Rights("plan", frozenset({"Read"})))
        new = a_turn("one", request=request, priority=7, runtime_id=a_runtime().id, max_attempts=9)
        store.enqueue_turn(session.id, new)
        store.finish_turn(claim(store, session).lease, failed())
        again = store.retry_turn(session.id, 1)
        assert (again.request, again.priority, again.runtime_id, again.max_attempts) == (
            request, 7, a_runtime().id, 9,
        )  # fmt: skip

    def test_while_it_or_a_later_turn_runs_it_is_refused(self, store: Store) -> None:
        session = talked(store, "one", "two")
        enqueue(store, session, "three")
        claim(store, session)
        for seq in (1, 3):
            with refused(store, Conflict):
                store.retry_turn(session.id, seq)

    @pytest.mark.parametrize("seq", [0, 3, 9], ids=["none", "dropped", "unknown"])
    def test_only_turns_of_the_history_can_be_repeated(self, store: Store, seq: int) -> None:
        session = talked(store)
        store.truncate(session.id, 2)
        with refused(store, NotFound):
            store.retry_turn(session.id, seq)


class TestNewGeneration:
    """``new_generation``."""

    def test_the_history_is_empty_and_the_rows_stay(self, store: Store) -> None:
        session = talked(store)
        before = store.get_conversation(session.conversation_id)
        after = store.new_generation(session.id)
        assert after.generation == before.generation + 1
        assert store.get_conversation(session.conversation_id) == after
        assert store.history(session.conversation_id) == ()
        assert len(store.turns(session.id)) == 3

    def test_sequence_numbers_go_on(self, store: Store) -> None:
        session = talked(store)
        store.new_generation(session.id)
        run(store, session, "four")
        assert seqs(store, session) == [4]
        assert store.get_turn(session.conversation_id, 4).generation == 1

    def test_an_empty_history_can_begin_again_too(self, store: Store) -> None:
        session = begin(store)
        assert store.new_generation(session.id).generation == 1
        assert store.new_generation(session.id).generation == 2

    def test_waiting_turns_are_cancelled(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "one")
        store.new_generation(session.id)
        assert store.turns(session.id)[0].status is TurnStatus.CANCELLED
        assert store.claim_turn(a_claim()) is None

    def test_while_a_turn_runs_it_is_refused(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "one")
        claim(store, session)
        with refused(store, Conflict):
            store.new_generation(session.id)


def test_only_a_text_that_replaced_another_is_called_edited(store: Store) -> None:
    session = talked(store)
    store.edit_turn(session.id, 2, response="otherwise")
    store.truncate(session.id, 2)
    run(store, session, "four")
    fork = store.fork(session.id, a_session_id(), at=2)
    store.edit_turn(fork.id, 1, prompt="one, in the fork")

    def edited(of: Session) -> list[tuple[int, bool]]:
        conversation = store.get_conversation(of.conversation_id)
        wanted = PastRequest(((1, 100),))
        past = store.read_past(conversation.id, conversation.revision, wanted)
        found = [(turn.seq, turn.is_edited) for turn in store.history(of.conversation_id)]
        assert found == [(each.turn.seq, each.turn.is_edited) for each in reversed(past)]
        return found

    assert edited(session) == [(1, False), (2, True), (4, False)]
    assert edited(fork) == [(1, True), (2, True)]

"""Owns the clause that a store is safe to use from several threads: whoever comes at once gets one order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from holdfast.domain.phases import Phase
from holdfast.domain.sessions import SessionUpdate
from holdfast.errors import Conflict, HoldfastError, PhaseConflict, Refused, SessionClosed
from holdfast.store.contract import Store
from tests.builders import a_pointer, a_provider_session_id, a_session, a_session_id, a_turn
from tests.contract.test_history import seqs, talked
from tests.steps import begin

T = TypeVar("T")

THREADS = 6


def at_once(act: Callable[[int], T]) -> list[T | HoldfastError]:
    """What each of several threads got; an error of ours is an answer too."""
    start = threading.Barrier(THREADS)

    def one(number: int) -> T | HoldfastError:
        start.wait()
        try:
            return act(number)
        except HoldfastError as error:
            return error

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(one, range(THREADS)))


def errors_of(answers: list[T | HoldfastError]) -> list[type[HoldfastError]]:
    return [type(answer) for answer in answers if isinstance(answer, HoldfastError)]


@pytest.mark.parametrize("again", range(3))
class TestThreads:
    """Each test several times: what must never happen need not happen at once."""

    def test_one_session_is_made_for_one_id(self, store: Store, again: int) -> None:
        new = a_session(name=f"name {again}")
        made = at_once(lambda _: store.create_session(new))
        assert made == [store.get_session(new.id)] * THREADS

    def test_one_session_gets_a_name(self, store: Store, again: int) -> None:
        refused = errors_of(at_once(lambda _: begin(store, name=f"name {again}")))
        assert refused == [Conflict] * (THREADS - 1)

    def test_one_session_is_renamed_to_a_name(self, store: Store, again: int) -> None:
        sessions = [begin(store) for _ in range(THREADS)]
        answers = at_once(lambda number: store.rename_session(sessions[number].id, f"name {again}"))
        assert errors_of(answers) == [Conflict] * (THREADS - 1)

    def test_one_session_takes_a_provider_session_over(self, store: Store, again: int) -> None:
        sessions = [begin(store, agent=f"agent {again}") for _ in range(THREADS)]
        named = a_provider_session_id()
        pointers = [a_pointer(session.id, provider_session_id=named, runtime_id=None) for session in sessions]
        answers = at_once(lambda number: store.set_pointer(pointers[number], unowned=True))
        assert errors_of(answers) == [Refused] * (THREADS - 1)
        assert sum(bool(store.pointers(session.id)) for session in sessions) == 1

    def test_one_agent_has_one_open_session_in_a_conversation(self, store: Store, again: int) -> None:
        conversation = begin(store, agent=f"first {again}").conversation_id
        answers = at_once(lambda _: begin(store, agent="second", conversation_id=conversation))
        assert errors_of(answers) == [Conflict] * (THREADS - 1)

    def test_one_wins_a_phase(self, store: Store, again: int) -> None:
        session = begin(store, agent=f"agent {again}")
        change = SessionUpdate(phase=Phase.EXECUTING, expected_phase=Phase.INITIALIZING)
        answers = at_once(lambda _: store.update_session(session.id, change))
        assert errors_of(answers) == [PhaseConflict] * (THREADS - 1)
        assert len(store.phase_history(session.id)) == 1

    def test_one_finalizes_a_session(self, store: Store, again: int) -> None:
        session = begin(store, agent=f"agent {again}")
        answers = at_once(lambda n: store.finalize_session(session.id, Phase.COMPLETED, f"by {n}"))
        assert errors_of(answers) == [SessionClosed] * (THREADS - 1)

    def test_no_metadata_and_no_error_is_lost(self, store: Store, again: int) -> None:
        session = begin(store, agent=f"agent {again}")
        at_once(
            lambda n: store.update_session(session.id, SessionUpdate(metadata={str(n): n}, error="broken"))
        )
        after = store.get_session(session.id)
        assert after.metadata == {str(number): number for number in range(THREADS)}
        assert after.error_count == THREADS

    def test_every_turn_gets_a_number_of_its_own(self, store: Store, again: int) -> None:
        session = begin(store, agent=f"agent {again}")
        assert errors_of(at_once(lambda n: store.enqueue_turn(session.id, a_turn(f"turn {n}")))) == []
        assert seqs(store, session) == list(range(1, THREADS + 1))

    def test_every_edit_gets_a_revision_of_its_own(self, store: Store, again: int) -> None:
        session = talked(store, f"one {again}")
        edits = at_once(lambda n: store.edit_turn(session.id, 1, prompt=f"edit {n}"))
        assert errors_of(edits) == []
        assert store.get_conversation(session.conversation_id).revision == THREADS

    def test_one_child_is_forked_for_one_id(self, store: Store, again: int) -> None:
        parent, child_id = talked(store, f"one {again}"), a_session_id()
        forked = at_once(lambda _: store.fork(parent.id, child_id))
        assert forked == [store.get_session(child_id)] * THREADS
        assert len(store.children(parent.id)) == 1

    def test_edits_retries_and_forks_do_not_block_each_other(self, store: Store, again: int) -> None:
        parent = talked(store, f"one {again}", "two")

        def act(number: int) -> object:
            match number % 3:
                case 0:
                    return store.edit_turn(parent.id, 1, prompt=f"edit {number}")
                case 1:
                    return store.fork(parent.id, a_session_id())
                case _:
                    return store.retry_turn(parent.id, 1)

        answers = at_once(act)
        # whoever retries first takes turn 1 out of the history, and with it what others wanted to change
        assert {error.code for error in answers if isinstance(error, HoldfastError)} <= {"not_found"}
        assert seqs(store, parent)

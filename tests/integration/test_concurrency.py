"""Many processes, and many threads, on one store: nothing is lost, nothing is done twice, nobody starves."""

import os
import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest

from holdfast.domain.ids import ConversationId, SessionId
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import NewSession, SessionFilter, SessionUpdate
from holdfast.domain.turns import NewTurn, TurnStatus
from holdfast.store.contract import Store
from holdfast.store.open import open_store
from tests import processes
from tests.consistency import assert_consistent
from tests.integration import crowd
from tests.integration.crowd import Held

THERE_ARE = 8
T = TypeVar("T")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    url = f"sqlite:///{tmp_path}/holdfast.db"
    open_store(url).close()
    return url


def a_session(store: Store, name: str = "one", joins: ConversationId | None = None) -> str:
    new = NewSession(SessionId(f"agent-{name}"), name, conversation_id=joins)
    return store.create_session(new).id


# --- writers ------------------------------------------------------------------------------------------------


def test_writers_of_one_session_lose_nothing_and_learn_of_every_conflict(url: str) -> None:
    writes = 25
    with crowd.opened(url) as store:
        session = a_session(store)
        store.update_session(session, SessionUpdate(phase=Phase.PLANNING))

        results = processes.together(
            crowd.write_to_one_session, [(url, session, me, writes) for me in range(THERE_ARE)]
        )

        changed = sum(result[0] for result in results)
        conflicts = sum(result[1] for result in results)
        assert changed + conflicts == THERE_ARE * writes
        expected = {f"{me}-{number}": number for me in range(THERE_ARE) for number in range(writes)}
        assert store.get_session(session).metadata == expected
        phases = store.phase_history(session)
        assert len(phases) == changed + 1
        assert all(before.to_phase == change.from_phase for before, change in pairwise(phases))


def test_every_writer_of_a_session_of_its_own_is_served(url: str) -> None:
    writes = 40
    results = processes.together(crowd.write_to_own_session, [(url, me, writes) for me in range(THERE_ARE)])
    assert results == [writes] * THERE_ARE
    with crowd.opened(url) as store:
        last = [store.get_session(f"agent-{me}").metadata["last"] for me in range(THERE_ARE)]
    assert last == [writes - 1] * THERE_ARE


def test_turns_enqueued_at_once_into_one_conversation_are_numbered_without_gaps(url: str) -> None:
    turns = 20
    with crowd.opened(url) as store:
        first = a_session(store, "first")
        conversation = store.get_session(first).conversation_id
        second = a_session(store, "second", joins=conversation)

        results: list[list[int]] = processes.together(
            crowd.enqueue_into_one_conversation,
            [(url, (first, second)[me % 2], me, turns) for me in range(THERE_ARE)],
        )

        for seqs in results:
            assert len(set(seqs)) == turns
        # of each pair of turns one is the process's own, and one is shared by all that use the same session
        together = THERE_ARE * turns // 2 + 2 * turns // 2
        assert {seq for seqs in results for seq in seqs} == set(range(1, together + 1))
        assert store.get_conversation(conversation).next_seq == together + 1
        assert_consistent(store)


# --- claimers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("claimers", [2, 8])
def test_a_turn_is_claimed_once_and_the_turns_of_a_session_never_overlap(url: str, claimers: int) -> None:
    sessions, turns = 20, 10
    with crowd.opened(url) as store:
        queue(store, sessions, turns)
        finished = processes.context.Value("i", 0)

        results: list[list[Held]] = processes.together(
            crowd.work, [(url, me, finished, sessions * turns) for me in range(claimers)]
        )

        assert finished.value == sessions * turns
        check_leases([held for result in results for held in result], sessions, turns)
        assert store.claim_turn(crowd.request("late")) is None
        for number in range(sessions):
            for turn in store.turns(f"agent-{number}"):
                assert (turn.status, turn.attempts) == (TurnStatus.DONE, 1)
        assert_consistent(store)


def queue(store: Store, sessions: int, turns: int) -> None:
    for number in range(sessions):
        session = a_session(store, str(number))
        for turn in range(turns):
            store.enqueue_turn(session, NewTurn(f"turn {turn + 1}", "claude", priority=number % 3))


def check_leases(held: list[Held], sessions: int, turns: int) -> None:
    """Each turn was held once, and the lease of a session's next turn begins after the one before has ended."""
    claimed = Counter((session_id, seq) for session_id, seq, _, _ in held)
    everything = {(f"agent-{n}", seq) for n in range(sessions) for seq in range(1, turns + 1)}
    assert set(claimed) == everything
    assert set(claimed.values()) == {1}
    for (one, _, _, until), (other, _, since, _) in pairwise(sorted(held)):
        assert one != other or until <= since


def test_a_process_that_was_stopped_past_its_lease_is_fenced(url: str) -> None:
    with crowd.opened(url) as store:
        session = a_session(store)
        turn = store.enqueue_turn(session, NewTurn("work", "claude"))
        process, connection = processes.start(crowd.beat_until_fenced, url, 0.3)
        try:
            lease = processes.receive(connection)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGSTOP)
            orphan = processes.until(store.orphans)[0]
            store.recover(orphan)
            second = store.claim_turn(crowd.request("second"))
            connection.send("go on")
            os.kill(process.pid, signal.SIGCONT)
            endings = processes.receive(connection)
        finally:
            process.kill()  # also if it is still stopped
            processes.finish(process)
            connection.close()

        assert orphan.lease.fence == lease.fence
        assert set(endings.values()) == {"LeaseLost"}, endings
        assert second is not None
        store.finish_turn(second.lease, crowd.done("by the second"))
        assert store.get_turn(turn.conversation_id, 1).response == "by the second"
        assert store.events(turn.conversation_id, 1) == ()
        (late,) = store.late_reports(turn.conversation_id)
        assert (late.fence, late.verb, late.report["response"]) == (lease.fence, "finish", "too late")
        assert_consistent(store)


# --- everything at once -------------------------------------------------------------------------------------


def test_whatever_people_and_workers_do_at_once_they_only_meet_errors_they_expect(url: str) -> None:
    """On PostgreSQL also: no deadlock, whatever the order in which two of them need the same rows."""
    with crowd.opened(url) as store:
        shared = []
        for number in range(3):
            first = a_session(store, f"first-{number}")
            joins = store.get_session(first).conversation_id
            shared += [first, a_session(store, f"second-{number}", joins)]

        results = processes.together(crowd.do_anything, [(url, me, shared, 120) for me in range(6)])

        counted: Counter[str] = sum(results, Counter())
        assert set(crowd.THINGS_TO_DO) - set(counted) == set(), counted
        someone = crowd.Someone(store, 99, shared)
        someone.recover()
        assert_consistent(store)
        finish_everything(store)
        assert_consistent(store)


def finish_everything(store: Store) -> None:
    """No session is stuck: what is in the queue can be run to its end."""
    while claimed := store.claim_turn(crowd.request("last")):
        store.finish_turn(claimed.lease, crowd.done("at last"))
    for session in store.list_sessions(SessionFilter(), 1000).sessions:
        store.history(session.conversation_id)
        assert all(not turn.status.is_open for turn in store.turns(session.id))


# --- threads ------------------------------------------------------------------------------------------------


def test_threads_share_one_store(url: str) -> None:
    """More of them than the store has connections."""
    threads, writes, sessions, turns = 12, 10, 6, 6
    with closing(open_store(url, durability="normal")) as store:
        queue(store, sessions, turns)
        written = a_session(store, "written")
        finished = processes.context.Value("i", 0)
        start = threading.Barrier(threads)

        def act(me: int) -> list[Held]:
            start.wait(processes.LIMIT_SECONDS)
            for number in range(writes):
                store.update_session(written, SessionUpdate(metadata={f"{me}-{number}": number}))
            return crowd.run_turns(store, f"thread-{me}", finished, sessions * turns)

        with ThreadPoolExecutor(threads) as pool:
            results = list(pool.map(act, range(threads)))

        check_leases([held for result in results for held in result], sessions, turns)
        assert len(store.get_session(written).metadata) == threads * writes
        assert_consistent(store)

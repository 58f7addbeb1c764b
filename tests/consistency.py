"""Owns what must be true of every store at rest, whatever happened to it before."""

from collections import defaultdict

from holdfast.domain.turns import AttemptStatus, TurnStatus
from holdfast.store.contract import Store
from holdfast.store.driver import Driver, Row
from holdfast.store.sql_store import SqlStore
from holdfast.store.sqlite import SqliteDriver
from tests.contract.heads import check_heads

SESSIONS = """
SELECT workspace, id, conversation_id, head_seq, ready_at, wake_at, lease_expires_at, fence, lease_owner
FROM sessions"""
TURNS = """
SELECT workspace, conversation_id, seq, session_id, status, attempts, ended_at FROM turns
ORDER BY workspace, conversation_id, seq"""
ATTEMPTS = """
SELECT workspace, conversation_id, seq, number, status, fence, session_id, ended_at FROM attempts
ORDER BY workspace, conversation_id, seq, number"""
#: text that is being written, of an attempt that has ended
LEFT_TEXTS = "SELECT id FROM sessions WHERE partial_text IS NOT NULL AND lease_expires_at IS NULL"
CONVERSATIONS = "SELECT workspace, id, fork_seq, next_seq, parent_id FROM conversations"
RETIRED_POINTERS = """
SELECT p.session_id, p.provider_session_id FROM pointers p JOIN provider_sessions r
    ON r.workspace = p.workspace AND r.provider = p.provider AND r.id = p.provider_session_id
WHERE r.retired_at IS NOT NULL AND p.fork_seq IS NULL"""

LEASED = {TurnStatus.CLAIMED, TurnStatus.RUNNING}
Key = tuple[str, str]


def driver_of(store: Store) -> Driver:
    assert isinstance(store, SqlStore)
    return store._driver


def assert_consistent(store: Store) -> None:
    """Of all workspaces behind the store: rows agree with each other, as one transaction sees them."""
    check_heads(driver_of(store))
    with driver_of(store).read() as tx:
        sessions, turns, attempts = tx.all(SESSIONS, {}), tx.all(TURNS, {}), tx.all(ATTEMPTS, {})
        conversations, retired = tx.all(CONVERSATIONS, {}), tx.all(RETIRED_POINTERS, {})
        assert tx.all(LEFT_TEXTS, {}) == []
        if isinstance(driver_of(store), SqliteDriver):
            assert tx.all("PRAGMA integrity_check", {}) == [("ok",)]
            assert tx.all("PRAGMA foreign_key_check", {}) == []
    assert retired == []
    _check_queue(sessions, turns)
    _check_attempts(sessions, turns, attempts)
    _check_sequences(conversations, turns)


def _check_queue(sessions: list[Row], turns: list[Row]) -> None:
    """The head of a session is its oldest open turn; it is leased exactly while it is claimed or runs."""
    open_turns: dict[Key, list[tuple[int, str]]] = defaultdict(list)
    for ws, _, seq, session_id, status, _, ended_at in turns:
        assert TurnStatus(status).is_open == (ended_at is None), f"turn {seq} of {session_id}: {status}"
        if TurnStatus(status).is_open:
            open_turns[ws, session_id].append((seq, status))
    for ws, session_id, _, head, ready_at, wake_at, expires_at, _, owner in sessions:
        waiting = open_turns.pop((ws, session_id), [])
        oldest, status = min(waiting) if waiting else (None, None)
        assert head == oldest, f"{session_id}: head {head}, oldest open turn {oldest}"
        assert (expires_at is not None) == (status in LEASED) == (owner is not None), f"{session_id}: lease"
        claimable = ready_at is not None or wake_at is not None
        assert claimable == (status == TurnStatus.QUEUED), f"{session_id}: {status} is stuck"
        assert all(behind == TurnStatus.QUEUED for _, behind in sorted(waiting)[1:]), f"{session_id}: order"
    assert not open_turns, "turns without a session"


def _check_attempts(sessions: list[Row], turns: list[Row], attempts: list[Row]) -> None:
    """Numbered without gaps, at most one of them done, and open exactly for the one that is leased."""
    of_turn: dict[tuple[str, str, int], list[Row]] = defaultdict(list)
    fences: dict[Key, list[int]] = defaultdict(list)
    open_fences: dict[Key, int] = {}
    for row in attempts:
        of_turn[row[0], row[1], row[2]].append(row)
        fences[row[0], row[6]].append(row[5])
        assert (row[4] == AttemptStatus.OPEN) == (row[7] is None)
        if row[4] == AttemptStatus.OPEN:
            assert (row[0], row[6]) not in open_fences, f"two open attempts in {row[6]}"
            open_fences[row[0], row[6]] = row[5]
    for ws, conversation_id, seq, session_id, status, count, _ in turns:
        own = of_turn[ws, conversation_id, seq]
        assert [row[3] for row in own] == list(range(1, count + 1)), f"attempts of {session_id} turn {seq}"
        done = sum(row[4] == AttemptStatus.DONE for row in own)
        # a turn that was recorded afterwards has no attempt
        assert done == (status == TurnStatus.DONE and count > 0), f"{done} done in {session_id} turn {seq}"
    leased = {(row[0], row[1]): row[7] for row in sessions if row[6] is not None}
    assert open_fences == leased
    for key, used in fences.items():
        assert len(set(used)) == len(used), f"{key[1]}: a fencing token was used twice"


def _check_sequences(conversations: list[Row], turns: list[Row]) -> None:
    """Without gaps, from the fork point on; and what a fork reads through to exists."""
    known = {(row[0], row[1]) for row in conversations}
    seqs: dict[Key, list[int]] = defaultdict(list)
    for row in turns:
        seqs[row[0], row[1]].append(row[2])
    for ws, conversation_id, fork_seq, next_seq, parent_id in conversations:
        assert parent_id is None or (ws, parent_id) in known, f"{conversation_id} lost its parent"
        assert seqs[ws, conversation_id] == list(range((fork_seq or 0) + 1, next_seq))

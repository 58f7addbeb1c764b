"""Owns the check of what the store keeps twice: the head in a session's row, and its lease, against the turns."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.store.contract import Store
from holdfast.store.driver import Driver, Row, Transaction
from holdfast.store.sql_store import SqlStore
from tests.contract.served import behind_http

SESSIONS = """
SELECT workspace, id, conversation_id, fence, lease_owner, lease_expires_at, head_seq, head_provider,
    head_runtime_id, head_priority, ready_at, wake_at, head_kept FROM sessions"""
OPEN_TURNS = """
SELECT workspace, session_id, conversation_id, seq, provider, runtime_id, priority, not_before, status,
    next_cause
FROM turns WHERE status IN ('queued', 'claimed', 'running', 'waiting') ORDER BY seq"""
APPROVALS = """
SELECT workspace, session_id, conversation_id, seq, status FROM approvals
WHERE seq IS NOT NULL AND used_at IS NULL AND status <> 'voided'"""
OPEN_ATTEMPTS = "SELECT workspace, session_id, seq, fence, owner FROM attempts WHERE status = 'open'"
TABLES = [
    "conversations",
    "sessions",
    "phase_changes",
    "runtimes",
    "turns",
    "messages",
    "history_changes",
    "attempts",
    "events",
    "pointers",
    "provider_sessions",
    "late_reports",
    "delegations",
    "approvals",
    "observed_sessions",
    "vault_chunks",
    "vault_bundles",
    "vault_files",
    "vault_parts",
]


class WatchedDriver:
    """Looks at every session after each transaction that wrote."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    @contextmanager
    def write(self, *, synced: bool = True) -> Iterator[Transaction]:
        with self._driver.write(synced=synced) as tx:
            yield tx
        check_heads(self._driver)


def watch(store: Store) -> None:
    behind = behind_http(store)
    assert isinstance(behind, SqlStore)
    behind._driver = WatchedDriver(behind._driver)


def check_heads(driver: Driver) -> None:
    with driver.read() as tx:
        turns: dict[tuple[str, str], list[Row]] = {}
        for row in tx.all(OPEN_TURNS, {}):
            turns.setdefault((row[0], row[1]), []).append(row)
        attempts: dict[tuple[str, str], list[Row]] = {}
        for row in tx.all(OPEN_ATTEMPTS, {}):
            attempts.setdefault((row[0], row[1]), []).append(row)
        _check_approvals(tx.all(OPEN_TURNS, {}), tx.all(APPROVALS, {}))
        for session in tx.all(SESSIONS, {}):
            key = (session[0], session[1])
            _check(session, turns.get(key, []), attempts.get(key, []), tx.now)


def _check_approvals(turns: list[Row], approvals: list[Row]) -> None:
    """A turn waits exactly while its one approval is open; what was answered is acted on, or void."""
    waiting = sorted(turn[:4] for turn in turns if turn[8] == "waiting")
    assert sorted(row[:4] for row in approvals if row[4] == "open") == waiting, "asked and waiting differ"
    unlaunched = {turn[:4] for turn in turns if turn[8] in ("queued", "claimed")}
    answered = [row[:4] for row in approvals if row[4] != "open"]
    assert len(set(answered)) == len(answered), "two answers for one turn"
    assert set(answered) <= unlaunched, "an answer that nobody will act on"


def _check(session: Row, turns: list[Row], attempts: list[Row], now: int) -> None:
    fence, owner, expires_at = session[3:6]
    head, (ready_at, wake_at, kept) = session[6:10], session[10:]
    assert [turn[8] for turn in turns[1:] if turn[8] not in ("queued", "waiting")] == [], "two turns run"
    assert (owner is None) == (expires_at is None), "half a lease"
    if not turns:
        assert head == (None,) * 4, f"the head {head} is not open"
        assert (ready_at, wake_at, expires_at) == (None, None, None)
        return
    _, _, _, seq, provider, runtime_id, priority, not_before, status, cause = turns[0]
    if cause == "approval":
        runtime_id = head[2]  # where the call is
    expected = (seq, provider, head[2] if kept else runtime_id or "", priority)
    assert head == expected, "the head is not the oldest open turn"
    assert not (kept and runtime_id), "a pinned turn is for anyone in the end"
    if status in ("claimed", "running"):
        assert (ready_at, wake_at) == (None, None), "what runs can be claimed"
        assert [(a[2], a[3], a[4]) for a in attempts] == [(seq, fence, owner)], "not the one open attempt"
        return
    assert attempts == [], "an open attempt without a lease"
    assert expires_at is None, "a lease without an open attempt"
    if status == "queued":
        assert (ready_at is None) != (wake_at is None), "neither ready nor to be woken, or both"
        assert not kept or head[2], "kept for nobody"
        if not_before is not None and not_before > now:
            assert wake_at == not_before, "ready before its time"


def dump(store: Store, without: str = "") -> dict[str, list[str]]:
    """Every row of every table, except those of one."""
    behind = behind_http(store)
    assert isinstance(behind, SqlStore)
    with behind._driver.read() as tx:
        return {
            table: sorted(map(repr, tx.all(f"SELECT * FROM {table}", {})))
            for table in TABLES
            if table != without
        }

"""Owns taking things away: abandoning idle sessions, deleting final ones, removing one by hand."""

from __future__ import annotations

from holdfast.clock import Instant
from holdfast.domain.phases import Phase
from holdfast.domain.retention import CleanupReport
from holdfast.errors import Busy, Conflict
from holdfast.store.sql import history, lifecycle
from holdfast.store.sql.scope import Scope

# created_at is never later than updated_at, and unlike it has an index
IDLE = """
SELECT id, phase FROM sessions
WHERE workspace = :ws AND created_at < :cutoff AND updated_at < :cutoff AND finalized_at IS NULL
    AND lease_expires_at IS NULL AND head_seq IS NULL
ORDER BY created_at"""
# what somebody is changing at this moment is not idle; and cleaning up, which needs many rows, never waits
LOCK_IDLE = f"{IDLE} FOR UPDATE SKIP LOCKED"
LOCK_UNUSED = """
SELECT id FROM conversations WHERE workspace = :ws AND id = :id FOR UPDATE SKIP LOCKED"""
# newest first, so that a fork goes before what it was forked from
FINAL = """
SELECT id, parent_id FROM conversations WHERE workspace = :ws AND id IN (
    SELECT conversation_id FROM sessions
    WHERE workspace = :ws AND created_at < :cutoff AND finalized_at IS NOT NULL AND finalized_at < :cutoff)
ORDER BY created_at DESC"""
SESSIONS_OF = "SELECT id FROM sessions WHERE workspace = :ws AND conversation_id = :id"
FORKS_OF = """
SELECT id FROM sessions WHERE workspace = :ws AND conversation_id IN
    (SELECT id FROM conversations WHERE workspace = :ws AND parent_id = :id)"""
CHILD_CONVERSATIONS = "SELECT id FROM conversations WHERE workspace = :ws AND parent_id = :id"
LIVING = """
SELECT 1 FROM sessions
WHERE workspace = :ws AND conversation_id = :id
    AND (finalized_at IS NULL OR finalized_at >= :cutoff OR lease_expires_at IS NOT NULL)
LIMIT 1"""
LOCK_OWNER = "SELECT lease_owner FROM sessions WHERE workspace = :ws AND id = :id FOR UPDATE"
DELETE_CONVERSATION = (
    "DELETE FROM events WHERE workspace = :ws AND conversation_id = :id",
    "DELETE FROM attempts WHERE workspace = :ws AND conversation_id = :id",
    "DELETE FROM late_reports WHERE workspace = :ws AND conversation_id = :id",
    "DELETE FROM messages WHERE workspace = :ws AND conversation_id = :id",
    "DELETE FROM turns WHERE workspace = :ws AND conversation_id = :id",
    "DELETE FROM history_changes WHERE workspace = :ws AND conversation_id = :id",
    # what another session has written to last, or points to, is that one's from now on
    """UPDATE provider_sessions INDEXED BY provider_sessions_by_session SET session_id = COALESCE(
        (SELECT h.id FROM sessions h
            WHERE h.workspace = :ws AND h.id = holder_session_id AND h.conversation_id <> :id),
        (SELECT MIN(p.session_id) FROM pointers p JOIN sessions o
            ON o.workspace = p.workspace AND o.id = p.session_id AND o.conversation_id <> :id
            WHERE p.workspace = :ws AND p.provider = provider_sessions.provider
                AND p.provider_session_id = provider_sessions.id),
        session_id)
    WHERE workspace = :ws AND session_id IN
        (SELECT id FROM sessions WHERE workspace = :ws AND conversation_id = :id)""",
    # a retired id must never come back, so its row outlives the session
    """DELETE FROM provider_sessions INDEXED BY provider_sessions_by_session
    WHERE workspace = :ws AND retired_at IS NULL AND session_id IN
        (SELECT id FROM sessions WHERE workspace = :ws AND conversation_id = :id)""",
    "DELETE FROM sessions WHERE workspace = :ws AND conversation_id = :id",
    "DELETE FROM conversations WHERE workspace = :ws AND id = :id",
)


def clean_up(s: Scope, cutoff: Instant, *, dry_run: bool) -> CleanupReport:
    """Final sessions first, so that what is abandoned now stays readable until the next time."""
    deleted = _delete_final(s, cutoff, dry_run=dry_run)
    abandoned: list[str] = []
    for session_id, phase in s.all(IDLE if dry_run else LOCK_IDLE, cutoff=cutoff):
        # damage can leave an id that cannot be said again
        if dry_run or lifecycle.close(s, session_id, phase, Phase.ABANDONED):
            abandoned.append(session_id)
    return CleanupReport(tuple(abandoned), tuple(deleted))


def _delete_final(s: Scope, cutoff: Instant, *, dry_run: bool) -> list[str]:
    deleted: list[str] = []
    gone: set[str] = set()
    spared: set[str] = set()
    parents: dict[str, str | None] = dict(s.all(FINAL, cutoff=cutoff))
    for conversation_id in parents:
        current: str | None = conversation_id
        while current is not None:
            used = not dry_run and s.one(LOCK_UNUSED, id=current) is None
            if used or _is_needed(s, current, cutoff, gone):
                spared.add(current)
                break
            gone.add(current)
            deleted += [row[0] for row in s.all(SESSIONS_OF, id=current)]
            if not dry_run:
                _delete(s, current)
            # a clock that was set back makes a parent look younger than its fork: look at it again
            parent = parents[current]
            current = parent if parent in spared else None
    return deleted


def _is_needed(s: Scope, conversation_id: str, cutoff: Instant, gone: set[str]) -> bool:
    """By a session that is not old and final, or by a fork that stays."""
    if s.one(LIVING, id=conversation_id, cutoff=cutoff) is not None:
        return True
    return any(row[0] not in gone for row in s.all(CHILD_CONVERSATIONS, id=conversation_id))


def _delete(s: Scope, conversation_id: str) -> None:
    for statement in DELETE_CONVERSATION:
        s.run(statement, id=conversation_id)


def remove(s: Scope, session_id: str) -> None:
    """One session and its conversation, for good. Refuses while anything else needs it."""
    # without reading all of it: a row that cannot be understood can still be removed
    conversation_id = history.lock_of_session(s, session_id).id
    row = s.one(LOCK_OWNER, id=session_id)
    if row is not None and row[0] is not None:
        raise Busy(f"session {session_id}", row[0])
    forks = [row[0] for row in s.all(FORKS_OF, id=conversation_id)]
    if forks:
        raise Conflict(f"session {session_id} has forks: remove them first ({', '.join(forks)})", forks=forks)
    others = [row[0] for row in s.all(SESSIONS_OF, id=conversation_id) if row[0] != session_id]
    if others:
        raise Conflict(f"other agents share its conversation: {', '.join(others)}", sessions=others)
    _delete(s, conversation_id)

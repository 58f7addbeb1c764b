"""Owns retention: abandoning idle sessions, deleting final ones, and removing a single one."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from holdfast.domain.phases import Phase
from holdfast.domain.sessions import CleanupReport, Old
from holdfast.domain.statistics import TotalKind
from holdfast.errors import Busy, Conflict
from holdfast.store.sql import history, session_statements, totals, vault
from holdfast.store.sql.scope import Scope

NOTHING_ASKED = """
NOT EXISTS (SELECT 1 FROM approvals a
    WHERE a.workspace = :ws AND a.session_id = sessions.id AND a.status = 'open'
        AND (a.expires_at IS NULL OR a.expires_at > :now))"""
_NOT_USED = "(program_until IS NULL OR program_until <= :now)"
CUTOFF = "CASE kind WHEN 'delegated' THEN CAST(:cutoff AS BIGINT) ELSE CAST(:conversations AS BIGINT) END"
# created_at is never later than updated_at, and unlike it has an index
IDLE_SESSIONS = f"""
SELECT id FROM sessions
WHERE workspace = :ws AND created_at < :latest AND updated_at < {CUTOFF} AND finalized_at IS NULL
    AND imported_at IS NULL AND lease_expires_at IS NULL AND head_seq IS NULL AND {_NOT_USED} AND {NOTHING_ASKED}
ORDER BY created_at"""
# what somebody is changing at this moment is not idle; and cleaning up, which needs many rows, never waits
STILL_IDLE = f"""
SELECT phase, agent FROM sessions
WHERE workspace = :ws AND id = :id AND updated_at < {CUTOFF} AND finalized_at IS NULL
    AND lease_expires_at IS NULL AND head_seq IS NULL AND {_NOT_USED} AND {NOTHING_ASKED} FOR UPDATE SKIP LOCKED"""
LOCK_UNUSED = """
SELECT id FROM conversations WHERE workspace = :ws AND id = :id FOR UPDATE SKIP LOCKED"""
FINAL = f"""
SELECT conversation_id FROM sessions
WHERE workspace = :ws AND created_at < :latest AND finalized_at IS NOT NULL AND finalized_at < {CUTOFF}
    AND imported_at IS NULL"""
# newest first, so that a fork goes before what it was forked from
FINAL_CONVERSATIONS = f"""
SELECT id, parent_id FROM conversations WHERE workspace = :ws AND id IN ({FINAL}) ORDER BY created_at DESC"""
# where no project is recorded, as for conversations, the directories that a session worked in count instead
PLACES = """
SELECT s.conversation_id, s.id, COALESCE(s.project, p.work_dir) FROM sessions s
LEFT JOIN pointers p ON p.workspace = s.workspace AND p.session_id = s.id AND s.project IS NULL
WHERE s.workspace = :ws AND s.created_at < :latest"""
SESSIONS_OF = "SELECT id, agent FROM sessions WHERE workspace = :ws AND conversation_id = :id"
FORKS_OF = """
SELECT id FROM sessions WHERE workspace = :ws AND conversation_id IN
    (SELECT id FROM conversations WHERE workspace = :ws AND parent_id = :id)"""
SUBAGENTS_OF = """
SELECT conversation_id FROM sessions INDEXED BY sessions_by_parent
WHERE workspace = :ws AND parent_session_id = :id AND kind = 'subagent'"""
CHILD_CONVERSATIONS = "SELECT id FROM conversations WHERE workspace = :ws AND parent_id = :id"
LIVING = f"""
SELECT 1 FROM sessions
WHERE workspace = :ws AND conversation_id = :id
    AND (finalized_at IS NULL OR finalized_at >= {CUTOFF} OR lease_expires_at IS NOT NULL
        OR imported_at IS NOT NULL)
LIMIT 1"""
LOCK_OWNER = """
SELECT COALESCE(lease_owner, CASE WHEN program_until > :now THEN program_owner END), agent FROM sessions
WHERE workspace = :ws AND id = :id FOR UPDATE"""
_SESSIONS = "SELECT id FROM sessions WHERE workspace = :ws AND conversation_id = :id"
DELETE_CONVERSATION = (
    # an import does not bring back what was deleted
    f"""INSERT INTO tombstones (workspace, provider, provider_session_id, removed_at)
    SELECT workspace, provider, id, :now FROM provider_sessions INDEXED BY provider_sessions_by_session
    WHERE workspace = :ws AND session_id IN ({_SESSIONS})
    ON CONFLICT DO NOTHING""",
    f"""UPDATE sources INDEXED BY sources_of_sessions SET session_id = NULL, reason = 'removed'
    WHERE workspace = :ws AND session_id IN ({_SESSIONS})""",
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
    """DELETE FROM calls WHERE workspace = :ws AND session_id IN
        (SELECT id FROM sessions WHERE workspace = :ws AND conversation_id = :id)""",
    "DELETE FROM sessions WHERE workspace = :ws AND conversation_id = :id",
    "DELETE FROM conversations WHERE workspace = :ws AND id = :id",
)

#: of conversations and sessions; others wait no longer than for these
BATCH = 500


class Cleaning:
    """What there is to clean up, found at once and taken away in batches, each in a transaction of its own.

    Between two of them anything may happen: each batch looks again at what it takes. Final sessions
    go first, so that what is abandoned now stays readable until the next time.
    """

    def __init__(self, s: Scope, old: Old, *, dry_run: bool) -> None:
        self._dry_run = dry_run
        # no instant is before 0: what is kept is never old
        self._cutoffs = {"cutoff": old.cutoff, "conversations": old.conversations or 0}
        looked_at: dict[str, object] = {"latest": max(self._cutoffs.values()), **self._cutoffs}
        self._parents: dict[str, str | None] = dict(s.all(FINAL_CONVERSATIONS, **looked_at))
        idle = dict.fromkeys(id_ for (id_,) in s.all(IDLE_SESSIONS, now=s.now, **looked_at))
        self._places: tuple[str, ...] = ()
        if old.project is not None:
            # sessions that are too young to be looked at need their conversation anyway
            found = s.all(PLACES, latest=looked_at["latest"])
            places = {place for *_, place in found if _is_inside(place, old.project)}
            self._places = tuple(sorted(places))
            ours = places if old.places is None else places.intersection(old.places)
            for conversation_id, session_id, place in found:
                if place not in ours:
                    self._parents.pop(conversation_id, None)
                    idle.pop(session_id, None)
        self._final = deque(self._parents)
        self._idle = deque(idle)
        self._gone: set[str] = set()
        self._taken: list[str] = []  #: conversations of this batch, forks before what they were forked from
        self._spared: set[str] = set()
        self._deleted: list[str] = []
        self._abandoned: list[str] = []
        self._counted: Counter[tuple[str, str]] = Counter()  #: of this batch, by agent and what was done

    @property
    def goes_on(self) -> bool:
        return bool(self._final or self._idle)

    @property
    def report(self) -> CleanupReport:
        return CleanupReport(tuple(self._abandoned), tuple(self._deleted), self._places)

    def next_batch(self, s: Scope) -> None:
        for _ in range(BATCH):
            if self._final:
                self._take_with_parents(s, self._final.popleft())
            elif self._idle:
                self._abandon(s, self._idle.popleft())
        if self._dry_run:
            return
        _delete(s, self._taken)
        # sorted, as in ``totals``: two that clean up at once do not wait for each other in a circle
        for (agent, action), number in sorted(self._counted.items(), key=str):
            totals.count(s, TotalKind.CLEANUP, action, number, agent=agent)
        self._taken, self._counted = [], Counter()

    def _take_with_parents(self, s: Scope, conversation_id: str) -> None:
        current: str | None = conversation_id
        while current is not None:
            if self._is_needed(s, current):
                self._spared.add(current)
                return
            self._gone.add(current)
            for session_id, agent in s.all(SESSIONS_OF, id=current):
                self._deleted.append(session_id)
                self._counted[agent, "deleted"] += 1
            self._taken.append(current)
            # a clock that was set back makes a parent look younger than its fork: look at it again
            parent = self._parents[current]
            current = parent if parent in self._spared else None

    def _is_needed(self, s: Scope, conversation_id: str) -> bool:
        """True if someone uses it just now, or a session that is not old and final, or a fork that stays, needs it."""
        if not self._dry_run and s.one(LOCK_UNUSED, id=conversation_id) is None:
            return True
        if s.one(LIVING, id=conversation_id, **self._cutoffs) is not None:
            return True
        return any(fork not in self._gone for (fork,) in s.all(CHILD_CONVERSATIONS, id=conversation_id))

    def _abandon(self, s: Scope, session_id: str) -> None:
        if not self._dry_run:
            idle = s.one(STILL_IDLE, id=session_id, now=s.now, **self._cutoffs)
            if idle is None:
                return
            phase, agent = idle
            self._counted[agent, "abandoned"] += 1
            session_statements.close(s, session_id, phase, Phase.ABANDONED)
        self._abandoned.append(session_id)


def _is_inside(place: str | None, project: str) -> bool:
    return place is not None and (place == project or place.startswith(project.rstrip("/") + "/"))


def _delete(s: Scope, conversation_ids: Sequence[str]) -> None:
    """In this order; they stay counted."""
    totals.fold(s, conversation_ids)
    for conversation_id in conversation_ids:
        kept = vault.kept_by(s, conversation_id)
        for statement in DELETE_CONVERSATION:
            s.run(statement, id=conversation_id, now=s.now)
        vault.drop_unowned(s, kept)


def remove(s: Scope, session_id: str) -> None:
    """One session and its conversation, for good. Refuses while anything else needs it."""
    # without reading all of it: a row that cannot be understood can still be removed
    conversation_id = history.lock_of_session(s, session_id).id
    owner, agent = s.one(LOCK_OWNER, id=session_id, now=s.now) or (None, "")
    if owner is not None:
        raise Busy(f"session {session_id}", owner)
    forks = [fork for (fork,) in s.all(FORKS_OF, id=conversation_id)]
    if forks:
        raise Conflict(f"session {session_id} has forks: remove them first ({', '.join(forks)})", forks=forks)
    others = [other for other, _ in s.all(SESSIONS_OF, id=conversation_id) if other != session_id]
    if others:
        raise Conflict(f"other agents share its conversation: {', '.join(others)}", sessions=others)
    below = [conversation for (conversation,) in s.all(SUBAGENTS_OF, id=session_id)]
    _delete(s, [*below, conversation_id])
    totals.count(s, TotalKind.CLEANUP, "removed", agent=agent)

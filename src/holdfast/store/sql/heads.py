"""Owns the heads of the queue: which turn of a session is next, when it can run, and which one a claim gets."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.clock import SECOND, after
from holdfast.domain.policy import MAX_SECONDS
from holdfast.domain.turns import AttemptCause, ClaimRequest, TurnStatus
from holdfast.errors import InvalidInput
from holdfast.store.driver import Row
from holdfast.store.sql import attempts, leases
from holdfast.store.sql.rows import cut
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.sessions import ROWS as SESSION
from holdfast.store.sql.tables import SESSIONS, TURNS

_HEAD = TURNS.pick("seq", "provider", "runtime_id", "priority", "not_before", "status", "next_cause").of("t")
HEAD = f"""
SELECT {_HEAD.sql}, p.runtime_id AS ran_on
FROM turns t INDEXED BY open_turns
LEFT JOIN pointers p ON p.workspace = t.workspace AND p.session_id = t.session_id AND p.provider = t.provider
WHERE t.workspace = :ws AND t.conversation_id = :conversation_id AND t.session_id = :session_id
    AND t.status IN ('queued', 'claimed', 'running', 'waiting')
ORDER BY t.seq LIMIT 1"""
HEAD_COLUMNS = """head_seq = :seq, head_provider = :provider, head_runtime_id = :runtime_id,
    head_kept = :kept, head_priority = :priority, ready_at = :ready_at, wake_at = :wake_at"""
# a head that was ready before keeps its place in the queue: it has waited for its runtime since then
SET_HEAD = f"""
UPDATE sessions SET {HEAD_COLUMNS}
WHERE workspace = :ws AND id = :session_id AND (head_seq = :seq AND ready_at IS NOT NULL) IS NOT TRUE"""
ANY_READY = """
SELECT 1 FROM sessions INDEXED BY ready_heads WHERE workspace = :ws AND ready_at IS NOT NULL LIMIT 1"""

# materialized, or PostgreSQL may run it more than once, and so exceed its limit
WAKE = """
WITH due AS MATERIALIZED (
    SELECT id FROM sessions
    WHERE workspace = :ws AND head_provider = :provider AND wake_at IS NOT NULL AND wake_at <= :now
    ORDER BY wake_at LIMIT :limit FOR UPDATE SKIP LOCKED)
UPDATE sessions SET ready_at = wake_at, wake_at = NULL
WHERE workspace = :ws AND id IN (SELECT id FROM due)"""
ANY_DUE = """
SELECT 1 FROM sessions
WHERE workspace = :ws AND head_provider = :provider AND wake_at IS NOT NULL AND wake_at <= :now LIMIT 1"""
# heads that wait, and were put there at a time that has not come yet: the clock was set back since
STEPPED = """
    SELECT id, conversation_id, head_seq, updated_at FROM sessions
    WHERE workspace = :ws AND head_provider = :provider AND wake_at IS NOT NULL AND wake_at > :now
        AND updated_at > :ahead"""
SHIFT_TURNS = f"""
WITH stepped AS MATERIALIZED ({STEPPED})
UPDATE turns SET not_before = not_before - (
    SELECT x.updated_at FROM stepped x WHERE x.conversation_id = turns.conversation_id AND x.head_seq = turns.seq)
    + :now
WHERE workspace = :ws AND not_before > :now
    AND (conversation_id, seq) IN (SELECT conversation_id, head_seq FROM stepped)"""
SHIFT_HEADS = f"""
WITH stepped AS MATERIALIZED ({STEPPED})
UPDATE sessions SET wake_at = wake_at - updated_at + :now, updated_at = :now
WHERE workspace = :ws AND id IN (SELECT id FROM stepped)"""
# heads that are kept for their runtime since a time that has not come yet. They stay in order
SHIFT_KEPT = """
WITH stepped AS MATERIALIZED (
    SELECT id, ready_at FROM sessions
    WHERE workspace = :ws AND head_provider = :provider AND head_kept AND ready_at IS NOT NULL
        AND ready_at > :ahead)
UPDATE sessions SET ready_at = ready_at - (SELECT MAX(x.ready_at) FROM stepped x) + :now
WHERE workspace = :ws AND id IN (SELECT id FROM stepped)"""
# SQLite sorts what is no number above every number: such a head would come first, and is never picked
READY = """ready_at IS NOT NULL AND ready_at <= 9223372036854775807
    AND head_priority <= 9223372036854775807"""
#: what a claim needs besides the session itself
PICKED = SESSIONS.pick("head_seq", "fence", "head_priority").present() + SESSIONS.pick("ready_at")
_PICKED = f"{SESSION.sql}, {PICKED.sql}"


def _best(runtime_id: str) -> str:
    return f"""
    SELECT {_PICKED} FROM sessions
    WHERE workspace = :ws AND head_provider = :provider AND head_runtime_id = {runtime_id}
        AND {READY}
    ORDER BY head_priority DESC, ready_at LIMIT 1 FOR UPDATE SKIP LOCKED"""


KEPT = "workspace = :ws AND head_provider = :provider AND head_kept AND ready_at IS NOT NULL"
# The best head that is kept for a runtime, whichever it is, since :kept_since or longer. Of each priority only the
# oldest one is looked at, from the highest of :levels priorities down: if that one is too young, so are all others of
# its priority. One bound for each column: SQLite uses the first one alone to search an index.
BEST_KEPT = f"""
WITH RECURSIVE levels (number, priority) AS (
    SELECT 1, MAX(head_priority) FROM sessions WHERE {KEPT} AND head_priority <= 9223372036854775807
    UNION ALL
    SELECT number + 1,
        (SELECT MAX(head_priority) FROM sessions WHERE {KEPT} AND head_priority < levels.priority)
    FROM levels WHERE number < :levels
        AND (SELECT MIN(ready_at) FROM sessions WHERE {KEPT} AND head_priority = levels.priority) > :kept_since)
SELECT {_PICKED} FROM sessions
WHERE {KEPT} AND head_priority = (SELECT MIN(priority) FROM levels) AND ready_at <= :kept_since
ORDER BY ready_at LIMIT 1 FOR UPDATE SKIP LOCKED"""
# the best of the heads for this runtime, of those that anyone may run, and of those that waited long enough for another
PICK = f"""
SELECT * FROM ({_best(":runtime_id")}) AS mine UNION ALL SELECT * FROM ({_best("''")}) AS anyones
UNION ALL SELECT * FROM ({BEST_KEPT}) AS others"""
PICK_SESSION = f"""
SELECT {_PICKED} FROM sessions
WHERE workspace = :ws AND id = :session_id AND head_provider = :provider
    AND (head_runtime_id IN (:runtime_id, '') OR head_kept) AND head_priority <= 9223372036854775807
    AND (ready_at <= 9223372036854775807 OR wake_at <= :now) FOR UPDATE SKIP LOCKED"""
POSTPONE = "UPDATE sessions SET ready_at = NULL, wake_at = :wake_at WHERE workspace = :ws AND id = :id"

_NO_HEAD: dict[str, object] = dict.fromkeys(
    ("seq", "provider", "runtime_id", "kept", "priority", "ready_at", "wake_at")
)
#: heads that cannot run now are passed over, but a claim looks at no more than this many
MAX_CANDIDATES = 16
#: fewer heads wake than a claim passes over, so that the heads behind them are reached in the end
MAX_WOKEN = 8
#: priorities at which a claim looks for a head that has waited long enough for another runtime
MAX_LEVELS = 64
#: clocks that are merely corrected move by less
_STEP_SECONDS = 2.0
#: after every moment: a claim that leaves nothing to others does not depend on their clocks
_ANY_TIME = 2**63 - 1


class Taker(NamedTuple):
    """A worker that looks for its next turn as soon as the transaction is over, and need not be notified of one."""

    provider: str
    runtime_id: str | None

    def takes(self, provider: str, runtime_id: str) -> bool:
        return provider == self.provider and runtime_id in ("", self.runtime_id)


def promote_head(s: Scope, conversation_id: str, session_id: str, taker: Taker | None = None) -> None:
    """Keep the session's oldest open turn in the session's own row, so that a claim need not look for it."""
    s.run(SET_HEAD, session_id=session_id, **next_head(s, conversation_id, session_id, taker))


def next_head(
    s: Scope, conversation_id: str, session_id: str, taker: Taker | None = None
) -> dict[str, object]:
    """The parameters of ``HEAD_COLUMNS``.

    A head that waits holds its session: turns never overtake each other. One that acts on an answer can
    do so only where the call is, so nobody else gets it. Any other head is kept for the runtime that its
    session ran on; each claim says for how long. Workers are told of a head that can run now, unless
    the ``taker`` is there for it.
    """
    row = s.one(HEAD, conversation_id=conversation_id, session_id=session_id)
    if row is None:
        return _NO_HEAD
    head, (ran_on,) = cut(row, _HEAD)
    seq, provider, pinned_to, priority, not_before, status, cause = _HEAD.checked(
        s.where, head, "turn", row[0], "of", session_id
    )
    if cause == AttemptCause.APPROVAL:
        _, pinned_to = attempts.deferred_in(s, conversation_id, seq)
    kept = pinned_to is None and isinstance(ran_on, str)
    ready_at = wake_at = None
    if status == TurnStatus.QUEUED:
        if not_before is not None and not_before > s.now:
            wake_at = not_before
        else:
            ready_at = s.now
    runtime_id = ran_on if kept else pinned_to or ""
    if ready_at is not None and not (taker and taker.takes(provider, runtime_id)):
        s.ring()
    return {
        "seq": seq, "provider": provider, "runtime_id": runtime_id, "kept": kept, "priority": priority,
        "ready_at": ready_at, "wake_at": wake_at,
    }  # fmt: skip


def check_request(request: ClaimRequest) -> None:
    leases.check_seconds(request.lease_seconds)
    affinity = request.affinity_seconds
    if affinity is not None and not 0 <= affinity <= MAX_SECONDS:
        raise InvalidInput("affinity_seconds", f"must be from 0 to {MAX_SECONDS:g}")


class QueueMemory:
    """What a store remembers from one claim to the next, for each workspace and provider."""

    def __init__(self) -> None:
        self._clock: dict[tuple[str, str], int] = {}
        self._empty: set[tuple[str, str]] = set()

    def clock_may_have_stepped(self, workspace: str, provider: str, now: int) -> bool:
        """Whether the clock may have been set back since the last claim. True before the first one, and until ``set_clock``."""
        before = self._clock.get((workspace, provider))
        if before is None or now < before - SECOND:
            return True
        self.set_clock(workspace, provider, now)
        return False

    def set_clock(self, workspace: str, provider: str, now: int) -> None:
        self._clock[workspace, provider] = now

    def was_empty(self, workspace: str, provider: str) -> bool:
        """The last claim got nothing: then it pays to look before the next one."""
        return (workspace, provider) in self._empty

    def note_claim(self, workspace: str, provider: str, *, got_nothing: bool) -> None:
        (self._empty.add if got_nothing else self._empty.discard)((workspace, provider))


def mend_waits(s: Scope, provider: str, memory: QueueMemory) -> None:
    """Begin waits again if the clock was set back: otherwise they would last longer than was asked for."""
    if not memory.clock_may_have_stepped(s.ws, provider, s.now):
        return
    ahead = after(s.now, _STEP_SECONDS)
    for statement in (SHIFT_TURNS, SHIFT_HEADS, SHIFT_KEPT):
        s.run(statement, provider=provider, now=s.now, ahead=ahead)
    memory.set_clock(s.ws, provider, s.now)


def any_ready(s: Scope) -> bool:
    return s.one(ANY_READY) is not None


def nothing_for(s: Scope, request: ClaimRequest, memory: QueueMemory) -> bool:
    """Only reads. True: a claim would get nothing, and change nothing."""
    check_request(request)
    provider = request.runtime.provider
    return not (
        request.session_id is not None
        or memory.clock_may_have_stepped(s.ws, provider, s.now)
        or attempts.open_claim(s, request.key) is not None
        or s.one(ANY_DUE, provider=provider, now=s.now) is not None
        or pick(s, request) is not None
    )


def wake(s: Scope, provider: str) -> None:
    s.run(WAKE, provider=provider, now=s.now, limit=MAX_WOKEN)


def pick(s: Scope, request: ClaimRequest) -> Row | None:
    """A session whose head comes next, and ``PICKED`` of it. It is locked; what others have locked is not seen."""
    runtime = request.runtime
    if request.session_id is not None:
        return s.one(
            PICK_SESSION, provider=runtime.provider, runtime_id=runtime.id, session_id=request.session_id,
            now=s.now,
        )  # fmt: skip
    affinity = request.affinity_seconds
    if affinity is None:
        affinity = s.policy.queue.affinity_seconds
    kept_since = after(s.now, -affinity) if affinity else _ANY_TIME
    found = s.all(
        PICK, provider=runtime.provider, runtime_id=runtime.id, kept_since=kept_since, levels=MAX_LEVELS
    )
    return min(found, key=_rank, default=None)


def _rank(head: Row) -> tuple[int, int]:
    *_, priority, ready_at = head
    return -priority, ready_at


def postpone(s: Scope, session_id: str) -> None:
    s.run(POSTPONE, id=session_id, wake_at=after(s.now, s.policy.queue.lock_delay_seconds))

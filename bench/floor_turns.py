"""Owns the floor for turns: recording them, and the way through the queue under a lease."""

from __future__ import annotations

import json
import os

from bench import workload as w
from bench.floor_sessions import FINAL, SESSION, Connection, FloorSessions, Row

CAPABILITIES = json.dumps(
    ["can_resume", "can_fork", "chooses_id", "append_only_transcript"], separators=(",", ":")
)
REQUEST = json.dumps({"work_dir": w.WORK_DIR, "model": w.MODEL}, separators=(",", ":"))
TRANSCRIPT = json.dumps(w.TRANSCRIPT, separators=(",", ":"))
NOTHING_TO_RESUME = '[["no_pointer","failed","fresh","nothing to resume is recorded"]]'


class FloorTurns(FloorSessions):
    def record_turn(self, session_id: str) -> int:
        now = self._clock()
        with self._transaction() as c:
            conversation_id, seq, revision, generation = self._next_turn(c, session_id)
            self._insert_turn(c, session_id, conversation_id, seq, "done", generation, now, now)
            self._insert_message(c, conversation_id, seq, "prompt", revision, w.PROMPT)
            self._insert_message(c, conversation_id, seq, "response", revision, w.RESPONSE)
            c.execute(
                "UPDATE sessions SET updated_at = ?, error_count = 0, input_tokens = input_tokens + ?,"
                " cached_input_tokens = cached_input_tokens + ?, output_tokens = output_tokens + ?,"
                " cost_usd = cost_usd + ? WHERE workspace = ? AND id = ?",
                (now, 300, 100, 250, 0.01, w.WORKSPACE, session_id),
            )
            return seq

    def _next_turn(self, c: Connection, session_id: str) -> tuple[str, int, int, int]:
        phase, conversation_id, seq, revision, generation = c.execute(
            "SELECT s.phase, c.id, c.next_seq, c.revision, c.generation FROM sessions s"
            " JOIN conversations c ON c.workspace = s.workspace AND c.id = s.conversation_id"
            " WHERE s.workspace = ? AND s.id = ? /*lock*/",
            (w.WORKSPACE, session_id),
        ).fetchone()
        if phase in FINAL:
            raise RuntimeError("the session is closed")
        c.execute(
            "UPDATE conversations SET next_seq = ? WHERE workspace = ? AND id = ?",
            (seq + 1, w.WORKSPACE, conversation_id),
        )
        return conversation_id, seq, revision, generation

    def _insert_turn(  # noqa: PLR0913 - the columns that differ
        self,
        c: Connection,
        session_id: str,
        conversation_id: str,
        seq: int,
        status: str,
        generation: int,
        now: int,
        ended_at: int | None,
    ) -> None:
        c.execute(
            "INSERT INTO turns (workspace, conversation_id, seq, session_id, provider, status, request,"
            " priority, foreground, attempts, tries, max_attempts, next_cause, generation, created_at, ended_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, 0, FALSE, 0, 0, 3, 'first', ?, ?, ?)",
            (
                w.WORKSPACE, conversation_id, seq, session_id, w.PROVIDER, status, REQUEST, generation, now,
                ended_at,
            ),
        )  # fmt: skip

    def _insert_message(
        self, c: Connection, conversation_id: str, seq: int, role: str, revision: int, text: str
    ) -> None:
        c.execute(
            "INSERT INTO messages (workspace, conversation_id, seq, role, revision, text)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (w.WORKSPACE, conversation_id, seq, role, revision, text),
        )

    def queue_turn(self, session_id: str) -> None:
        self.enqueue(session_id)
        claimed = self.claim()
        assert claimed is not None
        self.finish(*claimed)

    def enqueue(self, session_id: str, notice: str | None = None) -> None:
        """``notice``: a statement that tells those who wait; only PostgreSQL has one."""
        now = self._clock()
        with self._transaction() as c:
            conversation_id, seq, revision, generation = self._next_turn(c, session_id)
            self._insert_turn(c, session_id, conversation_id, seq, "queued", generation, now, None)
            self._insert_message(c, conversation_id, seq, "prompt", revision, w.PROMPT)
            self._promote_head(c, session_id, conversation_id, now)
            if notice is not None:
                c.execute(notice)

    def claim(self) -> tuple[str, str, int, int, int] | None:
        """Pick the best head, decide, open the attempt, take the lease. None: nothing is free.

        The worker is handed what Holdfast's claim carries: the session, the conversation, the pointer, and what was tried
        since the newest answer.
        """
        now = self._clock()
        self._claims += 1
        key = f"claim-{self._claims}"
        with self._transaction() as c:
            self._refuse_repeated(c, key)
            picked = self._pick(c, now)
            if picked is None:
                return None
            session_id, conversation_id, seq, fence = picked
            number, revision, generation = self._read_head(c, conversation_id, seq)
            resumed = self._resumable(c, session_id, revision, generation, now)
            self._read_tried(c, session_id, fence)
            self._insert_attempt(
                c, (session_id, conversation_id, seq, number, fence), resumed, (revision, generation), now
            )
            if resumed is not None:
                self._hold(c, session_id, resumed, fence, now)
            c.execute(
                "UPDATE turns SET status = 'claimed', attempts = ?, tries = tries + 1"
                " WHERE workspace = ? AND conversation_id = ? AND seq = ?",
                (number, w.WORKSPACE, conversation_id, seq),
            )
            c.execute(
                "UPDATE sessions SET fence = ?, lease_owner = ?, lease_expires_at = ?, ready_at = NULL,"
                " wake_at = NULL, updated_at = ? WHERE workspace = ? AND id = ?",
                (fence, w.OWNER, now + round(w.LEASE_SECONDS * 1e6), now, w.WORKSPACE, session_id),
            )
            return session_id, conversation_id, seq, number, fence

    def _refuse_repeated(self, c: Connection, key: str) -> None:
        known = c.execute(
            "SELECT session_id, fence FROM attempts WHERE workspace = ? AND claim_key = ? AND status = 'open'",
            (w.WORKSPACE, key),
        ).fetchone()
        if known is not None:
            raise RuntimeError("this claim was answered already; the floor does not answer again")

    def _pick(self, c: Connection, now: int) -> tuple[str, str, int, int] | None:
        c.execute(
            "UPDATE sessions SET ready_at = wake_at, wake_at = NULL"
            " WHERE workspace = ? AND wake_at IS NOT NULL AND wake_at <= ?",
            (w.WORKSPACE, now),
        )
        c.execute(
            "INSERT INTO runtimes (workspace, id, machine, provider, distribution, home, version,"
            " capabilities, first_seen_at, last_seen_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT DO NOTHING",
            (
                w.WORKSPACE, self._runtime_id, w.RUNTIME.machine, w.PROVIDER, w.RUNTIME.distribution,
                w.RUNTIME.home, w.RUNTIME.version, CAPABILITIES, now, now,
            ),
        )  # fmt: skip
        heads = []
        for runtime_id in (self._runtime_id, ""):
            heads += c.execute(
                f"SELECT head_priority, ready_at, head_seq, fence, {SESSION} FROM sessions"
                " WHERE workspace = ? AND head_provider = ? AND head_runtime_id = ? AND ready_at IS NOT NULL"
                " ORDER BY head_priority DESC, ready_at LIMIT 1 /*lock skip*/",
                (w.WORKSPACE, w.PROVIDER, runtime_id),
            ).fetchall()
        if not heads:
            return None
        best = min(heads, key=lambda head: (-head[0], head[1]))
        _, _, seq, fence, session_id, conversation_id, *_ = best
        json.loads(best[13])  # the metadata
        return session_id, conversation_id, seq, fence + 1

    def _read_head(self, c: Connection, conversation_id: str, seq: int) -> tuple[int, int, int]:
        """The turn with its prompt, where the history stands, and whether people were ever asked for something."""
        turn = c.execute(
            "SELECT attempts, request, EXISTS (SELECT 1 FROM approvals p"
            " WHERE p.workspace = t.workspace AND p.session_id = t.session_id)"
            " FROM turns t WHERE workspace = ? AND conversation_id = ? AND seq = ?",
            (w.WORKSPACE, conversation_id, seq),
        ).fetchone()
        json.loads(turn[1])
        c.execute(
            "SELECT text FROM messages WHERE workspace = ? AND conversation_id = ? AND seq = ?"
            " AND role = 'prompt' ORDER BY revision DESC LIMIT 1",
            (w.WORKSPACE, conversation_id, seq),
        ).fetchone()
        revision, generation, *_ = c.execute(
            "SELECT revision, generation, parent_id, fork_seq, fork_revision, next_seq, created_at"
            " FROM conversations WHERE workspace = ? AND id = ?",
            (w.WORKSPACE, conversation_id),
        ).fetchone()
        return turn[0] + 1, revision, generation

    def _read_tried(self, c: Connection, session_id: str, fence: int) -> list[Row]:
        """The attempts since the newest turn that was answered, and that turn's own; oldest first."""
        newest = (
            "SELECT a.seq, a.number, a.fence, a.provider, a.status, a.decision, a.provider_session_id, a.forked_from,"
            " a.work_dir, a.model, a.rights, a.process IS NOT NULL, a.transcript IS NOT NULL, a.failure_class, a.error,"
            " a.started_at, t.status, t.dropped, t.failure_class, t.error, t.request"
            " FROM attempts a JOIN turns t"
            " ON t.workspace = a.workspace AND t.conversation_id = a.conversation_id AND t.seq = a.seq"
            " WHERE a.workspace = ? AND a.session_id = ? AND a.fence < ? ORDER BY a.fence DESC LIMIT ?"
        )
        tried = c.execute(newest, (w.WORKSPACE, session_id, fence, 1)).fetchall()
        if tried and (tried[0][16] != "done" or tried[0][1] > 1):
            raise RuntimeError("the floor knows turns only that were answered by their first attempt")
        for row in tried:
            json.loads(row[20])
        return list(tried)

    def _resumable(
        self, c: Connection, session_id: str, revision: int, generation: int, now: int
    ) -> str | None:
        """The provider session to go on with, by the handful of checks a person would write."""
        pointer = c.execute(
            "SELECT provider_session_id, runtime_id, epoch, generation, work_dir, model, rights, seen, transcript,"
            " version, context_tokens, context_window, fork_seq, updated_at"
            " FROM pointers WHERE workspace = ? AND session_id = ? AND provider = ?",
            (w.WORKSPACE, session_id, w.PROVIDER),
        ).fetchone()
        if pointer is None or pointer[1:4] != (self._runtime_id, revision, generation):
            return None
        state = c.execute(
            "SELECT p.errors, p.retired_reason, h.id FROM provider_sessions p"
            " LEFT JOIN sessions h ON h.workspace = p.workspace AND h.id = p.holder_session_id"
            " AND h.fence = p.holder_fence AND h.lease_expires_at > ?"
            " WHERE p.workspace = ? AND p.provider = ? AND p.id = ?",
            (now, w.WORKSPACE, w.PROVIDER, pointer[0]),
        ).fetchone()
        if state is not None and (
            state[0] >= 3 or state[1] is not None or state[2] not in (None, session_id)
        ):
            return None
        return str(pointer[0])

    def _insert_attempt(
        self,
        c: Connection,
        key: tuple[str, str, int, int, int],
        resumed: str | None,
        stand: tuple[int, int],
        now: int,
    ) -> None:
        session_id, conversation_id, seq, number, fence = key
        earlier_open = c.execute(
            "SELECT seq FROM turns INDEXED BY open_turns WHERE workspace = ? AND conversation_id = ?"
            " AND status IN ('queued', 'claimed', 'running', 'waiting') AND seq < ?",
            (w.WORKSPACE, conversation_id, seq),
        ).fetchall()
        if earlier_open:
            raise RuntimeError("the floor knows one session in a conversation only")
        c.execute(
            "INSERT INTO attempts (workspace, conversation_id, seq, number, session_id, provider, runtime_id,"
            " version, owner, claim_key, fence, cause, status, decision, reason, evidence,"
            " provider_session_id, work_dir, model, rights, epoch, generation, seen, started_at, id)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'first', 'open', ?, ?, ?, ?, ?, ?, '{}', ?, ?, ?, ?, ?)",
            (
                w.WORKSPACE, conversation_id, seq, number, session_id, w.PROVIDER, self._runtime_id,
                w.RUNTIME.version, w.OWNER, f"claim-{self._claims}", fence,
                "fresh" if resumed is None else "resume", "no_pointer" if resumed is None else "resumable",
                NOTHING_TO_RESUME if resumed is None else "[]", resumed, w.WORK_DIR, w.MODEL, *stand,
                "1" if seq == 1 else f"1-{seq}", now, os.urandom(8).hex(),
            ),
        )  # fmt: skip

    def _hold(self, c: Connection, session_id: str, provider_session: str, fence: int, now: int) -> None:
        c.execute(
            "INSERT INTO provider_sessions (workspace, provider, id, session_id, first_seen_at, last_seen_at,"
            " holder_session_id, holder_fence) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (workspace, provider, id) DO UPDATE SET last_seen_at = excluded.last_seen_at,"
            " holder_session_id = excluded.holder_session_id, holder_fence = excluded.holder_fence",
            (w.WORKSPACE, w.PROVIDER, provider_session, session_id, now, now, session_id, fence),
        )

    def finish(self, session_id: str, conversation_id: str, seq: int, number: int, fence: int) -> None:
        """Turn end, response, usage, pointer, counters and queue, as one; only under the lease."""
        now = self._clock()
        provider_session = w.provider_session_of(session_id)
        with self._transaction() as c:
            attempt, revision = self._held_attempt(c, (session_id, conversation_id, seq, number, fence))
            self._settle_provider_session(c, session_id, provider_session, now)
            self._move_pointer(c, session_id, provider_session, attempt, now)
            c.execute(
                "UPDATE attempts SET status = 'done', ended_at = ?, provider_session_id = ?, transcript = ?,"
                " input_tokens = 300, cached_input_tokens = 100, output_tokens = 250, cost_usd = 0.01"
                " WHERE workspace = ? AND conversation_id = ? AND seq = ? AND number = ?",
                (now, provider_session, TRANSCRIPT, w.WORKSPACE, conversation_id, seq, number),
            )
            self._insert_message(c, conversation_id, seq, "response", revision, w.RESPONSE)
            c.execute(
                "UPDATE turns SET status = 'done', ended_at = ?"
                " WHERE workspace = ? AND conversation_id = ? AND seq = ?",
                (now, w.WORKSPACE, conversation_id, seq),
            )
            c.execute(
                "UPDATE sessions SET error_count = 0, updated_at = ?, lease_owner = NULL,"
                " lease_expires_at = NULL, input_tokens = input_tokens + 300,"
                " cached_input_tokens = cached_input_tokens + 100, output_tokens = output_tokens + 250,"
                " cost_usd = cost_usd + 0.01 WHERE workspace = ? AND id = ?",
                (now, w.WORKSPACE, session_id),
            )
            self._promote_head(c, session_id, conversation_id, now)

    def _held_attempt(self, c: Connection, key: tuple[str, str, int, int, int]) -> tuple[Row, int]:
        session_id, conversation_id, seq, number, fence = key
        held = c.execute(
            "SELECT s.fence, s.lease_expires_at, c.revision FROM sessions s"
            " JOIN conversations c ON c.workspace = s.workspace AND c.id = s.conversation_id"
            " WHERE s.workspace = ? AND s.id = ? /*lock*/",
            (w.WORKSPACE, session_id),
        ).fetchone()
        if held[0] != fence or held[1] is None:
            raise RuntimeError("the lease is lost")
        attempt: Row = c.execute(
            "SELECT runtime_id, version, work_dir, model, epoch, generation, seen, rights, started_at"
            " FROM attempts WHERE workspace = ? AND conversation_id = ? AND seq = ? AND number = ?",
            (w.WORKSPACE, conversation_id, seq, number),
        ).fetchone()
        return attempt, held[2]

    def _settle_provider_session(
        self, c: Connection, session_id: str, provider_session: str, now: int
    ) -> None:
        c.execute(
            "INSERT INTO provider_sessions (workspace, provider, id, session_id, first_seen_at, last_seen_at,"
            " input_tokens, cached_input_tokens, output_tokens, cost_usd)"
            " VALUES (?, ?, ?, ?, ?, ?, 300, 100, 250, 0.01)"
            " ON CONFLICT (workspace, provider, id) DO UPDATE SET last_seen_at = excluded.last_seen_at,"
            " errors = 0, failed_resumes = 0, input_tokens = provider_sessions.input_tokens + 300,"
            " cached_input_tokens = provider_sessions.cached_input_tokens + 100,"
            " output_tokens = provider_sessions.output_tokens + 250,"
            " cost_usd = provider_sessions.cost_usd + 0.01",
            (w.WORKSPACE, w.PROVIDER, provider_session, session_id, now, now),
        )

    def _move_pointer(
        self, c: Connection, session_id: str, provider_session: str, attempt: Row, now: int
    ) -> None:
        """Unless the provider session was retired: such an id never becomes a pointer."""
        (retired,) = c.execute(
            "SELECT retired_reason FROM provider_sessions WHERE workspace = ? AND provider = ? AND id = ?",
            (w.WORKSPACE, w.PROVIDER, provider_session),
        ).fetchone()
        if retired is not None:
            return
        c.execute(
            "INSERT INTO pointers (workspace, session_id, provider, provider_session_id, runtime_id, version,"
            " work_dir, model, epoch, generation, seen, rights, transcript, updated_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (workspace, session_id, provider) DO UPDATE SET"
            " provider_session_id = excluded.provider_session_id, runtime_id = excluded.runtime_id,"
            " version = excluded.version, work_dir = excluded.work_dir, model = excluded.model,"
            " epoch = excluded.epoch, generation = excluded.generation, seen = excluded.seen,"
            " rights = excluded.rights, transcript = excluded.transcript, fork_seq = NULL, updated_at = excluded.updated_at",
            (w.WORKSPACE, session_id, w.PROVIDER, provider_session, *attempt[:8], TRANSCRIPT, now),
        )

    def read_history(self, session_id: str) -> dict[int, dict[str, str]]:
        """The newest text of each part of each turn that has not been dropped."""
        key = (w.WORKSPACE, w.conversation_of(session_id))
        turns: dict[int, dict[str, str]] = {
            seq: {"status": status}
            for seq, status in self._c.execute(
                "SELECT seq, status FROM turns WHERE workspace = ? AND conversation_id = ?"
                " AND dropped IS NULL ORDER BY seq",
                key,
            )
        }
        texts = self._c.execute(
            "SELECT seq, role, text FROM messages WHERE workspace = ? AND conversation_id = ?"
            " ORDER BY seq, role, revision",
            key,
        )
        for seq, role, text in texts:
            if seq in turns:
                turns[seq][role] = text
        return turns

    def explain(self, session_id: str) -> str | None:
        """The rows that the decision needs, and the same handful of checks as in the claim."""
        self._c.execute("BEGIN")
        try:
            row = self._c.execute(
                "SELECT s.phase, c.revision, c.generation, c.next_seq FROM sessions s"
                " JOIN conversations c ON c.workspace = s.workspace AND c.id = s.conversation_id"
                " WHERE s.workspace = ? AND s.id = ?",
                (w.WORKSPACE, session_id),
            ).fetchone()
            return self._resumable(self._c, session_id, row[1], row[2], self._clock())
        finally:
            self._c.execute("ROLLBACK")

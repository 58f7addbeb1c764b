"""Owns the one implementation of the Store contract: each verb is one transaction on a driver, but for cleaning up."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.clock import Instant
from holdfast.domain.conversations import Conversation, HistoryTurn
from holdfast.domain.decisions import Decision
from holdfast.domain.failures import Failure
from holdfast.domain.ids import ProviderSessionId, RuntimeId, SessionId, Workspace
from holdfast.domain.numbers import check_whole
from holdfast.domain.phases import Phase
from holdfast.domain.pointers import Pointer, ProviderSessionTotals, TranscriptMark
from holdfast.domain.policy import Policy
from holdfast.domain.retention import CleanupReport
from holdfast.domain.runtimes import Runtime
from holdfast.domain.sessions import (
    NewSession,
    PhaseChange,
    Session,
    SessionFilter,
    SessionPage,
    SessionUpdate,
)
from holdfast.domain.turns import (
    Attempt,
    Claim,
    ClaimRequest,
    Event,
    Heartbeat,
    LateReport,
    Launch,
    Lease,
    NewTurn,
    Orphan,
    Refusal,
    Turn,
    TurnEnd,
    TurnRequest,
)
from holdfast.domain.usage import Usage, check_report, check_usage
from holdfast.errors import InvalidInput
from holdfast.store.driver import Driver
from holdfast.store.sql import (
    attempts,
    claims,
    cleanup,
    endings,
    forks,
    history,
    leases,
    lifecycle,
    pointers,
    provider_sessions,
    runtimes,
    sessions,
    turns,
)
from holdfast.store.sql.scope import Scope


class SqlStore:
    """See ``contract.Store`` for what each verb promises."""

    def __init__(self, driver: Driver, workspace: Workspace, policy: Policy) -> None:
        self._driver = driver
        self._workspace = workspace
        self._policy = policy
        self.where = driver.where

    def _write(self) -> Scope:
        return Scope(self._driver.write(), self._workspace, self._policy, self.where)

    def _read(self) -> Scope:
        return Scope(self._driver.read(), self._workspace, self._policy, self.where)

    # --- sessions ---

    def create_session(self, new: NewSession) -> Session:
        with self._write() as s:
            return sessions.create(s, new)

    def get_session(self, session_id: str) -> Session:
        with self._read() as s:
            return sessions.get(s, session_id)

    def find_session(self, given: str) -> SessionId:
        with self._read() as s:
            return sessions.resolve(s, given)

    def phase_history(self, session_id: str) -> tuple[PhaseChange, ...]:
        with self._read() as s:
            return lifecycle.phase_history(s, session_id)

    def update_session(self, session_id: str, change: SessionUpdate) -> Session:
        with self._write() as s:
            return lifecycle.update(s, session_id, change)

    def finalize_session(self, session_id: str, outcome: Phase, summary: str | None) -> Session:
        if not outcome.is_final:
            raise InvalidInput("outcome", f"{outcome} is not a final phase")
        with self._write() as s:
            return lifecycle.update(s, session_id, SessionUpdate(phase=outcome), summary)

    def list_sessions(self, wanted: SessionFilter, limit: int, cursor: str | None = None) -> SessionPage:
        check_whole("limit", limit, lowest=1)
        with self._read() as s:
            return sessions.list_page(s, wanted, limit, cursor)

    def children(self, session_id: str) -> tuple[Session, ...]:
        with self._read() as s:
            return sessions.children(s, session_id)

    def rename_session(self, session_id: str, name: str | None) -> Session:
        with self._write() as s:
            return sessions.rename(s, session_id, name)

    def remove_session(self, session_id: str) -> None:
        with self._write() as s:
            cleanup.remove(s, session_id)

    def clean_up(self, cutoff: Instant, *, dry_run: bool = False) -> CleanupReport:
        with self._read() as s:
            cleaning = cleanup.Cleaning(s, cutoff, dry_run=dry_run)
            while dry_run and cleaning.goes_on:
                cleaning.next_batch(s)
        while cleaning.goes_on:
            with self._write() as s:
                cleaning.next_batch(s)
        return cleaning.report

    # --- conversations ---

    def get_conversation(self, conversation_id: str) -> Conversation:
        with self._read() as s:
            return history.get(s, conversation_id)

    def history(
        self, conversation_id: str, *, first: int = 1, last: int | None = None, limit: int | None = None
    ) -> tuple[HistoryTurn, ...]:
        check_whole("first", first)
        for field, given in (("last", last), ("limit", limit)):
            if given is not None:
                check_whole(field, given)
        with self._read() as s:
            conversation = history.get(s, conversation_id)
            past = history.LAST_SEQ
            up_to, at_most = (past if given is None else given for given in (last, limit))
            return tuple(history.read(s, conversation, first=first, last=up_to, limit=at_most))

    def edit_turn(
        self, session_id: str, seq: int, *, prompt: str | None = None, response: str | None = None
    ) -> HistoryTurn:
        with self._write() as s:
            return history.edit(s, turns.lock_both(s, session_id), seq, prompt, response)

    def truncate(self, session_id: str, keep: int) -> Conversation:
        with self._write() as s:
            conversation = turns.lock_both(s, session_id)
            changed, waiting = history.truncate(s, conversation, keep)
            turns.promote_heads(s, conversation.id, waiting)
            return changed

    def retry_turn(self, session_id: str, seq: int, *, prompt: str | None = None) -> Turn:
        with self._write() as s:
            return turns.retry(s, session_id, seq, prompt)

    def new_generation(self, session_id: str) -> Conversation:
        with self._write() as s:
            conversation = turns.lock_both(s, session_id)
            changed, waiting = history.new_generation(s, conversation)
            turns.promote_heads(s, conversation.id, waiting)
            return changed

    def fork(
        self, session_id: str, child_id: SessionId, *, at: int | None = None, name: str | None = None
    ) -> Session:
        with self._write() as s:
            return forks.fork(s, session_id, child_id, at, name)

    # --- the queue ---

    def enqueue_turn(self, session_id: str, new: NewTurn) -> Turn:
        with self._write() as s:
            return turns.enqueue(s, session_id, new)

    def record_turn(self, session_id: str, new: NewTurn, response: str | None, usage: Usage) -> Turn:
        check_usage(usage)
        with self._write() as s:
            return turns.record(s, session_id, new, response, usage)

    def get_turn(self, conversation_id: str, seq: int) -> Turn:
        with self._read() as s:
            return turns.get(s, conversation_id, seq)

    def turns(self, session_id: str, *, after: int = 0, limit: int = 1000) -> tuple[Turn, ...]:
        check_whole("after", after)
        check_whole("limit", limit)
        with self._read() as s:
            return turns.of_session(s, sessions.get(s, session_id), after, limit)

    def claim_turn(self, request: ClaimRequest) -> Claim | None:
        with self._write() as s:
            return claims.claim(s, request)

    def start_turn(self, session_id: str, new: NewTurn, request: ClaimRequest) -> Claim | Refusal:
        with self._write() as s:
            return claims.start(s, session_id, new, request)

    def heartbeat(self, lease: Lease, seconds: float) -> Heartbeat:
        with self._write() as s:
            return leases.heartbeat(s, lease, seconds)

    def launch(self, lease: Lease, launched: Launch) -> None:
        with self._write() as s:
            attempts.launch(s, lease, launched)

    def record_events(self, lease: Lease, events: Sequence[Event]) -> None:
        with self._write() as s:
            attempts.add_events(s, lease, events)

    def pin(
        self, lease: Lease, provider_session_id: ProviderSessionId, transcript: TranscriptMark | None = None
    ) -> None:
        with self._write() as s:
            attempts.pin(s, lease, provider_session_id, transcript)

    def fall_back(self, lease: Lease, failure: Failure, key: str) -> Claim:
        with self._write() as s:
            return endings.fall_back(s, lease, failure, key)

    def put_back(self, lease: Lease, not_before: Instant | None = None) -> Turn:
        with self._write() as s:
            return endings.put_back(s, lease, not_before)

    def finish_turn(self, lease: Lease, end: TurnEnd) -> Turn:
        check_report(end.usage)
        with self._write() as s:
            ended = endings.finish(s, lease, end)
        # raised only now: the evidence of a late report is committed
        if isinstance(ended, endings.Late):
            raise ended.error()
        return ended

    def cancel_turn(self, session_id: str, seq: int) -> Turn:
        with self._write() as s:
            return turns.cancel(s, session_id, seq)

    def orphans(self, limit: int = 100) -> tuple[Orphan, ...]:
        check_whole("limit", limit)
        with self._read() as s:
            return leases.expired(s, limit)

    def recover(self, orphan: Orphan) -> Turn:
        with self._write() as s:
            return endings.recover(s, orphan)

    # --- the record ---

    def attempts(self, conversation_id: str, seq: int) -> tuple[Attempt, ...]:
        with self._read() as s:
            return attempts.of_turn(s, conversation_id, seq)

    def newest_attempt(self, session_id: str) -> Attempt | None:
        with self._read() as s:
            return attempts.newest(s, session_id)

    def events(
        self, conversation_id: str, seq: int, *, after: tuple[int, int] = (0, 0), limit: int = 1000
    ) -> tuple[tuple[int, Event], ...]:
        for field, number in (("after", after[0]), ("after", after[1]), ("limit", limit)):
            check_whole(field, number)
        with self._read() as s:
            return attempts.events(s, conversation_id, seq, after, limit)

    def late_reports(self, conversation_id: str) -> tuple[LateReport, ...]:
        with self._read() as s:
            return leases.late_reports(s, conversation_id)

    # --- pointers, runtimes ---

    def explain(
        self,
        session_id: str,
        provider: str,
        request: TurnRequest | None = None,
        runtime: Runtime | None = None,
    ) -> Decision:
        with self._read() as s:
            return claims.explain(s, session_id, provider, request, runtime)

    def pointer(self, session_id: str, provider: str) -> Pointer | None:
        with self._read() as s:
            return pointers.get(s, session_id, provider)

    def pointers(self, session_id: str) -> tuple[Pointer, ...]:
        with self._read() as s:
            return pointers.of_session(s, session_id)

    def set_pointer(self, pointer: Pointer) -> None:
        with self._write() as s:
            pointers.adopt(s, pointer)

    def clear_pointer(self, session_id: str, provider: str, expected: ProviderSessionId) -> bool:
        with self._write() as s:
            return pointers.clear(s, session_id, provider, expected)

    def retire(
        self, session_id: str, provider: str, provider_session_id: ProviderSessionId, why: str
    ) -> None:
        with self._write() as s:
            pointers.retire(s, sessions.get(s, session_id).id, provider, provider_session_id, why)

    def provider_sessions(self, session_id: str) -> tuple[ProviderSessionTotals, ...]:
        with self._read() as s:
            return provider_sessions.totals(s, session_id)

    def register_runtime(self, runtime: Runtime) -> RuntimeId:
        with self._write() as s:
            return runtimes.register(s, runtime, refresh=True)

    def runtimes(self) -> tuple[Runtime, ...]:
        with self._read() as s:
            return runtimes.all_of(s)

    # --- the store itself ---

    def now(self) -> Instant:
        return self._driver.now()

    def bytes_used(self) -> int:
        return self._driver.bytes_used()

    def close(self) -> None:
        self._driver.close()

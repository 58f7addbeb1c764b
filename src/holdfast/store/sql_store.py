"""Owns the one implementation of the Store contract: each verb is one transaction on a driver, but for cleaning up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from holdfast.clock import Instant
from holdfast.domain.approvals import Answer, Approval, NewApproval
from holdfast.domain.conversations import Conversation, HistoryTurn
from holdfast.domain.decisions import Decision
from holdfast.domain.delegations import Delegation, DelegationCounts, FreeSession
from holdfast.domain.events import Event, PartialText, Writing
from holdfast.domain.failures import Failure
from holdfast.domain.ids import ApprovalId, ProviderSessionId, RuntimeId, SessionId, Workspace
from holdfast.domain.imports import Imported, KnownSource, SessionImport
from holdfast.domain.inputs import check_whole
from holdfast.domain.observed import ObservedSession
from holdfast.domain.phases import ApprovalWindow, Phase
from holdfast.domain.pointers import Pointer, ProviderSessionTotals, TranscriptMark
from holdfast.domain.policy import Policy
from holdfast.domain.runtimes import KnownRuntime, Runtime
from holdfast.domain.search import SearchPage, SearchRequest
from holdfast.domain.sessions import (
    CleanupReport,
    NewSession,
    Old,
    PhaseChange,
    Pulse,
    Session,
    SessionChange,
    SessionFilter,
    SessionPage,
    SessionState,
    SessionUpdate,
)
from holdfast.domain.statistics import Statistics, Totals
from holdfast.domain.tokens import ENTROPY, NewToken, Token, check_new_token
from holdfast.domain.turns import (
    Adoption,
    Attempt,
    Claim,
    ClaimRequest,
    Heartbeat,
    LateReport,
    Launch,
    Lease,
    NewTurn,
    Orphan,
    PastRequest,
    RecordedTurn,
    Refusal,
    Situation,
    Turn,
    TurnEnd,
    TurnRequest,
)
from holdfast.domain.usage import (
    NOTHING_REPORTED,
    Usage,
    UsageGroup,
    UsageReport,
    UsageTotal,
    check_report,
    check_usage,
)
from holdfast.domain.vault import VaultBundle, VaultChunk, VaultEntry, VaultFigures, VaultSweep
from holdfast.errors import InvalidInput
from holdfast.processes.owners import this_user
from holdfast.store import counters
from holdfast.store.contract import KeyedCall, QueueWatch
from holdfast.store.driver import Driver, Undone
from holdfast.store.hook_verbs import HookVerbs
from holdfast.store.pages import Pace
from holdfast.store.sql import (
    approvals,
    attempts,
    claims,
    delegations,
    endings,
    heads,
    history,
    idempotency,
    imports,
    leases,
    lifecycle,
    observed,
    past,
    provider_sessions,
    pulse,
    retention,
    runtimes,
    search,
    session_statements,
    sessions,
    situations,
    tokens,
    totals,
    turns,
    vault,
)
from holdfast.store.sql.scope import Scope

P = ParamSpec("P")
T = TypeVar("T")

#: of one transaction that ends in a deadlock
MAX_TRIES = 4
#: events that are read at a time; the size of one has a limit of its own
PART_EVENTS = 64


class SqlStore(HookVerbs):
    """See ``contract.Store`` for what each verb promises."""

    def __init__(
        self,
        driver: Driver,
        workspace: Workspace,
        policy: Policy,
        call: KeyedCall | None = None,
        by: str | None = None,
        memory: heads.QueueMemory | None = None,
    ) -> None:
        """With a ``call``, the verb that is called on it happens once, however often it is called.

        ``by`` is recorded as the author of every change; None: the user of this process.
        """
        self._call = call
        self._by = by or this_user()
        self._driver = driver
        self.workspace = workspace
        self._policy = policy
        self.where = driver.where
        self._memory = memory or heads.QueueMemory()

    def within(self, workspace: Workspace) -> SqlStore:
        """The same store for another workspace; it is closed with this one."""
        return SqlStore(self._driver, workspace, self._policy, by=self._by, memory=self._memory)

    def signed(self, by: str) -> SqlStore:
        """The same store; ``by`` is recorded as the author of every change, instead of the user of this process."""
        return SqlStore(self._driver, self.workspace, self._policy, self._call, by, self._memory)

    def once(self, call: KeyedCall) -> SqlStore:
        """The same store, for this one call of a verb that writes and is not idempotent by itself."""
        return SqlStore(self._driver, self.workspace, self._policy, call, self._by, self._memory)

    def _read(self) -> Scope:
        return Scope(self._driver.read(), self.workspace, self._policy, self.where, self._by)

    def _writing(self, *, synced: bool = True) -> Scope:
        return Scope(self._driver.write(synced=synced), self.workspace, self._policy, self.where, self._by)

    def _write(self, work: Callable[Concatenate[Scope, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A whole transaction; what the engine undoes, to end a deadlock, is done again from the beginning."""
        tries = 1
        while True:
            try:
                with self._writing() as s:
                    if self._call is not None:
                        return idempotency.once(s, self._call, lambda s=s: work(s, *args, **kwargs))  # type: ignore[misc]
                    return work(s, *args, **kwargs)
            except Undone:
                if tries == MAX_TRIES:
                    raise
                counters.count_wait(counters.DATABASE)
            tries += 1

    # --- sessions ---

    def create_session(self, new: NewSession) -> Session:
        return self._write(sessions.create, new)

    def get_session(self, session_id: str) -> Session:
        with self._read() as s:
            return sessions.get(s, session_id)

    def find_session(self, given: str) -> SessionId:
        with self._read() as s:
            return sessions.resolve(s, given)

    def session_state(self, session_id: str) -> SessionState:
        with self._read() as s:
            return sessions.state(s, session_id)

    def phase_history(self, session_id: str) -> tuple[PhaseChange, ...]:
        with self._read() as s:
            return sessions.phase_history(s, session_id)

    def trail(self, session_id: str, *, after: int = 0, limit: int = 1000) -> tuple[SessionChange, ...]:
        _check_numbers(after=after, limit=limit)
        with self._read() as s:
            return sessions.trail(s, session_id, after, limit)

    def record_deed(self, session_id: str, did: str) -> None:
        return self._write(sessions.note_deed, session_id, did)

    def update_session(self, session_id: str, change: SessionUpdate) -> Session:
        return self._write(lifecycle.update, session_id, change)

    def finalize_session(self, session_id: str, outcome: Phase, summary: str | None) -> Session:
        if not outcome.is_final:
            raise InvalidInput("outcome", f"{outcome} is not a final phase")
        return self._write(lifecycle.update, session_id, SessionUpdate(phase=outcome, summary=summary))

    def list_sessions(self, wanted: SessionFilter, limit: int, cursor: str | None = None) -> SessionPage:
        check_whole("limit", limit, lowest=1)
        with self._read() as s:
            return sessions.list_page(s, wanted, limit, cursor)

    def pulse(self, since: Instant, limit: int = 1000) -> Pulse:
        _check_numbers(since=since, limit=limit)
        with self._read() as s:
            return pulse.take(s, since, limit)

    def children(self, session_id: str) -> tuple[Session, ...]:
        with self._read() as s:
            return sessions.children(s, session_id)

    def rename_session(self, session_id: str, name: str | None) -> Session:
        return self._write(sessions.rename, session_id, name)

    def attend(self, session_id: str, owner: str, seconds: float, title: str | None = None) -> None:
        self._write(sessions.attend, session_id, owner, seconds, title)

    def remove_session(self, session_id: str) -> None:
        self._write(retention.remove, session_id)

    def clean_up(self, old: Old, *, dry_run: bool = False) -> CleanupReport:
        with self._read() as s:
            cleaning = retention.Cleaning(s, old, dry_run=dry_run)
            while dry_run and cleaning.goes_on:
                cleaning.next_batch(s)
        while cleaning.goes_on:
            # once only: it remembers itself how far it has come
            with self._writing() as s:
                cleaning.next_batch(s)
        if not dry_run and old.project is None:
            self._write(observed.forget, old.cutoff)
        if not dry_run:
            while self._write(idempotency.forget, retention.BATCH):
                pass
        return cleaning.report

    # --- conversations ---

    def get_conversation(self, conversation_id: str) -> Conversation:
        with self._read() as s:
            return history.get(s, conversation_id)

    def history(
        self,
        conversation_id: str,
        *,
        first: int = 1,
        last: int | None = None,
        limit: int | None = None,
        unsent: bool = True,
    ) -> tuple[HistoryTurn, ...]:
        _check_numbers(first=first, last=last, limit=limit)
        with self._read() as s:
            conversation = history.get(s, conversation_id)
            up_to, at_most = (history.LAST_SEQ if given is None else given for given in (last, limit))
            return tuple(history.read(s, conversation, first=first, last=up_to, limit=at_most, unsent=unsent))

    def read_past(self, conversation_id: str, revision: int, wanted: PastRequest) -> tuple[RecordedTurn, ...]:
        _check_numbers(limit=wanted.limit, characters=wanted.characters, before=wanted.before)
        for span in wanted.spans:
            _check_numbers(spans=span)
        with self._read() as s:
            return past.read(s, conversation_id, revision, wanted)

    def search(self, wanted: SearchRequest) -> SearchPage:
        phrases = wanted.check()
        until = time.monotonic() + search.SECONDS
        place: str | None = sessions.AFTER_ALL if self._lacks_words() else None
        while place is not None and time.monotonic() < until:
            place = self._write(search.add_missing, until, place)
        with self._read() as s:
            return search.find(s, wanted, phrases)

    def _lacks_words(self) -> bool:
        with self._read() as s:
            return search.is_any_missing(s)

    def edit_turn(
        self, session_id: str, seq: int, *, prompt: str | None = None, response: str | None = None
    ) -> HistoryTurn:
        return self._write(turns.edit_history, session_id, seq, prompt, response)

    def truncate(self, session_id: str, keep: int) -> Conversation:
        return self._write(turns.truncate_history, session_id, keep)

    def retry_turn(self, session_id: str, seq: int, *, prompt: str | None = None) -> Turn:
        return self._write(turns.retry, session_id, seq, prompt)

    def new_generation(self, session_id: str) -> Conversation:
        return self._write(turns.begin_again, session_id)

    def fork(
        self, session_id: str, child_id: SessionId, *, at: int | None = None, name: str | None = None
    ) -> Session:
        return self._write(history.fork, session_id, child_id, at, name)

    # --- the queue ---

    def enqueue_turn(self, session_id: str, new: NewTurn) -> Turn:
        return self._write(turns.enqueue, session_id, new)

    def record_turn(self, session_id: str, new: NewTurn, response: str | None, usage: Usage) -> Turn:
        check_usage(usage)
        return self._write(turns.record, session_id, new, response, usage)

    def get_turn(self, conversation_id: str, seq: int) -> Turn:
        with self._read() as s:
            return turns.get(s, conversation_id, seq)

    def turns(self, session_id: str, *, after: int = 0, limit: int = 1000) -> tuple[Turn, ...]:
        _check_numbers(after=after, limit=limit)
        with self._read() as s:
            return turns.of_session(s, sessions.get(s, session_id), after, limit)

    def newest_turns(
        self, session_id: str, limit: int, *, before: int | None = None, dropped: bool = True
    ) -> tuple[Turn, ...]:
        _check_numbers(limit=limit, before=before)
        up_to = history.LAST_SEQ if before is None else before
        with self._read() as s:
            return turns.newest_of_session(s, sessions.get(s, session_id), up_to, limit, dropped=dropped)

    def head_turn(self, session_id: str) -> Turn | None:
        with self._read() as s:
            return turns.head_of_session(s, sessions.get(s, session_id))

    def claim_turn(self, request: ClaimRequest) -> Claim | None:
        queue = self.workspace, request.runtime.provider
        looks_first = self._driver.one_writer and self._call is None and self._memory.was_empty(*queue)
        if looks_first and self._finds_nothing(request):
            return None
        claim = self._write(claims.claim, request, self._memory)
        self._memory.note_claim(*queue, got_nothing=claim is None)
        return claim

    def _finds_nothing(self, request: ClaimRequest) -> bool:
        """A look that keeps no writer waiting: idle workers do nothing else."""
        with self._read() as s:
            return heads.nothing_for(s, request, self._memory)

    def watch_queue(self) -> QueueWatch:
        return self._driver.watch(self.workspace, self._has_ready_turns)

    def _has_ready_turns(self) -> bool:
        with self._read() as s:
            return heads.any_ready(s)

    def start_turn(self, session_id: str, new: NewTurn, request: ClaimRequest) -> Claim | Refusal:
        return self._write(claims.start, session_id, new, request)

    def situation(self, session_id: str, provider: str | None = None) -> Situation:
        with self._read() as s:
            return claims.situation(s, session_id, provider)

    def import_sessions(
        self, batch: Sequence[SessionImport], sources: Sequence[KnownSource] = ()
    ) -> tuple[Imported, ...]:
        return self._write(imports.import_sessions, batch, sources)

    def sources(
        self, machine: str, provider: str, home: str, *, after: str = "", limit: int = 1000
    ) -> tuple[KnownSource, ...]:
        _check_numbers(limit=limit)
        with self._read() as s:
            return imports.sources(s, machine, provider, home, after, limit)

    def adopt_turns(self, adoption: Adoption, lease: Lease | None = None) -> Situation | None:
        if adoption.counted is not None:
            check_usage(adoption.counted)
        return self._write(situations.adopt, adoption, lease)

    def heartbeat(self, lease: Lease, seconds: float, renewal: str | None = None) -> Heartbeat:
        return self._write(leases.heartbeat, lease, seconds, renewal)

    def launch(self, lease: Lease, launched: Launch) -> None:
        self._write(attempts.launch, lease, launched)

    def record_events(self, lease: Lease, events: Sequence[Event]) -> None:
        self._write(attempts.add_events, lease, events)

    def put_partial_text(self, lease: Lease, number: int, writing: Writing) -> None:
        _check_numbers(number=number, skipped=writing.skipped)
        with self._writing(synced=False) as s:
            attempts.put_partial_text(s, lease, number, writing)

    def partial_text(self, session_id: str) -> PartialText | None:
        with self._read() as s:
            return attempts.partial_text(s, session_id)

    def pin(
        self, lease: Lease, provider_session_id: ProviderSessionId, transcript: TranscriptMark | None = None
    ) -> None:
        self._write(attempts.pin, lease, provider_session_id, transcript)

    def fall_back(
        self, lease: Lease, failure: Failure, key: str, usage: UsageReport = NOTHING_REPORTED
    ) -> Claim:
        check_report(usage)
        return self._write(endings.fall_back, lease, failure, key, usage)

    def put_back(
        self, lease: Lease, not_before: Instant | None = None, because: Failure | None = None
    ) -> Turn:
        return self._write(endings.put_back, lease, not_before, because)

    def finish_turn(self, lease: Lease, end: TurnEnd) -> Turn:
        check_report(end.usage)
        ended = self._write(endings.finish, lease, end)
        # raised only now: the evidence of a late report is committed
        if isinstance(ended, endings.Late):
            raise ended.error()
        return ended

    def cancel_turn(self, session_id: str, seq: int) -> Turn:
        return self._write(turns.cancel, session_id, seq)

    def orphans(self, limit: int = 100, *, even_live: bool = False) -> tuple[Orphan, ...]:
        check_whole("limit", limit)
        with self._read() as s:
            return leases.expired(s, limit, even_live=even_live)

    def holder(self, session_id: str) -> Orphan | None:
        with self._read() as s:
            return leases.holder(s, session_id)

    def recover(
        self,
        orphan: Orphan,
        *,
        owner_is_gone: bool = False,
        response: str | None = None,
        transcript: TranscriptMark | None = None,
        answered: bool = False,
        events: Sequence[Event] = (),
    ) -> Turn:
        return self._write(
            endings.recover, orphan, owner_is_gone=owner_is_gone, response=response, transcript=transcript,
            answered=answered, events=events,
        )  # fmt: skip

    # --- approvals ---

    def request_approval(self, session_id: str, new: NewApproval) -> Approval:
        return self._write(approvals.request, session_id, new)

    def get_approval(self, approval_id: str) -> Approval:
        with self._read() as s:
            return approvals.get(s, approval_id)

    def find_approval(self, given: str) -> ApprovalId:
        with self._read() as s:
            return approvals.find(s, given)

    def approvals(
        self,
        *,
        session_id: str | None = None,
        open_only: bool = True,
        after: str | None = None,
        limit: int = 1000,
    ) -> tuple[Approval, ...]:
        check_whole("limit", limit)
        with self._read() as s:
            return approvals.listed(s, session_id, after, limit, open_only=open_only)

    def answer_approval(self, approval_id: str, answer: Answer) -> Approval:
        return self._write(turns.answer_approval, approval_id, answer)

    def approval_window(self, session_id: str) -> ApprovalWindow | None:
        with self._read() as s:
            return session_statements.approval_window(s, session_id)

    # --- the record ---

    def attempts(self, conversation_id: str, seq: int) -> tuple[Attempt, ...]:
        with self._read() as s:
            return attempts.of_turn(s, conversation_id, seq)

    def attempts_in(
        self, provider: str, provider_session_id: ProviderSessionId, limit: int = 1000
    ) -> tuple[Attempt, ...]:
        check_whole("limit", limit)
        with self._read() as s:
            return attempts.in_provider_session(s, provider, provider_session_id, limit)

    def owner_of(
        self, provider: str, provider_session_id: ProviderSessionId, besides: str | None = None
    ) -> SessionId | None:
        with self._read() as s:
            return provider_sessions.owner_of(s, provider, provider_session_id, besides)

    def newest_attempt(self, session_id: str) -> Attempt | None:
        with self._read() as s:
            return attempts.newest(s, session_id)

    def events(
        self, conversation_id: str, seq: int, *, after: tuple[int, int] = (0, 0), limit: int = 1000
    ) -> tuple[tuple[int, Event], ...]:
        _check_numbers(after=after, limit=limit)
        with self._read() as s:
            return attempts.events_of_turn(s, conversation_id, seq, after, limit)

    def newest_events(self, conversation_id: str, seq: int, limit: int) -> tuple[tuple[int, Event], ...]:
        with self._read() as s:
            return attempts.newest_events(s, conversation_id, seq, limit)

    def in_parts(self, verb: str, arguments: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
        """The answer of a verb that is read in parts, a part at a time. Nothing is locked or kept open between two."""
        _check_numbers(
            **{name: arguments.get(name) for name in ("first", "last", "limit", "before", "after")}
        )
        return IN_PARTS[verb](self._read, **arguments)

    def late_reports(self, conversation_id: str) -> tuple[LateReport, ...]:
        with self._read() as s:
            return endings.late_reports(s, conversation_id)

    # --- pointers, runtimes ---

    def explain(
        self,
        session_id: str,
        provider: str,
        request: TurnRequest | None = None,
        runtime: Runtime | None = None,
        pointer: Pointer | None = None,
    ) -> Decision:
        with self._read() as s:
            return claims.explain(s, session_id, provider, request, runtime, pointer)

    def pointer(self, session_id: str, provider: str) -> Pointer | None:
        with self._read() as s:
            return provider_sessions.pointer(s, session_id, provider)

    def pointers(self, session_id: str) -> tuple[Pointer, ...]:
        with self._read() as s:
            return provider_sessions.pointers_of(s, session_id)

    def set_pointer(self, pointer: Pointer, counted: Usage | None = None, *, unowned: bool = False) -> None:
        self._write(provider_sessions.set_pointer, pointer, counted, unowned=unowned)

    def clear_pointer(self, session_id: str, provider: str, expected: ProviderSessionId) -> bool:
        return self._write(provider_sessions.clear_pointer, session_id, provider, expected)

    def retire(
        self, session_id: str, provider: str, provider_session_id: ProviderSessionId, why: str
    ) -> None:
        def retire(s: Scope) -> None:
            provider_sessions.retire(s, sessions.get(s, session_id).id, provider, provider_session_id, why)

        self._write(retire)

    def provider_sessions(self, session_id: str) -> tuple[ProviderSessionTotals, ...]:
        with self._read() as s:
            return provider_sessions.totals(s, session_id)

    def usage(
        self,
        group: UsageGroup,
        *,
        since: Instant | None = None,
        until: Instant | None = None,
        session_id: str | None = None,
    ) -> tuple[UsageTotal, ...]:
        with self._read() as s:
            return totals.usage(s, group, since, until, session_id)

    def register_runtime(self, runtime: Runtime) -> RuntimeId:
        return self._write(runtimes.register, runtime, refresh=True)

    def runtimes(self) -> tuple[KnownRuntime, ...]:
        with self._read() as s:
            return runtimes.all_of(s)

    # --- delegations, besides those of hooks ---

    def delegations(self, session_id: str) -> tuple[Delegation, ...]:
        with self._read() as s:
            return delegations.of_session(s, session_id)

    def free_sessions(self, limit: int = 200) -> tuple[FreeSession, ...]:
        check_whole("limit", limit)
        with self._read() as s:
            return delegations.free(s, limit)

    def delegation_counts(self) -> DelegationCounts:
        with self._read() as s:
            return delegations.counts(s)

    # --- sessions that were only watched, besides the verbs of hooks ---

    def observed_sessions(self, limit: int = 100) -> tuple[ObservedSession, ...]:
        check_whole("limit", limit)
        with self._read() as s:
            return observed.newest(s, limit)

    # --- the vault ---

    def lacking_chunks(self, digests: Sequence[str]) -> tuple[str, ...]:
        with self._read() as s:
            return vault.lacking(s, digests)

    def add_chunks(self, chunks: Sequence[VaultChunk]) -> None:
        vault.check((), chunks)
        self._write(vault.add, chunks)

    def keep_bundles(
        self, bundles: Sequence[VaultBundle], chunks: Sequence[VaultChunk] = (), *, repacked: bool = False
    ) -> None:
        vault.check(bundles, chunks)
        self._write(vault.keep, bundles, chunks, repacked=repacked)

    def bundle(
        self, provider: str, provider_session_id: ProviderSessionId, branch: str = ""
    ) -> VaultBundle | None:
        with self._read() as s:
            return vault.get(s, provider, provider_session_id, branch)

    def bundles(self, provider: str, provider_session_id: ProviderSessionId) -> tuple[VaultBundle, ...]:
        with self._read() as s:
            return vault.branches(s, provider, provider_session_id)

    def read_chunks(self, digests: Sequence[str]) -> tuple[VaultChunk, ...]:
        with self._read() as s:
            return vault.read_chunks(s, digests)

    def drop_bundle(
        self,
        provider: str,
        provider_session_id: ProviderSessionId,
        branch: str = "",
        kept_at: Instant | None = None,
    ) -> bool:
        return self._write(vault.drop, provider, provider_session_id, branch, kept_at)

    def vault_entries(self, *, after: VaultEntry | None = None, limit: int = 1000) -> tuple[VaultEntry, ...]:
        check_whole("limit", limit)
        with self._read() as s:
            return vault.entries(s, after, limit)

    def vault_figures(self) -> VaultFigures:
        with self._read() as s:
            return vault.figures(s)

    def sweep_vault(self) -> VaultSweep:
        chunks = stored_bytes = 0
        while (gone := self._write(vault.sweep)).chunks:
            chunks, stored_bytes = chunks + gone.chunks, stored_bytes + gone.stored_bytes
        return VaultSweep(chunks, stored_bytes)

    # --- tokens ---

    def create_token(self, new: NewToken) -> Token:
        return self._write(tokens.create, check_new_token(new))

    def agent_token(self, lease: Lease) -> str | None:
        return self._write(tokens.lend, lease, os.urandom(ENTROPY))

    def tokens(self) -> tuple[Token, ...]:
        with self._read() as s:
            return tokens.of_workspace(s)

    def revoke_token(self, token_id: str) -> Token:
        return self._write(tokens.revoke, token_id)

    def find_damage(self, *, deep: bool = False) -> tuple[str, ...]:
        return self._driver.find_damage(deep=deep)

    def back_up(self) -> str | None:
        return self._driver.back_up()

    def require_same_version(self) -> None:
        """A store without a server has no other version."""

    def asks_for_tokens(self) -> bool:
        """Whether anyone ever made one, in any workspace."""
        with self._read() as s:
            return tokens.are_there(s)

    def check_token(self, token_id: str, secret: str) -> Token | None:
        """The token of any workspace that is good now and has this secret."""
        with self._read() as s:
            found = tokens.proved(s, token_id, secret)
        if found is not None and tokens.is_long_ago(found, self.now()):
            self._write(tokens.touch, token_id)
        return found

    # --- the store itself ---

    def now(self) -> Instant:
        return self._driver.now()

    def bytes_used(self) -> int:
        return self._driver.bytes_used()

    def statistics(self) -> Statistics:
        with self._read() as s:
            return totals.statistics(s)

    def totals(
        self, *, since: Instant | None = None, until: Instant | None = None, agent: str | None = None
    ) -> Totals:
        with self._read() as s:
            return totals.read(s, since, until, agent)

    def close(self) -> None:
        self._driver.close()


def _check_numbers(**given: int | tuple[int, int] | None) -> None:
    for field, numbers in given.items():
        for number in numbers if isinstance(numbers, tuple) else (numbers,):
            if number is not None:
                check_whole(field, number)


# --- reading a long answer in parts: each is one consistent view, and small enough to keep many at a time ---

_Read = Callable[[], Scope]
_AnyTurn = TypeVar("_AnyTurn", HistoryTurn, Turn)


def _history(read: _Read, conversation_id: str, **wanted: Any) -> Iterator[tuple[HistoryTurn, ...]]:
    """All of it as of one revision: a change that comes in between is not in it."""
    given = {"first": 1, "last": None, "limit": None, "unsent": True} | wanted
    given |= {name: history.LAST_SEQ for name in ("last", "limit") if given[name] is None}
    with read() as s:
        conversation = history.get(s, conversation_id)
        seqs = history.seqs(s, conversation, **given)
    listed = frozenset(seqs)

    def between(first: int, last: int) -> tuple[HistoryTurn, ...]:
        with read() as s:
            found = history.read(s, conversation, first=first, last=last, unsent=given["unsent"])
        return tuple(turn for turn in found if turn.seq in listed)

    return _in_steps(seqs, between)


def _newest_turns(
    read: _Read, session_id: str, limit: int, before: int | None = None, *, dropped: bool = True
) -> Iterator[tuple[Turn, ...]]:
    up_to = history.LAST_SEQ if before is None else before
    with read() as s:
        session = sessions.get(s, session_id)
        seqs = turns.newest_seqs(s, session, up_to, limit, dropped=dropped)
    listed = frozenset(seqs)

    def between(first: int, last: int) -> tuple[Turn, ...]:
        with read() as s:
            found = turns.of_session(s, session, first - 1, history.LAST_SEQ, last)
        return tuple(turn for turn in found if turn.seq in listed)

    return _in_steps(seqs, between)


def _in_steps(
    seqs: Sequence[int], between: Callable[[int, int], tuple[_AnyTurn, ...]]
) -> Iterator[tuple[_AnyTurn, ...]]:
    pace, done = Pace(), 0
    while window := seqs[done : done + pace.size]:
        found = between(window[0], window[-1])
        pace.adapt(found)
        done += len(window)
        yield found


def _turns(read: _Read, session_id: str, after: int = 0, limit: int = 1000) -> Iterator[tuple[Turn, ...]]:
    with read() as s:
        session = sessions.get(s, session_id)
    pace = Pace()
    while limit:
        with read() as s:
            found = turns.of_session(s, session, after, min(pace.size, limit))
        if not found:
            return
        pace.adapt(found)
        after, limit = found[-1].seq, limit - len(found)
        yield found


def _events(
    read: _Read, conversation_id: str, seq: int, after: tuple[int, int] = (0, 0), limit: int = 1000
) -> Iterator[tuple[tuple[int, Event], ...]]:
    while limit:
        with read() as s:
            found = attempts.events_of_turn(s, conversation_id, seq, after, min(PART_EVENTS, limit))
        if not found:
            return
        (attempt, last) = found[-1]
        after, limit = (attempt, last.number), limit - len(found)
        yield found


def _newest_events(
    read: _Read, conversation_id: str, seq: int, limit: int
) -> Iterator[tuple[tuple[int, Event], ...]]:
    with read() as s:
        behind = attempts.before_newest_events(s, conversation_id, seq, limit)
    return _events(read, conversation_id, seq, behind, limit)


#: how the answer of each verb is read in parts; these take the verb's own arguments
IN_PARTS: Final[Mapping[str, Callable[..., Iterator[tuple[Any, ...]]]]] = {
    "events": _events,
    "history": _history,
    "newest_events": _newest_events,
    "newest_turns": _newest_turns,
    "turns": _turns,
}

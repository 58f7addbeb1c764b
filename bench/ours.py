"""Owns Holdfast as a subject: the store's verbs, and the library's on top of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

from bench import workload as w
from bench.floor_sessions import wall_clock
from holdfast.clock import Instant
from holdfast.domain.conversations import HistoryTurn, SeenTurns
from holdfast.domain.decisions import Decision, Facts, Resume, ResumeRequest, TranscriptFacts
from holdfast.domain.guards import decide_resume
from holdfast.domain.ids import ProviderSessionId, SessionId, check_workspace
from holdfast.domain.phases import Phase, may_continue
from holdfast.domain.pointers import NO_RIGHTS, Pointer, ProviderSession, TranscriptMark
from holdfast.domain.policy import Policy
from holdfast.domain.sessions import (
    CleanupReport,
    NewSession,
    Old,
    Session,
    SessionFilter,
    SessionPage,
    SessionUpdate,
)
from holdfast.domain.turns import Claim, ClaimRequest, NewTurn, Turn, TurnEnd, TurnRequest, TurnStatus
from holdfast.domain.usage import ContextUse, Usage, UsageReport
from holdfast.engine.holdfast import Holdfast
from holdfast.store.contract import Store
from holdfast.store.migrate import migrate_sqlite
from holdfast.store.sql_store import SqlStore
from holdfast.store.sqlite import SqliteDriver

USAGE = Usage(300, 100, 250, 0.01)
REQUEST = TurnRequest(work_dir=w.WORK_DIR, model=w.MODEL)
TURN = NewTurn(w.PROMPT, w.PROVIDER, REQUEST)
TRANSCRIPT = TranscriptMark(*w.TRANSCRIPT)
POLICY = Policy()


def open_sqlite(
    path: Path, *, synchronous: str = "FULL", clock: Callable[[], int] = wall_clock
) -> tuple[SqlStore, SqliteDriver]:
    """A store as ``holdfast.open`` makes it; other than FULL is for measuring CPU alone."""
    driver = SqliteDriver(path, lambda: Instant(clock()))
    migrate_sqlite(driver)
    with driver.raw() as connection:
        connection.execute(f"PRAGMA synchronous = {synchronous}")
    return SqlStore(driver, check_workspace(w.WORKSPACE), POLICY), driver


class Ours:
    """The store's own verbs: one transaction each."""

    def __init__(self, store: Store, *, claims: int = 0) -> None:
        self.store = store
        self._claims = itertools.count(claims + 1)

    @classmethod
    def on_sqlite(
        cls, path: Path, *, synchronous: str = "FULL", clock: Callable[[], int] = wall_clock
    ) -> Ours:
        return cls(open_sqlite(path, synchronous=synchronous, clock=clock)[0])

    def close(self) -> None:
        self.store.close()

    def create(self, session_id: str) -> Session:
        return self.store.create_session(
            NewSession(id=SessionId(session_id), agent=w.AGENT, purpose=w.PURPOSE, metadata=dict(w.METADATA))
        )

    def update(self, session_id: str) -> Session:
        change = SessionUpdate(phase=Phase.PLANNING, metadata=dict(w.PATCH))
        return self.store.update_session(session_id, change)

    def get(self, session_id: str) -> Session:
        return self.store.get_session(session_id)

    def finalize(self, session_id: str) -> Session:
        return self.store.finalize_session(session_id, Phase.COMPLETED, w.SUMMARY)

    def record_turn(self, session_id: str) -> Turn:
        return self.store.record_turn(session_id, TURN, w.RESPONSE, USAGE)

    def queue_turn(self, session_id: str) -> Turn:
        self.enqueue(session_id)
        claim = self.claim()
        assert claim is not None
        return self.finish(claim)

    def enqueue(self, session_id: str) -> Turn:
        return self.store.enqueue_turn(session_id, TURN)

    def claim(self) -> Claim | None:
        request = ClaimRequest(w.RUNTIME, w.OWNER, f"claim-{next(self._claims)}", w.LEASE_SECONDS)
        return self.store.claim_turn(request)

    def finish(self, claim: Claim) -> Turn:
        end = TurnEnd(
            TurnStatus.DONE,
            response=w.RESPONSE,
            provider_session_id=ProviderSessionId(w.provider_session_of(claim.lease.session_id)),
            transcript=TRANSCRIPT,
            usage=UsageReport(USAGE),
        )
        return self.store.finish_turn(claim.lease, end)

    def should_resume(self, session_id: str) -> bool:
        session = self.store.get_session(session_id)
        return may_continue(session, POLICY.continue_, self.store.now()) == "session_resumable"

    def explain(self, session_id: str) -> Decision:
        return self.store.explain(session_id, w.PROVIDER, REQUEST, w.RUNTIME)

    def read_history(self, session_id: str) -> tuple[HistoryTurn, ...]:
        return self.store.history(w.conversation_of(session_id))

    def list_newest(self, limit: int) -> SessionPage:
        return self.store.list_sessions(SessionFilter(), limit)

    def fork(self, session_id: str, child_id: str) -> Session:
        return self.store.fork(session_id, SessionId(child_id))

    def clean_up(self, cutoff: int) -> CleanupReport:
        return self.store.clean_up(Old(Instant(cutoff)))


def decide_alone() -> Callable[[object], Decision]:
    """The pure decision on a resumable session, every guard with a fact to look at."""
    pointer = Pointer(
        SessionId(w.new_session_id()), w.PROVIDER, ProviderSessionId("provider-session"), w.RUNTIME.id,
        w.WORK_DIR, w.MODEL, 0, 0, SeenTurns.up_to(10_000), NO_RIGHTS, TRANSCRIPT,
        ContextUse(80_000, 200_000), w.RUNTIME.version, Instant(0),
    )  # fmt: skip
    request = ResumeRequest(model=w.MODEL, prompt_tokens=342)
    facts = Facts(
        capabilities=w.RUNTIME.capabilities, generation=0, runtime_id=w.RUNTIME.id,
        version=w.RUNTIME.version, changes=(), provider_session=ProviderSession(), seq=10_001,
        same_directory=True, transcript=TranscriptFacts(10_000, prefix_intact=True, grown=False),
        lock_free=True,
    )  # fmt: skip
    assert isinstance(decide_resume(pointer, request, facts, POLICY.resume), Resume)
    return lambda _: decide_resume(pointer, request, facts, POLICY.resume)


class Library(Ours):
    """What a program calls: the verbs of ``Holdfast``, with their checks. It makes its own ids."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._library = Holdfast(store)

    def create(self, session_id: str) -> Session:  # noqa: ARG002 - it makes its own
        return self._library.create(w.AGENT, w.PURPOSE, w.METADATA)

    def update(self, session_id: str) -> Session:
        return self._library.update(session_id, phase="planning", metadata=w.PATCH)

    def get(self, session_id: str) -> Session:
        return self._library.session(session_id)

    def finalize(self, session_id: str) -> Session:
        return self._library.finalize(session_id, "completed", w.SUMMARY)

    def record_turn(self, session_id: str) -> Turn:
        return self._library.record(session_id, w.PROMPT, w.RESPONSE, TURN, USAGE)

    def should_resume(self, session_id: str) -> bool:
        return self._library.should_resume(session_id)

    def explain(self, session_id: str) -> Decision:
        return self._library.decide(session_id, w.PROVIDER, request=REQUEST, runtime=w.RUNTIME)

    def list_newest(self, limit: int) -> SessionPage:
        return self._library.page(SessionFilter(), limit)

    def fork(self, session_id: str, child_id: str) -> Session:  # noqa: ARG002 - it makes its own
        return self._library.fork(session_id)

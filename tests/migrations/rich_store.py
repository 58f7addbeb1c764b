"""Owns a store with something of everything in it, the same each time it is made."""

from holdfast.clock import Instant, after
from holdfast.domain.approvals import Answer, NewApproval
from holdfast.domain.delegations import DelegationEnd, DelegationOutcome, NewDelegation
from holdfast.domain.events import Event, EventKind, Writing
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.ids import ApprovalId, ConversationId, ProviderSessionId, SessionId
from holdfast.domain.imports import KnownSource, SessionImport
from holdfast.domain.phases import Phase
from holdfast.domain.pointers import Rights, TranscriptMark
from holdfast.domain.runtimes import Runtime
from holdfast.domain.sessions import NewSession, SessionKind, SessionUpdate
from holdfast.domain.turns import (
    Claim,
    ClaimRequest,
    Launch,
    NewTurn,
    OutsideTurn,
    ProcessMark,
    TurnEnd,
    TurnRequest,
    TurnStatus,
)
from holdfast.domain.usage import ContextUse, Usage, UsageReport
from holdfast.domain.vault import VaultChunk
from holdfast.errors import LeaseLost
from holdfast.store.contract import Store
from holdfast.store.packing import digest_of
from tests.builders import a_bundle, a_codex_runtime, a_file, a_runtime
from tests.clock import ManualClock

LEAD, HELPER, CHILD, GRANDCHILD = (
    SessionId(f"agent-20260108-12000{n}-{name}")
    for n, name in enumerate(["1eadbeef", "4e1be400", "c411d000", "96a0dc41"])
)
FIRST = ProviderSessionId("5b1c2d3e-0000-4000-8000-000000000001")
ASKING = SessionId("agent-20260108-120009-a5c19000")
DELEGATED, OVER = SessionId("agent-20260107-090000-de1e6a7e"), SessionId("agent-20260101-000000-00000000")
IMPORTED, REMOVED = SessionId("agent-20260105-080000-1a9c0e5d"), SessionId("agent-20260105-080001-de1e7ed0")
PROFILE = TurnRequest("/srv/infra", "opus", Rights("plan", frozenset({"Read", "Grep"})))
USED = UsageReport(
    Usage(1200, 400, 80, 0.0125), cumulative=True, context=ContextUse(tokens=21_000, window=200_000)
)
MARK = TranscriptMark("projects/infra/5b1c2d3e.jsonl", 4096, "d1935t")


def fill(store: Store, clock: ManualClock) -> None:
    """Sessions in several states, turns in all of them, forks, edits, attempts and pointers."""
    _delegated(store)
    first = _lead(store)
    _fallen_back(store)
    clock.advance(60)
    _second_agent(store, first)
    _changed_history(store)
    _forks(store)
    _trouble(store, clock)
    _queue(store, clock)
    _approvals(store, clock)
    _vault(store)
    _imported(store)


def _imported(store: Store) -> None:
    """A session that its provider kept alone, one that was deleted, and where they were read from."""
    for session, native in ((IMPORTED, "1a9c0e5d"), (REMOVED, "de1e7ed0")):
        new = NewSession(
            session, "claude", "by hand", SessionKind.CONVERSATION, provider="claude", began_at=Instant(1_000)
        )
        turn = OutsideTurn("outside:1", "what is this?", "a test", Instant(1_000), Instant(2_000))
        source = KnownSource(
            "build-7", "claude", "/home/ada/.claude", f"/{native}.jsonl", 10, 20, ProviderSessionId(native), session
        )  # fmt: skip
        store.import_sessions([SessionImport(new, ProviderSessionId(native), (turn,))], [source])
    store.remove_session(REMOVED)


def _vault(store: Store) -> None:
    side = a_file(b"found it\n", name="projects/infra/5b1c2d3e/tool-results/1.txt", is_main=False)
    kept = a_bundle(a_file(b"one\n", b"two\n"), side, provider_session_id=FIRST)
    plain = (b"one\n", b"two\n", b"found it\n")
    store.keep_bundles([kept], [VaultChunk(digest_of(data), len(data), "raw", data) for data in plain])


def _claim(store: Store, session: SessionId, key: str, runtime: Runtime | None = None) -> Claim:
    claimed = store.claim_turn(ClaimRequest(runtime or a_runtime(), f"worker of {key}", key, 60.0, session))
    assert claimed is not None
    return claimed


def _delegated(store: Store) -> None:
    store.create_session(
        NewSession(DELEGATED, "terraform-architect", "approval_workflow", metadata={"plan": ["vpc", "dns"]})
    )
    store.update_session(DELEGATED, SessionUpdate(phase=Phase.INVESTIGATING))
    store.update_session(DELEGATED, SessionUpdate(phase=Phase.APPROVAL, metadata={"Straße": "Größe ✓"}))
    store.update_session(DELEGATED, SessionUpdate(error="terraform exited with 1"))
    for number, agent in enumerate(["terraform-architect", "gitops-operator"]):
        made = SessionId(f"agent-20260107-09010{number}-de1e6a7e")
        store.delegate(
            NewDelegation(
                id=f"toolu_{number}",
                agent=agent,
                project="/srv/infra",
                new_session_id=made,
                purpose="delegated by a hook",
                provider="claude",
                provider_session_id="the-orchestrator",
            )
        )
    store.end_delegation(
        DelegationEnd(id="toolu_1", outcome=DelegationOutcome.COMPLETED, summary="it is healthy")
    )
    store.create_session(NewSession(OVER, "gitops-operator", "release"))
    store.finalize_session(OVER, Phase.COMPLETED, "released 1.2.3")


def _lead(store: Store) -> ConversationId:
    lead = store.create_session(
        NewSession(LEAD, "claude", kind=SessionKind.CONVERSATION, name="the-lead", provider="claude")
    )
    store.enqueue_turn(LEAD, NewTurn("Describe the network.", "claude", PROFILE, key="first"))
    claimed = _claim(store, LEAD, "first")
    session = FIRST
    process = ProcessMark("build-7", "boot-1", 4242, 1_000_000)
    store.launch(claimed.lease, Launch(claimed.decision, process, session))
    at = claimed.turn.created_at
    store.record_events(
        claimed.lease,
        [
            Event(1, EventKind.TEXT, {"text": "Looking …"}, at),
            Event(2, EventKind.TOOL_CALL, {"name": "Read", "input": {"path": "main.tf"}}, at),
            Event(3, EventKind.TOOL_RESULT, {"ok": True, "lines": 120}, at),
        ],
    )
    store.pin(claimed.lease, session, MARK)
    end = TurnEnd(
        TurnStatus.DONE, "Three subnets.", provider_session_id=session, transcript=MARK, usage=USED,
        title="Subnets of the network",
    )  # fmt: skip
    store.finish_turn(claimed.lease, end)
    return lead.conversation_id


def _fallen_back(store: Store) -> None:
    """Resumed, refused, and finished with a fresh provider session."""
    store.enqueue_turn(LEAD, NewTurn("Add a fourth.", "claude", PROFILE))
    claimed = _claim(store, LEAD, "second")
    store.launch(claimed.lease, Launch(claimed.decision))
    gone = Failure(FailureClass.GONE, "No conversation found with session ID")
    fresh = store.fall_back(claimed.lease, gone, "second, fresh")
    session = ProviderSessionId("5b1c2d3e-0000-4000-8000-000000000002")
    store.launch(fresh.lease, Launch(fresh.decision, provider_session_id=session))
    store.finish_turn(
        fresh.lease,
        TurnEnd(TurnStatus.DONE, "Added.", provider_session_id=session, transcript=MARK, usage=USED),
    )


def _second_agent(store: Store, conversation: ConversationId) -> None:
    store.create_session(
        NewSession(
            HELPER, "codex", kind=SessionKind.CONVERSATION, provider="codex", conversation_id=conversation
        )
    )
    store.enqueue_turn(HELPER, NewTurn("Review it.", "codex"))
    claimed = _claim(store, HELPER, "review", a_codex_runtime())
    end = TurnEnd(
        TurnStatus.DONE, "Looks good.", provider_session_id=ProviderSessionId("thread-1"), usage=USED
    )
    store.finish_turn(claimed.lease, end)


def _changed_history(store: Store) -> None:
    store.edit_turn(LEAD, 1, prompt="Describe the network briefly.")
    store.edit_turn(LEAD, 3, response="Looks very good.")
    store.record_turn(
        LEAD, NewTurn("By hand.", "claude", key="by hand"), "Done by hand.", Usage(7, 0, 3, 0.5)
    )
    store.retry_turn(LEAD, 4, prompt="By the agent.")
    store.enqueue_turn(LEAD, NewTurn("Never.", "claude"))
    store.truncate(LEAD, 5)


def _forks(store: Store) -> None:
    store.fork(LEAD, CHILD, at=3, name="the-child")
    store.edit_turn(CHILD, 2, response="Added, with a comment.")
    store.record_turn(CHILD, NewTurn("On my own.", "claude"), "Alone.", Usage())
    store.fork(CHILD, GRANDCHILD)
    store.truncate(GRANDCHILD, 2)
    store.retire(CHILD, "claude", ProviderSessionId("5b1c2d3e-0000-4000-8000-00000000dead"), "poisoned")


def _trouble(store: Store, clock: ManualClock) -> None:
    """Put back, failed, lost by one worker and recovered by the next; the first one reports too late."""
    store.put_back(_claim(store, LEAD, "put back").lease)
    failed = TurnEnd(
        TurnStatus.FAILED, failure=Failure(FailureClass.TRANSIENT, "529 overloaded"), retry_at=clock.now
    )
    store.finish_turn(_claim(store, LEAD, "fails").lease, failed)
    lost = _claim(store, LEAD, "lost").lease
    clock.advance(3600)
    for orphan in store.orphans():
        store.recover(orphan)
    try:
        store.finish_turn(lost, TurnEnd(TurnStatus.DONE, "too late"))
    except LeaseLost:
        pass


def _queue(store: Store, clock: ManualClock) -> None:
    """One turn runs, others wait, one of them for a time; one was cancelled."""
    running = _claim(store, LEAD, "running")
    store.launch(running.lease, Launch(running.decision))
    store.put_partial_text(running.lease, 1, Writing("It is half "))
    store.enqueue_turn(LEAD, NewTurn("Then this.", "claude", priority=5, max_attempts=1))
    store.enqueue_turn(HELPER, NewTurn("Tomorrow.", "codex", not_before=after(clock.now, 86_400)))
    store.enqueue_turn(CHILD, NewTurn("Not any more.", "claude"))
    store.cancel_turn(CHILD, store.turns(CHILD)[-1].seq)
    store.enqueue_turn(CHILD, NewTurn("Now.", "claude", TurnRequest(force_fresh=True), foreground=True))
    store.cancel_turn(LEAD, running.lease.seq)


def _approvals(store: Store, clock: ManualClock) -> None:
    """One that an agent asked for itself; one that was answered and used, and one that its turn waits for."""
    own = NewApproval(
        ApprovalId("apr-20260108-130000-00000001"), "apply the plan", {"plan": ["vpc", "dns"]},
        after(clock.now, 86_400), frozenset({"ada", "bob"}), "terraform-architect",
    )  # fmt: skip
    store.request_approval(DELEGATED, own)
    store.create_session(NewSession(ASKING, "claude", kind=SessionKind.CONVERSATION, provider="claude"))
    store.enqueue_turn(ASKING, NewTurn("Apply it.", "claude", PROFILE))
    for number in (2, 3):
        claimed = _claim(store, ASKING, f"asks {number}")
        session = ProviderSessionId("5b1c2d3e-0000-4000-8000-0000000000a5")
        chosen = session if number == 2 else None
        store.launch(claimed.lease, Launch(claimed.decision, provider_session_id=chosen))
        call = NewApproval(
            ApprovalId(f"apr-20260108-13000{number}-00000001"), "Bash: terraform apply",
            {"command": "terraform apply"}, requested_by="claude", call_id=f"toolu_{number}", tool="Bash",
        )  # fmt: skip
        end = TurnEnd(
            TurnStatus.WAITING, provider_session_id=session, transcript=MARK, usage=USED, approval=call
        )
        store.finish_turn(claimed.lease, end)
        if number == 2:
            asked = store.get_approval(call.id)
            store.answer_approval(call.id, Answer(True, "ada", asked.arguments_hash, asked.nonce, "go ahead"))

"""Owns the data of the contract suites: each builder makes a new value that is fine, changed as a test asks.

Ids and keys are new with every call, so that no two tests, and no two values of one test, meet by accident.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

from holdfast.clock import Instant
from holdfast.domain.approvals import Answer, Approval, NewApproval
from holdfast.domain.conversations import SeenTurns
from holdfast.domain.delegations import NewDelegation, Question
from holdfast.domain.events import Event, EventKind
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.ids import ApprovalId, ProviderSessionId, SessionId
from holdfast.domain.imports import KnownSource, SessionImport
from holdfast.domain.pointers import NOTHING_YET, Pointer, Rights, TranscriptMark
from holdfast.domain.runtimes import Capabilities, Runtime
from holdfast.domain.sessions import NewSession, SessionKind
from holdfast.domain.turns import (
    Adoption,
    ClaimRequest,
    NewTurn,
    OutsideTurn,
    ProcessMark,
    TurnEnd,
    TurnRequest,
    TurnStatus,
)
from holdfast.domain.usage import ContextUse
from holdfast.domain.vault import VaultBundle, VaultChunk, VaultFile, VaultPart
from holdfast.store.packing import digest_of, pack
from tests.clock import NOON

_numbers = count(1)


def a_session_id() -> SessionId:
    return SessionId(f"agent-20260108-120000-{next(_numbers):08x}")


def a_provider_session_id() -> ProviderSessionId:
    return ProviderSessionId(f"5b1c2d3e-0000-4000-8000-{next(_numbers):012x}")


def a_chunk(data: bytes = b"a line\n") -> VaultChunk:
    return VaultChunk(digest_of(data), len(data), *pack(data))


def a_file(*parts: bytes, name: str = "projects/-srv-infra/5b1c.jsonl", is_main: bool = True) -> VaultFile:
    """A file in the vault that consists of these bytes."""
    kept = tuple(VaultPart(digest_of(part), len(part)) for part in parts)
    return VaultFile(name, sum(map(len, parts)), is_main, kept)


def a_bundle(*files: VaultFile, **changes: Any) -> VaultBundle:
    """A session of Claude, as ``a_runtime()`` keeps it."""
    made = VaultBundle(
        "claude", a_provider_session_id(), "", "/home/ada/.claude", None, "/srv/infra", files or (a_file(b"a line\n"),)
    )  # fmt: skip
    return replace(made, **changes)


def a_session(**changes: Any) -> NewSession:
    """A delegated session of an agent that runs on Claude."""
    return replace(NewSession(id=a_session_id(), agent="terraform-architect", provider="claude"), **changes)


def a_turn(prompt: str = "plan the change", **changes: Any) -> NewTurn:
    """For Claude, in the work dir that ``a_pointer()`` records."""
    return replace(NewTurn(prompt, "claude", TurnRequest(work_dir="/srv/infra")), **changes)


def a_runtime(**changes: Any) -> Runtime:
    """Claude Code on one machine; it can resume, fork and take an id."""
    able = Capabilities(can_resume=True, can_fork=True, chooses_id=True)
    return replace(
        Runtime("build-7", "claude", "npm", "/home/ada/.claude", capabilities=able, version="2.1.0"),
        **changes,
    )


def a_codex_runtime(**changes: Any) -> Runtime:
    return a_runtime(provider="codex", home="/home/ada/.codex", version="0.80.0", **changes)


def a_claim(**changes: Any) -> ClaimRequest:
    """By a worker on ``a_runtime()``, for a minute, with a key of its own."""
    return replace(ClaimRequest(a_runtime(), "worker-1", f"claim-{next(_numbers)}", 60.0), **changes)


def an_event(number: int = 1, **changes: Any) -> Event:
    return replace(Event(number, EventKind.TEXT, {"text": f"step {number}"}, NOON), **changes)


def a_delegation(**changes: Any) -> NewDelegation:
    """Of the agent of ``a_session()``, in the project of ``a_turn()``."""
    usual = {"agent": "terraform-architect", "project": "/srv/infra", "provider": "claude"}
    return NewDelegation(
        **{**usual, "id": f"toolu_{next(_numbers)}", "new_session_id": a_session_id(), **changes}
    )


def a_question(**changes: Any) -> Question:
    return Question(
        **{
            "id": f"asked-{next(_numbers)}",
            "agent": "terraform-architect",
            "project": "/srv/infra",
            **changes,
        }
    )


def a_process(**changes: Any) -> ProcessMark:
    return replace(ProcessMark("build-7", "boot-1", 4242, 1_000_000), **changes)


def done(response: str = "planned", **changes: Any) -> TurnEnd:
    """A turn that succeeded, in a provider session of its own unless one is named."""
    end = TurnEnd(TurnStatus.DONE, response=response, provider_session_id=a_provider_session_id())
    return replace(end, **changes)


def an_approval(**changes: Any) -> NewApproval:
    """Of one tool call, which anyone may answer at any time."""
    new = NewApproval(
        ApprovalId(f"apr-20260108-120000-{next(_numbers):08x}"), "Bash: terraform apply",
        {"command": "terraform apply"}, requested_by="claude", call_id="toolu_01", tool="Bash",
    )  # fmt: skip
    return replace(new, **changes)


def an_answer(approval: Approval, approved: bool = True, **changes: Any) -> Answer:
    """To what was asked, by someone who may."""
    note = None if approved else "not like this"
    return replace(Answer(approved, "ada", approval.arguments_hash, approval.nonce, note), **changes)


def deferred(**changes: Any) -> TurnEnd:
    """A turn that waits for an approval; the provider's session file holds the call."""
    mark = TranscriptMark("projects/infra/5b1c2d3e.jsonl", size=4096, digest="d1935t", turns=1)
    end = TurnEnd(
        TurnStatus.WAITING, provider_session_id=a_provider_session_id(), transcript=mark,
        approval=an_approval(),
    )  # fmt: skip
    return replace(end, **changes)


def failed(
    failure_class: FailureClass = FailureClass.UNKNOWN, message: str = "it broke", **changes: Any
) -> TurnEnd:
    return replace(TurnEnd(TurnStatus.FAILED, failure=Failure(failure_class, message)), **changes)


def an_adoption(pointer: Pointer, **changes: Any) -> Adoption:
    """One turn that a person made in the session that the pointer names."""
    turns = (OutsideTurn("made-by-hand", "by hand", "done by hand"),)
    mark = replace(pointer.transcript or NOTHING_YET, size=8192)
    adoption = Adoption(pointer, turns, pointer.seen or SeenTurns(), mark)
    return replace(adoption, **changes)


def an_import(**changes: Any) -> SessionImport:
    """A session that Claude kept alone: one turn, with a call."""
    session_id, native = a_session_id(), a_provider_session_id()
    new = NewSession(session_id, "claude", "by hand", SessionKind.CONVERSATION, provider="claude", began_at=Instant(1_000))  # fmt: skip
    call = Event(1, EventKind.TOOL_CALL, {"call_id": "c1", "tool": "Bash", "arguments": {}}, Instant(2_000))
    turn = OutsideTurn("outside:1", "by hand", "done", Instant(1_000), Instant(2_000), (call,))
    pointer = a_pointer(session_id, provider_session_id=native, runtime_id=None, seen=SeenTurns())
    return replace(SessionImport(new, native, (turn,), pointer), **changes)


def a_source(**changes: Any) -> KnownSource:
    place = f"/home/ada/.claude/projects/-srv/{next(_numbers):08x}.jsonl"
    return replace(KnownSource("build-7", "claude", "/home/ada/.claude", place, 10, 20), **changes)


def a_pointer(session_id: str, **changes: Any) -> Pointer:
    """Recorded in full on ``a_runtime()`` after one turn; its runtime has to be registered first."""
    pointer = Pointer(
        session_id=SessionId(session_id),
        provider="claude",
        provider_session_id=a_provider_session_id(),
        runtime_id=a_runtime().id,
        work_dir="/srv/infra",
        model="opus",
        epoch=0,
        generation=0,
        seen=SeenTurns.up_to(1),
        rights=Rights(),
        transcript=TranscriptMark("projects/infra/5b1c2d3e.jsonl", size=4096, digest="d1935t"),
        context=ContextUse(tokens=20_000, window=200_000),
        version="2.1.0",
        updated_at=NOON,
    )
    return replace(pointer, **changes)

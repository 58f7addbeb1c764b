"""Owns what a store of any version must still say about its contents: plain data, in words that stay."""

from typing import Any

from holdfast.clock import to_iso
from holdfast.domain.approvals import Approval
from holdfast.domain.pointers import Pointer
from holdfast.domain.sessions import Session, SessionFilter
from holdfast.domain.turns import Attempt, Turn, TurnRequest
from holdfast.domain.usage import Usage
from holdfast.domain.vault import VaultEntry
from holdfast.store.contract import Store

Document = dict[str, Any]


def portrait(store: Store) -> Document:
    """Everything in the workspace, read with the store's own verbs."""
    found = store.list_sessions(SessionFilter(), 1000).sessions
    return {
        "sessions": {session.id: _session(store, session) for session in found},
        "runtimes": sorted(
            [runtime.id, runtime.machine, runtime.provider, runtime.home, runtime.version]
            for runtime in (known.runtime for known in store.runtimes())
        ),
        "vault": {
            entry.provider_session_id: _bundle(store, entry) for entry in store.vault_entries(limit=1000)
        },
    }


def _bundle(store: Store, entry: VaultEntry) -> Document:
    bundle = store.bundle(entry.provider, entry.provider_session_id, entry.branch)
    assert bundle is not None
    return {
        "about": [bundle.provider, bundle.branch, bundle.home, bundle.runtime_id, bundle.work_dir],
        "files": {
            file.name: [
                [chunk.digest, chunk.size, chunk.codec, chunk.data.hex()]
                for chunk in store.read_chunks([part.digest for part in file.parts])
            ]
            for file in bundle.files
        },
    }


def _session(store: Store, session: Session) -> Document:
    error = session.last_error
    return {
        "agent": session.agent,
        "kind": session.kind.value,
        "purpose": session.purpose,
        "name": session.name,
        "title": session.title,
        "provider": session.provider,
        "phase": session.phase.value,
        "resume_ready": session.resume_ready,
        "metadata": session.metadata,
        "errors": [session.error_count, None if error is None else error.message],
        "created_at": to_iso(session.created_at),
        "updated_at": to_iso(session.updated_at),
        "finalized_at": None if session.finalized_at is None else to_iso(session.finalized_at),
        "summary": session.summary,
        "parent": session.parent_session_id,
        "children": [child.id for child in store.children(session.id)],
        "usage": _usage(session.usage),
        "phases": [[change.from_phase, change.to_phase] for change in store.phase_history(session.id)],
        "partial_text": _partial_text(store, session.id),
        "conversation": _conversation(store, session.conversation_id),
        "turns": {str(turn.seq): _turn(store, turn) for turn in store.turns(session.id)},
        "approvals": {
            approval.id: _approval(approval)
            for approval in store.approvals(session_id=session.id, open_only=False)
        },
        "delegations": [
            [held.id, held.project, held.resumed, held.reason, held.outcome]
            for held in store.delegations(session.id)
        ],
        "pointers": {pointer.provider: _pointer(pointer) for pointer in store.pointers(session.id)},
        "provider_sessions": {
            used.id: [used.provider, used.forked_from, used.retired, _usage(used.usage)]
            for used in store.provider_sessions(session.id)
        },
    }


def _partial_text(store: Store, session_id: str) -> list[object] | None:
    found = store.partial_text(session_id)
    return None if found is None else [found.turn, found.attempt, found.number, found.text, found.skipped]


def _approval(approval: Approval) -> Document:
    return {
        "turn": approval.seq,
        "call": [approval.tool, approval.call_id],
        "what": [approval.what, approval.arguments, approval.arguments_hash],
        "nonce": approval.nonce,
        "requested": [approval.requested_by, to_iso(approval.requested_at), approval.expires_at],
        "answerers": sorted(approval.answerers),
        "status": approval.status.value,
        "answer": [approval.answered_by, approval.note, approval.answered_at, approval.used_at],
        "void_reason": approval.void_reason,
    }


def _conversation(store: Store, conversation_id: str) -> Document:
    conversation = store.get_conversation(conversation_id)
    point = conversation.fork_point
    return {
        "id": conversation.id,
        "fork_point": None if point is None else [point.conversation_id, point.seq, point.revision],
        "revision": conversation.revision,
        "generation": conversation.generation,
        "next_seq": conversation.next_seq,
        "history": [
            [turn.seq, turn.agent, turn.status, turn.revision, turn.prompt, turn.response]
            for turn in store.history(conversation_id)
        ],
        "late_reports": [
            [late.seq, late.fence, late.verb, late.report] for late in store.late_reports(conversation_id)
        ],
    }


def _turn(store: Store, turn: Turn) -> Document:
    failure = turn.failure
    return {
        "status": turn.status.value,
        "provider": turn.provider,
        "prompt": turn.prompt,
        "response": turn.response,
        "request": _request(turn.request),
        "priority": turn.priority,
        "not_before": turn.not_before,
        "foreground": turn.foreground,
        "retry_of": turn.retry_of,
        "dropped": turn.dropped,
        "failure": None if failure is None else [failure.failure_class.value, failure.message],
        "cancel_requested": turn.cancel_requested,
        "attempts": [_attempt(attempt) for attempt in store.attempts(turn.conversation_id, turn.seq)],
        "events": [
            [attempt, event.number, event.kind.value, event.data, event.at]
            for attempt, event in store.events(turn.conversation_id, turn.seq)
        ],
    }


def _request(request: TurnRequest) -> Document:
    rights = request.rights
    return {
        "work_dir": request.work_dir,
        "model": request.model,
        "tools": None if rights is None else sorted(rights.allowed_tools),
        "force_fresh": request.force_fresh,
        "provider_session_id": request.provider_session_id,
    }


def _attempt(attempt: Attempt) -> Document:
    failure, process = attempt.failure, attempt.process
    return {
        "status": attempt.status.value,
        "cause": attempt.cause.value,
        "owner": attempt.owner,
        "fence": attempt.fence,
        "decision": [attempt.decision.kind, attempt.decision.reason],
        "runtime": attempt.runtime_id,
        "provider_session_id": attempt.provider_session_id,
        "work_dir": attempt.work_dir,
        "model": attempt.model,
        "epoch": attempt.epoch,
        "seen": str(attempt.seen),
        "process": None if process is None else [process.machine, process.boot_id, process.pgid],
        "failure": None if failure is None else [failure.failure_class.value, failure.message],
        "usage": _usage(attempt.usage),
    }


def _pointer(pointer: Pointer) -> Document:
    transcript, context = pointer.transcript, pointer.context
    return {
        "provider_session_id": pointer.provider_session_id,
        "runtime": pointer.runtime_id,
        "work_dir": pointer.work_dir,
        "model": pointer.model,
        "epoch": pointer.epoch,
        "generation": pointer.generation,
        "seen": None if pointer.seen is None else str(pointer.seen),
        "transcript": None if transcript is None else [transcript.path, transcript.size, transcript.digest],
        "context": None if context is None else [context.tokens, context.window],
        "version": pointer.version,
        "fork_seq": pointer.fork_seq,
    }


def _usage(usage: Usage) -> list[float]:
    return [usage.input_tokens, usage.cached_input_tokens, usage.output_tokens, usage.cost_usd]

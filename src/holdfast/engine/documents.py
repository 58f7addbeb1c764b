"""Owns the JSON documents that the command and the server show: sessions, turns, attempts, approvals, results, figures."""

from __future__ import annotations

from holdfast.clock import to_iso
from holdfast.domain.phases import MayContinue
from holdfast.domain.records import fields
from holdfast.domain.sessions import state_document
from holdfast.domain.usage import context_state

# the commands that scripts call import this module: what only other documents need is imported there
TYPE_CHECKING = False

if TYPE_CHECKING:
    from holdfast.clock import Instant
    from holdfast.domain.approvals import Approval
    from holdfast.domain.conversations import Conversation, HistoryTurn
    from holdfast.domain.events import Event
    from holdfast.domain.failures import Failure
    from holdfast.domain.pointers import Pointer, ProviderSessionTotals
    from holdfast.domain.policy import ResumePolicy
    from holdfast.domain.runtimes import KnownRuntime, Runtime
    from holdfast.domain.search import SearchHit, SearchPage
    from holdfast.domain.sessions import PhaseChange, Session, SessionState
    from holdfast.domain.statistics import Stats
    from holdfast.domain.turns import Attempt, LateReport, Turn
    from holdfast.domain.usage import ContextUse
    from holdfast.engine.doctor.findings import Finding
    from holdfast.engine.explain import Explanation, Waited, WaitingTurn
    from holdfast.engine.restoring import Restoration
    from holdfast.engine.result import RunResult
    from holdfast.engine.session_log import AuditEntry

Document = dict[str, object]


def session_document(
    session: Session, state: SessionState, history: tuple[PhaseChange, ...] | None = None
) -> Document:
    """The published state of a session, and what else identifies the session. The phase history only if it was read."""
    document = state_document(session, history or (), state)
    if history is None:
        del document["history"]
    return document | {
        "session_id": session.id,
        "conversation_id": session.conversation_id,
        "parent_session_id": session.parent_session_id,
        "name": session.name,
        "title": session.title,
        "directory": state.directory,
        "kind": session.kind.value,
        "provider": session.provider,
        "provider_session_id": state.provider_session_id,
        "imported_at": _moment(session.imported_at),
        "usage": _flat(session.usage),
    }


def finding_document(finding: Finding) -> Document:
    return {
        "check": finding.check,
        "code": finding.code,
        "severity": finding.severity.value,
        "found": finding.found,
        "meaning": finding.meaning,
        "command": finding.command,
        "subjects": list(finding.subjects),
        "fixable": finding.mending is not None,
    }


def search_document(page: SearchPage, here: str | None) -> Document:
    """``continue_with`` of each hit is for somebody in the directory ``here``."""
    return {
        "hits": [_hit(hit, here) for hit in page.hits],
        "more": page.more,
        "all_words": page.all_words,
        "pending": page.pending,
    }


def _hit(hit: SearchHit, here: str | None) -> Document:
    return {
        "session_id": hit.session_id,
        "agent_name": hit.agent,
        "name": hit.name,
        "purpose": hit.purpose,
        "provider": hit.provider,
        "directory": hit.directory,
        "closed": hit.is_closed,
        "turn": hit.turn,
        "at": to_iso(hit.at),
        "matching_turns": hit.turns,
        "found_in": hit.found_in.value,
        "snippet": hit.snippet.text,
        "marks": [list(mark) for mark in hit.snippet.marks],
        "continue_with": hit.continue_with(here),
    }


def provider_session_document(
    pointer: Pointer | None, known: tuple[ProviderSessionTotals, ...]
) -> dict[str, str | None]:
    """The provider's own session. Until a fork is launched it has none of its own, only the one that it will fork."""
    own_id: str | None = None
    source: str | None = None
    last_seen: Instant | None = None
    if pointer is not None and pointer.is_fork_source:
        source = pointer.provider_session_id
    elif pointer is not None:
        own_id = pointer.provider_session_id
        last_seen = pointer.updated_at
        for one in known:
            if (one.provider, one.id) == (pointer.provider, own_id):
                source, last_seen = one.forked_from, one.last_seen_at
    return {
        "provider_session_id": own_id,
        "provider_session_forked_from": source,
        "provider_session_last_seen_at": _moment(last_seen),
    }


def pointer_document(pointer: Pointer, policy: ResumePolicy) -> Document:
    return {
        "provider": pointer.provider,
        "provider_session_id": pointer.provider_session_id,
        "is_fork_source": pointer.is_fork_source,
        "runtime_id": pointer.runtime_id,
        "work_dir": pointer.work_dir,
        "model": pointer.model,
        "version": pointer.version,
        "seen": None if pointer.seen is None else str(pointer.seen),
        "epoch": pointer.epoch,
        "generation": pointer.generation,
        "context": None if pointer.context is None else _context(pointer.context, policy),
        "updated_at": to_iso(pointer.updated_at),
    }


def _context(use: ContextUse, policy: ResumePolicy) -> Document:
    return {**_flat(use), "state": context_state(use, policy).value}


def totals_document(totals: ProviderSessionTotals) -> Document:
    return {
        "provider": totals.provider,
        "provider_session_id": totals.id,
        "forked_from": totals.forked_from,
        "retired": totals.retired,
        "last_seen_at": to_iso(totals.last_seen_at),
        "usage": _flat(totals.usage),
    }


def history_turn_document(turn: HistoryTurn) -> Document:
    return {
        "turn": turn.seq,
        "agent_name": turn.agent,
        "session_id": turn.session_id,
        "status": turn.status,
        "revision": turn.revision,
        "retry_of": turn.retry_of,
        "attempts": turn.attempts,
        "not_before": _moment(turn.not_before),
        "created_at": to_iso(turn.at),
        "prompt": turn.prompt,
        "response": turn.response,
    }


def turn_document(turn: Turn) -> Document:
    return {
        "turn": turn.seq,
        "session_id": turn.session_id,
        "conversation_id": turn.conversation_id,
        "provider": turn.provider,
        "status": turn.status.value,
        "retry_of": turn.retry_of,
        "not_before": _moment(turn.not_before),
        "runtime_id": turn.runtime_id,
        "created_at": to_iso(turn.created_at),
        "prompt": turn.prompt,
        "response": turn.response,
    }


def conversation_document(conversation: Conversation) -> Document:
    point = conversation.fork_point
    return {
        "conversation_id": conversation.id,
        "revision": conversation.revision,
        "generation": conversation.generation,
        "next_turn": conversation.next_seq,
        "forked_from": None if point is None else point.conversation_id,
        "forked_at": None if point is None else point.seq,
    }


def approval_document(approval: Approval, now: Instant) -> Document:
    return {
        "approval_id": approval.id,
        "session_id": approval.session_id,
        "turn": approval.seq,
        "tool": approval.tool,
        "what": approval.what,
        "arguments": approval.arguments,
        "arguments_hash": approval.arguments_hash,
        "nonce": approval.nonce,
        "status": approval.status.value,
        "expired": approval.is_expired(now),
        "requested_at": to_iso(approval.requested_at),
        "requested_by": approval.requested_by,
        "expires_at": _moment(approval.expires_at),
        "answerers": sorted(approval.answerers),
        "answered_at": _moment(approval.answered_at),
        "answered_by": approval.answered_by,
        "note": approval.note,
        "used_at": _moment(approval.used_at),
        "void_reason": approval.void_reason,
    }


def waited_document(waited: Waited, now: Instant) -> Document:
    return {
        "session_id": waited.session.id,
        "reached": waited.reached.value,
        "phase": waited.session.phase.value,
        "turn": None if waited.turn is None else turn_document(waited.turn),
        "approval": None if waited.approval is None else approval_document(waited.approval, now),
    }


def restored_document(session_id: str, restored: tuple[Restoration, ...], *, dry_run: bool) -> Document:
    return {
        "session_id": session_id,
        "dry_run": dry_run,
        "restored": [
            {
                "provider": each.provider,
                "provider_session_id": each.provider_session_id,
                "outcome": each.outcome.value,
                "branch": each.branch,
                "files": [
                    {
                        "name": file.name,
                        "path": file.path,
                        "found": file.found.value,
                        "written": file.is_written,
                    }
                    for file in each.files
                ],
                "left_out": list(each.left_out),
            }
            for each in restored
        ],
    }


def explanation_document(explanation: Explanation, sentence: str) -> Document:
    from holdfast.domain.decisions import decision_document

    return {
        "may_continue": explanation.may_continue is MayContinue.YES,
        "may_continue_reason": explanation.may_continue.value,
        "runtime_id": None if explanation.runtime is None else explanation.runtime.id,
        "decision": decision_document(explanation.decision),
        "verdict": sentence,
        **waiting_document(explanation.waiting),
        "last": _last(explanation),
    }


def waiting_document(waiting: WaitingTurn | None) -> Document:
    """What the turn at the head of the queue waits for, besides a worker; null if it does not wait for that."""
    if waiting is None:
        return {"waits_for_time": None, "waits_for_runtime": None}
    turn, until, known = waiting.turn, waiting.until, waiting.runtime
    time = {"turn": turn.seq, "attempt": turn.attempts + 1, "not_before": _moment(until)}
    return {
        "waits_for_time": None if until is None else time,
        "waits_for_runtime": None if known is None else {"turn": turn.seq, **known_runtime_document(known)},
    }


def known_runtime_document(known: KnownRuntime) -> Document:
    return {**runtime_document(known.runtime), "last_seen_at": to_iso(known.last_seen_at)}


def runtime_document(runtime: Runtime) -> Document:
    return {
        "runtime_id": runtime.id,
        "provider": runtime.provider,
        "machine": runtime.machine,
        "distribution": runtime.distribution,
        "version": runtime.version,
        "home": runtime.home,
        "capabilities": _flat(runtime.capabilities),
    }


def _last(explanation: Explanation) -> Document | None:
    attempt, turn = explanation.last_attempt, explanation.last_turn
    if attempt is None:
        return None
    return {**attempt_document(attempt), "retry_of": None if turn is None else turn.retry_of}


def attempt_document(attempt: Attempt) -> Document:
    from holdfast.domain.decisions import decided_document

    return {
        "turn": attempt.seq,
        "attempt": attempt.number,
        "attempt_id": attempt.id,
        "cause": attempt.cause.value,
        "provider": attempt.provider,
        "runtime_id": attempt.runtime_id,
        "status": attempt.status.value,
        "decision": decided_document(attempt.decision),
        "provider_session_id": attempt.provider_session_id,
        "started_at": to_iso(attempt.started_at),
        "ended_at": _moment(attempt.ended_at),
        "failure": failure_document(attempt.failure),
    }


def event_document(attempt: int, event: Event) -> Document:
    return {
        "attempt": attempt,
        "number": event.number,
        "at": to_iso(event.at),
        "kind": event.kind.value,
        "data": dict(event.data),
    }


def audit_document(entry: AuditEntry) -> Document:
    return {
        "turn": entry.turn,
        "attempt": None,
        "number": None,
        "at": to_iso(entry.at),
        "kind": entry.kind.value,
        "by": entry.by,
        "data": entry.data,
    }


def result_document(result: RunResult) -> Document:
    from holdfast.domain.decisions import decision_document
    from holdfast.domain.telling.transcript import past_document

    return {
        "session_id": result.session_id,
        "turn": result.turn,
        "status": result.status,
        "text": result.text,
        "decision": decision_document(result.decision),
        "provider": result.provider,
        "provider_session_id": result.provider_session_id,
        "work_dir": result.work_dir,
        "usage": _flat(result.usage),
        "failure": failure_document(result.failure),
        "notices": list(result.notices),
        "approval": None if result.approval is None else _asked(result.approval),
        "past": past_document(result.past),
        "denied": [
            {"tool": one.call.tool, "what": one.words, "why": one.why, "call_id": one.call.call_id}
            for one in result.denied
        ],
        "allow_with": result.allow_with,
        "continue_with": result.continue_with,
    }


def _asked(approval: Approval) -> Document:
    return {
        "id": approval.id,
        "what": approval.what,
        "tool": approval.tool,
        "arguments": dict(approval.arguments),
        "arguments_hash": approval.arguments_hash,
        "expires_at": _moment(approval.expires_at),
    }


def stats_document(stats: Stats) -> Document:
    found = stats.figures
    return {
        "since": _moment(stats.since),
        "until": to_iso(stats.until),
        "agent_name": stats.agent,
        "measures": {
            one.name: {
                "value": one.value,
                "unit": one.unit.value,
                "target": one.target,
                "met": one.met,
                "of": dict(one.of),
            }
            for one in found.measures
        },
        "sessions_by_agent": dict(found.agents),
        "fresh_starts": dict(found.fresh_starts),
        "fallbacks": found.fallbacks,
        "lock_waits": found.lock_waits,
        "cleanups": dict(found.cleanups),
        "usage": {
            "input_tokens": found.tokens["input"],
            "cached_input_tokens": found.tokens["cached_input"],
            "output_tokens": found.tokens["output"],
            "cost_usd": found.cost_usd,
        },
    }


def late_report_document(late: LateReport) -> Document:
    return {
        "turn": late.seq,
        "attempt": late.attempt,
        "fence": late.fence,
        "verb": late.verb,
        "report": dict(late.report),
        "at": to_iso(late.at),
    }


def _moment(instant: Instant | None) -> str | None:
    return None if instant is None else to_iso(instant)


def failure_document(failure: Failure | None) -> Document | None:
    return None if failure is None else {"class": failure.failure_class.value, "message": failure.message}


def _flat(record: object) -> Document:
    """A record of plain values; ``dataclasses.asdict`` would load ``inspect``."""
    return {name: getattr(record, name) for name in fields(type(record))}

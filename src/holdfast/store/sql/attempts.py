"""Owns the rows of attempts and of their events: what ran, with which decision, in which provider session, and what happened."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from holdfast.domain.conversations import Conversation, SeenTurns
from holdfast.domain.decisions import (
    Decided,
    Decision,
    DecisionKind,
    Fork,
    Fresh,
    Reason,
    Resume,
    decision_kind,
)
from holdfast.domain.events import MAX_WRITING, Event, EventKind, PartialText, Writing
from holdfast.domain.failures import Failure
from holdfast.domain.ids import AttemptId, ConversationId, ProviderSessionId, RuntimeId, make_attempt_id
from holdfast.domain.inputs import clean_text
from holdfast.domain.pointers import NO_RIGHTS, Pointer, Rights, TranscriptMark, choose_pointer
from holdfast.domain.records import field, record, replace
from holdfast.domain.redaction import Json, RedactedData, encode_redacted, redact_text
from holdfast.domain.turns import (
    Attempt,
    AttemptCause,
    AttemptStatus,
    Launch,
    Lease,
    Turn,
    TurnRequest,
    TurnStatus,
)
from holdfast.domain.usage import NO_CALL_YET, NO_USAGE, Usage
from holdfast.errors import Conflict, LeaseLost, NotFound, StoreCorrupt
from holdfast.store.driver import Row
from holdfast.store.sql import approvals, codec, json_text, leases, provider_sessions
from holdfast.store.sql.rows import Rows, coded, cut, part
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.tables import ATTEMPTS, EVENTS, MISREAD, SESSIONS, read_instant, unreadable

ROWS = Rows(
    ATTEMPTS,
    Attempt,
    "turn {seq} attempt {number} of {session_id}",
    cause=AttemptCause,
    status=AttemptStatus,
    decision=part(codec.decode_decided, "decision", "reason", "evidence", encode=codec.encode_decided),
    seen=coded(str, codec.decode_seen),
    process=coded(codec.encode_process, codec.decode_process),
    failure=part(codec.decode_failure, "failure_class", "error"),
    usage=part(Usage, "input_tokens", "cached_input_tokens", "output_tokens", "cost_usd"),
    rights=coded(codec.encode_rights, codec.decode_rights),
    transcript=coded(codec.encode_transcript, codec.decode_transcript),
    before=part(codec.decode_transcript, "transcript_before"),
)
#: in the place of an attempt: the events of a turn that was made outside Holdfast
OUTSIDE = 0
EVENT = EVENTS.pick("attempt", "number", "kind", "at", "data")
KEY = "workspace = :ws AND conversation_id = :id AND seq = :seq AND number = :number"

GET = f"SELECT {ROWS.sql} FROM attempts WHERE {KEY}"
TO_LAUNCH = f"""
SELECT {ROWS.sql}, (SELECT t.request FROM turns t WHERE t.workspace = attempts.workspace
    AND t.conversation_id = attempts.conversation_id AND t.seq = attempts.seq)
FROM attempts WHERE {KEY}"""
OF_TURN = f"""
SELECT {ROWS.sql} FROM attempts
WHERE workspace = :ws AND conversation_id = :id AND seq = :seq ORDER BY number"""
NEWEST = f"""
SELECT {ROWS.sql} FROM attempts WHERE workspace = :ws AND session_id = :session_id
ORDER BY fence DESC LIMIT 1"""
# an attempt whose agent was never launched did nothing to any provider session
NEWEST_WITH_PROVIDER = f"""
SELECT {ROWS.sql} FROM attempts
WHERE workspace = :ws AND session_id = :session_id AND provider = :provider AND fence < :before
    AND (process IS NOT NULL OR transcript IS NOT NULL OR status IN ('done', 'deferred'))
ORDER BY fence DESC LIMIT 1"""
IN_PROVIDER_SESSION = f"""
SELECT {ROWS.sql} FROM attempts INDEXED BY attempts_by_provider_session
WHERE workspace = :ws AND provider_session_id = :provider_session_id AND provider = :provider
ORDER BY started_at DESC, fence DESC LIMIT :limit"""
CLAIMED = """
UPDATE turns SET status = 'claimed', attempts = :number, tries = tries + 1
WHERE workspace = :ws AND conversation_id = :id AND seq = :seq"""
BY_CLAIM_KEY = f"""
SELECT {ROWS.sql} FROM attempts WHERE workspace = :ws AND claim_key = :key AND status = 'open'"""
LAUNCH = f"""
UPDATE attempts SET decision = :decision, reason = :reason, evidence = :evidence,
    provider_session_id = :provider_session_id, forked_from = :forked_from, work_dir = :work_dir,
    model = :model, rights = :rights, process = :process, transcript_before = :transcript_before, seen = :seen
WHERE {KEY}"""
DEFERRED = """
SELECT provider_session_id, runtime_id FROM attempts
WHERE workspace = :ws AND conversation_id = :id AND seq = :seq AND status = 'deferred'
ORDER BY number DESC LIMIT 1"""
RUNNING = """
UPDATE turns SET status = 'running' WHERE workspace = :ws AND conversation_id = :id AND seq = :seq"""
PIN = f"UPDATE attempts SET provider_session_id = :provider_session_id, transcript = :transcript WHERE {KEY}"
END = f"""
UPDATE attempts SET status = :status, ended_at = :now, failure_class = :failure_class, error = :error,
    provider_session_id = :provider_session_id, transcript = :transcript, input_tokens = :input,
    cached_input_tokens = :cached, output_tokens = :output, cost_usd = :cost
WHERE {KEY}"""
INTERRUPT = f"""
UPDATE attempts SET status = :status, ended_at = :now, failure_class = :failure_class, error = :error,
    provider_session_id = :provider_session_id
WHERE {KEY}"""

EVENTS_OF_TURN = f"""
SELECT {EVENT.sql} FROM events
WHERE workspace = :ws AND conversation_id = :id AND seq = :seq
    AND (attempt > :attempt OR (attempt = :attempt AND number > :after))
ORDER BY attempt, number LIMIT :limit"""
NEWEST_EVENTS = f"""
SELECT {EVENT.sql} FROM events
WHERE workspace = :ws AND conversation_id = :id AND seq = :seq
ORDER BY attempt DESC, number DESC LIMIT :limit"""
BEFORE_NEWEST_EVENTS = """
SELECT attempt, number FROM events
WHERE workspace = :ws AND conversation_id = :id AND seq = :seq
ORDER BY attempt DESC, number DESC LIMIT 1 OFFSET :newest"""
PUT_PARTIAL_TEXT = f"""
UPDATE sessions SET partial_text = :partial_text
WHERE {leases.OF_LEASE} AND fence = :fence AND lease_expires_at IS NOT NULL"""
PARTIAL_TEXT = "SELECT conversation_id, fence, partial_text FROM sessions WHERE workspace = :ws AND id = :id"
HAS_EVENT = """
SELECT 1 FROM events
WHERE workspace = :ws AND conversation_id = :id AND seq = :seq AND attempt = :attempt AND number >= :number LIMIT 1"""
LAST_EVENT = """
SELECT COALESCE(MAX(number), 0) FROM events
WHERE workspace = :ws AND conversation_id = :id AND seq = :seq AND attempt = :attempt"""

#: of a session's first attempt
FIRST_FENCE = 1


def read_attempt(s: Scope, row: Row) -> Attempt:
    return ROWS.read(s.where, row)


@record
class Opening:
    """Everything that is known when an attempt begins."""

    lease: Lease
    turn: Turn
    conversation: Conversation
    decision: Decision
    pointer: Pointer | None
    covers: SeenTurns
    runtime_id: RuntimeId | None
    version: str | None
    key: str
    id: AttemptId = field(default_factory=lambda: make_attempt_id(os.urandom(8)))


def open_attempt(s: Scope, opening: Opening) -> AttemptCause:
    turn = opening.turn
    insert(s, opening, turn.next_cause)
    s.run(CLAIMED, id=turn.conversation_id, seq=turn.seq, number=opening.lease.attempt)
    return turn.next_cause


def insert(s: Scope, opening: Opening, cause: AttemptCause) -> None:
    lease, turn, decision = opening.lease, opening.turn, opening.decision
    work_dir, model, rights = _profile(opening)
    attempt = Attempt(
        id=opening.id,
        conversation_id=turn.conversation_id,
        seq=turn.seq,
        number=lease.attempt,
        session_id=turn.session_id,
        provider=turn.provider,
        runtime_id=opening.runtime_id,
        version=opening.version,
        owner=lease.owner,
        fence=lease.fence,
        cause=cause,
        status=AttemptStatus.OPEN,
        decision=Decided(decision_kind(decision), decision.reason, decision.verdicts),
        provider_session_id=decision.provider_session_id if isinstance(decision, Resume | Fresh) else None,
        forked_from=decision.provider_session_id if isinstance(decision, Fork) else None,
        work_dir=work_dir,
        model=model,
        rights=rights,
        epoch=opening.conversation.revision,
        generation=opening.conversation.generation,
        seen=opening.covers,
        started_at=s.now,
        process=None,
        transcript=None,
        ended_at=None,
        failure=None,
        usage=NO_USAGE,
    )
    s.run(ATTEMPTS.insert, claim_key=opening.key, **ROWS.values(attempt))


def _profile(opening: Opening) -> tuple[str | None, str | None, Rights | None]:
    """Work dir, model and rights: what the turn asks for, else what its pointer recorded.

    The work dir outlives a provider session that cannot be resumed. Rights stay those of the first
    launch, so that one narrower turn does not shut out the next.
    """
    request, pointer = opening.turn.request, opening.pointer
    if pointer is None:
        return request.work_dir, request.model, request.rights or NO_RIGHTS
    wanted = request.else_recorded(pointer)
    if not isinstance(opening.decision, Resume | Fork):
        return wanted.work_dir, request.model, wanted.rights
    return wanted.work_dir, wanted.model, wanted.rights if request.allow_wider_rights else pointer.rights


def begun_id(attempt: Attempt, turn: Turn) -> ProviderSessionId | None:
    """The attempt's provider session, unless its id was promised to a turn that was never launched."""
    promised = turn.status is TurnStatus.CLAIMED and attempt.decision.kind is DecisionKind.FRESH
    if promised and attempt.provider_session_id == turn.request.provider_session_id:
        return None
    return attempt.provider_session_id


def as_claimed(turn: Turn) -> Turn:
    return replace(turn, status=TurnStatus.CLAIMED, attempts=turn.attempts + 1, tries=turn.tries + 1)


def open_claim(s: Scope, key: str) -> Attempt | None:
    """The open attempt that a claim with this key made."""
    row = s.one(BY_CLAIM_KEY, key=key)
    return None if row is None else read_attempt(s, row)


def get(s: Scope, lease: Lease) -> Attempt:
    row = s.one(GET, id=lease.conversation_id, seq=lease.seq, number=lease.attempt)
    if row is None:
        raise missing(lease)
    return read_attempt(s, row)


def refuse_miscounted(s: Scope, turn: Turn) -> None:
    """Before an attempt is opened whose number would be taken."""
    if s.one(GET, id=turn.conversation_id, seq=turn.seq, number=turn.attempts + 1) is not None:
        raise miscounted(s, turn)


def miscounted(s: Scope, turn: Turn) -> StoreCorrupt:
    problem = f"turns: turn {turn.seq} of {turn.session_id} has more attempts than it counts"
    return StoreCorrupt(s.where, problem, table="turns")


def missing(lease: Lease) -> NotFound:
    return NotFound("attempt", f"{lease.seq}.{lease.attempt}", conversation_id=lease.conversation_id)


def of_turn(s: Scope, conversation_id: str, seq: int) -> tuple[Attempt, ...]:
    return tuple(read_attempt(s, row) for row in s.all(OF_TURN, id=conversation_id, seq=seq))


def deferred_in(s: Scope, conversation_id: str, seq: int) -> tuple[str | None, str | None]:
    """The provider session that holds the call which the turn waits for, and the runtime that has it."""
    provider_session_id, runtime_id = s.one(DEFERRED, id=conversation_id, seq=seq) or (None, None)
    return provider_session_id, runtime_id


def in_provider_session(s: Scope, provider: str, provider_session_id: str, limit: int) -> tuple[Attempt, ...]:
    rows = s.all(IN_PROVIDER_SESSION, provider=provider, provider_session_id=provider_session_id, limit=limit)
    return tuple(read_attempt(s, row) for row in rows)


def newest(s: Scope, session_id: str) -> Attempt | None:
    row = s.one(NEWEST, session_id=session_id)
    return None if row is None else read_attempt(s, row)


def newest_pointer(s: Scope, session_id: str, provider: str, before_fence: int) -> Pointer | None:
    """Returns the pointer that the newest launched attempt with this provider makes by itself."""
    if before_fence <= FIRST_FENCE:
        return None
    row = s.one(NEWEST_WITH_PROVIDER, session_id=session_id, provider=provider, before=before_fence)
    if row is None:
        return None
    attempt = read_attempt(s, row)
    pointer = attempt.pointer()
    if pointer is None or attempt.status.has_spoken or attempt.decision.kind is not DecisionKind.RESUME:
        return pointer
    if provider_sessions.state(s, provider, pointer.provider_session_id).retired is not None:
        return pointer
    # a resume without an answer: nobody knows whether the agent was told what it had missed
    return replace(pointer, seen=None)


def launch(s: Scope, lease: Lease, launched: Launch) -> None:
    """Before the process starts: the final decision, and the id where we chose it ourselves."""
    leases.require(s, lease)
    row = s.one(TO_LAUNCH, id=lease.conversation_id, seq=lease.seq, number=lease.attempt)
    if row is None:
        raise missing(lease)
    own, (asked,) = cut(row, ROWS)
    attempt, decision = read_attempt(s, own), launched.decision
    _refuse_stronger(attempt, decision)
    request = codec.decode_request(asked)
    _refuse_wider(attempt, request, launched.rights)
    _refuse_elsewhere(s, attempt, request, launched.work_dir)
    if attempt.cause is AttemptCause.APPROVAL:
        _act_on_answer(s, attempt, decision)
    chosen = _chosen_id(launched)
    if chosen is not None and chosen != attempt.provider_session_id:
        provider_sessions.refuse_owned(s, attempt.provider, chosen, lease.session_id)
    resumed = decision.provider_session_id if isinstance(decision, Resume) else None
    forked_from = decision.provider_session_id if isinstance(decision, Fork) else None
    s.run(
        LAUNCH, id=lease.conversation_id, seq=lease.seq, number=lease.attempt,
        decision=decision_kind(decision).value, reason=decision.reason.value,
        evidence=codec.encode_evidence(decision), provider_session_id=chosen or resumed,
        forked_from=forked_from, work_dir=launched.work_dir or attempt.work_dir,
        model=launched.model or attempt.model,
        rights=codec.encode_rights(launched.rights or attempt.rights),
        process=codec.encode_process(launched.process),
        transcript_before=codec.encode_transcript(launched.transcript),
        seen=str(attempt.seen.union(launched.told)),
    )  # fmt: skip
    s.run(RUNNING, id=lease.conversation_id, seq=lease.seq)
    used = chosen or resumed
    if used is not None:
        _take(s, replace(attempt, forked_from=forked_from), used, lease)


def _act_on_answer(s: Scope, attempt: Attempt, decision: Decision) -> None:
    """Mark the answer as used. If a crash follows, no later attempt acts on the answer again."""
    if not isinstance(decision, Resume):
        raise Conflict(f"turn {attempt.seq} acts on an answer: no other session can", reason=decision.reason)
    approvals.use(s, attempt.session_id, attempt.seq)


def _take(s: Scope, attempt: Attempt, provider_session_id: str, lease: Lease) -> None:
    """Raises LeaseLost if another session has become the writer of the provider session."""
    provider = attempt.provider
    if attempt.provider_session_id == provider_session_id:
        taken = provider_sessions.is_taken(s, provider, provider_session_id, lease)
    else:
        taken = not provider_sessions.take(s, provider, provider_session_id, lease, attempt.forked_from)
    if taken:
        provider_sessions.refuse_retired(s, provider, provider_session_id)
        raise LeaseLost(lease.session_id, lease.seq, lease.fence)
    if attempt.forked_from is not None:
        provider_sessions.inherit_account(s, provider, provider_session_id, attempt.forked_from)


def _refuse_stronger(attempt: Attempt, decision: Decision) -> None:
    """The launch may only weaken what the claim decided."""
    match decision:
        case Resume(session_id):
            claimed = (
                attempt.decision.kind is DecisionKind.RESUME and attempt.provider_session_id == session_id
            )
        case Fork(session_id):
            claimed = attempt.decision.kind is DecisionKind.FORK and attempt.forked_from == session_id
        case Fresh():
            return
        case _:
            raise Conflict(f"nothing is launched on {decision_kind(decision)}", reason=decision.reason)
    if not claimed:
        raise Conflict(
            f"the claim of turn {attempt.seq} did not decide to {decision_kind(decision)} that session"
        )


def _refuse_wider(attempt: Attempt, request: TurnRequest, rights: Rights | None) -> None:
    """A turn runs with the rights that it asked for, or else with those recorded: a worker adds none."""
    if rights is None:
        return
    allowed = request.rights or attempt.rights or NO_RIGHTS
    waits = frozenset() if request.allow_wider_rights else allowed.approve_tools | request.approve_tools
    if not rights.within(replace(allowed, approve_tools=waits)):
        raise Conflict(f"turn {attempt.seq} was not put in with the rights that it is launched with")


def _refuse_elsewhere(s: Scope, attempt: Attempt, request: TurnRequest, work_dir: str | None) -> None:
    """A turn runs in the directory that was asked for, or else recorded.

    Only a directory that was recorded on another runtime does not bind this one. One that was recorded on no known
    runtime binds all: otherwise a worker that makes a runtime up could run the turn where it likes.
    """
    if work_dir is None or attempt.work_dir in (None, work_dir):
        return
    if request.work_dir is None and attempt.runtime_id is not None:
        stored = provider_sessions.pointer(s, attempt.session_id, attempt.provider)
        newest = newest_pointer(s, attempt.session_id, attempt.provider, attempt.fence)
        known = choose_pointer(stored, newest, attempt.runtime_id)
        if known is None or known.runtime_id not in (None, attempt.runtime_id):
            return
    raise Conflict(f"turn {attempt.seq} runs in {attempt.work_dir}, not in {work_dir}", work_dir=work_dir)


def _chosen_id(launched: Launch) -> ProviderSessionId | None:
    """Returns the id that Holdfast gives the new provider session. An id that the turn asked for is never replaced."""
    decision, given = launched.decision, launched.provider_session_id
    if isinstance(decision, Fork) and given is not None:
        _refuse_source(given, decision.provider_session_id)
    asked = decision.provider_session_id if isinstance(decision, Fresh) else None
    if asked is not None and given is not None and given != asked:
        raise Conflict(f"the turn asked for the session {asked}, not {given}", provider_session_id=asked)
    return given or asked


def _refuse_source(provider_session_id: str, source: str | None) -> None:
    if provider_session_id == source:
        raise Conflict(
            f"{source} is the session that is forked, not the fork", provider_session_id=source
        )  # fmt: skip


def pin(
    s: Scope, lease: Lease, provider_session_id: ProviderSessionId, transcript: TranscriptMark | None
) -> None:
    """The provider's store holds the session: from now on it can be picked up.

    After the lease is lost, only the empty slot of the session's newest attempt is filled; nothing
    that is newer, and no pointer, is touched.
    """
    held = leases.is_held(s, lease)
    attempt = get(s, lease)
    if (attempt.session_id, attempt.fence) != (lease.session_id, lease.fence):
        raise LeaseLost(lease.session_id, lease.seq, lease.fence)
    _refuse_source(provider_session_id, attempt.forked_from)
    known = attempt.provider_session_id
    if known and known != provider_session_id:
        raise Conflict(
            f"this attempt already runs {attempt.provider} session {known}", provider_session_id=known
        )
    if not held:
        latest = newest(s, lease.session_id)
        if known or latest is None or latest.fence != lease.fence:
            raise LeaseLost(lease.session_id, lease.seq, lease.fence)
    if not known:
        provider_sessions.refuse_owned(s, attempt.provider, provider_session_id, lease.session_id)
    s.run(
        PIN, id=lease.conversation_id, seq=lease.seq, number=lease.attempt,
        provider_session_id=provider_session_id, transcript=codec.encode_transcript(transcript),
    )  # fmt: skip
    if held and provider_sessions.state(s, attempt.provider, provider_session_id).retired is None:
        _take(s, attempt, provider_session_id, lease)
        pinned = replace(attempt, provider_session_id=provider_session_id, transcript=transcript).pointer()
        if pinned is not None and not stands_in(s, attempt):
            provider_sessions.move_pointer(s, replace(pinned, context=NO_CALL_YET, updated_at=s.now))


def stands_in(s: Scope, attempt: Attempt) -> bool:
    """True if the attempt runs in place of a doubted session: the pointer stays there until the attempt is answered."""
    if attempt.decision.reason is not Reason.RESUME_FAILED:
        return False
    stored = provider_sessions.pointer(s, attempt.session_id, attempt.provider)
    return stored is not None and stored.provider_session_id != attempt.provider_session_id


def interrupt(s: Scope, lease: Lease, turn: Turn, status: AttemptStatus, failure: Failure | None) -> Attempt:
    """End an attempt of which nothing was reported; the attempt as it was."""
    attempt = get(s, lease)
    s.run(
        INTERRUPT, id=lease.conversation_id, seq=lease.seq, number=lease.attempt, status=status.value,
        now=s.now, failure_class=failure.failure_class.value if failure else None,
        error=redact_text(clean_text(failure.message)) if failure else None,
        provider_session_id=begun_id(attempt, turn),
    )  # fmt: skip
    return attempt


def add_events(s: Scope, lease: Lease, events: Sequence[Event]) -> None:
    leases.require(s, lease)
    write_events(s, lease.conversation_id, lease.seq, lease.attempt, events)


def write_events(
    s: Scope, conversation_id: ConversationId, seq: int, attempt: int, events: Sequence[Event]
) -> None:
    """An event that is on record stays as it is."""
    s.run_many(EVENTS.insert_once, event_rows(conversation_id, seq, attempt, events))


def event_rows(
    conversation_id: ConversationId, seq: int, attempt: int, events: Sequence[Event]
) -> list[dict[str, object]]:
    return [
        {
            "conversation_id": conversation_id, "seq": seq, "attempt": attempt,
            "number": event.number, "kind": event.kind.value, "at": event.at,
            "data": clean_text(_redacted(event.data)),
        }
        for event in events
    ]  # fmt: skip


def _redacted(data: Mapping[str, Json]) -> str:
    return data.text if isinstance(data, RedactedData) else encode_redacted(dict(data), json_text.dump)


def add_events_behind(s: Scope, lease: Lease, events: Sequence[Event]) -> None:
    """Raises Conflict if one of their numbers is taken: more events were recorded since they were numbered."""
    (last,) = s.one(LAST_EVENT, id=lease.conversation_id, seq=lease.seq, attempt=lease.attempt) or (0,)
    if any(event.number <= last for event in events):
        raise Conflict(f"turn {lease.seq} of {lease.session_id} has recorded more meanwhile", seq=lease.seq)
    add_events(s, lease, events)


def events_of_turn(
    s: Scope, conversation_id: str, seq: int, after: tuple[int, int], limit: int
) -> tuple[tuple[int, Event], ...]:
    rows = s.all(EVENTS_OF_TURN, id=conversation_id, seq=seq, attempt=after[0], after=after[1], limit=limit)
    return tuple(read_event(s, seq, row) for row in rows)


def newest_events(s: Scope, conversation_id: str, seq: int, limit: int) -> tuple[tuple[int, Event], ...]:
    rows = s.all(NEWEST_EVENTS, id=conversation_id, seq=seq, limit=limit)
    return tuple(read_event(s, seq, row) for row in reversed(rows))


def before_newest_events(s: Scope, conversation_id: str, seq: int, limit: int) -> tuple[int, int]:
    """The attempt and the number behind which the newest ``limit`` of them begin."""
    attempt, number = s.one(BEFORE_NEWEST_EVENTS, id=conversation_id, seq=seq, newest=limit) or (0, 0)
    return attempt, number


def read_event(s: Scope, seq: int, row: Row) -> tuple[int, Event]:
    try:
        EVENT.check(row)
        attempt, number, kind, at, data = row
        return attempt, Event(number, EventKind(kind), json_text.decode_object(data), read_instant(at))
    except MISREAD as exc:
        key = f"event {EVENT.column(row, 'number')} of turn {seq}"
        raise unreadable(s.where, EVENTS.name, key, exc) from exc


#: the beginning of a word, at the end of a text: half a secret has no shape that redaction could know
_UNFINISHED_WORD = re.compile(r"[!-~]+\Z")
#: the end of a word, at the beginning of a text whose beginning is not there; also with the rest of a private key
_CUT_WORD = re.compile(r"\A[!-~]+")
_CUT_SECRET = re.compile(
    r"\A(?:[^\n]*(?:\s+[A-Za-z0-9+/=]{20,})+|[!-~]*)"
    r"(?:\s+[A-Za-z0-9+/=]+(?=\s+-{4,5} ?END ))?(?:\s+-{4,5} ?END [^\n]*)?"
)


def put_partial_text(s: Scope, lease: Lease, number: int, writing: Writing) -> None:
    text, skipped = clean_text(writing.text), writing.skipped
    if skipped:
        whole, text = text, _CUT_SECRET.sub("", text)
        skipped += len(whole) - len(text)
    text = redact_text(_UNFINISHED_WORD.sub("", text))
    if len(text) > MAX_WRITING:  # only now: redaction would not know half a secret
        whole, text = text, _CUT_WORD.sub("", text[-MAX_WRITING:])
        skipped += len(whole) - len(text)
    changed = s.changed(
        PUT_PARTIAL_TEXT, session_id=lease.session_id, conversation_id=lease.conversation_id, seq=lease.seq,
        attempt=lease.attempt, fence=lease.fence,
        partial_text=codec.encode_partial_text(
            lease.fence, PartialText(lease.seq, lease.attempt, number, text, skipped)
        ),
    )  # fmt: skip
    if not changed:
        raise LeaseLost(lease.session_id, lease.seq, lease.fence)


def partial_text(s: Scope, session_id: str) -> PartialText | None:
    row = s.one(PARTIAL_TEXT, id=session_id)
    if row is None:
        raise NotFound("session", session_id)
    conversation_id, fence, stored = row
    if stored is None:
        return None
    try:
        its_fence, found = codec.decode_partial_text(stored)
    except MISREAD as exc:
        raise unreadable(s.where, SESSIONS.name, f"partial text of {session_id}", exc) from exc
    is_recorded = s.one(
        HAS_EVENT, id=conversation_id, seq=found.turn, attempt=found.attempt, number=found.number
    )
    return found if its_fence == fence and found.text and is_recorded is None else None

"""Owns the rows of delegations: a session for a subagent, taken by compare-and-set, and what became of it.

Hook processes run these functions on a scope of their own, so little is imported here.
"""

from __future__ import annotations

import json

from holdfast.domain.delegations import (
    Delegated,
    DelegatedApproval,
    DelegatedSession,
    Delegation,
    DelegationCounts,
    DelegationOutcome,
    DelegationReason,
    EndedDelegation,
    FreeSession,
    NewDelegation,
    is_about,
)
from holdfast.domain.ids import SessionId, conversation_of
from holdfast.domain.phases import MayContinue, Phase, is_resumable_phase, may_continue
from holdfast.domain.quick_redaction import redact_seldom
from holdfast.errors import AmbiguousId
from holdfast.store.sql.session_statements import (
    PHASES,
    approval_window,
    begin_conversation,
    can_be_answered,
    close,
)
from holdfast.store.sql.tables import APPROVALS, DELEGATIONS, SESSIONS

TYPE_CHECKING = False

if TYPE_CHECKING:
    from holdfast.domain.delegations import DelegationEnd, Question
    from holdfast.store.driver import Row
    from holdfast.store.sql.scope import Scope

ROWS = DELEGATIONS.all()
GET = f"SELECT {ROWS.sql} FROM delegations WHERE workspace = :ws AND id = :id"
OPEN_OF_SESSION = f"""
SELECT {ROWS.sql} FROM delegations WHERE workspace = :ws AND session_id = :session_id AND ended_at IS NULL"""
OPEN = f"""
SELECT {ROWS.sql} FROM delegations INDEXED BY open_delegations
WHERE workspace = :ws AND ended_at IS NULL ORDER BY at, id"""
OPEN_HERE = f"""
SELECT {ROWS.of("d").sql}
FROM sessions AS s INDEXED BY delegable_sessions JOIN delegations AS d INDEXED BY open_delegations
    ON d.workspace = s.workspace AND d.session_id = s.id AND d.ended_at IS NULL
WHERE s.workspace = :ws AND s.agent = :agent AND s.project = :project AND s.finalized_at IS NULL
ORDER BY d.at, d.id"""
NEWEST = f"""
SELECT {ROWS.sql} FROM delegations INDEXED BY delegations_by_session
WHERE workspace = :ws AND session_id = :session_id ORDER BY at DESC, id"""
# the open ones, and what the same subagent has ended before
DELEGATED_BY = f"""
SELECT {ROWS.sql} FROM delegations INDEXED BY delegations_by_provider_session
WHERE workspace = :ws AND provider_session_id = :provider_session_id AND agent = :agent
    AND (ended_at IS NULL OR provider_agent_id = :provider_agent_id)
ORDER BY id"""
END = """
UPDATE delegations SET ended_at = :now, outcome = :outcome,
    transcript_path = COALESCE(:transcript_path, transcript_path),
    provider_agent_id = COALESCE(:provider_agent_id, provider_agent_id)
WHERE workspace = :ws AND id = :id AND ended_at IS NULL"""
LOSE = """
UPDATE delegations INDEXED BY delegations_by_provider_session SET ended_at = :now, outcome = 'lost'
WHERE workspace = :ws AND provider_session_id = :provider_session_id AND ended_at IS NULL"""
COUNT = """
SELECT COUNT(*), COALESCE(SUM(CASE WHEN resumed THEN 1 ELSE 0 END), 0) FROM delegations WHERE workspace = :ws"""

#: as much of a session's row as ``may_continue`` looks at
SESSION = SESSIONS.pick(
    "id", "agent", "kind", "phase", "resume_ready", "error_count", "updated_at", "created_at", "metadata"
)
FREE = f"""
SELECT {SESSION.sql} FROM sessions INDEXED BY delegable_sessions
WHERE workspace = :ws AND agent = :agent AND project = :project AND finalized_at IS NULL
    AND kind = 'delegated' AND resume_ready = TRUE AND NOT EXISTS
    (SELECT 1 FROM delegations d WHERE d.workspace = sessions.workspace AND d.session_id = sessions.id
        AND d.ended_at IS NULL)
ORDER BY created_at DESC, id DESC LIMIT :limit"""
FREE_HERE = f"""
SELECT {SESSION.sql}, purpose FROM sessions INDEXED BY delegable_sessions
WHERE workspace = :ws AND project = :project AND finalized_at IS NULL
    AND kind = 'delegated' AND resume_ready = TRUE AND NOT EXISTS
    (SELECT 1 FROM delegations d WHERE d.workspace = sessions.workspace AND d.session_id = sessions.id
        AND d.ended_at IS NULL)
ORDER BY created_at DESC, id DESC LIMIT :limit"""
_FREE = SESSION + SESSIONS.pick("project", "purpose")
FREE_ANYWHERE = f"""
SELECT {_FREE.sql} FROM sessions
WHERE workspace = :ws AND finalized_at IS NULL AND project IS NOT NULL AND kind = 'delegated'
    AND resume_ready = TRUE AND NOT EXISTS
    (SELECT 1 FROM delegations d WHERE d.workspace = sessions.workspace AND d.session_id = sessions.id
        AND d.ended_at IS NULL)
ORDER BY created_at DESC, id DESC LIMIT :limit OFFSET :offset"""
ONE = f"SELECT {SESSION.sql} FROM sessions WHERE workspace = :ws AND id = :id"
LOCK_ONE = f"{ONE} FOR UPDATE"
TOUCH = "UPDATE sessions SET updated_at = :now WHERE workspace = :ws AND id = :id"
LOCK_END = """
SELECT conversation_id, phase, finalized_at, head_seq FROM sessions
WHERE workspace = :ws AND id = :id FOR UPDATE"""
APPROVAL = APPROVALS.pick("id", "what", "status", "note")
NEWEST_APPROVAL = f"""
SELECT {APPROVAL.sql} FROM approvals
WHERE workspace = :ws AND session_id = :session_id ORDER BY requested_at DESC, id DESC LIMIT 1"""

#: the newest sessions of an agent that are looked at
_MOST_LOOKED_AT = 50
#: free sessions that are read at once, and the characters of all that are listed; the list ends with the session
#: that goes beyond
_STEP = 50
_MOST_CHARACTERS = 4 * 1024 * 1024


class _Found:
    """A session's row, as far as ``may_continue`` looks at it."""

    __slots__ = (
        "agent", "created_at", "error_count", "id", "is_delegated", "metadata", "phase", "resume_ready", "updated_at",
    )  # fmt: skip

    def __init__(self, row: Row) -> None:
        found = SESSION.named(row)
        self.id = found["id"]
        self.agent = found["agent"]
        self.error_count = found["error_count"]
        self.updated_at = found["updated_at"]
        self.created_at = found["created_at"]
        self.is_delegated = found["kind"] == "delegated"
        self.phase = Phase(found["phase"])
        self.resume_ready = bool(found["resume_ready"])
        self.metadata = json.loads(found["metadata"])
        if type(self.metadata) is not dict or type(self.updated_at) is not int:
            raise ValueError("no Holdfast wrote this row")


def _find_session(s: Scope, session_id: str | None, *, lock: bool = False) -> _Found | None:
    """None for one that does not exist or cannot be understood."""
    row = s.one(LOCK_ONE if lock else ONE, id=session_id)
    return None if row is None else _readable(row)


def _readable(row: Row) -> _Found | None:
    try:
        return _Found(row)
    except (ValueError, TypeError):
        return None


def delegate(s: Scope, new: NewDelegation) -> Delegated:
    known = s.one(GET, id=new.id)
    if known is not None:
        return _again(s, known)
    if new.told is not None:
        return _as_told(s, new, new.told)
    for row in s.all(FREE, agent=new.agent, project=new.project, limit=_MOST_LOOKED_AT):
        found = _going_on(s, _find_session(s, row[0], lock=True))
        if found is not None and _take(s, new, found.id, DelegationReason.RESUMABLE):
            s.run(TOUCH, id=found.id, now=s.now)
            return Delegated(id=new.id, reason=DelegationReason.RESUMABLE, session=_told(s, found))
    return _begin(s, new, new.new_session_id)


def _as_told(s: Scope, new: NewDelegation, session_id: str) -> Delegated:
    """Record a subagent that works already, even if someone else has the session."""
    found = _find_session(s, session_id, lock=True)
    if found is None:
        return _begin(s, new, session_id)
    reason = DelegationReason.RESUMABLE
    if _take(s, new, session_id, reason):
        s.run(TOUCH, id=session_id, now=s.now)
    else:
        _record(s, new, session_id, reason, DelegationOutcome.LOST)
    return Delegated(id=new.id, reason=reason, session=_told(s, found))


def free(s: Scope, limit: int) -> tuple[FreeSession, ...]:
    found: list[FreeSession] = []
    size = 0
    for offset in range(0, limit, _STEP):
        step = min(_STEP, limit - offset)
        rows = s.all(FREE_ANYWHERE, limit=step, offset=offset)
        for row in rows:
            size += sum(len(value) for value in row if isinstance(value, str))
            session = _read_free(s, row)
            if session is not None:
                found.append(session)
            if size > _MOST_CHARACTERS:
                return tuple(found)
        if len(rows) < step:
            break
    return tuple(found)


def _read_free(s: Scope, row: Row) -> FreeSession | None:
    *of_session, project, purpose = row
    found = _going_on(s, _readable(tuple(of_session)))
    if found is None:
        return None
    window = approval_window(s, found.id)
    return FreeSession(
        agent=found.agent,
        project=project,
        purpose=purpose,
        session=_told(s, found),
        resume_ready=found.resume_ready,
        error_count=found.error_count,
        updated_at=found.updated_at,
        answered_at=window.answered_at if window else None,
        expires_at=window.expires_at if window else None,
        is_waiting=window is not None,
    )


def ask(s: Scope, question: Question) -> Delegated:
    """Judge one session, or find one; recorded as a delegation that has already ended."""
    known = s.one(GET, id=question.id)
    if known is not None:
        return _again(s, known)
    found, reason = _considered(s, question)
    _record(s, question, found.id if found else None, reason, DelegationOutcome.ASKED)
    return Delegated(id=question.id, reason=reason, session=_told(s, found) if found else None)


def end(s: Scope, given: DelegationEnd) -> EndedDelegation | None:
    """None for what is not known. A session in phase approval, or with an open one, is not closed, but waits on."""
    known = _find(s, given)
    session_id = given.session_id if known is None else known.session_id
    session = None if session_id is None else s.one(LOCK_END, id=session_id)
    if session is None or session_id is None:
        return None
    conversation_id, phase, finalized_at, head = session
    ended = known is not None and known.ended_at is not None
    said = given.outcome
    if known is not None and known.outcome is not None:
        said = DelegationOutcome(known.outcome)
    outcome = _outcome(s, session_id, said, phase, is_closed=finalized_at is not None)
    if known is not None and ended:
        return EndedDelegation(id=known.id, session_id=session_id, outcome=outcome)
    finalizes = finalized_at is None and outcome in (DelegationOutcome.COMPLETED, DelegationOutcome.FAILED)
    if finalizes:
        summary = None if given.summary is None else redact_seldom(given.summary)
        turns_in = None if head is None else conversation_id
        close(s, session_id, phase, Phase(outcome.value), summary=summary, turns_in=turns_in)
    if known is not None:
        s.run(
            END, id=known.id, outcome=outcome.value, now=s.now, transcript_path=given.transcript_path,
            provider_agent_id=given.provider_agent_id,
        )  # fmt: skip
    return EndedDelegation(
        id=None if known is None else known.id,
        session_id=session_id,
        outcome=outcome,
        ended_now=known is not None or finalizes,
        finalized_now=finalizes,
    )


def _outcome(
    s: Scope, session_id: str, said: DelegationOutcome, phase: str, *, is_closed: bool
) -> DelegationOutcome:
    """Returns what has become of the session. A lost delegation stays lost."""
    if said is DelegationOutcome.LOST:
        return said
    if is_closed:
        return DelegationOutcome(phase)
    is_asking = phase == Phase.APPROVAL or can_be_answered(s, session_id)
    return DelegationOutcome.PAUSED if is_asking else said


def lose_all(s: Scope, provider_session_id: str) -> int:
    return s.changed(LOSE, provider_session_id=provider_session_id, now=s.now)


def open_ones(s: Scope, agent: str | None, project: str | None) -> tuple[Delegation, ...]:
    if agent is None:
        return tuple(map(_read, s.all(OPEN)))
    return tuple(map(_read, s.all(OPEN_HERE, agent=agent, project=project)))


def paused_here(s: Scope, project: str, limit: int) -> tuple[tuple[str, str, str, str], ...]:
    """Sessions that a delegation would take up, whatever their agent, newest first: id, agent, phase, purpose."""
    looked_at = s.all(FREE_HERE, project=project, limit=_MOST_LOOKED_AT)
    judged = ((_going_on(s, _readable(tuple(row))), purpose) for *row, purpose in looked_at)
    told = [(found.id, found.agent, found.phase.value, purpose) for found, purpose in judged if found]
    return tuple(told[:limit])


def of_session(s: Scope, session_id: str) -> tuple[Delegation, ...]:
    return tuple(map(_read, s.all(NEWEST, session_id=session_id)))


def counts(s: Scope) -> DelegationCounts:
    every, resumed = s.one(COUNT) or (0, 0)
    return DelegationCounts(delegations=int(every), resumed=int(resumed))


def _again(s: Scope, known: Row) -> Delegated:
    """The answer that the first call with this id got."""
    first = _read(known)
    found = _find_session(s, first.session_id)
    reason = DelegationReason(first.reason)
    return Delegated(id=first.id, reason=reason, session=_told(s, found) if found else None)


def _going_on(s: Scope, found: _Found | None) -> _Found | None:
    """None if it may not."""
    if found is None:
        return None
    window = approval_window(s, found.id)
    verdict = may_continue(found, s.policy.continue_, s.now, window)
    return found if verdict is MayContinue.YES else None


def _considered(s: Scope, question: Question) -> tuple[_Found | None, DelegationReason]:
    if question.session_id is None:
        for row in s.all(FREE, agent=question.agent, project=question.project, limit=_MOST_LOOKED_AT):
            found = _going_on(s, _readable(row))
            if found is not None and is_about(found.metadata, question.task_id):
                return found, DelegationReason.RESUMABLE
        return None, DelegationReason.NONE
    if s.one(ONE, id=question.session_id) is None:
        return None, DelegationReason.NONE
    found = _find_session(s, question.session_id)
    if _going_on(s, found) is None:
        return found, DelegationReason.NOT_RESUMABLE
    return found, DelegationReason.RESUMABLE


def _take(s: Scope, new: NewDelegation, session_id: str, reason: DelegationReason) -> bool:
    """False if someone else has it."""
    return _record(s, new, session_id, reason, None)


def _record(
    s: Scope,
    new: NewDelegation | Question,
    session_id: str | None,
    reason: DelegationReason,
    outcome: DelegationOutcome | None,
) -> bool:
    """Ended already, if there is an outcome."""
    by = new if isinstance(new, NewDelegation) else None
    row = DELEGATIONS.new(
        id=new.id, session_id=session_id, agent=new.agent, project=new.project,
        resumed=reason is DelegationReason.RESUMABLE, reason=reason.value, owner=by and by.owner,
        provider_session_id=by and by.provider_session_id, at=s.now,
        ended_at=None if outcome is None else s.now, outcome=None if outcome is None else outcome.value,
    )  # fmt: skip
    written = s.changed(DELEGATIONS.insert_once, **row)
    return written == 1


def _begin(s: Scope, new: NewDelegation, session_id: str) -> Delegated:
    phase = Phase.INITIALIZING
    conversation_id = conversation_of(SessionId(session_id))
    begin_conversation(s, conversation_id)
    row = SESSIONS.new(
        id=session_id, conversation_id=conversation_id, agent=new.agent, kind="delegated",
        purpose=redact_seldom(new.purpose), provider=new.provider, phase=phase.value,
        resume_ready=is_resumable_phase(phase, s.policy.continue_, delegated=True), metadata="{}",
        created_at=s.now, updated_at=s.now, project=new.project,
    )  # fmt: skip
    s.run(SESSIONS.insert_once, **row)
    if not _take(s, new, session_id, DelegationReason.NONE):
        from holdfast.store.driver import Undone  # the same tool call, asked twice in the same moment

        raise Undone(s.where, f"delegation {new.id} is being made by someone else")
    session = DelegatedSession(id=session_id, phase=phase.value, created_at=s.now, metadata={}, history=())
    return Delegated(id=new.id, reason=DelegationReason.NONE, session=session)


def _told(s: Scope, found: _Found) -> DelegatedSession:
    return DelegatedSession(
        id=found.id,
        phase=found.phase.value,
        created_at=found.created_at,
        metadata=found.metadata,
        history=tuple(s.all(PHASES, id=found.id)),
        approval=_newest_approval(s, found.id),
    )


def _newest_approval(s: Scope, session_id: str) -> DelegatedApproval | None:
    row = s.one(NEWEST_APPROVAL, session_id=session_id)
    return None if row is None else DelegatedApproval(**APPROVAL.named(row))


def _find(s: Scope, given: DelegationEnd) -> Delegation | None:
    if given.id is not None:
        row = s.one(GET, id=given.id)
        known = None if row is None else _read(row)
        return known if known is not None and _fits(known, given) else None
    if given.session_id is not None:
        row = s.one(OPEN_OF_SESSION, session_id=given.session_id)
        return None if row is None else _read(row)
    return _find_only(s, given)


def _fits(known: Delegation, given: DelegationEnd) -> bool:
    """True if the other fields that were given fit the delegation."""
    return given.session_id in (None, known.session_id) and given.provider_session_id in (
        None,
        known.provider_session_id,
    )


def _find_only(s: Scope, given: DelegationEnd) -> Delegation | None:
    rows = s.all(
        DELEGATED_BY, provider_session_id=given.provider_session_id, agent=given.agent,
        provider_agent_id=given.provider_agent_id,
    )  # fmt: skip
    found = [_read(row) for row in rows]
    fits = [known for known in found if known.ended_at is not None] or found
    if len(fits) > 1:
        raise AmbiguousId(str(given.agent), tuple(known.id for known in fits), "delegation")
    return fits[0] if fits else None


def _read(row: Row) -> Delegation:
    columns = ROWS.named(row)
    return Delegation(**columns | {"resumed": bool(columns["resumed"])})

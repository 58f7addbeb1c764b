"""Owns the phases of a session, and whether its work may continue. Light: hook processes read it."""

from __future__ import annotations

from enum import StrEnum

from holdfast.clock import SECOND, Instant, age, duration
from holdfast.domain.records import PlainRecord
from holdfast.errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Protocol

    class ContinueRules(Protocol):
        """The rules that ``may_continue`` follows: a ``ContinuePolicy``, or as much of one as a hook knows."""

        @property
        def resumable_phases(self) -> Collection[str]: ...
        @property
        def max_idle_seconds(self) -> float | None: ...
        @property
        def max_errors(self) -> int: ...

    class Continuable(Protocol):
        """What ``may_continue`` looks at: a ``Session``, or as much of one as a hook has read."""

        @property
        def agent(self) -> str: ...
        @property
        def is_delegated(self) -> bool: ...
        @property
        def phase(self) -> Phase: ...
        @property
        def resume_ready(self) -> bool: ...
        @property
        def error_count(self) -> int: ...
        @property
        def updated_at(self) -> Instant: ...


class Phase(StrEnum):
    INITIALIZING = "initializing"
    INVESTIGATING = "investigating"
    PLANNING = "planning"
    APPROVAL = "approval"
    EXECUTING = "executing"
    VALIDATING = "validating"
    COMPLETED = "completed"  #: final
    FAILED = "failed"  #: final
    ABANDONED = "abandoned"  #: final

    @property
    def is_final(self) -> bool:
        return self in FINAL_PHASES


FINAL_PHASES = frozenset({Phase.COMPLETED, Phase.FAILED, Phase.ABANDONED})


def parse_phase(text: object) -> Phase:
    try:
        return Phase(str(text))
    except ValueError:
        known = ", ".join(Phase)
        raise InvalidInput("phase", f"{str(text)[:40]!r} is not a phase (one of {known})") from None


def parse_outcome(text: object) -> Phase:
    """The final phase a session is closed with."""
    phase = Phase(str(text)) if str(text) in Phase.__members__.values() else None
    if phase is None or not phase.is_final:
        known = ", ".join(p for p in Phase if p.is_final)
        raise InvalidInput("outcome", f"{str(text)[:40]!r} is not an outcome (one of {known})")
    return phase


class MayContinue(StrEnum):
    """Why a session may, or may not, continue."""

    YES = "session_resumable"
    FINAL = "session_final"  #: its phase is final; a fork can continue the work
    NOT_READY = "not_resume_ready"  #: the last phase change cleared ``resume_ready``
    PHASE = "phase_not_resumable"
    TOO_OLD = "too_old"  #: idle for the limit or longer
    ERRORS = "too_many_errors"  #: since the last success
    NOT_FOUND = "no_existing_session"
    UNREADABLE = "session_unreadable"  #: its row cannot be understood
    EXPIRED = "approval_expired"  #: nobody answered the approval that it waits for in time


class ApprovalWindow(PlainRecord):
    """An approval that is open, or was answered at ``answered_at`` and has not been acted on yet."""

    answered_at: Instant | None = None
    expires_at: Instant | None = None

    def has_expired(self, now: Instant) -> bool:
        """At ``expires_at`` itself it is too late."""
        return self.answered_at is None and self.expires_at is not None and now >= self.expires_at


def idle_limit(rules: ContinueRules, agent: str) -> float | None:  # noqa: ARG001 - as yet the same for all
    """For how many seconds a delegated session of this agent may be idle and still continue; None: for ever."""
    return rules.max_idle_seconds


def is_resumable_phase(phase: Phase, rules: ContinueRules, *, delegated: bool) -> bool:
    if phase.is_final:
        return False
    return not delegated or phase in rules.resumable_phases


def may_continue(
    session: Continuable,
    rules: ContinueRules,
    now: Instant,
    approval: ApprovalWindow | None = None,
) -> MayContinue:
    """Returns the first criterion that fails, in the order in which a person would fix them."""
    if session.phase.is_final:
        return MayContinue.FINAL
    if not is_resumable_phase(session.phase, rules, delegated=session.is_delegated):
        return MayContinue.PHASE
    if not session.resume_ready:
        return MayContinue.NOT_READY
    if approval is not None and session.phase is Phase.APPROVAL and approval.has_expired(now):
        return MayContinue.EXPIRED
    if session.error_count >= rules.max_errors:
        return MayContinue.ERRORS
    if _idle_too_long(session, rules, now, approval):
        return MayContinue.TOO_OLD
    return MayContinue.YES


def _idle_too_long(
    session: Continuable, rules: ContinueRules, now: Instant, approval: ApprovalWindow | None
) -> bool:
    limit = idle_limit(rules, session.agent)
    if limit is None or not session.is_delegated:
        return False
    last = session.updated_at
    if approval is not None and not approval.has_expired(now):
        if approval.answered_at is None:
            return False
        last = max(last, approval.answered_at)
    # exactly the limit is too long
    return now - last >= limit * SECOND


def continue_words(
    answer: MayContinue, session: Continuable | None, policy: ContinueRules, now: Instant
) -> str:
    """Says why a session may or may not continue; ``session`` is None if it is missing or cannot be read."""
    if session is None:
        unreadable = answer is MayContinue.UNREADABLE
        return "its stored row cannot be read" if unreadable else "the session was not found"
    match answer:
        case MayContinue.YES:
            return "all conditions are met"
        case MayContinue.FINAL:
            return f"the session is {session.phase}, which is final; a fork can continue its work"
        case MayContinue.PHASE:
            return f"phase {session.phase} is not one of {', '.join(sorted(policy.resumable_phases))}"
        case MayContinue.NOT_READY:
            return "the session is not marked as ready to resume"
        case MayContinue.ERRORS:
            return f"{session.error_count} errors since the last success; the limit is {policy.max_errors}"
        case MayContinue.TOO_OLD:
            limit = duration(idle_limit(policy, session.agent) or 0)
            return f"idle for {age(session.updated_at, now)}; the limit is {limit}"
        case MayContinue.EXPIRED:
            return "the approval that the session asked for has expired; ask again, or move to another phase"
        case MayContinue.NOT_FOUND | MayContinue.UNREADABLE:
            return "the session changed while it was read"

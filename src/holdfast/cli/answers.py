"""Owns the answers of the commands that scripts call all the time: create, update, should-resume and list. Light."""

from __future__ import annotations

from holdfast.cli import output
from holdfast.clock import to_iso
from holdfast.domain.phases import MayContinue, idle_limit
from holdfast.engine.documents import session_document
from holdfast.errors import NotFound, Refused

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.clock import Instant
    from holdfast.domain.phases import ContinueRules
    from holdfast.domain.sessions import PhaseChange, Session, SessionPage, SessionState


def tell_created(session: Session, state: SessionState | None) -> None:
    """The whole session as JSON; without a ``state`` its id alone."""
    if state is None:
        output.say(session.id)
    else:
        output.document(session_document(session, state, ()))


def tell_changed(session: Session, known: tuple[SessionState, tuple[PhaseChange, ...]] | None) -> None:
    """The whole session as JSON, by what is ``known`` of it; without that, a line."""
    if known is None:
        output.line(session.id, session.phase.value)
    else:
        output.document(session_document(session, *known))


def tell_may_continue(answer: MayContinue, session_id: str | None, words: str, *, as_json: bool) -> int:
    """Returns the exit code."""
    may = answer is MayContinue.YES
    if as_json:
        output.document(
            {"session_id": session_id, "should_resume": may, "reason": answer.value, "message": words}
        )
    elif output.is_terminal():
        output.say(f"{'yes' if may else 'no'}: {answer.value} ({words})")
    else:
        output.say(answer.value)
    if may:
        return 0
    return NotFound.exit_code if answer is MayContinue.NOT_FOUND else Refused.exit_code


def continue_words(answer: MayContinue, session: Session | None, policy: ContinueRules, now: Instant) -> str:
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
            limit = output.duration(idle_limit(policy, session.agent) or 0)
            return f"idle for {output.age(session.updated_at, now)}; the limit is {limit}"
        case MayContinue.EXPIRED:
            return "the approval that the session asked for has expired; ask again, or move to another phase"
        case MayContinue.NOT_FOUND | MayContinue.UNREADABLE:
            return "the session changed while it was read"


def tell_lines(page: SessionPage) -> None:
    """A line for each session, for a pipe."""
    for session in page.sessions:
        output.line(
            session.id, session.phase.value, session.agent, to_iso(session.updated_at), session.name or "",
            session.purpose, page.states[session.id].status.value,
        )  # fmt: skip


def tell_list(pages: Iterable[SessionPage]) -> None:
    """All sessions as one JSON object."""
    sessions: list[dict[str, object]] = []
    unreadable: dict[str, str] = {}
    more = False
    for page in pages:
        sessions += [session_document(session, page.states[session.id]) for session in page.sessions]
        unreadable |= page.unreadable
        more = page.next_cursor is not None
    output.document({"sessions": sessions, "unreadable": unreadable, "more": more})

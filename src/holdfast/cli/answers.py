"""Owns the answers of the commands that scripts call all the time, and of completion. Light."""

from __future__ import annotations

from holdfast.cli import output
from holdfast.clock import to_iso
from holdfast.domain.phases import MayContinue
from holdfast.engine.documents import session_document
from holdfast.errors import NotFound, Refused
from holdfast.escape import one_line

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.domain.sessions import PhaseChange, Session, SessionPage, SessionState

_LONGEST_TITLE = 60


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


def completed_sessions(sessions: Sequence[Session], beginning: str) -> list[tuple[str, str]]:
    """The names and ids that begin like this, each with the title of its session, for a shell."""
    return [
        (word, one_line(session.title or session.agent, _LONGEST_TITLE))
        for session in sessions
        for word in (session.name, session.id)
        if word is not None and word.startswith(beginning) and word == one_line(word)
    ]

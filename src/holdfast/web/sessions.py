"""Owns the sessions as resources: for people, scripts and pages, in the words of the command's JSON."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, model_validator

from holdfast.domain.conversations import HistoryTurn
from holdfast.domain.decisions import decision_document
from holdfast.domain.inputs import MAX_NAME, MAX_NUMBER
from holdfast.domain.metadata import MAX_PAIRS, parse_pairs
from holdfast.domain.sessions import Session, SessionFilter, SessionStatus
from holdfast.engine.documents import (
    Document,
    history_turn_document,
    session_document,
    waiting_document,
)
from holdfast.engine.holdfast import Holdfast
from holdfast.store.wire import MAX_WORD, check_json
from holdfast.web.access import Guarded
from holdfast.web.keys import ServedOnce
from holdfast.web.limits import MAX_SHOWN, shown
from holdfast.web.serving import Served

router = APIRouter(tags=["sessions"], prefix="/sessions", route_class=Guarded)

#: an id, the unique beginning of one, or a name
SessionPath = Annotated[str, Path(min_length=1, max_length=MAX_NAME)]
Limit = Annotated[int, Query(ge=1, le=MAX_SHOWN)]


class Body(BaseModel):
    """What is not known is refused: it may have been meant."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _can_be_kept(cls, given: Any) -> Any:
        """Its own checks quote what they refuse, and let metadata of any kind pass."""
        return check_json(given, "body")


class NewSessionBody(Body):
    agent: str
    purpose: str = ""
    metadata: dict[str, Any] | None = None
    name: str | None = None
    provider: str | None = None


class ChangeBody(Body):
    phase: str | None = None
    expected_phase: str | None = None
    metadata: dict[str, Any] | None = None
    error: str | None = None
    clear_errors: bool = False
    summary: str | None = None


class OutcomeBody(Body):
    outcome: str
    summary: str | None = None


@router.get("", name="list_sessions")
def list_sessions(  # noqa: PLR0913 - each filter is a parameter
    holdfast: Served,
    active: bool = False,
    agent: Annotated[str | None, Query(max_length=MAX_NAME)] = None,
    status: SessionStatus | None = None,
    resumable: bool = False,
    metadata: Annotated[list[str] | None, Query(max_length=MAX_PAIRS)] = None,
    limit: Limit = 50,
    cursor: Annotated[str | None, Query(max_length=MAX_WORD)] = None,
) -> Document:
    """Newest first; ``next_cursor`` leads to the next page, and is null on the last one.

    ``metadata`` is ``key=value``, and may be given several times.
    """
    wanted = SessionFilter(
        active_only=active,
        agent=agent,
        status=status,
        resumable=resumable,
        metadata=parse_pairs(metadata or ()),
    )
    page = holdfast.page(wanted, limit, cursor)
    return {
        "sessions": [session_document(one, page.states[one.id]) for one in page.sessions],
        "unreadable": sorted(page.unreadable),
        "next_cursor": page.next_cursor,
    }


@router.post("", name="create_session", status_code=HTTPStatus.CREATED)
def create_session(holdfast: ServedOnce, new: NewSessionBody) -> Document:
    made = holdfast.create(new.agent, new.purpose, new.metadata, name=new.name, provider=new.provider)
    return _document(holdfast, made)


@router.get("/{session}", name="get_session")
def get_session(holdfast: Served, session: SessionPath) -> Document:
    found = holdfast.session(holdfast.find(session))
    return session_document(
        found, holdfast.store.session_state(found.id), holdfast.store.phase_history(found.id)
    )


@router.patch("/{session}", name="update_session")
def update_session(holdfast: ServedOnce, session: SessionPath, change: ChangeBody) -> Document:
    """Change what is given; with ``expected_phase``, only if that is the phase now."""
    changed = holdfast.update(
        holdfast.find(session),
        phase=change.phase,
        metadata=change.metadata,
        error=change.error,
        clear_errors=change.clear_errors,
        summary=change.summary,
        expected_phase=change.expected_phase,
    )
    return _document(holdfast, changed)


@router.post("/{session}/finalize", name="finalize_session")
def finalize_session(holdfast: ServedOnce, session: SessionPath, end: OutcomeBody) -> Document:
    """Close for good: as completed, failed or abandoned."""
    return _document(holdfast, holdfast.finalize(holdfast.find(session), end.outcome, end.summary))


def _document(holdfast: Holdfast, session: Session) -> Document:
    return session_document(session, holdfast.store.session_state(session.id))


@router.get("/{session}/history", name="history")
def history(
    holdfast: Served,
    session: SessionPath,
    limit: Limit = 50,
    before: Annotated[int | None, Query(ge=2, le=MAX_NUMBER)] = None,
) -> Document:
    """The newest turns of the conversation as it stands, oldest first; fewer than ``limit`` if they are long.

    ``next_before`` leads to those that came before them, and is null where it begins.
    """
    found = holdfast.find(session)

    def earlier(count: int, than: HistoryTurn | None) -> Sequence[HistoryTurn]:
        return holdfast.history(found, count, before=before if than is None else than.seq)[::-1]

    turns = [*shown(earlier, limit)]
    begins = not turns or turns[-1].seq == 1 or not earlier(1, turns[-1])
    return {
        "turns": [history_turn_document(turn) for turn in reversed(turns)],
        "next_before": None if begins else turns[-1].seq,
    }


@router.get("/{session}/decision", name="explain")
def decision(holdfast: Served, session: SessionPath) -> Document:
    """How the next turn would go on if it were claimed now, why, and what it waits for."""
    found = holdfast.find(session)
    return decision_document(holdfast.decide(found)) | waiting_document(holdfast.waiting(found))

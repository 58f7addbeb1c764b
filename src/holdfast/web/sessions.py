"""Owns the sessions as resources: for people, scripts and pages, in the words of the command's JSON."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict

from holdfast.domain.decisions import decision_document
from holdfast.domain.numbers import MOST
from holdfast.domain.sessions import SessionFilter
from holdfast.domain.text import MAX_NAME
from holdfast.engine.documents import (
    Document,
    history_turn_document,
    session_document,
    waiting_document,
)
from holdfast.store.wire import MAX_WORD
from holdfast.web.access import Guarded
from holdfast.web.keys import ServedOnce
from holdfast.web.limits import MAX_SHOWN
from holdfast.web.serving import Served

router = APIRouter(tags=["sessions"], prefix="/sessions", route_class=Guarded)

#: an id, the unique beginning of one, or a name
SessionPath = Annotated[str, Path(min_length=1, max_length=MAX_NAME)]
Limit = Annotated[int, Query(ge=1, le=MAX_SHOWN)]


class Body(BaseModel):
    """What is not known is refused: it may have been meant."""

    model_config = ConfigDict(extra="forbid", strict=True)


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


class OutcomeBody(Body):
    outcome: str
    summary: str | None = None


@router.get("", name="list_sessions")
def list_sessions(
    holdfast: Served,
    active: bool = False,
    agent: Annotated[str | None, Query(max_length=MAX_NAME)] = None,
    limit: Limit = 50,
    cursor: Annotated[str | None, Query(max_length=MAX_WORD)] = None,
) -> Document:
    """Newest first; ``next_cursor`` leads to the next page, and is null on the last one."""
    page = holdfast.page(SessionFilter(active_only=active, agent=agent), limit, cursor)
    return {
        "sessions": [session_document(session) for session in page.sessions],
        "unreadable": sorted(page.unreadable),
        "next_cursor": page.next_cursor,
    }


@router.post("", name="create_session", status_code=HTTPStatus.CREATED)
def create_session(holdfast: ServedOnce, new: NewSessionBody) -> Document:
    made = holdfast.create(new.agent, new.purpose, new.metadata, name=new.name, provider=new.provider)
    return session_document(made)


@router.get("/{session}", name="get_session")
def get_session(holdfast: Served, session: SessionPath) -> Document:
    found = holdfast.session(holdfast.find(session))
    return session_document(found, holdfast.store.phase_history(found.id))


@router.patch("/{session}", name="update_session")
def update_session(holdfast: ServedOnce, session: SessionPath, change: ChangeBody) -> Document:
    """Change what is given; with ``expected_phase``, only if that is the phase now."""
    return session_document(
        holdfast.update(
            holdfast.find(session),
            phase=change.phase,
            metadata=change.metadata,
            error=change.error,
            clear_errors=change.clear_errors,
            expected_phase=change.expected_phase,
        )
    )


@router.post("/{session}/finalize", name="finalize_session")
def finalize_session(holdfast: ServedOnce, session: SessionPath, end: OutcomeBody) -> Document:
    """Close for good: as completed, failed or abandoned."""
    return session_document(holdfast.finalize(holdfast.find(session), end.outcome, end.summary))


@router.get("/{session}/history", name="history")
def history(
    holdfast: Served,
    session: SessionPath,
    limit: Limit = 50,
    before: Annotated[int | None, Query(ge=2, le=MOST)] = None,
) -> Document:
    """The newest turns of the conversation as it stands, oldest first.

    ``next_before`` leads to those that came before them, and is null where it begins.
    """
    turns = holdfast.history(holdfast.find(session), limit, before=before)
    begins = len(turns) < limit or turns[0].seq == 1
    return {
        "turns": [history_turn_document(turn) for turn in turns],
        "next_before": None if begins else turns[0].seq,
    }


@router.get("/{session}/decision", name="explain")
def decision(holdfast: Served, session: SessionPath) -> Document:
    """How the next turn would go on if it were claimed now, why, and what it waits for."""
    found = holdfast.find(session)
    return decision_document(holdfast.decide(found)) | waiting_document(holdfast.waiting(found))

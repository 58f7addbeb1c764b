"""Owns the turns of a session as resources: put into the queue, looked at, changed and cancelled."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field

from holdfast.clock import after
from holdfast.domain.ids import RuntimeId
from holdfast.domain.inputs import MAX_NUMBER
from holdfast.domain.pointers import NO_RIGHTS, Rights
from holdfast.domain.turns import NewTurn, Turn, TurnRequest
from holdfast.engine.documents import (
    Document,
    attempt_document,
    history_turn_document,
    late_report_document,
    turn_document,
)
from holdfast.web.access import Guarded
from holdfast.web.keys import ServedOnce
from holdfast.web.limits import shown
from holdfast.web.serving import Served
from holdfast.web.sessions import Body, Limit, SessionPath

router = APIRouter(tags=["turns"], prefix="/sessions/{session}/turns", route_class=Guarded)

TurnPath = Annotated[int, Path(ge=1, le=MAX_NUMBER)]
_MOST_PRIORITY = 1000
_LONGEST_DELAY = 366 * 24 * 3600


class NewTurnBody(Body):
    prompt: str
    provider: str | None = None
    model: str | None = None
    work_dir: str | None = None
    fresh: bool = False
    priority: Annotated[int, Query(ge=-_MOST_PRIORITY, le=_MOST_PRIORITY)] = 0
    delay: Annotated[float, Field(ge=0, le=_LONGEST_DELAY)] = 0.0
    runtime_id: str | None = None
    key: str | None = None
    permission_mode: str | None = None
    allowed_tools: Sequence[str] = ()
    extra_dirs: Sequence[str] = ()
    approve_tools: Sequence[str] = ()
    allow_wider_rights: bool = False

    @property
    def rights(self) -> Rights | None:
        """None: nobody named any."""
        named = Rights(
            self.permission_mode,
            frozenset(self.allowed_tools),
            frozenset(self.extra_dirs),
            approve_tools=frozenset(self.approve_tools),
        )
        return None if named == NO_RIGHTS else named


class EditBody(Body):
    prompt: str | None = None
    response: str | None = None


class RetryBody(Body):
    prompt: str | None = None


@router.get("", name="turns")
def turns(
    holdfast: Served,
    session: SessionPath,
    behind: Annotated[int, Query(alias="after", ge=0, le=MAX_NUMBER)] = 0,
    limit: Limit = 50,
) -> Document:
    """In order, fewer than ``limit`` if they are long; ``next_after`` leads to the next page, and is null on the last."""
    found_id = holdfast.find(session)

    def later(count: int, than: Turn | None) -> Sequence[Turn]:
        return holdfast.store.turns(found_id, after=behind if than is None else than.seq, limit=count)

    found = [*shown(later, limit)]
    return {
        "turns": [turn_document(turn) for turn in found],
        "next_after": found[-1].seq if found and later(1, found[-1]) else None,
    }


@router.post("", name="enqueue_turn", status_code=HTTPStatus.CREATED)
def enqueue_turn(holdfast: ServedOnce, session: SessionPath, new: NewTurnBody) -> Document:
    """Put a turn into the queue, for a worker to run."""
    found = holdfast.session(holdfast.find(session))
    asked = NewTurn(
        new.prompt,
        holdfast.provider_of(found, new.provider),
        TurnRequest(
            new.work_dir, new.model, new.rights, new.fresh, allow_wider_rights=new.allow_wider_rights
        ),
        priority=new.priority,
        not_before=after(holdfast.store.now(), new.delay) if new.delay else None,
        runtime_id=None if new.runtime_id is None else RuntimeId(new.runtime_id),
        key=new.key,
    )
    return turn_document(holdfast.enqueue(found.id, new.prompt, asked))


@router.get("/{turn}", name="get_turn")
def get_turn(holdfast: Served, session: SessionPath, turn: TurnPath) -> Document:
    conversation = holdfast.session(holdfast.find(session)).conversation_id
    found = holdfast.store.get_turn(conversation, turn)
    attempts = holdfast.store.attempts(conversation, turn)
    late = [report for report in holdfast.store.late_reports(conversation) if report.seq == turn]
    return {
        **turn_document(found),
        "attempts": [attempt_document(attempt) for attempt in attempts],
        "late_reports": [late_report_document(report) for report in late],
    }


@router.patch("/{turn}", name="edit_turn")
def edit_turn(holdfast: ServedOnce, session: SessionPath, turn: TurnPath, edit: EditBody) -> Document:
    """Change what was asked or answered: whatever has seen it is not resumed any more."""
    edited = holdfast.edit(holdfast.find(session), turn, prompt=edit.prompt, response=edit.response)
    return history_turn_document(edited)


@router.post("/{turn}/cancel", name="cancel_turn")
def cancel_turn(holdfast: ServedOnce, session: SessionPath, turn: TurnPath) -> Document:
    """At once while it waits; one that runs is asked to stop, and its session stays."""
    return turn_document(holdfast.cancel(holdfast.find(session), turn))


@router.post("/{turn}/retry", name="retry_turn", status_code=HTTPStatus.CREATED)
def retry_turn(holdfast: ServedOnce, session: SessionPath, turn: TurnPath, again: RetryBody) -> Document:
    """Take it and what came after it out of the history, and put it into the queue again."""
    return turn_document(holdfast.retry(holdfast.find(session), turn, again.prompt))

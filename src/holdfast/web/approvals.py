"""Owns approvals as resources: what people are asked, and their answers, from wherever they are."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from holdfast.domain.approvals import Answer, Approval, check_note
from holdfast.domain.ids import MAX_ID
from holdfast.domain.inputs import MAX_NAME
from holdfast.engine.documents import Document, approval_document
from holdfast.engine.holdfast import Holdfast
from holdfast.processes.owners import this_user
from holdfast.web.access import Guarded, caller_of
from holdfast.web.serving import Served
from holdfast.web.sessions import Body, Limit

router = APIRouter(tags=["approvals"], prefix="/approvals", route_class=Guarded)

ApprovalPath = Annotated[str, Path(min_length=1, max_length=128)]


class AnswerBody(Body):
    """``arguments_hash`` and ``nonce`` as they were shown: the answer counts for exactly that."""

    approved: bool
    arguments_hash: str
    nonce: str
    note: str | None = None


@router.get("", name="approvals")
def approvals(
    holdfast: Served,
    session: Annotated[str | None, Query(min_length=1, max_length=MAX_NAME)] = None,
    every: bool = False,
    after: Annotated[str | None, Query(min_length=1, max_length=MAX_ID)] = None,
    limit: Limit = 50,
) -> Document:
    """Those without an answer, the oldest first; ``every``: the answered ones too.

    ``next_after`` leads to the next page, and is null on the last one.
    """
    session_id = None if session is None else holdfast.find(session)
    found = holdfast.approvals(session_id, open_only=not every, after=after, limit=limit)
    return {
        "approvals": [_shown(holdfast, approval) for approval in found],
        "next_after": found[-1].id if len(found) == limit else None,
    }


@router.get("/{approval}", name="get_approval")
def get_approval(holdfast: Served, approval: ApprovalPath) -> Document:
    return _shown(holdfast, holdfast.approval(approval))


@router.post("/{approval}/answer", name="answer_approval")
def answer_approval(
    request: Request, holdfast: Served, approval: ApprovalPath, answer: AnswerBody
) -> Document:
    """Once; the same answer again changes nothing. The note is told to the agent: why not, for example."""
    check_note(answer.note)
    # on a server without tokens it is by the user that this runs as
    given = Answer(answer.approved, this_user(), answer.arguments_hash, answer.nonce, answer.note)
    asked = holdfast.approval(approval)
    return _shown(holdfast, holdfast.store.answer_approval(asked.id, caller_of(request).sign(given)))


def _shown(holdfast: Holdfast, approval: Approval) -> Document:
    return approval_document(approval, holdfast.store.now())

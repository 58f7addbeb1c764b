"""Owns sessions, turns, approvals and runtimes as resources: for people, scripts and pages, as the JSON of the command."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal, TypeVar

from fastapi import APIRouter, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field, model_validator

from holdfast.clock import Instant, from_datetime
from holdfast.domain.approvals import Answer, Approval, check_note
from holdfast.domain.conversations import HistoryTurn
from holdfast.domain.decisions import decision_document
from holdfast.domain.ids import MAX_ID
from holdfast.domain.inputs import MAX_NAME, MAX_NUMBER
from holdfast.domain.metadata import MAX_PAIRS, parse_pairs
from holdfast.domain.pointers import NO_RIGHTS, Rights
from holdfast.domain.search import MOST_HITS
from holdfast.domain.sessions import Session, SessionFilter, SessionKind, SessionStatus
from holdfast.domain.turns import Turn, TurnRequest
from holdfast.engine.documents import (
    Document,
    approval_document,
    attempt_document,
    audit_document,
    conversation_document,
    history_turn_document,
    known_runtime_document,
    late_report_document,
    restored_document,
    search_document,
    session_document,
    turn_document,
    waited_document,
    waiting_document,
)
from holdfast.engine.explain import Reached, look
from holdfast.engine.holdfast import Holdfast
from holdfast.engine.session_log import audit_trail
from holdfast.engine.turn_requests import LONGEST_DELAY, MOST_PRIORITY
from holdfast.errors import InvalidInput
from holdfast.processes.owners import this_user
from holdfast.store.pages import Pace, characters
from holdfast.store.verbs import LONGEST_WATCH_SECONDS
from holdfast.store.wire import MAX_WORD, check_json
from holdfast.web.access import Guarded, caller_of
from holdfast.web.idempotency import ServedOnce
from holdfast.web.serving import Served, served, signed
from holdfast.web.streams import Streams

_sessions = APIRouter(tags=["sessions"], prefix="/sessions", route_class=Guarded)
_turns = APIRouter(tags=["turns"], prefix="/sessions/{session}/turns", route_class=Guarded)
_approvals = APIRouter(tags=["approvals"], prefix="/approvals", route_class=Guarded)
_others = APIRouter(tags=["others"], route_class=Guarded)
routers: Final = (_sessions, _turns, _approvals, _others)

AnyTurn = TypeVar("AnyTurn", HistoryTurn, Turn)

#: between two looks at a session that somebody waits for
_LOOK_SECONDS: Final = 0.5
#: records on one page
MAX_SHOWN: Final = 500
#: characters of the texts on one page; the page ends with the turn that exceeds it
_SHOWN_CHARACTERS: Final = 4 * 1024 * 1024

#: an id, its unique beginning or end, a name, or a title
SessionPath = Annotated[str, Path(min_length=1, max_length=MAX_NAME)]
Limit = Annotated[int, Query(ge=1, le=MAX_SHOWN)]


class Body(BaseModel):
    """Unknown fields are refused: the caller may rely on them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _can_be_kept(cls, given: Any) -> Any:
        """Before pydantic's checks, which quote what they refuse, and accept metadata of any kind."""
        return check_json(given, "body")


class NewSessionBody(Body):
    agent: str
    purpose: str = ""
    metadata: dict[str, Any] | None = None
    name: str | None = None
    provider: str | None = None
    kind: Literal["delegated", "conversation"] = "delegated"
    joins: str | None = None  #: a session: the new one joins its conversation


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


class NameBody(Body):
    name: str | None


class ForkBody(Body):
    at: Annotated[int | None, Field(ge=0, le=MAX_NUMBER)] = None
    name: str | None = None


class KeepBody(Body):
    keep: Annotated[int, Field(ge=0, le=MAX_NUMBER)]


class RestoreBody(Body):
    dry_run: bool = False


@_sessions.get("", name="list_sessions")
def list_sessions(  # noqa: PLR0913 - each filter is a parameter
    holdfast: Served,
    active: bool = False,
    agent: Annotated[str | None, Query(max_length=MAX_NAME)] = None,
    status: SessionStatus | None = None,
    resumable: bool = False,
    provider: Annotated[str | None, Query(max_length=MAX_NAME)] = None,
    project: Annotated[str | None, Query(max_length=MAX_WORD)] = None,
    grep: Annotated[str | None, Query(max_length=MAX_NAME)] = None,
    by_activity: bool = False,
    since: datetime | None = None,
    until: datetime | None = None,
    subagents: bool = False,
    metadata: Annotated[list[str] | None, Query(max_length=MAX_PAIRS)] = None,
    limit: Limit = 50,
    cursor: Annotated[str | None, Query(max_length=MAX_WORD)] = None,
) -> Document:
    """Newest first, or the last active one; ``next_cursor`` leads to the next page, and is null on the last one.

    ``project`` is a directory: its sessions, and those of directories below it. ``grep`` is a text in the id, name,
    purpose, agent or summary, in any case. ``metadata`` is ``key=value``, and may be given several times. ``since`` and
    ``until`` are about the time at which sessions were created; ``subagents`` lists those below other sessions, too.
    """
    wanted = SessionFilter(
        active_only=active,
        agent=agent,
        status=status,
        resumable=resumable,
        provider=provider,
        project=project,
        grep=grep,
        by_activity=by_activity,
        since=_instant("since", since),
        until=_instant("until", until),
        subagents=subagents,
        metadata=parse_pairs(metadata or ()),
    )
    page = holdfast.page(wanted, limit, cursor)
    return {
        "sessions": [session_document(one, page.states[one.id]) for one in page.sessions],
        "unreadable": sorted(page.unreadable),
        "next_cursor": page.next_cursor,
    }


@_sessions.post("", name="create_session", status_code=HTTPStatus.CREATED)
def create_session(holdfast: ServedOnce, new: NewSessionBody) -> Document:
    """A session without a turn. A delegated one has phases and an idle limit; a conversation stays open."""
    joined = None if new.joins is None else holdfast.session(holdfast.find(new.joins))
    made = holdfast.create(
        new.agent,
        new.purpose,
        new.metadata,
        kind=SessionKind(new.kind),
        name=new.name,
        provider=new.provider,
        joins=None if joined is None else joined.conversation_id,
    )
    return _document(holdfast, made)


@_sessions.get("/{session}", name="get_session")
def get_session(holdfast: Served, session: SessionPath) -> Document:
    found = holdfast.session(holdfast.find(session))
    return session_document(found, holdfast.session_state(found.id), holdfast.store.phase_history(found.id))


@_sessions.patch("/{session}", name="update_session")
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


@_sessions.put("/{session}/name", name="rename_session")
def rename_session(holdfast: ServedOnce, session: SessionPath, given: NameBody) -> Document:
    """Names are unique; null removes the name."""
    return _document(holdfast, holdfast.rename(holdfast.find(session), given.name))


@_sessions.delete("/{session}", name="remove_session")
def remove_session(request: Request, holdfast: ServedOnce, session: SessionPath) -> Document:
    """Delete a session and its history. Refused while a turn runs, and while a fork or another agent needs the history."""
    found = holdfast.find(session)
    request.state.about = {"session": found}  # the trail goes with the session: the log says who removed it
    holdfast.remove(found)
    return {"session_id": found, "removed": True}


@_sessions.post("/{session}/fork", name="fork", status_code=HTTPStatus.CREATED)
def fork(holdfast: ServedOnce, session: SessionPath, wanted: ForkBody) -> Document:
    """A new session that begins with this history, up to turn ``at``. The session itself is not changed."""
    child, notices = holdfast.branch(holdfast.find(session), at=wanted.at, name=wanted.name)
    return {**_document(holdfast, child), "notices": list(notices)}


@_sessions.post("/{session}/truncate", name="truncate")
def truncate(holdfast: ServedOnce, session: SessionPath, wanted: KeepBody) -> Document:
    """Take every turn after ``keep`` out of the history."""
    return conversation_document(holdfast.truncate(holdfast.find(session), wanted.keep))


@_sessions.post("/{session}/new", name="new_generation")
def new_generation(holdfast: ServedOnce, session: SessionPath) -> Document:
    """Begin again with an empty history."""
    return conversation_document(holdfast.new(holdfast.find(session)))


@_sessions.post("/{session}/restore", name="restore")
def restore(
    request: Request, holdfast: Served, session: SessionPath, wanted: RestoreBody | None = None
) -> Document:
    """Put the agent's own session files back from the vault, if the agent's home is on the server's machine.

    Files that are the same or newer are left alone, and one that differs is never overwritten. Refused with
    ``runtime_changed`` if the session ran on another machine: the answer says what to run there.
    """
    dry_run = wanted is not None and wanted.dry_run
    # the vault is read by the server itself: its bytes are not for the caller
    own = signed(request, served(request))
    found = holdfast.find(session)
    return restored_document(found, own.restore(found, dry_run=dry_run), dry_run=dry_run)


@_sessions.get("/{session}/wait", name="wait")
async def wait(
    request: Request,
    holdfast: Served,
    session: SessionPath,
    seconds: Annotated[float, Query(ge=0, le=LONGEST_WATCH_SECONDS)] = LONGEST_WATCH_SECONDS,
) -> Document:
    """Answered as soon as the work is done, has failed or needs a person, or after ``seconds``: then ``still_open``."""
    found = await run_in_threadpool(holdfast.find, session)
    streams: Streams = request.app.state.streams
    with streams.counted(caller_of(request).id):
        until = time.monotonic() + seconds
        while True:
            waited = await run_in_threadpool(look, holdfast.store, found)
            left = until - time.monotonic()
            if waited.reached is not Reached.STILL_OPEN or left <= 0 or streams.closing:
                return waited_document(waited, await run_in_threadpool(holdfast.store.now))
            await asyncio.sleep(min(_LOOK_SECONDS, left))


@_sessions.post("/{session}/finalize", name="finalize_session")
def finalize_session(holdfast: ServedOnce, session: SessionPath, end: OutcomeBody) -> Document:
    """Close for good: as completed, failed or abandoned."""
    return _document(holdfast, holdfast.finalize(holdfast.find(session), end.outcome, end.summary))


def _instant(field: str, given: datetime | None) -> Instant | None:
    try:
        return None if given is None else from_datetime(given)
    except (ValueError, OverflowError):
        raise InvalidInput(f"query.{field}", "is not a moment that can be kept") from None


def _document(holdfast: Holdfast, session: Session) -> Document:
    return session_document(session, holdfast.session_state(session.id))


@_sessions.get("/{session}/history", name="history")
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


@_sessions.get("/{session}/decision", name="explain")
def decision(holdfast: Served, session: SessionPath) -> Document:
    """How the next turn would continue if it were claimed now, why, and what it waits for."""
    found = holdfast.find(session)
    return decision_document(holdfast.decide(found)) | waiting_document(holdfast.waiting(found))


@_sessions.get("/{session}/trail", name="trail")
def trail(
    holdfast: Served,
    session: SessionPath,
    behind: Annotated[int, Query(alias="after", ge=0, le=MAX_NUMBER)] = 0,
    limit: Limit = 50,
) -> Document:
    """Who did what with the session, oldest first, with the token's name; ``next_after`` leads to the next page."""
    entries = audit_trail(holdfast.store, holdfast.find(session))
    shown_until = behind + limit
    return {
        "entries": [audit_document(entry) for entry in entries[behind:shown_until]],
        "next_after": shown_until if len(entries) > shown_until else None,
    }


TurnPath = Annotated[int, Path(ge=1, le=MAX_NUMBER)]


class NewTurnBody(Body):
    prompt: str
    provider: str | None = None
    model: str | None = None
    work_dir: str | None = None
    fresh: bool = False
    priority: Annotated[int, Query(ge=-MOST_PRIORITY, le=MOST_PRIORITY)] = 0
    delay: Annotated[float, Field(ge=0, le=LONGEST_DELAY)] = 0.0
    runtime_id: str | None = None
    key: str | None = None
    permission_mode: str | None = None
    allowed_tools: Sequence[str] = ()
    extra_dirs: Sequence[str] = ()
    approve_tools: Sequence[str] = ()
    allow_wider_rights: bool = False

    @property
    def rights(self) -> Rights | None:
        """None if the request names no rights."""
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


@_turns.get("", name="turns")
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


@_turns.post("", name="enqueue_turn", status_code=HTTPStatus.CREATED)
def enqueue_turn(holdfast: ServedOnce, session: SessionPath, new: NewTurnBody) -> Document:
    """Put a turn into the queue, for a worker to run."""
    found = holdfast.session(holdfast.find(session))
    request = TurnRequest(
        new.work_dir, new.model, new.rights, new.fresh, allow_wider_rights=new.allow_wider_rights
    )
    asked = holdfast.new_turn(
        found,
        request,
        provider=new.provider,
        priority=new.priority,
        delay=new.delay,
        runtime_id=new.runtime_id,
        key=new.key,
    )
    return turn_document(holdfast.enqueue(found.id, new.prompt, asked))


@_turns.get("/{turn}", name="get_turn")
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


@_turns.patch("/{turn}", name="edit_turn")
def edit_turn(holdfast: ServedOnce, session: SessionPath, turn: TurnPath, edit: EditBody) -> Document:
    """Change a prompt or an answer. A provider session that has seen it is not resumed any more."""
    edited = holdfast.edit(holdfast.find(session), turn, prompt=edit.prompt, response=edit.response)
    return history_turn_document(edited)


@_turns.post("/{turn}/cancel", name="cancel_turn")
def cancel_turn(holdfast: ServedOnce, session: SessionPath, turn: TurnPath) -> Document:
    """A turn that waits is cancelled at once; one that runs is asked to stop. The session stays open."""
    return turn_document(holdfast.cancel(holdfast.find(session), turn))


@_turns.post("/{turn}/retry", name="retry_turn", status_code=HTTPStatus.CREATED)
def retry_turn(holdfast: ServedOnce, session: SessionPath, turn: TurnPath, again: RetryBody) -> Document:
    """Take the turn and all later ones out of the history, and put it into the queue again."""
    return turn_document(holdfast.retry(holdfast.find(session), turn, again.prompt))


ApprovalPath = Annotated[str, Path(min_length=1, max_length=128)]


class AnswerBody(Body):
    """``arguments_hash`` and ``nonce`` as they were shown: the answer counts for exactly that call."""

    approved: bool
    arguments_hash: str
    nonce: str
    note: str | None = None


@_approvals.get("", name="approvals")
def approvals(
    holdfast: Served,
    session: Annotated[str | None, Query(min_length=1, max_length=MAX_NAME)] = None,
    every: bool = False,
    after: Annotated[str | None, Query(min_length=1, max_length=MAX_ID)] = None,
    limit: Limit = 50,
) -> Document:
    """Approvals without an answer, oldest first; with ``every``, the answered ones too.

    ``next_after`` leads to the next page, and is null on the last one.
    """
    session_id = None if session is None else holdfast.find(session)
    found = holdfast.approvals(session_id, open_only=not every, after=after, limit=limit)
    return {
        "approvals": [_shown(holdfast, approval) for approval in found],
        "next_after": found[-1].id if len(found) == limit else None,
    }


@_approvals.get("/{approval}", name="get_approval")
def get_approval(holdfast: Served, approval: ApprovalPath) -> Document:
    return _shown(holdfast, holdfast.approval(approval))


@_approvals.post("/{approval}/answer", name="answer_approval")
def answer_approval(
    request: Request, holdfast: Served, approval: ApprovalPath, answer: AnswerBody
) -> Document:
    """Answers an approval, once; the same answer again changes nothing. The agent is told the note."""
    check_note(answer.note)
    # without tokens, the answer is recorded as given by the user who runs the server
    given = Answer(answer.approved, this_user(), answer.arguments_hash, answer.nonce, answer.note)
    asked = holdfast.approval(approval)
    return _shown(holdfast, holdfast.store.answer_approval(asked.id, caller_of(request).sign(given)))


def _shown(holdfast: Holdfast, approval: Approval) -> Document:
    return approval_document(approval, holdfast.store.now())


# --- what is not of one session ---


@_others.get("/search", name="search")
def search(  # noqa: PLR0913 - each filter is a parameter
    holdfast: Served,
    q: Annotated[str, Query(min_length=1, max_length=MAX_WORD)],
    agent: Annotated[str | None, Query(max_length=MAX_NAME)] = None,
    provider: Annotated[str | None, Query(max_length=MAX_NAME)] = None,
    project: Annotated[str | None, Query(max_length=MAX_WORD)] = None,
    since: datetime | None = None,
    limit: Annotated[int, Query(ge=1, le=MOST_HITS)] = 20,
) -> Document:
    """The sessions in which the words ``q`` were said, the best first, each with its best turn and a snippet.

    No character of ``q`` has a special meaning. ``pending`` counts turns that are not in the index yet: ask again.
    """
    found = holdfast.search(
        q, agent=agent, provider=provider, project=project, since=_instant("since", since), limit=limit
    )
    return search_document(found, None)


@_others.get("/runtimes", name="runtimes")
def runtimes(holdfast: Served) -> Document:
    """Where agents can run: every runtime that a worker has used, and when it was last seen."""
    return {"runtimes": [known_runtime_document(known) for known in holdfast.store.runtimes()]}


def shown(read: Callable[[int, AnyTurn | None], Sequence[AnyTurn]], limit: int) -> Iterator[AnyTurn]:
    """At most ``limit`` turns, fewer if they are long. ``read`` gets how many to read, and the last turn it returned."""
    pace, left, size = Pace(), limit, 0
    last: AnyTurn | None = None
    while left and size < _SHOWN_CHARACTERS:
        found = read(min(pace.size, left), last)
        if not found:
            return
        yield from found
        pace.adapt(found)
        left, size, last = left - len(found), size + characters(found), found[-1]

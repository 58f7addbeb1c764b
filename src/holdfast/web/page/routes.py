"""Owns the addresses of the page: what each shows, and the forms, which act and then lead back to what they changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse
from starlette.responses import Response

from holdfast import __version__
from holdfast.domain.approvals import Answer, check_note
from holdfast.domain.inputs import MAX_NAME, MAX_NUMBER
from holdfast.domain.turns import TurnRequest
from holdfast.engine.holdfast import CONTINUE, Holdfast
from holdfast.engine.restoring import RestoreOutcome
from holdfast.errors import HoldfastError, InvalidInput, NotFound, Unauthenticated
from holdfast.processes.owners import this_user
from holdfast.store.wire import MAX_WORD
from holdfast.web.access import Caller, Guarded, caller_of, confined, may
from holdfast.web.admission import Callers
from holdfast.web.page import views
from holdfast.web.page.login import Entrance, cookie_name, form_fields, form_token, log_in, own_path, path_of
from holdfast.web.page.rendering import HEADERS, HERE, TEMPLATES
from holdfast.web.problems import answer_to
from holdfast.web.resources import ApprovalPath, SessionPath
from holdfast.web.serving import Served, served, signed

#: what a form has done, by the word that its answer's address has
SAID: Final = {
    "queued": "The turn is in the queue.",
    "forked": "This is the fork.",
    "unchanged": "Nothing was changed.",
    "edited": "The turn is edited. A session that has seen it starts fresh next time.",
    "truncated": "The later turns are out of the history.",
    "retried": "The turn is in the queue again.",
    "cancelled": "The turn is cancelled, or asked to stop.",
    "closed": "The session is closed.",
    "renamed": "The session has its new name.",
    "restored": "The agent's files are as the vault has them.",
    "left_alone": "Nothing was written: the agent's files are there. If they differ from what was recorded, both are kept.",
    "approved": "Approved. If a turn waits for it, the next free worker continues that turn.",
    "denied": "Denied. The agent is told so, with your note, in its next turn.",
}
_FILES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain"}
_NO_STORE: Final = {"cache-control": "no-store"}


class PageRoute(Guarded):
    """An error is a page, too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def shown(request: Request) -> Response:
            try:
                return await answer(request)
            except HoldfastError as error:
                return _failure(request, error)
            except RequestValidationError as error:
                first = error.errors()[0]
                return _failure(request, InvalidInput(str(first["loc"][-1])[:40], first["msg"]))

        return shown


def _said(said: Annotated[str, Query(max_length=20)] = "") -> str | None:
    """What a form has done: every page may be its answer."""
    return SAID.get(said)


router = APIRouter(
    tags=["page"], route_class=PageRoute, include_in_schema=False, dependencies=[Depends(_said)]
)
#: for people who are not known yet
doors = APIRouter(tags=["page"], include_in_schema=False)

Form = Annotated[dict[str, str], Depends(form_fields)]


async def _acting(request: Request) -> Holdfast:
    """It records who acts."""
    return confined(caller_of(request), signed(request, served(request)))


Acting = Annotated[Holdfast, Depends(_acting)]
#: of a list that is paged by numbers
Number = Annotated[int | None, Query(ge=2, le=MAX_NUMBER)]


def _page(request: Request, name: str, view: Mapping[str, Any], status: int = 200) -> HTMLResponse:
    caller: Caller | None = getattr(request.state, "caller", None)

    def allowed(verb: str) -> bool:
        return caller is not None and may(caller.role, verb)

    base = request.scope.get("root_path", "")
    said = SAID.get(request.query_params.get("said", ""))
    html = TEMPLATES.get_template(name).render(
        base=base,
        csrf=form_token(request),
        caller=caller,
        is_known=cookie_name(request.scope) in request.cookies,
        may=allowed,
        said=said,
        path=base + path_of(request.scope),
        query=request.url.query,
        version=__version__,
        **view,
    )
    return HTMLResponse(html, status, {**HEADERS, **_NO_STORE})


def _failure(request: Request, error: HoldfastError) -> Response:
    problem = answer_to(error)
    words = str(json.loads(bytes(problem.body))["detail"])  # without places of this machine
    view = {"status": HTTPStatus(problem.status_code).phrase, "words": words, "waiting": 0}
    request.state.code = error.code
    return _page(request, "error.html", view, problem.status_code)


def _waiting(holdfast: Holdfast) -> dict[str, int]:
    """How many questions wait: for the badge."""
    return {"waiting": len(holdfast.store.approvals(limit=100))}


def _sees_contents(request: Request) -> bool:
    return may(caller_of(request).role, "events")


def _to(request: Request, path: str, said: str | None = None, anchor: str = "") -> Response:
    words = "" if said is None else f"?{urlencode({'said': said})}"
    base = request.scope.get("root_path", "")
    return RedirectResponse(f"{base}{path}{words}{anchor}", HTTPStatus.SEE_OTHER, _NO_STORE)


# --- what there is to see ---


Word = Annotated[str, Query(max_length=MAX_NAME)]


def _filters(
    q: Word = "",
    status: Word = "",
    agent: Word = "",
    provider: Word = "",
    project: Annotated[str, Query(max_length=MAX_WORD)] = "",
    since: Word = "",
) -> dict[str, str]:
    """Those that are given; a form sends the others, too, without a value."""
    given = {
        "q": q,
        "status": status,
        "agent": agent,
        "provider": provider,
        "project": project,
        "since": since,
    }
    return {name: value.strip() for name, value in given.items() if value.strip()}


@router.get("/", name="list_sessions")
def sessions(
    request: Request,
    holdfast: Served,
    filters: Annotated[dict[str, str], Depends(_filters)],
    cursor: Annotated[str | None, Query(max_length=MAX_WORD)] = None,
) -> Response:
    view = views.sessions(holdfast, filters, cursor)
    return _page(request, "sessions.html", {**view, **_waiting(holdfast)})


@router.get("/s/{session}", name="history")
def session(request: Request, holdfast: Served, session: SessionPath, before: Number = None) -> Response:
    view = views.session(holdfast, holdfast.find(session), before, contents=_sees_contents(request))
    return _page(request, "session.html", {**view, **_waiting(holdfast)})


@router.get("/s/{session}/turns", name="history")
def turns(
    request: Request,
    holdfast: Served,
    session: SessionPath,
    before: Number = None,
    first: Annotated[int | None, Query(ge=1, le=MAX_NUMBER)] = None,
) -> Response:
    """A part of the page: older turns, or those from ``first`` on as they are now."""
    return _page(request, "turns.html", views.turns(holdfast, holdfast.find(session), before, first))


@router.get("/s/{session}/outline", name="history")
def outline(request: Request, holdfast: Served, session: SessionPath) -> Response:
    """A part of the page: the beginnings of the newest requests."""
    return _page(request, "outline.html", views.outline(holdfast, holdfast.find(session)))


@router.get("/s/{session}/edit", name="edit_turn")
def show_edit(
    request: Request,
    holdfast: Served,
    session: SessionPath,
    turn: Annotated[int, Query(ge=1, le=MAX_NUMBER)],
) -> Response:
    view = views.one_turn(holdfast, holdfast.find(session), turn)
    return _page(request, "edit.html", {**view, **_waiting(holdfast)})


@router.get("/s/{session}/lineage", name="children")
def lineage(request: Request, holdfast: Served, session: SessionPath) -> Response:
    base = request.scope.get("root_path", "")
    view = views.lineage(holdfast, holdfast.find(session), base)
    return _page(request, "lineage.html", {**view, **_waiting(holdfast)})


@router.get("/inbox", name="approvals")
def inbox(request: Request, holdfast: Served) -> Response:
    return _page(request, "inbox.html", {**views.inbox(holdfast), **_waiting(holdfast)})


@router.get("/badge", name="approvals")
def badge(request: Request, holdfast: Served) -> Response:
    """A part of every page: how many questions wait."""
    return _page(request, "badge.html", _waiting(holdfast))


@router.get("/a/{approval}", name="get_approval")
def question(request: Request, holdfast: Served, approval: ApprovalPath) -> Response:
    return _page(request, "inbox.html", {**views.inbox(holdfast, approval), **_waiting(holdfast)})


@router.get("/fleet", name="runtimes")
def fleet(request: Request, holdfast: Served) -> Response:
    return _page(
        request,
        "fleet.html",
        {**views.fleet(holdfast, contents=_sees_contents(request)), **_waiting(holdfast)},
    )


@router.get("/numbers", name="totals")
def numbers(
    request: Request,
    holdfast: Served,
    since: Annotated[str | None, Query(max_length=10)] = None,
    agent: Annotated[str | None, Query(max_length=200)] = None,
) -> Response:
    view = views.numbers(holdfast, since or None, agent or None)
    return _page(request, "numbers.html", {**view, **_waiting(holdfast)})


# --- what can be done ---


@router.post("/s/{session}/continue", name="enqueue_turn")
def continue_session(request: Request, holdfast: Acting, session: SessionPath, form: Form) -> Response:
    """Queues a turn with the rights that the session has: nothing here can widen them."""
    found = holdfast.session(holdfast.find(session))
    prompt = form.get("prompt", "").strip()
    # a turn of the queue whose worker is gone continues by itself
    taken_over = holdfast.take_over(found.id) if not prompt else None
    if taken_over is None or not taken_over.status.is_open:
        asked = TurnRequest(force_fresh="fresh" in form)
        holdfast.enqueue(found.id, prompt or CONTINUE, holdfast.new_turn(found, asked))
    return _to(request, f"/s/{found.id}", "queued", "#newest")


@router.post("/s/{session}/fork", name="fork")
def fork(request: Request, holdfast: Acting, session: SessionPath, form: Form) -> Response:
    at = _whole(form, "at") if form.get("at") else None
    made = holdfast.fork(holdfast.find(session), at=at, name=form.get("name", "").strip() or None)
    return _to(request, f"/s/{made.id}", "forked")


@router.post("/s/{session}/edit", name="edit_turn")
def edit(request: Request, holdfast: Acting, session: SessionPath, form: Form) -> Response:
    found, turn = holdfast.find(session), _whole(form, "turn")
    before = views.one_turn(holdfast, found, turn)["turn"]
    changed = {
        name: form[name]
        for name in ("prompt", "response")
        if name in form and form[name] != getattr(before, name)
    }
    if changed:
        holdfast.edit(found, turn, prompt=changed.get("prompt"), response=changed.get("response"))
    return _to(request, f"/s/{found}", "edited" if changed else "unchanged", f"#turn-{turn}")


@router.post("/s/{session}/truncate", name="truncate")
def truncate(request: Request, holdfast: Acting, session: SessionPath, form: Form) -> Response:
    found = holdfast.find(session)
    holdfast.truncate(found, _whole(form, "turn"))
    return _to(request, f"/s/{found}", "truncated")


@router.post("/s/{session}/retry", name="retry_turn")
def retry(request: Request, holdfast: Acting, session: SessionPath, form: Form) -> Response:
    found = holdfast.find(session)
    holdfast.retry(found, _whole(form, "turn"))
    return _to(request, f"/s/{found}", "retried", "#newest")


@router.post("/s/{session}/cancel", name="cancel_turn")
def cancel(request: Request, holdfast: Acting, session: SessionPath, form: Form) -> Response:
    found = holdfast.find(session)
    holdfast.cancel(found, _whole(form, "turn") if form.get("turn") else None)
    return _to(request, f"/s/{found}", "cancelled")


@router.post("/s/{session}/finalize", name="finalize_session")
def finalize(request: Request, holdfast: Acting, session: SessionPath, form: Form) -> Response:
    found, summary = holdfast.find(session), form.get("summary", "").strip() or None
    holdfast.finalize(found, form.get("outcome", ""), summary)
    return _to(request, f"/s/{found}", "closed")


@router.post("/s/{session}/rename", name="rename_session")
def rename(request: Request, holdfast: Acting, session: SessionPath, form: Form) -> Response:
    found = holdfast.find(session)
    holdfast.rename(found, form.get("name", "").strip() or None)
    return _to(request, f"/s/{found}", "renamed")


@router.post("/s/{session}/restore", name="restore")
def restore(request: Request, holdfast: Acting, session: SessionPath, form: Form) -> Response:  # noqa: ARG001 - it proves who asks
    found = holdfast.find(session)
    is_done = any(each.outcome is RestoreOutcome.RESTORED for each in holdfast.restore(found))
    return _to(request, f"/s/{found}", "restored" if is_done else "left_alone")


@router.post("/a/{approval}", name="answer_approval")
def answer(request: Request, holdfast: Acting, approval: ApprovalPath, form: Form) -> Response:
    """Counts for exactly the call that the person saw: the form has the hash of its arguments, and its nonce."""
    note = form.get("note", "").strip() or None
    check_note(note)
    if form.get("answer") not in ("approve", "deny"):
        raise InvalidInput("answer", "is approve or deny")
    approved = form["answer"] == "approve"
    given = Answer(approved, this_user(), form.get("arguments_hash", ""), form.get("nonce", ""), note)
    asked = holdfast.approval(approval)
    holdfast.store.answer_approval(asked.id, caller_of(request).sign(given))
    return _to(request, own_path(form.get("back", "/inbox")), "approved" if approved else "denied")


def _whole(form: Mapping[str, str], name: str) -> int:
    text = form.get(name, "")
    if not text.isdecimal() or len(text) > 15:
        raise InvalidInput(name, "must be the number of a turn")
    return int(text)


# --- doors ---


@doors.get("/login", name="login")
def show_login(
    request: Request,
    code: Annotated[str | None, Query(max_length=100)] = None,
    wanted: Annotated[str, Query(alias="next", max_length=2000)] = "/",
) -> Response:
    """A form for a token; with the code of ``holdfast ui`` in the address, the door opens at once."""
    request.state.verb = "login"
    entrance: Entrance = request.app.state.entrance
    key = None if code is None else entrance.exchange(code)
    if key is not None:
        return log_in(_to(request, own_path(wanted)), request, key, lasts=False)
    return _login(
        request, wanted, None if code is None else "The code was used already. Start holdfast ui again."
    )


@doors.post("/login", name="login")
async def check_login(request: Request) -> Response:
    request.state.verb = "login"
    try:
        form = await form_fields(request)
    except HoldfastError as error:
        return _login(request, "/", error.message, HTTPStatus.FORBIDDEN)
    token, wanted = form.get("token", "").strip(), form.get("next", "/")
    callers: Callers = request.app.state.callers
    try:
        if not token.isascii():
            raise Unauthenticated("not a token")
        callers.identify([f"Bearer {token}"])
    except Unauthenticated:
        words = "This token is not known here, or is not valid any more."
        return _login(request, wanted, words, HTTPStatus.UNAUTHORIZED)
    return log_in(_to(request, own_path(wanted)), request, token, lasts=True)


def _login(request: Request, wanted: str, problem: str | None, status: int = 200) -> Response:
    entrance: Entrance = request.app.state.entrance
    view = {"next": own_path(wanted), "problem": problem, "is_local": entrance.key is not None, "waiting": 0}
    return _page(request, "login.html", view, status)


@doors.post("/logout", name="logout")
async def logout(request: Request) -> Response:
    request.state.verb = "logout"
    await form_fields(request)
    left = _to(request, "/login")
    left.delete_cookie(cookie_name(request.scope), path=request.scope.get("root_path", "") or "/")
    return left


@cache
def _names(root: Path) -> frozenset[str]:
    """The files of the page: no other name is ever looked for on the disk."""
    return frozenset(path.relative_to(root).as_posix() for path in root.rglob("*") if path.suffix in _FILES)


@doors.get("/static/{file:path}", name="static")
def static(request: Request, file: str) -> Response:
    request.state.verb = "static"
    root = HERE / "static"
    if file not in _names(root):
        raise NotFound("file", file[:100])
    path = root / file
    # the addresses have the version in them
    fresh = {"cache-control": "public, max-age=31536000, immutable" if request.query_params else "no-cache"}
    return FileResponse(path, media_type=_FILES[path.suffix], headers={**HEADERS, **fresh})

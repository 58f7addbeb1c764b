"""A viewer sees figures and states, and nothing of what people, agents and tools have said and done."""

import json
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from holdfast.domain.events import EventKind
from holdfast.domain.ids import Workspace
from holdfast.domain.phases import Phase
from holdfast.domain.pointers import Rights
from holdfast.domain.sessions import Session, SessionFilter, SessionUpdate
from holdfast.domain.tokens import ENTROPY, Role, make_token
from holdfast.domain.turns import Launch, TurnRequest
from holdfast.errors import AmbiguousId, Forbidden, HoldfastError, LeaseLost, NotFound
from holdfast.store.contract import Store
from holdfast.store.http_store import open_http
from holdfast.store.open import open_store
from holdfast.store.sql_store import SqlStore
from holdfast.store.verbs import verbs
from tests.builders import an_answer, an_approval, an_event, done, failed
from tests.clock import ManualClock
from tests.contract.served import Served, serving
from tests.contract.test_workspaces import begin_theirs
from tests.integration.test_access import CALLS, ROUTES, ask, bearer, may
from tests.steps import begin, claim, defer, enqueue, run

SECRET = "kingfisher"
RIGHTS = Rights(
    "plan", frozenset({f"Bash({SECRET})"}), frozenset({f"/srv/{SECRET}"}), (f"--{SECRET}",), frozenset({f"Edit({SECRET})"})
)  # fmt: skip


class Room:
    """A workspace in which the word stands wherever a text can stand, and a viewer's token of it."""

    def __init__(self, served: Served, book: SqlStore, database: SqlStore, clock: ManualClock) -> None:
        self.url = served.url
        self.name, self.store = served.room_in(database)
        self.theirs = begin_theirs(self.store, clock)
        self.session = tell_everywhere(self.store)
        self._tokens = {}
        for role in (Role.VIEWER, Role.READER):
            new, self._tokens[role] = make_token(role, role.value, None, os.urandom(ENTROPY))
            book.within(Workspace(self.name)).create_token(new)

    def get(self, path: str, role: Role = Role.VIEWER, method: str = "GET") -> tuple[int, str]:
        status, told = ask(self.url, method, path, bearer(self._tokens[role]))
        return status, json.dumps(told)

    def opened(self, role: Role = Role.VIEWER) -> Store:
        return open_http(self.url, self.name, self._tokens[role])


def tell_everywhere(store: Store) -> Session:
    session = begin(
        store,
        purpose=f"{SECRET} of the purpose. More.",
        metadata={"task": SECRET},
        name="told",
        provider="claude",
    )
    store.update_session(session.id, SessionUpdate(summary=f"{SECRET} so far", error=f"{SECRET} went wrong"))
    run(store, session, f"{SECRET}, first", response=f"{SECRET} answers", title=f"{SECRET} as a title")
    (pointer,) = store.pointers(session.id)
    store.set_pointer(replace(pointer, rights=RIGHTS))
    enqueue(store, session, f"{SECRET}, second")
    lease = claim(store, session).lease
    store.record_events(lease, [an_event(1, kind=EventKind.TEXT, data={"text": SECRET})])
    store.finish_turn(lease, failed(message=f"{SECRET} failed"))
    asked = store.request_approval(session.id, an_approval(what=f"{SECRET}?", arguments={"path": SECRET}))
    store.answer_approval(asked.id, an_answer(asked, approved=False, note=f"not {SECRET}"))
    store.update_session(session.id, SessionUpdate(phase=Phase.EXECUTING))
    waiting = defer(
        store, session, f"{SECRET}, third", approval=an_approval(what=SECRET, arguments={"a": SECRET})
    )
    store.answer_approval(waiting.id, an_answer(waiting))
    claimed = claim(store, session)
    store.launch(claimed.lease, Launch(claimed.decision))
    orphan = store.holder(session.id)
    assert orphan is not None
    store.recover(orphan, owner_is_gone=True)
    with pytest.raises(LeaseLost):
        store.finish_turn(claimed.lease, done(f"{SECRET}, too late"))
    store.request_approval(session.id, an_approval(what=f"{SECRET}?", arguments={"path": SECRET}))
    return store.get_session(session.id)


@pytest.fixture(scope="module")
def room() -> Iterator[Room]:
    clock = ManualClock()
    with (
        closing(open_store("sqlite:///:memory:")) as book,
        closing(open_store("sqlite:///:memory:", clock=clock)) as database,
    ):
        assert isinstance(book, SqlStore)
        assert isinstance(database, SqlStore)
        book.create_token(make_token(Role.READER, "the first", None, bytes(ENTROPY))[0])
        with serving(book) as served:
            yield Room(served, book, database, clock)


PATHS = [
    "/v1/sessions", "/v1/sessions?by_activity=true&subagents=true", "/v1/sessions/told", "/v1/sessions/told/history",
    "/v1/sessions/told/turns", "/v1/sessions/told/turns/1", "/v1/sessions/told/turns/2", "/v1/sessions/told/turns/3",
    "/v1/sessions/told/decision", "/v1/sessions/told/wait?seconds=0", "/v1/approvals", "/v1/approvals?every=true",
    "/v1/sessions/told/trail",
    "/v1/runtimes", "/readyz",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_no_page_has_contents(room: Room, path: str) -> None:
    status, told = room.get(path)

    assert (status, SECRET in told) == (200, False), told


def test_a_reader_gets_them(room: Room) -> None:
    """The word is where it should be missing above."""
    without = {"/v1/runtimes", "/readyz", "/v1/sessions/told/decision"}
    for path in PATHS:
        assert (SECRET in room.get(path, Role.READER)[1]) is (path not in without), path


@pytest.mark.parametrize(
    "path",
    [
        "/v1/sessions/told/events", f"/v1/search?q={SECRET}", f"/v1/sessions?grep={SECRET}",
        f"/v1/sessions?metadata=task={SECRET}",
    ],
)  # fmt: skip
def test_contents_are_not_looked_for_either(room: Room, path: str) -> None:
    status, told = room.get(path)

    assert (status, json.loads(told)["code"]) == (403, "forbidden")


def test_a_session_is_found_by_its_id_and_name_but_not_by_its_title(room: Room) -> None:
    title = f"/v1/sessions/{SECRET}%20as%20a%20title"

    assert room.get(title, Role.READER)[0] == 200
    assert room.get(title)[0] == 404
    begin(room.store, purpose=f"{SECRET} as a title. Another one.")
    assert (room.get(title, Role.READER)[0], room.get(title)[0]) == (409, 404)
    for given in (room.session.id, room.session.id[-8:], "told"):
        assert room.get(f"/v1/sessions/{given}")[0] == 200


def test_an_approval_is_found_by_its_id_and_its_session_but_not_by_a_title(room: Room) -> None:
    asked = begin(room.store, purpose="Heron one. More.", name="asking")
    approval = room.store.request_approval(asked.id, an_approval())
    begin(room.store, purpose="Heron two. Nobody asked.")
    for _ in range(2):
        begin(room.store, purpose="Heron three. Twice.")
    with closing(room.opened()) as store, closing(room.opened(Role.READER)) as reader:
        for given in (approval.id, asked.id, asked.id[-8:], "asking"):
            assert store.find_approval(given) == approval.id
        with pytest.raises(AmbiguousId):
            store.find_approval(approval.id[:4])
        assert reader.find_approval("Heron one") == approval.id
        told = set()
        for title in ("Heron one", "Heron two", "Heron three", "Heron four"):
            with pytest.raises(NotFound) as missing:
                store.find_approval(title)
            told.add(str(missing.value).replace(title, "TITLE"))
        assert len(told) == 1, "a guess that is right is told from one that is wrong"


def test_a_title_that_is_a_part_of_an_id_is_no_part_of_it(room: Room) -> None:
    session = begin(room.store, name=None)
    inside = session.id[2:-2]
    titled = begin(room.store, purpose=f"{session.id[2:-2]}. More.", id=f"x{inside}x")
    with closing(room.opened()) as store, closing(room.opened(Role.READER)) as reader:
        assert reader.find_session(inside) == titled.id
        with pytest.raises(NotFound):
            store.find_session(inside)


def test_rights_are_not_guessed_by_a_decision(room: Room) -> None:
    (pointer,) = room.store.pointers(room.session.id)
    with closing(room.opened()) as store:
        store.explain(room.session.id, "claude", TurnRequest(model="opus"))
        for guess in ((TurnRequest(rights=RIGHTS), None, None), (None, None, pointer)):
            with pytest.raises(Forbidden, match="does not look for"):
                store.explain(room.session.id, "claude", *guess)


def test_of_rights_the_permission_mode_is_shown(room: Room) -> None:
    with closing(room.opened()) as store, closing(room.opened(Role.READER)) as reader:
        for view, shown in ((store, Rights("plan")), (reader, RIGHTS)):
            (pointer,) = view.pointers(room.session.id)
            attempt = view.newest_attempt(room.session.id)
            assert attempt is not None
            assert (pointer.rights, attempt.rights) == (shown, shown)


def test_no_verb_of_the_store_gives_contents(room: Room) -> None:
    asked = replace(room.theirs, session=room.session)
    for verb in sorted(verb for verb in verbs() if may(Role.VIEWER, verb)):
        try:
            with closing(room.opened()) as store:
                told = CALLS[verb](store, asked)
        except HoldfastError as error:
            told = error
        assert SECRET not in repr(told), verb
    with closing(room.opened()) as store:
        page = store.list_sessions(SessionFilter(), 100)
        turns = store.turns(room.session.id)
    assert {turn.prompt for turn in turns} == {""}
    assert room.session.id in page.states


def test_figures_and_states_are_there(room: Room) -> None:
    _, told = room.get("/v1/sessions/told")
    session: dict[str, Any] = json.loads(told)
    reader: dict[str, Any] = json.loads(room.get("/v1/sessions/told", Role.READER)[1])

    for field in (
        "session_id",
        "status",
        "phase",
        "usage",
        "error_count",
        "created_at",
        "name",
        "agent_name",
    ):
        assert session[field] == reader[field], field
    assert (session["title"], session["purpose"], session["metadata"]) == ("told", "", {})


def test_a_viewer_changes_nothing(room: Room) -> None:
    for route in ROUTES:
        if route.method != "GET" and "/v1/store/" not in route.path:
            assert room.get(route.path, method=route.method)[0] == 403, route
    with closing(room.opened()) as store:
        with pytest.raises(Forbidden):
            enqueue(store, room.session, "go")
        with pytest.raises((Forbidden, NotFound)):
            store.events(room.session.conversation_id, 1)

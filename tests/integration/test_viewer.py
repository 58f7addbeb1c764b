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
from holdfast.domain.sessions import Session, SessionFilter, SessionUpdate
from holdfast.domain.tokens import ENTROPY, Role, make_token
from holdfast.domain.turns import Launch
from holdfast.errors import Forbidden, HoldfastError, LeaseLost, NotFound
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
    run(store, session, f"{SECRET}, first", response=f"{SECRET} answers")
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
    title = f"/v1/sessions/{SECRET}%20of%20the%20purpose"

    assert room.get(title, Role.READER)[0] == 200
    assert room.get(title)[0] == 404
    begin(room.store, purpose=f"{SECRET} of the purpose. Another one.")
    assert (room.get(title, Role.READER)[0], room.get(title)[0]) == (409, 404)
    for given in (room.session.id, room.session.id[-8:], "told"):
        assert room.get(f"/v1/sessions/{given}")[0] == 200


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

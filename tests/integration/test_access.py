"""Who may do what over HTTP: every role with every verb, in its own workspace and in another one."""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from holdfast.clock import Instant, after
from holdfast.domain.decisions import Fresh, Reason
from holdfast.domain.delegations import DelegationEnd, DelegationOutcome, Question
from holdfast.domain.ids import ProviderSessionId, Workspace
from holdfast.domain.observed import Sighting
from holdfast.domain.phases import Phase
from holdfast.domain.pointers import Rights, TranscriptMark
from holdfast.domain.sessions import Session, SessionKind, SessionUpdate
from holdfast.domain.tokens import ENTROPY, Role, make_token
from holdfast.domain.turns import ClaimRequest, Launch, NewTurn, TurnEnd, TurnRequest, TurnStatus
from holdfast.domain.usage import NO_USAGE
from holdfast.engine.holdfast import Holdfast
from holdfast.errors import (
    Busy,
    Conflict,
    Forbidden,
    InvalidInput,
    LeaseLost,
    NotFound,
    Refused,
    Unauthenticated,
)
from holdfast.store.contract import Store
from holdfast.store.http_store import open_http
from holdfast.store.open import open_store
from holdfast.store.sql_store import SqlStore
from holdfast.store.verbs import verbs
from holdfast.web.access import ANYONE, CHECKED, OF_OPERATORS
from holdfast.web.admission import Callers, Rates
from holdfast.web.server import create_app
from holdfast.web.serving import Workspaces
from tests.builders import (
    a_delegation,
    a_pointer,
    a_provider_session_id,
    a_runtime,
    a_session,
    an_answer,
    an_approval,
    an_import,
    done,
)
from tests.clock import ManualClock
from tests.contract.heads import dump
from tests.contract.served import NoTokens, Served, serving
from tests.contract.test_workspaces import VERBS, Theirs, begin_theirs, nothing
from tests.integration.hook_process import a_stop, log_of, recorded, write_message
from tests.steps import claim, run

MEMORY = "sqlite:///:memory:"

#: viewer, reader, operator, worker, admin: who may
MATRIX = {
    "adopt_turns": "-owa",
    "agent_token": "--wa",
    "answer_approval": "-o-a",
    "approval_window": "vrowa",
    "approvals": "vrowa",
    "ask_delegation": "-owa",
    "attempts": "vrowa",
    "attempts_in": "rowa",
    "bytes_used": "vrowa",
    "cancel_turn": "-o-a",
    "changes": "vrowa",
    "children": "vrowa",
    "claim_turn": "--wa",
    "clean_up": "-o-a",
    "clear_pointer": "-o-a",
    "create_session": "-o-a",
    "create_token": "---a",
    "delegate": "-owa",
    "delegation_counts": "vrowa",
    "delegations": "rowa",
    "edit_turn": "-o-a",
    "end_delegation": "-owa",
    "enqueue_turn": "-o-a",
    "events": "rowa",
    "explain": "vrowa",
    "fall_back": "--wa",
    "finalize_session": "-o-a",
    "find_approval": "vrowa",
    "find_session": "vrowa",
    "finish_turn": "--wa",
    "fork": "-o-a",
    "free_sessions": "rowa",
    "get_approval": "vrowa",
    "get_conversation": "vrowa",
    "get_session": "vrowa",
    "get_turn": "vrowa",
    "head_turn": "vrowa",
    "heartbeat": "--wa",
    "history": "vrowa",
    "holder": "vrowa",
    "hook": "-owa",
    "hooks": "-owa",
    "import_sessions": "-o-a",
    "late_reports": "vrowa",
    "launch": "--wa",
    "list_sessions": "vrowa",
    "lose_delegations": "-owa",
    "new_generation": "-o-a",
    "newest_attempt": "vrowa",
    "newest_events": "rowa",
    "newest_turns": "vrowa",
    "now": "vrowa",
    "observe_session": "-owa",
    "observed_session": "rowa",
    "observed_sessions": "rowa",
    "open_delegations": "rowa",
    "orphans": "vrowa",
    "owner_of": "rowa",
    "partial_text": "rowa",
    "phase_history": "vrowa",
    "pin": "--wa",
    "pointer": "vrowa",
    "pointers": "vrowa",
    "provider_sessions": "vrowa",
    "pulse": "vrowa",
    "put_back": "--wa",
    "put_partial_text": "--wa",
    "read_past": "rowa",
    "search": "rowa",
    "readyz": "vrowa",
    "record_deed": "-owa",
    "record_events": "--wa",
    "record_turn": "-owa",
    "recover": "--wa",
    "register_runtime": "--wa",
    "remove_session": "-o-a",
    "rename_session": "-o-a",
    "attend": "-o-a",
    "request_approval": "-owa",
    "restore": "-o-a",
    "retire": "-o-a",
    "retry_turn": "-o-a",
    "revoke_token": "---a",
    "runtimes": "vrowa",
    "session_state": "vrowa",
    "set_pointer": "-owa",
    "situation": "vrowa",
    "sources": "rowa",
    "start_turn": "---a",
    "statistics": "vrowa",
    "tokens": "---a",
    "totals": "vrowa",
    "trail": "vrowa",
    "truncate": "-o-a",
    "turns": "vrowa",
    "update_session": "-owa",
    "usage": "vrowa",
    "wait": "vrowa",
    "watch_queue": "--wa",
    "lacking_chunks": "-owa",
    "add_chunks": "-owa",
    "keep_bundles": "-owa",
    "bundle": "-owa",
    "bundles": "-owa",
    "read_chunks": "--wa",
    "drop_bundle": "-owa",
    "vault_entries": "rowa",
    "vault_figures": "vrowa",
    "sweep_vault": "-owa",
    "welcome": "rowa",
}
CALLS: dict[str, Callable[[Store, Theirs], object]] = {
    **VERBS,
    "now": lambda s, _: s.now(),
    "bytes_used": lambda s, _: s.bytes_used(),
    "register_runtime": lambda s, _: s.register_runtime(a_runtime()),
    "delegate": lambda s, _: s.delegate(a_delegation()),
    "observe_session": lambda s, _: s.observe_session(Sighting(provider="claude", id="1", at=s.now())),
}
OPEN_TO_ALL = {"healthz"}
#: what these roles may do with these verbs depends on what they are called with; see below
BY_ITS_ARGUMENTS = {(Role.WORKER, verb) for verb in CHECKED} | {
    (Role.OPERATOR, verb) for verb in OF_OPERATORS
}


class Route(NamedTuple):
    method: str
    path: str  #: with ids of nothing
    verb: str


def routes() -> list[Route]:
    """Every one, from the document that describes them."""
    app = create_app(
        Workspaces("default", Holdfast(open_store(MEMORY)).within), Callers(NoTokens()), Rates(1)
    )
    return [
        Route(method.upper(), re.sub(r"{[^}]*}", "7", path), operation["operationId"].rpartition(".")[2])
        for path, operations in app.openapi()["paths"].items()
        for method, operation in operations.items()
    ]


ROUTES = [route for route in routes() if route.verb not in OPEN_TO_ALL]
#: whose tokens are made by hand; what agents get is below
ROLES = [role for role in Role if role is not Role.AGENT]


def may(role: Role, verb: str) -> bool:
    return role.value[0] in MATRIX[verb]


#: each verb by the first role that may call it, and by workers where the arguments decide: that all other roles are
#: let in, too, is decided by the same table, which every route is asked about
ALLOWED = sorted(
    {(next(role for role in ROLES if may(role, verb)), verb) for verb in verbs()} | BY_ITS_ARGUMENTS
)


Header = tuple[str, str]


def ask(url: str, method: str, path: str, *headers: Header, body: str = "{}") -> tuple[int, dict[str, Any]]:
    """By hand, so that a header can be sent twice."""
    parts = urlsplit(url)
    connection = HTTPConnection(str(parts.hostname), parts.port, timeout=30)
    try:
        connection.putrequest(method, path)
        length = ("Content-Length", str(len(body)))
        for name, value in (*headers, ("Content-Type", "application/json"), length):
            connection.putheader(name, value)
        connection.endheaders(body.encode())
        response = connection.getresponse()
        is_stream = response.headers["content-type"].startswith("text/event-stream")
        text = b"" if is_stream else response.read()
        told = json.loads(text) if "json" in response.headers["content-type"] else {}
        return response.status, told if isinstance(told, dict) else {}
    finally:
        connection.close()


def rows_of(fleet: "Fleet") -> dict[str, list[str]]:
    """Everything in the workspace that is not empty."""
    return {
        table: [row for row in rows if repr(fleet.room) in row] for table, rows in dump(fleet.full).items()
    }


class Fleet:
    """One database behind one server: a workspace with data in it, empty ones, and tokens of each."""

    def __init__(self, served: Served, book: SqlStore, database: SqlStore, clock: ManualClock) -> None:
        self.served = served
        self.book = book
        self.room, self.full = served.room_in(database)
        self._database = database
        self.theirs = begin_theirs(self.full, clock)
        self._tokens: dict[tuple[Role, str], str] = {}

    def empty_room(self) -> str:
        return self.served.room_in(self._database)[0]

    def token(self, role: Role, room: str) -> str:
        if (role, room) not in self._tokens:
            new, self._tokens[role, room] = make_token(role, role.value, None, os.urandom(ENTROPY))
            self.book.within(Workspace(room)).create_token(new)
        return self._tokens[role, room]

    @contextmanager
    def store(self, role: Role, *, token_of: str, workspace: str) -> Iterator[Store]:
        with closing(open_http(self.served.url, workspace, self.token(role, token_of))) as store:
            yield store


@pytest.fixture(scope="module")
def opened() -> Iterator[Callable[..., SqlStore]]:
    with ExitStack() as open_stores:

        def make(clock: ManualClock | None = None) -> SqlStore:
            store = open_stores.enter_context(closing(open_store(MEMORY, clock=clock)))
            assert isinstance(store, SqlStore)
            return store

        yield make


@pytest.fixture(scope="module")
def book(opened: Callable[..., SqlStore]) -> SqlStore:
    store = opened()
    store.create_token(make_token(Role.READER, "the first", None, bytes(ENTROPY))[0])
    return store


@pytest.fixture(scope="module")
def served(book: SqlStore) -> Iterator[Served]:
    with serving(book) as running:
        yield running


@pytest.fixture(scope="module")
def make_fleet(served: Served, book: SqlStore, opened: Callable[..., SqlStore]) -> Callable[[], Fleet]:
    clock = ManualClock()
    database = opened(clock)
    return lambda: Fleet(served, book, database, clock)


@pytest.fixture(scope="module")
def untouched(served: Served, book: SqlStore, opened: Callable[..., SqlStore]) -> Fleet:
    """For cells in which nothing may change."""
    clock = ManualClock()
    return Fleet(served, book, opened(clock), clock)


def bearer(token: str) -> tuple[str, str]:
    return ("Authorization", f"Bearer {token}")


# --- the matrix -------------------------------------------------------------------------------------------------


def test_the_matrix_names_every_verb_and_every_route() -> None:
    guarded = {route.verb for route in ROUTES}

    assert set(MATRIX) == guarded
    assert set(verbs()) == set(CALLS)
    assert set(verbs()) <= guarded


@pytest.mark.parametrize(("role", "verb"), ALLOWED)
def test_in_its_own_workspace_a_role_does_its_verbs(
    make_fleet: Callable[[], Fleet], role: Role, verb: str
) -> None:
    fleet = make_fleet()
    with fleet.store(role, token_of=fleet.room, workspace=fleet.room) as store:
        try:
            CALLS[verb](store, fleet.theirs)
        except (NotFound, LeaseLost, Conflict, Refused, Busy):
            pass  # the call may be impossible; nobody forbade it
        except Forbidden:
            assert (role, verb) in BY_ITS_ARGUMENTS


@pytest.mark.parametrize("role", [role for role in ROLES if role is not Role.ADMIN])
def test_in_its_own_workspace_a_role_does_no_other_verb(untouched: Fleet, role: Role) -> None:
    before = dump(untouched.full)
    with untouched.store(role, token_of=untouched.room, workspace=untouched.room) as store:
        for verb in (verb for verb in verbs() if not may(role, verb)):
            with pytest.raises(Forbidden, match=f"a token of the role {role} does not do {verb}"):
                CALLS[verb](store, untouched.theirs)

    assert dump(untouched.full) == before


def test_not_even_an_admin_does_anything_in_another_workspace(untouched: Fleet) -> None:
    """Whatever the verb, the workspace of the token decides; that it does for every role, the routes below show."""
    before = dump(untouched.full)
    with untouched.store(Role.ADMIN, token_of=untouched.empty_room(), workspace=untouched.room) as store:
        for verb, call in CALLS.items():
            try:
                answer = call(store, untouched.theirs)
            except Forbidden:
                continue
            pytest.fail(f"{verb} answered {answer!r}")

    assert dump(untouched.full) == before


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_ids_of_another_workspace_lead_nowhere(untouched: Fleet, verb: str) -> None:
    """To an admin, who may call every verb: what a verb finds does not depend on the role."""
    before = rows_of(untouched)
    room = untouched.empty_room()
    with untouched.store(Role.ADMIN, token_of=room, workspace=room) as store:
        try:
            answer = CALLS[verb](store, untouched.theirs)
        except (NotFound, LeaseLost, Conflict, Forbidden):
            answer = None

    assert nothing(answer)
    assert rows_of(untouched) == before


def test_nobody_does_anything_without_a_good_token(untouched: Fleet) -> None:
    good = untouched.token(Role.ADMIN, untouched.room)
    bad = [
        (("Authorization", "Basic YWRtaW46YWRtaW4="),),
        (bearer("hft_" + "0" * 12),),
        (bearer(good[:-1] + ("0" if good[-1] != "0" else "1")),),
        (bearer(good), bearer(good)),
    ]
    for method, path, verb in ROUTES:
        # who calls is found out before any route: each route is asked without a token, one of them with every bad one
        for headers in [(), *(bad if verb == "get_session" else [])]:
            status, problem = ask(untouched.served.url, method, path, *headers)
            assert (status, problem["code"]) == (401, "unauthenticated"), (method, path, headers)


@pytest.mark.parametrize("role", ROLES)
def test_every_route_asks_the_same_table(untouched: Fleet, role: Role) -> None:
    token = bearer(untouched.token(role, untouched.empty_room()))
    other = ("Holdfast-Workspace", untouched.room)
    for route in ROUTES:
        status, problem = ask(untouched.served.url, route.method, route.path, token)
        elsewhere, told = ask(untouched.served.url, route.method, route.path, token, other)

        assert elsewhere == 403, (route, told)
        if may(role, route.verb):
            assert status in (200, 404, 409, 422), (route, problem)
        else:
            assert (status, problem["code"]) == (403, "forbidden"), route


# --- what a call amounts to ---


@contextmanager
def as_worker(fleet: Fleet) -> Iterator[Store]:
    with fleet.store(Role.WORKER, token_of=fleet.room, workspace=fleet.room) as store:
        yield store


def test_a_worker_puts_nothing_into_the_queue(make_fleet: Callable[[], Fleet]) -> None:
    fleet = make_fleet()
    before = dump(fleet.full)
    anything = NewTurn("anything", "claude", TurnRequest(rights=Rights("bypassPermissions")))
    with as_worker(fleet) as store:
        with pytest.raises(Forbidden):
            store.start_turn(fleet.theirs.free.id, anything, ClaimRequest(a_runtime(), "me", "key", 60.0))
        with pytest.raises(Forbidden):
            store.enqueue_turn(fleet.theirs.free.id, anything)
        with pytest.raises(Forbidden):
            store.retry_turn(fleet.theirs.id, 1, prompt="anything")

    assert dump(fleet.full) == before


@pytest.mark.parametrize(
    "change",
    [
        {"request": TurnRequest(rights=Rights("bypassPermissions"))},
        {"request": TurnRequest(provider_session_id=ProviderSessionId("another"))},
        {"request": TurnRequest(work_dir="/etc")},
        {"priority": 1},
        {"foreground": True},
    ],
    ids=str,
)
def test_a_worker_records_what_was_said_and_not_how_a_turn_is_run(
    make_fleet: Callable[[], Fleet], change: dict[str, Any]
) -> None:
    fleet = make_fleet()
    said = NewTurn("by hand", "claude", key="outside:1")
    with as_worker(fleet) as store:
        with pytest.raises(Forbidden, match="how a turn is to be run"):
            store.record_turn(fleet.theirs.id, replace(said, **change), "done", NO_USAGE)
        with pytest.raises(Forbidden, match="no worker is at work on"):
            store.record_turn(fleet.theirs.free.id, said, "done", NO_USAGE)
        recorded = store.record_turn(fleet.theirs.id, said, "done", NO_USAGE)

    assert recorded.prompt == "by hand"


@pytest.mark.parametrize(
    "change",
    [
        {"provider_session_id": ProviderSessionId("another")},
        {"work_dir": "/etc"},
        {"rights": Rights("bypassPermissions")},
        {"model": "another"},
        {"provider": "codex"},
        {"fork_seq": 1},
        {"runtime_id": None},
    ],
    ids=str,
)
def test_a_worker_moves_a_pointer_onward_in_the_session_that_it_names_and_nowhere_else(
    make_fleet: Callable[[], Fleet], change: dict[str, Any]
) -> None:
    fleet = make_fleet()
    (pointer,) = fleet.full.pointers(fleet.theirs.id)
    onward = replace(pointer, transcript=TranscriptMark("/x", 10, "0" * 64))
    with as_worker(fleet) as store:
        with pytest.raises(Forbidden, match="point to another"):
            store.set_pointer(replace(onward, **change))
        assert fleet.full.pointers(fleet.theirs.id) == (pointer,)
        store.set_pointer(onward)
    assert fleet.full.pointers(fleet.theirs.id) == (onward,)


@pytest.mark.parametrize("over", ["store", "resource"])
def test_a_worker_closes_no_session_and_changes_only_what_is_being_worked_on(
    make_fleet: Callable[[], Fleet], over: str
) -> None:
    fleet = make_fleet()
    theirs, token = fleet.theirs, bearer(fleet.token(Role.WORKER, fleet.room))
    with as_worker(fleet) as store:

        def update(session_id: str, change: dict[str, Any]) -> int:
            call = ("PATCH", f"/v1/sessions/{session_id}", change)
            if over == "store":
                call = ("POST", "/v1/store/update_session", {"session_id": session_id, "change": change})
            method, path, body = call
            return ask(fleet.served.url, method, path, token, body=json.dumps(body))[0]

        before = dump(fleet.full)
        for session_id in (theirs.id, theirs.held.id, theirs.free.id):
            for phase in ("completed", "failed", "abandoned"):
                assert update(session_id, {"phase": phase}) == 403
        for change in ({"phase": "planning"}, {"metadata": {"found": "nothing"}}, {"error": "no"}):
            assert update(theirs.free.id, change) == 403
        with pytest.raises(Forbidden, match="no worker is at work on"):
            store.request_approval(theirs.free.id, an_approval())
        stopped = {"agent_id": theirs.free.id, "exit_code": 0}
        with pytest.raises(Forbidden, match="no worker is at work on"):
            store.end_delegation(
                DelegationEnd(session_id=theirs.free.id, outcome=DelegationOutcome.COMPLETED)
            )
        ask(fleet.served.url, "POST", "/v1/hooks/subagent-stop", token, body=json.dumps(stopped))
        assert dump(fleet.full) == before

        for session_id in (theirs.id, theirs.held.id):
            assert update(session_id, {"phase": "planning"}) == 200


def test_a_worker_launches_with_the_rights_that_were_asked_for(make_fleet: Callable[[], Fleet]) -> None:
    fleet = make_fleet()
    request = TurnRequest(rights=Rights("plan"))
    turn = fleet.full.enqueue_turn(fleet.theirs.free.id, NewTurn("plan it", "claude", request))
    with as_worker(fleet) as store:
        claim = store.claim_turn(ClaimRequest(a_runtime(), "me", "k", 60.0, fleet.theirs.free.id))
        assert claim is not None
        assert claim.turn.seq == turn.seq
        fresh = Fresh(Reason.NO_POINTER, ())
        with pytest.raises(Conflict, match="rights"):
            store.launch(claim.lease, Launch(fresh, rights=Rights("bypassPermissions")))
        store.launch(claim.lease, Launch(fresh, rights=Rights("plan")))


# --- agents -----------------------------------------------------------------------------------------------------


#: not that of the sessions of others
PROJECT = "/srv/agents"


class Agent:
    """Of a session that has delegated to another one, while a worker runs it."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.full = fleet, fleet.full
        self.own = self.full.create_session(a_session())
        self.full.enqueue_turn(self.own.id, NewTurn("work", "claude"))
        claim = self.full.claim_turn(ClaimRequest(a_runtime(), "me", "agents", 60.0, self.own.id))
        assert claim is not None
        self.lease = claim.lease
        minted = ProviderSessionId(f"native-{self.own.id}")
        fresh = Fresh(Reason.NO_POINTER, ())
        self.full.launch(self.lease, Launch(fresh, provider_session_id=minted, work_dir=f"{PROJECT}/src"))
        self.delegation = a_delegation(id=f"toolu-{self.own.id}", provider_session_id=minted, project=PROJECT)
        below = self.full.delegate(self.delegation).session
        assert below is not None
        self.below = below.id
        text = self.full.agent_token(self.lease)
        assert text is not None
        self.token = text

    @contextmanager
    def store(self) -> Iterator[Store]:
        with closing(open_http(self.fleet.served.url, self.fleet.room, self.token)) as store:
            yield store


@pytest.fixture
def agent(served: Served, book: SqlStore) -> Agent:
    """On the database that the tokens are looked up in."""
    clock = ManualClock()
    fleet = Fleet(served, book, book, clock)
    fleet.token(Role.READER, fleet.room)
    return Agent(fleet)


@pytest.mark.parametrize("verb", sorted(verbs()))
def test_an_agent_does_nothing_to_the_sessions_of_others(agent: Agent, verb: str) -> None:
    before = dump(agent.full)
    with agent.store() as store:
        if verb in ("now", "free_sessions"):
            assert not CALLS[verb](store, agent.fleet.theirs) or verb == "now"
        elif verb == "ask_delegation":
            with pytest.raises(Forbidden):
                store.ask_delegation(
                    Question(id="q", agent="a", project="/p", session_id=agent.fleet.theirs.id)
                )
        else:
            with pytest.raises(Forbidden):
                CALLS[verb](store, agent.fleet.theirs)
    assert dump(agent.full) == before


def test_an_agent_does_not_list_every_open_delegation(agent: Agent) -> None:
    with agent.store() as store, pytest.raises(Forbidden):
        store.open_delegations()


def test_an_agent_reports_on_its_own_session_and_on_what_it_delegated(agent: Agent) -> None:
    with agent.store() as store:
        for session_id in (agent.own.id, agent.below):
            assert (
                store.update_session(session_id, SessionUpdate(phase=Phase.PLANNING)).phase is Phase.PLANNING
            )
            assert store.get_session(store.find_session(session_id)).id == session_id
        asked = store.request_approval(agent.below, an_approval())
        assert store.get_approval(store.find_approval(asked.id)) == asked
        assert store.approvals(session_id=agent.below) == (asked,)
        with pytest.raises(Forbidden):
            store.approvals()
        ended = store.end_delegation(DelegationEnd(session_id=agent.below, outcome=DelegationOutcome.LOST))
        assert ended is not None
        own = agent.delegation.provider_session_id
        assert own is not None
        store.observe_session(Sighting(provider="claude", id=own, at=store.now()))
        another = {"agent": "tester", "provider_session_id": own, "project": PROJECT}
        made = store.delegate(a_delegation(id="toolu-more", **another)).session
        assert made is not None
        again = store.delegate(a_delegation(id="toolu-more", told=made.id, **another)).session
        assert again is not None
        assert store.open_delegations("tester", PROJECT)[0].session_id == again.id == made.id
        theirs = agent.full.create_session(a_session(kind=SessionKind.CONVERSATION))
        with pytest.raises(Forbidden):
            store.delegate(a_delegation(told=theirs.id, **another))


def a_paused(agent: Agent, project: str, **changes: Any) -> str:
    """A session that another agent has worked in, and that may go on."""
    other = a_delegation(provider_session_id="another", project=project, **changes)
    made = agent.full.delegate(other).session
    assert made is not None
    agent.full.update_session(made.id, SessionUpdate(phase=Phase.INVESTIGATING, metadata={"found": "it"}))
    agent.full.lose_delegations("another")
    return made.id


def test_an_agent_takes_up_what_is_free_in_its_own_project_alone(agent: Agent) -> None:
    own = agent.delegation.provider_session_id
    here, elsewhere = a_paused(agent, PROJECT), a_paused(agent, "/srv/secret")
    with agent.store() as store:
        assert [free.session.id for free in store.free_sessions()] == [here]
        assert store.ask_delegation(Question(id="q", agent="terraform-architect", project=PROJECT)).resumed
        for call in (
            lambda: store.ask_delegation(
                Question(id="r", agent="terraform-architect", project="/srv/secret")
            ),
            lambda: store.open_delegations("terraform-architect", "/srv/secret"),
            store.open_delegations,
            lambda: store.welcome("claude", str(own), "/srv/secret"),
            lambda: store.delegate(a_delegation(provider_session_id=own, project="/srv/secret")),
            lambda: store.delegate(a_delegation(provider_session_id=own, project=PROJECT, told=elsewhere)),
            lambda: store.get_session(elsewhere),
            lambda: store.get_session(here),
        ):
            with pytest.raises(Forbidden):
                call()
        taken = store.delegate(a_delegation(provider_session_id=own, project=PROJECT, told=here)).session
        assert taken is not None
        assert store.get_session(here).id == taken.id


def test_an_agent_gets_nothing_of_a_session_that_another_one_works_in(agent: Agent) -> None:
    own = agent.delegation.provider_session_id
    other = a_delegation(id="toolu-other", agent="tester", provider_session_id="another", project=PROJECT)
    held = agent.full.delegate(other).session
    assert held is not None
    done = DelegationOutcome.COMPLETED
    with agent.store() as store:
        late = a_delegation(provider_session_id=own, project=PROJECT, told=held.id)
        assert store.delegate(late).session is not None, "recorded as lost"
        for call in (
            lambda: store.get_session(held.id),
            lambda: store.update_session(held.id, SessionUpdate(metadata={"found": "nothing"})),
            lambda: store.end_delegation(DelegationEnd(session_id=held.id, outcome=done)),
        ):
            with pytest.raises(Forbidden):
                call()
        assert store.end_delegation(DelegationEnd(id=other.id, provider_session_id=own, outcome=done)) is None
        store.end_delegation(DelegationEnd(id=other.id, session_id=agent.below, outcome=done))
    session = agent.full.get_session(held.id)
    assert (session.phase, dict(session.metadata)) == (Phase.INITIALIZING, {})
    assert [open_.id for open_ in agent.full.open_delegations("tester", PROJECT)] == [other.id]


def test_an_agents_hooks_are_answered_over_http_about_its_own_session(agent: Agent) -> None:
    token = bearer(agent.token)
    own = agent.delegation.provider_session_id
    for session_id, is_seen in ((own, True), ("another", False)):
        payload = recorded("stop", session_id=session_id, transcript_path="/nowhere")
        status, _ = ask(agent.fleet.served.url, "POST", "/v1/hooks/stop", token, body=json.dumps(payload))
        assert status == 200
        assert (agent.full.observed_session("claude", str(session_id)) is not None) is is_seen


def test_an_agents_token_is_good_as_long_as_its_lease(agent: Agent) -> None:
    callers = Callers(agent.fleet.book)
    header = [f"Bearer {agent.token}"]
    assert callers.identify(header).session_id == agent.own.id
    assert callers.remembered(header) is None, "believed without asking"
    agent.full.finish_turn(agent.lease, TurnEnd(TurnStatus.DONE, response="done"))
    with pytest.raises(Unauthenticated):
        callers.identify(header)


def test_every_resource_is_confined_to_an_agents_own(agent: Agent) -> None:
    token, theirs = bearer(agent.token), agent.fleet.theirs
    for path in (
        f"/v1/sessions/{theirs.id}",
        "/v1/sessions",
        f"/v1/sessions/{theirs.id}/history",
        "/v1/approvals",
    ):
        assert ask(agent.fleet.served.url, "GET", path, token)[0] == 403
    assert ask(agent.fleet.served.url, "GET", f"/v1/sessions/{agent.own.id}", token)[0] == 200
    body = json.dumps({"phase": "planning"})
    assert ask(agent.fleet.served.url, "PATCH", f"/v1/sessions/{theirs.id}", token, body=body)[0] == 403
    assert ask(agent.fleet.served.url, "PATCH", f"/v1/sessions/{agent.own.id}", token, body=body)[0] == 200


def test_without_tokens_a_program_makes_none(opened: Callable[..., SqlStore]) -> None:
    new, _ = make_token(Role.ADMIN, "mine", None, bytes(ENTROPY))
    with serving(opened()) as open_to_all, closing(open_http(open_to_all.url, "default", None)) as store:
        for verb in (lambda: store.create_token(new), store.tokens, lambda: store.revoke_token(new.id)):
            with pytest.raises(Forbidden, match="the first token is made on the database"):
                verb()


# --- what a turn may carry ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "arguments", "allow_wider", "problem"),
    [
        ("claude", ["--resume", "OTHER"], False, "--resume is decided by Holdfast"),
        ("claude", ["--resume=OTHER"], True, "--resume is decided by Holdfast"),
        ("claude", ["--dangerously-skip-permissions"], False, "--allow-wider-rights"),
        ("codex", ["-c", "sandbox_mode=danger-full-access"], False, "--permission-mode"),
        ("codex", ["resume", "OTHER"], True, "holdfast resume"),
        ("gemini", ["--yolo"], True, "--permission-mode"),
        ("opencode", ["do this instead"], True, "stands alone"),
        ("unheard-of", ["--x"], False, "--allow-wider-rights"),
    ],
)
@pytest.mark.parametrize("verb", ["enqueue_turn", "start_turn", "record_turn"])
def test_a_turn_with_arguments_that_nobody_accepted_is_refused_at_the_door(
    make_fleet: Callable[[], Fleet],
    verb: str,
    provider: str,
    arguments: list[str],
    allow_wider: bool,
    problem: str,
) -> None:
    fleet = make_fleet()
    before = dump(fleet.full)
    request = TurnRequest(rights=Rights(extra_args=tuple(arguments)), allow_wider_rights=allow_wider)
    new = NewTurn("hello", provider, request)
    with fleet.store(Role.ADMIN, token_of=fleet.room, workspace=fleet.room) as store:
        calls: dict[str, Callable[[], object]] = {
            "enqueue_turn": lambda: store.enqueue_turn(fleet.theirs.id, new),
            "start_turn": lambda: store.start_turn(
                fleet.theirs.id, new, ClaimRequest(a_runtime(), "me", "key", 60.0)
            ),
            "record_turn": lambda: store.record_turn(fleet.theirs.id, new, "hi", NO_USAGE),
        }
        with pytest.raises(InvalidInput, match=problem):
            calls[verb]()

    assert dump(fleet.full) == before


def test_a_pointer_with_arguments_that_override_a_decision_is_refused(
    make_fleet: Callable[[], Fleet],
) -> None:
    fleet = make_fleet()
    (pointer, *_) = fleet.full.pointers(fleet.theirs.id)
    moved = replace(pointer, provider="claude", rights=Rights(extra_args=("--resume=OTHER",)))
    with (
        fleet.store(Role.OPERATOR, token_of=fleet.room, workspace=fleet.room) as store,
        pytest.raises(InvalidInput, match="--resume is decided by Holdfast"),
    ):
        store.set_pointer(moved)


# --- tokens -----------------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def tokens(opened: Callable[..., SqlStore], clock: ManualClock) -> SqlStore:
    return opened(clock)


def reader(tokens: SqlStore, expires_at: Instant | None = None) -> list[str]:
    """The header of a new token."""
    new, text = make_token(Role.READER, "a", expires_at, bytes(ENTROPY))
    tokens.create_token(new)
    return [f"Bearer {text}"]


def test_a_token_is_good_until_it_expires(tokens: SqlStore, clock: ManualClock) -> None:
    header = reader(tokens, after(clock(), 60))
    clock.advance(59)
    assert Callers(tokens).identify(header).role is Role.READER
    clock.advance(1)
    with pytest.raises(Unauthenticated):
        Callers(tokens).identify(header)


def test_a_token_that_is_revoked_is_believed_for_a_second_more_at_most(tokens: SqlStore) -> None:
    now = 0.0
    callers = Callers(tokens, lambda: now)
    header = reader(tokens)
    caller = callers.identify(header)
    tokens.revoke_token(caller.id)

    assert callers.remembered(header) == caller
    now = 1.0
    assert callers.remembered(header) is None
    with pytest.raises(Unauthenticated):
        callers.identify(header)


def test_revoking_the_last_token_opens_nothing(tokens: SqlStore) -> None:
    assert Callers(tokens).identify([]) is ANYONE
    reader(tokens)
    tokens.revoke_token(tokens.tokens()[0].id)

    with pytest.raises(Unauthenticated):
        Callers(tokens).identify([])


def test_the_last_use_of_a_token_is_known_to_the_hour(tokens: SqlStore, clock: ManualClock) -> None:
    header, first = reader(tokens), clock()
    for seconds, known in ((0, first), (3599, first), (1, after(first, 3600))):
        clock.advance(seconds)
        Callers(tokens).identify(header)
        assert tokens.tokens()[0].last_used_at == known


# --- answers ---------------------------------------------------------------------------------------------------


def test_an_answer_is_by_whoever_holds_the_token(make_fleet: Callable[[], Fleet]) -> None:
    fleet = make_fleet()
    asked = fleet.theirs.approval
    with fleet.store(Role.OPERATOR, token_of=fleet.room, workspace=fleet.room) as store:
        forged = an_answer(asked, by="someone else", token="another one")
        answered = store.answer_approval(asked.id, forged)

    token_id = fleet.token(Role.OPERATOR, fleet.room).split("_")[1]
    assert answered.answered_by == f"operator ({token_id})"


@pytest.mark.parametrize("known_by", ["its name", "its id", "neither"])
def test_a_token_answers_what_its_name_or_its_id_may_answer(
    make_fleet: Callable[[], Fleet], known_by: str
) -> None:
    fleet = make_fleet()
    token = fleet.token(Role.OPERATOR, fleet.room)
    among = {"its name": "operator", "its id": token.split("_")[1], "neither": "ada"}[known_by]
    asked = fleet.full.request_approval(fleet.theirs.id, an_approval(answerers=frozenset({among})))
    body = {"approved": True, "arguments_hash": asked.arguments_hash, "nonce": asked.nonce}
    path = f"/v1/approvals/{asked.id}/answer"

    status, answered = ask(fleet.served.url, "POST", path, bearer(token), body=json.dumps(body))

    if known_by == "neither":
        assert (status, answered["details"]["reason"]) == (409, "not_an_answerer")
    else:
        assert (status, answered["answered_by"]) == (200, f"operator ({token.split('_')[1]})")


def test_a_note_says_something(make_fleet: Callable[[], Fleet]) -> None:
    fleet = make_fleet()
    asked = fleet.theirs.approval
    with (
        fleet.store(Role.OPERATOR, token_of=fleet.room, workspace=fleet.room) as store,
        pytest.raises(InvalidInput, match="note"),
    ):
        store.answer_approval(asked.id, an_answer(asked, False, note=" "))

    assert fleet.full.get_approval(asked.id) == asked


# --- hooks ------------------------------------------------------------------------------------------------------


def test_files_that_a_token_names_are_not_opened(make_fleet: Callable[[], Fleet], tmp_path: Path) -> None:
    fleet = make_fleet()
    transcript = tmp_path / "transcript.jsonl"
    write_message(transcript, "msg_1", 100)
    new = a_delegation(id="toolu_http")
    delegated = fleet.full.delegate(new).session
    assert delegated is not None
    operator = bearer(fleet.token(Role.OPERATOR, fleet.room))

    def tell(event: str, payload: dict[str, Any]) -> None:
        status, answer = ask(
            fleet.served.url, "POST", f"/v1/hooks/{event}", operator, body=json.dumps(payload)
        )
        assert (status, answer) == (200, {})

    for event in ("stop", "pre-compact", "session-end"):
        tell(event, recorded(event.replace("-", "_"), session_id="seen", transcript_path=str(transcript)))
    tell("subagent-stop", a_stop(tmp_path, new.id))

    seen = fleet.full.observed_session("claude", "seen")
    assert seen is not None
    assert (seen.transcript_path, seen.transcript_offset, seen.input_tokens) == (str(transcript), 0, 0)
    assert [held.outcome for held in fleet.full.delegations(delegated.id)] == [None]


def test_what_a_subagent_of_another_machine_worked_on_ends_if_it_can_be_told(
    make_fleet: Callable[[], Fleet], tmp_path: Path
) -> None:
    fleet = make_fleet()
    operator = bearer(fleet.token(Role.OPERATOR, fleet.room))
    stop = a_stop(tmp_path, "toolu_elsewhere")

    def outcomes_after_a_stop(*ids: str, **changes: object) -> list[str | None]:
        started = [
            a_delegation(id=name, agent=stop["agent_type"], provider_session_id=stop["session_id"])
            for name in ids
        ]
        for new in started:
            fleet.full.delegate(new)
        body = json.dumps({**stop, "agent_id": f"of-{ids[0]}", **changes})
        assert ask(fleet.served.url, "POST", "/v1/hooks/subagent-stop", operator, body=body) == (200, {})
        return [fleet.full.delegations(new.new_session_id)[0].outcome for new in started]

    assert outcomes_after_a_stop("toolu_alone") == ["completed"]
    assert outcomes_after_a_stop("toolu_silent", last_assistant_message="") == ["lost"]
    assert outcomes_after_a_stop("toolu_one", "toolu_other") == [None, None]
    said = log_of(Path.home())[-1]
    assert said["what"] == "ambiguous subagent"
    assert isinstance(said["delegations"], list)


# --- keys -------------------------------------------------------------------------------------------------------


def test_a_key_is_its_callers_own_and_good_for_one_request(
    served: Served, make_fleet: Callable[[], Fleet]
) -> None:
    fleet = make_fleet()
    session = fleet.full.create_session(a_session())
    mine, other = (bearer(fleet.token(role, fleet.room)) for role in (Role.OPERATOR, Role.ADMIN))
    key = ("Idempotency-Key", "once")

    def rename(name: str, *headers: tuple[str, str]) -> int:
        body = json.dumps({"session_id": session.id, "name": name})
        return ask(served.url, "POST", "/v1/store/rename_session", *headers, key, body=body)[0]

    assert rename("blue", mine) == 200
    fleet.full.rename_session(session.id, "green")
    assert rename("blue", mine) == 200
    assert fleet.full.get_session(session.id).name == "green", "it did not happen again"
    assert rename("red", mine) == 409
    other_verb = json.dumps({"session_id": session.id, "change": {}})
    assert ask(served.url, "POST", "/v1/store/update_session", mine, key, body=other_verb)[0] == 409
    assert rename("red", other) == 200
    assert rename("red", mine, key) == 422, "two keys"
    assert fleet.full.get_session(session.id).name == "red"


# --- operators: no rights beyond those that are recorded ---

RECORDED = Rights("default", frozenset({"Read", "Bash"}), frozenset({"/srv/infra"}))
NARROWER = Rights("default", frozenset({"Read"}), approve_tools=frozenset({"Bash"}))
WIDER = [
    replace(RECORDED, permission_mode="bypassPermissions"),
    replace(RECORDED, allowed_tools=frozenset({"Write"})),
    replace(RECORDED, extra_dirs=frozenset({"/"})),
]


@contextmanager
def as_operator(fleet: Fleet) -> Iterator[tuple[Store, str]]:
    """A store for an operator, and a session whose rights are recorded."""
    session = fleet.full.create_session(a_session())
    fleet.full.set_pointer(a_pointer(session.id, rights=RECORDED))
    with fleet.store(Role.OPERATOR, token_of=fleet.room, workspace=fleet.room) as store:
        yield store, session.id


@pytest.mark.parametrize("rights", [None, RECORDED, NARROWER])
def test_an_operator_asks_for_a_turn_with_recorded_or_narrower_rights(
    make_fleet: Callable[[], Fleet], rights: Rights | None
) -> None:
    with as_operator(make_fleet()) as (store, session_id):
        turn = store.enqueue_turn(session_id, NewTurn("go", "claude", TurnRequest(rights=rights)))

    assert turn.request.rights == rights


@pytest.mark.parametrize("rights", WIDER)
def test_an_operator_does_not_widen_rights(make_fleet: Callable[[], Fleet], rights: Rights) -> None:
    fleet = make_fleet()
    with as_operator(fleet) as (store, session_id):
        before = dump(fleet.full)
        asked = NewTurn("go", "claude", TurnRequest(rights=rights))
        for call in (
            lambda: store.enqueue_turn(session_id, asked),
            lambda: store.record_turn(session_id, asked, "done", NO_USAGE),
            lambda: store.set_pointer(a_pointer(session_id, rights=rights)),
            lambda: store.import_sessions([an_import(pointer=a_pointer(session_id, rights=rights))]),
        ):
            with pytest.raises(Forbidden, match="does not give an agent wider rights") as refused:
                call()
            assert refused.value.details["reason"] == "rights_wider"

        assert dump(fleet.full) == before


def test_an_operator_does_not_accept_wider_rights(make_fleet: Callable[[], Fleet]) -> None:
    with as_operator(make_fleet()) as (store, session_id):
        asked = NewTurn("go", "claude", TurnRequest(rights=RECORDED, allow_wider_rights=True))
        with pytest.raises(Forbidden, match="allow_wider_rights"):
            store.enqueue_turn(session_id, asked)
        # nothing is recorded of another provider: its own settings count
        with pytest.raises(Forbidden, match="permission mode default"):
            store.enqueue_turn(session_id, NewTurn("go", "scripted", TurnRequest(rights=NARROWER)))


PLAN = Rights("plan")


def a_planned_session(fleet: Fleet) -> Session:
    """One turn of it was run, in the permission mode ``plan``."""
    session = fleet.full.create_session(a_session())
    fleet.full.enqueue_turn(session.id, NewTurn("plan it", "claude", TurnRequest(rights=PLAN)))
    claimed = claim(fleet.full, session)
    fleet.full.launch(claimed.lease, Launch(claimed.decision, rights=PLAN))
    fleet.full.finish_turn(claimed.lease, done(provider_session_id=a_provider_session_id()))
    return session


@contextmanager
def refused_as_wider() -> Iterator[None]:
    with pytest.raises(Forbidden) as refused:
        yield
    assert refused.value.details["reason"] == "rights_wider"


def test_an_operator_does_not_lose_the_recorded_rights_on_the_way_to_wider_ones(
    make_fleet: Callable[[], Fleet],
) -> None:
    fleet = make_fleet()
    session = a_planned_session(fleet)
    (pointer,) = fleet.full.pointers(session.id)
    with fleet.store(Role.OPERATOR, token_of=fleet.room, workspace=fleet.room) as store:
        for rights in (None, Rights()):
            with refused_as_wider():
                store.set_pointer(replace(pointer, rights=rights))
            with refused_as_wider():
                store.import_sessions([an_import(pointer=replace(pointer, rights=rights))])
        store.set_pointer(replace(pointer, work_dir="/srv/moved"))
        assert store.clear_pointer(session.id, "claude", pointer.provider_session_id)
        # the attempt still says it, also after one of another provider
        run(fleet.full, session, runtime=a_runtime(provider="codex"))
        for rights in (None, Rights()):
            with refused_as_wider():
                store.set_pointer(replace(pointer, rights=rights))
        with refused_as_wider():
            store.enqueue_turn(session.id, NewTurn("go", "claude", TurnRequest(rights=Rights())))
        store.set_pointer(pointer)
        store.enqueue_turn(session.id, NewTurn("go", "claude"))

    assert claim(fleet.full, session).pointer == pointer


def test_an_operator_imports_a_session_and_deletes_its_pointer(make_fleet: Callable[[], Fleet]) -> None:
    """Nothing was recorded of it, so that nothing is lost."""
    fleet = make_fleet()
    taken = an_import()
    with fleet.store(Role.OPERATOR, token_of=fleet.room, workspace=fleet.room) as store:
        for _ in range(2):
            (imported,) = store.import_sessions([taken])
            assert imported.reason is None
        assert store.clear_pointer(taken.new.id, "claude", taken.provider_session_id)


def test_an_operator_does_not_delete_the_only_record_of_rights(make_fleet: Callable[[], Fleet]) -> None:
    fleet = make_fleet()
    session = a_planned_session(fleet)
    child = fleet.full.fork(session.id, a_session().id)
    (pointer,) = fleet.full.pointers(child.id)
    assert pointer.rights == PLAN
    with fleet.store(Role.OPERATOR, token_of=fleet.room, workspace=fleet.room) as store:
        with refused_as_wider():
            store.clear_pointer(child.id, "claude", pointer.provider_session_id)
        with refused_as_wider():
            store.retire(child.id, "claude", pointer.provider_session_id, "bad")

    assert fleet.full.pointers(child.id) == (pointer,)


@pytest.mark.parametrize(
    "request_",
    [TurnRequest(rights=Rights("bypassPermissions"), allow_wider_rights=True), TurnRequest(rights=WIDER[0])],
    ids=["accepted", "named"],
)
def test_an_operator_puts_no_prompt_of_its_own_into_a_wider_turn(
    make_fleet: Callable[[], Fleet], request_: TurnRequest
) -> None:
    fleet = make_fleet()
    session = a_planned_session(fleet)
    turn = fleet.full.enqueue_turn(session.id, NewTurn("by an admin", "claude", request_))
    child = fleet.full.fork(session.id, a_session().id)
    with fleet.store(Role.OPERATOR, token_of=fleet.room, workspace=fleet.room) as store:
        before = dump(fleet.full)
        with refused_as_wider():
            store.edit_turn(session.id, turn.seq, prompt="mine")
        # the words may have been edited, and the rights narrowed since
        for prompt in ("mine", None):
            with refused_as_wider():
                store.retry_turn(session.id, turn.seq, prompt=prompt)
        assert dump(fleet.full) == before

        store.edit_turn(session.id, 1, prompt="what was asked", response="what was said")
        assert store.retry_turn(child.id, 1, prompt="mine").request.rights == PLAN
        with pytest.raises(NotFound):
            store.retry_turn(session.id, 77)


def test_an_operator_does_not_repeat_an_inherited_turn_with_wider_rights(
    make_fleet: Callable[[], Fleet],
) -> None:
    fleet = make_fleet()
    session = fleet.full.create_session(a_session())
    wide = TurnRequest(rights=WIDER[0], allow_wider_rights=True)
    fleet.full.record_turn(session.id, NewTurn("by an admin", "claude", wide), "done", NO_USAGE)
    child = fleet.full.fork(session.id, a_session().id)
    with (
        fleet.store(Role.OPERATOR, token_of=fleet.room, workspace=fleet.room) as store,
        refused_as_wider(),
    ):
        store.retry_turn(child.id, 1, prompt="mine")


def test_the_resources_refuse_a_prompt_in_a_wider_turn(make_fleet: Callable[[], Fleet]) -> None:
    fleet = make_fleet()
    session = a_planned_session(fleet)
    wide = TurnRequest(rights=WIDER[0], allow_wider_rights=True)
    turn = fleet.full.enqueue_turn(session.id, NewTurn("by an admin", "claude", wide))
    token = bearer(fleet.token(Role.OPERATOR, fleet.room))
    path = f"/v1/sessions/{session.id}/turns/{turn.seq}"

    for method, at in (("PATCH", path), ("POST", f"{path}/retry")):
        status, problem = ask(fleet.served.url, method, at, token, body='{"prompt": "mine"}')
        assert (status, problem["details"]["reason"]) == (403, "rights_wider")


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.WORKER])
def test_the_trail_takes_no_words_of_others(make_fleet: Callable[[], Fleet], role: Role) -> None:
    fleet = make_fleet()
    session_id = fleet.full.create_session(a_session()).id
    with fleet.store(role, token_of=fleet.room, workspace=fleet.room) as store:
        for did in ("enqueue_turn", "approved by ada", ""):
            with pytest.raises(InvalidInput, match="did"):
                store.record_deed(session_id, did)
        store.record_deed(session_id, "restore")

    (change,) = fleet.full.trail(session_id)
    token_id = fleet.token(role, fleet.room).split("_")[1]
    assert (change.did, change.by) == ("restore", f"{role} ({token_id})")


def test_the_resource_refuses_wider_rights_in_the_same_words(make_fleet: Callable[[], Fleet]) -> None:
    fleet = make_fleet()
    with as_operator(fleet) as (_, session_id):
        token = bearer(fleet.token(Role.OPERATOR, fleet.room))
        body = json.dumps({"prompt": "go", "provider": "claude", "permission_mode": "bypassPermissions"})
        path = f"/v1/sessions/{session_id}/turns"

        status, problem = ask(fleet.served.url, "POST", path, token, body=body)

        assert (status, problem["code"], problem["details"]["reason"]) == (403, "forbidden", "rights_wider")
        assert "permission mode bypassPermissions" in problem["detail"]
        assert (
            ask(fleet.served.url, "POST", path, token, body='{"prompt": "go", "provider": "claude"}')[0]
            == 201
        )


def test_the_trail_names_the_token_of_whoever_did_it(
    make_fleet: Callable[[], Fleet], caplog: pytest.LogCaptureFixture
) -> None:
    fleet = make_fleet()
    session_id = fleet.full.create_session(a_session()).id
    operator = bearer(fleet.token(Role.OPERATOR, fleet.room))
    path = f"/v1/sessions/{session_id}"

    def done(method: str, path: str, **body: object) -> dict[str, Any]:
        status, told = ask(fleet.served.url, method, path, operator, body=json.dumps(body))
        assert status in (200, 201), told
        return told

    done("POST", f"{path}/turns", prompt="go", provider="claude")
    done("POST", f"{path}/turns/1/cancel")
    done("PUT", f"{path}/name", name="by-operator")
    child = done("POST", f"{path}/fork")["session_id"]

    _, told = ask(fleet.served.url, "GET", f"{path}/trail", bearer(fleet.token(Role.VIEWER, fleet.room)))
    _, first = ask(fleet.served.url, "GET", f"{path}/trail?limit=2", operator)
    (forked,) = fleet.full.trail(child)
    with caplog.at_level("INFO", "holdfast.web"):
        done("DELETE", f"/v1/sessions/{child}")

    did = {entry["data"]["verb"]: entry["by"] for entry in told["entries"] if entry["kind"] == "did"}
    assert set(did) == {"enqueue_turn", "cancel_turn", "rename_session"}
    token_id = fleet.token(Role.OPERATOR, fleet.room).split("_")[1]
    assert {*did.values(), forked.by} == {f"operator ({token_id})"}
    assert (len(first["entries"]), first["next_after"]) == (2, 2)
    (removed,) = [
        one.__dict__["about"] for one in caplog.records if one.getMessage() == "DELETE remove_session"
    ]
    assert (removed["session"], removed["token"]) == (child, token_id)

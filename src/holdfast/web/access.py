"""Owns what a caller may do: by the roles of each verb, and for agents, workers and operators by its arguments."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import PurePath
from typing import Any, Final, cast

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.responses import Response

from holdfast.domain.approvals import Answer, Approval
from holdfast.domain.conversations import HistoryTurn
from holdfast.domain.decisions import Reason, Verdict
from holdfast.domain.delegations import DelegationEnd, DelegationOutcome, NewDelegation, Question
from holdfast.domain.failures import Failure
from holdfast.domain.ids import ApprovalId, SessionId
from holdfast.domain.inputs import clean_text
from holdfast.domain.observed import Sighting
from holdfast.domain.pointers import NO_RIGHTS, Pointer, Rights
from holdfast.domain.records import fields, record, replace
from holdfast.domain.sessions import Session, SessionChange, SessionError, SessionUpdate
from holdfast.domain.tokens import Role
from holdfast.domain.turns import LateReport, NewTurn, Turn, TurnRequest
from holdfast.engine.holdfast import Holdfast
from holdfast.errors import AmbiguousId, Forbidden, InvalidInput, NotFound
from holdfast.store.contract import DEEDS, FACTS, Store
from holdfast.store.verbs import verbs

#: routes that carry out no verb of the store, and the verb whose roles are theirs
_LIKE: Final = {
    "changes": "pulse",
    "hook": "delegate",
    "hooks": "delegate",
    "readyz": "statistics",
    "restore": "enqueue_turn",  # both write where the agents' own files are
    "wait": "session_state",
}


@record
class Caller:
    """Who made a request, by the token's id and name. Without a workspace, the caller may use any."""

    id: str
    role: Role
    workspace: str | None
    name: str
    session_id: str | None = None  #: an agent's token: only this session, and those below it

    @property
    def signature(self) -> str:
        """The author that is recorded for a change."""
        return f"{self.name} ({self.id})"

    def sign(self, answer: Answer) -> Answer:
        """The token says who answered an approval, whatever name the call gave."""
        return replace(answer, by=self.name, token=self.id) if self.id else answer


#: any program on this machine, on a server that no token was ever made for
ANYONE: Final = Caller("", Role.ADMIN, None, "")
#: the first token is made by a person who can read the database, not by any program that runs here
_TOKENS: Final = frozenset({"create_token", "revoke_token", "tokens"})


def may(role: Role, verb: str) -> bool:
    facts = FACTS.get(_LIKE.get(verb, verb))
    return role is Role.ADMIN or (facts is not None and role in facts.roles)


def check_caller(request: Request, verb: str) -> None:
    caller = caller_of(request)
    if caller is ANYONE and verb in _TOKENS:
        raise Forbidden("the first token is made on the database: holdfast token create --url DATABASE")
    if not may(caller.role, verb):
        raise Forbidden(f"a token of the role {caller.role} does not do {verb[:40]}", role=caller.role.value)


#: verbs that a worker may call, but not with any arguments
CHECKED: Final = frozenset(
    {
        "adopt_turns", "end_delegation", "record_deed", "record_turn", "request_approval", "set_pointer",
        "update_session",
    }
)  # fmt: skip


def check_work(store: Store, verb: str, arguments: Mapping[str, Any]) -> None:
    """Refuses arguments with which a verb would do what another verb does that workers may not call."""
    match verb:
        case "record_turn":
            _check_said(store, arguments["session_id"], arguments["new"])
        case "record_deed":
            _check_deed(arguments["did"])
        case "adopt_turns":
            _require_lease(arguments)
        case "set_pointer":
            _check_moved(store, arguments["pointer"])
        case "update_session":
            change: SessionUpdate = arguments["change"]
            if change.phase is not None and change.phase.is_final:
                raise _not_a_workers("close a session")
            _require_at_work(store, arguments["session_id"], delegated=True)
        case "request_approval":
            _require_at_work(store, arguments["session_id"], delegated=True)
        case "end_delegation":
            end: DelegationEnd = arguments["end"]
            # a session id closes a session even if it was never delegated
            if end.id is None and end.session_id is not None:
                _require_at_work(store, end.session_id, delegated=True)


def _check_said(store: Store, session_id: str, asked: NewTurn) -> None:
    """Operators decide how a turn is run; a worker only records what was said in a session that it runs."""
    if asked != NewTurn(asked.prompt, asked.provider, key=asked.key):
        raise _not_a_workers("say how a turn is to be run")
    _require_at_work(store, session_id)


def _check_deed(did: str) -> None:
    """The trail holds words of ours alone; by whom, the token says."""
    if did not in DEEDS:
        raise InvalidInput("did", f"must be one of: {', '.join(sorted(DEEDS))}")


def _require_lease(arguments: Mapping[str, Any]) -> None:
    """The store refuses a lease of another session."""
    if arguments.get("lease") is None:
        raise _not_a_workers("adopt turns of a session that it is not at work on")


def _check_moved(store: Store, moved: Pointer) -> None:
    known = store.pointer(moved.session_id, moved.provider)
    onward = known and replace(
        known, seen=moved.seen, transcript=moved.transcript, updated_at=moved.updated_at
    )
    if moved != onward:
        raise _not_a_workers("point to another session, directory or right")
    _require_at_work(store, moved.session_id)


def _require_at_work(store: Store, session_id: str, *, delegated: bool = False) -> None:
    """With ``delegated``, an open delegation to the session is enough, too."""
    if store.holder(session_id) is not None:
        return
    if not delegated or all(held.ended_at is not None for held in store.delegations(session_id)):
        raise _not_a_workers(f"change {session_id}, which no worker is at work on")


def _not_a_workers(what: str) -> Forbidden:
    return Forbidden(f"a token of the role {Role.WORKER} does not {what}", role=Role.WORKER.value)


#: verbs that an operator may call, but not with any rights
OF_OPERATORS: Final = frozenset(
    {
        "clear_pointer", "edit_turn", "enqueue_turn", "import_sessions", "record_deed", "record_turn", "retire",
        "retry_turn", "set_pointer",
    }
)  # fmt: skip


def check_order(store: Store, verb: str, arguments: Mapping[str, Any]) -> None:
    """Refuses what would give an agent more rights than are recorded: only an admin widens them."""
    match verb:
        case "enqueue_turn" | "record_turn":
            new: NewTurn = arguments["new"]
            _check_request(store, arguments["session_id"], new.provider, new.request)
        case "edit_turn" | "retry_turn":
            _check_again(store, verb, arguments)
        case "set_pointer":
            _check_pointer(store, arguments["pointer"])
        case "import_sessions":
            for taken in arguments["batch"]:
                if taken.pointer is not None:
                    _check_pointer(store, taken.pointer)
        case "clear_pointer" | "retire":
            named = arguments["expected" if verb == "clear_pointer" else "provider_session_id"]
            _check_dropped(store, arguments["session_id"], arguments["provider"], named)
        case "record_deed":
            _check_deed(arguments["did"])


def _check_request(store: Store, session_id: str, provider: str, request: TurnRequest) -> None:
    if request.allow_wider_rights:
        raise _wider("accept wider rights (allow_wider_rights)")
    if request.rights is not None:
        _require_within(request.rights, _recorded(store, session_id, provider))


def _check_again(store: Store, verb: str, arguments: Mapping[str, Any]) -> None:
    """Whoever repeats a turn, or gives a waiting one another prompt, asks for what it asks for."""
    session_id = arguments["session_id"]
    own = store.get_session(session_id).conversation_id
    turn = _find_turn(store, own, arguments["seq"])
    if verb == "edit_turn" and (arguments.get("prompt") is None or not turn.status.is_open):
        return
    # as ``retry_turn`` has it: an inherited turn is repeated in the fork
    runs_in = turn.session_id if turn.conversation_id == own else session_id
    _check_request(store, runs_in, turn.provider, turn.request)


def _find_turn(store: Store, conversation_id: str, seq: int) -> Turn:
    """Reads through forks."""
    while True:
        try:
            return store.get_turn(conversation_id, seq)
        except NotFound:
            point = store.get_conversation(conversation_id).fork_point
            if point is None:
                raise
            conversation_id = point.conversation_id


def _check_pointer(store: Store, pointer: Pointer) -> None:
    known = _recorded(store, pointer.session_id, pointer.provider)
    if pointer.rights is not None:
        _require_within(pointer.rights, known)
    elif known is not None:
        raise _wider("delete the rights that are recorded")


def _check_dropped(store: Store, session_id: str, provider: str, named: str) -> None:
    """Without its pointer, a session has the rights of its attempts."""
    pointer = store.pointer(session_id, provider)
    if pointer is None or pointer.rights is None or pointer.provider_session_id != named:
        return
    if not (_launched(store, session_id, provider) or NO_RIGHTS).within(pointer.rights):
        raise _wider("delete the rights that are recorded")


def _recorded(store: Store, session_id: str, provider: str) -> Rights | None:
    pointer = store.pointer(session_id, provider)
    known = None if pointer is None else pointer.rights
    return _launched(store, session_id, provider) if known is None else known


def _launched(store: Store, session_id: str, provider: str) -> Rights | None:
    """The rights of the newest attempt with this provider."""
    newest = store.newest_attempt(session_id)
    if newest is not None and newest.provider == provider and newest.rights is not None:
        return newest.rights
    for known in reversed(store.provider_sessions(session_id)):
        if known.provider == provider:
            for attempt in store.attempts_in(provider, known.id):
                if attempt.session_id == session_id and attempt.rights is not None:
                    return attempt.rights
    return None


def _require_within(asked: Rights, recorded: Rights | None) -> None:
    """Where nothing is recorded, an agent has the rights of its own settings, and no others can be named."""
    known = recorded or NO_RIGHTS
    if not asked.within(known):
        raise _wider(f"give an agent wider rights than are recorded ({asked.beyond(known)})")


def _wider(what: str) -> Forbidden:
    words = f"a token of the role {Role.OPERATOR} does not {what}: name no rights or fewer, or use an admin's token"
    return Forbidden(words, role=Role.OPERATOR.value, reason=Reason.RIGHTS_WIDER.value)


class Guarded(APIRoute):
    """A route for callers who may call the verb of its name; checked before anything of the request is read.

    Routes are named after the verb that they carry out, so that no route has rules of its own. A query parameter that
    the route does not know is an error: its caller relies on it.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()
        known = sorted(_query_parameters(self.dependant))

        async def guarded(request: Request) -> Response:
            request.state.verb = self.name
            check_caller(request, self.name)
            for name in request.query_params:
                if name not in known:
                    words = f"known are {', '.join(known)}" if known else "there are none here"
                    raise InvalidInput(f"query.{clean_text(name[:40])}", f"is not known; {words}")
            return await answer(request)

        return guarded


def _query_parameters(dependant: Dependant) -> set[str]:
    own = {field.alias for field in dependant.query_params}
    return own.union(*map(_query_parameters, dependant.dependencies))


def verb_of(request: Request) -> str:
    return str(request.state.verb)


def caller_of(request: Request) -> Caller:
    caller = request.state.caller
    assert isinstance(caller, Caller)
    return caller


_NOT_TAKEN: Final = (DelegationOutcome.LOST, DelegationOutcome.ASKED)


def confined(caller: Caller, holdfast: Holdfast) -> Holdfast:
    """The same Holdfast; for all but readers and admins, on a store that checks each call."""
    if caller.role is Role.WORKER:
        return Holdfast(cast(Store, Checked(holdfast.store, CHECKED, check_work)), holdfast.policy)
    if caller.role is Role.OPERATOR:
        return Holdfast(cast(Store, Checked(holdfast.store, OF_OPERATORS, check_order)), holdfast.policy)
    if caller.role is Role.VIEWER:
        return Holdfast(cast(Store, Viewed(holdfast.store)), holdfast.policy)
    if caller.role is not Role.AGENT or caller.session_id is None:
        return holdfast
    return Holdfast(cast(Store, Confined(holdfast.store, caller.session_id)), holdfast.policy)


class Checked:
    """A store that checks the arguments of some verbs before it calls them."""

    def __init__(
        self,
        store: Store,
        checked: frozenset[str],
        check: Callable[[Store, str, Mapping[str, Any]], None],
    ) -> None:
        self._store = store
        self._checked = checked
        self._check = check

    def __getattr__(self, name: str) -> Any:
        call: Callable[..., Any] = getattr(self._store, name)
        if name not in self._checked:
            return call

        def checked(*args: Any, **kwargs: Any) -> Any:
            given = verbs()[name].signature.bind(None, *args, **kwargs).arguments
            self._check(self._store, name, given)
            return call(*args, **kwargs)

        return checked


#: characters: a shorter end of an id finds no session, see ``Store.find_session``
_LEAST_END: Final = 4

#: what a record has of contents: of what people, agents and tools have said and done
_CONTENTS: Final[Mapping[type, Mapping[str, Any]]] = {
    Approval: {"what": "", "arguments": {}, "arguments_hash": "", "nonce": "", "note": None},
    Failure: {"message": ""},
    HistoryTurn: {"prompt": "", "response": None},
    LateReport: {"report": {}},
    # which directories, arguments and calls; the permission mode is a state
    Rights: {
        "allowed_tools": frozenset(), "extra_dirs": frozenset(), "extra_args": (), "approve_tools": frozenset(),
    },
    Session: {"purpose": "", "metadata": {}, "summary": None, "agent_title": None},
    SessionChange: {"error": None},
    SessionError: {"message": ""},
    Turn: {"prompt": "", "response": None},
    TurnRequest: {"approve_tools": frozenset()},
    Verdict: {"evidence": ""},
}  # fmt: skip


def without_contents(value: Any) -> Any:
    """The same records, with empty texts."""
    if type(value) in (tuple, list):
        return type(value)(map(without_contents, value))
    if isinstance(value, Mapping):
        return {key: without_contents(item) for key, item in value.items()}
    emptied = _CONTENTS.get(type(value), {})
    kept = [name for name in fields(type(value)) if name not in emptied]
    if not kept:  # not a record, or one of figures alone
        return value
    return replace(value, **{name: without_contents(getattr(value, name)) for name in kept}, **emptied)


class Viewed:
    """A store for a viewer: figures and states, and no contents."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        verb = verbs().get(name)
        if verb is None:
            return getattr(self._store, name)
        self._check_role(name)
        call: Callable[..., Any] = getattr(self._store, name)

        def viewed(*args: Any, **kwargs: Any) -> Any:
            given = verb.signature.bind(None, *args, **kwargs).arguments
            if _looks_for_contents(name, given):
                raise Forbidden(
                    f"a token of the role {Role.VIEWER} does not look for texts, metadata and rights",
                    role=Role.VIEWER.value,
                )
            return without_contents(call(*args, **kwargs))

        return viewed

    def find_session(self, given: str) -> SessionId:
        """By its id or its name. A title is a part of what was said."""
        try:
            found = self._store.find_session(given)
        except AmbiguousId as exc:
            if not any(_is_part(given, fits) for fits in exc.candidates):
                raise NotFound("session", given) from None
            raise
        if not _is_part(given, found) and self._store.get_session(found).name != given:
            raise NotFound("session", given)
        return found

    def find_approval(self, given: str) -> ApprovalId:
        """By its id, or by its session as ``find_session`` finds that."""
        try:
            found = self._store.find_approval(given)
        except AmbiguousId as exc:
            if not any(fits.startswith(given) for fits in exc.candidates):
                self._require_findable(given)
            raise
        except NotFound:
            self._require_findable(given)
            raise
        if not found.startswith(given):
            self._require_findable(given)
        return found

    def _require_findable(self, given: str) -> None:
        """The same error as for an approval that does not exist."""
        try:
            self.find_session(given)
        except NotFound:
            raise NotFound("approval", given) from None

    def in_parts(self, name: str, arguments: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
        """See ``Store.in_parts``."""
        self._check_role(name)
        return map(without_contents, self._store.in_parts(name, arguments))

    def _check_role(self, name: str) -> None:
        if not may(Role.VIEWER, name):
            raise Forbidden(f"a token of the role {Role.VIEWER} does not do {name}", role=Role.VIEWER.value)


def _looks_for_contents(name: str, given: Mapping[str, Any]) -> bool:
    """A decision about guessed rights says which ones are recorded."""
    if name == "explain":
        request: TurnRequest | None = given.get("request")
        return given.get("pointer") is not None or (request is not None and request.rights is not None)
    return name == "list_sessions" and bool(given["wanted"].grep or given["wanted"].metadata)


def _is_part(given: str, session_id: str) -> bool:
    """Whether a session is found by its id: by the beginning, or by an end that is long enough."""
    return session_id.startswith(given) or (len(given) >= _LEAST_END and session_id.endswith(given))


class Confined:
    """A store for an agent: every verb is about the agent's session, or what was delegated from it."""

    def __init__(self, store: Store, session_id: str) -> None:
        self._store = store
        self._session_id = session_id

    def __getattr__(self, name: str) -> Any:
        verb = verbs().get(name)
        if verb is None:
            return getattr(self._store, name)
        self._check_role(name)
        call: Callable[..., Any] = getattr(self._store, name)

        def checked(*args: Any, **kwargs: Any) -> Any:
            given = verb.signature.bind(None, *args, **kwargs).arguments
            self._check(name, given)
            return self._check_answer(name, call(*args, **kwargs))

        return checked

    def in_parts(self, name: str, arguments: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
        """See ``Store.in_parts``."""
        self._check_role(name)
        self._check(name, arguments)
        return self._store.in_parts(name, arguments)

    def _check_role(self, name: str) -> None:
        if not may(Role.AGENT, name):
            raise Forbidden(f"a token of the role {Role.AGENT} does not do {name}", role=Role.AGENT.value)

    def _check(self, name: str, given: Mapping[str, Any]) -> None:
        if "session_id" in given or name == "approvals":
            self._require(given.get("session_id"))
        if name == "open_delegations" and given.get("agent") is None:
            raise _elsewhere()
        if "conversation_id" in given:
            own = self._store.get_session(self._session_id).conversation_id
            if given["conversation_id"] != own:
                raise _elsewhere()
        if "provider_session_id" in given:
            self._require_own(given["provider_session_id"])
        if "project" in given or name == "open_delegations":
            self._require_project(given.get("project"))
        for value in given.values():
            self._check_record(value)

    def _check_answer(self, name: str, answer: Any) -> Any:
        match name:
            case "find_session":
                self._require(answer)
            case "get_approval":
                self._require(answer.session_id)
            case "find_approval":
                self._require(self._store.get_approval(answer).session_id)
            case "free_sessions":
                return tuple(free for free in answer if free.project in self._own_projects())
            case "delegate" | "ask_delegation" if answer.session is not None:
                self._require_delegable(answer.session.id)  # the id may be in use by another agent
        return answer

    def _check_record(self, value: object) -> None:
        match value:
            case NewDelegation():
                self._require_own(value.provider_session_id)
                self._require_project(value.project)
                self._require_delegable(value.told)
            case Question():
                self._require_project(value.project)
                if value.session_id is not None:
                    self._require(value.session_id)
            case DelegationEnd(session_id=str() as session_id):
                self._require(session_id)
            case DelegationEnd():
                self._require_own(value.provider_session_id)
            case Sighting():
                self._require_own(value.id)
            case _:
                pass

    def _require(self, session_id: str | None) -> None:
        if session_id == self._session_id:
            return
        known = self._store.delegations(session_id or "")
        # the newest delegation that took the session; one that only asked for it, or lost it, does not have it
        newest = next((one for one in known if one.outcome not in _NOT_TAKEN), None)
        if newest is None or newest.provider_session_id not in self._own_ids():
            raise _elsewhere()

    def _require_own(self, provider_session_id: str | None) -> None:
        if provider_session_id not in self._own_ids():
            raise _elsewhere()

    def _require_delegable(self, session_id: str | None) -> None:
        """A session that a delegation of this project could have taken, or one that does not exist yet."""
        if session_id is None:
            return
        try:
            session = self._store.get_session(session_id)
        except NotFound:
            return
        if not session.is_delegated or session.project not in self._own_projects():
            self._require(session_id)

    def _require_project(self, project: str | None) -> None:
        if project not in self._own_projects():
            raise _elsewhere()

    def _own_projects(self) -> set[str]:
        """The project of the session, and the directory that the agent runs in with its parents: hooks name a repository."""
        session, attempt = (
            self._store.get_session(self._session_id),
            self._store.newest_attempt(self._session_id),
        )
        known = set() if session.project is None else {session.project}
        if attempt is not None and attempt.work_dir is not None:
            runs_in = PurePath(attempt.work_dir)
            known |= {str(runs_in), *map(str, runs_in.parents)}
        return known

    def _own_ids(self) -> set[str | None]:
        """The provider's ids of the agent's session: hooks send these."""
        newest = self._store.newest_attempt(self._session_id)
        known = {pointer.provider_session_id for pointer in self._store.pointers(self._session_id)}
        return {
            *known,
            *(() if newest is None or not newest.provider_session_id else (newest.provider_session_id,)),
        }


def _elsewhere() -> Forbidden:
    return Forbidden(
        "the token of an agent is for its own session, and what it has delegated", role=Role.AGENT.value
    )

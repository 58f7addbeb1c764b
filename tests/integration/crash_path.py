"""Owns the paths that the crash tests walk: short stories that together use every verb that writes.

A step is one call. It is made by a *client*, who repeats a call that was not answered, or by a *worker*, who
either does the same or vanishes and leaves its turn to the next one. ``answered_by`` are the errors that tell
the one who repeats a call that it had already succeeded.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha512
from typing import Any, cast

import pytest

from holdfast.clock import after
from holdfast.domain.approvals import Answer, NewApproval
from holdfast.domain.conversations import SeenTurns
from holdfast.domain.decisions import Resume
from holdfast.domain.events import Event, EventKind
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.ids import ApprovalId, ProviderSessionId, SessionId
from holdfast.domain.imports import SessionImport
from holdfast.domain.phases import Phase
from holdfast.domain.pointers import Pointer, TranscriptMark
from holdfast.domain.policy import VaultPolicy
from holdfast.domain.search import SearchRequest
from holdfast.domain.sessions import NewSession, Old, SessionUpdate
from holdfast.domain.tokens import ENTROPY, NewToken, Role, make_token
from holdfast.domain.turns import (
    Adoption,
    AttemptCause,
    Claim,
    ClaimRequest,
    Launch,
    NewTurn,
    OutsideTurn,
    TurnEnd,
    TurnStatus,
)
from holdfast.domain.usage import Usage, UsageReport
from holdfast.engine import vault
from holdfast.errors import Conflict, HoldfastError, LeaseLost, NotFound, PhaseConflict, SessionClosed
from holdfast.providers.contract import SessionFile
from holdfast.store.contract import Store
from holdfast.store.sql_store import SqlStore
from tests.builders import a_chunk, a_pointer, a_runtime
from tests.clock import NOON, ManualClock

LEASE_SECONDS = 60.0
MAIN, CHILD, TWIN, OLD = (SessionId(f"agent-{name}") for name in ("main", "child", "twin", "old"))
HAND_MADE = "made-by-hand"
USED = UsageReport(Usage(input_tokens=10, output_tokens=1))


@dataclass
class Walk:
    """One walk along a path: the store, its time, and the claims that were answered so far."""

    store: Store
    clock: ManualClock = field(default_factory=ManualClock)
    claims: dict[str, Claim] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    name: str
    act: Callable[[Walk], object]
    by_worker: bool = False
    answered_by: tuple[type[HoldfastError], ...] = ()

    def repeat(self, walk: Walk) -> None:
        """The same call again, by someone who does not know whether the first one arrived."""
        try:
            self.act(walk)
        except self.answered_by:
            pass


def client(name: str, act: Callable[[Walk], object], *answered_by: type[HoldfastError]) -> Step:
    return Step(name, act, False, answered_by)


def worker(name: str, act: Callable[[Walk], object], *answered_by: type[HoldfastError]) -> Step:
    return Step(name, act, True, answered_by)


def time_passes(seconds: float) -> Step:
    return client("time passes", lambda walk: walk.clock.advance(seconds))


# --- steps that several paths share -------------------------------------------------------------------------

BEGIN = client("create", lambda walk: walk.store.create_session(NewSession(MAIN, "main", provider="claude")))


def enqueue(prompt: str, session_id: SessionId = MAIN) -> Step:
    new = NewTurn(prompt, "claude", key=prompt, max_attempts=9)
    return client(f"enqueue {prompt}", lambda walk: walk.store.enqueue_turn(session_id, new))


def record(prompt: str, session_id: SessionId = MAIN) -> Step:
    """A turn that was run elsewhere."""
    new = NewTurn(prompt, "claude", key=prompt)
    usage = Usage(input_tokens=5)
    return client(
        f"record {prompt}", lambda walk: walk.store.record_turn(session_id, new, answer(prompt), usage)
    )


def claim(key: str) -> Step:
    request = ClaimRequest(a_runtime(), "worker", key, LEASE_SECONDS)

    def act(walk: Walk) -> None:
        claimed = walk.store.claim_turn(request)
        assert claimed is not None, f"nothing to claim for {key}"
        walk.claims[key] = claimed

    return worker(f"claim {key}", act)


def provider_session(walk: Walk, name: str) -> ProviderSessionId:
    """Walks may share a database, and workspaces share no provider session."""
    return ProviderSessionId(f"{walk.store.workspace}-{name}")


def made_by_hand(walk: Walk, session_id: SessionId, provider: str = "claude") -> Pointer:
    return a_pointer(session_id, provider=provider, provider_session_id=provider_session(walk, HAND_MADE))


def launch(key: str, new_id: str | None = None) -> Step:
    def act(walk: Walk) -> None:
        claimed = walk.claims[key]
        chosen = None if new_id is None else provider_session(walk, new_id)
        launched = Launch(claimed.decision, provider_session_id=chosen, work_dir="/srv/infra")
        walk.store.launch(claimed.lease, launched)

    return worker(f"launch {key}", act)


def events(key: str, *numbers: int) -> Step:
    batch = [Event(n, EventKind.TEXT, {"text": f"event {n}"}, NOON) for n in numbers]
    return worker(f"events {key}", lambda walk: walk.store.record_events(walk.claims[key].lease, batch))


def finish(key: str, provider_session_id: str | None, **changes: Any) -> Step:
    def act(walk: Walk) -> None:
        claimed = walk.claims[key]
        used = None if provider_session_id is None else provider_session(walk, provider_session_id)
        end = TurnEnd(TurnStatus.DONE, answer(claimed.turn.prompt), provider_session_id=used, usage=USED)
        walk.store.finish_turn(claimed.lease, replace(end, **changes))

    return worker(f"finish {key}", act)


def answer(prompt: str) -> str:
    return f"the answer to {prompt}"


# --- the life of a session ----------------------------------------------------------------------------------

PLAN = SessionUpdate(Phase.PLANNING, {"step": 1}, expected_phase=Phase.INITIALIZING)

SESSIONS = [
    client("create old", lambda walk: walk.store.create_session(NewSession(OLD, "old"))),
    client("create idle", lambda walk: walk.store.create_session(NewSession(TWIN, "idle"))),
    client(
        "finalize", lambda walk: walk.store.finalize_session(OLD, Phase.COMPLETED, "all done"), SessionClosed
    ),
    time_passes(24 * 3600),
    BEGIN,
    client("update", lambda walk: walk.store.update_session(MAIN, PLAN), PhaseConflict),
    client("rename", lambda walk: walk.store.rename_session(MAIN, "the-main-one")),
    client("attend", lambda walk: walk.store.attend(MAIN, "a-program", 60.0)),
    client("leave", lambda walk: walk.store.attend(MAIN, "a-program", 0.0)),
    client("record a deed", lambda walk: walk.store.record_deed(MAIN, "restore")),
    # the old one goes, the idle one is abandoned
    client("clean up", lambda walk: walk.store.clean_up(Old(after(walk.clock.now, -12 * 3600)))),
    client("remove", lambda walk: walk.store.remove_session(TWIN), NotFound),
]

# --- a turn, from the queue to its end ----------------------------------------------------------------------

TURN = [
    BEGIN,
    enqueue("one"),
    enqueue("two"),
    claim("one"),
    worker("heartbeat", lambda walk: walk.store.heartbeat(walk.claims["one"].lease, LEASE_SECONDS)),
    launch("one", "ps-1"),
    events("one", 1, 2),
    events("one", 3, 4),
    worker("pin", lambda walk: walk.store.pin(walk.claims["one"].lease, provider_session(walk, "ps-1"))),
    finish("one", "ps-1"),
    claim("two"),
    finish("two", None),
]

# --- a turn whose provider refuses to resume ----------------------------------------------------------------


def _fall_back(walk: Walk) -> None:
    assert isinstance(walk.claims["one"].decision, Resume)
    refused = Failure(FailureClass.GONE, "no conversation found with this id")
    try:
        walk.claims["fresh"] = walk.store.fall_back(walk.claims["one"].lease, refused, "fresh")
    except LeaseLost:
        # it had fallen back, and the answer was lost: the key of the new attempt finds it
        claim("fresh").act(walk)
        assert walk.claims["fresh"].cause is AttemptCause.FALLBACK


REFUSED_RESUME = [
    BEGIN,
    client("register", lambda walk: walk.store.register_runtime(a_runtime())),
    client("point", lambda walk: walk.store.set_pointer(made_by_hand(walk, MAIN))),
    enqueue("one"),
    claim("one"),
    launch("one"),
    worker("fall back", _fall_back),
    launch("fresh", "ps-2"),
    events("fresh", 1, 2),
    finish("fresh", "ps-2"),
]

# --- a turn that is put back, that fails, and that is lost --------------------------------------------------


def _put_back(walk: Walk) -> None:
    walk.store.put_back(walk.claims["one"].lease)


def _fail(walk: Walk) -> None:
    failure = Failure(FailureClass.TRANSIENT, "503")
    end = TurnEnd(TurnStatus.FAILED, "half an answer", failure, retry_at=walk.clock.now)
    walk.store.finish_turn(walk.claims["again"].lease, end)


def _recover(walk: Walk) -> None:
    for orphan in walk.store.orphans():
        walk.store.recover(orphan)


SEVERAL_TRIES = [
    BEGIN,
    enqueue("one"),
    claim("one"),
    worker("put back", _put_back, LeaseLost),
    claim("again"),
    worker("fail", _fail),
    claim("once more"),
    worker("time passes", lambda walk: walk.clock.advance(600)),
    worker("recover", _recover, Conflict),
    claim("at last"),
    finish("at last", "ps-1"),
]

# --- the history changes ------------------------------------------------------------------------------------

HISTORY = [
    BEGIN,
    record("one"),
    record("two"),
    client("edit", lambda walk: walk.store.edit_turn(MAIN, 1, response="a better answer")),
    # turn 2 leaves the history, turn 3 takes its place
    client("retry", lambda walk: walk.store.retry_turn(MAIN, 2), NotFound),
    claim("two again"),
    finish("two again", "ps-1"),
    enqueue("four"),
    enqueue("five"),
    client("cancel", lambda walk: walk.store.cancel_turn(MAIN, 5)),
    client("truncate", lambda walk: walk.store.truncate(MAIN, 3)),
]

# --- turns that a person made in the agent's own program join the history ---------------------------------------


def _adopt(walk: Walk) -> None:
    pointer = walk.store.pointer(MAIN, "claude")
    assert pointer is not None
    by_hand = OutsideTurn("outside:1", "by hand", "an answer")
    walk.store.adopt_turns(Adoption(pointer, (by_hand,), pointer.seen or SeenTurns(), pointer.transcript))


ADOPTED = [
    BEGIN,
    record("one"),
    client("register", lambda walk: walk.store.register_runtime(a_runtime())),
    client("point", lambda walk: walk.store.set_pointer(made_by_hand(walk, MAIN))),
    client("adopt", _adopt),
]

FOUND = [
    client("register", lambda walk: walk.store.register_runtime(a_runtime())),
    client(
        "import",
        lambda walk: walk.store.import_sessions(
            [
                SessionImport(
                    NewSession(MAIN, "main", provider="claude", began_at=NOON),
                    made_by_hand(walk, MAIN).provider_session_id,
                    (OutsideTurn("outside:1", "by hand", "an answer"),),
                    made_by_hand(walk, MAIN),
                )
            ]
        ),
    ),
    record("one"),
]

# --- a fork goes its own way --------------------------------------------------------------------------------


def _start(walk: Walk) -> None:
    new = NewTurn("on my own", "claude", max_attempts=9)
    request = ClaimRequest(a_runtime(), "worker", "child", LEASE_SECONDS)
    started = walk.store.start_turn(CHILD, new, request)
    assert isinstance(started, Claim)
    walk.claims["child"] = started


FORKS = [
    BEGIN,
    record("one"),
    record("two"),
    client("fork", lambda walk: walk.store.fork(MAIN, CHILD, at=1, name="the-child")),
    client("start", _start),
    finish("child", "ps-1"),
    client("point", lambda walk: walk.store.set_pointer(made_by_hand(walk, CHILD, "codex"))),
    client(
        "clear pointer",
        lambda walk: walk.store.clear_pointer(CHILD, "codex", provider_session(walk, HAND_MADE)),
    ),
    client(
        "retire",
        lambda walk: walk.store.retire(CHILD, "codex", provider_session(walk, HAND_MADE), "poisoned"),
    ),
    client("fork the fork", lambda walk: walk.store.fork(CHILD, TWIN)),
    client("begin again", lambda walk: walk.store.new_generation(CHILD)),
    enqueue("three", TWIN),
    claim("three"),
    finish("three", "ps-2"),
]

# --- people are asked ---------------------------------------------------------------------------------------

APPLY = NewApproval(ApprovalId("apr-apply"), "apply", {"command": "apply"}, call_id="toolu_01", tool="Bash")
OWN = NewApproval(ApprovalId("apr-own"), "go on?")


def deferred(used: str) -> TurnEnd:
    mark = TranscriptMark("session.jsonl", 100, "digest", turns=1)
    session = ProviderSessionId(used)
    return TurnEnd(
        TurnStatus.WAITING, provider_session_id=session, transcript=mark, usage=USED, approval=APPLY
    )


def allow(approval_id: ApprovalId) -> Step:
    def act(walk: Walk) -> None:
        asked = walk.store.get_approval(approval_id)
        walk.store.answer_approval(asked.id, Answer(True, "ada", asked.arguments_hash, asked.nonce))

    return client(f"allow {approval_id}", act)


APPROVALS = [
    BEGIN,
    enqueue("ask first"),
    claim("asks"),
    launch("asks", "ps-1"),
    worker(
        "defer",
        lambda walk: walk.store.finish_turn(
            walk.claims["asks"].lease, deferred(provider_session(walk, "ps-1"))
        ),
    ),
    allow(APPLY.id),
    claim("acts"),
    launch("acts"),
    finish("acts", "ps-1"),
    client("ask", lambda walk: walk.store.request_approval(MAIN, OWN)),
    allow(OWN.id),
]


def token_of(walk: Walk) -> tuple[NewToken, str]:
    """The same for whoever repeats a call, and another one in each workspace: tokens are known by their id alone."""
    workspace = cast("SqlStore", walk.store).workspace
    return make_token(Role.READER, "phone", None, sha512(workspace.encode()).digest()[:ENTROPY])


def _prove_token(walk: Walk) -> object:
    """What a server does with each request; it notes now and then that the token is in use."""
    _, token_id, secret = token_of(walk)[1].split("_")
    return cast("SqlStore", walk.store).check_token(token_id, secret)


def _lend_token(walk: Walk) -> None:
    """Whoever repeats it gets another token, in place of the one that never arrived."""
    assert walk.store.agent_token(walk.claims["one"].lease) is not None


TOKENS = [
    BEGIN,
    client("make a token", lambda walk: walk.store.create_token(token_of(walk)[0])),
    client("use it", _prove_token),
    enqueue("one"),
    claim("one"),
    worker("lend a token", _lend_token),
    launch("one", "ps-1"),
    finish("one", "ps-1"),
    client("revoke it", lambda walk: walk.store.revoke_token(token_of(walk)[0].id)),
]

# --- session files are mirrored into the vault ---------------------------------------------------------------------

KEPT = ProviderSessionId("kept")


def mirror(text: str, *sidecars: str) -> Step:
    """Most chunks are stored ahead of the bundle that refers to them."""
    sides = [SessionFile(f"side/{n}", None, side.encode()) for n, side in enumerate(sidecars)]
    files = (SessionFile("kept.jsonl", None, text.encode(), is_main=True), *sides)

    def act(walk: Walk) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(vault, "_MOST_WAITING", 8)
            vault.Vault(walk.store, VaultPolicy()).keep(vault.VaultSource("claude", KEPT, files, "/home/ada"))

    return client(f"mirror {text}", act)


VAULT = [
    client("add a chunk", lambda walk: walk.store.add_chunks([a_chunk(b"loose\n")])),
    mirror("one"),
    mirror("one two three", "side one", "side two", "side three"),
    mirror("one two three four", "side one, longer", "another side", "side three"),
    mirror("rewritten", "side one, longer"),
    time_passes(25 * 3600),
    client("sweep", lambda walk: walk.store.sweep_vault()),
    client("drop", lambda walk: walk.store.drop_bundle("claude", KEPT)),
    mirror("one"),
    BEGIN,
    record("one"),
]

# --- a search adds what it misses to the index -----------------------------------------------------------------------

FOUND_BY_WORDS = client("search", lambda walk: walk.store.search(SearchRequest("answer")))

SEARCH = [BEGIN, record("one"), FOUND_BY_WORDS, record("two"), FOUND_BY_WORDS]

PATHS = {
    "sessions": SESSIONS,
    "turn": TURN,
    "refused resume": REFUSED_RESUME,
    "several tries": SEVERAL_TRIES,
    "history": HISTORY,
    "adopted turns": ADOPTED,
    "adopted session": FOUND,
    "forks": FORKS,
    "approvals": APPROVALS,
    "tokens": TOKENS,
    "vault": VAULT,
    "search": SEARCH,
}

"""Owns what the processes of the concurrency tests do; each task opens the store itself and waits for the others.

What they do at the same time is told by ``time.monotonic()``, which all processes of a machine share.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection
from typing import Any

from holdfast.domain.decisions import Resume
from holdfast.domain.events import Event, EventKind
from holdfast.domain.ids import ConversationId, ProviderSessionId, SessionId
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import NewSession, Old, SessionUpdate
from holdfast.domain.turns import Claim, ClaimRequest, Launch, NewTurn, TurnEnd, TurnStatus
from holdfast.domain.usage import NO_USAGE
from holdfast.errors import Busy, Conflict, HoldfastError, LeaseLost, NotFound, PhaseConflict
from holdfast.store.contract import Store
from holdfast.store.open import open_store
from tests.builders import a_runtime
from tests.clock import NOON
from tests.processes import LIMIT_SECONDS, Start

#: what someone who works together with others must expect; anything else is a failure
EXPECTED = (Conflict, LeaseLost, Busy, NotFound)


def opened(url: str) -> closing[Store]:
    return closing(open_store(url, durability="normal"))


def request(owner: str, lease_seconds: float = 60.0, session_id: SessionId | None = None) -> ClaimRequest:
    return ClaimRequest(a_runtime(), owner, os.urandom(8).hex(), lease_seconds, session_id)


def done(text: str, **changes: Any) -> TurnEnd:
    return TurnEnd(TurnStatus.DONE, text, **changes)


# --- writers ------------------------------------------------------------------------------------------------


def write_to_one_session(ready: Start, url: str, session_id: str, me: int, writes: int) -> tuple[int, int]:
    """Metadata of its own, and phase changes that compare first: how many of those succeeded and failed."""
    changed = conflicts = 0
    with opened(url) as store:
        ready()
        for number in range(writes):
            store.update_session(session_id, SessionUpdate(metadata={f"{me}-{number}": number}))
            here, there = Phase.PLANNING, Phase.EXECUTING
            if store.get_session(session_id).phase is there:
                here, there = there, here
            try:
                store.update_session(session_id, SessionUpdate(phase=there, expected_phase=here))
                changed += 1
            except PhaseConflict:
                conflicts += 1
    return changed, conflicts


def write_to_own_session(ready: Start, url: str, me: int, writes: int) -> int:
    session_id = SessionId(f"agent-{me}")
    with opened(url) as store:
        ready()
        store.create_session(NewSession(session_id, f"agent-{me}"))
        for number in range(writes):
            store.update_session(session_id, SessionUpdate(metadata={"last": number}))
    return writes


def enqueue_into_one_conversation(ready: Start, url: str, session_id: str, me: int, turns: int) -> list[int]:
    """Half of its turns under keys that every process uses."""
    with opened(url) as store:
        ready()
        seqs = []
        for number in range(turns):
            key = f"shared-{number}" if number % 2 else f"{me}-{number}"
            seqs.append(store.enqueue_turn(session_id, NewTurn(key, "claude", key=key)).seq)
    return seqs


# --- claimers -----------------------------------------------------------------------------------------------

#: a session, a turn, when the lease on it was there, and when it was still there
Held = tuple[str, int, float, float]


def work(ready: Start, url: str, me: int, finished: Any, total: int) -> list[Held]:
    """Run turns until ``total`` of them are finished, whoever did it."""
    with opened(url) as store:
        ready()
        return run_turns(store, f"worker-{me}", finished, total)


def run_turns(store: Store, owner: str, finished: Any, total: int) -> list[Held]:
    held: list[Held] = []
    deadline = time.monotonic() + LIMIT_SECONDS
    while finished.value < total:
        assert time.monotonic() < deadline, f"only {finished.value} of {total} turns were served"
        claimed = store.claim_turn(request(owner))
        if claimed is None:
            time.sleep(0.001)  # the heads that are left are leased by others
            continue
        lease, since = claimed.lease, time.monotonic()
        store.heartbeat(lease, 60.0)
        held.append((lease.session_id, lease.seq, since, time.monotonic()))
        store.finish_turn(lease, done(f"by {owner}"))
        with finished.get_lock():
            finished.value += 1
    return held


def beat_until_fenced(connection: Connection, url: str, lease_seconds: float) -> None:
    """Hold a turn, be away for a while, and try everything that a worker may do. Says how each try ended."""
    with opened(url) as store:
        claimed = store.claim_turn(request("stopped", lease_seconds))
        assert claimed is not None
        lease = store.heartbeat(claimed.lease, lease_seconds).lease
        connection.send(lease)
        connection.recv()  # it is stopped here, for longer than its lease
        event = Event(1, EventKind.TEXT, {"text": "too late"}, NOON)
        tries: dict[str, Callable[[], object]] = {
            "heartbeat": lambda: store.heartbeat(lease, lease_seconds),
            "launch": lambda: store.launch(lease, Launch(claimed.decision)),
            "record_events": lambda: store.record_events(lease, [event]),
            "pin": lambda: store.pin(lease, ProviderSessionId("too-late")),
            "put_back": lambda: store.put_back(lease),
            "finish_turn": lambda: store.finish_turn(lease, done("too late")),
        }
        connection.send({verb: _ending(call) for verb, call in tries.items()})


def _ending(call: Callable[[], object]) -> str:
    try:
        call()
    except HoldfastError as exc:
        return type(exc).__name__
    return "written"


# --- everything at once -------------------------------------------------------------------------------------


class Someone:
    """A person and a worker in one, who does one thing after another without looking at what others do."""

    def __init__(self, store: Store, me: int, sessions: list[str]) -> None:
        self.store = store
        self.me = me
        self.sessions = sessions  #: everybody's
        self.own: list[str] = []  #: made here
        self.random = random.Random(me)
        self.made = 0

    def any(self) -> str:
        return self.random.choice(self.sessions + self.own)

    def any_turn(self) -> tuple[str, int]:
        """Of those that were asked for last; by now it may be gone, or have ended."""
        session = self.store.get_session(self.any())
        newest = self.store.history(session.conversation_id, limit=4)
        if not newest:
            raise NotFound("turn", "any")
        return session.id, self.random.choice(newest).seq

    def new_id(self) -> SessionId:
        self.made += 1
        return SessionId(f"agent-{self.me}-{self.made}")

    def enqueue(self) -> None:
        self.store.enqueue_turn(self.any(), NewTurn("do it", "claude", priority=self.random.randint(0, 2)))

    def run_turn(self) -> None:
        claimed = self._claim()
        used = claimed.decision.provider_session_id if isinstance(claimed.decision, Resume) else None
        chosen = used or ProviderSessionId(f"ps-{self.me}-{os.urandom(4).hex()}")
        self.store.launch(claimed.lease, Launch(claimed.decision, provider_session_id=chosen))
        self.store.pin(claimed.lease, chosen)
        self.store.finish_turn(claimed.lease, done("done", provider_session_id=chosen))

    def fail_turn(self) -> None:
        lease = self._claim().lease
        self.store.finish_turn(lease, TurnEnd(TurnStatus.FAILED, retry_at=self.store.now()))

    def put_back(self) -> None:
        self.store.put_back(self._claim().lease)

    def vanish(self) -> None:
        self._claim(lease_seconds=0.001)

    def _claim(self, lease_seconds: float = 60.0) -> Claim:
        claimed = self.store.claim_turn(request(f"someone-{self.me}", lease_seconds))
        if claimed is None:
            raise NotFound("turn", "any")
        return claimed

    def recover(self) -> None:
        for orphan in self.store.orphans():
            self.store.recover(orphan)

    def start_turn(self) -> None:
        started = self.store.start_turn(self.any(), NewTurn("now", "claude"), request(f"someone-{self.me}"))
        if isinstance(started, Claim):
            self.store.finish_turn(started.lease, done("at once"))

    def record(self) -> None:
        self.store.record_turn(self.any(), NewTurn("by hand", "claude"), "done by hand", NO_USAGE)

    def cancel(self) -> None:
        session = self.any()
        for turn in self.store.turns(session):
            if turn.status.is_open:
                self.store.cancel_turn(session, turn.seq)
                return
        raise NotFound("turn", "any")

    def edit(self) -> None:
        self.store.edit_turn(*self.any_turn(), prompt="do it better")

    def truncate(self) -> None:
        self.store.truncate(*self.any_turn())

    def retry(self) -> None:
        self.store.retry_turn(*self.any_turn())

    def new(self) -> None:
        self.store.new_generation(self.any())

    def fork(self) -> None:
        self.own.append(self.store.fork(self.any(), self.new_id()).id)

    def join(self) -> None:
        there = self.store.get_session(self.any()).conversation_id
        new = NewSession(self.new_id(), f"agent-{self.me}", conversation_id=ConversationId(there))
        self.own.append(self.store.create_session(new).id)

    def update(self) -> None:
        self.store.update_session(self.any(), SessionUpdate(phase=Phase.PLANNING, metadata={"by": self.me}))

    def finalize(self) -> None:
        self.store.finalize_session(self._own(), Phase.COMPLETED, None)

    def remove(self) -> None:
        self.store.remove_session(self._own())

    def _own(self) -> str:
        if not self.own:
            raise NotFound("session", "of my own")
        return self.random.choice(self.own)

    def clean_up(self) -> None:
        """Everything but what all share, and what is in use at this moment."""
        moment = self.store.now()
        for session in self.sessions:
            self.store.update_session(session, SessionUpdate(metadata={"used by": self.me}))
        self.store.clean_up(Old(moment))


THINGS_TO_DO = [name for name, verb in vars(Someone).items() if callable(verb) and not name.startswith("_")]
for helper in ("any", "any_turn", "new_id"):
    THINGS_TO_DO.remove(helper)


def do_anything(ready: Start, url: str, me: int, sessions: list[str], steps: int) -> Counter[str]:
    """What was done, and how often; what could not be done for a reason that is to be expected is not counted."""
    counted: Counter[str] = Counter()
    with opened(url) as store:
        someone = Someone(store, me, sessions)
        ready()
        for _ in range(steps):
            name = someone.random.choices(THINGS_TO_DO, weights=[WEIGHTS.get(n, 2) for n in THINGS_TO_DO])[0]
            try:
                getattr(someone, name)()
                counted[name] += 1
            except EXPECTED:
                pass
    return counted


#: what needs an open turn, or an open session of one's own, is tried more often: mostly there is none
WEIGHTS = {
    "enqueue": 12, "run_turn": 8, "cancel": 8, "finalize": 6, "remove": 4, "fork": 3, "join": 1, "clean_up": 1,
    "new": 1,
}  # fmt: skip

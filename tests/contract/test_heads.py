import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from holdfast.clock import after
from holdfast.domain.decisions import Resume
from holdfast.domain.failures import FailureClass
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import Old, Session
from holdfast.domain.turns import Launch, Lease, TurnEnd, TurnStatus
from holdfast.domain.usage import NO_USAGE
from holdfast.errors import HoldfastError, LeaseLost, NeedsApproval, Refused, StoreError
from holdfast.store.contract import Store
from holdfast.store.sql import claims, heads
from holdfast.store.sql.heads import QueueMemory
from holdfast.store.sql_store import SqlStore
from tests.builders import (
    a_claim,
    a_codex_runtime,
    a_process,
    a_provider_session_id,
    a_runtime,
    a_session_id,
    a_turn,
    an_answer,
    an_approval,
    an_event,
    deferred,
    done,
    failed,
)
from tests.clock import ManualClock
from tests.contract.conftest import driver_of
from tests.contract.heads import check_heads, dump, watch
from tests.contract.test_leases import GONE, LOSSES, WRITES
from tests.steps import WIDER, begin, claim, enqueue, join, point_to, run

STEPS = 150
COUNT = "SELECT COUNT(*) FROM sessions WHERE"


class Walk:
    """A store that is asked for anything, in any order; it may say no."""

    def __init__(self, store: Store, clock: ManualClock, seed: int) -> None:
        self.store = store
        self.clock = clock
        self.random = random.Random(seed)
        self.leases: list[Lease] = []
        self.trail: list[str] = []
        first = begin(store)
        self.sessions = [first, join(store, first, "reviewer"), begin(store), begin(store)]
        shared = a_provider_session_id()
        for session in self.sessions[2:]:
            point_to(store, session, shared)
        store.register_runtime(a_codex_runtime())

    def step(self) -> None:
        name, verb = self.random.choice(VERBS)
        self.trail.append(name)
        try:
            verb(self)
        except HoldfastError as error:
            if isinstance(error, StoreError):  # to refuse is fine, to break is not
                error.add_note(f"after {', '.join(self.trail[-12:])}")
                raise
            self.trail[-1] += f" ({error.code})"

    # --- what a step may be about ---

    def session(self) -> Session:
        return self.random.choice(self.sessions)

    def seq(self, session: Session) -> int:
        turns = self.store.turns(session.id)
        return self.random.choice(turns).seq if turns else 1

    def lease(self) -> Lease:
        """A live one as a rule, sometimes one that was lost long ago."""
        if not self.leases:
            session = begin(self.store)
            enqueue(self.store, session, "go")
            self.leases.append(claim(self.store, session, lease_seconds=10.0).lease)
        return self.random.choice(self.leases[-3:] if self.random.random() < 0.9 else self.leases)

    # --- steps ---

    def enqueue(self) -> None:
        later = self.random.random() < 0.3
        codex = self.random.random() < 0.2
        enqueue(
            self.store,
            self.session(),
            "go",
            provider="codex" if codex else "claude",
            runtime_id=a_codex_runtime().id if codex and self.random.random() < 0.5 else None,
            priority=self.random.randrange(3),
            not_before=after(self.clock(), self.random.randrange(20)) if later else None,
            foreground=self.random.random() < 0.2,
            max_attempts=self.random.randrange(1, 4),
            request=WIDER if self.random.random() < 0.1 else a_turn().request,
        )

    def claim(self) -> None:
        runtime = self.random.choice([a_runtime(), a_runtime(machine="build-8"), a_codex_runtime()])
        claimed = self.store.claim_turn(a_claim(runtime=runtime, lease_seconds=10.0))
        if claimed is not None:
            self.leases.append(claimed.lease)

    def start(self) -> None:
        started = self.store.start_turn(self.session().id, a_turn(foreground=True), a_claim())
        if hasattr(started, "lease"):
            self.leases.append(started.lease)

    def launch(self) -> None:
        lease = self.lease()
        decision = self.store.explain(lease.session_id, "claude", a_turn().request, a_runtime())
        minted = None if isinstance(decision, Resume) else a_provider_session_id()
        self.store.launch(lease, Launch(decision, a_process(), provider_session_id=minted))

    def finish(self) -> None:
        retry_at = after(self.clock(), self.random.randrange(10)) if self.random.random() < 0.5 else None
        failure_class = self.random.choice(list(FailureClass))
        end = self.random.choice(
            [done(), TurnEnd(TurnStatus.CANCELLED), failed(failure_class, retry_at=retry_at), deferred()]
        )
        self.store.finish_turn(self.lease(), end)

    def ask(self) -> None:
        self.store.request_approval(self.session().id, an_approval())

    def answer(self) -> None:
        asked = self.store.approvals()
        if asked:
            approval = self.random.choice(asked)
            self.store.answer_approval(approval.id, an_answer(approval, self.random.random() < 0.5))

    def fall_back(self) -> None:
        self.leases.append(self.store.fall_back(self.lease(), GONE, a_claim().key).lease)

    def put_back(self) -> None:
        later = after(self.clock(), 5) if self.random.random() < 0.5 else None
        self.store.put_back(self.lease(), later)

    def recover(self) -> None:
        for orphan in self.store.orphans():
            self.store.recover(orphan)

    def fork(self) -> None:
        self.sessions.append(self.store.fork(self.session().id, a_session_id()))

    def close(self) -> None:
        session = self.session()
        self.store.finalize_session(session.id, Phase.COMPLETED, None)
        self.sessions.remove(session)
        self.sessions.append(begin(self.store))

    def cancel(self) -> None:
        session = self.session()
        self.store.cancel_turn(session.id, self.seq(session))

    def retry(self) -> None:
        session = self.session()
        self.store.retry_turn(session.id, self.seq(session))

    def edit(self) -> None:
        session = self.session()
        self.store.edit_turn(session.id, self.seq(session), prompt="something else")

    def truncate(self) -> None:
        session = self.session()
        self.store.truncate(session.id, max(0, self.seq(session) - 1))


VERBS: list[tuple[str, Callable[[Walk], object]]] = [
    *[("enqueue", Walk.enqueue)] * 4,
    *[("claim", Walk.claim)] * 4,
    *[("finish", Walk.finish)] * 3,
    *[("answer", Walk.answer)] * 2,
    ("ask", Walk.ask),
    ("start", Walk.start),
    ("launch", Walk.launch),
    ("pin", lambda walk: walk.store.pin(walk.lease(), a_provider_session_id())),
    ("heartbeat", lambda walk: walk.store.heartbeat(walk.lease(), 10)),
    ("events", lambda walk: walk.store.record_events(walk.lease(), [an_event()])),
    *[("fall back", Walk.fall_back)] * 2,
    ("put back", Walk.put_back),
    ("recover", Walk.recover),
    ("cancel", Walk.cancel),
    ("retry", Walk.retry),
    ("edit", Walk.edit),
    ("truncate", Walk.truncate),
    ("new generation", lambda walk: walk.store.new_generation(walk.session().id)),
    ("record", lambda walk: walk.store.record_turn(walk.session().id, a_turn(), "done", NO_USAGE)),
    ("fork", Walk.fork),
    ("close", Walk.close),
    ("time passes", lambda walk: walk.clock.advance(walk.random.randrange(1, 8))),
    ("clean up", lambda walk: walk.store.clean_up(Old(after(walk.clock(), -60)))),
]


@pytest.mark.parametrize("seed", range(6))
def test_the_head_of_every_session_is_right_after_every_verb(
    store: Store, clock: ManualClock, seed: int
) -> None:
    walk = Walk(store, clock, seed)
    for _ in range(STEPS):
        walk.step()
        try:
            check_heads(driver_of(store))
        except AssertionError as error:
            error.add_note(f"after {', '.join(walk.trail[-12:])}")
            raise


@pytest.mark.parametrize("url", ["sqlite-memory", "sqlite-file"], indirect=True)
@pytest.mark.parametrize("seed", range(8))
def test_a_look_finds_nothing_only_where_a_claim_would_get_nothing_and_change_nothing(
    store: Store, clock: ManualClock, seed: int
) -> None:
    assert isinstance(store, SqlStore)
    walk = Walk(store, clock, seed)
    any_of = walk.random.choice
    times = QueueMemory()  # at which it was looked: what a claim would know of the clock
    keys = ["never used"]
    found = Counter[bool]()
    for _ in range(STEPS):
        walk.step()
        if walk.random.random() < 0.05:
            clock.advance(-7200)
        asked = a_claim(
            runtime=any_of([a_runtime(), a_runtime(machine="build-8"), a_codex_runtime()]),
            affinity_seconds=any_of([None, 0.0, 3.0]),
            session_id=any_of([None, None, None, walk.session().id]),
            lease_seconds=10.0,
        )
        keys.append(asked.key)
        asked = replace(asked, key=any_of(keys[-6:]))
        finds_nothing = store._finds_nothing(asked)
        found[finds_nothing] += 1
        if finds_nothing:
            before = dump(store)
            assert store._write(claims.claim, asked, times) is None, walk.trail[-12:]
            assert dump(store) == before, walk.trail[-12:]
            continue
        times.set_clock(store.workspace, asked.runtime.provider, clock())
        with suppress(NeedsApproval, Refused):
            claimed = store.claim_turn(asked)
            if claimed is not None and claimed.lease not in walk.leases:
                walk.leases.append(claimed.lease)
    assert min(found[True], found[False]) > STEPS / 10, "otherwise this shows nothing"


@pytest.mark.parametrize("url", ["sqlite-memory"], indirect=True)
def test_a_long_walk_is_told_yes_at_least_once_by_every_verb(store: Store, clock: ManualClock) -> None:
    walk = Walk(store, clock, seed=0)
    for _ in range(10 * STEPS):
        walk.step()

    assert {name for name, _ in VERBS} <= set(walk.trail)


def test_what_is_watched_is_noticed(store: Store) -> None:
    session = begin(store)
    enqueue(store, session, "go")
    watch(store)
    with pytest.raises(AssertionError), driver_of(store).write() as tx:
        tx.run("UPDATE sessions SET ready_at = NULL", {})


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("write", WRITES)
def test_whoever_lost_the_lease_leaves_no_trace_but_its_late_report(
    store: Store, clock: ManualClock, write: str, loss: str
) -> None:
    session = begin(store)
    run(store, session)
    enqueue(store, session, "long")
    lease = claim(store, session).lease
    store.launch(lease, Launch(claim_decision(store, session), a_process()))
    LOSSES[loss](store, clock, lease)
    clock.advance(1)
    kept = "late_reports" if write == "finish_turn" else ""
    before = dump(store, without=kept)

    with pytest.raises(LeaseLost):
        WRITES[write](store, lease)

    assert dump(store, without=kept) == before


def claim_decision(store: Store, session: Session) -> Resume:
    decision = store.explain(session.id, "claude", a_turn().request, a_runtime())
    assert isinstance(decision, Resume)
    return decision


def test_one_claim_looks_at_a_bounded_number_of_heads(store: Store) -> None:
    shared, holder = a_provider_session_id(), begin(store)
    point_to(store, holder, shared)
    enqueue(store, holder, "holds the provider session")
    claim(store, holder)
    for _ in range(heads.MAX_CANDIDATES + 5):
        waiting = begin(store)
        point_to(store, waiting, shared)
        enqueue(store, waiting, "must wait", priority=9)
    free = begin(store)
    enqueue(store, free, "may run")

    assert store.claim_turn(a_claim()) is None
    with driver_of(store).read() as tx:
        (looked_at,) = tx.one(f"{COUNT} ready_at IS NULL AND wake_at IS NOT NULL", {}) or (0,)
    assert looked_at == heads.MAX_CANDIDATES
    assert claim(store, free).turn.prompt == "may run"

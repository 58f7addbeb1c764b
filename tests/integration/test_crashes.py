"""A kill -9 at any moment of a turn's life loses nothing that was answered and does nothing twice.

Each path is walked once undisturbed, to count its write transactions. Then it is walked again and again by
processes that are killed: right after a BEGIN, right before its COMMIT, and after the COMMIT but before the
caller has the answer. Whoever comes next must always arrive where the undisturbed walk arrived.
"""

import inspect
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Any, Protocol, cast

import pytest

from holdfast.domain.decisions import Resume
from holdfast.domain.events import Event, EventKind
from holdfast.domain.ids import ProviderSessionId, Workspace
from holdfast.domain.policy import Policy, VaultPolicy
from holdfast.domain.sessions import SessionFilter
from holdfast.domain.turns import Claim, ClaimRequest, Launch, TurnEnd, TurnStatus
from holdfast.engine.vault import Vault
from holdfast.store.contract import Store
from holdfast.store.open import open_store
from holdfast.store.sql_store import SqlStore
from tests import processes
from tests.builders import a_runtime
from tests.clock import NOON, ManualClock
from tests.consistency import assert_consistent
from tests.integration import mortal
from tests.integration.crash_path import KEPT, LEASE_SECONDS, MAIN, PATHS, USED, Step, Walk, answer, deferred
from tests.integration.mortal import Killed, MortalDriver, Place, kill_everywhere

STILL_SERVED = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = :name"""


class Ground(Protocol):
    """An engine: where walks can be made, and the stores of those who come next."""

    clock: ManualClock

    def place(self, name: str) -> Place: ...

    def store(self, place: Place) -> AbstractContextManager[SqlStore]: ...


class SqliteGround:
    """A file for each walk."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self._folder = folder
        self._template = folder / "template.db"
        open_store(f"sqlite:///{self._template}").close()

    def place(self, name: str) -> Place:
        return mortal.a_new_file(self._template, self._folder / f"{name}.db")

    def store(self, place: Place) -> AbstractContextManager[SqlStore]:
        return closing(place.open(self.clock))


class PostgresGround:
    """A workspace for each walk; those who come next share one driver."""

    def __init__(self, url: str) -> None:
        self.clock = ManualClock()
        self._url = url
        self._driver = Place(url, "next").open(self.clock)._driver

    def place(self, name: str) -> Place:
        return mortal.a_new_workspace(self._url, name)

    def store(self, place: Place) -> AbstractContextManager[SqlStore]:
        """The server notices a client's death a moment later, and only then gives up its locks."""
        deadline = time.monotonic() + processes.LIMIT_SECONDS
        while self._serves(place):
            assert time.monotonic() < deadline, "the server still serves a killed process"
            time.sleep(0.001)
        return nullcontext(SqlStore(self._driver, Workspace(place.workspace), Policy()))

    def _serves(self, place: Place) -> bool:
        with self._driver.read() as tx:
            return tx.one(STILL_SERVED, {"name": place.workspace}) != (0,)

    def close(self) -> None:
        self._driver.close()


@pytest.fixture(params=["sqlite", "postgres"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    if request.param == "sqlite":
        yield SqliteGround(tmp_path)
    else:
        with closing(PostgresGround(request.getfixturevalue("postgres_url"))) as ground:
            yield ground


# --- those who come next ------------------------------------------------------------------------------------


def same_worker_goes_on(walk: Walk, killed: Killed, path: list[Step]) -> None:
    """Started again by its supervisor, it knows its leases and repeats the call that was not answered."""
    path[killed.answered].repeat(walk)
    for step in path[killed.answered + 1 :]:
        step.act(walk)


def another_worker_takes_over(walk: Walk, killed: Killed, path: list[Step]) -> None:
    """It knows nothing: it recovers what was left behind and runs what is in the queue."""
    interrupted = path[killed.answered]
    for step in path[killed.answered :]:
        if step.by_worker:
            serve(walk)
        elif step is interrupted:
            step.repeat(walk)
        else:
            step.act(walk)


def serve(walk: Walk) -> None:
    walk.clock.advance(LEASE_SECONDS)
    for orphan in walk.store.orphans():
        walk.store.recover(orphan)
    while claimed := walk.store.claim_turn(
        ClaimRequest(a_runtime(), "next", os.urandom(8).hex(), LEASE_SECONDS)
    ):
        run(walk.store, claimed)


def run(store: Store, claimed: Claim) -> None:
    decision, lease = claimed.decision, claimed.lease
    new_id = ProviderSessionId(f"{store.workspace}-ps-{lease.conversation_id}-{lease.fence}")
    chosen = None if isinstance(decision, Resume) else new_id
    store.launch(lease, Launch(decision, provider_session_id=chosen, work_dir="/srv/infra"))
    store.record_events(lease, [Event(n, EventKind.TEXT, {"text": f"event {n}"}, NOON) for n in range(1, 5)])
    used = decision.provider_session_id if isinstance(decision, Resume) else new_id
    if claimed.turn.prompt == "ask first" and not store.approvals(open_only=False):
        store.finish_turn(lease, deferred(used))
        return
    end = TurnEnd(TurnStatus.DONE, answer(claimed.turn.prompt), provider_session_id=used, usage=USED)
    store.finish_turn(lease, end)


# --- what must be true afterwards ---------------------------------------------------------------------------


def outcome(store: Store) -> dict[str, Any]:
    """What people see of the work, without who did it and when."""
    seen: dict[str, Any] = {"vault": kept_files(store), "loose": store.vault_figures().loose_chunks}
    for session in store.list_sessions(SessionFilter(), 100).sessions:
        history = store.history(session.conversation_id)
        own = store.turns(session.id)
        seen[session.id] = {
            "session": (session.phase, session.name, session.metadata, session.summary, session.usage),
            "errors": session.error_count,
            "phases": [(change.from_phase, change.to_phase) for change in store.phase_history(session.id)],
            "history": [(turn.seq, turn.status, turn.prompt, turn.response) for turn in history],
            "turns": [(turn.seq, turn.status, turn.retry_of, turn.dropped is not None) for turn in own],
            "approvals": [
                (asked.id, asked.seq, asked.status, asked.used_at is not None)
                for asked in store.approvals(session_id=session.id, open_only=False)
            ],
            "children": [child.id for child in store.children(session.id)],
            "pointers": sorted(pointer.provider for pointer in store.pointers(session.id)),
        }
    return seen


def kept_files(store: Store) -> list[dict[str, bytes]]:
    vault = Vault(store, VaultPolicy())
    return [
        {file.name: b"".join(vault.read(bundle, file)) for file in bundle.files}
        for bundle in store.bundles("claude", KEPT)
    ]


def check_events(store: Store, killed: Killed, path: list[Step]) -> None:
    """Each event is there once and in its place; and none is missing that was answered for."""
    answered = 2 * sum(step.name.startswith("events") for step in path[: killed.answered])
    for turn in store.turns(MAIN):
        found: dict[int, list[int]] = {}
        for attempt, event in store.events(turn.conversation_id, turn.seq):
            assert event.data == {"text": f"event {event.number}"}
            found.setdefault(attempt, []).append(event.number)
        for numbers in found.values():
            assert numbers == list(range(1, len(numbers) + 1))
        if turn.seq == 1:
            assert sum(map(len, found.values())) >= answered


def undisturbed(ground: Ground, path: list[Step]) -> tuple[list[Step], dict[str, Any]]:
    """For each point at which a process can be killed the step that it interrupts; what the path leads to."""
    with ground.store(ground.place("undisturbed")) as store:
        driver = store._driver
        counting = MortalDriver(driver)
        store._driver = counting
        walk, points = Walk(store, ground.clock), list[Step]()
        for step in path:
            before = counting.points
            step.act(walk)
            points += [step] * (counting.points - before)
        store._driver = driver
        assert_consistent(store)
        return points, outcome(store)


@pytest.mark.parametrize("go_on", [same_worker_goes_on, another_worker_takes_over])
@pytest.mark.parametrize("path", PATHS)
def test_a_kill_at_any_point_loses_nothing_and_repeats_nothing(
    ground: Ground, path: str, go_on: Callable[[Walk, Killed, list[Step]], None]
) -> None:
    steps = PATHS[path]
    points, expected = undisturbed(ground, steps)
    places = [ground.place(f"killed-{fatal}") for fatal in range(len(points))]
    for killed, interrupted, place in zip(kill_everywhere(path, places), points, places, strict=True):
        assert steps[killed.answered] is interrupted
        ground.clock.now = killed.now
        ground.clock.advance(2 * LEASE_SECONDS)
        with ground.store(place) as store:
            go_on(Walk(store, ground.clock, dict(killed.claims)), killed, steps)
            assert outcome(store) == expected, f"killed in {interrupted.name} of {place.workspace}"
            check_events(store, killed, steps)
            assert store.orphans() == ()
            if isinstance(ground, SqliteGround) or place is places[-1]:
                assert_consistent(store)


class Recording:
    """A store that remembers which of its verbs were called."""

    def __init__(self, store: Store, called: set[str]) -> None:
        self._store = store
        self._called = called

    def __getattr__(self, name: str) -> Any:
        self._called.add(name)
        return getattr(self._store, name)


def test_the_paths_have_every_verb_that_writes() -> None:
    verbs = {name: verb for name, verb in vars(SqlStore).items() if inspect.isfunction(verb)}
    writing = {name for name, verb in verbs.items() if "_write" in verb.__code__.co_names}
    called: set[str] = set()
    for path in PATHS.values():
        clock = ManualClock()
        with closing(open_store("sqlite:///:memory:", clock=clock)) as store:
            walk = Walk(cast("Store", Recording(store, called)), clock)
            for step in path:
                step.act(walk)
    assert len(writing) > 20
    assert writing - called == set()

"""SQLite keeps whatever it is given in any column: whatever lies in one, every verb answers or says what is wrong."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import click
import pytest

from holdfast.cli.group import cli
from holdfast.domain.decisions import Resume
from holdfast.domain.ids import ApprovalId, ProviderSessionId, SessionId
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import NewSession, Old, SessionFilter, SessionUpdate
from holdfast.domain.turns import Launch, TurnEnd, TurnStatus
from holdfast.engine.holdfast import Holdfast
from holdfast.errors import HoldfastError, LeaseLost, NotFound, StoreCorrupt, UnreadableSession
from holdfast.store.contract import Store
from holdfast.store.open import open_store
from tests.builders import a_claim, a_process, a_runtime, a_turn, an_approval, an_event
from tests.clock import ManualClock
from tests.integration.sqlite_file import driver_of
from tests.migrations.rich_store import fill
from tests.steps import defer

HEALTHY = SessionId("agent-20260108-150000-4ea17472")
VICTIM = SessionId("agent-20260108-150001-71c71300")
FORK = SessionId("agent-20260108-150002-f0420000")
WAITING = SessionId("agent-20260108-150003-3a171400")
ASKED = ApprovalId("apr-20260108-150000-a54ed000")
ELSEWHERE = a_runtime(machine="build-9")

#: what tells the rows of the healthy session from the others
OWNER = {
    "conversations": ("id", "conv-20260108-150000-4ea17472"),
    "sessions": ("id", HEALTHY),
    "phase_changes": ("session_id", HEALTHY),
    "runtimes": ("id", ELSEWHERE.id),
    "turns": ("session_id", HEALTHY),
    "messages": ("conversation_id", "conv-20260108-150000-4ea17472"),
    "history_changes": ("conversation_id", "conv-20260108-150000-4ea17472"),
    "attempts": ("session_id", HEALTHY),
    "events": ("conversation_id", "conv-20260108-150000-4ea17472"),
    "pointers": ("session_id", HEALTHY),
    "provider_sessions": ("session_id", HEALTHY),
    "late_reports": ("conversation_id", "conv-20260108-150000-4ea17472"),
    "approvals": ("session_id", HEALTHY),
}
ANYWHERE = {"a word": "'x'", "bytes": "x'00ff'", "nothing": "NULL"}
IN_NUMBERS = {"a negative number": "-1", "zero": "0", "a number too large": str(2**62)}
IN_TEXTS = {"no UTF-8": "CAST(x'c3ff' AS TEXT)"}
IN_JSON = {"broken JSON": """'{"a": ['""", "other JSON": "'[7]'"}
JSON = {
    "answerers",
    "arguments",
    "capabilities",
    "data",
    "evidence",
    "metadata",
    "process",
    "report",
    "request",
    "rights",
    "transcript",
}
NOT_JUDGED = tuple(f"pointers.{column}:" for column in ("workspace", "session_id", "provider", "runtime_id"))

Verb = Callable[[], object]


class Kept(Holdfast):
    """Stays open when a command has ended."""

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def pristine() -> Iterator[sqlite3.Connection]:
    """Two sessions with a turn that waits, the one to be damaged first, amid everything there can be."""
    clock = ManualClock()
    store = open_store("sqlite:///:memory:", clock=clock)
    fill(store, clock)
    _victim(store)
    store.create_session(NewSession(HEALTHY, "healthy", provider="claude"))
    store.update_session(HEALTHY, SessionUpdate(phase=Phase.INVESTIGATING))
    store.enqueue_turn(HEALTHY, a_turn())
    store.register_runtime(ELSEWHERE)
    kept = sqlite3.connect(":memory:", isolation_level=None)
    with driver_of(store).raw() as connection:
        connection.backup(kept)
    store.close()
    yield kept
    kept.close()


def _victim(store: Store) -> None:
    """A session that would be resumed: with a pointer, a running record, a fork, and the next turn waiting."""
    store.create_session(NewSession(VICTIM, "victim", metadata={"a": 1}, name="victim", provider="claude"))
    store.update_session(VICTIM, SessionUpdate(phase=Phase.INVESTIGATING, error="once"))
    store.enqueue_turn(VICTIM, a_turn())
    claim = store.claim_turn(a_claim(session_id=VICTIM))
    assert claim is not None
    mine = ProviderSessionId("5b1c2d3e-0000-4000-8000-00000071c713")
    store.launch(claim.lease, Launch(claim.decision, a_process(), mine))
    store.record_events(claim.lease, [an_event()])
    store.finish_turn(claim.lease, TurnEnd(TurnStatus.DONE, "planned", provider_session_id=mine))
    with pytest.raises(LeaseLost):
        store.finish_turn(claim.lease, TurnEnd(TurnStatus.FAILED))
    store.fork(VICTIM, FORK)
    store.request_approval(VICTIM, an_approval(id=ASKED))
    store.enqueue_turn(VICTIM, a_turn("go on", priority=9))
    once = store.claim_turn(a_claim(session_id=VICTIM))
    assert once is not None
    store.put_back(once.lease)
    store.create_session(NewSession(WAITING, "waiting", provider="claude"))
    defer(store, store.get_session(WAITING))


@pytest.fixture
def store(pristine: sqlite3.Connection) -> Iterator[Store]:
    opened = open_store("sqlite:///:memory:", clock=ManualClock())
    yield opened
    opened.close()


def damaged(store: Store, pristine: sqlite3.Connection, table: str) -> Iterator[str]:
    """The store as it was, with one kind of garbage in one column of all sessions but the healthy one."""
    columns = [row[1:3] for row in pristine.execute(f"PRAGMA table_info({table})")]
    owner, healthy = OWNER[table]
    for column, declared in columns:
        fitting = IN_TEXTS if declared == "TEXT" else IN_NUMBERS
        for kind, value in (ANYWHERE | fitting | (IN_JSON if column in JSON else {})).items():
            with driver_of(store).raw() as connection:
                pristine.backup(connection)
                connection.execute("PRAGMA foreign_keys = OFF")
                sql = f"UPDATE OR IGNORE {table} SET {column} = {value} WHERE {owner} != ?"
                changed = connection.execute(sql, (healthy,)).rowcount
                connection.execute("PRAGMA foreign_keys = ON")
            if changed:
                yield f"{table}.{column}: {kind}"


def reading_verbs(holdfast: Holdfast, session_id: SessionId) -> dict[str, Verb]:
    store = holdfast.store
    conversation_id = str(session_id).replace("agent-", "conv-")
    return {
        "get": lambda: holdfast.get_session(session_id),
        "find": lambda: holdfast.find("victim"),
        "find a beginning": lambda: holdfast.find(session_id[:-2]),
        "why": lambda: holdfast.why(session_id),
        "decide": lambda: holdfast.decide(session_id, runtime=a_runtime()),
        "tree": lambda: holdfast.tree(session_id),
        "history": lambda: holdfast.history(session_id),
        "turns": lambda: store.turns(session_id),
        "newest turns": lambda: store.newest_turns(session_id, 10),
        "head turn": lambda: store.head_turn(session_id),
        "turn": lambda: store.get_turn(conversation_id, 1),
        "attempts": lambda: store.attempts(conversation_id, 1),
        "newest attempt": lambda: store.newest_attempt(session_id),
        "events": lambda: store.events(conversation_id, 1),
        "late reports": lambda: store.late_reports(conversation_id),
        "pointers": lambda: store.pointers(session_id),
        "provider sessions": lambda: store.provider_sessions(session_id),
        "phases": lambda: store.phase_history(session_id),
        "children": lambda: store.children(session_id),
        "approvals": lambda: store.approvals(session_id=session_id, open_only=False),
        "find an approval": lambda: store.find_approval(ASKED[:-2]),
        "find the approval of a session": lambda: store.find_approval(session_id),
        "approval": lambda: store.get_approval(ASKED),
    }


def writing_verbs(holdfast: Holdfast, session_id: SessionId) -> dict[str, Verb]:
    pinned = Launch(holdfast.decide(HEALTHY))
    return {
        "update": lambda: holdfast.update(session_id, phase="planning", metadata={"b": 2}),
        "answer": lambda: holdfast.approve(ASKED),
        "claim what waits": lambda: holdfast.store.claim_turn(a_claim(session_id=WAITING)),
        "answer what is waited for": lambda: holdfast.approve(WAITING),
        "claim what was answered": lambda: holdfast.store.claim_turn(a_claim(session_id=WAITING)),
        "claim": lambda: _run(holdfast.store, session_id, pinned),
        "fork": lambda: holdfast.fork(session_id),
        "edit": lambda: holdfast.edit(session_id, 1, prompt="again"),
        "retry": lambda: holdfast.retry(session_id, 1),
        "cancel": lambda: holdfast.cancel(session_id, 2),
        "enqueue": lambda: holdfast.enqueue(session_id, "more"),
        "record": lambda: holdfast.record(session_id, "by hand", "done"),
        "truncate": lambda: holdfast.truncate(session_id, 0),
        "new": lambda: holdfast.new(session_id),
        "rename": lambda: holdfast.rename(session_id, "another"),
        "finalize": lambda: holdfast.finalize(session_id, "completed"),
        "remove": lambda: holdfast.remove(session_id),
    }


def _run(store: Store, session_id: SessionId, launch: Launch) -> None:
    claim = store.claim_turn(a_claim(session_id=session_id))
    if claim is not None:
        store.launch(claim.lease, launch)
        store.heartbeat(claim.lease, 60)
        store.finish_turn(claim.lease, TurnEnd(TurnStatus.DONE, "done"))


#: a prime, so that every kind of garbage meets them in some column
COMMANDS_EVERY = 7
COMMANDS = [
    "list", "list --json --limit 1", "get {}", "show {}", "show {} --json", "why {}", "why {} --json",
    "tree {}", "tree {} --json", "should-resume {}", "update {} --phase planning", "fork {} --json",
    "edit {} 1 --prompt x --json", "retry {} 1 --json", "truncate {} 1 --json", "new {} --json",
    "rename {} other --json", "cleanup --hours 0", "rm {} --yes",
]  # fmt: skip


def command(line: str) -> None:
    try:
        with cli.make_context("holdfast", line.split()) as context:
            cli.invoke(context)
    except click.exceptions.Exit:
        pass


def complaint(name: str, verb: Verb) -> str | None:
    """What a verb did that it must not: it may answer, or raise an error of ours."""
    try:
        verb()
    except HoldfastError as error:
        return None if str(error) else f"{name}: no message"
    except Exception as error:  # noqa: BLE001 - that is the question
        return f"{name}: {type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("table", OWNER)
def test_no_garbage_in_any_column_breaks_a_verb(
    store: Store, pristine: sqlite3.Connection, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    holdfast = Kept(store)
    monkeypatch.setattr("holdfast.engine.default.open_with", lambda *_: holdfast)
    complaints: list[str] = []
    for number, what in enumerate(damaged(store, pristine, table)):
        verbs: dict[str, Verb] = {
            "runtimes": store.runtimes,
            "orphans": store.orphans,
            **reading_verbs(holdfast, VICTIM),
            **{f"healthy {name}": verb for name, verb in reading_verbs(holdfast, HEALTHY).items()},
            **writing_verbs(holdfast, VICTIM),
            "cleanup": lambda: holdfast.cleanup(0),
        }
        if number % COMMANDS_EVERY == 0:
            verbs = {line: partial(command, line.format(VICTIM)) for line in COMMANDS}
        found = [complaint(name, verb) for name, verb in verbs.items()]
        complaints += [f"{what}: {said}" for said in found if said]
    assert complaints == []


@pytest.mark.parametrize("table", OWNER)
def test_no_garbage_holds_up_the_other_sessions(
    store: Store, pristine: sqlite3.Connection, table: str
) -> None:
    for what in damaged(store, pristine, table):
        listed = {session.id for session in Holdfast(store).sessions(SessionFilter())}
        assert HEALTHY in listed, what
        assert Holdfast(store).should_resume(HEALTHY), what
        Holdfast(store).why(HEALTHY)
        claims = [store.claim_turn(a_claim(runtime=ELSEWHERE)) for _ in range(4)]
        assert HEALTHY in {claim.turn.session_id for claim in claims if claim}, what
        store.orphans()
        store.clean_up(Old(ManualClock().advance(10)))


def test_a_damaged_pointer_is_never_resumed(store: Store, pristine: sqlite3.Connection) -> None:
    with driver_of(store).raw() as connection:
        pristine.backup(connection)
    assert isinstance(store.explain(VICTIM, "claude", runtime=a_runtime()), Resume)
    for what in damaged(store, pristine, "pointers"):
        # without its key there is no pointer, and without its runtime the newest attempt speaks for itself
        if what.endswith(("bytes", "no UTF-8")) and not what.startswith(NOT_JUDGED):
            with suppress(StoreCorrupt):
                decision = store.explain(VICTIM, "claude", runtime=a_runtime())
                assert not isinstance(decision, Resume), what


def test_a_session_without_its_conversation_is_named(store: Store, pristine: sqlite3.Connection) -> None:
    with driver_of(store).raw() as connection:
        pristine.backup(connection)
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("UPDATE sessions SET conversation_id = 'conv-none' WHERE id = ?", (VICTIM,))
    for verb in (store.remove_session, store.new_generation):
        with pytest.raises(UnreadableSession, match="conv-none is not there"):
            verb(VICTIM)
    with pytest.raises(NotFound):
        store.new_generation("agent-20260108-150009-00000000")

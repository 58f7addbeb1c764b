"""Owns what Holdfast says about a session: how it would continue and why, its family of forks, what runs, how far its work has come."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from enum import StrEnum

from holdfast.clock import Instant, seconds_between
from holdfast.domain.approvals import Approval
from holdfast.domain.decisions import Decision, DecisionKind
from holdfast.domain.events import Event, EventKind, call_words
from holdfast.domain.ids import RuntimeId
from holdfast.domain.phases import MayContinue, Phase
from holdfast.domain.records import record
from holdfast.domain.runtimes import KnownRuntime, Runtime
from holdfast.domain.sessions import Session, SessionPage, SessionState
from holdfast.domain.turns import Attempt, Turn, TurnStatus
from holdfast.domain.usage import Usage
from holdfast.engine.past import newest_turn
from holdfast.errors import NotFound, StoreCorrupt, UnreadableSession
from holdfast.store.contract import Store


@record
class WaitingTurn:
    """The turn at the head of a session's queue, and what it waits for besides a worker."""

    turn: Turn
    until: Instant | None  #: the time before which it may not start; None: it may start now
    runtime: KnownRuntime | None  #: the only runtime that may run it; None: any


@record
class Explanation:
    session: Session
    may_continue: MayContinue
    provider: str
    decision: Decision  #: what a claim on ``runtime`` would decide now
    runtime: Runtime | None  #: where the session ran last, if that is known
    last_attempt: Attempt | None
    last_turn: Turn | None = None  #: the turn of the last attempt
    waiting: WaitingTurn | None = None  #: the turn at the head of the queue, if it waits
    waits_for: Approval | None = None  #: no turn of the session runs until somebody has answered it
    is_cut_off: bool = False  #: the last attempt is open, and its worker is gone


@record
class Tree:
    """A session and everything that was forked from it."""

    session: Session
    children: tuple[Tree, ...]

    @classmethod
    def of(cls, store: Store, session_id: str) -> Tree:
        """The whole family of a session, from its oldest ancestor that still exists."""
        root = store.get_session(session_id)
        seen = {root.id}
        while root.parent_session_id is not None:
            if root.parent_session_id in seen:
                problem = f"sessions: {root.parent_session_id} is its own ancestor"
                raise StoreCorrupt(store.where, problem, table="sessions", session_id=root.id)
            seen.add(root.parent_session_id)
            try:
                root = store.get_session(root.parent_session_id)
            except (NotFound, UnreadableSession):
                break
        return cls._below(store, root)

    @classmethod
    def _below(cls, store: Store, root: Session) -> Tree:
        """Without recursion: a chain of forks may be longer than Python's stack."""
        family = [root]
        children: dict[str, tuple[Session, ...]] = {}
        for session in family:  # grows while it is walked, parents before their children
            children[session.id] = store.children(session.id)
            family += children[session.id]
        trees: dict[str, Tree] = {}
        for session in reversed(family):
            trees[session.id] = cls(session, tuple(trees[child.id] for child in children[session.id]))
        return trees[root.id]


def explain(store: Store, session: Session, provider: str, may: MayContinue) -> Explanation:
    """How a session would continue on the runtime where it ran before, and what its last attempt was."""
    pointer = store.pointer(session.id, provider)
    last = store.newest_attempt(session.id)
    ran = pointer if pointer is not None or last is None or last.provider != provider else last
    recorded = None if ran is None else ran.runtime_id
    known = {one.id: one for one in store.runtimes()}
    runtime = known[recorded].runtime if recorded in known else None
    asked = store.approvals(session_id=session.id)
    return Explanation(
        session=session,
        may_continue=may,
        provider=provider,
        decision=store.explain(session.id, provider, runtime=runtime),
        runtime=runtime,
        last_attempt=last,
        last_turn=None if last is None else store.get_turn(last.conversation_id, last.seq),
        waiting=waiting_turn(store, session.id, known),
        waits_for=next((approval for approval in asked if approval.seq is not None), None),
    )


def waiting_turn(
    store: Store, session_id: str, known: Mapping[RuntimeId, KnownRuntime]
) -> WaitingTurn | None:
    """The next turn of a session, if it waits in the queue. ``known`` are all runtimes by their ids."""
    head = store.head_turn(session_id)
    if head is None or head.status is not TurnStatus.QUEUED:
        return None
    is_early = head.not_before is not None and head.not_before > store.now()
    runtime = None if head.runtime_id is None else known.get(head.runtime_id)
    return WaitingTurn(head, head.not_before if is_early else None, runtime)


# --- what runs now ---

_EVENTS = 50  #: the newest, among which the last tool call is looked for


@record
class RunningTurn:
    """A session in which something runs: a turn, or a subagent that a hook has announced."""

    session: Session
    state: SessionState
    provider: str | None
    turn: int | None  #: None: the agent's own program runs the turns, for a person or as a subagent
    attempt: int | None
    started_at: Instant
    seconds: float
    last_tool: str | None  #: the last call in words
    usage: Usage | None  #: of this attempt alone; None: the agent has not said it


def running_turns(store: Store, page: SessionPage) -> list[RunningTurn]:
    """What these running sessions do, the last started first."""
    now = store.now()
    found = [_running(store, session, page.states[session.id], now) for session in page.sessions]
    return sorted(found, key=lambda one: one.started_at, reverse=True)


def _running(store: Store, session: Session, state: SessionState, now: Instant) -> RunningTurn:
    attempt = store.newest_attempt(session.id)
    if attempt is None or attempt.ended_at is not None:
        since = session.updated_at if state.program is None else state.program.began_at
        return RunningTurn(
            session, state, session.provider, None, None, since, seconds_between(since, now), None, None
        )
    told = store.newest_events(attempt.conversation_id, attempt.seq, _EVENTS)
    events = [event for number, event in told if number == attempt.number]
    calls = [event.data for event in events if event.kind is EventKind.TOOL_CALL]
    last = call_words(str(calls[-1].get("tool")), calls[-1].get("arguments")) if calls else None
    return RunningTurn(
        session, state, attempt.provider, attempt.seq, attempt.number, attempt.started_at,
        seconds_between(attempt.started_at, now), last, _used(attempt, events),
    )  # fmt: skip


def _used(attempt: Attempt, events: Sequence[Event]) -> Usage | None:
    said = next((event.data for event in reversed(events) if event.kind is EventKind.USAGE), None)
    # the cumulative figures of a session that is continued count its earlier turns, too
    if said is None or (said.get("cumulative") and attempt.decision.kind is not DecisionKind.FRESH):
        return None
    taken, cached, given = (said.get(f"{kind}_tokens") for kind in ("input", "cached_input", "output"))
    whole = [number if isinstance(number, int) else 0 for number in (taken, cached, given)]
    return Usage(*whole)


# --- how far the work has come ---

_FIRST_LOOK, _LAST_LOOK = 0.1, 2.0


class Reached(StrEnum):
    DONE = "done"  #: completed, or its newest turn is done and none is open
    FAILED = "failed"  #: failed or abandoned, or its newest turn did not end well
    NEEDS_PERSON = "needs_person"  #: a person has to answer an approval
    STILL_OPEN = "still_open"  #: a turn waits or runs, or there is no turn yet


@record
class Waited:
    session: Session
    reached: Reached
    turn: Turn | None = None  #: the newest one
    approval: Approval | None = None  #: the oldest that can be answered, else the oldest that expired


def wait_for(store: Store, session_id: str, timeout: float | None) -> Waited:
    """Looks from time to time until the session has reached an end; with ``timeout``, at most so many seconds."""
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = _FIRST_LOOK
    while True:
        waited = look(store, session_id)
        if waited.reached is not Reached.STILL_OPEN:
            return waited
        left = pause if deadline is None else deadline - time.monotonic()
        if left <= 0:
            return waited
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LAST_LOOK)


def look(store: Store, session_id: str) -> Waited:
    """How far the work of a session has come by now."""
    session = store.get_session(session_id)
    turn = newest_turn(store, session.id)
    if session.finalized_at is not None:
        done = session.phase is Phase.COMPLETED
        return Waited(session, Reached.DONE if done else Reached.FAILED, turn)
    asked = store.approvals(session_id=session.id)
    if asked:
        now = store.now()
        in_time = (approval for approval in asked if not approval.is_expired(now))
        return Waited(session, Reached.NEEDS_PERSON, turn, next(in_time, asked[0]))
    if turn is None or turn.status.is_open:
        return Waited(session, Reached.STILL_OPEN, turn)
    return Waited(session, Reached.DONE if turn.status is TurnStatus.DONE else Reached.FAILED, turn)

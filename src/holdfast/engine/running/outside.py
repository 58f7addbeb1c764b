"""Owns turns that were made outside Holdfast, in the provider's own program: they join our history."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from holdfast.domain.decisions import Resume
from holdfast.domain.pointers import NOTHING_YET, Pointer
from holdfast.domain.policy import ResumePolicy
from holdfast.domain.telling.context import current_request
from holdfast.domain.text import clean_text
from holdfast.domain.turns import Lease, NewTurn, TurnRequest
from holdfast.domain.usage import NO_USAGE
from holdfast.engine.running.agents import Agent
from holdfast.engine.running.recognition import recognise
from holdfast.providers.contract import ArchivedTurn
from holdfast.store.contract import Store


def adopt_outside_turns(store: Store, agent: Agent, policy: ResumePolicy, session_id: str) -> int:
    """Record what the provider's session holds beyond what we know of it; how many turns that were.

    Idempotent: each is recorded under a key of its own before the pointer moves past it. Where such turns
    are a reason to start fresh, the pointer stays behind them.
    """
    named = _adoptable(store, agent, session_id)
    if named is None:
        return 0
    with agent.lock(named.provider_session_id) as lock:
        return adopt_locked(store, agent, policy, named) if lock.try_acquire() else 0


def adopt_locked(
    store: Store, agent: Agent, policy: ResumePolicy, named: Pointer, lease: Lease | None = None
) -> int:
    """The same, for whoever holds the lock on the provider session that ``named`` points to.

    With ``lease`` for a turn that has waited for that lock: what was made meanwhile joins the history, too.
    """
    pointer = _adoptable(store, agent, named.session_id, lease)
    if pointer is None or pointer.provider_session_id != named.provider_session_id:
        return 0
    return _adopt(store, agent, policy, pointer, lease)


def adopted_notice(count: int) -> str:
    turns = "1 turn was" if count == 1 else f"{count} turns were"
    return f"{turns} made outside Holdfast in the agent's session: the history has them now"


def _adoptable(store: Store, agent: Agent, session_id: str, lease: Lease | None = None) -> Pointer | None:
    """Nothing of a session that another turn of ours is at work on, or that the history has left behind."""
    pointer = store.pointer(session_id, agent.provider.name)
    if pointer is None or pointer.is_fork_source or pointer.runtime_id != agent.runtime.id:
        return None
    holder = store.holder(session_id)
    if holder is not None and (lease is None or holder.lease.fence != lease.fence):
        return None
    if lease is not None:
        return pointer
    decision = store.explain(session_id, agent.provider.name, TurnRequest(), agent.runtime)
    return pointer if isinstance(decision, Resume) else None


def _adopt(store: Store, agent: Agent, policy: ResumePolicy, pointer: Pointer, lease: Lease | None) -> int:
    session_id, native = pointer.session_id, pointer.provider_session_id
    if pointer.transcript is None or pointer.seen is None:
        return 0
    path = agent.archive.find(native, pointer.work_dir)
    if path is None:
        return 0
    if pointer.transcript != NOTHING_YET and agent.archive.is_intact(pointer.transcript, native) is False:
        return 0
    # before the turns: what is written meanwhile is then read twice, and not missed
    mark = agent.archive.mark(path, native)
    new = recognise(store, agent, path, native, after=pointer.transcript)
    outside = [known.turn for known in new if known.turn.complete and known.is_outside]
    if not outside or mark is None:
        return 0
    seen = pointer.seen
    for turn in outside:
        recorded = store.record_turn(
            session_id,
            NewTurn(clean_text(current_request(turn.prompt)), agent.provider.name, key=_key(native, turn)),
            None if turn.response is None else clean_text(turn.response),
            NO_USAGE,
        )
        seen = seen.with_turn(recorded.seq)
    # a turn of ours that begins and moves it between this look and the writing would not be noticed
    if policy.transcript_ahead == "resume" and _adoptable(store, agent, session_id, lease) == pointer:
        # what is still to be answered there is looked at again the next time
        reached = mark if all(known.turn.complete for known in new) else pointer.transcript
        store.set_pointer(replace(pointer, seen=seen, transcript=reached, updated_at=store.now()))
    return len(outside)


def _key(native: str, turn: ArchivedTurn) -> str:
    """Of one shape, whatever the provider calls its turns."""
    digest = hashlib.sha256(turn.key.encode("utf-8", "surrogatepass")).hexdigest()
    return f"outside:{native}:{digest[:32]}"

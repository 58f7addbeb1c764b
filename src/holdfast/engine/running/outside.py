"""Owns turns that were made outside Holdfast, in the provider's own program: they join our history."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from holdfast.domain.decisions import Decision, Fresh, Outcome, Reason, Resume
from holdfast.domain.inputs import clean_text
from holdfast.domain.pointers import NOTHING_YET, Pointer
from holdfast.domain.policy import ResumePolicy
from holdfast.domain.records import record
from holdfast.domain.telling.context import current_request
from holdfast.domain.turns import Lease, NewTurn, TurnRequest
from holdfast.domain.usage import NO_USAGE
from holdfast.engine.running.agents import Agent
from holdfast.engine.running.recognition import is_sent_by, recognise, seen_on_branch
from holdfast.providers.contract import ArchivedTurn
from holdfast.store.contract import Store


@record
class Outside:
    """What was found in a provider's session."""

    adopted: int  #: turns that were made outside Holdfast, and are in the history by now
    pointer: (
        Pointer | None
    )  #: as it is afterwards, with what the session has really seen; None if nothing was looked at
    is_unfinished: bool = False  #: the session's last turn was made outside, and has no answer

    @property
    def notices(self) -> tuple[str, ...]:
        """For the person."""
        if not self.adopted:
            return ()
        turns = "1 turn was" if self.adopted == 1 else f"{self.adopted} turns were"
        return (f"{turns} made outside Holdfast in the agent's session: the history has them now",)


NOTHING = Outside(0, None)
_LEFT_BY_HISTORY = (Reason.GENERATION_CHANGED, Reason.HISTORY_CHANGED)


def adopt_outside_turns(
    store: Store, agent: Agent, policy: ResumePolicy, session_id: str, lease: Lease | None = None
) -> Outside:
    """Record what the provider's session holds beyond what we know of it, and put right what it has seen.

    Idempotent: each turn is recorded under a key of its own before the pointer moves past it. Where such turns
    are a reason to start fresh, the pointer stays behind them. Nothing is done while somebody else has the lock
    on the session. ``lease`` is that of a turn of ours that is about to start, in another session.
    """
    named = _adoptable(store, agent, session_id, lease)
    if named is None:
        return NOTHING
    with agent.lock(named.provider_session_id) as lock:
        return adopt_locked(store, agent, policy, named, lease) if lock.try_acquire() else NOTHING


def is_left_by_history(decision: Decision) -> bool:
    """Whether the history has changed behind the session: what it holds beyond that belongs to the old one."""
    return any(
        verdict.reason in _LEFT_BY_HISTORY and verdict.outcome is not Outcome.RESUME
        for verdict in decision.verdicts
    )


def adopt_locked(
    store: Store, agent: Agent, policy: ResumePolicy, named: Pointer, lease: Lease | None = None
) -> Outside:
    """The same, for whoever holds the lock on the provider session that ``named`` points to.

    With ``lease`` for a turn that has waited for that lock: what was made meanwhile joins the history, too.
    """
    pointer = _adoptable(store, agent, named.session_id, lease)
    if pointer is None or pointer.provider_session_id != named.provider_session_id:
        return NOTHING
    return _adopt(store, agent, policy, pointer, lease)


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
    counts = isinstance(decision, Resume | Fresh) and not is_left_by_history(decision)
    return pointer if counts else None


def _adopt(
    store: Store, agent: Agent, policy: ResumePolicy, pointer: Pointer, lease: Lease | None
) -> Outside:
    session_id, native, reached = pointer.session_id, pointer.provider_session_id, pointer.transcript
    if reached is None or pointer.seen is None:
        return Outside(0, pointer)
    path = agent.archive.find(native, pointer.work_dir)
    if path is None or (reached != NOTHING_YET and agent.archive.is_intact(reached, native) is False):
        return Outside(0, pointer)
    # before the turns: what is written meanwhile is then read twice, and not missed
    mark = agent.archive.mark(path, native)
    new = {turn.key: turn for turn in agent.archive.turns(path, native, after=reached)}
    is_untold = lease is not None and bool(pointer.catch_up(lease.seq))
    turns = list(agent.archive.turns(path, native))
    # by a command such as /compact, which is no turn, but costs something; not by a turn of ours that went on
    has_grown = not new and reached not in (mark, NOTHING_YET) and all(turn.complete for turn in turns[-1:])
    if mark is None or (all(turn.live for turn in turns) and not new and not is_untold and not has_grown):
        return Outside(0, pointer)
    last = next(reversed(new), None)  # it may still be answered; what others stand behind will not be
    held = recognise(store, agent, path, native)
    conversation_id = store.get_session(session_id).conversation_id
    seen = seen_on_branch(pointer.seen, held, conversation_id, native)
    made = [known.turn for known in held if known.is_outside and known.turn.key in new]
    outside = [turn for turn in made if turn.complete or turn.key != last]
    is_unfinished = len(outside) < len(made)
    for turn in outside:
        recorded = store.record_turn(
            session_id,
            NewTurn(clean_text(current_request(turn.prompt)), agent.provider.name, key=_key(native, turn)),
            None if turn.response is None else clean_text(turn.response),
            NO_USAGE,
        )
        seen = seen.with_turn(recorded.seq)
    if has_grown or (outside and all(turn.complete for turn in new.values())):
        reached = mark  # what is still to be answered there is looked at again the next time
    moved = replace(pointer, seen=seen, transcript=reached, updated_at=store.now())
    has_moved = (moved.seen, moved.transcript) != (pointer.seen, pointer.transcript)
    if not has_moved and not is_unfinished:
        return Outside(0, pointer)
    # a turn of ours that begins and moves it between this look and the writing would not be noticed
    may_move = not outside or policy.transcript_ahead == "resume"
    if not may_move or _adoptable(store, agent, session_id, lease) != pointer:
        return Outside(len(outside), pointer, is_unfinished)
    # what others have used there is not booked to the next turn of ours
    has_sent = lease is not None and any(is_sent_by(known, lease) for known in held)
    counted = agent.archive.spent(path, native) if (made or has_grown) and not has_sent else None
    store.set_pointer(moved, counted=counted)
    return Outside(len(outside), moved, is_unfinished)


def _key(native: str, turn: ArchivedTurn) -> str:
    """Of one shape, whatever the provider calls its turns."""
    digest = hashlib.sha256(turn.key.encode("utf-8", "surrogatepass")).hexdigest()
    return f"outside:{native}:{digest[:32]}"

"""Owns turns that were made outside Holdfast, in the provider's own program: they join our history."""

from __future__ import annotations

import hashlib

from holdfast.domain.decisions import Decision, Fresh, Outcome, Reason, Resume
from holdfast.domain.inputs import clean_text
from holdfast.domain.pointers import NOTHING_YET, Pointer
from holdfast.domain.policy import ResumePolicy
from holdfast.domain.records import record
from holdfast.domain.telling.context import current_request
from holdfast.domain.turns import Adoption, Lease, OutsideTurn, Situation
from holdfast.engine.running.agents import Agent
from holdfast.engine.running.recognition import is_sent_by, recognise, seen_on_branch
from holdfast.providers.contract import ArchivedTurn
from holdfast.store.contract import Store


@record
class Outside:
    """What was found in a provider's session."""

    adopted: int  #: turns that were made outside Holdfast, and are in the history by now
    situation: Situation  #: as it is afterwards
    is_unfinished: bool = False  #: the session's last turn was made outside, and has no answer

    @property
    def notices(self) -> tuple[str, ...]:
        """For the person."""
        if not self.adopted:
            return ()
        turns = "1 turn was" if self.adopted == 1 else f"{self.adopted} turns were"
        return (f"{turns} made outside Holdfast in the agent's session: the history has them now",)


_LEFT_BY_HISTORY = (Reason.GENERATION_CHANGED, Reason.HISTORY_CHANGED)


def adopt_outside_turns(
    store: Store, agent: Agent, policy: ResumePolicy, situation: Situation, lease: Lease | None = None
) -> Outside:
    """Record what the provider's session holds beyond what we know of it, and correct what it has seen.

    Where such turns are a reason to start fresh, the pointer stays behind them. Nothing is done while somebody
    else has the lock on the provider session. ``lease`` is that of a turn of ours that is about to start, in
    another provider session.
    """
    named = _adoptable(agent, situation, lease)
    if named is None:
        return Outside(0, situation)
    with agent.lock(named.provider_session_id) as lock:
        if not lock.try_acquire():
            return Outside(0, situation)
        return _adopt(store, agent, policy, situation, named, lease)


def is_left_by_history(decision: Decision) -> bool:
    """Whether the history has changed behind the session: what it holds beyond that belongs to the old one."""
    return any(
        verdict.reason in _LEFT_BY_HISTORY and verdict.outcome is not Outcome.RESUME
        for verdict in decision.verdicts
    )


def adopt_locked(
    store: Store, agent: Agent, policy: ResumePolicy, situation: Situation, lease: Lease | None = None
) -> Outside:
    """The same, for a caller that holds the lock on the provider session that the situation's pointer names."""
    named = _adoptable(agent, situation, lease)
    return Outside(0, situation) if named is None else _adopt(store, agent, policy, situation, named, lease)


def _adoptable(agent: Agent, situation: Situation, lease: Lease | None) -> Pointer | None:
    """None for a session that another turn of ours is at work on, or that the history has left behind."""
    pointer = situation.pointer
    if pointer is None or pointer.is_fork_source or pointer.runtime_id != agent.runtime.id:
        return None
    if lease is not None:
        return pointer
    decision = situation.decision
    counts = isinstance(decision, Resume | Fresh) and not is_left_by_history(decision)
    return pointer if counts and situation.holder is None else None


def _adopt(
    store: Store,
    agent: Agent,
    policy: ResumePolicy,
    situation: Situation,
    pointer: Pointer,
    lease: Lease | None,
) -> Outside:
    native, reached = pointer.provider_session_id, pointer.transcript
    nothing = Outside(0, situation)
    if reached is None or pointer.seen is None:
        return nothing
    path = agent.archive.find(native, pointer.work_dir)
    if path is None or (reached != NOTHING_YET and agent.archive.is_intact(reached, native) is False):
        return nothing
    # before the turns: what is written meanwhile is then read twice, and not missed
    mark = agent.archive.mark(path, native)
    new = {turn.key: turn for turn in agent.archive.turns(path, native, after=reached)}
    is_untold = lease is not None and bool(pointer.catch_up(lease.seq))
    turns = list(agent.archive.turns(path, native))
    # by a command such as /compact, which is no turn, but costs something; not by a turn of ours that continued
    has_grown = not new and reached not in (mark, NOTHING_YET) and all(turn.complete for turn in turns[-1:])
    if mark is None or (all(turn.live for turn in turns) and not new and not is_untold and not has_grown):
        return nothing
    last = next(reversed(new), None)  # it may still be answered; what others stand behind will not be
    held = recognise(store, agent, path, native)
    seen = seen_on_branch(pointer.seen, held, situation.session.conversation_id, native)
    made = [known.turn for known in held if known.is_outside and known.turn.key in new]
    outside = [turn for turn in made if turn.complete or turn.key != last]
    is_unfinished = len(outside) < len(made)
    if has_grown or (outside and all(turn.complete for turn in new.values())):
        reached = mark  # what is still to be answered there is looked at again the next time
    has_moved = bool(outside) or (seen, reached) != (pointer.seen, pointer.transcript)
    if not has_moved and not is_unfinished:
        return nothing
    moves = not outside or policy.transcript_ahead == "resume"
    # what others have used there is not booked to the next turn of ours
    has_sent = lease is not None and any(is_sent_by(known, lease) for known in held)
    counts = moves and (made or has_grown) and not has_sent
    counted = agent.archive.spent(path, native) if counts else None
    found = tuple(_outside_turn(native, turn) for turn in outside)
    after = store.adopt_turns(Adoption(pointer, found, seen, reached, moves, counted), lease)
    if after is None:  # a turn of ours has begun there meanwhile, or somebody else has adopted them
        return Outside(0, situation, is_unfinished)
    return Outside(len(outside), after, is_unfinished)


def _outside_turn(native: str, turn: ArchivedTurn) -> OutsideTurn:
    response = None if turn.response is None else clean_text(turn.response)
    return OutsideTurn(_key(native, turn), clean_text(current_request(turn.prompt)), response)


def _key(native: str, turn: ArchivedTurn) -> str:
    """Of one shape, whatever the provider calls its turns."""
    digest = hashlib.sha256(turn.key.encode("utf-8", "surrogatepass")).hexdigest()
    return f"outside:{native}:{digest[:32]}"

"""Owns what only this machine can see before a launch: the directory, the provider's own session, the lock."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice, takewhile
from pathlib import Path

from holdfast.domain.decisions import (
    NOT_OBSERVABLE,
    Decision,
    DecisionKind,
    Facts,
    ResumeRequest,
    TranscriptFacts,
)
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import NOTHING_YET, Pointer
from holdfast.domain.policy import ResumePolicy
from holdfast.domain.records import record
from holdfast.domain.resume import decide_at_launch
from holdfast.domain.telling.context import current_request
from holdfast.domain.turns import Turn, TurnStatus
from holdfast.engine.own_turns import newest_first
from holdfast.engine.running.agents import Agent
from holdfast.providers.contract import ArchivedTurn
from holdfast.store.contract import Store

#: turns made by hand are counted up to here; it makes no difference how many more there are
_MOST_FOREIGN = 1000


@record
class Asked:
    """The turn that is about to run, as far as this machine is concerned."""

    seq: int
    ours: Collection[str]  #: the prompts that may stand behind the mark; see ``unsettled_prompts``
    prompt_tokens: int  #: of all that is sent
    work_dir: str
    provider_session_id: ProviderSessionId | None = None
    holds_call: bool = False  #: the provider's session ends with a call that waits, before any answer


def decide_here(
    judged: Decision,
    pointer: Pointer | None,
    asked: Asked,
    agent: Agent,
    policy: ResumePolicy,
    *,
    lock_free: bool,
) -> Decision:
    """What was judged from the store, weakened by whatever speaks against it on this machine.

    What only the store can see is not judged again.
    """
    facts = Facts(
        native_resume=NOT_OBSERVABLE,
        capabilities=agent.runtime.capabilities,
        generation=NOT_OBSERVABLE,
        runtime_id=agent.runtime.id,
        version=agent.runtime.version,
        changes=NOT_OBSERVABLE,
        provider_session=NOT_OBSERVABLE,
        seq=asked.seq,
        same_directory=_same_directory(pointer, asked.work_dir),
        transcript=_transcript(pointer, agent, asked),
        lock_free=lock_free,
    )
    request = ResumeRequest(
        force_fresh=NOT_OBSERVABLE,
        rights=NOT_OBSERVABLE,
        prompt_tokens=asked.prompt_tokens,
        provider_session_id=asked.provider_session_id,
    )
    return decide_at_launch(judged, pointer, request, facts, policy)


def made_outside(turn: ArchivedTurn, ours: Collection[str]) -> bool:
    """By a person in the provider's own program: not one of the prompts that Holdfast sent."""
    return current_request(turn.prompt) == turn.prompt and turn.prompt.strip() not in {
        prompt.strip() for prompt in ours
    }


def unsettled_prompts(store: Store, session_id: str) -> tuple[str, ...]:
    """What we sent and the pointer may not have moved past: everything since our last turn that ended well."""
    sent = (turn for turn in newest_first(store, session_id) if turn.attempts)
    unsettled = takewhile(lambda turn: turn.status is not TurnStatus.DONE, sent)
    # every other request carries our marker: the same words without it are a person's
    return tuple(
        turn.prompt for turn in unsettled if turn.prompt.startswith("/") or _began_a_session(store, turn)
    )


def last_directory(store: Store, turn: Turn) -> str | None:
    """Where a session ran last, by its attempts: of use where no provider session tells."""
    for earlier in newest_first(store, turn.session_id, turn.seq + 1):
        for attempt in reversed(store.attempts(earlier.conversation_id, earlier.seq)):
            if attempt.work_dir is not None:
                return attempt.work_dir
    return None


def _began_a_session(store: Store, turn: Turn) -> bool:
    attempts = store.attempts(turn.conversation_id, turn.seq)
    return any(attempt.decision.kind is DecisionKind.FRESH for attempt in attempts)


def _same_directory(pointer: Pointer | None, work_dir: str) -> bool | None:
    """The same one, not the same text: links and other spellings are fine."""
    if pointer is None or pointer.work_dir is None:
        return None
    try:
        return Path(pointer.work_dir).samefile(work_dir)
    except OSError:
        return False


def _transcript(pointer: Pointer | None, agent: Agent, asked: Asked) -> TranscriptFacts | None:
    if pointer is None:
        return None
    session_id, mark = pointer.provider_session_id, pointer.transcript
    path = agent.archive.find(session_id, pointer.work_dir)
    if path is None:
        return None
    requests = sum(1 for _ in islice(agent.archive.turns(path, session_id), 1))
    if mark is None:
        return TranscriptFacts(requests, foreign_turns=NOT_OBSERVABLE)
    since = islice(agent.archive.turns(path, session_id, after=mark), _MOST_FOREIGN)
    new = [made_outside(turn, asked.ours) for turn in since]
    return TranscriptFacts(
        requests=requests,
        prefix_intact=mark == NOTHING_YET or agent.archive.is_intact(mark, session_id),
        foreign_turns=sum(new),
        grown=bool(new),
    )

"""Owns what only this machine can see before a launch: the directory, the provider's own session, the lock."""

from __future__ import annotations

from pathlib import Path

from holdfast.domain.decisions import (
    NOT_OBSERVABLE,
    Decision,
    Facts,
    ResumeRequest,
    TranscriptFacts,
)
from holdfast.domain.guards import decide_at_launch
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import NOTHING_YET, Pointer
from holdfast.domain.policy import ResumePolicy
from holdfast.domain.records import record
from holdfast.domain.turns import Situation
from holdfast.engine.past import newest_first
from holdfast.engine.running.agents import Agent
from holdfast.engine.running.recognition import recognise
from holdfast.store.contract import Store


@record
class PlannedLaunch:
    """The turn that is about to run, as far as this machine is concerned."""

    seq: int
    prompt_tokens: int  #: of all that is sent
    work_dir: str
    provider_session_id: ProviderSessionId | None = None
    lock_free: bool = True  #: nobody else on this machine writes to the provider's session


def decide_here(
    store: Store,
    judged: Decision,
    pointer: Pointer | None,
    planned: PlannedLaunch,
    agent: Agent,
    policy: ResumePolicy,
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
        seq=planned.seq,
        same_directory=_same_directory(pointer, planned.work_dir),
        transcript=_transcript(store, pointer, agent),
        lock_free=planned.lock_free,
        named_exists=_named_exists(pointer, agent, planned),
        other_writer=_other_writer(pointer, agent),
    )
    request = ResumeRequest(
        force_fresh=NOT_OBSERVABLE,
        rights=NOT_OBSERVABLE,
        prompt_tokens=planned.prompt_tokens,
        provider_session_id=planned.provider_session_id,
    )
    return decide_at_launch(judged, pointer, request, facts, policy)


def last_directory(store: Store, situation: Situation, before: int | None = None) -> str | None:
    """Where a session ran last, or was to run when a guard refused it: of use where no provider session tells.

    With ``before``, only turns of a smaller number count.
    """
    tried = situation.last_directory
    if tried is not None or situation.conversation.next_seq == 1:
        return tried
    planned = (turn.request.work_dir for turn in newest_first(store, situation.session.id, before))
    return next(filter(None, planned), None)


def _same_directory(pointer: Pointer | None, work_dir: str) -> bool | None:
    """The same one, not the same text: links and other spellings are fine."""
    if pointer is None or pointer.work_dir is None:
        return None
    try:
        return Path(pointer.work_dir).samefile(work_dir)
    except OSError:
        return False


def _named_exists(pointer: Pointer | None, agent: Agent, planned: PlannedLaunch) -> bool:
    named = planned.provider_session_id
    if named is None or (pointer is not None and pointer.provider_session_id == named):
        return False
    return agent.archive.find(named, planned.work_dir) is not None


def _other_writer(pointer: Pointer | None, agent: Agent) -> str | None:
    if pointer is None or pointer.is_fork_source:
        return None
    path = agent.archive.find(pointer.provider_session_id, pointer.work_dir)
    return None if path is None else agent.archive.writer(path, pointer.provider_session_id)


def _transcript(store: Store, pointer: Pointer | None, agent: Agent) -> TranscriptFacts | None:
    if pointer is None:
        return None
    session_id, mark = pointer.provider_session_id, pointer.transcript
    path = agent.archive.find(session_id, pointer.work_dir)
    if path is None:
        return None
    requests = int(any(turn.live for turn in agent.archive.turns(path, session_id)))
    if mark is None:
        return TranscriptFacts(requests, foreign_turns=NOT_OBSERVABLE)
    new = recognise(store, agent, path, session_id, after=mark)
    return TranscriptFacts(
        requests=requests,
        prefix_intact=mark == NOTHING_YET or agent.archive.is_intact(mark, session_id),
        foreign_turns=sum(turn.is_outside for turn in new),
        grown=bool(new),
    )

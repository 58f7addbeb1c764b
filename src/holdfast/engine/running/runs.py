"""Owns running turns in the foreground: begin a session, go on with one, or branch off one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from time import sleep

from holdfast.domain.conversations import SeenTurns
from holdfast.domain.decisions import Resume, because
from holdfast.domain.events import Noted
from holdfast.domain.ids import ProviderSessionId, SessionId
from holdfast.domain.inputs import check_name, check_text
from holdfast.domain.pointers import NO_RIGHTS, NOTHING_YET, Pointer, Rights
from holdfast.domain.policy import Policy, ResumePolicy
from holdfast.domain.records import record
from holdfast.domain.turns import (
    Claim,
    ClaimRequest,
    NewTurn,
    Refusal,
    Situation,
    Turn,
    TurnRequest,
    TurnStatus,
)
from holdfast.domain.usage import NO_CALL_YET, NO_USAGE
from holdfast.engine.keywords import Observer
from holdfast.engine.past import newest_turn
from holdfast.engine.result import RunResult
from holdfast.engine.rights import check_rights
from holdfast.engine.running.agents import Agent
from holdfast.engine.running.launching import RunContext, ignore
from holdfast.engine.running.look import Asked, decide_here, last_directory
from holdfast.engine.running.outside import adopt_outside_turns
from holdfast.engine.running.recovery import recover_session
from holdfast.engine.running.turn_path import TurnPath, lock_delays
from holdfast.errors import Busy, Conflict, HoldfastError, InvalidInput, Refused
from holdfast.processes.machine import describe_owner
from holdfast.store.contract import Store


@record
class RunOptions:
    """How a turn is to be run; what is None is taken from the session or the settings."""

    work_dir: str | None = None
    model: str | None = None
    rights: Rights | None = None  #: None: those of the first launch
    fresh: bool = False
    provider_session_id: ProviderSessionId | None = None
    allow_wider_rights: bool = False
    timeout_seconds: float | None = None
    observer: Observer = ignore

    def check(self, agent: Agent) -> None:
        """InvalidInput for what this provider cannot be asked for; nothing has been recorded by then."""
        if self.model is not None:
            check_name("model", self.model)
        if self.rights is not None:
            check_rights(self.rights, agent.provider, allow_wider=self.allow_wider_rights)
            for directory in self.rights.extra_dirs:
                existing_directory(directory, "extra_dirs")
            if self.rights.approve_tools and not agent.runtime.capabilities.can_defer:
                raise InvalidInput("approve_tools", f"not supported by this provider ({agent.provider.name})")
        if self.work_dir is not None:
            existing_directory(self.work_dir)

    def request(self) -> TurnRequest:
        """Directories are meant from where the caller is, whatever directory the agent works in."""
        work_dir = None if self.work_dir is None else existing_directory(self.work_dir)
        rights = self.rights
        if rights is not None:
            rights = replace(rights, extra_dirs=frozenset(map(existing_directory, rights.extra_dirs)))
        return TurnRequest(
            work_dir, self.model, rights, self.fresh, self.provider_session_id, self.allow_wider_rights
        )


def run_turn(
    store: Store, agent: Agent, policy: Policy, situation: Situation, prompt: str, options: RunOptions
) -> RunResult:
    """One turn of a session, now, on this machine.

    Busy if others are at work on the session and stay so. A turn that a guard refuses comes back as a
    result, too: it is part of the record.
    """
    session_id = situation.session.id
    request = _as_before(store, agent, situation, options.request())
    _require_waiting(agent, situation, request)
    _require_directory(store, situation, request)
    taken = recover_session(store, agent.agents, situation.holder)
    if taken is not None:
        became = "its agent had answered" if taken.status is TurnStatus.DONE else "it is ended"
        options.observer(Noted(f"turn {taken.seq} was left by a process that is gone: {became}"))
        situation = store.situation(session_id, agent.provider.name)
    if _take_over_named(store, agent, policy.resume, situation, request):
        situation = store.situation(session_id, agent.provider.name)
    outside = adopt_outside_turns(store, agent, policy.resume, situation)
    new = NewTurn(prompt, agent.provider.name, request, foreground=True)
    claimed = _start(store, agent, policy, session_id, new, options.observer)
    if isinstance(claimed, Refusal):
        return RunResult(
            session_id, claimed.turn.seq, claimed.turn.status, None, claimed.decision, agent.provider.name,
            None, request.work_dir or "", NO_USAGE, claimed.turn.failure, situation.session.name,
            outside.notices,
        )  # fmt: skip
    timeout = options.timeout_seconds or policy.run.timeout_seconds
    return TurnPath(
        RunContext(store, agent, policy, timeout, options.observer), claimed, outside.notices
    ).walk()


def run_waiting(
    store: Store, agent: Agent, policy: Policy, session_id: SessionId, options: RunOptions
) -> RunResult:
    """The turn at the head of a session's queue, now, on this machine.

    Busy if it cannot run yet. NeedsApproval if it waits for one. Refused if a guard said no: it has ended then.
    """
    recover_session(store, agent.agents, store.holder(session_id))
    situation = store.situation(session_id, agent.provider.name)
    outside = adopt_outside_turns(store, agent, policy.resume, situation)
    queued = _queued(store, session_id)
    claimed = store.claim_turn(_claim_request(agent, policy, session_id))
    if claimed is None:
        raise _not_claimed(store, queued) if queued else Busy(f"the next turn of {session_id}")
    timeout = options.timeout_seconds or policy.run.timeout_seconds
    context = RunContext(store, agent, policy, timeout, options.observer)
    return TurnPath(context, claimed, outside.notices).walk()


def existing_directory(path: str, field: str = "cwd") -> str:
    """Absolute, as it was given: a link stays a link, so that people recognise it."""
    directory = Path(os.path.expanduser(check_text(field, path)))  # noqa: PTH111 - a ~user nobody knows stays as it is
    if not directory.is_dir():
        raise InvalidInput(field, f"{path} is not a directory")
    return str(directory.absolute())


def _as_before(store: Store, agent: Agent, situation: Situation, request: TurnRequest) -> TurnRequest:
    """What a turn does not say is as it was; where no session was begun yet, as the last try had it."""
    pointer = situation.pointer
    if pointer is not None and pointer.work_dir is not None:
        return request
    place = request.work_dir or last_directory(store, situation) or str(Path.cwd())
    request = replace(request, work_dir=place)
    provider, model, rights = _last_profile(store, situation)
    if provider != agent.provider.name:
        return request
    return replace(request, model=request.model or model, rights=request.rights or rights)


def _last_profile(store: Store, situation: Situation) -> tuple[str | None, str | None, Rights | None]:
    """Provider, model and rights of the newest try. A turn that a guard refused counts with what it asked for."""
    newest = situation.newest_try
    if newest is not None:
        return newest.provider, newest.model, newest.rights
    is_new = situation.conversation.next_seq == 1
    turn = None if is_new else newest_turn(store, situation.session.id)
    return (None, None, None) if turn is None else (turn.provider, turn.request.model, turn.request.rights)


def _take_over_named(
    store: Store, agent: Agent, policy: ResumePolicy, situation: Situation, request: TurnRequest
) -> bool:
    """Whether a provider session that exists and that nobody here has run in becomes this session's.

    It is pointed at as one of which nothing is known yet: all of its turns are then adopted. Refused, and
    nothing has changed, if the turn could not go on in it.
    """
    named, provider, before = request.provider_session_id, agent.provider.name, situation.pointer
    place = request.work_dir or (None if before is None else before.work_dir)
    path = None if named is None else agent.archive.find(named, place)
    if named is None or path is None or store.attempts_in(provider, named, 1):
        return False
    is_own = before is not None and before.provider_session_id == named and before.work_dir is not None
    if is_own or store.head_turn(situation.session.id) is not None:
        return False
    if not any(turn.live for turn in agent.archive.turns(path, named)):
        raise Refused(
            "explicit_id", f"{provider} session {named} exists and holds no request: choose another id"
        )
    pointer = _pointer_to(agent, situation, request)
    _require_resumable(store, agent, policy, situation, request, pointer)
    store.register_runtime(agent.runtime)
    store.set_pointer(pointer, unowned=True)
    return True


def _pointer_to(agent: Agent, situation: Situation, request: TurnRequest) -> Pointer:
    """To the provider session that is named, with what the session was run with until now."""
    assert request.provider_session_id is not None
    conversation, before = situation.conversation, situation.pointer
    work_dir, model, rights = request.work_dir, request.model, request.rights
    if before is not None:
        work_dir, model = work_dir or before.work_dir, model or before.model
        rights = rights if rights is not None and request.allow_wider_rights else before.rights
    return Pointer(
        situation.session.id, agent.provider.name, request.provider_session_id, agent.runtime.id, work_dir, model,
        conversation.revision, conversation.generation, SeenTurns(), rights or NO_RIGHTS,
        NOTHING_YET, NO_CALL_YET, agent.runtime.version, situation.now,
    )  # fmt: skip


def _require_resumable(
    store: Store,
    agent: Agent,
    policy: ResumePolicy,
    situation: Situation,
    request: TurnRequest,
    pointer: Pointer,
) -> None:
    named, session_id = pointer.provider_session_id, pointer.session_id
    seq = situation.conversation.next_seq
    judged = store.explain(session_id, pointer.provider, request, agent.runtime, pointer)
    asked = Asked(seq, 0, pointer.work_dir or "", named, lock_free=agent.lock(named).is_free())
    decision = decide_here(store, judged, pointer, asked, agent, policy)
    if not isinstance(decision, Resume):
        raise Refused(
            decision.reason.value,
            f"{pointer.provider} session {named} cannot be continued: {because(decision).message}",
        )


def _require_waiting(agent: Agent, situation: Situation, request: TurnRequest) -> None:
    """What waited for a person goes along with the session: refused before a turn is put in that could not run."""
    newest = situation.newest_try
    waits = newest is not None and newest.rights is not None and newest.rights.approve_tools
    if waits and not request.allow_wider_rights and not agent.runtime.capabilities.can_defer:
        raise InvalidInput(
            "approve_tools",
            f"not supported by this provider ({agent.provider.name}); --allow-wider-rights continues without approvals",
        )


def _require_directory(store: Store, situation: Situation, request: TurnRequest) -> None:
    """Before a turn is put in that could not run."""
    session_id, pointer = situation.session.id, situation.pointer
    place = request.work_dir or (pointer.work_dir if pointer is not None else None)
    if place is not None and not Path(place).is_dir():
        hint = "to continue elsewhere: --cwd DIR"
        if store.pointers(session_id):
            hint = f"if it was moved: holdfast relocate {session_id} DIR; {hint}"
        raise InvalidInput("cwd", f"{place} does not exist any more; {hint}")


def _start(
    store: Store, agent: Agent, policy: Policy, session_id: SessionId, new: NewTurn, observer: Observer
) -> Claim | Refusal:
    request = _claim_request(agent, policy, session_id)
    for delay in lock_delays(policy.queue):
        try:
            return store.start_turn(session_id, new, request)
        except Busy as exc:
            if exc.holder is None and store.holder(session_id) is None and _queued(store, session_id):
                raise Conflict(
                    f"a turn of {session_id} waits to be run: holdfast resume {session_id}"
                ) from exc
            observer(Noted(f"waiting: {_humanly(exc).message}"))
            sleep(delay)
            recover_session(store, agent.agents, store.holder(session_id))
    try:
        return store.start_turn(session_id, new, request)
    except Busy as exc:
        raise _humanly(exc) from None


def _humanly(busy: Busy) -> Busy:
    return Busy(busy.what, None if busy.holder is None else describe_owner(busy.holder), busy.until)


def _claim_request(agent: Agent, policy: Policy, session_id: SessionId) -> ClaimRequest:
    owner, key = agent.machine.claimant(), os.urandom(16).hex()
    return ClaimRequest(agent.runtime, owner, key, policy.queue.lease_seconds, session_id)


def _queued(store: Store, session_id: SessionId) -> Turn | None:
    """The turn that comes next, if it waits in the queue."""
    head = store.head_turn(session_id)
    return head if head is not None and head.status is TurnStatus.QUEUED else None


def _not_claimed(store: Store, queued: Turn) -> HoldfastError:
    failure = store.get_turn(queued.conversation_id, queued.seq).failure
    if failure is None or failure.then.was_begun:
        return Busy(f"turn {queued.seq} of {queued.session_id}")
    known = store.approvals(session_id=queued.session_id, open_only=False)
    void = next((approval for approval in reversed(known) if approval.seq == queued.seq), None)
    told = f"turn {queued.seq} of {queued.session_id} was refused: {failure.message}"
    if void is None:
        return Refused("refused_by_guard", told)
    return Refused(
        void.void_reason or "approval_voided",
        f"{told}; approval {void.id} is void, and the call was not made",
        approval_id=void.id,
    )

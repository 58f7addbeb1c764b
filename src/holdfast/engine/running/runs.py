"""Owns running turns in the foreground, and the other verbs that need an agent of this machine."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import sleep

from holdfast.domain.conversations import SeenTurns
from holdfast.domain.decisions import Decision, Fork, Refuse, Resume, Wait, because
from holdfast.domain.events import Noted
from holdfast.domain.ids import SessionId
from holdfast.domain.pointers import NO_RIGHTS, NOTHING_YET, Pointer
from holdfast.domain.policy import Policy, ResumePolicy
from holdfast.domain.records import record
from holdfast.domain.turns import (
    Claim,
    ClaimRequest,
    NewTurn,
    Orphan,
    Refusal,
    Situation,
    Turn,
    TurnRequest,
    TurnStatus,
)
from holdfast.domain.usage import NO_CALL_YET, NO_USAGE
from holdfast.engine.bringing import Brought, bring
from holdfast.engine.past import newest_turn
from holdfast.engine.result import RunResult
from holdfast.engine.running.agents import Agent, Agents
from holdfast.engine.running.launching import SESSION_VARIABLE, RunContext
from holdfast.engine.running.provider_sessions import (
    PlannedLaunch,
    adopt_locked,
    adopt_outside_turns,
    decide_here,
    last_directory,
)
from holdfast.engine.running.recovery import recover_all, recover_session
from holdfast.engine.running.tool_gate import opened_gate
from holdfast.engine.running.turn_path import TurnPath, lock_delays
from holdfast.engine.turn_requests import (
    Observer,
    RunKeywords,
    RunRequest,
    check_rights,
    existing_directory,
    read_keywords,
    require_unowned,
)
from holdfast.errors import Busy, Conflict, HoldfastError, InvalidInput, MissingBinary, Refused, SessionClosed
from holdfast.processes.locks import SessionLock
from holdfast.processes.machine import describe_owner
from holdfast.processes.owners import process_start
from holdfast.processes.process import Command, environment
from holdfast.processes.table import MARKER, QUICKLY, Traces, end_all
from holdfast.providers.contract import LaunchSpec
from holdfast.store.contract import Store

log = logging.getLogger("holdfast")


@record
class Opened:
    """A person has used the agent's own program on a session."""

    exit_code: int  #: of the program
    adopted: int  #: how many turns the person made there: they are in the history


class Runner:
    """The verbs of ``Holdfast`` that need an agent of this machine: a process, a provider's files or a lock."""

    def __init__(self, store: Store, policy: Policy, environ: Mapping[str, str] | None) -> None:
        self.agents = Agents(os.environ if environ is None else environ)
        self._store = store
        self._policy = policy

    def prepare(
        self, provider: str, keywords: RunKeywords, session_id: SessionId | None = None
    ) -> RunRequest:
        """Checks what was asked for, before anything is recorded."""
        asked = read_keywords(keywords, self.agents.get(provider))
        if asked.request.provider_session_id is not None:
            require_unowned(self._store, provider, asked.request.provider_session_id, session_id)
        return asked

    def run(self, situation: Situation, provider: str, prompt: str, asked: RunRequest) -> RunResult:
        """Runs one turn of a session now, on this machine. ``situation`` is the session's with this provider.

        Raises Busy if other turns of the session run, and still run after a few tries. A turn that a guard refuses is
        recorded, so it is returned as a result.
        """
        store, policy, agent = self._store, self._policy, self.agents.get(provider)
        session_id = situation.session.id
        request = _as_before(store, agent, situation, asked.request)
        _require_waiting(agent, situation, request)
        _require_directory(store, situation, request)
        taken = recover_session(store, agent.agents, situation.holder)
        if taken is not None:
            became = "its agent had answered" if taken.status is TurnStatus.DONE else "it is ended"
            asked.observer(Noted(f"turn {taken.seq} was left by a process that is gone: {became}"))
            situation = store.situation(session_id, agent.provider.name)
        if _take_over_named(store, agent, policy.resume, situation, request):
            situation = store.situation(session_id, agent.provider.name)
        outside = adopt_outside_turns(store, agent, policy.resume, situation)
        new = NewTurn(prompt, agent.provider.name, request, foreground=True)
        claimed = _start(store, agent, policy, session_id, new, asked.observer)
        if isinstance(claimed, Refusal):
            return RunResult(
                session_id, claimed.turn.seq, claimed.turn.status, None, claimed.decision, agent.provider.name,
                None, request.work_dir or "", NO_USAGE, claimed.turn.failure, situation.session.name,
                outside.notices,
            )  # fmt: skip
        timeout = asked.timeout_seconds or policy.run.timeout_seconds
        context = RunContext(store, agent, policy, timeout, asked.observer)
        return TurnPath(context, claimed, outside.notices).walk()

    def run_waiting(self, session_id: SessionId, provider: str, asked: RunRequest) -> RunResult:
        """Runs the turn at the head of a session's queue now, on this machine.

        Raises Busy if the turn cannot run yet, and Refused if a guard has refused it: then the turn has ended.
        """
        store, policy, agent = self._store, self._policy, self.agents.get(provider)
        recover_session(store, agent.agents, store.holder(session_id))
        situation = store.situation(session_id, agent.provider.name)
        outside = adopt_outside_turns(store, agent, policy.resume, situation)
        queued = _queued(store, session_id)
        claimed = store.claim_turn(_claim_request(agent, policy, session_id))
        if claimed is None:
            raise _not_claimed(store, queued) if queued else Busy(f"the next turn of {session_id}")
        timeout = asked.timeout_seconds or policy.run.timeout_seconds
        context = RunContext(store, agent, policy, timeout, asked.observer)
        return TurnPath(context, claimed, outside.notices).walk()

    def open(self, session_id: SessionId, provider: str, observer: Observer) -> Opened:
        """Runs the provider's own program on the session, for a person.

        Raises Refused, with the reason, unless the provider's session can be resumed on this machine.
        """
        store, policy, agent = self._store, self._policy.resume, self.agents.get(provider)
        situation = store.situation(session_id, agent.provider.name)
        if situation.session.phase.is_final:
            raise SessionClosed(session_id, situation.session.phase.value)
        if recover_session(store, agent.agents, situation.holder) is not None:
            situation = store.situation(session_id, agent.provider.name)
        earlier = adopt_outside_turns(store, agent, policy, situation)
        for notice in earlier.notices:
            observer(Noted(notice))
        situation = earlier.situation
        pointer = situation.pointer
        decision = _decide(store, agent, policy, situation)
        if isinstance(decision, Fork):
            raise Refused(
                "fork_not_run",
                f"it is a fork that has not run yet: holdfast resume {session_id} PROMPT comes first",
            )
        if not isinstance(decision, Resume) or pointer is None or pointer.work_dir is None:
            told = f"it cannot be opened: {because(decision).note}; {_instead(decision, session_id)}"
            raise Refused(decision.reason.value, told)
        rights = pointer.rights or NO_RIGHTS
        check_rights(rights, agent.provider, allow_wider=True)
        waited = situation.withheld if agent.runtime.capabilities.can_defer else frozenset()
        with (
            agent.lock(decision.provider_session_id) as lock,
            opened_gate(rights, waited, attended=True) as gate,
        ):
            if not lock.try_acquire():
                raise Busy(f"the {agent.provider.name} session of {session_id}")
            spec = LaunchSpec(
                agent.binary, agent.runtime.home, pointer.work_dir, "", decision, None, pointer.model, rights,
                gate,
            )  # fmt: skip
            command = agent.provider.interactive(spec)
            exit_code = _run(agent, session_id, command, spec.work_dir, lock)
            situation = store.situation(session_id, agent.provider.name)
            return Opened(exit_code, adopt_locked(store, agent, policy, situation).adopted)

    def bring(self, given: str, new_id: SessionId) -> Brought:
        return bring(self._store, self.agents, self._policy, given, new_id)

    def relocate(self, session_id: SessionId, directory: str) -> str:
        work_dir = existing_directory(directory)
        if self._store.holder(session_id) is not None:
            raise Conflict(f"session {session_id} is running: stop it first")
        pointers = self._store.pointers(session_id)
        if not pointers:
            raise Conflict(
                f"session {session_id} has no session of an agent to be moved: "
                f"holdfast resume {session_id} PROMPT --cwd DIR continues in another directory"
            )
        for pointer in pointers:
            self._store.set_pointer(replace(pointer, work_dir=work_dir, updated_at=self._store.now()))
        return work_dir

    def recover(self) -> tuple[Turn, ...]:
        return recover_all(self._store, self.agents)

    def take_over(self, holder: Orphan, *, by_force: bool = False) -> Turn | None:
        """See ``recover_session``."""
        return recover_session(self._store, self.agents, holder, by_force=by_force)

    def adopt(self, session_id: SessionId, provider: str) -> tuple[str, ...]:
        """Adopts turns made by hand, if the provider is installed here. Returns notices for the person."""
        try:
            agent = self.agents.get(provider)
        except HoldfastError:
            return ()
        situation = self._store.situation(session_id, provider)
        return adopt_outside_turns(self._store, agent, self._policy.resume, situation).notices

    def judge_here(self, judged: Decision, pointer: Pointer, seq: int) -> Decision:
        """The decision with what this machine can see, if the pointer was recorded on this machine."""
        try:
            agent = self.agents.get(pointer.provider)
        except HoldfastError:
            return judged  # the provider is not installed here: there is nothing more to see
        if agent.runtime.id != pointer.runtime_id or pointer.work_dir is None:
            return judged
        is_free = agent.lock(pointer.provider_session_id).is_free()
        planned = PlannedLaunch(seq, 0, pointer.work_dir, lock_free=is_free)
        return decide_here(self._store, judged, pointer, planned, agent, self._policy.resume)


def _as_before(store: Store, agent: Agent, situation: Situation, request: TurnRequest) -> TurnRequest:
    """Where no provider session was begun yet: the request, completed by what the last try asked for.

    Otherwise the request as it is: the claim completes it from the pointer.
    """
    pointer = situation.pointer
    if pointer is not None and pointer.work_dir is not None:
        return request
    place = request.work_dir or last_directory(store, situation) or str(Path.cwd())
    request = replace(request, work_dir=place)
    newest = situation.newest_try
    if newest is not None:
        return request.else_recorded(newest) if newest.provider == agent.provider.name else request
    # a turn that a guard refused has no try, but a request
    is_new = situation.conversation.next_seq == 1
    turn = None if is_new else newest_turn(store, situation.session.id)
    is_same = turn is not None and turn.provider == agent.provider.name
    return request.else_recorded(turn.request) if turn is not None and is_same else request


def _take_over_named(
    store: Store, agent: Agent, policy: ResumePolicy, situation: Situation, request: TurnRequest
) -> bool:
    """Takes over a provider session that is named, exists, and in which Holdfast has never run. True if it did.

    The new pointer says that nothing in the session is known yet, so that all of its turns are adopted. Raises
    Refused if the turn could not continue in the session; nothing has changed then.
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
    """A pointer to the provider session that is named, with the directory, model and rights that the session had."""
    assert request.provider_session_id is not None
    conversation, before = situation.conversation, situation.pointer
    wanted, rights = request.else_recorded(before), request.rights
    if before is not None and not (rights is not None and request.allow_wider_rights):
        rights = before.rights
    return Pointer(
        situation.session.id, agent.provider.name, request.provider_session_id, agent.runtime.id,
        wanted.work_dir, wanted.model,
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
    planned = PlannedLaunch(seq, 0, pointer.work_dir or "", named, lock_free=agent.lock(named).is_free())
    decision = decide_here(store, judged, pointer, planned, agent, policy)
    if not isinstance(decision, Resume):
        raise Refused(
            decision.reason.value,
            f"{pointer.provider} session {named} cannot be continued: {because(decision).message}",
        )


def _require_waiting(agent: Agent, situation: Situation, request: TurnRequest) -> None:
    """Raises InvalidInput before a turn is recorded that could not run: its session has a tool gate, and this provider
    has none."""
    newest = situation.newest_try
    waits = newest is not None and newest.rights is not None and newest.rights.approve_tools
    if waits and not request.allow_wider_rights and not agent.runtime.capabilities.can_defer:
        raise InvalidInput(
            "approve_tools",
            f"not supported by this provider ({agent.provider.name}); --allow-wider-rights continues without approvals",
        )


def _require_directory(store: Store, situation: Situation, request: TurnRequest) -> None:
    """Raises InvalidInput before a turn is recorded that could not run: its directory does not exist."""
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


def _instead(decision: Decision, session_id: SessionId) -> str:
    match decision:
        case Wait():
            return "holdfast resume is busy as well, until that has ended"
        case Refuse():
            return f"holdfast resume is refused as well: holdfast why {session_id}"
        case _:
            return f"holdfast resume {session_id} PROMPT starts fresh, with the context"


def _run(agent: Agent, session_id: SessionId, command: Command, work_dir: str, lock: SessionLock) -> int:
    """Runs the program, and then ends all processes that it started: they have inherited the lock."""
    marker = f"open.{os.urandom(16).hex()}"
    variables = {**environment(command, agent.environ), SESSION_VARIABLE: session_id, MARKER: marker}
    try:
        child = subprocess.Popen(command.argv, cwd=work_dir, env=variables, pass_fds=(lock.fileno(),))
    except FileNotFoundError as exc:
        raise MissingBinary(agent.provider.name, agent.binary) from exc
    started_at = process_start(child.pid) or 0  # 0: it has ended already
    try:
        return _attend(child)
    finally:
        # also if this process is told to terminate: no other process would find them
        if not end_all(Traces(child.pid, started_at, marker, is_own=True), QUICKLY):
            log.warning(
                "a process that %s has left behind cannot be ended, and keeps the session", command.argv[0]
            )
        child.poll()


def _decide(store: Store, agent: Agent, policy: ResumePolicy, situation: Situation) -> Decision:
    pointer = situation.pointer
    decision = store.explain(situation.session.id, agent.provider.name, runtime=agent.runtime)
    if pointer is None or pointer.work_dir is None:
        return decision
    planned = PlannedLaunch(situation.conversation.next_seq, 0, pointer.work_dir)
    # whether the lock is free shows when it is taken
    return decide_here(store, decision, pointer, planned, agent, policy)


def _attend(child: subprocess.Popen[bytes]) -> int:
    """Waits for the program; Ctrl-C is for the program, not for Holdfast. Returns its exit code, as a shell would."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = child.wait()
        return code if code >= 0 else 128 - code
    finally:
        signal.signal(signal.SIGINT, before)

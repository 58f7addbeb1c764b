"""Owns running turns in the foreground, and the other verbs that need an agent of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import Self

from holdfast.clock import Instant
from holdfast.domain.conversations import SeenTurns
from holdfast.domain.decisions import Decision, Fork, Fresh, Reason, Refuse, Resume, Wait, because
from holdfast.domain.events import Noted
from holdfast.domain.ids import ProviderSessionId, SessionId
from holdfast.domain.pointers import NO_RIGHTS, NOTHING_YET, Pointer, Rights
from holdfast.domain.policy import Policy, ResumePolicy
from holdfast.domain.records import replace
from holdfast.domain.sessions import SessionState, SessionStatus
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
from holdfast.engine.importing import Importer, ImportRequest
from holdfast.engine.past import newest_turn
from holdfast.engine.restoring import UNRESTORED, Rescue, Restoration, is_lost, mend, rescue_session, restore
from holdfast.engine.result import RunResult
from holdfast.engine.running.agents import Agent, Agents
from holdfast.engine.running.launching import RunContext
from holdfast.engine.running.programs import (
    OF_THE_SESSION,
    Attendance,
    Opened,
    SessionFinder,
    program_time,
    run_program,
)
from holdfast.engine.running.provider_sessions import (
    PlannedLaunch,
    adopt_locked,
    adopt_outside_turns,
    decide_here,
    last_directory,
)
from holdfast.engine.running.recovery import has_lost_worker, recover_all, recover_session
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
from holdfast.errors import (
    Busy,
    Conflict,
    Forbidden,
    HoldfastError,
    InvalidInput,
    NotFound,
    Refused,
    SessionClosed,
)
from holdfast.processes.locks import SessionLock
from holdfast.processes.machine import describe_owner
from holdfast.providers.contract import LaunchSpec
from holdfast.store.contract import Store


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

    def wider_rights(self, provider: str, rights: Rights, session_id: SessionId | None) -> str | None:
        """See ``Holdfast.wider_rights``. Raises InvalidInput for rights that nobody can accept."""
        agent = self.agents.get(provider)
        check_rights(rights, agent.provider, allow_wider=True)
        pointer = None if session_id is None else self._store.situation(session_id, provider).pointer
        had = NO_RIGHTS if pointer is None or pointer.rights is None else pointer.rights
        if pointer is not None and not rights.within(had):
            return rights.beyond(had)
        try:
            check_rights(rights, agent.provider)
        except InvalidInput:
            return " ".join(rights.extra_args)
        return None

    def named_since(self, provider: str, asked: RunRequest) -> Instant | None:
        """When the provider session that is named began, if it exists and no turn of Holdfast ever ran in it: the
        session that takes it over is imported. None: there is nothing to take over."""
        request, agent = asked.request, self.agents.get(provider)
        found = _unused(self._store, agent, request.provider_session_id, request.work_dir)
        if found is None:
            return None
        first = next(iter(agent.archive.turns(*found)), None)
        now = self._store.now()
        return now if first is None or first.began_at is None else min(first.began_at, now)

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
        taken = recover_session(store, agent.agents, policy.vault, situation.holder)
        if taken is not None:
            became = "its agent had answered" if taken.status is TurnStatus.DONE else "it is ended"
            asked.observer(Noted(f"turn {taken.seq} was left by a process that is gone: {became}"))
            situation = store.situation(session_id, agent.provider.name)
        if _take_over_named(store, agent, policy.resume, situation, request):
            situation = store.situation(session_id, agent.provider.name)
        outside = adopt_outside_turns(store, agent, policy.resume, situation, vault=policy.vault)
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
        recover_session(store, agent.agents, policy.vault, store.holder(session_id))
        situation = store.situation(session_id, agent.provider.name)
        outside = adopt_outside_turns(store, agent, policy.resume, situation, vault=policy.vault)
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
        store, agent = self._store, self.agents.get(provider)
        policy, vault = self._policy.resume, self._policy.vault
        situation = store.situation(session_id, agent.provider.name)
        if situation.session.phase.is_final:
            raise SessionClosed(session_id, situation.session.phase.value)
        if recover_session(store, agent.agents, vault, situation.holder) is not None:
            situation = store.situation(session_id, agent.provider.name)
        earlier = adopt_outside_turns(store, agent, policy, situation, vault=vault)
        for notice in earlier.notices:
            observer(Noted(notice))
        situation = earlier.situation
        pointer = situation.pointer
        decision = _decide(store, agent, policy, situation)
        if pointer is not None and is_lost(decision):
            decision = self._rescued(agent, situation, pointer, observer)
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
            mend(agent, decision.provider_session_id, pointer.work_dir)
            command = agent.provider.interactive(spec)
            with self._attendance(agent, situation, spec.work_dir) as attendance:
                attendance.native = decision.provider_session_id
                exit_code = run_program(agent, session_id, command, spec.work_dir, lock)
            situation = store.situation(session_id, agent.provider.name)
            return Opened(exit_code, adopt_locked(store, agent, policy, situation, vault=vault).adopted)

    def check_start(self, provider: str, arguments: Sequence[str]) -> None:
        """Raises InvalidInput for an argument that would make the program begin or continue another session than ours."""
        self.agents.get(provider).provider.arguments.refuse(arguments, OF_THE_SESSION)

    def start(self, session_id: SessionId, provider: str, work_dir: str, arguments: Sequence[str]) -> Opened:
        """Runs the provider's own program on a new session, for a person, with arguments of the person's own.

        Where the provider lets us choose the id of its session, the session points there before the program starts;
        otherwise as soon as the program has begun one. Sessions that the person begins or continues with commands of
        the program, such as ``/clear`` and ``/resume``, are taken over when the program has ended. A session in which
        nothing was said is removed.
        """
        agent = self.agents.get(provider)
        chooses = agent.runtime.capabilities.chooses_id
        fresh = Fresh(Reason.NO_POINTER, ())
        new_id = agent.provider.mint_id(fresh) if chooses else None
        spec = LaunchSpec(
            agent.binary, agent.runtime.home, work_dir, "", fresh, new_id, None, NO_RIGHTS
        )  # fmt: skip
        command = agent.provider.interactive(spec)
        command = replace(command, argv=(*command.argv, *arguments))
        self._store.register_runtime(agent.runtime)
        since, stopped = program_time(), None
        place = os.path.realpath(work_dir)  # as the agents write it
        situation = self._store.situation(session_id, provider)
        attendance = self._attendance(agent, situation, work_dir)
        with _NewSession(self._store, agent, session_id, work_dir, attendance) as new:
            try:
                if new_id is not None:
                    new.points_to(new_id)
                    with attendance:
                        code = run_program(agent, session_id, command, work_dir, new.lock)
                else:
                    with attendance, SessionFinder(agent, place, new.points_to):
                        code = run_program(agent, session_id, command, work_dir, None)
            except SystemExit as exc:  # the terminal was closed: what was said is in the history all the same
                code, stopped = 0, exc
            situation = self._store.situation(session_id, provider)
            policy = self._policy
            found = adopt_locked(self._store, agent, policy.resume, situation, vault=policy.vault)
        is_used = bool(found.adopted) or found.is_unfinished
        if not is_used:
            self._store.remove_session(session_id)
        wanted = ImportRequest((provider,), project=place, since=since)
        taken = self.importer.run(wanted)
        if stopped is not None:
            raise stopped
        return Opened(code, found.adopted, taken.imported + taken.updated, is_used)

    def _attendance(self, agent: Agent, situation: Situation, work_dir: str) -> Attendance:
        return Attendance(self._store, agent, situation.session, work_dir, self._policy.queue)

    @property
    def importer(self) -> Importer:
        return Importer(self._store, self.agents, self._policy)

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
        return recover_all(self._store, self.agents, self._policy.vault)

    def take_over(self, holder: Orphan, *, by_force: bool = False) -> Turn | None:
        """See ``recover_session``."""
        return recover_session(self._store, self.agents, self._policy.vault, holder, by_force=by_force)

    def adopt(self, pointers: Sequence[Pointer]) -> tuple[str, ...]:
        """Adopts turns made by hand, if this machine has the provider session. Returns notices for the person.

        ``pointers``: all of one session's, at least one.
        """
        # where the pointer names no runtime, the situation does
        if not any(
            one.runtime_id is None or self.agents.of_runtime(one.provider, one.runtime_id) for one in pointers
        ):
            return ()
        situation = self._store.situation(pointers[0].session_id)
        pointer = situation.pointer
        agent = None if pointer is None else self.agents.of_runtime(pointer.provider, pointer.runtime_id)
        if agent is None or situation.session.finalized_at is not None:
            return ()
        policy = self._policy
        return adopt_outside_turns(self._store, agent, policy.resume, situation, vault=policy.vault).notices

    def is_cut_off(self, session_id: SessionId) -> bool:
        """See ``Holdfast.is_cut_off``."""
        holder = self._store.holder(session_id)
        return holder is not None and has_lost_worker(holder, self.agents.machine, self._store.now())

    def seen_here(self, session_id: SessionId, state: SessionState) -> SessionState:
        """The state with what this machine can see: whether the processes that the store believes in are gone."""
        if state.status is not SessionStatus.RUNNING:
            return state
        with suppress(Forbidden):  # an agent may not ask who runs it
            if self.is_cut_off(session_id):
                return replace(state, status=SessionStatus.INTERRUPTED)
        if state.program is not None and self.agents.machine.is_gone(state.program.owner):
            return replace(state, status=SessionStatus.IDLE, program=None)
        return state

    def judge_here(self, judged: Decision, pointer: Pointer, seq: int) -> Decision:
        """The decision with what this machine can see, if the pointer was recorded on this machine."""
        try:
            agent = self.agents.get(pointer.provider)
        except HoldfastError:
            return judged  # the provider is not installed here: there is nothing more to see
        if agent.runtime.id != pointer.runtime_id or pointer.work_dir is None:
            return judged
        # what a lost worker has left running is ended before the next turn
        is_free = agent.lock(pointer.provider_session_id).is_free() or self.is_cut_off(pointer.session_id)
        planned = PlannedLaunch(seq, 0, pointer.work_dir, lock_free=is_free)
        decision = decide_here(self._store, judged, pointer, planned, agent, self._policy.resume)
        if not is_lost(decision):
            return decision
        with suppress(*UNRESTORED):
            rescue = rescue_session(self._store, self._policy, agent, pointer, dry_run=True)
            planned = replace(planned, rescue=rescue)
        return decide_here(self._store, judged, pointer, planned, agent, self._policy.resume)

    def restore(self, session_id: SessionId, *, dry_run: bool) -> tuple[Restoration, ...]:
        """Restores the provider sessions in which the session continues on this machine, each from the vault."""
        found: list[Restoration] = []
        elsewhere: list[str] = []
        for pointer in self._store.pointers(session_id):
            agent = self.agents.of_runtime(pointer.provider, pointer.runtime_id)
            if agent is None:
                known = {one.id: one.runtime for one in self._store.runtimes()}
                ran_on = None if pointer.runtime_id is None else known.get(pointer.runtime_id)
                where = "" if ran_on is None else f" ({ran_on.home} on the machine {ran_on.machine})"
                elsewhere.append(f"{pointer.provider} session {pointer.provider_session_id}{where}")
                continue
            with agent.lock(pointer.provider_session_id) as lock:
                if not lock.try_acquire():
                    raise Busy(f"the {pointer.provider} session of {session_id}")
                restoration = restore(self._store, self._policy.vault, agent, pointer, dry_run=dry_run)
            if restoration is not None:
                found.append(restoration)
        if not found and elsewhere:
            told = f"{', '.join(elsewhere)} ran on another machine, or in another home of the agent; run it there"
            raise Refused("runtime_changed", f"{told}: holdfast restore {session_id}")
        if not found:
            raise NotFound("agent session in the vault", str(session_id))
        return tuple(found)

    def _rescued(self, agent: Agent, situation: Situation, pointer: Pointer, observer: Observer) -> Decision:
        """The decision after the vault has put back what it has of the session."""
        with agent.lock(pointer.provider_session_id) as lock:
            if not lock.try_acquire():
                raise Busy(f"the {agent.provider.name} session of {situation.session.id}")
            rescue = rescue_session(self._store, self._policy, agent, pointer)
        if rescue is not None and rescue.restored is not None:
            observer(Noted(rescue.restored.words))
        return _decide(self._store, agent, self._policy.resume, situation, rescue)


class _NewSession:
    """A session on its way to the provider session that a program begins, with the lock on that one."""

    def __init__(
        self, store: Store, agent: Agent, session_id: SessionId, work_dir: str, attendance: Attendance
    ) -> None:
        self._attendance = attendance
        self._store = store
        self._agent = agent
        self._session_id = session_id
        self._request = TurnRequest(work_dir)
        self.lock: SessionLock | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.lock is not None:
            self.lock.release()

    def points_to(self, native: ProviderSessionId) -> bool:
        """False if the provider session belongs to another session: another program in this directory has begun it."""
        situation = self._store.situation(self._session_id, self._agent.provider.name)
        request = replace(self._request, provider_session_id=native)
        try:
            self._store.set_pointer(_pointer_to(self._agent, situation, request), unowned=True)
        except (Conflict, Refused):
            return False
        lock = self._agent.lock(native)
        if lock.try_acquire():
            self.lock = lock
        self._attendance.native = native
        return True


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
    found = _unused(store, agent, named, place)
    if found is None:
        return False
    path, named = found
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


def _unused(
    store: Store, agent: Agent, named: ProviderSessionId | None, place: str | None
) -> tuple[str, ProviderSessionId] | None:
    """The path and id of a provider session that is named, exists, and in which Holdfast has never run."""
    path = None if named is None else agent.archive.find(named, place)
    if named is None or path is None or store.attempts_in(agent.provider.name, named, 1):
        return None
    return path, named


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
            recover_session(store, agent.agents, policy.vault, store.holder(session_id))
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


def _decide(
    store: Store, agent: Agent, policy: ResumePolicy, situation: Situation, rescue: Rescue | None = None
) -> Decision:
    pointer = situation.pointer
    decision = store.explain(situation.session.id, agent.provider.name, runtime=agent.runtime)
    if pointer is None or pointer.work_dir is None:
        return decision
    planned = PlannedLaunch(situation.conversation.next_seq, 0, pointer.work_dir, rescue=rescue)
    # whether the lock is free shows when it is taken
    return decide_here(store, decision, pointer, planned, agent, policy)

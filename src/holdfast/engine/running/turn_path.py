"""Owns the path of a claimed turn: keep alive, look, compose, launch, judge, fall back, commit.

Every way out of the path commits the turn, and by then no process of the agent is left. If the lease is lost on the
way, nothing is written any more.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import TypeVar

from holdfast.clock import Instant, after, running_from, seconds_between
from holdfast.domain.decisions import Decision, Fork, Fresh, Reason, Refuse, Resume, Wait, because
from holdfast.domain.events import Called, DeniedCall, Returned
from holdfast.domain.failures import Failure, FailureClass, Retry, StopCause
from holdfast.domain.guards import only_natively
from holdfast.domain.notices import Notice, Occasion
from holdfast.domain.pointers import NO_RIGHTS, Rights
from holdfast.domain.policy import QueuePolicy
from holdfast.domain.records import replace
from holdfast.domain.telling.context import Composed
from holdfast.domain.telling.transcript import NOTHING_TOLD, ranges
from holdfast.domain.turns import Claim, Turn, TurnEnd, TurnStatus
from holdfast.domain.usage import NO_USAGE, ContextState, context_state, estimate_tokens
from holdfast.engine.restoring import UNRESTORED, Rescue, is_lost, mend, rescue_session
from holdfast.engine.result import RunInterrupted, RunResult
from holdfast.engine.running.compose import Composer
from holdfast.engine.running.launching import AttemptOutcome, Launcher, RunContext, SafeObserver
from holdfast.engine.running.log_subject import log_about
from holdfast.engine.running.provider_sessions import (
    AdoptionOutcome,
    PlannedLaunch,
    adopt_locked,
    adopt_outside_turns,
    calls_left_by,
    decide_here,
    is_left_by_history,
    last_directory,
    read_title,
)
from holdfast.engine.running.stopping import HeldSignals, KeepAlive
from holdfast.engine.running.tool_gate import (
    ask_for,
    awaited,
    is_void,
    opened_gate,
    refuse_beside_others,
    refuse_elsewhere,
)
from holdfast.engine.turn_requests import Starting, check_rights
from holdfast.engine.vault import Vault
from holdfast.errors import (
    OUTAGES,
    ConfigError,
    HoldfastError,
    InvalidInput,
    LeaseLost,
    NotFound,
    Refused,
    StoreCorrupt,
)
from holdfast.notifying import approval_notice, notify
from holdfast.processes.locks import SessionLock
from holdfast.processes.process import MAX_LINE
from holdfast.providers.contract import LaunchSpec, ToolGate
from holdfast.providers.report import MAX_RESPONSE, Ending

log = logging.getLogger("holdfast")

T = TypeVar("T")

_LOOK_EVERY = 0.1
#: (did the turn fork, did a fresh start help) -> what becomes of the session that could not be resumed
_RESUME_FAILED = {
    (False, True): (
        "the earlier session was answered with an error, a fresh one was not: "
        "the earlier one is not used again"
    ),
    (False, False): (
        "the earlier session was answered with an error, and a fresh one gave no answer either: "
        "the earlier one is kept"
    ),
    (True, True): (
        "the fork was answered with an error, a fresh session was not: "
        "this branch continues there, its source is kept"
    ),
    (True, False): (
        "the fork was answered with an error, and a fresh session gave no answer either: "
        "the next turn forks again"
    ),
}
_SKIPPED = (
    f"the agent printed a line of more than {MAX_LINE // 2**20} MiB, which was not read: "
    "the content of that line is missing here"
)
#: whether the answer was empty -> why there is nothing to resume
_NOT_SAVED = {
    True: "the answer was empty, and the agent did not keep the request: the next turn starts fresh, with the context",
    False: "the agent did not save its session: the next turn starts fresh, with the context",
}
_CANNOT_DEFER = "this version of the agent cannot wait for the approval of its tool calls, as its rights say"


class TurnPath:
    """One claimed turn on its way through this process; ``walk`` is called once."""

    def __init__(self, context: RunContext, claim: Claim, notices: Iterable[str] = ()) -> None:
        self._context = replace(context, observer=SafeObserver(context.observer))
        self._store = context.store
        self._agent = context.agent
        self._policy = context.policy
        self._deadline = time.monotonic() + context.timeout_seconds
        self._claim = claim
        #: the pointer at the claim: where and how the session worked before; a fallback keeps it
        self._before = claim.pointer
        self._alive = KeepAlive(context.store, claim.lease, context.policy.queue, context.agent.machine)
        self._composer = Composer(context.store, context.agent, context.policy)
        self._clock = running_from(claim.situation.now)  #: to read the clock of a server takes a transaction
        self._signals = HeldSignals()
        self._launcher: Launcher | None = None  #: of the attempt that runs
        self._told = NOTHING_TOLD  #: what of the past was sent with the last launch
        #: at the last look, the provider's session ended with a turn that a person has begun there
        self._is_unfinished = False
        self._remarks = dict.fromkeys(notices)  #: notices for the person, each once

    def walk(self) -> RunResult:
        """Runs the turn and commits it. Raises LeaseLost if another worker has the turn, RunInterrupted if this process
        was stopped."""
        with self._alive, self._signals:
            try:
                outcome = self._attempt()
                if outcome.ending.refused and self._may_fall_back(outcome):
                    outcome = self._fall_back(outcome)
                self._once_reachable(self._write_rest)
                if outcome.ending.failure is not None:
                    self._once_reachable(self._record_saved_calls)
                self._find_denied(outcome)
                self._mirror(outcome)
                result = self._once_reachable(lambda: self._commit(outcome))
            except LeaseLost:
                raise
            except BaseException as exc:
                self._give_up(exc)
                raise
            if outcome.interruption is None and not self._signals.is_pending:
                self._tell(result)
        interruption = outcome.interruption or self._signals.postponed()
        if interruption is not None:
            raise RunInterrupted(result) from interruption
        return result

    def hand_back(self) -> None:
        """Ends the agent, and lets another worker continue the turn. Called from another thread."""
        self._alive.tell(StopCause.HANDED_BACK)

    # --- one attempt ---

    def _attempt(self) -> AttemptOutcome:
        """Tries to run the agent. If another process holds the provider session, it tries again, a few times."""
        work_dir = self._once_reachable(self._work_dir)
        launcher = self._launcher = Launcher(
            self._context, self._claim.lease, self._alive, self._signals, self._deadline, self._clock
        )
        delays = iter(lock_delays(self._policy.queue))
        while True:
            # if the store cannot be reached in here, nothing was launched yet
            outcome = self._once_reachable(lambda: self._try_once(launcher, work_dir))
            delay = next(delays, None)
            if not self._may_try_again(outcome) or delay is None or self._must_end_within(delay):
                return outcome

    def _may_try_again(self, outcome: AttemptOutcome) -> bool:
        """Whether another process holds the session, and the agent has done nothing yet.

        An agent that was launched with the answer to an approval may have acted on it, whatever it reported.
        """
        may_have_acted = self._claim.approval is not None and not isinstance(outcome.decision, Wait)
        failure, report = outcome.ending.failure, outcome.report
        is_locked = failure is not None and failure.then.waits_for_lock
        return is_locked and not report.tools and report.response is None and not may_have_acted

    def _work_dir(self) -> str:
        """The directory that was asked for, else the one where the session worked before, else the current one.

        A directory that was recorded on another runtime counts only if it exists here.
        """
        asked = self._claim.turn.request.work_dir
        if asked is not None:
            return asked
        recorded = None if self._before is None else self._before.work_dir
        recorded = recorded or last_directory(self._store, self._claim.situation, self._claim.turn.seq + 1)
        ran_here = self._before is not None and self._before.runtime_id in (None, self._agent.runtime.id)
        if recorded is not None and (ran_here or Path(recorded).is_dir()):
            return recorded
        return str(Path.cwd())

    def _try_once(self, launcher: Launcher, work_dir: str) -> AttemptOutcome:
        """Locks the provider session, looks at it, composes the prompt, decides again, and launches the agent."""
        if self._claim.approval is not None:
            moved = refuse_elsewhere(self._claim.situation.tries_of(self._claim.turn.seq), work_dir)
            if moved is not None:
                return self._not_launched(moved, work_dir)
        failure = self._cannot_run(work_dir)
        if failure is not None:
            return AttemptOutcome(self._claim.decision, Ending(failure), work_dir)
        with ExitStack() as held:
            lock = self._lock(held)
            is_free = lock is None or lock.try_acquire()
            claimed, composed, decision = self._look(work_dir, is_free=is_free)
            if is_free and is_lost(decision) and (rescue := self._rescue()) is not None:
                claimed, composed, decision = self._look(work_dir, is_free=True, rescue=rescue)
            match decision:
                case Wait() | Refuse():
                    return self._not_launched(decision, work_dir)
                case Resume() | Fork() | Fresh():
                    if type(decision) is not type(claimed):
                        composed = self._compose(decision, work_dir)
                        lock = None
                    self._mend(decision, work_dir)
                    self._told = composed.past if composed else NOTHING_TOLD
                    gate = held.enter_context(self._gate())
                    outcome = launcher.launch(
                        self._launch_spec(decision, composed, work_dir, gate), lock, self._told.covers,
                        self._starting(work_dir),
                    )  # fmt: skip
                    self._mend(
                        decision, work_dir
                    )  # what a resume has left may make the agent delete the session
                    if self._is_unfinished and isinstance(decision, Resume):
                        self._adopt_broken_off()
                    return outcome

    def _starting(self, work_dir: str) -> Starting:
        turn, before = self._claim.turn, self._before
        idle = None if before is None else seconds_between(before.updated_at, self._claim.situation.now)
        return Starting(
            turn.provider, turn.seq, work_dir, len(self._told.turns), len(self._told.cuts.left_out), idle
        )

    def _look(
        self, work_dir: str, *, is_free: bool, rescue: Rescue | None = None
    ) -> tuple[Decision, Composed | None, Decision]:
        """The claim's decision as it is corrected by what the provider's session holds, the prompt, and the decision here."""
        claimed = self._as_seen() if is_free else self._claim.decision
        composed = self._compose(claimed, work_dir)
        turn = self._claim.turn
        planned = PlannedLaunch(
            turn.seq, estimate_tokens(composed.text if composed else ""), work_dir,
            turn.request.provider_session_id, is_free, rescue,
        )  # fmt: skip
        decision = decide_here(
            self._store, claimed, self._claim.pointer, planned, self._agent, self._policy.resume
        )
        if self._claim.approval is not None:
            named = claimed.provider_session_id if isinstance(claimed, Resume) else None
            decision = only_natively(decision, named)
        return claimed, composed, decision

    def _rescue(self) -> Rescue | None:
        """Restores the provider's session from the vault, as the policy says; None if the vault does not help.

        Where that fails, the person is told, and the turn goes on as it would without the vault.
        """
        pointer = self._claim.pointer
        if pointer is None:
            return None
        try:
            with ExitStack() as held:
                if pointer.is_fork_source:  # the lock on any other session is held already
                    lock = held.enter_context(self._agent.lock(pointer.provider_session_id))
                    if not lock.try_acquire():
                        return None
                rescue = rescue_session(self._store, self._policy, self._agent, pointer)
        except UNRESTORED as exc:
            self._remark(f"the agent's session files could not be restored from the vault: {exc.message}")
            return None
        if rescue is None or rescue.restored is None:
            return rescue
        self._remark(rescue.restored.words)
        return rescue if rescue.restored.helps else None

    def _mend(self, decision: Decision, work_dir: str) -> None:
        """Mends the session that is resumed, before and after it. Where that fails, the session stays as it is."""
        if isinstance(decision, Resume):
            try:
                mend(self._agent, decision.provider_session_id, work_dir)
            except Refused as exc:
                self._remark(exc.message)

    def _as_seen(self) -> Decision:
        """The claim's decision, corrected by what the provider's session holds now.

        The caller holds the lock on the session that the decision names.
        """
        decision, pointer = self._claim.decision, self._claim.pointer
        if isinstance(decision, Fresh):
            self._adopt_left_behind(decision)
        if pointer is None or not isinstance(decision, Resume):
            return decision
        found = adopt_locked(
            self._store, self._agent, self._policy.resume, self._claim.situation, self._claim.lease
        )
        self._take_up(found)
        self._is_unfinished = found.is_unfinished
        pointer = found.situation.pointer
        if pointer is None or pointer.provider_session_id != decision.provider_session_id:
            return decision
        return replace(decision, catch_up=pointer.catch_up(self._claim.turn.seq))

    def _take_up(self, found: AdoptionOutcome) -> None:
        """Continues with the situation after turns were adopted."""
        self._remark(*found.notices)
        stored = found.situation.pointer
        is_same = (
            stored is not None
            and self._claim.pointer is not None
            and (stored.provider_session_id == self._claim.pointer.provider_session_id)
        )
        pointer = stored if is_same else self._claim.pointer
        self._claim = replace(self._claim, situation=found.situation, pointer=pointer)

    def _adopt_left_behind(self, decision: Fresh) -> None:
        """Adopts turns from the session that a fresh start leaves, so that the fresh session is told of them."""
        if self._claim.pointer is None or is_left_by_history(decision):
            return
        self._take_up(
            adopt_outside_turns(
                self._store, self._agent, self._policy.resume, self._claim.situation, self._claim.lease
            )
        )

    def _adopt_broken_off(self) -> None:
        """Adopts the turn that a person had begun in the session before this one."""
        store, turn = self._store, self._claim.turn

        def look_again() -> AdoptionOutcome:
            # the launch has moved the pointer since the claim, so the situation is read again
            situation = store.situation(turn.session_id, turn.provider)
            return adopt_locked(store, self._agent, self._policy.resume, situation, self._claim.lease)

        with suppress(HoldfastError):  # the answer counts even if this fails
            found = self._once_reachable(look_again)
            self._take_up(found)  # otherwise the next look would use a pointer that this one has moved
            self._is_unfinished = found.is_unfinished

    def _cannot_run(self, work_dir: str) -> Failure | None:
        rights = self._rights()
        if not Path(work_dir).is_dir():
            return Failure(FailureClass.CONFIG, f"the work directory {work_dir} does not exist")
        if (refused := self._refused_rights()) is not None:
            return refused
        if rights.approve_tools and not self._agent.runtime.capabilities.can_defer:
            return Failure(FailureClass.CONFIG, _CANNOT_DEFER)
        if rights.approve_tools or self._claim.approval is not None:
            return refuse_beside_others(self._agent, work_dir, rights, self._policy.approvals)
        return None

    def _not_launched(self, decision: Wait | Refuse, work_dir: str) -> AttemptOutcome:
        self._context.observer(decision)
        return AttemptOutcome(decision, Ending(_why_not(decision)), work_dir)

    def _compose(self, decision: Decision, work_dir: str) -> Composed | None:
        """The prompt; None if the agent gets only the answer to a call that waited for approval."""
        if self._claim.approval is not None:
            return None
        composed = self._composer.compose(self._claim, decision, work_dir)
        self._remark(*composed.notices)
        return composed

    def _remark(self, *notices: str) -> None:
        self._remarks |= dict.fromkeys(notices)

    def _gate(self) -> AbstractContextManager[ToolGate | None]:
        can_defer = self._agent.runtime.capabilities.can_defer
        waited = self._claim.situation.withheld if can_defer else frozenset()
        return opened_gate(self._rights(), waited, self._claim.approval)

    def _lock(self, held: ExitStack) -> SessionLock | None:
        """The lock on the provider session that is resumed, or that a fresh start names.

        A fork only reads its source, and nobody else knows a session that does not exist yet.
        """
        decision = self._claim.decision
        named = decision.provider_session_id if isinstance(decision, Resume | Fresh) else None
        return None if named is None else held.enter_context(self._agent.lock(named))

    def _launch_spec(
        self, decision: Resume | Fork | Fresh, composed: Composed | None, work_dir: str, gate: ToolGate | None
    ) -> LaunchSpec:
        new_id = None
        if isinstance(decision, Resume | Fork):  # the attempt records the turns that the prompt tells of
            decision = replace(decision, catch_up=ranges(self._told.turns))
        if not isinstance(decision, Resume):
            asked = decision.provider_session_id if isinstance(decision, Fresh) else None
            chooses = self._agent.runtime.capabilities.chooses_id
            new_id = asked or (self._agent.provider.mint_id(decision) if chooses else None)
        model = self._claim.turn.request.else_recorded(self._before).model
        return LaunchSpec(
            self._agent.binary, self._agent.runtime.home, work_dir, composed.text if composed else None,
            decision, new_id, model,
            self._rights(), gate, self._agent.runtime.capabilities.partial_text,
        )  # fmt: skip

    def _rights(self) -> Rights:
        """The rights are recorded at the session's first launch; each later launch gets the same ones."""
        request = self._claim.turn.request
        rights = request.else_recorded(self._before).rights or NO_RIGHTS
        # the tool gate belongs to the session: it stays when the pointer is lost or the provider changes
        patterns = rights.approve_tools | request.approve_tools
        if request.allow_wider_rights and not self._agent.runtime.capabilities.can_defer:
            patterns = frozenset()  # a person accepted to continue without the gate
        return replace(rights, approve_tools=patterns)

    def _refused_rights(self) -> Failure | None:
        """Checks the rights again where the turn runs: the program that queued the turn may not have checked them."""
        rights, turn = self._rights(), self._claim.turn
        recorded = None if self._before is None else self._before.rights
        accepted = recorded is not None and rights.extra_args == recorded.extra_args
        # the command of a person has checked the arguments, and may repeat those that the session began with
        allow_wider = turn.request.allow_wider_rights or turn.foreground or accepted
        try:
            check_rights(rights, self._agent.provider, allow_wider=allow_wider)
        except InvalidInput as exc:
            return Failure(FailureClass.CONFIG, exc.message)
        return None

    def _must_end_within(self, seconds: float) -> bool:
        """Waits so many seconds. True if the turn must end."""
        until = min(time.monotonic() + seconds, self._deadline)
        while not self._must_end() and time.monotonic() < until:
            time.sleep(_LOOK_EVERY)
        return self._must_end() or until == self._deadline

    def _must_end(self) -> bool:
        return self._alive.cause is not None or self._signals.is_pending

    # --- what follows ---

    def _may_fall_back(self, outcome: AttemptOutcome) -> bool:
        """Whether a fresh session may replace this one.

        A session that was asked for by name, or that holds a call that waits, is never replaced.
        """
        named = self._claim.turn.request.provider_session_id is not None or self._claim.approval is not None
        return not named and outcome.interruption is None and not self._must_end()

    def _fall_back(self, outcome: AttemptOutcome) -> AttemptOutcome:
        lease, failure, key = self._claim.lease, outcome.ending.failure, os.urandom(16).hex()
        assert failure is not None
        self._once_reachable(self._write_rest)
        self._claim = self._once_reachable(
            lambda: self._store.fall_back(lease, failure, key, outcome.report.usage)
        )
        self._alive.replace(self._claim.lease)
        log_about(self._claim.lease)
        return self._attempt()

    def _write_rest(self) -> None:
        """Writes the events that an outage kept back: they must be written before their attempt ends."""
        if self._launcher is not None:
            self._launcher.write_rest()

    def _record_saved_calls(self) -> None:
        """Records the calls that an agent made and did not report because it was stopped."""
        with suppress(
            InvalidInput, NotFound, StoreCorrupt
        ):  # the turn must end even if its calls cannot be read
            late = calls_left_by(self._store, self._agent.agents, self._claim.lease)
            if late:
                self._store.record_events(self._claim.lease, late)

    def _find_denied(self, outcome: AttemptOutcome) -> None:
        """Looks for denied calls in the agent's own session, if the agent does not report them."""
        provider, rights, native = self._agent.provider, self._rights(), outcome.report.session_id
        if not provider.denies_silently or outcome.mark is None or native is None:
            return
        is_resumed = self._before is not None and isinstance(outcome.decision, Resume)
        before = self._before.transcript if self._before is not None and is_resumed else None
        called: dict[str, Called] = {}
        for read in self._agent.archive.read(outcome.mark.path, native, before).turns:
            for event in read.events:
                if isinstance(event, Called):
                    called[event.call_id] = event
                elif isinstance(event, Returned) and (why := provider.denial(rights, event)) is not None:
                    call = called.get(event.call_id) or Called(event.call_id, "", {})
                    outcome.report.denied.append(DeniedCall(call, why))

    def _mirror(self, outcome: AttemptOutcome) -> None:
        """Copies the agent's own session into the vault, before a pointer to it is written.

        The turn ends all the same if that fails: the next turn of the session makes up for it.
        """
        session_id = outcome.report.session_id
        if self._policy.vault.mode == "off" or outcome.mark is None or session_id is None:
            return
        is_new = not isinstance(outcome.decision, Resume)
        problem = Vault(self._store, self._policy.vault).mirror(
            self._agent, outcome.mark.path, session_id, outcome.work_dir, is_new=is_new
        )
        if problem is not None:
            self._remark(f"the vault has no copy of this turn: {problem}")

    def _commit(self, outcome: AttemptOutcome) -> RunResult:
        with self._alive.ending():
            turn = self._end(outcome)
        return self._result(outcome, turn)

    def _end(self, outcome: AttemptOutcome) -> Turn:
        lease, failure, report = self._claim.lease, outcome.ending.failure, outcome.report
        if isinstance(outcome.decision, Wait):
            later = self._later(self._policy.queue.lock_delay_seconds)
            return self._store.put_back(lease, later, _why_not(outcome.decision))
        if failure is not None and self._alive.cause is not None and self._alive.cause.then.is_put_back:
            return self._store.put_back(lease)
        # the agent is not installed here (any more), so nothing was done: another machine may have it
        if failure is not None and failure.then.is_put_back and not self._claim.turn.foreground:
            later = self._later(self._policy.queue.retry_delay_seconds)
            return self._store.put_back(lease, later, failure)
        if outcome.ending.deferred is not None and outcome.mark is None:
            failure = Failure(FailureClass.UNKNOWN, "the agent did not save the call that was to wait")
        approval, deferred = None, outcome.ending.deferred
        if failure is None and deferred is not None:
            agent = self._claim.situation.session.agent
            approval = ask_for(deferred, agent, self._store, self._policy.approvals)
        # without a mark, the next look reads again the turn that a person has begun and not ended
        is_beside_a_person = self._is_unfinished and isinstance(outcome.decision, Resume)
        end = TurnEnd(
            TurnStatus.WAITING if approval is not None else _status(failure),
            response=report.response,
            failure=failure,
            provider_session_id=report.session_id,
            resumable=failure is not None or outcome.mark is not None,
            transcript=None if is_beside_a_person else outcome.mark,
            usage=report.usage,
            retry_at=self._retry_at(outcome),
            approval=approval,
            refused_by=outcome.decision.reason if isinstance(outcome.decision, Refuse) else None,
            title=self._title(outcome),
        )
        return self._store.finish_turn(lease, end)

    def _title(self, outcome: AttemptOutcome) -> str | None:
        native, mark = outcome.report.session_id, outcome.mark
        if native is None or mark is None:
            return None
        return read_title(self._agent, mark.path, native, self._claim.situation.session)

    def _once_reachable(self, verb: Callable[[], T]) -> T:
        """Repeats ``verb`` while the store cannot be reached, at most for the grace period of the lease."""
        until = time.monotonic() + self._policy.queue.grace_seconds
        while True:
            try:
                return verb()
            except OUTAGES:
                if time.monotonic() >= until:
                    raise
                time.sleep(_LOOK_EVERY)

    def _retry_at(self, outcome: AttemptOutcome) -> Instant | None:
        failure = outcome.ending.failure
        if failure is None:
            return None
        if failure.then.retry is Retry.AT_RESET:
            return outcome.ending.reset_at
        if self._is_tried_again(outcome, failure) and not self._same_again(failure):
            return self._later(self._policy.queue.retry_delay_seconds)
        return None

    def _is_tried_again(self, outcome: AttemptOutcome, failure: Failure) -> bool:
        """Whether the turn is tried again later. A turn that a person stopped, or that took too long, is not."""
        if failure.then.retry is Retry.UNLESS_STOPPED:
            may_run_again = outcome.stopped is None or outcome.stopped.then.is_tried_again
            return outcome.interruption is None and may_run_again
        return failure.then.retry is Retry.LATER

    def _same_again(self, failure: Failure) -> bool:
        """Whether this very error has come so often that a person must look at it."""
        turn = self._claim.turn
        before = [each.failure for each in self._claim.situation.tries_of(turn.seq) if each.failure]
        same = sum(known.message == failure.message for known in before)
        return same + 1 >= self._policy.queue.same_error_limit

    def _later(self, seconds: float) -> Instant:
        return after(self._store.now(), seconds)

    def _result(self, outcome: AttemptOutcome, turn: Turn) -> RunResult:
        attempts = self._store.attempts(turn.conversation_id, turn.seq)
        return RunResult(
            turn.session_id, turn.seq, turn.status, turn.response, outcome.decision, turn.provider,
            attempts[-1].provider_session_id, outcome.work_dir,
            sum((attempt.usage for attempt in attempts), NO_USAGE), self._failure(outcome, turn), self._claim.situation.session.name, self._notices(outcome),
            awaited(self._store, turn), self._told, tuple(outcome.report.denied), self._allowing(outcome),
        )  # fmt: skip

    def _allowing(self, outcome: AttemptOutcome) -> Rights | None:
        """The rights with which the agent may make the calls that it was denied; None if no option gives them."""
        had = rights = self._rights()
        for denied in outcome.report.denied:
            rights = self._agent.provider.allowing(rights, denied.call, outcome.work_dir)
        return None if rights == had else rights

    def _tell(self, result: RunResult) -> None:
        """Sends a notice if the turn needs a person."""
        notice = turn_notice(result, self._claim.situation.session.agent, self._clock())
        if notice is not None:
            notify(self._policy.notify, notice)

    def _failure(self, outcome: AttemptOutcome, turn: Turn) -> Failure | None:
        """The failure of the turn. The store does not keep one for a turn that is queued again: the run knows it."""
        waits = isinstance(outcome.decision, Wait) or turn.status is TurnStatus.QUEUED
        return outcome.ending.failure if waits else turn.failure

    def _notices(self, outcome: AttemptOutcome) -> tuple[str, ...]:
        notices = list(self._remarks)
        answered = self._claim.approval
        if answered is not None and is_void(self._store, answered):
            notices.append(f"approval {answered.id} is void, and the call was not made")
        if outcome.decision.reason is Reason.RESUME_FAILED:
            has_forked = self._before is not None and self._before.is_fork_source
            notices.append(_RESUME_FAILED[has_forked, outcome.ending.failure is None])
        if self._told.cuts:
            notices.append(f"the past was too long to be told whole: {self._told.cuts.words}")
        if outcome.ending.is_answered and outcome.mark is None:
            notices.append(_NOT_SAVED[outcome.report.is_empty])
        failure, login = outcome.ending.failure, self._agent.provider.login
        if failure is not None and failure.then.needs_login and login:
            notices.append(
                f"{self._agent.provider.name} is not logged in, or its account may not do this: {login}"
            )
        if outcome.report.is_cut:
            notices.append(f"the answer was too long: its first {MAX_RESPONSE:,} characters are kept")
        if outcome.report.skipped_lines:
            notices.append(_SKIPPED)
        if outcome.left_behind:
            notices.append("a process that the agent started could not be ended")
        context = outcome.report.usage.context
        if context is not None and context_state(context, self._policy.resume) is not ContextState.OK:
            notices.append(f"the context window is {context.tokens / context.window:.0%} full")
        return tuple(notices)

    def _give_up(self, error: BaseException) -> None:
        """Ends the turn after an unexpected error. If the store refuses that, recovery will find the turn."""
        message = (
            str(error)
            if isinstance(error, HoldfastError)
            else f"holdfast was stopped ({type(error).__name__})"
        )
        kind = (
            FailureClass.CONFIG if isinstance(error, ConfigError | InvalidInput) else FailureClass.INTERRUPTED
        )
        end = TurnEnd(TurnStatus.FAILED, failure=Failure(kind, message))
        with suppress(HoldfastError):
            if kind.then.retry is not Retry.NEVER and isinstance(error, Exception):
                end = replace(end, retry_at=self._later(self._policy.queue.retry_delay_seconds))
            self._store.finish_turn(self._claim.lease, end)


def turn_notice(result: RunResult, agent: str, at: Instant) -> Notice | None:
    """The notice of a turn that needs a person: it asks something, it failed for good, or a limit was reached."""
    if result.approval is not None:
        return approval_notice(result.approval, agent)
    failure = result.failure
    if failure is None:
        return None
    if failure.then.retry is Retry.AT_RESET:
        occasion = Occasion.LIMIT_REACHED
    elif result.turn_status is TurnStatus.FAILED:
        occasion = Occasion.TURN_FAILED
    else:
        return None
    what = f"{failure.failure_class}: {failure.message}"
    return Notice(occasion, result.session_id, agent, what, result.continue_with, at, result.turn)


def lock_delays(policy: QueuePolicy) -> tuple[float, ...]:
    """The seconds between the tries to get a session that is locked."""
    return tuple(policy.lock_delay_seconds * policy.lock_backoff**n for n in range(policy.lock_tries - 1))


def _why_not(decision: Wait | Refuse) -> Failure:
    kind = FailureClass.LOCKED if isinstance(decision, Wait) else FailureClass.REFUSED
    return Failure(kind, because(decision).message)


def _status(failure: Failure | None) -> TurnStatus:
    if failure is None:
        return TurnStatus.DONE
    return TurnStatus.CANCELLED if failure.then.is_cancellation else TurnStatus.FAILED

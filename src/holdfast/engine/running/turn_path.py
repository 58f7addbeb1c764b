"""Owns the path of a claimed turn: keep alive, look, compose, launch, judge, fall back, commit.

Every way out commits the turn, and no process of it is left when it does. Whoever loses the lease on
the way changes nothing any more.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from holdfast.clock import Instant, after, running_from
from holdfast.domain.approvals import NewApproval
from holdfast.domain.decisions import Decision, Fork, Fresh, Reason, Refuse, Resume, Wait, because
from holdfast.domain.events import Deferred
from holdfast.domain.failures import Failure, FailureClass, Retry
from holdfast.domain.guards import only_natively
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.notices import Notice, Occasion
from holdfast.domain.pointers import NO_RIGHTS, Rights
from holdfast.domain.policy import QueuePolicy
from holdfast.domain.telling.context import Composed
from holdfast.domain.telling.transcript import NOTHING_TOLD, ranges
from holdfast.domain.turns import Claim, Turn, TurnEnd, TurnStatus
from holdfast.domain.usage import NO_USAGE, ContextState, context_state, estimate_tokens
from holdfast.engine.asked import check_rights
from holdfast.engine.result import RunInterrupted, RunResult
from holdfast.engine.running.compose import Composer
from holdfast.engine.running.launching import AttemptOutcome, Audience, Launcher, RunContext
from holdfast.engine.running.log_subject import go_on_about
from holdfast.engine.running.look import PlannedLaunch, decide_here, last_directory
from holdfast.engine.running.outside import Outside, adopt_locked, adopt_outside_turns, is_left_by_history
from holdfast.engine.running.recognition import calls_left_by
from holdfast.engine.running.stopping import KeepAlive, Stops
from holdfast.engine.running.tool_gate import (
    ask_for,
    awaited,
    is_void,
    opened_gate,
    refuse_beside_others,
    refuse_elsewhere,
)
from holdfast.errors import (
    OUTAGES,
    ConfigError,
    HoldfastError,
    InvalidInput,
    LeaseLost,
    NotFound,
    StoreCorrupt,
    StoreError,
)
from holdfast.notifying import approval_notice, notify
from holdfast.processes.locks import SessionLock
from holdfast.processes.process import MAX_LINE, StopCause
from holdfast.providers.contract import LaunchSpec, ToolGate
from holdfast.providers.report import MAX_RESPONSE, Ending

T = TypeVar("T")

_LOOK_EVERY = 0.1
#: (did the turn fork, did a fresh start help) -> what becomes of the session that the fresh one stood in for
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
    f"the agent gave out a line of more than {MAX_LINE // 2**20} MiB, which was not read: "
    "what stood in it is missing here"
)
#: whether the answer was empty -> why there is nothing to resume
_NOT_SAVED = {
    True: "the answer was empty, and the agent did not keep the request: the next turn starts fresh, with the context",
    False: "the agent did not save its session: the next turn starts fresh, with the context",
}
_CANNOT_DEFER = "this version of the agent cannot wait for the approval of its tool calls, as its rights say"


class TurnPath:
    def __init__(self, context: RunContext, claim: Claim, notices: Iterable[str] = ()) -> None:
        self._context = replace(context, observer=Audience(context.observer))
        self._store = context.store
        self._agent = context.agent
        self._policy = context.policy
        self._deadline = time.monotonic() + context.timeout_seconds
        self._claim = claim
        self._before = (
            claim.pointer
        )  #: where and how the session has worked; it outlives the provider session, and a fallback
        self._alive = KeepAlive(context.store, claim.lease, context.policy.queue, context.agent.machine)
        self._composer = Composer(context.store, context.agent, context.policy)
        self._clock = running_from(claim.situation.now)  #: to look at a server's own clock is a transaction
        self._stops = Stops()
        self._launcher: Launcher | None = None  #: of the attempt that runs
        self._told = NOTHING_TOLD  #: with the last launch
        self._is_unfinished = False  #: a turn that a person made in the provider's session, at the last look
        self._remarks = dict.fromkeys(notices)  #: for the person, each once

    def walk(self) -> RunResult:
        """LeaseLost if the turn is somebody else's by now; RunInterrupted if this process was stopped."""
        with self._alive, self._stops:
            try:
                outcome = self._attempt()
                if outcome.ending.refused and self._may_fall_back(outcome):
                    outcome = self._fall_back(outcome)
                self._once_reachable(self._write_rest)
                if outcome.ending.failure is not None:
                    self._once_reachable(self._record_saved_calls)
                result = self._once_reachable(lambda: self._commit(outcome))
            except LeaseLost:
                raise
            except BaseException as exc:
                self._give_up(exc)
                raise
            if outcome.interruption is None and not self._stops.is_wanted:
                self._tell(result)
        interruption = outcome.interruption or self._stops.postponed()
        if interruption is not None:
            raise RunInterrupted(result) from interruption
        return result

    def hand_back(self) -> None:
        """From another thread: end the agent, and let another worker go on with the turn."""
        self._alive.tell(StopCause.HANDED_BACK)

    # --- one attempt ---

    def _attempt(self) -> AttemptOutcome:
        """A session that another process still holds is waited for, a bounded time."""
        work_dir = self._once_reachable(self._work_dir)
        launcher = self._launcher = Launcher(
            self._context, self._claim.lease, self._alive, self._stops, self._deadline, self._clock
        )
        delays = iter(lock_delays(self._policy.queue))
        while True:
            # what fails for want of the store has launched nothing yet
            outcome = self._once_reachable(lambda: self._try_once(launcher, work_dir))
            delay = next(delays, None)
            if not self._may_try_again(outcome) or delay is None or self._must_end_within(delay):
                return outcome

    def _may_try_again(self, outcome: AttemptOutcome) -> bool:
        """Once an agent was launched with an answer, nobody can tell that it did not act on it."""
        acted = self._claim.approval is not None and not isinstance(outcome.decision, Wait)
        return _is_locked(outcome) and not acted

    def _work_dir(self) -> str:
        """The one that was asked for, else where the session worked before; on another runtime, only if it is there too."""
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
        elsewhere = self._refused_elsewhere(work_dir)
        if elsewhere is not None:
            return self._not_launched(elsewhere, work_dir)
        failure = self._cannot_run(work_dir)
        if failure is not None:
            return AttemptOutcome(self._claim.decision, Ending(failure), work_dir)
        with ExitStack() as held:
            lock = self._lock(held)
            is_free = lock is None or lock.try_acquire()
            claimed = self._as_seen() if is_free else self._claim.decision
            composed = self._compose(claimed, work_dir)
            turn = self._claim.turn
            planned = PlannedLaunch(
                turn.seq, estimate_tokens(composed.text if composed else ""), work_dir,
                turn.request.provider_session_id, lock_free=is_free,
            )  # fmt: skip
            decision = decide_here(
                self._store, claimed, self._claim.pointer, planned, self._agent, self._policy.resume,
            )  # fmt: skip
            if self._claim.approval is not None:
                decision = only_natively(decision, _session_of(claimed))
            match decision:
                case Wait() | Refuse():
                    return self._not_launched(decision, work_dir)
                case Resume() | Fork() | Fresh():
                    if type(decision) is not type(claimed):
                        composed = self._compose(decision, work_dir)
                        lock = None
                    self._told = composed.past if composed else NOTHING_TOLD
                    gate = held.enter_context(self._gate())
                    outcome = launcher.launch(
                        self._launch_spec(decision, composed, work_dir, gate), lock, self._told.covers
                    )
                    if self._is_unfinished and isinstance(decision, Resume):
                        self._adopt_broken_off()
                    return outcome

    def _as_seen(self) -> Decision:
        """The claim's decision, with what the provider's session really holds: look, then say.

        To be called with the lock on the session that the decision names.
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

    def _take_up(self, found: Outside) -> None:
        """Continue from the situation after turns were adopted."""
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
        """What only the session holds that a fresh start leaves behind joins the history before that is told."""
        if self._claim.pointer is None or is_left_by_history(decision):
            return
        self._take_up(
            adopt_outside_turns(
                self._store, self._agent, self._policy.resume, self._claim.situation, self._claim.lease
            )
        )

    def _adopt_broken_off(self) -> None:
        """What a person had begun in the session joins the history, as far as it came. Our answer counts anyway."""
        with suppress(HoldfastError):
            self._once_reachable(self._look_again)

    def _look_again(self) -> None:
        """The launch has moved the pointer since the claim."""
        turn = self._claim.turn
        situation = self._store.situation(turn.session_id, turn.provider)
        found = adopt_locked(self._store, self._agent, self._policy.resume, situation, self._claim.lease)
        self._take_up(found)  # or the next look would be by a pointer that this one has moved
        self._is_unfinished = found.is_unfinished

    def _refused_elsewhere(self, work_dir: str) -> Refuse | None:
        if self._claim.approval is None:
            return None
        return refuse_elsewhere(self._claim.situation.tries_of(self._claim.turn.seq), work_dir)

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
        """None: the call that waits is answered, and nothing is said to the agent."""
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
        """Forking only reads; a session that does not exist yet is nobody else's."""
        decision = self._claim.decision
        named = decision.provider_session_id if isinstance(decision, Resume | Fresh) else None
        return None if named is None else held.enter_context(self._agent.lock(named))

    def _launch_spec(
        self, decision: Resume | Fork | Fresh, composed: Composed | None, work_dir: str, gate: ToolGate | None
    ) -> LaunchSpec:
        new_id = None
        if isinstance(decision, Resume | Fork):  # what it has missed is what it is told of
            decision = replace(decision, catch_up=ranges(self._told.turns))
        if not isinstance(decision, Resume):
            asked = decision.provider_session_id if isinstance(decision, Fresh) else None
            chooses = self._agent.runtime.capabilities.chooses_id
            new_id = asked or (self._agent.provider.mint_id(decision) if chooses else None)
        model = self._claim.turn.request.else_recorded(self._before).model
        return LaunchSpec(
            self._agent.binary, self._agent.runtime.home, work_dir, composed.text if composed else None,
            decision, new_id, model,
            self._rights(), gate,
        )  # fmt: skip

    def _rights(self) -> Rights:
        """Recorded at the first launch, replayed on each one after it."""
        request = self._claim.turn.request
        rights = request.else_recorded(self._before).rights or NO_RIGHTS
        # a gate is the session's: it does not go with a pointer that was lost, or with another provider
        patterns = rights.approve_tools | request.approve_tools
        if request.allow_wider_rights and not self._agent.runtime.capabilities.can_defer:
            patterns = frozenset()  # a person said to go on without
        return replace(rights, approve_tools=patterns)

    def _refused_rights(self) -> Failure | None:
        """Whoever put the turn in may have been asked by another program, or by none: checked again, where it runs."""
        rights, turn = self._rights(), self._claim.turn
        recorded = None if self._before is None else self._before.rights
        accepted = recorded is not None and rights.extra_args == recorded.extra_args
        # a person's own command has checked what it was given, and may repeat what a session began with
        allow_wider = turn.request.allow_wider_rights or turn.foreground or accepted
        try:
            check_rights(rights, self._agent.provider, allow_wider=allow_wider)
        except InvalidInput as exc:
            return Failure(FailureClass.CONFIG, exc.message)
        return None

    def _must_end_within(self, seconds: float) -> bool:
        """Waits; True if the turn was to end meanwhile."""
        until = min(time.monotonic() + seconds, self._deadline)
        while not self._must_end() and time.monotonic() < until:
            time.sleep(_LOOK_EVERY)
        return self._must_end() or until == self._deadline

    def _must_end(self) -> bool:
        return self._alive.cause is not None or self._stops.is_wanted

    # --- what follows ---

    def _may_fall_back(self, outcome: AttemptOutcome) -> bool:
        """Not for a session that was asked for by name, or that holds a call: it is never replaced by another."""
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
        go_on_about(self._claim.lease)
        return self._attempt()

    def _write_rest(self) -> None:
        """Events belong to their attempt: what an outage kept back is written before the attempt ends."""
        if self._launcher is not None:
            self._launcher.write_rest()

    def _record_saved_calls(self) -> None:
        """An agent that did not come to its end may have made calls that it did not report."""
        with suppress(InvalidInput, NotFound, StoreCorrupt):  # the turn ends, whatever is known of its calls
            late = calls_left_by(self._store, self._agent.agents, self._claim.lease)
            if late:
                self._store.record_events(self._claim.lease, late)

    def _commit(self, outcome: AttemptOutcome) -> RunResult:
        lease, failure, report = self._claim.lease, outcome.ending.failure, outcome.report
        if isinstance(outcome.decision, Wait):
            later = self._later(self._policy.queue.lock_delay_seconds)
            return self._result(outcome, self._store.put_back(lease, later, _why_not(outcome.decision)))
        if failure is not None and self._alive.cause is StopCause.HANDED_BACK:
            return self._result(outcome, self._store.put_back(lease))
        if _is_for_others(failure) and not self._claim.turn.foreground:
            later = self._later(self._policy.queue.retry_delay_seconds)
            return self._result(outcome, self._store.put_back(lease, later, failure))
        if outcome.ending.deferred is not None and outcome.mark is None:
            failure = Failure(FailureClass.UNKNOWN, "the agent did not save the call that was to wait")
        approval = None if failure is not None else self._asked_for(outcome.ending.deferred)
        # a turn that a person is still at is looked at again the next time
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
        )
        return self._result(outcome, self._store.finish_turn(lease, end))

    def _asked_for(self, call: Deferred | None) -> NewApproval | None:
        if call is None:
            return None
        return ask_for(call, self._claim.situation.session.agent, self._store, self._policy.approvals)

    def _once_reachable(self, verb: Callable[[], T]) -> T:
        """Sit out an outage of the store, as long as the lease would; an answer is worth it, and so is a claim."""
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
        """A turn that a person stopped, or that took too long, is not."""
        if failure.then.retry is Retry.UNLESS_STOPPED:
            return outcome.interruption is None and time.monotonic() < self._deadline
        return failure.then.retry is Retry.LATER

    def _same_again(self, failure: Failure) -> bool:
        """The same error too often waits for a person."""
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
            awaited(self._store, turn), self._told,
        )  # fmt: skip

    def _tell(self, result: RunResult) -> None:
        """Somebody who is not there, if it needs a person. The turn is committed, whatever becomes of that."""
        with suppress(StoreError):
            if result.failure is None and result.approval is None:
                return
            notice = turn_notice(result, self._claim.situation.session.agent, self._clock())
            if notice is not None:
                notify(self._policy.notify, notice)

    def _failure(self, outcome: AttemptOutcome, turn: Turn) -> Failure | None:
        """Of a turn that waits again, or that nobody could begin, the run itself knows best."""
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
        """Ours to end, whatever went wrong; what the store refuses now, recovery will find."""
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
    """Of a turn that needs a person: it asks, it failed for good, or its provider allows no more for now."""
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
    """The waits between the tries to get a session that is locked."""
    return tuple(policy.lock_delay_seconds * policy.lock_backoff**n for n in range(policy.lock_tries - 1))


def _session_of(decision: Decision) -> ProviderSessionId | None:
    return decision.provider_session_id if isinstance(decision, Resume) else None


def _is_locked(outcome: AttemptOutcome) -> bool:
    """Held by someone else, and nothing was done yet."""
    failure = outcome.ending.failure
    locked = failure is not None and failure.then.waits_for_lock
    return locked and not outcome.report.tools and outcome.report.response is None


def _is_for_others(failure: Failure | None) -> bool:
    """The agent is not there (any more), on this machine: nothing was done, and elsewhere it may be."""
    return failure is not None and failure.then.is_put_back


def _why_not(decision: Wait | Refuse) -> Failure:
    kind = FailureClass.LOCKED if isinstance(decision, Wait) else FailureClass.REFUSED
    return Failure(kind, because(decision).message)


def _status(failure: Failure | None) -> TurnStatus:
    if failure is None:
        return TurnStatus.DONE
    return TurnStatus.CANCELLED if failure.then.is_cancellation else TurnStatus.FAILED

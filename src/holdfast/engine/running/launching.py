"""Owns one run of an agent's process: recorded before it starts, followed to its end, and judged."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field

from holdfast.clock import Clock
from holdfast.config import TOKEN_VARIABLE
from holdfast.domain.conversations import SeenTurns
from holdfast.domain.decisions import Decision, Fork, Resume
from holdfast.domain.events import AgentEvent, Named, Noted
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import NOTHING_YET, TranscriptMark
from holdfast.domain.policy import Policy
from holdfast.domain.records import record
from holdfast.domain.turns import Launch, Lease
from holdfast.engine.asked import Observer, ignore
from holdfast.engine.running.agents import Agent
from holdfast.engine.running.recorder import Recorder
from holdfast.engine.running.recovery import marker_of
from holdfast.engine.running.stopping import KeepAlive, Stops
from holdfast.errors import ConfigError, MissingBinary
from holdfast.processes.locks import SessionLock
from holdfast.processes.output import Overlong
from holdfast.processes.process import AgentProcess, Exit, StopCause
from holdfast.providers.contract import LaunchSpec, Stream
from holdfast.providers.report import Ending, Report, judge
from holdfast.store.contract import Store

_TICK = 0.25


@dataclass(slots=True)
class AttemptOutcome:
    """What became of one attempt; ``interruption`` is what stopped Holdfast itself meanwhile."""

    decision: Decision
    ending: Ending
    work_dir: str
    report: Report = field(default_factory=Report)
    mark: TranscriptMark | None = None
    left_behind: bool = False  #: a process of it could not be ended
    interruption: BaseException | None = None


@record
class _Run:
    """A process that is being followed."""

    process: AgentProcess
    stream: Stream
    report: Report
    late_locks: ExitStack | None  #: for the lock on a session whose id only the provider knew


class Launcher:
    """Runs the processes of one attempt."""

    def __init__(
        self, context: RunContext, lease: Lease, alive: KeepAlive, stops: Stops, deadline: float, clock: Clock
    ) -> None:
        self._store = context.store
        self._agent = context.agent
        self._patience = context.policy.queue.grace_seconds  #: with a store that cannot be reached
        self._observe = context.observer
        self._lease = lease
        self._alive = alive
        self._stops = stops
        self._deadline = deadline
        self._before: TranscriptMark | None = None  #: what the session that is resumed held at the launch
        self._work_dir: str | None = None  #: of the launch
        self._recorder = Recorder(context.store, lease, clock, self._to_pin)

    def launch(self, spec: LaunchSpec, lock: SessionLock | None, told: SeenTurns) -> AttemptOutcome:
        """Nothing of the agent runs before the store knows its process and its session.

        ``told`` are the turns that the prompt tells of.
        """
        self._work_dir = spec.work_dir
        self._observe(spec.decision)
        outcome = AttemptOutcome(spec.decision, Ending(), spec.work_dir)
        self._before = self._saved_before(spec)
        with ExitStack() as held:
            try:
                if lock is None and spec.new_id is not None:
                    lock = self._lock(spec.new_id, held)
                exit_ = self._run(spec, outcome, lock, held, told)
            except MissingBinary as exc:
                outcome.ending = Ending(Failure(FailureClass.MISSING_BINARY, exc.message))
                return outcome
            except ConfigError as exc:
                outcome.ending = Ending(Failure(FailureClass.CONFIG, exc.message))
                return outcome
            outcome.ending = judge(spec, outcome.report, exit_, self._agent.provider)
            outcome.left_behind = exit_.left_behind
            session_id = outcome.report.session_id or spec.expected_id
            if session_id is not None:
                self._take_saved_answer(outcome, session_id)
            mark = None if session_id is None else self._agent.saved(session_id, spec.work_dir)
            # an answer that left no trace in the session it was given in was not saved; an empty one there takes
            # the request along (Gemini): the session is what it was, and does not hold this turn
            is_lost = mark == self._before and outcome.ending.is_answered and not outcome.report.is_empty
            outcome.mark = None if is_lost else mark
        return outcome

    def write_rest(self) -> None:
        """The events that could not be recorded while the agent ran. Raises while the store cannot be reached."""
        self._recorder.write_rest()

    def _to_pin(self, session_id: ProviderSessionId) -> TranscriptMark | None:
        """Nothing new of a resumed session: Gemini takes a request that is refused out of it again."""
        if self._before is not None:
            return NOTHING_YET
        return self._agent.saved(session_id, self._work_dir)

    def _take_saved_answer(self, outcome: AttemptOutcome, session_id: ProviderSessionId) -> None:
        """An answer that the stream did not bring, or not whole, may stand in the provider's own session.

        One that it brought counts if it stands there, whatever became of the agent afterwards.
        """
        failure, report = outcome.ending.failure, outcome.report
        is_cut_off = failure is not None and failure.then.is_cut_off
        # a fork's session begins with the turns of its source: the last one need not be its own
        has_no_end = is_cut_off and report.ended is None and not isinstance(outcome.decision, Fork)
        # an inner process that is killed after the answer shows by an exit code alone
        died = failure is not None and failure.then.may_have_answered
        has_ended = died and report.is_answered and report.deferred is None
        if not has_no_end and not has_ended and not (outcome.ending.is_answered and report.lacks_answer):
            return
        path = self._agent.archive.find(session_id, outcome.work_dir)
        turns = () if path is None else self._agent.archive.turns(path, session_id, self._before)
        for turn in deque(turns, maxlen=1):
            if turn.complete and turn.response is not None:
                if has_no_end or report.lacks_answer:
                    report.take_answer(turn.response)
                outcome.ending = Ending()

    def _saved_before(self, spec: LaunchSpec) -> TranscriptMark | None:
        if not isinstance(spec.decision, Resume):
            return None
        return self._agent.saved(spec.decision.provider_session_id, spec.work_dir)

    def _run(
        self,
        spec: LaunchSpec,
        outcome: AttemptOutcome,
        lock: SessionLock | None,
        held: ExitStack,
        told: SeenTurns,
    ) -> Exit:
        agent = self._agent
        command = agent.provider.command(spec)
        inherited = () if lock is None else (lock.fileno(),)
        environ = {**agent.environ, SESSION_VARIABLE: self._lease.session_id, **self._token()}
        with AgentProcess.start(
            command,
            spec.work_dir,
            environ,
            marker_of(self._lease, self._store.workspace),
            agent.machine,
            inherited,
        ) as process:
            self._store.launch(
                self._lease,
                Launch(
                    spec.decision,
                    process.mark,
                    spec.new_id,
                    spec.work_dir,
                    spec.model,
                    spec.rights,
                    self._before,
                    told,
                ),
            )
            self._alive.watch(lambda cause: process.stop(cause, gently=cause is StopCause.CANCELLED))
            try:
                process.go()
                run = _Run(process, agent.provider.stream(spec), outcome.report, None if lock else held)
                self._follow_to_the_end(run, outcome)
                return process.wait()
            finally:
                self._alive.watch(None)
                self._recorder.close(self._patience)

    def _token(self) -> dict[str, str]:
        """For hooks and commands that the agent runs: on a server they need one, for this session alone."""
        if TOKEN_VARIABLE in self._agent.environ or not self._store.where.startswith(("http://", "https://")):
            return {}
        token = self._store.agent_token(self._lease)
        return {} if token is None else {TOKEN_VARIABLE: token}

    def _follow_to_the_end(self, run: _Run, outcome: AttemptOutcome) -> None:
        """An interruption ends the agent; what it still says is kept, and the turn is committed."""
        try:
            with self._stops.welcome():
                self._follow(run)
        except (KeyboardInterrupt, SystemExit) as exc:
            outcome.interruption = exc
            run.process.stop(StopCause.EXIT, gently=True)
            self._follow(run)

    def _follow(self, run: _Run) -> None:
        """Until the stream is drained: lines after the result, and several results, count too."""
        process = run.process
        for line in process.lines(_TICK):
            run.report.skipped_lines += isinstance(line, Overlong)
            for event in _events_in(run.stream, line):
                if isinstance(event, Named):
                    # a provider repeats its id in every line
                    if event.session_id == run.report.session_id:
                        continue
                    if run.late_locks is not None:
                        self._lock(event.session_id, run.late_locks)
                run.report.add(event)
                self._recorder.add(event)
                self._observe(event)
            if run.report.ungated is not None:
                process.stop(StopCause.UNGATED)
            self._recorder.tick(more_to_come=process.has_line)
            if self._recorder.is_fenced:
                process.stop(StopCause.LEASE_LOST)
            elif time.monotonic() > self._deadline:
                process.stop(StopCause.TIMEOUT, gently=True)

    def _lock(self, session_id: ProviderSessionId, held: ExitStack) -> SessionLock | None:
        lock = held.enter_context(self._agent.lock(session_id))
        return lock if lock.try_acquire() else None


def _events_in(stream: Stream, line: bytes | Overlong | None) -> Iterable[AgentEvent]:
    match line:
        case None:
            return ()
        case Overlong(size):
            return (Noted(f"a line of {size} bytes was skipped"),)
        case _:
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                return ()
            return stream.read(found) if isinstance(found, dict) else ()


log = logging.getLogger("holdfast")

#: tells an agent, and all that it starts, which session it works for
SESSION_VARIABLE = "HOLDFAST_SESSION"


@record
class RunContext:
    store: Store
    agent: Agent
    policy: Policy
    timeout_seconds: float
    observer: Observer = ignore


class Audience:
    """Tells an observer; one that fails, because its terminal is gone, say, is told nothing more, and the turn goes on."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def __call__(self, seen: Decision | AgentEvent) -> None:
        try:
            self._observer(seen)
        except Exception as exc:  # noqa: BLE001 - whatever a stranger's function raises
            log.warning("the observer failed and is not told any more: %s", exc)
            self._observer = ignore

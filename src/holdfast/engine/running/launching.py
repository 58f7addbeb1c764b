"""Owns one run of an agent's process: recorded before it starts, its events recorded while it speaks, judged when it has ended."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from holdfast.clock import Clock, Instant
from holdfast.config import TOKEN_VARIABLE
from holdfast.domain.conversations import SeenTurns
from holdfast.domain.decisions import Decision, Fork, Resume
from holdfast.domain.events import (
    AgentEvent,
    Called,
    Event,
    EventKind,
    Named,
    Noted,
    Recorded,
    Returned,
    Said,
    Writing,
)
from holdfast.domain.failures import Failure, FailureClass, StopCause
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.inputs import clean_text
from holdfast.domain.pointers import NOTHING_YET, TranscriptMark
from holdfast.domain.policy import Policy
from holdfast.domain.records import record, replace
from holdfast.domain.redaction import Json
from holdfast.domain.turns import Launch, Lease
from holdfast.engine.running.agents import Agent
from holdfast.engine.running.stopping import HeldSignals, KeepAlive
from holdfast.engine.turn_requests import Observer, Starting, ignore
from holdfast.errors import OUTAGES, ConfigError, Conflict, InvalidInput, LeaseLost, MissingBinary
from holdfast.processes.locks import SessionLock
from holdfast.processes.process import AgentProcess, Exit, Overlong
from holdfast.processes.table import marker_of
from holdfast.providers.contract import LaunchSpec, Stream
from holdfast.providers.report import Ending, Report, judge
from holdfast.store.contract import Store
from holdfast.store.wire import check_json

log = logging.getLogger("holdfast")

_TICK = 0.25
#: tells an agent, and all that it starts, which session it works for
SESSION_VARIABLE = "HOLDFAST_SESSION"


@record
class RunContext:
    store: Store
    agent: Agent
    policy: Policy
    timeout_seconds: float
    observer: Observer = ignore


class SafeObserver:
    """Calls an observer. After its first error, for example because its terminal is gone, it is not called again: the turn continues."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def __call__(self, seen: Decision | Starting | AgentEvent) -> None:
        try:
            self._observer(seen)
        except Exception as exc:  # noqa: BLE001 - whatever a stranger's function raises
            log.warning("the observer failed and is not told any more: %s", exc)
            self._observer = ignore


@dataclass(slots=True)
class AttemptOutcome:
    """How one attempt ended, and what it left."""

    decision: Decision
    ending: Ending
    work_dir: str
    report: Report = field(default_factory=Report)
    mark: TranscriptMark | None = (
        None  #: of the provider session afterwards; None: the attempt was not saved there
    )
    stopped: StopCause | None = None  #: why Holdfast ended the agent; None: it did not
    left_behind: bool = False  #: a process of the agent could not be ended
    interruption: BaseException | None = None  #: what stopped Holdfast itself while the agent ran


@record
class _Run:
    """A process that is being followed."""

    process: AgentProcess
    stream: Stream
    report: Report
    #: takes the lock on a session whose id only the provider knows; None: the lock is held already
    late_locks: ExitStack | None


class Launcher:
    """Runs the processes of one attempt."""

    def __init__(
        self,
        context: RunContext,
        lease: Lease,
        alive: KeepAlive,
        signals: HeldSignals,
        deadline: float,
        clock: Clock,
    ) -> None:
        self._store = context.store
        self._agent = context.agent
        self._patience = context.policy.queue.grace_seconds  #: how long an unreachable store is waited for
        self._observe = context.observer
        self._lease = lease
        self._alive = alive
        self._signals = signals
        self._deadline = deadline
        self._before: TranscriptMark | None = None  #: of the resumed provider session, at the launch
        self._work_dir: str | None = None
        self._recorder = Recorder(context.store, lease, clock, self._to_pin)
        self._live = LiveText(context.store, lease, self._recorder, context.observer)

    def launch(
        self, spec: LaunchSpec, lock: SessionLock | None, told: SeenTurns, starting: Starting
    ) -> AttemptOutcome:
        """Runs the agent to its end. No part of it runs before its process and its session are in the store.

        ``told`` are the turns that the prompt tells the agent of.
        """
        self._work_dir = spec.work_dir
        self._observe(spec.decision)
        self._observe(starting)
        outcome = AttemptOutcome(spec.decision, Ending(), spec.work_dir)
        resumed = spec.decision.provider_session_id if isinstance(spec.decision, Resume) else None
        self._before = None if resumed is None else self._agent.saved(resumed, spec.work_dir)
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
            outcome.stopped, outcome.left_behind = exit_.stopped, exit_.left_behind
            session_id = outcome.report.session_id or spec.expected_id
            if session_id is not None:
                self._take_saved_answer(outcome, session_id)
            mark = None if session_id is None else self._agent.saved(session_id, spec.work_dir)
            # If the session is the same as before, the answer was not saved. An empty answer is different: Gemini
            # removes the request from the session then, so the session is intact and does not hold this turn.
            is_lost = mark == self._before and outcome.ending.is_answered and not outcome.report.is_empty
            outcome.mark = None if is_lost else mark
        return outcome

    def write_rest(self) -> None:
        """Writes the events that could not be recorded while the agent ran. Raises while the store is unreachable."""
        self._recorder.write_rest()

    def _to_pin(self, session_id: ProviderSessionId) -> TranscriptMark | None:
        """The mark to pin. Of a resumed session nothing new counts yet: Gemini removes a request that is refused."""
        if self._before is not None:
            return NOTHING_YET
        return self._agent.saved(session_id, self._work_dir)

    def _take_saved_answer(self, outcome: AttemptOutcome, session_id: ProviderSessionId) -> None:
        """Takes the answer from the provider's own session where the stream did not bring it, or not all of it.

        An answer from the stream that the session holds, too, counts even if the agent failed afterwards.
        """
        failure, report = outcome.ending.failure, outcome.report
        is_cut_off = failure is not None and failure.then.is_cut_off
        # a fork's session begins with the turns of its source: its last turn may be one of those
        has_no_end = is_cut_off and report.ended is None and not isinstance(outcome.decision, Fork)
        # if an inner process of the agent is killed after the answer, only the exit code shows it
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
            self._alive.watch(process.stop)
            try:
                process.go()
                run = _Run(process, agent.provider.stream(spec), outcome.report, None if lock else held)
                self._follow_to_the_end(run, outcome)
                return process.wait()
            finally:
                self._alive.watch(None)
                self._recorder.close(self._patience)

    def _token(self) -> dict[str, str]:
        """The token for hooks and commands that the agent runs. Only a server asks for one; it is for this session alone."""
        if TOKEN_VARIABLE in self._agent.environ or not self._store.where.startswith(("http://", "https://")):
            return {}
        token = self._store.agent_token(self._lease)
        return {} if token is None else {TOKEN_VARIABLE: token}

    def _follow_to_the_end(self, run: _Run, outcome: AttemptOutcome) -> None:
        """Ends the agent when this process is interrupted. What the agent still says is kept, and the turn is committed."""
        try:
            with self._signals.allowed():
                self._follow(run)
        except (KeyboardInterrupt, SystemExit) as exc:
            outcome.interruption = exc
            run.process.stop(StopCause.EXIT)
            self._follow(run)

    def _follow(self, run: _Run) -> None:
        """Reads the stream to its end. Lines after the result count, too, and there may be several results."""
        process = run.process
        for line in process.lines(_TICK):
            run.report.skipped_lines += isinstance(line, Overlong)
            for event in _events_in(run.stream, line):
                if isinstance(event, Writing):
                    self._live.add(event)
                else:
                    self._take(event, run)
            if run.report.ungated is not None:
                process.stop(StopCause.UNGATED)
            self._recorder.tick(more_to_come=process.has_line)
            self._live.tick()
            if self._recorder.is_fenced:
                process.stop(StopCause.LEASE_LOST)
            elif time.monotonic() > self._deadline:
                process.stop(StopCause.TIMEOUT)

    def _take(self, event: Named | Recorded, run: _Run) -> None:
        if isinstance(event, Said):
            self._live.drop()
        if isinstance(event, Named):
            # providers repeat the id in every line
            if event.session_id == run.report.session_id:
                return
            if run.late_locks is not None:
                self._lock(event.session_id, run.late_locks)
        run.report.add(event)
        self._recorder.add(event)
        self._observe(event)

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


# --- the record of what the agent says ---

#: a batch of events is written when it is this old, or this large
_BATCH_SECONDS = 1.0
_BATCH_EVENTS = 256
_BATCH_CHARACTERS = 256 * 1024
#: how much may wait for an unreachable store, which is tried once in ``_BATCH_SECONDS``; then the oldest events are dropped
_MOST_EVENTS_WAITING = 4096
_MOST_CHARACTERS_WAITING = 8 * 1024 * 1024
#: the wait between two looks into the provider's own sessions, which may open files: the first, and the longest; each wait
#: is twice the last one
_FIRST_LOOK_SECONDS = 0.05
_LOOK_SECONDS = 1.0
#: characters of one event; the turn keeps the whole answer, and the provider keeps whole outputs
MAX_EVENT = 32 * 1024
_CUT = " [cut]"


class Recorder:
    """Writes what an agent says as events, in small batches, and pins the provider session once it is on disk.

    ``saved`` returns the mark of the provider's own session, or None while there is none on disk.
    """

    def __init__(
        self,
        store: Store,
        lease: Lease,
        clock: Clock,
        saved: Callable[[ProviderSessionId], TranscriptMark | None],
    ) -> None:
        self._store = store
        self._lease = lease
        self._clock = clock
        self._saved = saved
        self._batch: list[Event] = []
        self._size = 0
        self._number = 0
        self._unwritten_calls: set[str] = (
            set()
        )  #: calls that have begun and not returned, since the last write
        self._since = 0.0  #: when the oldest event of the batch was added; 0: the batch is empty
        self.is_unreachable = False  #: the store, when it was last written to
        self._dropped = 0  #: how many of the oldest waiting events were dropped
        self._said: list[str] = []  #: pieces of text for the next event
        self._said_size = 0
        self._unpinned: ProviderSessionId | None = None
        self._looked_at: float | None = None
        self._look_after = _FIRST_LOOK_SECONDS
        self.is_fenced = False  #: the lease is lost: nothing can be recorded any more

    def add(self, event: Named | Recorded) -> None:
        """Adds an event to the batch. Pieces of text that follow each other become one event."""
        if isinstance(event, Said):
            self._said.append(event.text)
            self._said_size += len(event.text)
            self._since = self._since or time.monotonic()
            if self._said_size >= MAX_EVENT:
                self._put_text()
        elif isinstance(event, Named):
            self._unpinned, self._looked_at = event.session_id, None
            self._look_after = _FIRST_LOOK_SECONDS
        else:
            self._put_text()
            self._put(event.kind, recorded_data(event))
            if isinstance(event, Called):
                self._unwritten_calls.add(event.call_id)
            elif isinstance(event, Returned):
                self._unwritten_calls.discard(event.call_id)
        is_large = len(self._batch) >= _BATCH_EVENTS or self._size >= _BATCH_CHARACTERS
        if is_large and not self.is_unreachable:
            self._flush()

    def tick(self, *, more_to_come: bool = False) -> None:
        """Call this between lines: writes a batch that is old enough, and pins the session once it is on disk.

        A call that has begun is written at once, and its session is pinned at once: if Holdfast and the agent are
        killed while the call runs, there may be no other record of it.
        """
        is_old = self._since > 0 and time.monotonic() - self._since >= _BATCH_SECONDS
        has_begun = bool(self._unwritten_calls) and not more_to_come and not self.is_unreachable
        if is_old or has_begun:
            self._flush()
        is_due = self._looked_at is None or time.monotonic() - self._looked_at >= self._look_after
        if is_due or has_begun:
            self._pin()

    def close(self, patience: float) -> None:
        """Writes what is left. Waits up to ``patience`` seconds for a store that cannot be reached."""
        until = time.monotonic() + patience
        self._flush()
        while self._batch and not self.is_fenced and time.monotonic() < until:
            time.sleep(_BATCH_SECONDS)
            self._flush()
        self._pin()

    def begin_text(self) -> int:
        """The number of the event that the next text will be recorded in. Text that waits becomes an event before it."""
        self._put_text()
        return self._number + 1

    def write_rest(self) -> None:
        """Writes what ``close`` could not write. Raises while the store cannot be reached, and keeps the events."""
        while self._batch and not self.is_fenced:
            self._write(_first_batch(self._batch))

    def _flush(self) -> None:
        """Writes all waiting events, batch by batch. While the store cannot be reached, they are kept."""
        self._put_text()
        if not self._batch or self.is_fenced:
            return
        try:
            while self._batch:
                self._write(_first_batch(self._batch))
        except LeaseLost:
            self.is_fenced, self._batch, self._size = True, [], 0
        except OUTAGES as exc:
            if not self.is_unreachable:
                log.warning("events wait to be recorded: %s", exc)
            self._since, self.is_unreachable = time.monotonic(), True
            return
        self._since, self.is_unreachable = 0.0, False
        self._unwritten_calls.clear()

    def _write(self, events: list[Event]) -> None:
        self._store.record_events(self._lease, [*self._gap(), *events])
        self._batch, self._dropped = self._batch[len(events) :], 0
        self._size -= sum(data_size(event.data) for event in events)

    def _gap(self) -> tuple[Event, ...]:
        """A notice that says how many events were dropped. It has the number of the last one of them."""
        if not self._dropped:
            return ()
        first = self._batch[0]
        text = f"{self._dropped} events were dropped: the store could not be reached"
        return (Event(first.number - 1, EventKind.NOTICE, {"text": text}, first.at),)

    def _pin(self) -> None:
        """Pins the session that the agent has named, once the provider has saved it: before, nothing could be resumed."""
        if self._unpinned is None or self.is_fenced:
            return
        self._looked_at = time.monotonic()
        mark = self._saved(self._unpinned)
        if mark is None:
            self._look_after = min(2 * self._look_after, _LOOK_SECONDS)
            return
        try:
            self._store.pin(self._lease, self._unpinned, mark)
        except LeaseLost:
            self.is_fenced = True
        except Conflict:
            pass  # the provider runs another session than it was asked to run; ``judge`` says so at the end
        except OUTAGES as exc:
            log.warning("the session waits to be pinned: %s", exc)
            return
        self._unpinned = None

    def _put_text(self) -> None:
        if self._said:
            said, self._said, self._said_size = Said("".join(self._said)), [], 0
            for kind, data in _as_recorded(said):
                self._put(kind, data)

    def _put(self, kind: EventKind, data: dict[str, Json]) -> None:
        self._number += 1
        self._since = self._since or time.monotonic()
        self._size += data_size(data)
        self._batch.append(Event(self._number, kind, data, self._clock()))
        while self.is_unreachable and (
            len(self._batch) > _MOST_EVENTS_WAITING or self._size > _MOST_CHARACTERS_WAITING
        ):
            self._size -= data_size(self._batch.pop(0).data)
            self._dropped += 1


# --- the text that the agent is writing ---

#: between two looks at a text that is being written
_LIVE_SECONDS = 0.25
#: a slow store is asked for the writes of partial text at most this part of the time: the agent must not wait for them
_LIVE_SHARE = 0.2


class LiveText:
    """Tells the observer and the store what the agent is writing: the newest text only, at most four times a second.

    A text that is whole within a quarter of a second is told by its event alone.
    """

    def __init__(self, store: Store, lease: Lease, recorder: Recorder, observe: Observer) -> None:
        self._store = store
        self._lease = lease
        self._recorder = recorder
        self._observe = observe
        self._newest: Writing | None = None  #: what was not told yet
        self._due = 0.0

    def add(self, event: Writing) -> None:
        if self._newest is None:
            self._due = max(self._due, time.monotonic() + _LIVE_SECONDS)
        self._newest = event

    def drop(self) -> None:
        """The text is whole."""
        self._newest = None

    def tick(self) -> None:
        """Call this between lines."""
        if self._newest is None or time.monotonic() < self._due:
            return
        writing, self._newest = self._newest, None
        self._observe(writing)
        if self._recorder.is_fenced or self._recorder.is_unreachable:
            return
        began = time.monotonic()
        try:
            text = replace(writing, text=clean_text(writing.text))
            self._store.put_partial_text(self._lease, self._recorder.begin_text(), text)
        except LeaseLost:
            self._recorder.is_fenced = True
        except OUTAGES as exc:
            log.debug("partial text was not written: %s", exc)
        now = time.monotonic()
        self._due = now + (now - began) * (1 / _LIVE_SHARE - 1)


def late_events(found: Sequence[Said | Called | Returned], after: int, at: Instant) -> list[Event]:
    """Events for what was found later, numbered from ``after`` + 1. If they are more than one batch, the newest ones."""
    newest: deque[tuple[EventKind, dict[str, Json]]] = deque()
    size = 0
    for kind, data in reversed([one for event in found for one in _as_recorded(event)]):
        size += data_size(data)
        if len(newest) >= _BATCH_EVENTS or (newest and size > _BATCH_CHARACTERS):
            break
        newest.appendleft((kind, data))
    return [Event(number, kind, data, at) for number, (kind, data) in enumerate(newest, after + 1)]


def _as_recorded(event: Recorded) -> Iterator[tuple[EventKind, dict[str, Json]]]:
    """The data of the events for one thing that happened: a long text becomes several events, other long values are cut."""
    if isinstance(event, Said):
        for part in _parts(event.text):
            yield event.kind, {"text": part}
    else:
        yield event.kind, recorded_data(event)


def _parts(text: str) -> Iterator[str]:
    text = clean_text(text)
    return (text[start : start + MAX_EVENT] for start in range(0, len(text), MAX_EVENT))


def recorded_data(event: Recorded) -> dict[str, Json]:
    """The data that are recorded of an event, bounded in size. The store removes secrets."""
    data = {name: _bounded(value) for name, value in event.data.items()}
    return data | {"is_cut": True} if any(map(_is_cut, data.values())) else data


def _first_batch(waiting: list[Event]) -> list[Event]:
    size = 0
    for count, event in enumerate(waiting[:_BATCH_EVENTS], 1):
        size += data_size(event.data)
        if size >= _BATCH_CHARACTERS:
            return waiting[:count]
    return waiting[:_BATCH_EVENTS]


def data_size(data: Mapping[str, Json]) -> int:
    return sum(len(value if isinstance(value, str) else json.dumps(value)) for value in data.values())


def _bounded(value: Json, *, inside: bool = False) -> Json:
    """The value within the limit of one event. Each value of an object has the limit for itself.

    Inside an object, a value that is too large, or that a server would refuse, becomes its JSON text.
    """
    if isinstance(value, str):
        return _short(value)
    if not inside:
        if isinstance(value, dict):
            return {_short(name): _bounded(each, inside=True) for name, each in value.items()}
        return value  # a number or a flag that Holdfast made
    text = json.dumps(value, ensure_ascii=False)
    try:
        return check_json(value, "arguments") if len(text) <= MAX_EVENT else _short(text)
    except InvalidInput:
        return _short(text)


def _is_cut(kept: Json) -> bool:
    """Whether a text was cut: only with ``_CUT`` at its end can it be longer than the limit."""
    if isinstance(kept, dict):
        return any(isinstance(value, str) and len(value) > MAX_EVENT for value in kept.values())
    return isinstance(kept, str) and len(kept) > MAX_EVENT


def _short(text: str) -> str:
    text = clean_text(text)
    return text if len(text) <= MAX_EVENT else text[:MAX_EVENT] + _CUT

"""Owns an agent's own program in front of a person: running it on a session, and finding the session that it began."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from holdfast.clock import Instant, after, system_clock
from holdfast.domain.ids import ProviderSessionId, SessionId
from holdfast.domain.policy import QueuePolicy
from holdfast.domain.records import record
from holdfast.domain.sessions import Session
from holdfast.engine.running.agents import Agent
from holdfast.engine.running.launching import SESSION_VARIABLE
from holdfast.engine.running.provider_sessions import read_title
from holdfast.errors import HoldfastError, MissingBinary
from holdfast.processes.locks import SessionLock
from holdfast.processes.owners import process_start
from holdfast.processes.process import Command, environment
from holdfast.processes.table import MARKER, QUICKLY, Traces, end_all
from holdfast.providers.arguments import Instead
from holdfast.providers.contract import Source
from holdfast.store.contract import Store

log = logging.getLogger("holdfast")

#: of an agent's own arguments, those that say which session it is, or where; the others are the person's own matter
OF_THE_SESSION = (
    Instead.RESUME,
    Instead.FORK,
    Instead.FORK_AT,
    Instead.SESSION_ID,
    Instead.SAVED,
    Instead.WORK_DIR,
    Instead.FOREGROUND,
)
#: seconds between two looks for the session that a program has begun
_LOOK_EVERY = 0.5
#: of a session that is looked at, enough to tell its directory
_ROOM = 64 * 1024
#: clocks of file systems are coarse
_MARGIN_SECONDS = 2


@record
class Opened:
    """A person has used the agent's own program on a session."""

    exit_code: int  #: of the program
    adopted: int  #: how many turns the person made there: they are in the history
    #: how many other sessions the person began or continued in the program: they are taken over, too
    others: int = 0
    is_kept: bool = True  #: False: nothing was said in the new session, and it was removed


def run_program(
    agent: Agent, session_id: SessionId, command: Command, work_dir: str, lock: SessionLock | None
) -> int:
    """Runs the program, and then ends all processes that it started: they have inherited the lock."""
    marker = f"open.{os.urandom(16).hex()}"
    variables = {**environment(command, agent.environ), SESSION_VARIABLE: session_id, MARKER: marker}
    kept = () if lock is None else (lock.fileno(),)
    try:
        child = subprocess.Popen(command.argv, cwd=work_dir, env=variables, pass_fds=kept)
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


def _attend(child: subprocess.Popen[bytes]) -> int:
    """Waits for the program; Ctrl-C is for the program, not for Holdfast. Returns its exit code, as a shell would."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = child.wait()
        return code if code >= 0 else 128 - code
    finally:
        signal.signal(signal.SIGINT, before)


def program_time() -> Instant:
    """A time of the file system before anything that a program writes from now on."""
    return after(system_clock(), -_MARGIN_SECONDS)


class Attendance:
    """Says in the store, in a thread, that a person uses the program on the session, and what the session is about.

    If the store cannot be reached, the program runs all the same, and the session looks idle.
    """

    def __init__(
        self, store: Store, agent: Agent, session: Session, work_dir: str, policy: QueuePolicy
    ) -> None:
        self._store = store
        self._agent = agent
        self._session = session
        self._work_dir = work_dir
        self._policy = policy
        self._owner = agent.machine.this_process()
        self._title: str | None = None
        self.native: ProviderSessionId | None = (
            None  #: set by the caller, once the program has begun its session
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="holdfast-attendance", daemon=True)

    def __enter__(self) -> Self:
        self._say(self._policy.lease_seconds)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._say(0)

    def _watch(self) -> None:
        said_at = time.monotonic()
        while not self._ended.wait(min(_LOOK_EVERY, self._policy.heartbeat_seconds)):
            is_due = time.monotonic() - said_at >= self._policy.heartbeat_seconds
            # a title may change later: then it is read with the next heartbeat
            before = self._title
            if self._title is None or is_due:
                self._title = self._read_title() or before
            if is_due or self._title != before:
                self._say(self._policy.lease_seconds)
                said_at = time.monotonic()

    def _say(self, seconds: float) -> None:
        try:
            self._store.attend(self._session.id, self._owner, seconds, self._title)
        except HoldfastError as exc:
            log.debug("the store was not told that %s runs: %s", self._agent.provider.name, exc)

    def _read_title(self) -> str | None:
        native = self.native
        path = None if native is None else self._agent.archive.find(native, self._work_dir)
        if native is None or path is None:
            return None
        return read_title(self._agent, path, native, self._session)


class SessionFinder:
    """Looks for the provider session that a program begins, in a thread, and offers each new one to ``take``.

    ``take`` returns whether the session is the one; after that nothing is looked for. A session counts if its file came
    after this was made, and if it began in the same directory.
    """

    def __init__(self, agent: Agent, work_dir: str, take: Callable[[ProviderSessionId], bool]) -> None:
        self._agent = agent
        self._work_dir = work_dir
        self._take = take
        self._known = {source.place for source in agent.archive.sources(work_dir)}
        self._is_found = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="holdfast-finder", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Looks a last time: the program may have ended as soon as it had answered."""
        self._ended.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._is_found and not self._ended.wait(_LOOK_EVERY):
            try:
                self._look()
            except HoldfastError as exc:  # the store may be back at the next look
                log.debug("the session of %s is not looked for: %s", self._agent.provider.name, exc)

    def _look(self) -> None:
        if self._is_found:
            return
        for native in self._new():
            if self._take(native):
                self._is_found = True
                return

    def _new(self) -> Iterator[ProviderSessionId]:
        """The oldest one first."""
        sources = [one for one in self._agent.archive.sources(self._work_dir) if one.place not in self._known]
        for source in sorted(sources, key=lambda source: source.mtime_ns):
            native = self._of_this_directory(source)
            if native is not None:
                yield native

    def _of_this_directory(self, source: Source) -> ProviderSessionId | None:
        reading = self._agent.archive.read(source.path, source.id, None, _ROOM)
        next(reading.turns, None)
        facts = reading.facts
        try:
            is_here = facts.work_dir is not None and Path(facts.work_dir).samefile(self._work_dir)
        except OSError:
            is_here = False
        return facts.id if is_here and facts.subagent_of is None and facts.id else None

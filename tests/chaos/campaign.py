"""Owns a campaign: turns that are queued and run while one thing after the other breaks, and its figures."""

import json
import os
import signal
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import NewSession, SessionKind
from holdfast.domain.turns import NewTurn, TurnRequest
from holdfast.errors import StoreUnavailable
from holdfast.store.contract import Store
from holdfast.store.open import open_store
from tests.chaos.crew import Crew, work_command
from tests.chaos.databases import Database
from tests.chaos.evidence import Evidence, read_answers, read_marks, read_recorded
from tests.chaos.faults import faults_of, schedule
from tests.chaos.fleet import Fleet, fleet, left_running
from tests.chaos.verdict import Broken, judge

#: turns of each session that wait to be run
_AHEAD = 2


@dataclass(frozen=True)
class Plan:
    sessions: int
    turns: int  #: of each session
    rounds: int  #: of all faults
    seconds: float  #: at the most; what has not ended by then is stuck
    chance: int = 1
    faults: frozenset[str] | None = None  #: only these; otherwise all that the database can have

    @property
    def all_turns(self) -> int:
        return self.sessions * self.turns


@dataclass(frozen=True)
class Figures:
    engine: str
    sessions: int
    turns: int
    faults: dict[str, int]
    attempts: int
    interrupted: int  #: attempts that were taken over
    strays: int  #: agents that hung on a machine that was lost
    late: int  #: reports of workers that were fenced, kept as evidence
    broken: Broken

    def line(self) -> str:
        return json.dumps(asdict(self))


@dataclass
class Campaign:
    plan: Plan
    database: Database
    crew: Crew
    root: Path
    _acknowledged: set[str] = field(default_factory=set)
    _ration: int = 0  #: so many turns may have been asked for by now
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> Figures:
        chance = Random(self.plan.chance)
        names = self.plan.faults or faults_of(self.database)
        faults = schedule(names, self.plan.rounds, chance)
        self._until = time.monotonic() + self.plan.seconds
        self._ration = self.plan.sessions
        for folder in (self._marks, self._work_dir):
            folder.mkdir()
        with fleet(self.database, self.crew, self.root) as running:
            feeder = threading.Thread(target=self._feed, args=(running.proxy.url,))
            feeder.start()
            try:
                injected = self._break_things(running, faults, chance)
                self._await_settled(running)
            finally:
                self._over.set()
                feeder.join()
            running.stop()
        seen = self._look(running)
        for pid in left_running(self.crew):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return self._figures(seen, injected, len(running.strays))

    # --- what is asked for ---

    @property
    def _marks(self) -> Path:
        return self.root / "marks"

    @property
    def _work_dir(self) -> Path:
        return self.root / "work"

    @property
    def _session_ids(self) -> list[SessionId]:
        return [SessionId(f"chaos-20260108-120000-{number:08x}") for number in range(self.plan.sessions)]

    def _feed(self, url: str) -> None:
        """A person who asks again, with the same key, until somebody says that the turn is in the queue."""
        with closing(open_store(url)) as store:
            for turn in range(1, self.plan.turns + 1):
                for number, session_id in enumerate(self._session_ids):
                    name = f"turn-{number}-{turn}"
                    self._await_demand()
                    while not self._over.is_set():
                        try:
                            self._enqueue(store, session_id, number, name)
                        except StoreUnavailable:
                            continue
                        self._acknowledged.add(name)
                        break

    def _await_demand(self) -> None:
        """A few turns ahead of the workers, and so that some are left for every fault."""
        most = _AHEAD * self.plan.sessions
        while len(self._acknowledged) >= min(len(self._ended()) + most, self._ration):
            if self._over.wait(0.1):
                return

    def _enqueue(self, store: Store, session_id: SessionId, number: int, name: str) -> None:
        provider = self.crew.provider
        store.create_session(
            NewSession(session_id, "chaos", kind=SessionKind.CONVERSATION, provider=provider)
        )
        command = work_command(self._marks, f"session-{number}", name)
        request = TurnRequest(work_dir=str(self._work_dir), rights=self.crew.rights)
        store.enqueue_turn(session_id, NewTurn(self.crew.prompt(name, command), provider, request, key=name))

    # --- what happens ---

    def _break_things(self, running: Fleet, faults: list[str], chance: Random) -> Counter[str]:
        """Spread over the work, so that each of them hits some."""
        injected: Counter[str] = Counter()
        for number, name in enumerate(faults, start=1):
            if not self._await_ended(running, number * self.plan.all_turns // (len(faults) + 1)):
                break
            running.tend()  # what the last one ended can be hit again
            self._ration = self.plan.sessions + number * self.plan.all_turns // len(faults)
            faults_of(self.database)[name](running, chance)
            injected[name] += 1
        injected["clock_wrong"] = running.wrong_clocks
        return injected

    def _await_ended(self, running: Fleet, turns: int) -> bool:
        """By the marks of the tools, which nothing stands in front of; False when the time is over."""
        while len(self._ended()) < turns:
            if time.monotonic() > self._until:
                return False
            running.tend()
            time.sleep(0.1)
        return True

    def _await_settled(self, running: Fleet) -> None:
        """By the store: a turn whose tool has ended may have to be run again."""
        with closing(open_store(self.database.url)) as store:
            while time.monotonic() < self._until and not self._is_settled(store):
                running.tend()
                time.sleep(0.3)

    def _is_settled(self, store: Store) -> bool:
        if len(self._acknowledged) < self.plan.all_turns:
            return False
        try:
            return not any(turn.status.is_open for id_ in self._session_ids for turn in store.turns(id_))
        except StoreUnavailable:
            return False

    def _ended(self) -> set[str]:
        marks = read_marks(self._marks).values()
        return {mark.turn for of_session in marks for mark in of_session if mark.what == "end"}

    # --- what is left ---

    def _look(self, ran: Fleet) -> Evidence:
        with closing(open_store(self.database.url)) as store:
            ids = self._session_ids
            recorded = tuple(found for session_id in ids for found in read_recorded(store, session_id))
            conversations = {found.turn.conversation_id for found in recorded}
            late = tuple(report for found in conversations for report in store.late_reports(found))
            held = tuple(session_id for session_id in ids if store.holder(session_id) is not None)
        return Evidence(
            frozenset(self._acknowledged),
            recorded,
            late,
            held,
            read_marks(self._marks),
            tuple(read_answers(self.crew.transcripts())),
            (*left_running(self.crew), *ran.overdue),
            tuple(crash for program in ran.programs for crash in program.found_crashes()),
            tuple(ran.absences),
        )

    def _figures(self, seen: Evidence, injected: Counter[str], strays: int) -> Figures:
        attempts = [attempt for recorded in seen.recorded for attempt in recorded.attempts]
        return Figures(
            self.database.name,
            self.plan.sessions,
            len(seen.recorded),
            dict(sorted(injected.items())),
            len(attempts),
            sum(attempt.status == "interrupted" for attempt in attempts),
            strays,
            len(seen.late),
            judge(seen),
        )

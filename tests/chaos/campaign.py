"""Owns a campaign: turns that are queued and run while one thing after the other breaks, and its figures."""

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from pprint import pformat
from random import Random

from holdfast.clock import after
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import NewSession, SessionKind
from holdfast.domain.turns import NewTurn, TurnRequest
from holdfast.errors import StoreUnavailable
from holdfast.store.contract import Store
from holdfast.store.open import open_store
from tests.chaos.crew import Crew, work_command
from tests.chaos.databases import Database
from tests.chaos.evidence import Evidence, read_mark_file, read_marks, read_recorded
from tests.chaos.faults import faults_of, schedule
from tests.chaos.fleet import MENDING_SECONDS, Fleet, fleet, left_running
from tests.chaos.verdict import Broken, judge


@dataclass(frozen=True)
class Plan:
    sessions: int  #: at a time; when their turns are through, others follow, as long as something is to break
    turns: int  #: of each session, two and two with the same prompt
    rounds: int  #: of all faults
    seconds: float  #: at the most; what has not ended by then is stuck
    chance: int = 1
    times: int = 1  #: quick faults so many times in each round
    faults: frozenset[str] | None = None  #: only these; otherwise all that the database can have


@dataclass(frozen=True)
class Figures:
    engine: str
    sessions: int
    turns: int
    faults: dict[str, int]  #: that hit what they were there to hit
    missed: int  #: that did not, and were tried again
    attempts: int
    interrupted: int  #: attempts that were taken over
    strays: int  #: agents that hung on a machine that was lost
    late: int  #: reports of workers that were fenced, kept as evidence
    starved: int  #: seconds in which a program of it waited for a processor too long to be heard in time
    unheard: int  #: leases that ran out in those seconds, though no fault had hit their worker
    broken: Broken
    crashes: tuple[str, ...] = ()  #: what ended by an error, in words
    campaigns: int = 1  #: side by side, each with a database and programs of its own

    def line(self) -> str:
        return json.dumps(asdict(self))


def added_up(found: Sequence[Figures]) -> Figures:
    """Of campaigns on the same engine, which ran side by side."""
    faults: Counter[str] = sum((Counter(figures.faults) for figures in found), Counter())
    counted = {
        name: sum(getattr(figures, name) for figures in found)
        for name in (
            "sessions", "turns", "missed", "attempts", "interrupted", "strays", "late", "starved", "unheard",
            "campaigns",
        )
    }  # fmt: skip
    return Figures(
        engine=found[0].engine,
        faults=dict(sorted(faults.items())),
        broken=Broken(
            *(sum(each) for each in zip(*(astuple(figures.broken) for figures in found), strict=True))
        ),
        crashes=tuple(crash for figures in found for crash in figures.crashes),
        **counted,
    )


@dataclass
class Campaign:
    plan: Plan
    database: Database
    crew: Crew
    root: Path
    _acknowledged: set[str] = field(default_factory=set)
    _counted: dict[str, tuple[int, int]] = field(
        default_factory=dict
    )  #: by session: bytes of marks, turns ended
    _missed: int = 0
    _enough: threading.Event = field(default_factory=threading.Event)  #: nothing is to break any more
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> Figures:
        chance = Random(self.plan.chance)
        names = self.plan.faults or faults_of(self.database)
        faults = schedule(names, self.plan.rounds, self.plan.times, chance)
        self._until = time.monotonic() + self.plan.seconds
        for folder in (self._marks, self._work_dir):
            folder.mkdir()
        with fleet(self.database, self.crew, self.root) as running:
            feeder = threading.Thread(target=self._feed, args=(running.proxy.url,))
            feeder.start()
            try:
                injected = self._break_things(running, faults, chance)
                self._enough.set()
                self._await_settled(running, feeder)
            finally:
                self._over.set()
                feeder.join()
            running.stop()
        seen = self._look(running)
        (self.root / "evidence.txt").write_text(pformat(seen, width=200))
        for pid in left_running(self.crew):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return self._figures(seen, injected, running)

    # --- what is asked for ---

    @property
    def _marks(self) -> Path:
        return self.root / "marks"

    @property
    def _work_dir(self) -> Path:
        return self.root / "work"

    @property
    def _session_ids(self) -> list[SessionId]:
        numbers = {int(name.split("-")[1]) for name in set(self._acknowledged)}
        return [_session_id(number) for number in sorted(numbers)]

    def _feed(self, url: str) -> None:
        """A person who asks again, with the same key, until somebody says that the turn is in the queue."""
        number = 0
        with closing(open_store(url)) as store:
            while not self._over.is_set() and (number < self.plan.sessions or not self._enough.is_set()):
                for turn in range(1, self.plan.turns + 1):
                    self._ask(store, number, turn)
                number += 1

    def _ask(self, store: Store, number: int, turn: int) -> None:
        self._await_demand()
        name = f"turn-{number}-{turn}"
        while not self._over.is_set():
            with suppress(StoreUnavailable):
                self._enqueue(store, _session_id(number), number, turn)
                self._acknowledged.add(name)
                return

    def _await_demand(self) -> None:
        """As many turns as the sessions have that are at work at a time: first ones and later ones all along."""
        while len(self._acknowledged) - self._ended() >= self.plan.turns * self.plan.sessions:
            if self._over.wait(0.1):
                return

    def _ended(self) -> int:
        """Turns whose tool has ended, by the marks, which nothing stands in front of."""
        for file in self._marks.glob("*.marks"):
            size = file.stat().st_size
            if self._counted.get(file.stem, (0, 0))[0] != size:
                ended = {mark.seq for mark in read_mark_file(file) if mark.what == "end"}
                self._counted[file.stem] = size, len(ended)
        return sum(ended for _, ended in self._counted.values())

    def _enqueue(self, store: Store, session_id: SessionId, number: int, turn: int) -> None:
        provider = self.crew.provider
        store.create_session(
            NewSession(session_id, "chaos", kind=SessionKind.CONVERSATION, provider=provider)
        )
        name = f"turn-{number}-{(turn + 1) // 2}"  # the same prompt twice in a row
        command = work_command(self._marks, session_id, name)
        request = TurnRequest(work_dir=str(self._work_dir), rights=self.crew.rights)
        key = f"turn-{number}-{turn}"
        store.enqueue_turn(session_id, NewTurn(self.crew.prompt(name, command), provider, request, key=key))

    # --- what happens ---

    def _break_things(self, running: Fleet, faults: list[str], chance: Random) -> Counter[str]:
        """One after the other, while there is work; what hit nothing is tried again later."""
        injected: Counter[str] = Counter()
        left = list(faults)
        while left and time.monotonic() < self._until:
            running.tend()  # what the last one ended can be hit again
            self._await_work(running)
            name = left.pop(0)
            hit = faults_of(self.database)[name](running, chance)
            with (self.root / "faults.log").open("a") as log:
                log.write(f"{time.strftime('%H:%M:%S')} {name} {'hit' if hit else 'missed'}\n")
            if hit:
                injected[name] += 1
            else:
                self._missed += 1
                left.insert(chance.randint(0, len(left)), name)
        injected["clock_wrong"] = running.wrong_clocks
        return injected

    def _await_work(self, running: Fleet) -> None:
        while not running.is_busy and time.monotonic() < self._until:
            running.tend()
            time.sleep(0.05)

    def _await_settled(self, running: Fleet, feeder: threading.Thread) -> None:
        """By the store: a turn whose tool has ended may have to be run again."""
        with closing(open_store(self.database.url)) as store:
            while time.monotonic() < self._until and (feeder.is_alive() or not self._is_settled(store)):
                running.tend()
                time.sleep(0.3)

    def _is_settled(self, store: Store) -> bool:
        try:
            return not any(turn.status.is_open for id_ in self._session_ids for turn in store.turns(id_))
        except StoreUnavailable:
            return False

    # --- what is left ---

    def _look(self, ran: Fleet) -> Evidence:
        with closing(open_store(self.database.url)) as store:
            ids = self._session_ids
            recorded = tuple(
                found for number, id_ in enumerate(ids) for found in read_recorded(store, id_, number)
            )
            conversations = {found.turn.conversation_id for found in recorded}
            late = tuple(report for found in conversations for report in store.late_reports(found))
            held = tuple(session_id for session_id in ids if store.holder(session_id) is not None)
        return Evidence(
            frozenset(self._acknowledged),
            recorded,
            late,
            held,
            read_marks(self._marks),
            tuple(self.crew.answers()),
            (*left_running(self.crew), *ran.overdue),
            tuple(crash for program in ran.all_programs for crash in program.found_crashes()),
            tuple(ran.absences),
            tuple((since, after(until, MENDING_SECONDS)) for since, until in ran.starvation.spans),
            ran.unsaid,
        )

    def _figures(self, seen: Evidence, injected: Counter[str], ran: Fleet) -> Figures:
        attempts = [attempt for recorded in seen.recorded for attempt in recorded.attempts]
        return Figures(
            self.database.name,
            len({recorded.turn.session_id for recorded in seen.recorded}),
            len(seen.recorded),
            dict(sorted(injected.items())),
            self._missed,
            len(attempts),
            sum(attempt.status == "interrupted" for attempt in attempts),
            len(ran.strays),
            len(seen.late),
            round(ran.starvation.seconds),
            judge(replace(seen, starved=())).robbed - judge(seen).robbed,
            judge(seen),
            seen.crashed,
        )


def _session_id(number: int) -> SessionId:
    return SessionId(f"chaos-20260108-120000-{number:08x}")

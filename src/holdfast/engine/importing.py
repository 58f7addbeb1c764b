"""Owns importing: sessions that providers keep alone become ours, one that is named or all of them at once.

Reading is one pass over each file that has changed since it was last looked at; writing is one transaction for many
sessions. Nothing in the providers' files changes. A session that is ours already gets the turns that were added to it.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, starmap
from pathlib import Path

from holdfast.clock import Instant
from holdfast.domain.conversations import SeenTurns
from holdfast.domain.ids import ProviderSessionId, RuntimeId, SessionId
from holdfast.domain.imports import Imported, KnownSource, NotTaken, SessionImport
from holdfast.domain.inputs import clean_text
from holdfast.domain.observed import ObservedSession
from holdfast.domain.pointers import NO_RIGHTS, NOTHING_YET, Pointer
from holdfast.domain.policy import Policy
from holdfast.domain.records import record, replace
from holdfast.domain.turns import Situation
from holdfast.domain.usage import NO_CALL_YET
from holdfast.engine.mirroring import Mirror, Mirrored, Original
from holdfast.engine.reading_ahead import (
    PART_CHARACTERS,
    ProviderHome,
    RunningClock,
    SessionPart,
    SessionParts,
    SessionReader,
)
from holdfast.engine.running.agents import Agent, Agents
from holdfast.engine.running.provider_sessions import adopt_outside_turns, waits_for_agent
from holdfast.errors import AmbiguousId, InvalidInput, NotFound, Refused
from holdfast.providers.contract import SessionFacts, Source, StoredSession, look_at
from holdfast.providers.registry import provider_names
from holdfast.store.contract import Store

log = logging.getLogger("holdfast")

_SHORTEST_BEGINNING = 4  #: of an id; a shorter text is hardly meant as one
_MOST_NAMED = 10  #: of those that a text fits
_BATCH_CHARACTERS = PART_CHARACTERS
_BATCH_SESSIONS = 200
#: a look at the files before a list is no longer than this; what it finds is read for at most as long as the second one
_LOOK_SECONDS = 0.02
_REFRESH_SECONDS = 1.0
_PAGE = 1000
_FEW = 10
_MOST_WATCHED = 50  #: sessions that hooks have seen and that a look before a list takes in, the newest ones

#: why something was passed over, in words
_REASONS: Mapping[str, str] = {
    "empty": "it holds no turn",
    "damaged": "it is damaged, and no turn in it can be read",
    "removed": "it was removed here; holdfast show with its id takes it back",
    "elsewhere": "it belongs to another workspace",
    "retired": "it was retired here",
    "invalid": "it holds what no store can keep: an impossible id, time or number",
    "rewritten": "it was rewritten since it was imported; the history stays as it was",
    "duplicate": "a session of the same id was taken over from another file",
    "excluded": "its directory is excluded by [import] exclude",
    "closed": "its session is closed",
    "busy": "a turn of Holdfast runs in it, or another process takes it in",
    "not_installed": "its agent is not installed here",
    "other_home": "its session continues in another home of the agent, or on another machine",
}
#: reasons that hold until the source changes: they are remembered with it
_LASTING = frozenset(
    {"empty", "damaged", "removed", "rewritten", "closed", "elsewhere", "retired", "other_home"}
)


@record
class ImportRequest:
    providers: tuple[str, ...] = ()  #: none: all
    project: str | None = None  #: only sessions of this directory and of those below it
    home: str | None = None  #: of the provider, in the place of its usual one
    since: Instant | None = None  #: only sessions that were used then or later
    dry_run: bool = False


@record
class SkippedSource:
    provider: str
    place: str
    reason: str  #: a word, or what is against this one source
    problem: str  #: in words


@dataclass(slots=True)
class ImportReport:
    """``found`` is the sum of ``imported``, ``updated``, ``unchanged`` and the number of those that were ``skipped``."""

    imported: int = 0
    updated: int = 0
    unchanged: int = 0
    skipped: list[SkippedSource] = field(default_factory=list)
    turns: int = 0  #: that were added
    images: int = 0
    damaged_lines: int = 0
    long_lines: int = 0
    unknown_lines: int = 0
    vault: Mirrored = field(default_factory=Mirrored)  #: what the vault got of these sessions
    homes: list[tuple[str, str]] = field(
        default_factory=list
    )  #: providers, and where their sessions were looked for

    @property
    def found(self) -> int:
        return self.imported + self.updated + self.unchanged + len(self.skipped)

    def skip(self, provider: str, place: str, reason: str) -> None:
        self.skipped.append(SkippedSource(provider, place, reason, _REASONS.get(reason, reason)))


@record
class Brought:
    session_id: SessionId
    provider: str
    stored: StoredSession
    turns: int  #: how many turns this call added to the history
    is_new: bool  #: this call created the session


Progress = Callable[[int, int], None]


class Importer:
    def __init__(self, store: Store, agents: Agents, policy: Policy) -> None:
        self._store = store
        self._agents = agents
        self._policy = policy

    def bring(self, given: str) -> Brought:
        """Find the session that a provider session belongs to; if it belongs to none, import it.

        Raises NotFound if no provider keeps such a session here, AmbiguousId if several fit, and Refused for one whose
        id is that of another session, which is ours.
        """
        where, stored = _the_only(given, _matching(self._agents, given), self._is_ours)
        provider, archive = where.provider, where.archive
        mirror = self._mirror()
        home = self._home(where, mirror)
        owner = self._store.owner_of(provider, stored.id)
        if owner is not None:
            if not self._is_file_of(owner, where, stored):
                raise Refused("duplicate", f"{stored.path}: {_REASONS['duplicate']}", session_id=owner)
            brought = Brought(owner, provider, stored, home.refresh(owner, stored), is_new=False)
            _warn(mirror.figures)
            return brought
        source = next((one for one in archive.sources(stored.work_dir) if _is(one, stored)), None)
        taken = home.bring(source or Source(stored.path, stored.path, 0, 0, stored.id), stored)
        if taken is None:  # somebody else brings it at this moment
            return self.bring(given)
        _warn(mirror.figures)
        return Brought(taken.session_id or SessionId(""), provider, stored, taken.turns, is_new=True)

    def _is_ours(self, where: ProviderHome, stored: StoredSession) -> bool:
        owner = self._store.owner_of(where.provider, stored.id)
        return owner is not None and self._is_file_of(owner, where, stored)

    def _is_file_of(self, owner: SessionId, where: ProviderHome, stored: StoredSession) -> bool:
        """Whether this file is the owner's: Claude may keep two sessions of one id, in the folders of two directories."""
        pointer = self._store.pointer(owner, where.provider)
        if pointer is None or pointer.provider_session_id != stored.id:
            return True
        found = where.archive.find(stored.id, pointer.work_dir)
        return found is None or os.path.realpath(found) == os.path.realpath(stored.path)

    def run(self, wanted: ImportRequest, progress: Progress | None = None) -> ImportReport:
        """Import everything that is new or has changed."""
        mirror = self._mirror(makes_up=True)
        report = ImportReport(vault=mirror.figures)
        for home in self._homes(wanted, mirror):
            report.homes.append(home.name)
            home.run(wanted, report, progress)
        return report

    def refresh(self, work_dir: str) -> ImportReport:
        """Import what is new in one directory, as far as a short look at the files tells; the newest ones first."""
        mirror = self._mirror()
        report = ImportReport(vault=mirror.figures)
        deadline = time.monotonic() + _LOOK_SECONDS
        homes = list(self._homes(ImportRequest(), mirror))
        seen = [(home, list(home.look(work_dir, deadline))) for home in homes]
        until = time.monotonic() + _REFRESH_SECONDS
        for home, sources in seen:
            home.catch_up(sources, ImportRequest(project=work_dir), report, until)
        for watched in self._store.observed_sessions(_MOST_WATCHED):
            if time.monotonic() > until:
                break
            for home in homes:
                home.catch_up(home.watched(watched), ImportRequest(), report, until)
        _warn(mirror.figures)
        return report

    def take_in(self, provider: str, native: ProviderSessionId, most_bytes: int | None) -> bool:
        """See ``Holdfast.take_in``."""
        watched = self._store.observed_session(provider, native)
        if watched is None:
            return False
        # a process that died after it had written the history may have left the vault without a copy
        mirror = Mirror(self._store, self._policy.vault, makes_up=True, of_one=True)
        report = ImportReport(vault=mirror.figures)
        for home in self._homes(ImportRequest((provider,)), mirror):
            sources = [*home.watched(watched), *home.subagents(watched)]
            if most_bytes is not None and any(source.size > most_bytes for source in sources):
                return False
            home.catch_up(sources, ImportRequest(), report, math.inf)
        _warn(mirror.figures)
        reasons = {one.reason for one in report.skipped}
        if "busy" in reasons:
            return False
        if report.found > len(report.skipped) or reasons - {"empty"}:
            return True
        # nothing was said in it; or its file is in a home that only another process knows
        is_elsewhere = not report.found and Path(watched.transcript_path or "").is_file()
        return watched.ended_at is not None and not is_elsewhere

    def _mirror(self, *, makes_up: bool = False) -> Mirror:
        return Mirror(self._store, self._policy.vault, makes_up=makes_up)

    def _homes(self, wanted: ImportRequest, mirror: Mirror) -> Iterator[_Home]:
        for name in wanted.providers:
            if name not in provider_names():
                raise InvalidInput(
                    "provider", f"{name} is not known; there are {', '.join(provider_names())}"
                )
        if wanted.home is not None and len(wanted.providers) != 1:
            raise InvalidInput("home", "name the one agent whose home it is")
        for where in starmap(ProviderHome, self._agents.archives(wanted.home)):
            if not wanted.providers or where.provider in wanted.providers:
                yield self._home(where, mirror)

    def _home(self, where: ProviderHome, mirror: Mirror) -> _Home:
        return _Home(self._store, self._agents, self._policy, where, mirror)


def _warn(vault: Mirrored) -> None:
    """For those who get no report."""
    if vault.problem is not None:
        log.warning("the vault has no copy of what is new in %s sessions: %s", vault.failed, vault.problem)


def _is(source: Source, stored: StoredSession) -> bool:
    return source.path == stored.path and source.id in (None, stored.id)


def _matching(agents: Agents, given: str) -> list[tuple[ProviderHome, StoredSession]]:
    """The sessions whose ids begin with the given text; without any, those that have it as their title."""
    homes = list(starmap(ProviderHome, agents.archives()))
    if len(given) >= _SHORTEST_BEGINNING:
        found = [(where, one) for where in homes for one in where.archive.sessions(given)]
        if found:
            return found
    title = given.casefold()
    every = ((where, one) for where in homes for one in where.archive.sessions())
    return [(where, one) for where, one in every if (one.title or "").casefold() == title]


def _the_only(
    given: str,
    found: list[tuple[ProviderHome, StoredSession]],
    is_ours: Callable[[ProviderHome, StoredSession], bool],
) -> tuple[ProviderHome, StoredSession]:
    """If several match, only those of the current directory count, where there are any; then, of one id, those that are ours."""
    if len(found) > 1:  # a folder of sessions may have a second name, as a link
        found = list(
            {
                (where.provider, where.folder, one.id, os.path.realpath(one.path)): (where, one)
                for where, one in found
            }.values()
        )
    if len(found) > 1:
        here = str(Path.cwd())
        found = [each for each in found if each[1].work_dir == here] or found
    if len(found) > 1 and len({one.id for _, one in found}) == 1:
        found = [each for each in found if is_ours(*each)] or found
    if not found:
        raise NotFound("session", given)
    if len(found) > 1:
        shown = (
            f"{one.id} ({where.provider}, {one.work_dir or 'no directory'})"
            for where, one in found[:_MOST_NAMED]
        )
        raise AmbiguousId(given, tuple(shown), "agent session")
    return found[0]


# --- one home of one provider ---


class _Home:
    """Imports the sessions in one home of one provider."""

    def __init__(
        self, store: Store, agents: Agents, policy: Policy, where: ProviderHome, mirror: Mirror
    ) -> None:
        self._store = store
        self._agents = agents
        self._policy = policy
        self._where = where
        self._provider = where.provider
        self._archive = where.archive
        self._home = where.folder
        self._mirror = mirror
        self._machine = agents.machine.id
        self._now = RunningClock(store.now)
        self._reader = SessionReader(where, self._now)
        self._excluded = tuple(os.path.expanduser(place) for place in sorted(policy.import_.exclude))  # noqa: PTH111
        self._batch = _Batch()
        self._is_registered = False
        self._sessions: dict[
            str, tuple[str, SessionId | None]
        ] = {}  #: place and session, by provider session id
        self._roots: dict[
            str, ProviderSessionId
        ] = {}  #: sessions that are no forks, by the key of their first turn

    @property
    def name(self) -> tuple[str, str]:
        """Its provider and its folder."""
        return self._provider, self._home

    @cached_property
    def _agent(self) -> Agent | None:
        """Looked for only when there is something to import: that may ask the binary for its version."""
        return self._agents.in_home(self._provider, self._home)

    @cached_property
    def _runtimes_here(self) -> frozenset[RuntimeId]:
        return frozenset(one.id for one in self._store.runtimes() if one.runtime.machine == self._machine)

    # --- everything ---

    def run(self, wanted: ImportRequest, report: ImportReport, progress: Progress | None) -> None:
        known = {source.place: source for source in self._known()}
        self._remember(known.values())
        sources = sorted(self._archive.sources(), key=lambda source: -source.mtime_ns)
        waiting: list[Source] = []  # forks whose parent may come later
        with self._reader.ahead(self._unread(sources, known, wanted)):
            for number, source in enumerate(sources, 1):
                self._one(source, known.get(source.place), wanted, report, waiting)
                if progress is not None:
                    progress(number, len(sources))
        for source in waiting:
            self._one(source, None, wanted, report, None)
        self._finish(report)

    @staticmethod
    def _unread(
        sources: Sequence[Source], known: Mapping[str, KnownSource], wanted: ImportRequest
    ) -> list[Source]:
        """Those that ``_one`` will most likely read. Which ones are of a project is only known when they are read."""
        if wanted.project is not None:
            return []
        since_ns = (wanted.since or 0) * 1000
        return [
            source for source in sources
            if source.place not in known and source.problem is None and source.mtime_ns >= since_ns
        ]  # fmt: skip

    def _finish(self, report: ImportReport) -> None:
        self._flush(report)
        self._flush(report)  # what the first one has found out about sources
        self._mirror.flush()

    def look(self, work_dir: str, deadline: float) -> Iterator[Source]:
        for source in self._archive.sources(work_dir):
            yield source
            if time.monotonic() > deadline:
                return

    def watched(self, seen: ObservedSession) -> list[Source]:
        """The file of a session that hooks have seen, if it is in this home."""
        path = None if seen.transcript_path is None else os.path.realpath(seen.transcript_path)
        if seen.provider != self._provider or path is None or not path.startswith(f"{self._home}/"):
            return []
        source = look_at(path, ProviderSessionId(seen.id))
        return [] if source is None else [source]

    def subagents(self, seen: ObservedSession) -> list[Source]:
        """The files of its subagents, as far as they are with the sessions of its directory."""
        if seen.provider != self._provider or seen.cwd is None:
            return []
        sources = self._archive.sources(seen.cwd)
        return [one for one in sources if one.id is not None and one.id.startswith(f"{seen.id}/")]

    def catch_up(
        self, sources: Sequence[Source], wanted: ImportRequest, report: ImportReport, until: float
    ) -> None:
        places = [source.place for source in sources]
        if not places:
            return
        # behind the first place there may be thousands that nobody asks for
        page = min(_PAGE, len(places) + _FEW)
        known = {source.place: source for source in self._known(min(places), max(places), page)}
        self._remember(known.values())
        for source in sources:
            if time.monotonic() > until:
                break
            self._one(source, known.get(source.place), wanted, report, None)
        self._finish(report)

    def _known(self, first: str = "", last: str | None = None, limit: int = _PAGE) -> Iterator[KnownSource]:
        after = first[:-1]  # the places are read behind a text
        while True:
            page = self._store.sources(self._machine, self._provider, self._home, after=after, limit=limit)
            yield from page
            if len(page) < limit or (last is not None and page[-1].place > last):
                return
            after = page[-1].place

    def _remember(self, sources: Iterable[KnownSource]) -> None:
        for source in sources:
            if source.provider_session_id is not None and source.session_id is not None:
                self._sessions[source.provider_session_id] = source.place, source.session_id
                if source.first_key is not None:
                    self._roots.setdefault(source.first_key, source.provider_session_id)

    # --- one source ---

    def _one(
        self,
        source: Source,
        known: KnownSource | None,
        wanted: ImportRequest,
        report: ImportReport,
        waiting: list[Source] | None,
    ) -> None:
        if wanted.since is not None and source.mtime_ns and source.mtime_ns // 1000 < wanted.since:
            return
        is_same = known is not None and (known.size, known.mtime_ns) == (source.size, source.mtime_ns)
        work_dir, problem = known.work_dir if known is not None else None, source.problem
        if known is None and (wanted.project is not None or self._excluded) and problem is None:
            work_dir, problem = self._look_into(source)
        # what cannot be read may be of any directory
        is_of_any = problem is not None and work_dir is None
        if wanted.project is not None and not is_of_any and not _is_inside(work_dir, wanted.project):
            return
        if any(_is_inside(work_dir, place) for place in self._excluded):
            report.skip(self._provider, source.place, "excluded")
        elif known is not None and is_same:
            if known.reason is not None:
                report.skip(self._provider, source.place, known.reason)
            else:
                report.unchanged += 1
                if not wanted.dry_run:
                    self._keep_if_lacking(source, known)
        elif problem is not None:
            report.skip(self._provider, source.place, problem)
        elif known is not None and known.session_id is not None:
            self._update(source, known.session_id, known, wanted, report)
        else:
            self._read(source, wanted, report, waiting)

    def _look_into(self, source: Source) -> tuple[str | None, str | None]:
        """The directory of a session, and why it cannot be told; reads only the beginning."""
        reading = self._archive.read(source.path, source.id, None, 64 * 1024)
        next(reading.turns, None)
        return reading.facts.work_dir, reading.facts.problem

    def _read(
        self, source: Source, wanted: ImportRequest, report: ImportReport, waiting: list[Source] | None
    ) -> None:
        taken = self._sessions.get(source.id or "")
        if taken is not None and taken[0] != source.place:
            self._other_place(source, *taken, wanted, report)
            return
        parts = self._reader.parts(source)
        first = next(parts)
        facts = first.facts
        taken = self._sessions.get(facts.id)
        if taken is not None and taken[0] != source.place:
            self._other_place(source, *taken, wanted, report)
            return
        if clean_text(facts.id) != facts.id:
            report.skip(self._provider, source.place, "invalid")
            return
        if first.piece is None or facts.problem is not None:
            reason = facts.problem or ("damaged" if facts.damaged else "empty")
            report.skip(self._provider, source.place, reason)
            self._note(source, facts, None, reason, wanted)
            return
        comes_from = self._comes_from(facts)
        if facts.forked_at is not None and comes_from is None and waiting is not None and first.is_last:
            waiting.append(source)
            return
        self._sessions[facts.id] = source.place, None
        if wanted.dry_run:
            owner = self._store.owner_of(self._provider, facts.id)
            if owner is None:
                self._count_new(report, facts, len(first.piece.turns))
            else:
                self._update(source, owner, self._source(source, facts, owner, None), wanted, report)
            return
        self._add(source, chain([first], parts), comes_from, report)

    def _add(
        self,
        source: Source,
        parts: Iterable[SessionPart],
        comes_from: ProviderSessionId | None,
        report: ImportReport,
    ) -> None:
        turns = 0
        for part in parts:
            piece, facts = replace(self._pointed(part), comes_from=comes_from), part.facts
            if part.is_last:
                if facts.first_key is not None and facts.forked_at is None:
                    self._roots.setdefault(facts.first_key, facts.id)
                known = self._source(source, facts, piece.new.id, None)
                self._batch.add(piece, _Pending(source, facts, known, turns), part.size)
            else:  # a long session: what was read of it goes into the store at once
                self._batch.add(piece, None, part.size)
                (*_, answer) = self._flush(report)
                if answer.reason is not None:
                    self._refused(source, facts, answer, report)
                    return
                turns += answer.turns
        if self._batch.is_full:
            self._flush(report)

    def _flush(self, report: ImportReport) -> tuple[Imported, ...]:
        batch, self._batch = self._batch, _Batch()
        if not batch.pieces and not batch.sources:
            return ()
        if not self._is_registered and self._agent is not None and batch.pieces:
            self._store.register_runtime(self._agent.runtime)
            self._is_registered = True
        # a source counts as seen only when the vault has it as it is; of a new one the vault lacks everything until then
        failed = self._mirror.flush()
        sources = [source for source in batch.sources if (self._provider, _main_id(source)) not in failed]
        sources += [pending.known for pending in batch.pending if pending is not None]
        try:
            answers = self._store.import_sessions(batch.pieces, sources)
        except InvalidInput:
            answers = self._one_by_one(batch, sources)
        for answer, pending in zip(answers, batch.pending, strict=True):
            if pending is None:
                continue
            facts = pending.facts
            if answer.reason is not None:
                self._refused(pending.source, facts, answer, report)
                continue
            self._sessions[facts.id] = pending.source.place, answer.session_id
            self._keep(pending.source, facts.id, facts.work_dir, is_new=True)
            self._count_new(report, facts, 0)
            report.turns += answer.turns + pending.turns
        return answers

    def _one_by_one(self, batch: _Batch, sources: Sequence[KnownSource]) -> tuple[Imported, ...]:
        """Import each session of a batch on its own, so that one which no store can keep does not leave the others out."""
        answers: list[Imported] = []
        for piece, pending in zip(batch.pieces, batch.pending, strict=True):
            try:
                answers += self._store.import_sessions([piece], [] if pending is None else [pending.known])
            except InvalidInput as exc:
                log.info("%s session %s is not imported: %s", self._provider, piece.provider_session_id, exc)
                answers.append(Imported(None, reason=NotTaken.INVALID))
        of_pieces = {piece.new.id for piece in batch.pieces}
        self._store.import_sessions([], [source for source in sources if source.session_id not in of_pieces])
        return tuple(answers)

    def _refused(self, source: Source, facts: SessionFacts, answer: Imported, report: ImportReport) -> None:
        if answer.reason is NotTaken.OWNED and answer.session_id is not None:
            known = self._source(source, facts, answer.session_id, None)
            self._update(source, answer.session_id, known, ImportRequest(), report)
            return
        reason = str(answer.reason)
        report.skip(self._provider, source.place, reason)
        if reason in _LASTING:
            self._batch.sources.append(self._source(source, facts, None, reason))

    @staticmethod
    def _count_new(report: ImportReport, facts: SessionFacts, turns: int) -> None:
        report.imported += 1
        report.turns += turns
        report.images += facts.images
        report.damaged_lines += facts.damaged
        report.long_lines += facts.too_long
        report.unknown_lines += facts.unknown.total()

    def _comes_from(self, facts: SessionFacts) -> ProviderSessionId | None:
        if facts.forked_from or facts.subagent_of:
            return facts.forked_from or facts.subagent_of
        root = self._roots.get(facts.first_key or "") if facts.forked_at is not None else None
        return None if root == facts.id else root

    def _pointed(self, part: SessionPart) -> SessionImport:
        """The piece with its pointer. A subagent has none: its provider resumes it only together with its parent."""
        assert part.piece is not None
        facts = part.facts
        if facts.subagent_of is not None:
            return part.piece
        runtime = None if self._agent is None else self._agent.runtime
        # rights that nobody has recorded are the provider's default: a bypass is never assumed
        pointer = Pointer(
            part.piece.new.id, self._provider, facts.id, None if runtime is None else runtime.id, _cleaned(facts.work_dir),
            _cleaned(facts.model), None, None, SeenTurns(), NO_RIGHTS, part.mark or NOTHING_YET, NO_CALL_YET,
            None if runtime is None else runtime.version, self._now(),
        )  # fmt: skip
        return replace(part.piece, pointer=pointer)

    def _source(
        self, source: Source, facts: SessionFacts, session_id: SessionId | None, reason: str | None
    ) -> KnownSource:
        first_key = None if facts.forked_at is not None else _cleaned(facts.first_key, 200)
        return KnownSource(
            self._machine, self._provider, self._home, source.place, source.size, source.mtime_ns, facts.id or None,
            session_id, _cleaned(facts.work_dir), first_key, reason,
        )  # fmt: skip

    def _note(
        self, source: Source, facts: SessionFacts, session_id: SessionId | None, reason: str | None, wanted: ImportRequest
    ) -> None:  # fmt: skip
        """Remember what was seen of a source, if that holds until it changes."""
        if not wanted.dry_run and (session_id is not None or reason in _LASTING):
            self._batch.sources.append(self._source(source, facts, session_id, reason))

    # --- the vault ---

    def _keep(
        self, source: Source, native: ProviderSessionId, work_dir: str | None, *, is_new: bool = False
    ) -> None:
        """Mirror a session; for a file of a subagent, the session that it is kept with."""
        if not self._mirror.is_on:
            return
        main, path, work_dir = _without_subagent(native), source.path, _cleaned(work_dir)
        if main != native:
            found = (
                None if self._mirror.has_seen(self._provider, main) else self._archive.find(main, work_dir)
            )
            if found is None:
                return
            path, work_dir, is_new = found, None, False
        runtime_id = None if self._agent is None else self._agent.runtime.id
        self._mirror.add(
            Original(self._provider, main, self._archive, path, self._home, runtime_id, work_dir, is_new)
        )

    def _keep_if_lacking(self, source: Source, known: KnownSource) -> None:
        """The vault was off or full before, or a process died."""
        native = known.provider_session_id
        if native is None or known.session_id is None or _without_subagent(native) != native:
            return
        if self._mirror.lacks(self._provider, native):
            self._keep(source, native, known.work_dir, is_new=True)

    # --- sessions that are ours already ---

    def _other_place(
        self, source: Source, place: str, session_id: SessionId | None, wanted: ImportRequest, report: ImportReport
    ) -> None:  # fmt: skip
        """Another file has a session of the same id: the session was moved, or this is a copy of it."""
        taken = (known for known, (at, _) in self._sessions.items() if at == place)
        native = ProviderSessionId(source.id or next(taken, ""))
        pointer = None if session_id is None else self._store.pointer(session_id, self._provider)
        if pointer is None or self._archive.find(native, pointer.work_dir) != source.path:
            report.skip(self._provider, source.place, "duplicate")
            return
        facts = SessionFacts(native, pointer.work_dir)
        known = self._source(source, facts, session_id, None)
        self._update(source, pointer.session_id, known, wanted, report)

    def _update(
        self, source: Source, session_id: SessionId, known: KnownSource, wanted: ImportRequest, report: ImportReport
    ) -> None:  # fmt: skip
        if wanted.dry_run:
            situation = self._store.situation(session_id, self._provider)
            obstacle = self._obstacle(situation, known.provider_session_id, source)
            if obstacle is not None:
                report.skip(self._provider, source.place, obstacle)
            elif self._is_recorded(situation.pointer, source):
                report.unchanged += 1
            else:
                report.updated += 1
            return
        turns, reason = self._adopt(session_id, known.provider_session_id, source)
        if reason is not None:
            report.skip(self._provider, source.place, reason)
        elif turns:
            report.updated += 1
            report.turns += turns
        else:
            report.unchanged += 1
        # the vault needs no agent
        if reason in (None, "not_installed") and known.provider_session_id is not None:
            self._keep(source, known.provider_session_id, known.work_dir)
        if reason is None or reason in _LASTING:
            seen = replace(known, size=source.size, mtime_ns=source.mtime_ns, reason=reason)
            self._batch.sources.append(seen)

    def _is_recorded(self, pointer: Pointer | None, source: Source) -> bool:
        """Whether the history has all turns of the file: it holds what it held after the last one that we know."""
        if pointer is None or pointer.transcript is None:
            return False
        return self._archive.mark(source.path, pointer.provider_session_id) == pointer.transcript

    def _obstacle(
        self, situation: Situation, native: ProviderSessionId | None, source: Source | None
    ) -> str | None:
        """Why the new turns of a session of ours cannot be taken in."""
        pointer = situation.pointer
        if situation.session.phase.is_final:
            return "closed"
        if pointer is None or native not in (None, pointer.provider_session_id):
            return None
        if self._agent is None:
            return "not_installed"
        if pointer.runtime_id != self._agent.runtime.id and not (
            waits_for_agent(self._agent, pointer) or self._has_moved_here(pointer, source)
        ):
            return "other_home"
        if situation.holder is not None:
            return "busy"
        if source is not None and not self._is_intact(pointer, source):
            return "rewritten"
        return None

    def _adopt(
        self, session_id: SessionId, native: ProviderSessionId | None, source: Source | None
    ) -> tuple[int, str | None]:
        """How many turns have joined the history, and what speaks against looking for more."""
        situation = self._store.situation(session_id, self._provider)
        pointer, agent = situation.pointer, self._agent
        obstacle = self._obstacle(situation, native, source)
        if obstacle is not None:
            return 0, obstacle
        if pointer is None or native not in (None, pointer.provider_session_id) or agent is None:
            return 0, None  # its work goes on in another provider session
        if source is not None and _is_moved(pointer, source):
            assert pointer.transcript is not None
            moved = replace(pointer, transcript=replace(pointer.transcript, path=source.path))
            if pointer.runtime_id is not None:
                self._store.register_runtime(agent.runtime)
                moved = replace(moved, runtime_id=agent.runtime.id, version=agent.runtime.version)
            self._store.set_pointer(moved)
            situation = self._store.situation(session_id, self._provider)
        found = adopt_outside_turns(self._store, agent, self._policy.resume, situation)
        return found.adopted, "busy" if found.is_locked else None

    def _has_moved_here(self, pointer: Pointer, source: Source | None) -> bool:
        """Whether the home of the session was moved on this machine. A copied home does not count: the old files are still there."""
        return source is not None and _is_moved(pointer, source) and pointer.runtime_id in self._runtimes_here

    def _is_intact(self, pointer: Pointer, source: Source) -> bool:
        mark = pointer.transcript
        if mark is None or mark == NOTHING_YET:
            return True
        if _is_moved(pointer, source):
            mark = replace(mark, path=source.path)
        return self._archive.is_intact(mark, pointer.provider_session_id) is not False

    def refresh(self, session_id: SessionId, stored: StoredSession) -> int:
        """How many turns have joined the history of a session that is named."""
        turns, reason = self._adopt(session_id, None, None)
        if reason is None and (turns or self._store.bundle(self._provider, stored.id) is None):
            self._keep(Source(stored.path, stored.path, 0, 0), stored.id, stored.work_dir)
            self._mirror.flush()
        return turns

    # --- one that is named ---

    def bring(self, source: Source, stored: StoredSession) -> Imported | None:
        """None: it has become somebody's in the meantime."""
        parts = SessionParts(self._where, replace(source, id=stored.id), self._now, stored)
        report, turns, answer, work_dir = ImportReport(), 0, None, stored.work_dir
        if self._agent is not None:
            self._store.register_runtime(self._agent.runtime)
        for part in parts:
            if part.piece is None:
                break
            if answer is not None:
                turns += answer.turns
            facts, work_dir = part.facts, part.facts.work_dir
            piece = replace(self._pointed(part), takes_back=True, comes_from=self._comes_from(facts))
            known = [self._source(source, facts, piece.new.id, None)] if part.is_last else []
            (answer,) = self._store.import_sessions([piece], known if source.mtime_ns else [])
            if answer.reason is NotTaken.OWNED:
                return None
            if answer.reason is not None:
                raise Refused(
                    str(answer.reason), f"{self._provider} session {stored.id}: {_REASONS[answer.reason]}"
                )
        if answer is None:
            raise Refused("nothing_to_resume", f"{self._provider} session {stored.id} holds no turn yet")
        self._keep(source, stored.id, work_dir, is_new=True)
        self._bring_subagents(stored.id, report)
        return replace(answer, turns=answer.turns + turns)

    def _bring_subagents(self, native: ProviderSessionId, report: ImportReport) -> None:
        for source in self._archive.sources():
            if source.id is not None and source.id.startswith(f"{native}/"):
                self._read(source, ImportRequest(), report, None)
        self._finish(report)


def _cleaned(text: str | None, limit: int | None = None) -> str | None:
    return None if text is None else clean_text(text[:limit])


def _main_id(source: KnownSource) -> ProviderSessionId:
    return _without_subagent(source.provider_session_id or ProviderSessionId(""))


def _without_subagent(native: ProviderSessionId) -> ProviderSessionId:
    """The id of a subagent whose file is one of its session's begins with the id of that session."""
    return ProviderSessionId(native.partition("/")[0])


def _is_moved(pointer: Pointer, source: Source) -> bool:
    mark = pointer.transcript
    return mark is not None and mark.path not in ("", source.path) and not Path(mark.path).exists()


def _is_inside(work_dir: str | None, place: str) -> bool:
    return work_dir is not None and (work_dir == place or work_dir.startswith(place.rstrip("/") + "/"))


@record
class _Pending:
    """A session of which the last piece is on its way into the store."""

    source: Source
    facts: SessionFacts
    known: KnownSource
    turns: int  #: in its earlier pieces


@dataclass(slots=True)
class _Batch:
    """What goes into the store in one transaction."""

    pieces: list[SessionImport] = field(default_factory=list)
    pending: list[_Pending | None] = field(default_factory=list)  #: by piece; None: more pieces follow
    sources: list[KnownSource] = field(default_factory=list)
    _characters: int = 0

    @property
    def is_full(self) -> bool:
        return self._characters >= _BATCH_CHARACTERS or len(self.pieces) >= _BATCH_SESSIONS

    def add(self, piece: SessionImport, pending: _Pending | None, characters: int) -> None:
        self.pieces.append(piece)
        self.pending.append(pending)
        self._characters += characters

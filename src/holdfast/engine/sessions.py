"""Owns the verbs on sessions: the plain lifecycle, and the richer form that raises typed errors.

The plain verbs speak in ids, dicts and booleans. They answer False or None for a session that does
not exist, is closed, or was given an unknown phase. A store that cannot be used is an error everywhere.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from holdfast.clock import Clock, Instant, after, start_of_day, system_clock
from holdfast.config_files import project_file
from holdfast.domain.ids import (
    ConversationId,
    SessionId,
    check_id,
    check_provider,
    check_session_name,
    make_session_id,
)
from holdfast.domain.inputs import check_name, check_text
from holdfast.domain.phases import MayContinue, Phase, may_continue, parse_outcome, parse_phase
from holdfast.domain.policy import Policy
from holdfast.domain.redaction import Json
from holdfast.domain.sessions import (
    CleanupReport,
    NewSession,
    Old,
    Session,
    SessionFilter,
    SessionKind,
    SessionPage,
    SessionStatus,
    SessionUpdate,
    state_document,
)
from holdfast.domain.statistics import Stats, figures
from holdfast.errors import Conflict, InvalidInput, NotFound, UnreadableSession
from holdfast.notifying import done_notice, notify
from holdfast.store.contract import Store

log = logging.getLogger("holdfast")

_PAGE = 500
_HOUR = 3600.0
_MOST_HOURS = 10_000_000
_LONGEST_PURPOSE = 10_000


class Sessions:
    """An open store; also a context manager that closes it. Safe to share between threads."""

    #: the directory of the work, where hooks look for the sessions that are begun here; None: unknown
    project: str | None = None
    #: keys of ``[retention]`` that a project's file has set -> the directory of that project
    project_retention: Mapping[str, str] = MappingProxyType({})

    def __init__(self, store: Store, policy: Policy | None = None, clock: Clock = system_clock) -> None:
        self.store = store
        self.policy = policy or Policy()
        self._clock = clock  #: for ids alone; what is recorded carries the store's own time

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.store.close()

    # --- the plain lifecycle ---

    def create_session(
        self, agent_name: str, purpose: str = "", metadata: Mapping[str, Json] | None = None
    ) -> str:
        """Begin a delegated session; its id."""
        return self.create(agent_name, purpose, metadata).id

    def update_state(
        self,
        agent_id: str,
        phase: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        error: str | None = None,
    ) -> bool:
        """Move to a phase, merge metadata, count an error: whatever is given. False if it did not happen."""
        return _happened(lambda: self.update(agent_id, phase=phase, metadata=metadata, error=error))

    def should_resume(self, agent_id: str) -> bool:
        """May this session's work go on?"""
        return self.may_continue(agent_id) is MayContinue.YES

    def get_session(self, agent_id: str) -> dict[str, object] | None:
        """The whole state as plain JSON; None for a session that does not exist or cannot be read."""
        try:
            return self.state(agent_id)
        except UnreadableSession as exc:
            log.warning("session skipped: %s", exc)
        except (NotFound, InvalidInput):
            pass
        return None

    def finalize_session(self, agent_id: str, outcome: str, summary: str | None = None) -> bool:
        """Close as completed, failed or abandoned. False if it did not happen."""
        return _happened(lambda: self.finalize(agent_id, outcome, summary))

    def cleanup_old_sessions(self, hours: float | None = None) -> int:
        """Abandon the delegated sessions that were idle, delete those that were final for that long; how many.

        Without ``hours`` it is the configured ``max_age_hours``, 24 by default. Conversations are kept, unless
        ``conversations_max_age_hours`` is configured.
        """
        return self.cleanup(hours).count

    def list_sessions(
        self, active_only: bool = False, agent_name: str | None = None
    ) -> list[dict[str, object]]:
        """Every session as ``get_session`` gives it, newest first."""
        found: list[dict[str, object]] = []
        for page in self.pages(SessionFilter(active_only=active_only, agent=agent_name)):
            for session in page.sessions:
                try:
                    history = self.store.phase_history(session.id)
                except UnreadableSession as exc:
                    log.warning("session skipped: %s", exc)
                    continue
                found.append(state_document(session, history, page.states[session.id]))
        return found

    # --- sessions ---

    def create(  # noqa: PLR0913 - everything a caller may decide about a session, by keyword
        self,
        agent: str,
        purpose: str = "",
        metadata: Mapping[str, Json] | None = None,
        *,
        kind: SessionKind = SessionKind.DELEGATED,
        name: str | None = None,
        provider: str | None = None,
        joins: str | None = None,
    ) -> Session:
        """Begin a session, in a conversation of its own unless it joins one."""
        check_name("agent", agent)
        check_text("purpose", purpose, limit=_LONGEST_PURPOSE)
        if name is not None:
            check_session_name(name)
        if provider is not None:
            check_provider(provider)
        new = NewSession(
            id=self.new_id(),
            agent=agent,
            purpose=purpose,
            kind=kind,
            metadata=_metadata(metadata),
            name=name,
            provider=provider,
            conversation_id=None if joins is None else ConversationId(check_id("conversation", joins)),
            project=self.project if kind is SessionKind.DELEGATED else None,
        )
        return self.store.create_session(new)

    def find(self, given: str) -> SessionId:
        """By id, name, or unique beginning of an id."""
        return self.store.find_session(check_name("session", given))

    def session(self, session_id: str) -> Session:
        return self.store.get_session(check_id("session", session_id))

    def state(self, session_id: str) -> dict[str, object]:
        """The whole state as plain JSON."""
        session = self.session(session_id)
        return state_document(
            session, self.store.phase_history(session.id), self.store.session_state(session.id)
        )

    def status(self, session_id: str) -> SessionStatus:
        """What is true of it now: running, queued, waiting for a person, idle, failed or done."""
        return self.store.session_state(check_id("session", session_id)).status

    def update(  # noqa: PLR0913 - everything that can be changed, by keyword
        self,
        session_id: str,
        *,
        phase: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        error: str | None = None,
        clear_errors: bool = False,
        summary: str | None = None,
        expected_phase: str | None = None,
    ) -> Session:
        """``expected_phase`` makes it compare-and-set: PhaseConflict if someone was faster."""
        change = SessionUpdate(
            phase=None if phase is None else parse_phase(phase),
            metadata=None if metadata is None else _metadata(metadata),
            error=None if error is None else check_text("error", error),
            clear_errors=clear_errors,
            summary=None if summary is None else check_text("summary", summary),
            expected_phase=None if expected_phase is None else parse_phase(expected_phase),
        )
        return self.store.update_session(check_id("session", session_id), change)

    def finalize(self, session_id: str, outcome: str, summary: str | None = None) -> Session:
        target = parse_outcome(outcome)
        if summary is not None:
            check_text("summary", summary)
        session = self.store.finalize_session(check_id("session", session_id), target, summary)
        notify(self.policy.notify, done_notice(session))
        return session

    def may_continue(self, session_id: str) -> MayContinue:
        """Never raises for what the session is: a missing or unreadable one may simply not go on."""
        try:
            return self._judge(self.session(session_id))
        except (NotFound, InvalidInput):
            return MayContinue.NOT_FOUND
        except UnreadableSession as exc:
            log.warning("session not resumable: %s", exc)
            return MayContinue.UNREADABLE

    def _judge(self, session: Session) -> MayContinue:
        rules, now = self.policy.continue_, self.store.now()
        answer = may_continue(session, rules, now)
        # an approval bears on nothing else, so that nobody need look for one
        if session.phase is Phase.APPROVAL or answer is MayContinue.TOO_OLD:
            return may_continue(session, rules, now, self.store.approval_window(session.id))
        return answer

    def page(self, wanted: SessionFilter, limit: int = 50, cursor: str | None = None) -> SessionPage:
        """One page, newest first; rows that cannot be read are named in it."""
        if not 1 <= limit <= 10_000:
            raise InvalidInput("limit", "must be between 1 and 10000")
        page = self.store.list_sessions(wanted, limit, cursor)
        for session_id, problem in page.unreadable.items():
            log.warning("session %s skipped: %s", session_id, problem)
        return page

    def pages(self, wanted: SessionFilter, limit: int | None = None) -> Iterator[SessionPage]:
        """As many as it takes, for all sessions that fit or ``limit`` of them; one that cannot be read counts."""
        cursor, left = None, limit
        while left is None or left > 0:
            page = self.page(wanted, _PAGE if left is None else min(left, _PAGE), cursor)
            yield page
            cursor = page.next_cursor
            if cursor is None:
                return
            if left is not None:
                left -= len(page.sessions) + len(page.unreadable)

    def sessions(self, wanted: SessionFilter) -> Iterator[Session]:
        """All of them, one at a time."""
        return (session for page in self.pages(wanted) for session in page.sessions)

    def cleanup(
        self, hours: float | None = None, *, conversation_hours: float | None = None, dry_run: bool = False
    ) -> CleanupReport:
        """Abandon what was idle, delete what was final for that long: delegated sessions, and conversations.

        What is not given is the setting of that name; conversations are kept unless one of the two says how long.
        A setting that a project's file makes is for the sessions of that project: then no others are touched.
        """
        retention, now = self.policy.retention, self.store.now()
        given = {"max_age_hours": hours, "conversations_max_age_hours": conversation_hours}
        from_project = (self.project_retention.get(key) for key, value in given.items() if value is None)
        old = Old(
            _hours_before(now, "hours", retention.max_age_hours if hours is None else hours),
            project=next(filter(None, from_project), None),
        )
        if conversation_hours is None:
            conversation_hours = retention.conversations_max_age_hours
        if conversation_hours is not None:
            old = replace(old, conversations=_hours_before(now, "conversation_hours", conversation_hours))
        if old.project is not None:
            # a repository inside the project does not read the project's file
            found = self.store.clean_up(old, dry_run=True).places
            old = replace(old, places=tuple(place for place in found if _is_of(old.project, place)))
        return self.store.clean_up(old, dry_run=dry_run)

    def stats(self, since: Instant | None = None, agent: str | None = None) -> Stats:
        """How well it goes, over whole days of UTC: each measure with its target, and whether that is met."""
        if agent is not None:
            check_name("agent", agent)
        now = self.store.now()
        begin = None if since is None else start_of_day(since)
        found = self.store.totals(since=begin, agent=agent)
        return Stats(begin, now, agent, figures(found, now, self.store.bytes_used(), begin))

    def rename(self, session_id: str, name: str | None) -> Session:
        if name is not None:
            check_session_name(name)
        return self.store.rename_session(check_id("session", session_id), name)

    def remove(self, session_id: str) -> None:
        self.store.remove_session(check_id("session", session_id))

    def new_id(self) -> SessionId:
        return make_session_id(self._clock(), os.urandom(4))


def _is_of(project: str, place: str) -> bool:
    """Whether the settings that count in ``place`` are those of the file in ``project``; no if it is not there."""
    directory = Path(place)
    file = project_file(os.environ, directory) if directory.is_dir() else None
    return file is not None and str(file.parent) == project


def _hours_before(now: Instant, field: str, hours: float) -> Instant:
    if type(hours) not in (int, float) or not 0 <= hours <= _MOST_HOURS:
        raise InvalidInput(field, f"must be a number between 0 and {_MOST_HOURS}, not {str(hours)[:40]}")
    return after(now, -hours * _HOUR)


def _happened(verb: Callable[[], Session]) -> bool:
    """False for what the session is or the phase is called; anything else the caller got wrong is raised."""
    try:
        verb()
    except (NotFound, Conflict, UnreadableSession) as exc:
        log.warning("nothing was changed: %s", exc)
        return False
    except InvalidInput as exc:
        if exc.field not in ("phase", "outcome", "session"):
            raise
        log.warning("nothing was changed: %s", exc)
        return False
    return True


def _metadata(value: Mapping[str, Json] | None) -> dict[str, Json]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInput("metadata", f"must be a JSON object, not {type(value).__name__}")
    return dict(value)

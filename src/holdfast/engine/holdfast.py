"""Owns the class ``Holdfast``: every verb of the library, on one store.

The plain verbs (``create_session`` … ``list_sessions``) take and return ids, dicts and booleans. They return False or
None for a session that does not exist or is closed, and for an unknown phase. A store that cannot be used is an error
in every verb.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack, overload

from holdfast.clock import Clock, Instant, after, start_of_day, system_clock, to_iso
from holdfast.config_files import project_file
from holdfast.domain.approvals import (
    MAX_WORDS,
    Answer,
    Approval,
    NewApproval,
    check_note,
    expiry,
    why_it_waits,
)
from holdfast.domain.conversations import Conversation, HistoryTurn
from holdfast.domain.decisions import Decision
from holdfast.domain.ids import (
    ConversationId,
    ProviderSessionId,
    RuntimeId,
    SessionId,
    check_id,
    check_provider,
    check_session_name,
    check_workspace,
    make_approval_id,
    make_session_id,
)
from holdfast.domain.inputs import check_name, check_text, check_whole
from holdfast.domain.metadata import encode_metadata
from holdfast.domain.phases import MayContinue, Phase, may_continue, parse_outcome
from holdfast.domain.policy import Policy
from holdfast.domain.records import replace
from holdfast.domain.redaction import Json
from holdfast.domain.runtimes import Runtime
from holdfast.domain.search import SearchPage, SearchRequest
from holdfast.domain.sessions import (
    CleanupReport,
    NewSession,
    Old,
    Session,
    SessionFilter,
    SessionKind,
    SessionPage,
    SessionState,
    SessionStatus,
    check_new_session,
    parse_update,
    state_document,
)
from holdfast.domain.statistics import Stats, figures
from holdfast.domain.turns import Claim, ClaimRequest, NewTurn, Turn, TurnRequest, TurnStatus
from holdfast.domain.usage import NO_USAGE, Usage
from holdfast.engine.explain import (
    Explanation,
    RunningTurn,
    Tree,
    Waited,
    WaitingTurn,
    explain,
    running_turns,
    wait_for,
    waiting_turn,
)
from holdfast.engine.past import PastReader, as_of_one_revision, newest_turn, unsent_request, was_stopped
from holdfast.engine.turn_requests import (
    LONGEST_DELAY,
    MOST_PRIORITY,
    Observer,
    RunKeywords,
    check_turn,
    existing_directory,
    ignore,
    require_unowned,
)
from holdfast.errors import (
    Busy,
    ConfigError,
    Conflict,
    HoldfastError,
    InvalidInput,
    MissingBinary,
    NotFound,
    Refused,
    StoreCorrupt,
    StoreError,
    UnreadableSession,
)
from holdfast.notifying import approval_notice, done_notice, notify
from holdfast.processes.owners import this_user
from holdfast.store.contract import Store

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.domain.events import PartialText
    from holdfast.domain.pointers import Rights
    from holdfast.domain.telling.packet import Packet
    from holdfast.engine.doctor.findings import Finding
    from holdfast.engine.importing import Brought, ImportReport, ImportRequest, Progress
    from holdfast.engine.restoring import Restoration
    from holdfast.engine.result import RunResult
    from holdfast.engine.running.agents import Agents
    from holdfast.engine.running.programs import Opened
    from holdfast.engine.running.runs import Runner
    from holdfast.engine.vault import Tidied
    from holdfast.engine.worker import Worker, WorkerOptions

log = logging.getLogger("holdfast")

_PAGE = 500
_MOST_RUNNING = 1000
_LONGEST_PROJECT = 10_000
_MOST_SECONDS = 100 * 365 * 24 * 3600
_MOST_HOURS = 10_000_000  #: of a clean-up
#: by the id of a ``Holdfast`` object: the provider session that turns ask for inside its ``provider_session`` block
_task_ids: ContextVar[Mapping[int, ProviderSessionId]] = ContextVar(
    "holdfast_provider_session", default=MappingProxyType({})
)
#: the prompt of a turn that continues one that was stopped
CONTINUE = "continue"
#: characters of the first prompt that become the session's purpose
_PURPOSE = 200
#: keywords of a run that a turn in the queue already has
_OF_THE_TURN = ("cwd", "model", "rights", "fresh", "provider_session_id", "allow_wider_rights")


class AnswerKeywords(TypedDict, total=False):
    by: str | None  #: the person who answers; None: the user who runs this process
    arguments_hash: str | None  #: refused unless the question has these arguments; None: not compared
    nonce: str | None  #: refused unless it is this very question; None: not compared


class Holdfast:
    """Sessions, conversations, turns, decisions and agents; the verbs raise the typed errors of ``holdfast.errors``.

    An open store; also a context manager that closes it. Safe to share between threads.
    """

    #: the directory of the project: hooks look in it for the sessions that are begun here; None: unknown
    project: str | None = None
    #: keys of ``[retention]`` that a project's file has set -> the directory of that project
    project_retention: Mapping[str, str] = MappingProxyType({})
    #: what it was opened with; None: it was given a store
    settings: Settings | None = None

    def __init__(
        self,
        store: Store,
        policy: Policy | None = None,
        clock: Clock = system_clock,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """``environ`` is the environment of agents; None: that of this process."""
        self.store = store
        self.policy = policy or Policy()
        self._clock = clock  #: for ids only; records have the store's own time
        self._environ = environ

    def within(self, workspace: str) -> Holdfast:
        """The same store for another workspace; it is closed with this one."""
        store = self.store.within(check_workspace(workspace))
        return Holdfast(store, self.policy, self._clock, self._environ)

    @cached_property
    def _runner(self) -> Runner:
        from holdfast.engine.running.runs import Runner  # imports everything that runs processes

        return Runner(self.store, self.policy, self._environ)

    @property
    def agents(self) -> Agents:
        """The agents of this machine."""
        return self._runner.agents

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
        """Begin a delegated session; returns its id."""
        return self.create(agent_name, purpose, metadata).id

    def update_state(
        self,
        agent_id: str,
        phase: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        error: str | None = None,
    ) -> bool:
        """Move to a phase, merge metadata, count an error: whatever is given. False if nothing was changed."""
        return _happened(lambda: self.update(agent_id, phase=phase, metadata=metadata, error=error))

    def should_resume(self, agent_id: str) -> bool:
        """May the work of this session continue?"""
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
        """Close as completed, failed or abandoned. False if nothing was changed."""
        return _happened(lambda: self.finalize(agent_id, outcome, summary))

    def cleanup_old_sessions(self, hours: float | None = None) -> int:
        """Abandon the delegated sessions that were idle, and delete those that were final, for so long. Returns how many.

        Without ``hours`` the setting ``max_age_hours`` counts, 24 by default. Conversations are kept unless
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
        began_at: Instant | None = None,
    ) -> Session:
        """Begin a session, in a conversation of its own unless it joins one.

        ``began_at``: it takes over a session that its provider has kept since then, and counts as imported.
        """
        new = NewSession(
            id=self.new_id(),
            agent=agent,
            purpose=purpose,
            kind=kind,
            metadata=_metadata(metadata),
            name=name,
            provider=provider,
            conversation_id=None if joins is None else ConversationId(joins),
            project=self.project if kind is SessionKind.DELEGATED else None,
            began_at=began_at,
        )
        check_new_session(new)
        return self.store.create_session(new)

    def find(self, given: str) -> SessionId:
        """By id, name, unique beginning or end of an id, or title; see ``Store.find_session``."""
        return self.store.find_session(check_name("session", given))

    def owner_of(self, provider_session_id: str) -> SessionId | None:
        """The session that an agent's own session belongs to, by the id that the agent gave it."""
        from holdfast.providers.registry import provider_names

        native = ProviderSessionId(check_name("session", provider_session_id))
        owners = (self.store.owner_of(provider, native) for provider in provider_names())
        return next((owner for owner in owners if owner is not None), None)

    def bring(self, given: str) -> Brought:
        """Take over a session that an agent's own program keeps on this machine: by id, beginning of an id, or title.

        A session that is one of ours already is only named. Raises NotFound, AmbiguousId, and Refused for a session
        without a turn, or one that has its id from another session of ours.
        """
        return self._runner.importer.bring(check_name("session", given))

    def import_sessions(
        self, wanted: ImportRequest | None = None, progress: Progress | None = None
    ) -> ImportReport:
        """Take over all sessions that the agents' own programs keep on this machine, or those that are wanted.

        Again, it takes only what is new. ``progress`` is called with the number of files that were looked at and the
        number of all. Raises InvalidInput for an agent that is not known.
        """
        from holdfast.engine.importing import ImportRequest

        return self._runner.importer.run(wanted or ImportRequest(), progress)

    def catch_up(self, directory: str) -> None:
        """Take over what is new in one directory, as far as a short look at the agents' files tells."""
        self._runner.importer.refresh(directory)

    def take_in(self, provider: str, provider_session_id: str, *, most_bytes: int | None = None) -> bool:
        """Take over what is new in one session that hooks watch, into the history and the vault.

        False if nothing was said in that session yet, and something still may be; or if its file is larger than
        ``most_bytes``, and was left alone.
        """
        native = ProviderSessionId(check_id("provider_session_id", provider_session_id))
        return self._runner.importer.take_in(check_provider(provider), native, most_bytes)

    def session(self, session_id: str) -> Session:
        return self.store.get_session(check_id("session", session_id))

    def state(self, session_id: str) -> dict[str, object]:
        """The whole state as plain JSON."""
        session = self.session(session_id)
        return state_document(session, self.store.phase_history(session.id), self.session_state(session.id))

    def status(self, session_id: str) -> SessionStatus:
        """What the session does now: running, queued, waiting for a person, idle, interrupted, failed or done."""
        return self.session_state(session_id).status

    def session_state(self, session_id: str) -> SessionState:
        """What the store knows of the session at this moment, and what this machine can see of its processes."""
        return self._seen_here(session_id, self.store.session_state(check_id("session", session_id)))

    def _seen_here(self, session_id: str, state: SessionState) -> SessionState:
        if state.status is not SessionStatus.RUNNING:
            return state  # most sessions: nothing of the machine is loaded for them
        try:
            return self._runner.seen_here(SessionId(session_id), state)
        except StoreCorrupt:
            return state  # what cannot be read of one session holds up no list

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
        """Change what is given. With ``expected_phase``, raises PhaseConflict if the session is in another phase."""
        change = parse_update(
            phase=phase,
            metadata=None if metadata is None else _metadata(metadata),
            error=error,
            clear_errors=clear_errors,
            summary=summary,
            expected_phase=expected_phase,
        )
        return self.store.update_session(check_id("session", session_id), change)

    def finalize(self, session_id: str, outcome: str, summary: str | None = None) -> Session:
        """Close the session. If its worker is dead, the worker's agent is ended first, and its answer is kept."""
        target = parse_outcome(outcome)
        if summary is not None:
            check_text("summary", summary)
        self.take_over(session_id)
        session = self.store.finalize_session(check_id("session", session_id), target, summary)
        notify(self.policy.notify, done_notice(session))
        return session

    def remove(self, session_id: str) -> None:
        self.take_over(session_id)
        self.store.remove_session(check_id("session", session_id))

    def may_continue(self, session_id: str) -> MayContinue:
        """Whether the work may continue, or why not. Never raises for a missing or an unreadable session."""
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
        # approvals matter only in these two cases, so they are read only then
        if session.phase is Phase.APPROVAL or answer is MayContinue.TOO_OLD:
            return may_continue(session, rules, now, self.store.approval_window(session.id))
        return answer

    def page(self, wanted: SessionFilter, limit: int = 50, cursor: str | None = None) -> SessionPage:
        """One page of sessions, newest first. The page names the rows that cannot be read."""
        if not 1 <= limit <= 10_000:
            raise InvalidInput("limit", "must be between 1 and 10000")
        # only the machine of a worker can see that the worker is gone
        asked = replace(wanted, or_running=wanted.status is SessionStatus.INTERRUPTED)
        page = self.store.list_sessions(asked, limit, cursor)
        for session_id, problem in page.unreadable.items():
            log.warning("session %s skipped: %s", session_id, problem)
        states = {one: self._seen_here(one, state) for one, state in page.states.items()}
        fitting = {one for one, state in states.items() if wanted.status in (None, state.status)}
        sessions = tuple(session for session in page.sessions if session.id in fitting)
        return replace(page, sessions=sessions, states={one: states[one] for one in fitting})

    def pages(self, wanted: SessionFilter, limit: int | None = None) -> Iterator[SessionPage]:
        """Pages with all matching sessions, or with ``limit`` of them; a session that cannot be read counts."""
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
        """All matching sessions, one at a time."""
        return (session for page in self.pages(wanted) for session in page.sessions)

    def search(
        self,
        words: str,
        *,
        agent: str | None = None,
        provider: str | None = None,
        project: str | None = None,
        since: Instant | None = None,
        limit: int = 20,
    ) -> SearchPage:
        """The sessions in which these words were said, the best first; see ``Store.search``.

        ``project`` is a directory: its sessions, and those of directories below it.
        """
        if agent is not None:
            check_name("agent", agent)
        if provider is not None:
            check_provider(provider)
        if project is not None:
            project = os.path.abspath(check_text("project", project, limit=_LONGEST_PROJECT))  # noqa: PTH100 - of any machine
        return self.store.search(SearchRequest(words, agent, provider, project, since, limit))

    def cleanup(
        self, hours: float | None = None, *, conversation_hours: float | None = None, dry_run: bool = False
    ) -> CleanupReport:
        """Abandon the sessions that were idle, and delete those that were final, for that long.

        ``hours`` are for delegated sessions, ``conversation_hours`` for conversations. What is not given is the
        setting of that name; conversations are kept unless one of the two says how long. A setting in a project's
        file counts for the sessions of that project: then no others are touched.
        """
        now, settings = self.store.now(), self.policy.retention
        given = {"max_age_hours": hours, "conversations_max_age_hours": conversation_hours}
        of_project = (self.project_retention.get(name) for name, value in given.items() if value is None)
        hours = settings.max_age_hours if hours is None else hours
        if conversation_hours is None:
            conversation_hours = settings.conversations_max_age_hours
        old = Old(_hours_before(now, "hours", hours), project=next(filter(None, of_project), None))
        if conversation_hours is not None:
            old = replace(old, conversations=_hours_before(now, "conversation_hours", conversation_hours))
        if old.project is not None:
            # a repository inside the project does not read the project's file
            found = self.store.clean_up(old, dry_run=True).places
            old = replace(
                old, places=tuple(place for place in found if _reads_settings_of(old.project, place))
            )
        return self.store.clean_up(old, dry_run=dry_run)

    def tidy_vault(self) -> Tidied:
        """Delete chunks of the vault that nothing has used for a day, and join the small parts of its files."""
        from holdfast.engine.vault import Vault  # imports what looks at an agent's own files

        return Vault(self.store, self.policy.vault).tidy()

    def stats(self, since: Instant | None = None, agent: str | None = None) -> Stats:
        """The measures of this workspace over whole days of UTC, each with its target and whether it is met."""
        if agent is not None:
            check_name("agent", agent)
        now = self.store.now()
        begin = None if since is None else start_of_day(since)
        found = self.store.totals(since=begin, agent=agent)
        in_vault = self.store.vault_figures().all_bytes
        return Stats(begin, now, agent, figures(found, now, self.store.bytes_used(), begin, vault=in_vault))

    def rename(self, session_id: str, name: str | None) -> Session:
        if name is not None:
            check_session_name(name)
        return self.store.rename_session(check_id("session", session_id), name)

    def new_id(self) -> SessionId:
        return make_session_id(self._clock(), os.urandom(4))

    # --- approvals ---

    def request_approval(
        self,
        session_id: str,
        what: str,
        arguments: Mapping[str, Json] | None = None,
        *,
        expires: float | None = None,
        answerers: Collection[str] = (),
    ) -> Approval:
        """Ask people, and put the session into phase ``approval``. Returns at once.

        ``expires`` are seconds; None: as configured. ``answerers``: only they may answer; empty: anyone may.
        """
        if not check_text("what", what, limit=MAX_WORDS).strip():
            raise InvalidInput("what", "must not be empty")
        given = {} if arguments is None else arguments
        encode_metadata(given, "arguments")
        seconds = self.policy.approvals.expires_seconds if expires is None else expires
        if seconds is not None and not 0 < seconds <= _MOST_SECONDS:
            raise InvalidInput("expires", f"must be above 0 and at most {_MOST_SECONDS} seconds")
        session = self.session(session_id)
        new = NewApproval(
            make_approval_id(self._clock(), os.urandom(4)),
            what,
            dict(given),
            expiry(self.store.now(), seconds),
            frozenset(check_name("answerer", name) for name in answerers),
            session.agent,
        )
        asked = self.store.request_approval(session.id, new)
        notify(self.policy.notify, approval_notice(asked, session.agent))
        return asked

    def approvals(
        self,
        session_id: str | None = None,
        *,
        open_only: bool = True,
        after: str | None = None,
        limit: int = 1000,
    ) -> tuple[Approval, ...]:
        """Approvals after the id ``after``, oldest first. Those without an answer are open, even if they have expired."""
        if session_id is not None:
            check_id("session", session_id)
        return self.store.approvals(session_id=session_id, open_only=open_only, after=after, limit=limit)

    def approval(self, given: str) -> Approval:
        """Find an approval by its id, by the unique beginning of it, or by a session that has exactly one open."""
        return self.store.get_approval(self.store.find_approval(check_name("approval", given)))

    def approve(self, given: str, note: str | None = None, **answer: Unpack[AnswerKeywords]) -> Approval:
        """Answers once. Raises if the approval was answered before, expired or became void."""
        return self._answer(given, note, approved=True, **answer)

    def deny(self, given: str, note: str | None = None, **answer: Unpack[AnswerKeywords]) -> Approval:
        """Like ``approve``. The note tells the agent why; without one the agent hears that no reason was given."""
        return self._answer(given, note, approved=False, **answer)

    def _answer(
        self,
        given: str,
        note: str | None,
        *,
        approved: bool,
        by: str | None = None,
        arguments_hash: str | None = None,
        nonce: str | None = None,
    ) -> Approval:
        check_note(note)
        asked = self.approval(given)
        answer = Answer(
            approved,
            this_user() if by is None else check_name("by", by),
            asked.arguments_hash if arguments_hash is None else arguments_hash,
            asked.nonce if nonce is None else nonce,
            note,
        )
        return self.store.answer_approval(asked.id, answer)

    # --- the history ---

    def history(
        self, session_id: str, limit: int | None = None, *, before: int | None = None
    ) -> tuple[HistoryTurn, ...]:
        """The current history of the session's conversation, oldest first; with ``limit``, its newest turns."""
        last = None if before is None else before - 1
        return self.store.history(self.session(session_id).conversation_id, last=last, limit=limit)

    def export(self, session_id: str, form: str = "markdown") -> Iterator[str]:
        """The session as one file, in pieces: ``markdown``, ``html`` or ``json``.

        It is read from the store while the pieces are taken. HTML raises ConfigError without the extra ``export``.
        """
        from holdfast.engine.exports import ExportForm, export  # most programs never need it

        if form not in [known.value for known in ExportForm]:
            raise InvalidInput("form", f"{form!r} is not one of {', '.join(ExportForm)}")
        return export(self.store, check_id("session", session_id), ExportForm(form))

    def tree(self, session_id: str) -> Tree:
        """The whole family of forks that this session belongs to."""
        return Tree.of(self.store, check_id("session", session_id))

    def edit(
        self, session_id: str, seq: int, *, prompt: str | None = None, response: str | None = None
    ) -> HistoryTurn:
        """Change the texts of a turn in the history. Turns made by hand are adopted first."""
        for field, text in (("prompt", prompt), ("response", response)):
            if text is not None:
                check_text(field, text)
        check_whole("turn", seq, lowest=1)
        self._settle(session_id)
        return self.store.edit_turn(check_id("session", session_id), seq, prompt=prompt, response=response)

    def truncate(self, session_id: str, keep: int) -> Conversation:
        """Drop every turn after ``keep``, also turns made by hand."""
        check_whole("turn", keep)
        self._settle(session_id)
        return self.store.truncate(check_id("session", session_id), keep)

    def retry(self, session_id: str, seq: int, prompt: str | None = None) -> Turn:
        """Run a turn again: it and every turn after it leave the history."""
        if prompt is not None:
            check_text("prompt", prompt)
        check_whole("turn", seq, lowest=1)
        self._settle(session_id)
        return self.store.retry_turn(check_id("session", session_id), seq, prompt=prompt)

    def new(self, session_id: str) -> Conversation:
        """Begin again with an empty history."""
        self.take_over(session_id)
        return self.store.new_generation(check_id("session", session_id))

    def _settle(self, session_id: str) -> None:
        """Call this before the history changes: ends the agent of a dead worker, and adopts turns made by hand."""
        self.take_over(session_id)
        for notice in self.adopt(session_id):
            log.warning("session %s: %s", session_id, notice)

    def cancel(self, session_id: str, seq: int | None = None, *, by_force: bool = False) -> Turn:
        """Cancel a turn; without ``seq``, the session's newest open one. Raises Conflict if none is open.

        A running turn is cancelled when its worker next checks. ``by_force`` takes the turn from its worker at once:
        only for a worker that does not come back.
        """
        if seq is not None:
            check_whole("turn", seq, lowest=1)
        chosen = self._open_turn(session_id) if seq is None and by_force else seq
        taken = self.take_over(session_id, by_force=by_force)
        if taken is not None and taken.seq == chosen and not taken.status.is_open:
            return taken
        number = self._open_turn(session_id) if chosen is None else chosen
        return self.store.cancel_turn(check_id("session", session_id), number)

    def _open_turn(self, session_id: str) -> int:
        stopped = self.stopped_turn(session_id)
        if stopped is None or not stopped.status.is_open:
            raise Conflict(f"no turn of {session_id} is open")
        return stopped.seq

    def turn(self, session_id: str, seq: int) -> Turn:
        """One turn of the session's conversation."""
        return self.store.get_turn(
            self.session(session_id).conversation_id, check_whole("turn", seq, lowest=1)
        )

    def partial_text(self, session_id: str) -> PartialText | None:
        """The text that the session's agent is writing now, whoever runs it; None: it is writing none."""
        return self.store.partial_text(check_id("session", session_id))

    # --- turns ---

    @contextmanager
    def provider_session(self, provider_session_id: str) -> Iterator[None]:
        """Every turn that is queued or run inside the block asks for this provider session, unless it names another."""
        task_id = ProviderSessionId(check_id("provider_session_id", provider_session_id))
        token = _task_ids.set({**_task_ids.get(), id(self): task_id})
        try:
            yield
        finally:
            _task_ids.reset(token)

    def enqueue(self, session_id: str, prompt: str, new: NewTurn | None = None) -> Turn:
        """Put a turn into the queue; ``new`` has everything besides the prompt.

        A prompt that only says to continue means the request of the turn before it, if no agent got that request.
        Raises Refused if ``new`` names a provider session that another session owns.
        """
        turn = self._turn(check_id("session", session_id), prompt, new)
        if turn.request.provider_session_id is not None:
            require_unowned(self.store, turn.provider, turn.request.provider_session_id, session_id)
        return self.store.enqueue_turn(session_id, replace(turn, prompt=self.meant_by(session_id, prompt)))

    def new_turn(  # noqa: PLR0913 - everything a caller may say about a turn in the queue, by keyword
        self,
        session: Session | None,
        request: TurnRequest,
        *,
        provider: str | None = None,
        priority: int = 0,
        delay: float = 0.0,
        runtime_id: str | None = None,
        key: str | None = None,
    ) -> NewTurn:
        """A turn for ``enqueue`` or, without a session, for ``begin_queued``, from what the command or a request names.

        Without ``provider`` it is the session's, else the configured one. ``delay`` are seconds from now.
        """
        if not -MOST_PRIORITY <= priority <= MOST_PRIORITY:
            raise InvalidInput("priority", f"must be between -{MOST_PRIORITY} and {MOST_PRIORITY}")
        if not 0 <= delay <= LONGEST_DELAY:
            raise InvalidInput("delay", f"must be between 0 and {LONGEST_DELAY:.0f} seconds")
        return NewTurn(
            "",
            (provider or self.policy.run.provider)
            if session is None
            else self.provider_of(session, provider),
            request,
            priority,
            not_before=after(self.store.now(), delay) if delay else None,
            runtime_id=None if runtime_id is None else RuntimeId(runtime_id),
            key=key,
        )

    def stopped_turn(self, session_id: str) -> Turn | None:
        """The newest turn of a session, if it waits to run or was stopped before it ended."""
        last = newest_turn(self.store, self.session(session_id).id)
        return last if last is not None and was_stopped(last) else None

    def meant_by(self, session_id: str, prompt: str, *, at: int | None = None) -> str:
        """The prompt. If it only says to continue, the request of the stopped turn, unless an agent got that request.

        ``at``: a turn after this one does not count.
        """
        from holdfast.domain.telling.context import says_continue  # and all that tells of the past

        stopped = self.stopped_turn(session_id) if says_continue(prompt) else None
        if stopped is None or (at is not None and stopped.seq > at):
            return prompt
        request = unsent_request(self.store, stopped)
        return prompt if request is None else request.prompt

    def record(
        self,
        session_id: str,
        prompt: str,
        response: str | None,
        new: NewTurn | None = None,
        usage: Usage = NO_USAGE,
    ) -> Turn:
        """Record a turn that was run elsewhere and has already ended."""
        if response is not None:
            check_text("response", response)
        turn = self._turn(session_id, prompt, new)
        return self.store.record_turn(check_id("session", session_id), turn, response, usage)

    def claim(self, runtime: Runtime, owner: str, *, key: str | None = None) -> Claim | None:
        """Claim the next turn for this runtime, decided and leased. The same ``key`` repeats a call whose reply was lost."""
        queue = self.policy.queue
        return self.store.claim_turn(
            ClaimRequest(
                runtime, owner, key or os.urandom(16).hex(), queue.lease_seconds,
                affinity_seconds=queue.affinity_seconds,
            )
        )  # fmt: skip

    # --- the decision ---

    def decide(
        self,
        session_id: str,
        provider: str | None = None,
        *,
        request: TurnRequest | None = None,
        runtime: Runtime | None = None,
    ) -> Decision:
        """What a claim of the next turn would decide now. Changes nothing.

        Without a request, that of the turn at the head of the session's queue counts, if there is one.
        """
        session = self.session(session_id)
        asked = request
        if request is not None or self._task_id is not None:
            asked = self._in_task(request or TurnRequest())
        return self.store.explain(session.id, self.provider_of(session, provider), asked, runtime)

    def provider_of(self, session: Session, given: str | None) -> str:
        """The provider that was asked for, else the session's, else that of its pointer, else the configured one."""
        if given is not None:
            return check_provider(given)
        if session.provider is not None:
            return session.provider
        pointers = self.store.pointers(session.id)
        return pointers[0].provider if pointers else self.policy.run.provider

    def _turn(self, session_id: str, prompt: str, new: NewTurn | None) -> NewTurn:
        if new is None:
            new = NewTurn("", self.provider_of(self.session(session_id), None))
        new = replace(new, prompt=prompt)
        check_turn(self.store, session_id, new)
        return replace(new, request=self._in_task(new.request))

    @property
    def _task_id(self) -> ProviderSessionId | None:
        """The provider session of the ``provider_session`` block around the call; None outside of one."""
        return _task_ids.get().get(id(self))

    def _in_task(self, request: TurnRequest) -> TurnRequest:
        """The request with the provider session of the block around the call, unless it names one itself."""
        if request.provider_session_id is not None:
            check_id("provider_session_id", request.provider_session_id)
            return request
        return replace(request, provider_session_id=self._task_id)

    # --- running agents ---

    def run(
        self,
        prompt: str,
        *,
        agent: str | None = None,
        provider: str | None = None,
        name: str | None = None,
        **keywords: Unpack[RunKeywords],
    ) -> RunResult:
        """Begin a session and run its first turn. The session stays open."""
        _check_prompt(prompt)
        chosen = check_provider(provider or self.policy.run.provider)
        # the directory is checked before anything is recorded
        keywords["cwd"] = keywords.get("cwd") or "."
        if keywords.get("provider_session_id") is None:
            keywords["provider_session_id"] = self._task_id
        options = self._runner.prepare(chosen, keywords)
        session = self._begin(prompt, agent, chosen, name, self._runner.named_since(chosen, options))
        return self._first_turn(
            session,
            lambda: self._runner.run(self.store.situation(session.id, chosen), chosen, prompt, options),
        )

    def wider_rights(
        self, rights: Rights, session_id: str | None = None, provider: str | None = None
    ) -> str | None:
        """What of these rights a person must accept (``allow_wider_rights``), in words; None: nothing.

        That is what the session does not have yet, and arguments of the provider that may widen what its agent may do.
        """
        session = None if session_id is None else self.session(session_id)
        chosen = (
            provider or self.policy.run.provider if session is None else self.provider_of(session, provider)
        )
        return self._runner.wider_rights(
            check_provider(chosen), rights, None if session is None else session.id
        )

    def _first_turn(self, session: Session, run: Callable[[], RunResult]) -> RunResult:
        """Runs the first turn of a session. If the turn could not be recorded, the session is removed; otherwise the
        error names the session."""
        try:
            return run()
        except StoreError:
            raise
        except HoldfastError as exc:
            if self.store.turns(session.id, limit=1):
                exc.details.setdefault("session_id", session.id)
            else:
                self.store.remove_session(session.id)
            raise

    def begin(
        self, prompt: str, *, agent: str | None = None, provider: str | None = None, name: str | None = None
    ) -> Session:
        """Begin a session for what a prompt asks for. It has no turn yet: ``enqueue`` gives it one."""
        _check_prompt(prompt)
        return self._begin(prompt, agent, check_provider(provider or self.policy.run.provider), name)

    def _begin(
        self, prompt: str, agent: str | None, provider: str, name: str | None, began_at: Instant | None = None
    ) -> Session:
        return self.create(
            agent or provider, prompt.strip()[:_PURPOSE], kind=SessionKind.CONVERSATION, name=name,
            provider=provider, began_at=began_at,
        )  # fmt: skip

    def begin_queued(
        self, prompt: str, new: NewTurn, *, agent: str | None = None, name: str | None = None
    ) -> Turn:
        """Begin a session whose first turn waits for a worker. If the turn cannot be queued, there is no session."""
        check_turn(self.store, None, replace(new, prompt=prompt))
        if new.runtime_id is not None and new.runtime_id not in {known.id for known in self.store.runtimes()}:
            raise NotFound("runtime", new.runtime_id)
        session = self.begin(prompt, agent=agent, provider=new.provider, name=name)
        try:
            return self.enqueue(session.id, prompt, new)
        except (InvalidInput, Refused):
            self.store.remove_session(session.id)
            raise

    def worker(self, providers: Sequence[str], options: WorkerOptions) -> Worker:
        """A worker for these providers; for an empty list, for every provider that is installed here."""
        from holdfast.engine.worker import Worker

        if providers:
            found = [self.agents.get(check_provider(name)) for name in providers]
        else:
            found = [agent for agent in self.agents.all().values() if not isinstance(agent, HoldfastError)]
        if not found:
            raise MissingBinary("agents", "none is installed here; see: holdfast runtimes")
        return Worker(self.store, self.agents, found, self.policy, options)

    def resume(
        self,
        session_id: str,
        prompt: str | None = None,
        *,
        provider: str | None = None,
        **keywords: Unpack[RunKeywords],
    ) -> RunResult:
        """Continue a session; without a prompt, its turn that waits or was stopped.

        A prompt that only says to continue means the request of the turn before it, if no agent got that request.
        """
        if provider is not None:
            check_provider(provider)
        situation = self.store.situation(check_id("session", session_id), provider)
        session, chosen = situation.session, situation.provider or self.policy.run.provider
        if keywords.get("provider_session_id") is None:
            keywords["provider_session_id"] = self._task_id
        if prompt is not None:
            _check_prompt(prompt)
            prompt = self.meant_by(session.id, prompt)
            return self._runner.run(
                situation, chosen, prompt, self._runner.prepare(chosen, keywords, session.id)
            )
        taken = self.take_over(session.id)
        stopped = self.stopped_turn(session.id)
        if stopped is None:
            called = session.id if session.name is None else shlex.quote(session.name)
            why = f"no turn of {session.id} was stopped"
            if taken is not None:
                why = f"turn {taken.seq} of {session.id} was answered in the meantime: holdfast show {called}"
            raise InvalidInput("prompt", f'{why}; say what to do next: holdfast resume {called} "..."')
        if stopped.status not in (TurnStatus.QUEUED, TurnStatus.WAITING):
            chosen = provider or stopped.provider
            prompt = self.meant_by(session.id, CONTINUE)
            situation = self.store.situation(session.id, chosen)
            return self._runner.run(
                situation, chosen, prompt, self._runner.prepare(chosen, keywords, session.id)
            )
        self._check_waiting(stopped, provider, keywords)
        options = self._runner.prepare(stopped.provider, keywords)
        return self._runner.run_waiting(session.id, stopped.provider, options)

    def _check_waiting(self, stopped: Turn, provider: str | None, keywords: RunKeywords) -> None:
        """Raises if the turn that waits cannot run now, or if it was to run otherwise than it was asked for."""
        if stopped.status is TurnStatus.WAITING:
            for approval in self.store.approvals(session_id=stopped.session_id):
                if approval.seq == stopped.seq:
                    raise why_it_waits(approval, self.store.now())
        if provider not in (None, stopped.provider):
            raise InvalidInput("provider", f"turn {stopped.seq}, which waits, is for {stopped.provider}")
        for name in _OF_THE_TURN:
            if keywords.get(name):
                raise InvalidInput(
                    name,
                    f"turn {stopped.seq}, which waits, has its own; holdfast cancel {stopped.session_id} gives it up",
                )
        if stopped.not_before is not None and stopped.not_before > self.store.now():
            raise Busy(f"turn {stopped.seq} of {stopped.session_id}", "its retry", to_iso(stopped.not_before))

    @overload
    def fork(
        self, session_id: str, prompt: None = None, *, at: int | None = None, name: str | None = None
    ) -> Session: ...
    @overload
    def fork(
        self,
        session_id: str,
        prompt: str,
        *,
        at: int | None = None,
        name: str | None = None,
        provider: str | None = None,
        **keywords: Unpack[RunKeywords],
    ) -> RunResult: ...
    def fork(
        self,
        session_id: str,
        prompt: str | None = None,
        *,
        at: int | None = None,
        name: str | None = None,
        provider: str | None = None,
        **keywords: Unpack[RunKeywords],
    ) -> Session | RunResult:
        """Fork a session; with a prompt, also run the fork's first turn. See ``branch``."""
        if prompt is None:
            return self.branch(session_id, at=at, name=name)[0]
        _check_prompt(prompt)
        self._runner.prepare(self.provider_of(self.session(session_id), provider), keywords)
        child, notices = self.branch(session_id, at=at, name=name)
        prompt = self.meant_by(session_id, prompt, at=at)
        left_out = () if at is not None else self._left_out(session_id, child)
        result = self._first_turn(child, lambda: self.resume(child.id, prompt, provider=provider, **keywords))
        return replace(result, notices=(*notices, *left_out, *result.notices))

    def branch(
        self, session_id: str, *, at: int | None = None, name: str | None = None
    ) -> tuple[Session, tuple[str, ...]]:
        """Fork a session up to turn ``at``; returns the fork and notices for the person.

        The fork has the turns that a dead worker finished, and those that a person made in the agent's own program:
        both are added to the parent's history first. Otherwise the parent is not changed.
        """
        if name is not None:
            check_session_name(name)
        if at is not None:
            check_whole("turn", at)
        self.take_over(session_id)
        notices = self.adopt(session_id)
        return self.store.fork(check_id("session", session_id), self.new_id(), at=at, name=name), notices

    def _left_out(self, session_id: str, child: Session) -> tuple[str, ...]:
        """A notice if the newest turns had not ended, so that the fork does not have them."""
        last = self.store.get_conversation(child.conversation_id).next_seq - 1
        newest = self.history(session_id, 1)
        if not newest or newest[-1].seq <= last:
            return ()
        return (
            f"the fork has the turns up to {last}: later turns have not ended, so the fork does not have them",
        )

    def adopt(self, session_id: str) -> tuple[str, ...]:
        """Adopt the turns that a person made in the agent's own program on this machine.

        Returns notices for the person; none if nothing was found.
        """
        pointers = self.store.pointers(check_id("session", session_id))
        return self._runner.adopt(pointers) if pointers else ()

    def open_native(self, session_id: str, observer: Observer = ignore) -> Opened:
        """Run the provider's own program on this session, for a person.

        No other process writes to the session while the program runs. Afterwards its turns are in the history. The
        observer is called before the program starts, if turns were adopted that a person had made before.
        """
        session = self.session(session_id)
        return self._runner.open(session.id, self.provider_of(session, None), observer)

    def start_native(
        self,
        provider: str | None = None,
        arguments: Sequence[str] = (),
        *,
        agent: str | None = None,
        name: str | None = None,
        cwd: str | None = None,
    ) -> tuple[SessionId, Opened]:
        """Begin a session in the provider's own program, for a person; ``arguments`` are for the program.

        No other process writes to the session while the program runs. Afterwards everything that was said is in the
        history, and the session is removed if nothing was said.
        """
        chosen = check_provider(provider or self.policy.run.provider)
        work_dir = existing_directory(cwd or ".")
        self._runner.check_start(chosen, arguments)
        session = self.create(
            agent or chosen, kind=SessionKind.CONVERSATION, name=name, provider=chosen
        )  # fmt: skip
        try:
            return session.id, self._runner.start(session.id, chosen, work_dir, arguments)
        except (MissingBinary, ConfigError):  # the program was not started
            self.store.remove_session(session.id)
            raise

    def relocate(self, session_id: str, directory: str) -> str:
        """Continue the session in another directory, where its project was moved. Returns the recorded path."""
        return self._runner.relocate(self.session(session_id).id, directory)

    def restore(self, session_id: str, *, dry_run: bool = False) -> tuple[Restoration, ...]:
        """Put the agent's own session files back as the vault has them: one answer for each agent of the session.

        A file that is the same or newer is left alone, and one that differs is never overwritten: it is kept as a branch.
        Raises NotFound if the vault has nothing of the session, Busy while a program has the session open, and
        Refused if the files belong to another machine or cannot be written. With ``dry_run`` nothing is written.
        """
        restored = self._runner.restore(self.session(session_id).id, dry_run=dry_run)
        if any(file.is_written for each in restored for file in each.files) and not dry_run:
            self.store.record_deed(session_id, "restore")
        return restored

    def recover(self) -> tuple[Turn, ...]:
        """Take over from all workers that are gone; see ``Store.recover``."""
        return self._runner.recover()

    # --- delegating ---

    def pre_delegate_hook(self, context: Mapping[str, Json]) -> dict[str, Any]:
        """Is there a session that a delegation would continue? Never raises for a wrong ``context``.

        ``context``: ``agent_name``, and, if known, ``agent_id``, ``task_id``, ``task_description``, ``metadata``.
        """
        from holdfast.hooks.serving import answer_pre_delegate

        return answer_pre_delegate(self.store, context)

    def take_over(self, session_id: str, *, by_force: bool = False) -> Turn | None:
        """Ends the processes of a worker that is gone, and frees its turn of this session. Returns that turn, if any.

        ``by_force`` takes the turn from any worker: only for one that does not come back.
        """
        holder = self.store.holder(check_id("session", session_id))
        return None if holder is None else self._runner.take_over(holder, by_force=by_force)

    def wait(self, session_id: str, timeout: float | None = None) -> Waited:
        """Wait until the work is done, has failed, or needs a person; at most ``timeout`` seconds."""
        return wait_for(self.store, self.session(session_id).id, timeout)

    # --- telling ---

    def doctor(self, *, deep: bool = False) -> tuple[Finding, ...]:
        """What is wrong with this installation and this store, what it means, and what mends it. Changes nothing.

        ``deep`` takes longer: it compares every index of a SQLite database, and reads back all of the vault.
        """
        from holdfast.engine.doctor.examination import examine  # imports nearly everything
        from holdfast.engine.doctor.scene import Scene

        environ = os.environ if self._environ is None else self._environ
        return examine(Scene.of(self.store, self.settings, environ, deep=deep))

    def why(self, session_id: str, provider: str | None = None) -> Explanation:
        """May the session continue, how would it continue where it ran before, and what was decided the last time?

        On the machine where it ran, the answer includes what only that machine can see.
        """
        session = self.session(session_id)
        told = explain(
            self.store, session, self.provider_of(session, provider), self.may_continue(session.id)
        )
        told = replace(told, is_cut_off=self.is_cut_off(session.id))
        pointer = self.store.pointer(session.id, told.provider)
        if pointer is None:
            return told
        seq = self.store.get_conversation(session.conversation_id).next_seq
        return replace(told, decision=self._runner.judge_here(told.decision, pointer, seq))

    def is_cut_off(self, session_id: str) -> bool:
        """Whether the session has an open turn that nobody works on any more: what ran it is gone."""
        return self._runner.is_cut_off(SessionId(check_id("session", session_id)))

    def running(self) -> list[RunningTurn]:
        """What runs at this moment, the last started first. A turn that was cut off does not run."""
        page = self.page(SessionFilter(status=SessionStatus.RUNNING, subagents=True), _MOST_RUNNING)
        return running_turns(self.store, page)

    def waiting(self, session_id: str) -> WaitingTurn | None:
        """The next turn of the session, if it waits in the queue."""
        known = {one.id: one for one in self.store.runtimes()}
        return waiting_turn(self.store, session_id, known)

    def packet(self, session_id: str, provider: str | None = None, work_dir: str | None = None) -> Packet:
        """The hand-over sheet of the session as it is now. Changes nothing."""
        from holdfast.domain.decisions import because
        from holdfast.engine.packets import gather_packet  # imports the modules that run processes

        told = self.why(session_id, provider)
        session, why, policy = told.session, because(told.decision), self.policy.context
        return as_of_one_revision(
            self.store,
            self.store.get_conversation(session.conversation_id),
            lambda now: gather_packet(PastReader(self.store, session, now), policy, why, work_dir=work_dir),
        )


def _check_prompt(prompt: str) -> None:
    if not check_text("prompt", prompt).strip():
        raise InvalidInput("prompt", "must not be empty")


def _happened(verb: Callable[[], Session]) -> bool:
    """Whether ``verb`` changed something. False for a session or a phase that does not allow it; other errors are raised."""
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


def _reads_settings_of(project: str, place: str) -> bool:
    """Whether the project's file whose settings count in the directory ``place`` lies in ``project``."""
    directory = Path(place)
    file = project_file(os.environ, directory) if directory.is_dir() else None
    return file is not None and str(file.parent) == project


def _hours_before(now: Instant, field: str, hours: float) -> Instant:
    if type(hours) not in (int, float) or not 0 <= hours <= _MOST_HOURS:
        raise InvalidInput(field, f"must be a number between 0 and {_MOST_HOURS}, not {str(hours)[:40]}")
    return after(now, -hours * 3600.0)


def _metadata(value: Mapping[str, Json] | None) -> dict[str, Json]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInput("metadata", f"must be a JSON object, not {type(value).__name__}")
    return dict(value)

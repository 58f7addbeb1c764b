"""Owns the spool: an inbox for verbs that a store elsewhere or a locked one could not take, and emptying it.

Each record is a verb of the store with its argument. Whoever opens the store calls the verbs, in order. A hook
must answer at once, though, which session a subagent works in: it mints the id of a new session itself, and
continues a session only if a copy of ``Store.free_sessions``, at most a few minutes old, says that it may.

Hooks write here, so little is imported before it is needed.
"""

from __future__ import annotations

import json
import os
import sys

from holdfast.clock import SECOND, system_clock
from holdfast.domain.delegations import (
    Delegated,
    DelegatedApproval,
    DelegatedSession,
    DelegationReason,
    EndedDelegation,
    FreeSession,
    is_about,
)
from holdfast.domain.observed import ObservedSession
from holdfast.domain.phases import MayContinue, Phase, may_continue
from holdfast.domain.quick_redaction import redact_seldom
from holdfast.domain.records import PlainRecord
from holdfast.domain.telling.welcome import Welcome
from holdfast.errors import StoreUnavailable
from holdfast.hooks.process import PARTIAL, RECORD, WATCHED, HookLog, key_mark, record_names, stale_files

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from holdfast.config import Settings
    from holdfast.domain.delegations import Delegation, DelegationEnd, NewDelegation, Question
    from holdfast.domain.observed import Sighting
    from holdfast.domain.policy import NotifyPolicy
    from holdfast.hooks.settings import HookSettings
    from holdfast.store.contract import Store

COPY = "sessions.json"  #: of ``Store.free_sessions``
COPY_SECONDS = 300
MOST_RECORDS = 10_000
MARK_SECONDS = 24 * 3600  #: that a mark waits for a session in which nothing was said yet
BROKEN = ".broken"  #: how the name of a record ends that could not be understood
_TAKEN = "taken-"
_LOCK = "lock"
#: fields that may hold a secret
_TEXTS = ("purpose", "summary")


class SpoolStore:
    """The verbs that hooks call. Writing verbs become records; reading verbs know what the copy knows."""

    def __init__(self, settings: HookSettings, directory: str) -> None:
        """``directory`` is where the settings were looked for."""
        if settings.spool is None:
            raise StoreUnavailable("the spool", "neither HOME nor XDG_STATE_HOME is set")
        self._directory = settings.spool
        self._works_in = directory
        self._settings = settings
        self._written = 0

    def delegate(self, new: NewDelegation) -> Delegated:
        told = self._told_before(new.id)
        if told is not None:
            resumed = next((free.session for free in self._free() if free.session.id == told), None)
            return _delegated(new.id, resumed, told)
        resumed = self._take_one(new)
        session_id = new.new_session_id if resumed is None else resumed.id
        self._keep("delegate", {**vars(new), "told": session_id}, key=new.id)
        return _delegated(new.id, resumed, session_id)

    def ask_delegation(self, question: Question) -> Delegated:
        self._keep("ask_delegation", vars(question))
        for free in self._free():
            if question.session_id is None:
                fits = _is_for(free, question) and is_about(free.session.metadata, question.task_id)
            else:
                fits = free.session.id == question.session_id
            if fits:
                return Delegated(id=question.id, reason=DelegationReason.RESUMABLE, session=free.session)
        return Delegated(id=question.id, reason=DelegationReason.NONE, session=None)

    def end_delegation(self, end: DelegationEnd) -> EndedDelegation:
        self._keep("end_delegation", vars(end))
        return EndedDelegation(id=end.id, session_id=end.session_id or "", outcome=end.outcome, queued=True)

    def open_delegations(self, agent: str, project: str) -> tuple[Delegation, ...]:  # noqa: ARG002 - not known here
        return ()

    def lose_delegations(self, provider_session_id: str) -> int:
        self._keep("lose_delegations", {"provider_session_id": provider_session_id})
        return 0

    def observe_session(self, seen: Sighting) -> ObservedSession:
        self._keep("observe_session", vars(seen))
        return ObservedSession(provider=seen.provider, id=seen.id, started_at=seen.at, last_seen_at=seen.at)

    def observed_session(self, provider: str, provider_session_id: str) -> ObservedSession | None:
        raise StoreUnavailable("the spool", f"it does not know {provider} {provider_session_id}")

    def welcome(
        self,
        provider: str,  # noqa: ARG002 - the copy does not know provider sessions
        provider_session_id: str,  # noqa: ARG002
        project: str,
        besides: str | None = None,  # noqa: ARG002
    ) -> Welcome:
        """The paused sessions of the copy; nothing else is known here."""
        here = [free for free in self._free() if free.project == project]
        paused = ((free.session.id, free.agent, free.session.phase, free.purpose) for free in here)
        return Welcome(paused=tuple(paused))

    def close(self) -> None:
        """Starts a process that takes the records to the store, if there are any."""
        if self._written:
            send_carrier(self._directory, self._works_in)

    def _keep(self, verb: str, fields: dict[str, Any], key: str | None = None) -> None:
        """Writes a record. Atomic, and on the disk when this returns; the names of records keep their order."""
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        if len(record_names(self._directory)) >= MOST_RECORDS:
            raise StoreUnavailable(
                self._directory, f"{MOST_RECORDS} records wait there to be taken to the store"
            )
        name = f"{self._directory}/{system_clock():020d}-{os.getpid()}-{self._written}{key_mark(key)}"
        self._written += 1
        clean = {name: redact_seldom(fields[name]) for name in _TEXTS if fields.get(name)}
        content = json.dumps({"verb": verb, "fields": {**fields, **clean}, "key": key}).encode()
        descriptor = os.open(f"{name}{PARTIAL}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                while content:  # a disk that is nearly full takes a part, and fails with the next
                    content = content[os.write(descriptor, content) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.rename(f"{name}{PARTIAL}", f"{name}{RECORD}")
        except BaseException:
            try:
                os.unlink(f"{name}{PARTIAL}")
            except FileNotFoundError:  # the rename was done before the interrupt
                pass
            raise

    def _told_before(self, delegation_id: str) -> str | None:
        """The session that an earlier call with the same id was told, while its record waits."""
        for name in record_names(self._directory):
            if not name.endswith(f"{key_mark(delegation_id)}{RECORD}"):
                continue
            record = _read(f"{self._directory}/{name}")
            if record is not None and record.get("key") == delegation_id:
                return str(record["fields"]["told"])
        return None

    def _take_one(self, new: NewDelegation) -> DelegatedSession | None:
        for free in self._free():
            if not _is_for(free, new):
                continue
            mark = self._mark(free.session.id, new.id)
            if mark is None:
                continue
            # a carrier that renewed the copy since it was read has removed the marks of the old copy
            if any(again.session.id == free.session.id for again in self._free()):
                return free.session
            os.unlink(mark)
        return None

    def _mark(self, session_id: str, delegation_id: str) -> str | None:
        """Takes a session by creating a file; None if another delegation of this machine has taken it."""
        mark = f"{self._directory}/{_TAKEN}{session_id}"
        try:
            descriptor = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return None
        try:
            os.write(descriptor, delegation_id.encode())
        finally:
            os.close(descriptor)
        return mark

    def _free(self) -> Iterator[FreeSession]:
        """The sessions of the copy that may continue now, newest first; none if the copy is too old."""
        now = system_clock()
        copy = _read(f"{self._directory}/{COPY}") or {"at": 0, "sessions": []}
        if not 0 <= now - copy["at"] <= COPY_SECONDS * SECOND:
            return
        rules = self._settings.policy
        for entry in copy["sessions"]:
            free = _free_session(entry)
            if may_continue(free, rules, now, free.window) is MayContinue.YES:
                yield free


def _is_for(free: FreeSession, wanted: NewDelegation | Question) -> bool:
    return free.agent == wanted.agent and free.project == wanted.project


def _delegated(delegation_id: str, resumed: DelegatedSession | None, session_id: str) -> Delegated:
    if resumed is not None:
        return Delegated(id=delegation_id, reason=DelegationReason.RESUMABLE, session=resumed)
    session = DelegatedSession(
        id=session_id, phase=Phase.INITIALIZING.value, created_at=system_clock(), metadata={}, history=()
    )
    return Delegated(id=delegation_id, reason=DelegationReason.NONE, session=session)


def _free_session(fields: dict[str, Any]) -> FreeSession:
    session = fields["session"]
    asked = session["approval"]
    approval = None if asked is None else DelegatedApproval(**asked)
    return FreeSession(**{**fields, "session": DelegatedSession(**{**session, "approval": approval})})


def _read(path: str) -> dict[str, Any] | None:
    """None for a file that does not exist, or that holds no JSON object."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


# --- the carrier: a process that takes the records to the store, and takes in what is marked as watched ---

#: a carrier looks once more after this time; no other carrier is started meanwhile
AGAIN_SECONDS = 5
_SENT = "sent"
#: a hook may run in a stranger's checkout: nothing of it may be imported
_ELSEWHERE = 'cd / && exec "$0" "$@"'
#: imports this package from where it is, and everything else from the interpreter's own environment
_PROGRAM = """
import sys
root, directory = sys.argv[1:]
sys.path.insert(0, root)
import holdfast
sys.path.append(sys.path.pop(0))
from holdfast.engine.watched import carry
carry(directory)
"""
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def send_carrier(spool: str, directory: str) -> None:
    """Start a carrier, unless one was started a moment ago. It outlives the hook and prints nothing."""
    mark = f"{spool}/{_SENT}"
    try:
        sent_at = os.stat(mark).st_mtime_ns // 1000
    except FileNotFoundError:
        sent_at = 0
    if 0 <= system_clock() - sent_at < AGAIN_SECONDS * SECOND:
        return
    with open(mark, "w"):
        pass
    os.utime(mark)
    nothing = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in (0, 1, 2)]
    program = [sys.executable, "-I", "-c", _PROGRAM, _ROOT, directory]
    os.posix_spawn(
        "/bin/sh", ["sh", "-c", _ELSEWHERE, *program], os.environ, file_actions=nothing, setsid=True
    )


# --- emptying the spool ---


def empty_spool(store: Store, settings: Settings, environ: Mapping[str, str]) -> int:
    """Hand the records to the store; how many it took. Never raises: what stays is handed over next time."""
    from holdfast.config import default_url
    from holdfast.errors import HoldfastError
    from holdfast.hooks.settings import spool_dir

    url = settings.url or default_url(environ)
    spool = spool_dir(environ, url, settings.workspace)
    if spool is None or not os.path.isdir(spool):
        return 0
    needs_copy = not url.startswith("sqlite:")  # hooks read a SQLite file itself
    log = HookLog(environ, "spool")
    try:
        if not needs_copy and not any(name.endswith((RECORD, PARTIAL)) for name in os.listdir(spool)):
            return 0
        lock = _lock(spool)
        if lock is None:
            return 0
        try:
            _settle_partial(spool)
            taken = _take_records(store, settings.policy.notify, spool, log)
            if needs_copy:
                _renew_copy(store, spool)
            # after the copy, which now says that these sessions are not free
            _forget_marks(spool, {str(record.get("key")) for record in taken})
        finally:
            os.close(lock)
        return len(taken)
    except (HoldfastError, OSError) as exc:
        log.problem(exc)
        return 0


# --- marks of sessions that hooks watch ---


def watched_marks(spool: str) -> dict[tuple[str, str], list[str]]:
    """The names of the marks, by the provider and the id of the session; the session that was marked last comes first."""
    marks: dict[tuple[str, str], list[str]] = {}
    try:
        names = sorted(os.listdir(spool), reverse=True)
    except OSError:
        return {}
    for name in names:
        _, _, subject = name.removesuffix(WATCHED).partition(".")
        provider, _, session_id = subject.partition(".")
        if name.endswith(WATCHED) and session_id:
            marks.setdefault((provider, session_id), []).append(name)
    return marks


def remove_marks(spool: str, names: list[str]) -> None:
    for name in names:
        try:
            os.unlink(f"{spool}/{name}")
        except (
            FileNotFoundError
        ):  # another process has taken the session in, or a later mark has replaced this one
            pass


def is_stale(name: str) -> bool:
    """Whether a mark is so old that nothing will come of it."""
    at = name.partition("-")[0]
    return not at.isdecimal() or system_clock() - int(at) > MARK_SECONDS * SECOND


def _lock(spool: str) -> int | None:
    """A descriptor that holds the lock until it is closed; None if another process holds the lock."""
    import fcntl

    descriptor = os.open(f"{spool}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _settle_partial(spool: str) -> None:
    """Files that killed hooks left: a whole record joins the others, the rest is removed."""
    for path in stale_files(spool, lambda name: name.endswith(PARTIAL) and not name.startswith(COPY)):
        if _read(path) is None:
            os.unlink(path)
        else:
            os.rename(path, f"{path.removesuffix(PARTIAL)}{RECORD}")


def _take_records(store: Store, policy: NotifyPolicy, spool: str, log: HookLog) -> list[dict[str, Any]]:
    from holdfast.errors import Conflict, Forbidden, InvalidInput, NotFound

    taken: list[dict[str, Any]] = []
    for name in record_names(spool):
        path = f"{spool}/{name}"
        try:
            with open(path, "rb") as file:
                record = json.loads(file.read())
            _call_verb(store, policy, record["verb"], record["fields"])
        except (
            InvalidInput, NotFound, Conflict, ValueError, LookupError, TypeError, AttributeError, RecursionError
        ) as exc:  # fmt: skip
            # the record itself is wrong; all other errors may be gone with the next try
            log.say("set aside", record=path, error=type(exc).__name__, message=exc)
            os.rename(path, f"{path.removesuffix(RECORD)}{BROKEN}")
            continue
        except Forbidden as exc:
            # the record is another agent's on this machine: a process with a token for it hands it over
            log.say("left", record=path, message=exc)
            continue
        # the verbs are idempotent: if this process dies before the unlink, the next one calls the verb again
        os.unlink(path)
        taken.append(record)
    return taken


def _call_verb(store: Store, policy: NotifyPolicy, verb: str, fields: dict[str, Any]) -> None:
    """LookupError for a verb that no record may hold."""
    from holdfast.domain.delegations import DelegationEnd, DelegationOutcome, NewDelegation, Question

    match verb:
        case "delegate":
            store.delegate(NewDelegation(**fields))
        case "ask_delegation":
            store.ask_delegation(Question(**fields))
        case "lose_delegations":
            store.lose_delegations(fields["provider_session_id"])
        case "observe_session":
            from holdfast.domain.observed import Sighting
            from holdfast.hooks.sessions import watch

            watch(store, Sighting(**fields))
        case "end_delegation":
            from holdfast.notifying import done_notice, notify

            outcome = DelegationOutcome(fields["outcome"])
            ended = store.end_delegation(DelegationEnd(**{**fields, "outcome": outcome}))
            if ended is not None and ended.finalized_now:
                notify(policy, done_notice(store.get_session(ended.session_id)))
        case _:
            raise LookupError(f"{verb!r} is not a verb of a record")


def _renew_copy(store: Store, spool: str) -> None:
    copy = {"at": system_clock(), "sessions": [_plain(free) for free in store.free_sessions()]}
    partial = f"{spool}/{COPY}{PARTIAL}"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(copy, file)
    os.replace(partial, f"{spool}/{COPY}")


def _plain(value: object) -> Any:
    if isinstance(value, PlainRecord):
        return {name: _plain(getattr(value, name)) for name in type(value).__annotations__}
    return list(value) if isinstance(value, tuple) else value


def _forget_marks(spool: str, known: set[str]) -> None:
    """Remove the marks of delegations that the store knows by now, and of those whose record never came."""
    for name in os.listdir(spool):
        if not name.startswith(_TAKEN):
            continue
        mark = f"{spool}/{name}"
        with open(mark, encoding="utf-8") as file:
            delegation_id = file.read()
        age = system_clock() - os.stat(mark).st_mtime_ns // 1000
        if delegation_id in known or age > COPY_SECONDS * SECOND:
            os.unlink(mark)

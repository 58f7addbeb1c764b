"""Owns the spool: what hooks have to say to a store that is elsewhere or busy, one file each, until it is taken there.

The sessions that may be taken are read from a copy that is good for a few minutes; with an older one the work
begins anew rather than go on from what may no longer be true. ``engine.spooling`` empties the spool and
renews the copy.
"""

from __future__ import annotations

import json
import os

from holdfast.clock import SECOND, system_clock
from holdfast.domain.delegations import (
    Delegated,
    DelegatedApproval,
    DelegatedSession,
    DelegationReason,
    EndedDelegation,
    is_about,
)
from holdfast.domain.observed import ObservedSession
from holdfast.domain.phases import ApprovalWindow, MayContinue, Phase, may_continue
from holdfast.domain.quick_redaction import redact_seldom
from holdfast.domain.telling.welcome import Welcome
from holdfast.errors import StoreUnavailable
from holdfast.hooks.places import RECORD, key_mark, record_names, stale_files

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from holdfast.domain.delegations import Delegation, DelegationEnd, NewDelegation, Question
    from holdfast.domain.observed import Sighting
    from holdfast.hooks.settings import HookSettings

COPY = "sessions.json"  #: of ``Store.free_sessions``
PARTIAL = ".new"  #: how the names end of records that are being written
COPY_SECONDS = 300
MOST_RECORDS = 10_000
_TAKEN = "taken-"
#: fields that may hold a secret
_TEXTS = ("purpose", "summary")


class SpoolStore:
    """The verbs that hooks use, on this machine alone: ids are minted here, sessions taken by making a file."""

    def __init__(self, settings: HookSettings, directory: str) -> None:
        if settings.spool is None:
            raise StoreUnavailable("the spool", "neither HOME nor XDG_STATE_HOME is set")
        self._directory = settings.spool
        self._works_in = directory
        self._settings = settings
        self._written = 0

    def delegate(self, new: NewDelegation) -> Delegated:
        told = self._told_before(new.id)
        if told is not None:
            known = next(self._free(new.agent, new.project, told), None)
            return _answered(new.id, known, told)
        taken = self._take_one(new)
        session_id = new.new_session_id if taken is None else taken.id
        self._say("delegate", {**vars(new), "told": session_id}, key=new.id)
        return _answered(new.id, taken, session_id)

    def ask_delegation(self, question: Question) -> Delegated:
        self._say("ask_delegation", vars(question))
        for session in self._free(question.agent, question.project, question.session_id):
            if question.session_id is not None or is_about(session.metadata, question.task_id):
                return Delegated(id=question.id, reason=DelegationReason.RESUMABLE, session=session)
        return Delegated(id=question.id, reason=DelegationReason.NONE, session=None)

    def end_delegation(self, end: DelegationEnd) -> EndedDelegation:
        self._say("end_delegation", vars(end))
        return EndedDelegation(id=end.id, session_id=end.session_id or "", outcome=end.outcome, queued=True)

    def open_delegations(self, agent: str, project: str) -> tuple[Delegation, ...]:  # noqa: ARG002 - not known here
        return ()

    def lose_delegations(self, provider_session_id: str) -> int:
        self._say("lose_delegations", {"provider_session_id": provider_session_id})
        return 0

    def observe_session(self, seen: Sighting) -> ObservedSession:
        self._say("observe_session", vars(seen))
        return ObservedSession(provider=seen.provider, id=seen.id, started_at=seen.at, last_seen_at=seen.at)

    def observed_session(self, provider: str, provider_session_id: str) -> ObservedSession | None:
        raise StoreUnavailable("the spool", f"what is known of {provider} {provider_session_id} is elsewhere")

    def welcome(
        self,
        provider: str,  # noqa: ARG002 - whose session it is, and who holds it, is known elsewhere
        provider_session_id: str,  # noqa: ARG002
        project: str,
        besides: str | None = None,  # noqa: ARG002
    ) -> Welcome:
        """As far as the copy tells."""
        here = (entry for entry in self._going_on() if entry["project"] == project)
        paused = ((e["session"]["id"], e["agent"], e["session"]["phase"], e["purpose"]) for e in here)
        return Welcome(paused=tuple(paused))

    def close(self) -> None:
        """What was written is taken to the store by a process of its own."""
        if self._written:
            from holdfast.hooks.carrier import send_carrier

            send_carrier(self._directory, self._works_in)

    def _say(self, verb: str, fields: dict[str, Any], key: str | None = None) -> None:
        """Whole or not at all, and on the disk when this returns. The name keeps the order."""
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        if len(record_names(self._directory)) >= MOST_RECORDS:
            raise StoreUnavailable(
                self._directory, f"{MOST_RECORDS} records wait there to be taken to the store"
            )
        name = f"{self._directory}/{system_clock():020d}-{os.getpid()}-{self._written}{key_mark(key)}"
        self._written += 1
        clean = {name: redact_seldom(fields[name]) for name in _TEXTS if fields.get(name)}
        record = {"verb": verb, "fields": {**fields, **clean}, "key": key}
        content = json.dumps(record).encode()
        descriptor = os.open(f"{name}{PARTIAL}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                _write_all(descriptor, content)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.rename(f"{name}{PARTIAL}", f"{name}{RECORD}")
        except BaseException:
            try:
                os.unlink(f"{name}{PARTIAL}")
            except FileNotFoundError:  # it was renamed already
                pass
            raise

    def _told_before(self, delegation_id: str) -> str | None:
        """The session of a call with the same id, as long as that waits to be taken to the store."""
        for name in record_names(self._directory):
            if not name.endswith(f"{key_mark(delegation_id)}{RECORD}"):
                continue
            record = _read(f"{self._directory}/{name}")
            if record is not None and record.get("key") == delegation_id:
                return str(record["fields"]["told"])
        return None

    def _take_one(self, new: NewDelegation) -> DelegatedSession | None:
        for session in self._free(new.agent, new.project):
            mark = self._mark(session.id, new.id)
            if mark is None:
                continue
            # if the copy was renewed since it was read, marks were forgotten with the old one
            if next(self._free(new.agent, new.project, session.id), None) is not None:
                return session
            os.unlink(mark)
        return None

    def _free(self, agent: str, project: str, session_id: str | None = None) -> Iterator[DelegatedSession]:
        for entry in self._going_on():
            wanted = entry["session"]["id"] == session_id if session_id else entry["agent"] == agent
            if wanted and (session_id is not None or entry["project"] == project):
                yield _session(entry["session"])

    def _going_on(self) -> Iterator[dict[str, Any]]:
        """What the copy, if it is not too old, has of sessions that may go on."""
        now = system_clock()
        copy = _read(f"{self._directory}/{COPY}") or {"at": 0, "sessions": []}
        if not 0 <= now - copy["at"] <= COPY_SECONDS * SECOND:
            return
        rules: Any = self._settings
        for entry in copy["sessions"]:
            window = (
                ApprovalWindow(answered_at=entry["answered_at"], expires_at=entry["expires_at"])
                if entry["is_waiting"]
                else None
            )
            if may_continue(_Entry(entry), rules, now, window) is MayContinue.YES:  # type: ignore[arg-type] # duck-typed
                yield entry

    def _mark(self, session_id: str, delegation_id: str) -> str | None:
        """A session is taken by the one who can make its mark; None if another delegation of this machine has it."""
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


class _Entry:
    """A session of the copy, as far as ``may_continue`` looks at it."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self.phase = Phase(entry["session"]["phase"])
        self.is_delegated = True
        self.resume_ready = entry["resume_ready"]
        self.error_count = entry["error_count"]
        self.updated_at = entry["updated_at"]


def _write_all(descriptor: int, content: bytes) -> None:
    """A disk that is nearly full takes a part, and says so only when asked to take the rest."""
    while content:
        content = content[os.write(descriptor, content) :]


def settle_partial(directory: str) -> None:
    """What killed hooks have left: whole records wait like the others, and the rest is removed."""
    for path in stale_files(directory, lambda name: name.endswith(PARTIAL) and not name.startswith(COPY)):
        if _read(path) is None:
            os.unlink(path)
        else:
            os.rename(path, f"{path.removesuffix(PARTIAL)}{RECORD}")


def forget_marks(directory: str, known: set[str]) -> None:
    """Of the delegations that the store knows by now, and of those that nobody will tell it of any more."""
    for name in os.listdir(directory):
        if not name.startswith(_TAKEN):
            continue
        mark = f"{directory}/{name}"
        with open(mark, encoding="utf-8") as file:
            delegation_id = file.read()
        age = system_clock() - os.stat(mark).st_mtime_ns // 1000
        if delegation_id in known or age > COPY_SECONDS * SECOND:
            os.unlink(mark)


def _answered(delegation_id: str, resumed: DelegatedSession | None, session_id: str) -> Delegated:
    if resumed is not None:
        return Delegated(id=delegation_id, reason=DelegationReason.RESUMABLE, session=resumed)
    session = DelegatedSession(
        id=session_id, phase=Phase.INITIALIZING.value, created_at=system_clock(), metadata={}, history=()
    )
    return Delegated(id=delegation_id, reason=DelegationReason.NONE, session=session)


def _session(fields: dict[str, Any]) -> DelegatedSession:
    asked = fields["approval"]
    approval = None if asked is None else DelegatedApproval(**asked)
    return DelegatedSession(**{**fields, "approval": approval})


def _read(path: str) -> dict[str, Any] | None:
    """None for what is not there, or no object."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None

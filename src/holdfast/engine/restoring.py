"""Owns putting a provider's own session files back: from the vault, or mended, so that the provider can resume the session.

A file is written whole or not at all, and a file that holds something that was not kept is never overwritten. Nothing
is written while another program has the session open.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path

from holdfast.domain.decisions import Decision, Outcome, Reason
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import NOTHING_YET, Pointer, TranscriptMark
from holdfast.domain.policy import Policy, VaultPolicy
from holdfast.domain.records import record, replace
from holdfast.domain.vault import VaultBundle, VaultFile
from holdfast.engine.running.agents import Agent, NoAnswer, printed_by
from holdfast.engine.vault import Vault, source_of
from holdfast.errors import Busy, ConfigError, Forbidden, Refused, StoreCorrupt
from holdfast.providers.contract import Comparison, own_names
from holdfast.store.contract import Store

#: the provider has less than was kept
_LESS = (Comparison.ABSENT, Comparison.BEHIND)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: a file system that has no files without a name
_NOT_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
_INTAKE_SECONDS = 120.0
#: of the files that are left out, in a sentence
_MOST_NAMED = 3
_LOST = (Reason.TRANSCRIPT_MISSING, Reason.TRANSCRIPT_ALTERED)


#: the errors of ``restore``, of a vault whose key is gone, and of a server that does not let this caller read it
UNRESTORED = (Busy, ConfigError, Forbidden, Refused, StoreCorrupt)


class RestoreOutcome(StrEnum):
    RESTORED = "restored"  #: files were gone or held less: they are as they were kept
    UNCHANGED = "unchanged"  #: the provider has the session as it was kept
    NEWER = "newer"  #: the provider has the session as it was kept, and more
    BESIDE = "beside"  #: the provider's own file differs: what was kept is resumed from a folder of ours
    DIVERGED = "diverged"  #: the provider's own file differs, and the provider resumes no other


@record
class RestoredFile:
    name: str  #: as it was kept, below the provider's home
    path: str | None  #: where it belongs; None: in the provider's database
    found: Comparison  #: what was there before
    is_written: bool


@record
class Restoration:
    """What a restore has done, or would do."""

    provider: str
    provider_session_id: ProviderSessionId
    outcome: RestoreOutcome
    files: tuple[RestoredFile, ...]
    branch: str | None = None  #: under which the vault has the provider's own file, where that differs
    left_out: tuple[str, ...] = ()  #: kept with the session, and no part of it: never written

    @property
    def helps(self) -> bool:
        """Whether the provider can resume what was kept, and could not before."""
        return self.outcome in (RestoreOutcome.RESTORED, RestoreOutcome.BESIDE)

    @property
    def words(self) -> str:
        """For the person, and for the record of the decision."""
        return "; ".join(filter(None, (_WORDS[self.outcome], self.left_out_words)))

    @property
    def left_out_words(self) -> str:
        if not self.left_out:
            return ""
        more = len(self.left_out) - _MOST_NAMED
        names = ", ".join(_quoted(name) for name in self.left_out[:_MOST_NAMED])
        return f"left out, as no part of this session: {names}{f' and {more} more' if more > 0 else ''}"


_WORDS = {
    RestoreOutcome.RESTORED: "the agent's files were gone or cut off: restored from the vault",
    RestoreOutcome.UNCHANGED: "the agent has the session as it was kept",
    RestoreOutcome.NEWER: "the agent's own files are newer than what was kept: they are left alone",
    RestoreOutcome.BESIDE: (
        "the agent's own session file was changed: it is left alone and kept as a branch, "
        "and what was recorded is resumed from the vault"
    ),
    RestoreOutcome.DIVERGED: (
        "the agent's own session file was changed, and this agent resumes no other: it is left alone and kept as a branch"
    ),
}


def restore(
    store: Store, policy: VaultPolicy, agent: Agent, pointer: Pointer, *, dry_run: bool = False
) -> Restoration | None:
    """Puts back what the vault has of a provider session; None if it has nothing of it. The caller holds its lock.

    Idempotent: a process that is killed leaves whole files only, and the next one puts back the rest. The session
    itself comes last, so that it is not there before the files that it needs.

    Who writes to the vault must not be able to put other files into the provider's home: only files that belong to the
    session are written.

    Raises Busy while a program has the session open, and Refused if the files cannot be written, or the provider does
    not take them, or the main one is none of this session. Raises StoreCorrupt if the vault's copy is damaged; nothing
    of that file was written then.
    """
    vault = Vault(store, policy)
    bundle = _kept(store, vault, agent, pointer)
    if bundle is None:
        return None
    bundle, left_out = _without_others(vault, agent, bundle)
    _require_no_writer(agent, pointer, bundle)
    session_id, archive = pointer.provider_session_id, agent.archive
    found = {
        file.name: archive.compare(file.name, vault.read(bundle, file), session_id, pointer.work_dir)
        for file in bundle.files
    }
    own = archive.place(bundle.main.name, session_id, pointer.work_dir)
    can_be_aside = archive.aside(bundle.main.name, session_id) not in (None, own)
    outcome = _outcome(found, bundle.main, can_be_aside=can_be_aside)
    branch = None
    if found[bundle.main.name] is Comparison.DIVERGED and not dry_run:
        branch = _keep_branch(vault, agent, pointer)
    files = []
    for file in reversed(bundle.files):
        if outcome is RestoreOutcome.BESIDE:
            place, is_written = archive.aside(file.name, session_id), True
        else:
            place = archive.place(file.name, session_id, pointer.work_dir)
            is_written = outcome is RestoreOutcome.RESTORED and found[file.name] in _LESS
        if is_written and not dry_run:
            _put_back(vault, agent, pointer, bundle, file, place)
        files.append(RestoredFile(file.name, place, found[file.name], is_written))
    return Restoration(bundle.provider, session_id, outcome, tuple(reversed(files)), branch, left_out)


@record
class Rescue:
    """What the vault can do for a session that the provider has lost."""

    restored: Restoration | None  #: None: it could restore the session, and does not by itself


def is_lost(decision: Decision) -> bool:
    """Whether the session is not resumed because the provider's files are gone or changed, and for no other reason."""
    lost = [each for each in decision.verdicts if each.reason in _LOST and each.outcome is not Outcome.RESUME]
    # where the source of a fork is gone, it is not known either whether it has grown
    return bool(lost) and decision.reason in (*_LOST, Reason.FORK_POINT_MOVED)


def rescue_session(
    store: Store, policy: Policy, agent: Agent, pointer: Pointer, *, dry_run: bool = False
) -> Rescue | None:
    """Restores a session as the policy ``resume.restore`` says; None if the vault has nothing that helps.

    The caller holds the lock, or asks with ``dry_run`` only. Raises the errors of ``restore``.
    """
    mode = policy.resume.restore
    if mode == "off" or pointer.runtime_id != agent.runtime.id:
        return None
    asks = dry_run or mode == "ask"
    restoration = restore(store, policy.vault, agent, pointer, dry_run=asks)
    if restoration is None or (asks and not restoration.helps):
        return None
    return Rescue(None if asks else restoration)


def mend(agent: Agent, session_id: ProviderSessionId, work_dir: str) -> None:
    """Changes a provider's own session, which a resume would damage, or has damaged. The caller holds its lock.

    Raises Refused if the file cannot be written.
    """
    path = agent.archive.find(session_id, work_dir)
    mending = None if path is None else agent.archive.mend(path, session_id)
    if path is None or mending is None:
        return
    write_whole(Path(path), [mending.data])
    for superfluous in mending.superfluous:
        Path(superfluous).unlink(missing_ok=True)


def _kept(store: Store, vault: Vault, agent: Agent, pointer: Pointer) -> VaultBundle | None:
    """Of several versions, the one that was recorded; without any, or if no version is that one, the newest."""
    kept = store.bundles(agent.provider.name, pointer.provider_session_id)
    mark = pointer.transcript
    if len(kept) > 1 and mark is not None and mark != NOTHING_YET:
        for bundle in kept:
            if _holds(vault, agent, bundle, mark):
                return bundle
    return kept[0] if kept else None


def _without_others(vault: Vault, agent: Agent, bundle: VaultBundle) -> tuple[VaultBundle, tuple[str, ...]]:
    """The bundle with the files that belong to its session, and the names of the others."""
    files = {file.name: file for file in bundle.files}
    session_id = bundle.provider_session_id
    own = own_names(agent.archive, tuple(files), session_id, lambda name: vault.read(bundle, files[name]))
    main = bundle.main.name
    if main not in own:
        told = f"the vault's copy is not of this session: {_quoted(main)} is no file of it"
        raise Refused("cannot_restore", told)
    belonging = tuple(file for file in bundle.files if file.name in own)
    return replace(bundle, files=belonging), tuple(name for name in files if name not in own)


def _quoted(name: str) -> str:
    return repr(name[:200])


def _holds(vault: Vault, agent: Agent, bundle: VaultBundle, mark: TranscriptMark) -> bool:
    with tempfile.NamedTemporaryFile() as file:
        file.writelines(vault.read(bundle, bundle.main))
        file.flush()
        copy = replace(mark, path=file.name)
        return agent.archive.is_intact(copy, bundle.provider_session_id) is True


def _outcome(found: dict[str, Comparison], main: VaultFile, *, can_be_aside: bool) -> RestoreOutcome:
    match found[main.name]:
        case Comparison.DIVERGED:
            return RestoreOutcome.BESIDE if can_be_aside else RestoreOutcome.DIVERGED
        case _ if any(comparison in _LESS for comparison in found.values()):
            return RestoreOutcome.RESTORED
        case Comparison.EQUAL:
            return RestoreOutcome.UNCHANGED
        case _:
            return RestoreOutcome.NEWER


def _require_no_writer(agent: Agent, pointer: Pointer, bundle: VaultBundle) -> None:
    session_id, archive = pointer.provider_session_id, agent.archive
    path = archive.find(session_id, pointer.work_dir) or archive.place(
        bundle.main.name, session_id, pointer.work_dir
    )
    writer = archive.writer(path or "", session_id)
    if writer is not None:
        raise Busy(f"the {bundle.provider} session {session_id}", writer)


def _keep_branch(vault: Vault, agent: Agent, pointer: Pointer) -> str | None:
    """Keeps the provider's own files as a version of their own, beside the one that was recorded."""
    session_id = pointer.provider_session_id
    path = agent.archive.find(session_id, pointer.work_dir)
    if path is None:
        return None
    kept = vault.keep(replace(source_of(agent, path, session_id, pointer.work_dir), branch=None))
    return None if kept.bundle is None else kept.bundle.branch


# --- writing ---


def _put_back(
    vault: Vault, agent: Agent, pointer: Pointer, bundle: VaultBundle, file: VaultFile, place: str | None
) -> None:
    if place is not None:
        for path, content in agent.archive.companions(place, pointer.work_dir) if pointer.work_dir else ():
            if not Path(path).exists():
                write_whole(Path(path), [content])
        write_whole(Path(place), vault.read(bundle, file))
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        copy = Path(folder, Path(file.name).name)
        write_whole(copy, vault.read(bundle, file))
        _take_in(agent, pointer.work_dir or str(Path.cwd()), copy)


def _take_in(agent: Agent, work_dir: str, file: Path) -> None:
    """Lets the provider's own program put a session into its database."""
    command = agent.provider.intake(agent.binary, agent.runtime.home, str(file))
    name = agent.provider.name
    if command is None:
        raise Refused("cannot_restore", f"{name} does not say where its session files belong")
    try:
        printed_by(command, work_dir, agent.environ, agent.machine, _INTAKE_SECONDS)
    except (NoAnswer, ConfigError) as exc:
        raise Refused("cannot_restore", f"{name} did not take the session in: {exc}") from None


def write_whole(path: Path, blocks: Iterable[bytes]) -> None:
    """Replaces a file atomically, for the user alone. A process that is killed leaves no part of it behind.

    Raises Refused if there is no room, or the file cannot be written for another reason: it is as it was then.
    """
    whole = path.with_name(f".{path.name}.holdfast")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        whole.unlink(missing_ok=True)  # of a process that was killed between the last two steps
        _write(path.parent, whole, blocks)
        whole.replace(path)
        _sync(path.parent)
    except OSError as exc:
        if exc.errno in _NO_ROOM:
            told = f"there is no room for {path}: nothing of it was written"
            raise Refused("no_room", told, path=str(path)) from None
        raise Refused("cannot_write", f"{path} cannot be written: {exc.strerror}", path=str(path)) from None
    finally:
        with suppress(OSError):
            whole.unlink(missing_ok=True)


def _write(folder: Path, whole: Path, blocks: Iterable[bytes]) -> None:
    """The file gets its name when it is complete, where the file system can do that."""
    with _folder(folder) as at:
        descriptor = _nameless(folder)
        has_name = descriptor is None
        if descriptor is None:
            descriptor = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(blocks)
            file.flush()
            os.fsync(descriptor)
            if not has_name:
                # only with a folder does Python follow the link to the file
                os.link(f"/proc/self/fd/{descriptor}", whole.name, src_dir_fd=at, dst_dir_fd=at)


def _nameless(folder: Path) -> int | None:
    """A new file in the folder that nobody sees; None where there are no such files."""
    flag = getattr(os, "O_TMPFILE", None)
    if flag is None or not Path("/proc/self/fd").is_dir():
        return None
    try:
        return os.open(folder, flag | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        if exc.errno in _NOT_NAMELESS:
            return None
        raise


def _sync(folder: Path) -> None:
    with _folder(folder) as at:
        os.fsync(at)


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)

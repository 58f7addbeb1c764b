"""Owns the vault: mirroring the providers' own session files into the store, byte for byte, and reading them back.

A file that only grows costs its new bytes: what the vault has of the file is compared with the file's beginning, and only
the rest becomes new parts. Chunks are stored first; the bundle that refers to them is written last, so that a process
that dies in between leaves chunks that nothing refers to, and no bundle that cannot be read.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.policy import VaultPolicy
from holdfast.domain.records import record, replace
from holdfast.domain.vault import (
    MAX_CALL_BYTES,
    MAX_CHUNK,
    MAX_DIGESTS,
    VaultBundle,
    VaultChunk,
    VaultEntry,
    VaultFile,
    VaultPart,
    VaultSweep,
)
from holdfast.engine.running.agents import Agent
from holdfast.engine.vault_key import Names, names_of
from holdfast.errors import Conflict, Forbidden, HoldfastError, NotFound, Refused, StoreCorrupt, VaultLocked
from holdfast.providers.contract import SessionFile
from holdfast.store.contract import Store
from holdfast.store.packing import Damaged, pack, unpack

log = logging.getLogger("holdfast")

#: plain bytes that wait to be stored; more are sent ahead of their bundle
_MOST_WAITING = 16 * MAX_CHUNK
#: tries to write a bundle that others change at the same time
_TRIES = 4
#: of the limit: what is made room for at a time in a full vault
_ROOM = 0.05


@record
class VaultSource:
    """A provider's session as it is on this machine now."""

    provider: str
    session_id: ProviderSessionId
    files: tuple[SessionFile, ...]  #: as ``Archive.files`` gives them
    home: str
    runtime_id: str | None = None
    work_dir: str | None = None
    rewrites: bool = (
        False  #: as ``Archive.rewrites``: a version that differs takes the place of the one before
    )
    branch: str | None = ""  #: None: a version beside the session, which is named by its digest
    is_new: bool = False  #: the vault has nothing of it, as far as the caller knows: one question less


def source_of(
    agent: Agent, path: str, session_id: ProviderSessionId, work_dir: str | None, *, is_new: bool = False
) -> VaultSource:
    """The session of an agent of this machine that is at this path."""
    archive, runtime = agent.archive, agent.runtime
    return VaultSource(
        agent.provider.name, session_id, tuple(archive.files(path, session_id)), runtime.home, runtime.id, work_dir,
        archive.rewrites, is_new=is_new,
    )  # fmt: skip


@record
class Kept:
    """What has come of one source."""

    bundle: VaultBundle | None  #: as the vault has it now; None: there was nothing to keep
    added: int = 0  #: bytes of the files that the vault did not have
    set_aside: str | None = (
        None  #: the branch that an earlier version has become, from which this one differs
    )
    problem: str | None = None  #: why nothing could be kept


@record
class Tidied:
    """What tidying up has done."""

    swept: VaultSweep
    repacked: int  #: bundles
    parts: int  #: that there are fewer of now


class Vault:
    def __init__(self, store: Store, policy: VaultPolicy) -> None:
        self._store = store
        self._policy = policy

    @property
    def names(self) -> Names:
        """How chunks are named and sealed. Raises ConfigError if the settings name a key that cannot be had."""
        return names_of(self._policy)

    # --- mirroring ---

    def mirror(
        self, agent: Agent, path: str, session_id: ProviderSessionId, work_dir: str | None, *, is_new: bool = False
    ) -> str | None:  # fmt: skip
        """Mirror the session of an agent of this machine. Returns why that failed; None: the vault has the session.

        Never raises: the caller goes on without the copy, and the next one of the session makes up for it.
        """
        try:
            problem = self.keep(source_of(agent, path, session_id, work_dir, is_new=is_new)).problem
        except HoldfastError as exc:
            problem = exc.message
        if problem is not None:
            log.warning("the vault has no copy of the session's last turn: %s", problem)
        return problem

    def keep(self, source: VaultSource) -> Kept:
        """Mirror one session. Writes nothing if the vault has it already.

        The vault never loses bytes by this: a file that has become shorter, or a sidecar that is gone, stays as it was;
        a main file that went another way takes its place, and the version before stays as a branch of its own.
        """
        (kept,) = self.keep_many([source])
        return kept

    def keep_many(self, sources: Sequence[VaultSource], *, makes_room: bool = True) -> tuple[Kept, ...]:
        """The same for several sessions, whose bundles are written in one transaction.

        ``makes_room``: in a full vault, others go whose files their providers still have.
        """
        for left in reversed(range(_TRIES)):
            try:
                if not makes_room:
                    return self._try_to_keep(sources, _Waiting(self._store, self.names))
                return self._keep_or_make_room(sources)
            except Conflict:
                # somebody else has changed one of them, or a chunk that was there has been swept away
                if not left:
                    raise
                sources = [replace(source, is_new=False) for source in sources]
        raise AssertionError("the last try answers or raises")

    def _keep_or_make_room(self, sources: Sequence[VaultSource]) -> tuple[Kept, ...]:
        try:
            return self._try_to_keep(sources, _Waiting(self._store, self.names))
        except Refused as exc:
            besides = {(source.provider, source.session_id) for source in sources}
            needed = exc.details.get("needed_bytes")
            if exc.reason != "vault_full" or not isinstance(needed, int):
                raise
            if not self._make_room(needed, besides):
                raise
        return self._try_to_keep(sources, _Waiting(self._store, self.names))

    def _try_to_keep(self, sources: Sequence[VaultSource], waiting: _Waiting) -> tuple[Kept, ...]:
        answers: list[Kept] = []
        changed: list[VaultBundle] = []
        for source in sources:
            kept, bundles = self._mirror(source, waiting)
            answers.append(kept)
            changed += bundles
        if changed:
            self._store.keep_bundles(changed, waiting.last())
        return tuple(answers)

    def _mirror(self, source: VaultSource, waiting: _Waiting) -> tuple[Kept, list[VaultBundle]]:
        """What the source comes to, and the bundles that have to be written for that."""
        known = None
        if source.branch is not None and not source.is_new:
            known = self._store.bundle(source.provider, source.session_id, source.branch)
        mirroring = _Mirroring(self, source, known, waiting)
        try:
            files = mirroring.files()
        except OSError as exc:
            return Kept(None, problem=f"{exc.filename or source.session_id}: {exc.strerror or exc}"), []
        if not files:
            return Kept(None, problem="there is no file of it"), []
        branch = branch_of(files) if source.branch is None else source.branch
        if source.branch is None:
            known = self._store.bundle(source.provider, source.session_id, branch)
        bundle = VaultBundle(
            source.provider, source.session_id, branch, source.home,
            source.runtime_id, source.work_dir, files,
        )  # fmt: skip
        if known is None:
            return Kept(bundle, mirroring.added), [bundle]
        bundle = replace(
            bundle,
            runtime_id=source.runtime_id or known.runtime_id,
            work_dir=source.work_dir or known.work_dir,
            kept_at=known.kept_at,
            revision=known.revision,
        )
        if bundle == known:
            return Kept(known), []
        written, set_aside = [bundle], None
        if mirroring.went_another_way and not source.rewrites:
            set_aside = branch_of(known.files)
            if self._store.bundle(source.provider, source.session_id, set_aside) is None:
                written.insert(0, replace(known, branch=set_aside, revision=0))
        return Kept(bundle, mirroring.added, set_aside), written

    # --- room ---

    def _make_room(self, needed: int, besides: Collection[tuple[str, str]]) -> bool:
        """Drop the oldest bundles whose files their providers still have, except those in ``besides``.

        False if that does not make enough room: what only the vault has is never dropped.
        """
        figures = self._store.vault_figures()
        if needed > figures.limit_bytes:
            return False
        left = figures.stored_bytes + needed - figures.limit_bytes
        wanted = left + int(_ROOM * figures.limit_bytes)
        for entry in self.entries():
            if wanted <= 0:
                break
            if (entry.provider, entry.provider_session_id) in besides or not self._is_elsewhere(entry):
                continue
            if self._store.drop_bundle(
                entry.provider, entry.provider_session_id, entry.branch, entry.kept_at
            ):
                log.warning("the vault is full: dropped %s session %s, which its provider still has",
                            entry.provider, entry.provider_session_id)  # fmt: skip
                left, wanted = left - entry.stored_bytes, wanted - entry.stored_bytes
        return left <= 0

    def entries(self) -> Iterator[VaultEntry]:
        """Everything that is kept, the oldest first."""
        last: VaultEntry | None = None
        while page := self._store.vault_entries(after=last):
            yield from page
            last = page[-1]

    def _is_elsewhere(self, entry: VaultEntry) -> bool:
        """Whether the provider has every byte of a bundle, in the files that the bundle was made from.

        False for a version beside the session, and for what was exported from a database: those are not files.
        """
        if entry.branch or not (Path(entry.home) / entry.main).is_file():
            return False
        bundle = self._store.bundle(entry.provider, entry.provider_session_id)
        return bundle is not None and all(self._is_on_disk(bundle, file) for file in bundle.files)

    def _is_on_disk(self, bundle: VaultBundle, file: VaultFile) -> bool:
        try:
            with (Path(bundle.home) / file.name).open("rb") as stream:
                return all(self.names.is_name(part.digest, stream.read(part.size)) for part in file.parts)
        except OSError:
            return False

    # --- tidying up ---

    def tidy(self) -> Tidied:
        """Delete what nothing uses any more, and join the small parts that each turn has added to its file."""
        repacked = parts = 0
        scattered = [entry for entry in self.entries() if entry.parts > entry.size // MAX_CHUNK + 1]
        with suppress(Forbidden):  # an operator may sweep, and not read what is in the vault
            for entry in scattered:
                fewer = self._repack(entry)
                repacked, parts = repacked + (fewer > 0), parts + fewer
        return Tidied(self._store.sweep_vault(), repacked, parts)

    def _repack(self, entry: VaultEntry) -> int:
        """By how many parts the bundle has become less."""
        bundle = self._store.bundle(entry.provider, entry.provider_session_id, entry.branch)
        if bundle is None:
            return 0
        waiting = _Waiting(self._store, self.names)
        try:
            files = tuple(self._joined(file, waiting) for file in bundle.files)
            fewer = sum(len(old.parts) - len(new.parts) for old, new in zip(bundle.files, files, strict=True))
            if fewer:
                self._store.keep_bundles([replace(bundle, files=files)], waiting.last(), repacked=True)
        except (Damaged, VaultLocked) as exc:
            log.warning("%s session %s is not repacked: %s", entry.provider, entry.provider_session_id, exc)
            return 0
        except Conflict:
            return 0  # it has grown meanwhile: the next time
        return fewer

    def _joined(self, file: VaultFile, waiting: _Waiting) -> VaultFile:
        runs = _runs(file.parts)
        parts = [run[0] if len(run) == 1 else waiting.add(b"".join(map(self.part, run))) for run in runs]
        return replace(file, parts=tuple(parts))

    # --- reading back ---

    def read(self, bundle: VaultBundle, file: VaultFile) -> Iterator[bytes]:
        """The bytes of a file in pieces, each compared with its digest before it is given.

        Raises StoreCorrupt for a piece that is missing or damaged.
        """
        left = list(file.parts)
        try:
            while left:
                chunks = self._chunks(left[: _as_many_as_fit(left)])
                for part, chunk in zip(left, chunks, strict=False):
                    yield self._opened(part, chunk)
                left = left[len(chunks) :]
        except Damaged as exc:
            whose = f"{file.name} of {bundle.provider} session {bundle.provider_session_id}"
            raise StoreCorrupt(self._store.where, f"the vault's copy of {whose} is damaged: {exc}") from exc

    def part(self, part: VaultPart) -> bytes:
        """Raises Damaged."""
        (chunk,) = self._chunks([part])
        return self._opened(part, chunk)

    def _chunks(self, parts: Sequence[VaultPart]) -> tuple[VaultChunk, ...]:
        try:
            return self._store.read_chunks([part.digest for part in parts])
        except NotFound as exc:
            raise Damaged(f"the chunk {exc.id} is missing") from exc

    def _opened(self, part: VaultPart, chunk: VaultChunk) -> bytes:
        plain = unpack(self.names.unseal(chunk))
        if not self.names.is_name(part.digest, plain):
            raise Damaged(f"the bytes of the chunk {part.digest} have another digest")
        return plain


class _Waiting:
    """Chunks that no bundle refers to yet. Large amounts are stored ahead, so that little of a file is in memory."""

    def __init__(self, store: Store, names: Names) -> None:
        self._store = store
        self._names = names
        self._plain: dict[str, bytes] = {}
        self._size = 0

    def add(self, plain: bytes) -> VaultPart:
        digest = self._names.name(plain)
        if digest not in self._plain:
            self._plain[digest] = plain
            self._size += len(plain)
        if self._size >= _MOST_WAITING:
            self._send_ahead()
        return VaultPart(digest, len(plain))

    def last(self) -> list[VaultChunk]:
        """What is still waiting, for the call that writes the bundles; more than a call takes is sent ahead."""
        batches = list(self._batches())
        for batch in batches[:-1]:
            self._store.add_chunks(batch)
        self._clear()
        return batches[-1] if batches else []

    def _send_ahead(self) -> None:
        digests = list(self._plain)
        groups = (digests[start : start + MAX_DIGESTS] for start in range(0, len(digests), MAX_DIGESTS))
        lacking = {digest for group in groups for digest in self._store.lacking_chunks(group)}
        self._plain = {digest: plain for digest, plain in self._plain.items() if digest in lacking}
        for batch in self._batches():
            self._store.add_chunks(batch)
        self._clear()

    def _batches(self) -> Iterator[list[VaultChunk]]:
        batch: list[VaultChunk] = []
        size = 0
        for digest, plain in self._plain.items():
            chunk = self._names.seal(VaultChunk(digest, len(plain), *pack(plain)))
            if batch and size + len(chunk.data) > MAX_CALL_BYTES:
                yield batch
                batch, size = [], 0
            batch.append(chunk)
            size += len(chunk.data)
        if batch:
            yield batch

    def _clear(self) -> None:
        self._plain, self._size = {}, 0


class _Mirroring:
    """The files of one source beside what the vault has of them."""

    def __init__(
        self, vault: Vault, source: VaultSource, known: VaultBundle | None, waiting: _Waiting
    ) -> None:
        self._vault = vault
        self._source = source
        self._known = {} if known is None else {file.name: file for file in known.files}
        self._main = None if known is None else known.main
        self._waiting = waiting
        self.added = 0
        self.went_another_way = False  #: the main file differs from what the vault has of it

    def files(self) -> tuple[VaultFile, ...]:
        """In the order that the vault has them, and then those that are new. Raises OSError if the main one is gone."""
        found: dict[str, VaultFile] = {}
        for file in self._source.files:
            try:
                found[file.name] = self._mirrored(file)
            except FileNotFoundError:
                if file.is_main:
                    raise
        main = next((file.name for file in self._source.files if file.is_main), None)
        if main is None:
            return ()
        if self._main is None or self._main.name != main:
            # the provider has moved the session: what the vault has at the old place is not part of it any more
            return tuple(found.values())
        return tuple({**self._known, **found}.values())

    def _mirrored(self, file: SessionFile) -> VaultFile:
        known = self._main if file.is_main else self._known.get(file.name)
        with _opened(file) as stream:
            size = stream.seek(0, os.SEEK_END)  # what is added from now on is left for the next time
            stream.seek(0)
            parts = list(known.parts) if known is not None else []
            done = self._compared(stream, size, parts)
            if done is None and known is not None:
                return replace(known, name=file.name)
            if not done:
                self.went_another_way |= file.is_main and bool(parts)
                parts = []
                stream.seek(0)
            parts += self._new_parts(stream, size - (done or 0))
        return VaultFile(file.name, sum(part.size for part in parts), file.is_main, tuple(parts))

    def _compared(self, stream: BinaryIO, size: int, parts: Sequence[VaultPart]) -> int | None:
        """How many bytes of the file the vault has; 0: the file differs; None: the vault has more than the file."""
        done = 0
        for part in parts:
            data = stream.read(min(part.size, size - done))
            if len(data) < part.size or not self._vault.names.is_name(part.digest, data):
                is_beginning = self._is_beginning(data, part) and done + len(data) == size
                return None if is_beginning else 0
            done += len(data)
        return done

    def _is_beginning(self, data: bytes, part: VaultPart) -> bool:
        if not data:
            return True
        try:
            kept = self._vault.part(part)
        except (Damaged, VaultLocked) as exc:
            if isinstance(exc, VaultLocked) and not self._vault.names.has_key:
                raise  # what was encrypted is not stored beside that without a key
            log.warning(
                "the vault's copy of %s cannot be read, and is made anew: %s", self._source.session_id, exc
            )
            return False
        return len(data) < part.size and kept.startswith(data)

    def _new_parts(self, stream: BinaryIO, size: int) -> Iterable[VaultPart]:
        while size > 0 and (data := stream.read(min(MAX_CHUNK, size))):
            size -= len(data)
            self.added += len(data)
            yield self._waiting.add(data)


def _opened(file: SessionFile) -> BinaryIO:
    if file.path is None:
        return BytesIO(file.data or b"")
    return Path(file.path).open("rb")


def _as_many_as_fit(parts: Sequence[VaultPart]) -> int:
    """How many of the parts one call may read: chunks are hardly ever larger than their plain bytes."""
    size = 0
    for number, part in enumerate(parts[:MAX_DIGESTS]):
        size += part.size
        if number and size > MAX_CALL_BYTES:
            return number
    return min(len(parts), MAX_DIGESTS)


def _runs(parts: Sequence[VaultPart]) -> Iterator[list[VaultPart]]:
    """Neighbours that fit into one chunk together."""
    run: list[VaultPart] = []
    size = 0
    for part in parts:
        if run and size + part.size > MAX_CHUNK:
            yield run
            run, size = [], 0
        run.append(part)
        size += part.size
    if run:
        yield run


def branch_of(files: Sequence[VaultFile]) -> str:
    """The name of a version: a digest of the parts of its main file."""
    told = "\n".join(f"{part.digest} {part.size}" for part in files[0].parts)
    return hashlib.sha256(told.encode()).hexdigest()

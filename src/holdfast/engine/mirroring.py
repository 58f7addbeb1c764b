"""Owns copying the sessions of an import into the vault: new ones, grown ones, and those that the vault lacks.

A copy that fails does not stop the import: the failures are counted, and the first reason is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.policy import VaultPolicy
from holdfast.domain.records import record
from holdfast.engine.vault import Vault, VaultSource
from holdfast.errors import HoldfastError, InvalidInput
from holdfast.providers.contract import Archive
from holdfast.store.contract import Store

#: that go into the vault in one transaction
_BATCH_SESSIONS = 200
_BATCH_FILES = 500
#: of exports, which are in memory from when they are made until they are in the vault
_BATCH_BYTES = 8 * 1024 * 1024

Key = tuple[str, ProviderSessionId]  #: the provider, and its own id of the session


@dataclass(slots=True)
class Mirrored:
    sessions: int = 0  #: sessions of which something was copied
    added: int = 0  #: bytes
    failed: int = 0  #: sessions whose copy is not complete
    problem: str | None = None  #: why the first of these failed


@record
class Original:
    """A session in a provider's home."""

    provider: str
    session_id: ProviderSessionId
    archive: Archive
    path: str
    home: str
    runtime_id: str | None
    work_dir: str | None
    is_new: bool  #: as in ``VaultSource``

    @property
    def key(self) -> Key:
        return self.provider, self.session_id

    def source(self) -> VaultSource:
        files = tuple(self.archive.files(self.path, self.session_id))
        return VaultSource(
            self.provider, self.session_id, files, self.home, self.runtime_id, self.work_dir, self.archive.rewrites,
            is_new=self.is_new,
        )  # fmt: skip


class Mirror:
    def __init__(self, store: Store, policy: VaultPolicy, *, makes_up: bool, of_one: bool = False) -> None:
        """``makes_up``: also copies unchanged sessions that the vault lacks.

        ``of_one``: asks the vault for each session by itself, because there are few.
        """
        self.is_on = policy.mode == "all"
        self._makes_up = makes_up and self.is_on
        self._of_one = of_one
        self._store = store
        self.figures = Mirrored()
        self._vault = Vault(store, policy)
        self._is_out = False  #: the vault takes nothing more
        self._waiting: dict[Key, Original] = {}
        self._seen: set[Key] = set()  #: what was looked at already

    @cached_property
    def _kept(self) -> frozenset[Key]:
        entries = self._vault.entries()
        return frozenset((entry.provider, entry.provider_session_id) for entry in entries if not entry.branch)

    def lacks(self, provider: str, session_id: ProviderSessionId) -> bool:
        """Whether the vault should get this session and had no file of it at the first call of this method."""
        if self._makes_up and self._of_one:
            return self._store.bundle(provider, session_id) is None
        return self._makes_up and (provider, session_id) not in self._kept

    def has_seen(self, provider: str, session_id: ProviderSessionId) -> bool:
        return (provider, session_id) in self._seen

    def add(self, original: Original) -> None:
        """Adds a session to those that the next ``flush`` copies."""
        if self.is_on:
            self._waiting[original.key] = original
            self._seen.add(original.key)

    def flush(self) -> frozenset[Key]:
        """Copies the waiting sessions, many in one transaction. Returns those whose copy is not complete."""
        waiting, self._waiting = self._waiting, {}
        failed: list[Key] = []
        batch: list[VaultSource] = []
        files = held = 0
        for original in waiting.values():
            if self._is_out:
                failed.append(original.key)
                continue
            source = original.source()
            batch.append(source)
            files += len(source.files)
            held += sum(len(file.data or b"") for file in source.files)
            if len(batch) >= _BATCH_SESSIONS or files >= _BATCH_FILES or held >= _BATCH_BYTES:
                failed += self._keep(batch)
                batch, files, held = [], 0, 0
        failed += self._keep(batch)
        self.figures.failed += len(failed)
        return frozenset(failed)

    def _keep(self, batch: Sequence[VaultSource]) -> list[Key]:
        """Copies a batch, and returns the sessions that failed. If the batch is refused, each session is tried alone."""
        if self._is_out or not batch:
            return [(source.provider, source.session_id) for source in batch]
        try:
            # what its provider still has is as safe as what would have to go for it
            answers = self._vault.keep_many(batch, makes_room=False)
        except HoldfastError as exc:
            if len(batch) > 1:
                return [key for source in batch for key in self._keep([source])]
            self._is_out = not isinstance(exc, InvalidInput)
            return [self._failed(batch[0], exc.message)]
        failed = []
        for source, kept in zip(batch, answers, strict=True):
            if kept.problem is not None:
                failed.append(self._failed(source, kept.problem))
            elif kept.added:
                self.figures.sessions += 1
                self.figures.added += kept.added
        return failed

    def _failed(self, source: VaultSource, problem: str) -> Key:
        self.figures.problem = self.figures.problem or problem
        return source.provider, source.session_id

"""Owns what the doctor looks at: the settings, the store if it can be opened, and the agents of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from holdfast.clock import Instant
from holdfast.config import Settings, default_url, load_settings
from holdfast.config_files import current_directory
from holdfast.domain.ids import ProviderSessionId, RuntimeId
from holdfast.domain.imports import KnownSource
from holdfast.domain.pointers import Pointer
from holdfast.domain.policy import VaultPolicy
from holdfast.domain.records import record
from holdfast.domain.runtimes import Runtime
from holdfast.domain.sessions import Session, SessionFilter, SessionStatus
from holdfast.domain.vault import VaultEntry
from holdfast.engine.running.agents import Agents
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.store.contract import Store
from holdfast.store.migrate import SchemaVersions
from holdfast.store.open import look_at_schema, open_store, sqlite_path

_PAGE = 500
_HTTP = ("http://", "https://")
#: open sessions whose pointers are read, the newest ones; a deep examination reads all
_MOST_POINTERS = 2000
#: what a survey keeps of a session is little, but there may be very many
_MOST_OPEN = 100_000


@record
class Survey:
    """All sessions of the workspace, each looked at once."""

    total: int
    open: tuple[Session, ...]  #: newest first
    pointing: tuple[str, ...]  #: the ids of those that have a provider session of their own, newest first
    queued: tuple[str, ...]
    unreadable: Mapping[str, str]  #: id -> why
    newest_change: tuple[Instant, str] | None  #: the latest moment that any of them was changed, and its id


@dataclass
class Scene:
    """Without a store, ``store_error`` or ``schema`` says why."""

    environ: Mapping[str, str]
    cwd: Path
    settings: Settings | None
    settings_error: HoldfastError | None = None
    store: Store | None = None
    store_error: HoldfastError | None = None
    schema: SchemaVersions | None = None  #: as it was found; None: it cannot be seen from here
    deep: bool = False
    _opened: list[Store] = field(default_factory=list)

    @classmethod
    def of(
        cls, store: Store, settings: Settings | None, environ: Mapping[str, str], *, deep: bool = False
    ) -> Scene:
        """Around a store that is open; it stays open."""
        scene = cls(environ, current_directory(environ), settings, store=store, deep=deep)
        if scene.url is not None:
            with suppress(HoldfastError):  # the store's own check tells the same
                scene.schema = look_at_schema(scene.url)
        return scene

    @property
    def url(self) -> str | None:
        if self.settings is None:
            return None
        return self.settings.url or default_url(self.environ)

    @property
    def database(self) -> Path | None:
        """The SQLite file; None: the store is something else."""
        url = self.url
        return sqlite_path(url) if url is not None and url.startswith("sqlite:") else None

    @property
    def is_served(self) -> bool:
        """The store is behind a server: its files and its database are not here."""
        return (self.url or "").startswith(_HTTP)

    @property
    def opened_store(self) -> Store:
        """For checks that are made only with a store."""
        if self.store is None:
            raise StoreUnavailable("the store", "it is not open")
        return self.store

    @property
    def vault_policy(self) -> VaultPolicy:
        return VaultPolicy() if self.settings is None else self.settings.policy.vault

    def open_store(self) -> Store:
        """Brings the schema up to date, as every other command does."""
        settings, url = self.settings, self.url
        assert settings is not None
        assert url is not None
        self.store = open_store(
            url,
            workspace=settings.workspace,
            durability=settings.durability,
            policy=settings.policy,
            token=settings.token,
        )
        self._opened.append(self.store)
        return self.store

    def close(self) -> None:
        for store in self._opened:
            store.close()

    def look_again(self) -> None:
        """Forgets what was read, because something has changed."""
        for name in ("survey", "pointers", "imported_from", "agents", "runtimes", "vault_entries", "vaulted"):
            self.__dict__.pop(name, None)

    @cached_property
    def agents(self) -> Agents:
        return Agents(self.environ)

    @cached_property
    def survey(self) -> Survey:
        store, cursor = self.opened_store, None
        total = 0
        kept: list[Session] = []
        pointing: list[str] = []
        queued: list[str] = []
        unreadable: dict[str, str] = {}
        newest: tuple[Instant, str] | None = None
        while True:
            page = store.list_sessions(SessionFilter(), _PAGE, cursor)
            unreadable |= page.unreadable
            total += len(page.sessions) + len(page.unreadable)
            for session in page.sessions:
                state = page.states[session.id]
                newest = max(newest or (Instant(0), ""), (session.updated_at, session.id))
                if session.finalized_at is None and len(kept) < _MOST_OPEN:
                    kept.append(session)
                    if state.provider_session_id is not None:
                        pointing.append(session.id)
                if state.status is SessionStatus.QUEUED:
                    queued.append(session.id)
            cursor = page.next_cursor
            if cursor is None:
                break
        return Survey(total, tuple(kept), tuple(pointing), tuple(queued), unreadable, newest)

    @property
    def pointing(self) -> tuple[str, ...]:
        """The open sessions whose pointers are read."""
        return self.survey.pointing if self.deep else self.survey.pointing[:_MOST_POINTERS]

    @cached_property
    def pointers(self) -> tuple[Pointer, ...]:
        """Those of the newest open sessions."""
        return tuple(one for session_id in self.pointing for one in self.opened_store.pointers(session_id))

    @cached_property
    def imported_from(self) -> Mapping[tuple[str, ProviderSessionId], str]:
        """The homes on this machine in which provider sessions were found by an import."""
        return {
            (provider, source.provider_session_id): home
            for provider, home, _ in self.agents.archives()
            for source in self._sources(provider, home)
            if source.provider_session_id is not None
        }

    def _sources(self, provider: str, home: str) -> Iterator[KnownSource]:
        last = ""
        while page := self.opened_store.sources(
            self.agents.machine.id, provider, home, after=last, limit=_PAGE
        ):
            yield from page
            last = page[-1].place

    @cached_property
    def vault_entries(self) -> tuple[VaultEntry, ...]:
        """The one that was changed last comes last."""
        store = self.opened_store
        found = list(store.vault_entries(limit=_PAGE))
        while found and (more := store.vault_entries(after=found[-1], limit=_PAGE)):
            found += more
        return tuple(found)

    @cached_property
    def vaulted(self) -> frozenset[tuple[str, ProviderSessionId]]:
        """The provider sessions that the vault has."""
        return frozenset((entry.provider, entry.provider_session_id) for entry in self.vault_entries)

    @cached_property
    def runtimes(self) -> Mapping[RuntimeId, Runtime]:
        """Those of this machine that the store knows."""
        known = self.opened_store.runtimes()
        return {one.id: one.runtime for one in known if one.runtime.machine == self.agents.machine.id}


@contextmanager
def opened_scene(
    environ: Mapping[str, str], cwd: Path, flags: Mapping[str, object], *, deep: bool = False
) -> Iterator[Scene]:
    """Opens the store only if that changes nothing in it: one with an older schema, or none yet, stays as it is."""
    try:
        settings = load_settings(overrides=flags, environ=environ, cwd=cwd)
        scene = Scene(environ, cwd, settings, deep=deep)
    except HoldfastError as exc:
        scene = Scene(environ, cwd, None, settings_error=exc, deep=deep)
    try:
        _look_at_store(scene)
        yield scene
    finally:
        scene.close()


def _look_at_store(scene: Scene) -> None:
    try:
        if scene.url is None:
            return
        scene.schema = look_at_schema(scene.url)
        if scene.schema is None or scene.schema.found >= scene.schema.known:
            store = scene.open_store()
            store.now()  # a server is asked only now
    except HoldfastError as exc:
        scene.store, scene.store_error = None, exc

"""Owns the checks of the vault: is it full, does it have every session that it should, can what it has be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.domain.pointers import Pointer
from holdfast.domain.policy import VaultPolicy
from holdfast.domain.vault import VaultEntry, VaultFigures
from holdfast.engine.doctor.findings import Finding, Mending, counted, ok, problem, sized, warning
from holdfast.engine.doctor.scene import Scene
from holdfast.engine.running.agents import Agent
from holdfast.engine.vault import Vault, source_of
from holdfast.errors import ConfigError, StoreCorrupt

_NEARLY_FULL = 0.9
#: bytes of files that are read to verify them, of the newest sessions; with ``--deep``, all
_SAMPLE_BYTES = 64 * 1024 * 1024


def check_vault(scene: Scene) -> Iterator[Finding]:
    policy = scene.vault_policy
    if policy.mode == "off":
        yield ok("vault_off", "the vault is switched off: the agents' own files are not kept")
        return
    figures = scene.opened_store.vault_figures()
    found = [*_full(figures), *_missing(scene, policy)]
    if not scene.is_served:
        found += _damaged(scene, policy)
    yield from found
    if not found:
        yield ok("vault_whole", f"{counted(figures.bundles, 'session')}, {sized(figures.chunk_bytes)}")


def _full(figures: VaultFigures) -> Iterator[Finding]:
    if figures.stored_bytes < _NEARLY_FULL * figures.limit_bytes:
        return
    yield warning(
        "vault_full",
        f"the vault has {sized(figures.stored_bytes)} of at most {sized(figures.limit_bytes)}",
        "When it is full, nothing new is kept, and nothing that is kept goes. Raise vault.limit_bytes, or remove sessions.",
        "holdfast cleanup --dry-run",
    )


def _missing(scene: Scene, policy: VaultPolicy) -> Iterator[Finding]:
    """Open sessions whose files are here, and not in the vault."""
    imported = {session.id for session in scene.survey.open if session.imported_at is not None}
    missing: list[tuple[Pointer, Agent, str]] = []
    for pointer in scene.pointers:
        is_kept = (pointer.provider, pointer.provider_session_id) in scene.vaulted
        if is_kept or pointer.is_fork_source or (policy.mode == "run" and pointer.session_id in imported):
            continue
        agent = scene.agents.of_runtime(pointer.provider, pointer.runtime_id)
        path = None if agent is None else agent.archive.find(pointer.provider_session_id, pointer.work_dir)
        if agent is not None and path is not None:
            missing.append((pointer, agent, path))
    if missing:
        yield warning(
            "vault_incomplete",
            f"the vault has no copy of {counted(len(missing), 'open session')}",
            "If the agent deletes their files, they cannot be continued natively. Their next turn is kept, too.",
            "holdfast doctor --fix",
            [pointer.session_id for pointer, _, _ in missing],
            Mending(lambda: _keep(scene, policy, missing), changes_store=True),
        )


def _keep(scene: Scene, policy: VaultPolicy, missing: Sequence[tuple[Pointer, Agent, str]]) -> str:
    vault = Vault(scene.opened_store, policy)
    kept = [
        vault.keep(source_of(agent, path, pointer.provider_session_id, pointer.work_dir))
        for pointer, agent, path in missing
    ]
    return f"kept the files of {counted(sum(one.problem is None for one in kept), 'session')}"


def _damaged(scene: Scene, policy: VaultPolicy) -> Iterator[Finding]:
    store, vault = scene.opened_store, Vault(scene.opened_store, policy)
    damaged: dict[str, str] = {}
    locked: dict[str, str] = {}
    for entry in _to_verify(scene):
        bundle = store.bundle(entry.provider, entry.provider_session_id, entry.branch)
        for file in () if bundle is None else bundle.files:
            try:
                for _ in vault.read(bundle, file) if bundle is not None else ():
                    pass
            except StoreCorrupt as exc:
                damaged[entry.provider_session_id] = exc.problem
            except ConfigError as exc:
                locked[entry.provider_session_id] = exc.message
    if damaged:
        yield problem(
            "vault_damaged",
            f"{counted(len(damaged), 'session')} in the vault cannot be read back: {next(iter(damaged.values()))}",
            "If the agent still has the files, the next turn keeps them again. Otherwise a copy of the database from "
            "before may have them.",
            "holdfast doctor --deep",
            list(damaged),
        )

    if locked:
        yield problem(
            "vault_locked",
            f"{counted(len(locked), 'session')} in the vault cannot be read here: {next(iter(locked.values()))}",
            "Without the key they cannot be restored. With a new key, a new copy of each begins with its next turn.",
            "set vault.key_file in your user file to the key that they were encrypted with",
            list(locked),
        )


def _to_verify(scene: Scene) -> Iterator[VaultEntry]:
    left = _SAMPLE_BYTES
    for entry in reversed(scene.vault_entries):
        if scene.deep or entry.size <= left:
            left -= entry.size
            yield entry

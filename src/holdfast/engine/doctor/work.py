"""Owns the checks of sessions: turns without an owner or a worker, rows and transcripts that are gone or about to go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from holdfast.clock import Instant, seconds_between, system_clock, to_iso
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import Pointer
from holdfast.domain.runtimes import KnownRuntime
from holdfast.domain.turns import Turn, TurnStatus
from holdfast.engine.doctor.findings import Finding, Mending, counted, ok, problem, warning
from holdfast.engine.doctor.scene import Scene
from holdfast.engine.expiring import SOON_DAYS, expires_soon
from holdfast.engine.running.recovery import has_lost_worker, recover_all
from holdfast.providers.contract import Archive
from holdfast.providers.registry import get_provider

_MOST_ORPHANS = 1000
_MOST_QUEUED = 1000
#: a worker that lives takes a turn within seconds, and says every half minute that it lives
_WAITING_SECONDS = 60.0
_SILENT_SECONDS = 300.0


def check_orphans(scene: Scene) -> Iterator[Finding]:
    store, machine = scene.opened_store, scene.agents.machine
    now = store.now()
    left = [
        orphan.lease
        for orphan in store.orphans(_MOST_ORPHANS, even_live=True)
        if has_lost_worker(orphan, machine, now)
    ]
    if not left:
        yield ok("orphans_none", "the worker of every running turn is alive")
        return
    first = left[0]
    yield problem(
        "orphans",
        f"{counted(len(left), 'turn')} lost their worker: turn {first.seq} of {first.session_id}",
        "A program was killed while the agent worked. The command ends what is left of the agent and keeps its answer.",
        "holdfast recover",
        [lease.session_id for lease in left],
        Mending(lambda: _recover(scene), changes_store=True),
    )


def _recover(scene: Scene) -> str:
    turns = recover_all(scene.opened_store, scene.agents, scene.vault_policy)
    return f"took over {counted(len(turns), 'turn')}"


# --- turns that wait ---


def check_queue(scene: Scene) -> Iterator[Finding]:
    store, queued = scene.opened_store, scene.survey.queued
    known, now = store.runtimes(), store.now()
    by_provider: dict[str, list[str]] = defaultdict(list)
    by_runtime: dict[str, list[str]] = defaultdict(list)
    for session_id in queued[:_MOST_QUEUED]:
        head = store.head_turn(session_id)
        if head is None or not _is_due(head, now) or _is_served(head, known, now):
            continue
        if head.runtime_id is None:
            by_provider[head.provider].append(session_id)
        else:
            by_runtime[head.runtime_id].append(session_id)
    for provider, sessions in by_provider.items():
        yield problem(
            "queue_without_worker",
            f"the next turns of {counted(len(sessions), 'session')} wait, and no worker runs {provider}",
            "They wait until a worker is started on a machine that has this agent.",
            f"holdfast worker --provider {provider} --once",
            sessions,
        )
    for runtime_id, sessions in by_runtime.items():
        yield problem(
            "queue_without_runtime",
            f"the next turns of {counted(len(sessions), 'session')} wait for the runtime {runtime_id}, where no worker "
            "runs",
            "Only that machine may run them. Start a worker there, or cancel them.",
            "holdfast runtimes --all",
            sessions,
        )
    if not by_provider and not by_runtime:
        yield ok("queue_moves", f"{counted(len(queued), 'session')} wait in the queue")


def _is_due(head: Turn, now: Instant) -> bool:
    if head.status is not TurnStatus.QUEUED:
        return False
    since = max(head.created_at, head.not_before or head.created_at)
    return seconds_between(since, now) > _WAITING_SECONDS


def _is_served(head: Turn, known: tuple[KnownRuntime, ...], now: Instant) -> bool:
    """A worker that could take it was seen a moment ago."""
    return any(
        seconds_between(one.last_seen_at, now) < _SILENT_SECONDS
        for one in known
        if one.runtime.provider == head.provider and head.runtime_id in (None, one.id)
    )


# --- rows ---


def check_sessions(scene: Scene) -> Iterator[Finding]:
    unreadable = scene.survey.unreadable
    if not unreadable:
        yield ok("sessions_readable", f"{counted(scene.survey.total, 'session')}, all readable")
        return
    session_id, why = next(iter(unreadable.items()))
    yield problem(
        "sessions_unreadable",
        f"{counted(len(unreadable), 'session')} cannot be read: {session_id}: {why}",
        "A row holds what this Holdfast does not understand: another program changed it, or the disk. The other sessions "
        "are not affected. A copy of the database from before may still have it.",
        f"holdfast get {session_id}",
        list(unreadable),
    )


# --- transcripts ---


def check_transcripts(scene: Scene) -> Iterator[Finding]:
    """The provider's own files of open sessions that ran on this machine."""
    gone = [pointer for pointer in scene.pointers if _is_gone(scene, pointer)]
    every, looked_at = len(scene.survey.pointing), len(scene.pointing)
    which = "" if looked_at == every else f" (of the newest {looked_at:,}; --deep looks at all {every:,})"
    if gone:
        yield _gone(scene, gone, which)
    else:
        yield ok("transcripts_there", f"no file of an agent is missing{which}")


def _gone(scene: Scene, gone: list[Pointer], which: str) -> Finding:
    kept = [one.session_id for one in gone if (one.provider, one.provider_session_id) in scene.vaulted]
    first = kept[0] if kept else gone[0].session_id
    meaning = []
    if kept:
        meaning.append(
            f"The vault has {len(kept):,} of them: the command puts the files of one back, and so does the next turn of "
            "each."
        )
    if len(kept) < len(gone):
        meaning.append(
            "Without a copy, the next turn starts a new session of the agent, and is told what Holdfast has recorded."
        )
    return warning(
        "transcripts_gone",
        f"the agent's own files of {counted(len(gone), 'open session')} are gone{which}: {first}",
        " ".join(meaning),
        f"holdfast restore {first}" if kept else f"holdfast why {first}",
        [first, *(pointer.session_id for pointer in gone if pointer.session_id != first)],
    )


def _is_gone(scene: Scene, pointer: Pointer) -> bool:
    """A file whose name says the session is enough; otherwise the provider is asked."""
    home = _home_of(scene, pointer)
    if home is None or pointer.is_fork_source:
        return False
    path = "" if pointer.transcript is None else pointer.transcript.path
    if pointer.provider_session_id in path and Path(path).exists():
        return False
    archive = get_provider(pointer.provider).archive(Path(home))
    return archive.find(pointer.provider_session_id, pointer.work_dir) is None


def _home_of(scene: Scene, pointer: Pointer) -> str | None:
    """The home on this machine that has the session. Without its agent, a session is imported without a runtime."""
    if pointer.runtime_id is None:
        return scene.imported_from.get((pointer.provider, pointer.provider_session_id))
    runtime = scene.runtimes.get(pointer.runtime_id)
    return None if runtime is None else runtime.home


def check_retention(scene: Scene) -> Iterator[Finding]:
    """Files that providers are about to delete, whether or not Holdfast knows their sessions."""
    found = False
    for provider, _, archive in scene.agents.archives():
        expiring = {} if archive.keeps_seconds is None else _expiring(archive)
        lost = [one for one in expiring if scene.store is None or (provider, one) not in scene.vaulted]
        if not lost:
            continue
        found = True
        first = min(expiring[one] for one in lost)
        when = "at its next start" if first <= system_clock() else f"from {to_iso(first)[:10]} on"
        ours = [one for one in lost if scene.store is not None and scene.store.owner_of(provider, one)]
        yield warning(
            "transcripts_expire",
            f"{provider} will delete {counted(len(lost), 'session')} within {SOON_DAYS} days, {when}, and the vault does "
            "not have them",
            f"Holdfast has the history of {len(ours)} of them; of the others nothing is left then. The command takes them "
            "over, with a copy of their files.",
            f"holdfast import {provider}",
            lost,
        )
    if not found:
        yield ok("transcripts_stay", "no agent is about to delete a session that the vault does not have")


def _expiring(archive: Archive) -> dict[ProviderSessionId, Instant]:
    found = ((stored.id, expires_soon(archive, stored.path)) for stored in archive.sessions())
    return {session_id: at for session_id, at in found if at is not None}

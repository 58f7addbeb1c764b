"""Owns the rows of the vault: chunks by their digest, and bundles whose files are lists of chunks.

A bundle is written in one transaction that has locked every chunk that it begins to use. A sweep locks the chunks that
it deletes, too: so no bundle refers to a chunk that is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from holdfast.clock import Instant, after
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.vault import (
    LOOSE_HOURS,
    MAX_CALL_BYTES,
    MAX_DIGESTS,
    VaultBundle,
    VaultChunk,
    VaultEntry,
    VaultFigures,
    VaultFile,
    VaultPart,
    VaultSweep,
    check_bundle,
)
from holdfast.errors import Conflict, InvalidInput, NotFound, Refused
from holdfast.store.driver import Row
from holdfast.store.sql import provider_sessions
from holdfast.store.sql.rows import Rows, computed
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.tables import (
    TEXT,
    VAULT_BUNDLES,
    VAULT_CHUNKS,
    VAULT_FILES,
    VAULT_PARTS,
    WHOLE,
)

#: digests that a statement looks for; fewer are filled up, so that each engine prepares one statement
_GROUP = "abcdefghijklmnop"
_ANY_OF = f"IN ({', '.join(f':{letter}' for letter in _GROUP)})"
#: chunks that one transaction of a sweep deletes
SWEEP_BATCH = 200

CHUNK_ROWS = Rows(VAULT_CHUNKS, VaultChunk, "chunk {digest}")
KNOWN = f"SELECT digest FROM vault_chunks WHERE workspace = :ws AND digest {_ANY_OF}"
_SIZES = VAULT_CHUNKS.pick("digest", "size", "stored")
LOCK_CHUNKS = f"""
SELECT {_SIZES.sql} FROM vault_chunks WHERE workspace = :ws AND digest {_ANY_OF} ORDER BY digest FOR UPDATE"""
ADD = f"""{VAULT_CHUNKS.insert}
ON CONFLICT (workspace, digest) DO UPDATE SET touched_at = excluded.touched_at"""
READ = f"SELECT {CHUNK_ROWS.sql} FROM vault_chunks WHERE workspace = :ws AND digest = :digest"
RELEASE = "UPDATE vault_chunks SET touched_at = :now WHERE workspace = :ws AND digest = :digest"
_UNUSED = """NOT EXISTS (SELECT 1 FROM vault_parts p INDEXED BY vault_parts_by_chunk
    WHERE p.workspace = vault_chunks.workspace AND p.digest = vault_chunks.digest)"""
LOOSE = f"""
SELECT {_SIZES.sql} FROM vault_chunks INDEXED BY vault_chunks_by_touch
WHERE workspace = :ws AND touched_at < :cutoff AND {_UNUSED} LIMIT {SWEEP_BATCH} FOR UPDATE SKIP LOCKED"""
# looked at again: since the first look, and before the lock, a bundle may have begun to use it
DELETE_LOOSE = f"""
DELETE FROM vault_chunks WHERE workspace = :ws AND digest = :digest AND touched_at < :cutoff AND {_UNUSED}"""

_KEY = "workspace = :ws AND provider = :provider AND provider_session_id = :id AND branch = :branch"
_BUNDLE = VAULT_BUNDLES.pick(
    "branch", "home", "runtime_id", "work_dir", "kept_at", "revision", "stored_bytes"
)
_FILE = VAULT_FILES.pick("number", "name", "size")
_PART = VAULT_PARTS.pick("file", "digest", "size", "stored")
ONE = f"SELECT {_BUNDLE.sql} FROM vault_bundles WHERE {_KEY}"
LOCK = f"{ONE} FOR UPDATE"
BRANCHES = """
SELECT branch FROM vault_bundles WHERE workspace = :ws AND provider = :provider AND provider_session_id = :id
ORDER BY branch"""
FILES = f"SELECT {_FILE.sql} FROM vault_files WHERE {_KEY} ORDER BY number"
PARTS = f"SELECT {_PART.sql} FROM vault_parts WHERE {_KEY} ORDER BY file, number"
CHANGE = f"""
UPDATE vault_bundles SET home = :home, runtime_id = :runtime_id, work_dir = :work_dir, kept_at = :kept_at,
    revision = revision + 1, stored_bytes = :stored_bytes
WHERE {_KEY}"""
CUT_FILES = f"DELETE FROM vault_files WHERE {_KEY} AND number >= :number"
CUT_PARTS = f"DELETE FROM vault_parts WHERE {_KEY} AND file = :file AND number >= :number"
RESIZE = f"UPDATE vault_files SET size = :size WHERE {_KEY} AND number = :number"
DROP = f"DELETE FROM vault_bundles WHERE {_KEY}"
TOTAL = "SELECT CAST(COALESCE(SUM(stored_bytes), 0) AS BIGINT) FROM vault_bundles WHERE workspace = :ws"
_OWN = """workspace = vault_bundles.workspace AND provider = vault_bundles.provider
    AND provider_session_id = vault_bundles.provider_session_id AND branch = vault_bundles.branch"""
ENTRY_ROWS = Rows(
    VAULT_BUNDLES,
    VaultEntry,
    "{provider} {provider_session_id}",
    main=computed(f"(SELECT name FROM vault_files WHERE {_OWN} AND number = 0)", TEXT),
    size=computed(f"(SELECT CAST(SUM(size) AS BIGINT) FROM vault_files WHERE {_OWN})", WHOLE),
    parts=computed(f"(SELECT COUNT(*) FROM vault_parts WHERE {_OWN})", WHOLE),
)
ENTRIES = f"""
SELECT {ENTRY_ROWS.sql} FROM vault_bundles WHERE workspace = :ws
    AND (kept_at, provider, provider_session_id, branch) > (:at, :provider, :id, :branch)
ORDER BY kept_at, provider, provider_session_id, branch LIMIT :limit"""
BUNDLES = """
SELECT COUNT(*), CAST(COALESCE(SUM(stored_bytes), 0) AS BIGINT) FROM vault_bundles WHERE workspace = :ws"""
PLAIN = "SELECT CAST(COALESCE(SUM(size), 0) AS BIGINT) FROM vault_files WHERE workspace = :ws"
CHUNKS = """
SELECT COUNT(*), CAST(COALESCE(SUM(stored), 0) AS BIGINT)
FROM vault_chunks INDEXED BY vault_chunks_by_touch WHERE workspace = :ws AND touched_at >= 0"""
EVERYWHERE = (
    "SELECT CAST(COALESCE(SUM(stored), 0) AS BIGINT) FROM vault_chunks INDEXED BY vault_chunks_by_touch"
)
ALL_LOOSE = f"{CHUNKS} AND {_UNUSED}"


def _is_kept(provider: str, provider_session_id: str) -> str:
    return f"""EXISTS (SELECT 1 FROM vault_bundles b WHERE b.workspace = :ws AND b.provider = {provider}
        AND b.provider_session_id = {provider_session_id})"""


# what a conversation's agents have saved, as far as the vault has it
KEPT_BY = f"""
SELECT a.provider, a.provider_session_id FROM attempts a
WHERE a.workspace = :ws AND a.conversation_id = :id AND {_is_kept("a.provider", "a.provider_session_id")}
UNION
SELECT p.provider, p.provider_session_id FROM pointers p
WHERE p.workspace = :ws AND {_is_kept("p.provider", "p.provider_session_id")}
    AND p.session_id IN (SELECT o.id FROM sessions o WHERE o.workspace = :ws AND o.conversation_id = :id)
UNION
SELECT k.provider, k.id FROM provider_sessions k INDEXED BY provider_sessions_by_session
WHERE k.workspace = :ws AND {_is_kept("k.provider", "k.id")}
    AND k.session_id IN (SELECT o.id FROM sessions o WHERE o.workspace = :ws AND o.conversation_id = :id)"""


# --- chunks ---


def lacking(s: Scope, digests: Sequence[str]) -> tuple[str, ...]:
    """See ``Store.lacking_chunks``."""
    _check_number(digests)
    known = {digest for group in _groups(digests) for (digest,) in s.all(KNOWN, **group)}
    return tuple(digest for digest in dict.fromkeys(digests) if digest not in known)


def add(s: Scope, chunks: Sequence[VaultChunk]) -> None:
    """Chunks that are there already stay as they are, and count as new."""
    for chunk in chunks:
        s.run(
            ADD, digest=chunk.digest, size=chunk.size, codec=chunk.codec, stored=len(chunk.data),
            touched_at=s.now, data=chunk.data,
        )  # fmt: skip


def read_chunks(s: Scope, digests: Sequence[str]) -> tuple[VaultChunk, ...]:
    """See ``Store.read_chunks``."""
    _check_number(digests)
    found: list[VaultChunk] = []
    size = 0
    for digest in digests:
        row = s.one(READ, digest=digest)
        if row is None:
            raise NotFound("chunk", digest)
        chunk = CHUNK_ROWS.read(s.where, row)
        size += len(chunk.data)
        if found and size > MAX_CALL_BYTES:
            break
        found.append(chunk)
    return tuple(found)


def sweep(s: Scope) -> VaultSweep:
    """One batch of the chunks that nothing has used for a day."""
    cutoff = after(s.now, -LOOSE_HOURS * 3600)
    number = stored_bytes = 0
    for row in s.all(LOOSE, cutoff=cutoff):
        digest, _, stored = _SIZES.checked(s.where, row, "chunk")
        gone = s.changed(DELETE_LOOSE, digest=digest, cutoff=cutoff)
        number, stored_bytes = number + gone, stored_bytes + gone * stored
    return VaultSweep(number, stored_bytes)


def _groups(digests: Iterable[str]) -> Iterator[dict[str, object]]:
    """Without those that are named twice, sorted: whoever locks them waits for nobody in a circle."""
    left = sorted(set(digests))
    for start in range(0, len(left), len(_GROUP)):
        group = left[start : start + len(_GROUP)]
        group += group[-1:] * (len(_GROUP) - len(group))
        yield dict(zip(_GROUP, group, strict=True))


def _check_number(digests: Sequence[str]) -> None:
    if len(digests) > MAX_DIGESTS:
        raise InvalidInput("digests", f"must be at most {MAX_DIGESTS}")


# --- bundles ---


class _Part(NamedTuple):
    digest: str
    size: int
    stored: int


class _Kept(NamedTuple):
    """A bundle as its rows have it."""

    bundle: VaultBundle
    stored_bytes: int
    parts: tuple[tuple[_Part, ...], ...]  #: of each file


def _key(bundle: VaultBundle) -> dict[str, Any]:
    return {"provider": bundle.provider, "id": bundle.provider_session_id, "branch": bundle.branch}


def get(s: Scope, provider: str, provider_session_id: str, branch: str) -> VaultBundle | None:
    kept = _read(s, ONE, provider, provider_session_id, branch)
    return None if kept is None else kept.bundle


def branches(s: Scope, provider: str, provider_session_id: str) -> tuple[VaultBundle, ...]:
    """The session itself first."""
    names = [branch for (branch,) in s.all(BRANCHES, provider=provider, id=provider_session_id)]
    found = (get(s, provider, provider_session_id, branch) for branch in names)
    return tuple(bundle for bundle in found if bundle is not None)


def _read(s: Scope, sql: str, provider: str, provider_session_id: str, branch: str) -> _Kept | None:
    (found,) = _read_many(s, sql, [{"provider": provider, "id": provider_session_id, "branch": branch}])
    return found


def _read_many(s: Scope, sql: str, keys: Sequence[dict[str, Any]]) -> list[_Kept | None]:
    rows = s.all_many(sql, keys)
    found = [key for key, row in zip(keys, rows, strict=True) if row]
    parts, files = iter(s.all_many(PARTS, found)), iter(s.all_many(FILES, found))
    return [
        _kept(s, key, row[0], next(parts), next(files)) if row else None
        for key, row in zip(keys, rows, strict=True)
    ]


def _kept(
    s: Scope, key: dict[str, Any], row: Row, part_rows: Sequence[Row], file_rows: Sequence[Row]
) -> _Kept:
    provider, provider_session_id = key["provider"], key["id"]
    named = _BUNDLE.named(_BUNDLE.checked(s.where, row, provider, provider_session_id))
    stored_bytes = named.pop("stored_bytes")
    parts: dict[int, list[_Part]] = {}
    for part in part_rows:
        file, digest, size, stored = _PART.checked(s.where, part, provider, provider_session_id)
        parts.setdefault(file, []).append(_Part(digest, size, stored))
    files = []
    for file_row in file_rows:
        number, name, size = _FILE.checked(s.where, file_row, provider, provider_session_id)
        own = tuple(VaultPart(part.digest, part.size) for part in parts.get(number, ()))
        files.append(VaultFile(name, size, number == 0, own))
    bundle = VaultBundle(provider, ProviderSessionId(provider_session_id), files=tuple(files), **named)
    return _Kept(bundle, stored_bytes, tuple(tuple(parts.get(n, ())) for n in range(len(files))))


def keep(
    s: Scope, bundles: Sequence[VaultBundle], chunks: Sequence[VaultChunk], *, repacked: bool = False
) -> None:
    """See ``Store.keep_bundles``."""
    add(s, chunks)
    known = _read_many(s, LOCK, [_key(bundle) for bundle in bundles])
    stored = _lock_used(s, list(zip(bundles, known, strict=True)))
    grown = 0
    for bundle, before in zip(bundles, known, strict=True):
        grown += _keep(s, bundle, before, stored, repacked=repacked)
    if grown > 0:
        _require_room(s, grown)


def _require_room(s: Scope, grown: int) -> None:
    limit = s.policy.vault.limit_bytes
    (total,) = s.one(TOTAL) or (0,)
    if total > limit:
        raise Refused(
            "vault_full",
            f"the vault is full: its limit is {limit:,} bytes; raise vault.limit_bytes",
            limit_bytes=limit,
            needed_bytes=grown,
        )


def _keep(
    s: Scope, bundle: VaultBundle, known: _Kept | None, stored: dict[str, int], *, repacked: bool
) -> int:
    """By how much the bundle has grown."""
    key = _key(bundle)
    if known is not None and known.bundle.revision != bundle.revision:
        if known.bundle.files == bundle.files:
            return 0  # this call, made again
        raise _changed_meanwhile(bundle)
    if known is None and bundle.revision:
        raise _changed_meanwhile(bundle)
    stored_bytes = sum(stored[part.digest] for file in bundle.files for part in file.parts)
    about: dict[str, object] = {
        "home": bundle.home, "runtime_id": bundle.runtime_id, "work_dir": bundle.work_dir,
        "stored_bytes": stored_bytes,
    }  # fmt: skip
    if known is None:
        of_bundle = {"provider": bundle.provider, "provider_session_id": bundle.provider_session_id,
                     "branch": bundle.branch}  # fmt: skip
        s.run(VAULT_BUNDLES.insert, **of_bundle, **about, kept_at=s.now, revision=1)
    else:
        s.run(CHANGE, **key, **about, kept_at=known.bundle.kept_at if repacked else s.now)
    _write_files(s, bundle, known, stored)
    return stored_bytes - (0 if known is None else known.stored_bytes)


def _changed_meanwhile(bundle: VaultBundle) -> Conflict:
    return Conflict(
        f"what the vault has of {bundle.provider} session {bundle.provider_session_id} has changed meanwhile",
        provider_session_id=bundle.provider_session_id,
    )


def _lock_used(s: Scope, bundles: Sequence[tuple[VaultBundle, _Kept | None]]) -> dict[str, int]:
    """What each chunk of the bundles takes. Raises Conflict for chunks that are not there."""
    stored: dict[str, tuple[int, int]] = {}
    wanted: dict[str, int] = {}
    new: set[str] = set()
    for bundle, known in bundles:
        own = {
            part.digest: (part.size, part.stored) for own in (known.parts if known else ()) for part in own
        }
        asked = {part.digest: part.size for file in bundle.files for part in file.parts}
        new |= asked.keys() - own.keys()
        stored |= own
        wanted |= asked
    for rows in s.all_many(LOCK_CHUNKS, list(_groups(new))):
        for row in rows:
            digest, size, takes = _SIZES.checked(s.where, row, "chunk")
            stored[digest] = (size, takes)
            new.discard(digest)
    if new:
        lacks = sorted(new)
        raise Conflict(f"the vault lacks {len(lacks)} of the bundle's chunks", chunks=lacks[:MAX_DIGESTS])
    for digest, size in wanted.items():
        if stored[digest][0] != size:
            raise InvalidInput("parts", f"the chunk {digest} has another size")
    return {digest: takes for digest, (_, takes) in stored.items()}


def _write_files(s: Scope, bundle: VaultBundle, known: _Kept | None, stored: dict[str, int]) -> None:
    """Rows that stay as they are are not touched: an append adds rows, and changes the size of its file."""
    key = _key(bundle)
    of_bundle: dict[str, object] = {
        "provider": bundle.provider, "provider_session_id": bundle.provider_session_id, "branch": bundle.branch
    }  # fmt: skip
    before = () if known is None else known.bundle.files
    same = _common([file.name for file in before], [file.name for file in bundle.files])
    dropped: list[str] = []
    if len(before) > same:
        dropped += [part.digest for file in before[same:] for part in file.parts]
        s.run(CUT_FILES, **key, number=same)
    rows: list[dict[str, object]] = []
    for number, file in enumerate(bundle.files):
        first = 0
        if number < same:
            old = before[number]
            first = _common(old.parts, file.parts)
            if len(old.parts) > first:
                dropped += [part.digest for part in old.parts[first:]]
                s.run(CUT_PARTS, **key, file=number, number=first)
            if old.size != file.size:
                s.run(RESIZE, **key, number=number, size=file.size)
        else:
            s.run(VAULT_FILES.insert, **of_bundle, number=number, name=file.name, size=file.size)
        rows += [
            {**of_bundle, "file": number, "number": n, "digest": part.digest, "size": part.size,
             "stored": stored[part.digest]}
            for n, part in enumerate(file.parts[first:], first)
        ]  # fmt: skip
    s.run_many(VAULT_PARTS.insert, rows)
    _release(s, dropped)


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    """How many of their first members are the same."""
    for n, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return n
    return min(len(one), len(other))


def _release(s: Scope, digests: Iterable[str]) -> None:
    """Chunks that a file has stopped using stay for a day: somebody may be reading it."""
    s.run_many(RELEASE, [{"digest": digest, "now": s.now} for digest in sorted(set(digests))])


def drop(s: Scope, provider: str, provider_session_id: str, branch: str, kept_at: Instant | None) -> bool:
    """See ``Store.drop_bundle``."""
    kept = _read(s, LOCK, provider, provider_session_id, branch)
    if kept is None or (kept_at is not None and kept.bundle.kept_at != kept_at):
        return False
    s.run(DROP, **_key(kept.bundle))
    _release(s, (part.digest for own in kept.parts for part in own))
    return True


def kept_by(s: Scope, conversation_id: str) -> list[Row]:
    """Provider and id of each provider session in the vault that a conversation's sessions have used."""
    return s.all(KEPT_BY, id=conversation_id)


def drop_unowned(s: Scope, used: Iterable[Row]) -> None:
    """Those of the provider sessions that belong to no session any more."""
    for provider, provider_session_id in dict.fromkeys(tuple(row) for row in used):
        if provider_sessions.owner_of(s, provider, provider_session_id) is None:
            for bundle in branches(s, provider, provider_session_id):
                drop(s, provider, provider_session_id, bundle.branch, None)


def entries(s: Scope, after_entry: VaultEntry | None, limit: int) -> tuple[VaultEntry, ...]:
    """See ``Store.vault_entries``."""
    start = (-1, "", "", "")
    if after_entry is not None:
        start = (
            after_entry.kept_at,
            after_entry.provider,
            after_entry.provider_session_id,
            after_entry.branch,
        )
    at, provider, id_, branch = start
    rows = s.all(ENTRIES, at=at, provider=provider, id=id_, branch=branch, limit=limit)
    return tuple(ENTRY_ROWS.read(s.where, row) for row in rows)


def figures(s: Scope) -> VaultFigures:
    bundles, stored_bytes = s.one(BUNDLES) or (0, 0)
    (size,) = s.one(PLAIN) or (0,)
    chunks, chunk_bytes = s.one(CHUNKS) or (0, 0)
    loose_chunks, loose_bytes = s.one(ALL_LOOSE) or (0, 0)
    (everywhere,) = s.one(EVERYWHERE) or (0,)
    limit = s.policy.vault.limit_bytes
    return VaultFigures(
        bundles, size, stored_bytes, chunks, chunk_bytes, loose_chunks, loose_bytes, everywhere, limit
    )


def check(bundles: Sequence[VaultBundle], chunks: Sequence[VaultChunk]) -> None:
    """Raises InvalidInput before a transaction begins: reading the chunks takes longer than writing them."""
    keys = [(bundle.provider, bundle.provider_session_id, bundle.branch) for bundle in bundles]
    if len(set(keys)) < len(keys):
        raise InvalidInput("bundles", "two of them are the same")
    for bundle in bundles:
        check_bundle(bundle)
    if chunks:
        from holdfast.store.packing import check_chunk  # loads OpenSSL and zlib, and most programs add none

        for chunk in chunks:
            check_chunk(chunk)

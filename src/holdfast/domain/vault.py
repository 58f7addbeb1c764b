"""Owns the records of the vault: a provider's own session files, kept byte for byte in chunks."""

from __future__ import annotations

from holdfast.clock import Instant
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.inputs import MAX_NUMBER, check_text
from holdfast.domain.records import record
from holdfast.errors import InvalidInput

#: of one chunk, before it is compressed
MAX_CHUNK = 1024 * 1024
#: compressing and encrypting may add a little
MAX_STORED = MAX_CHUNK + 4096
#: that one call may name
MAX_DIGESTS = 1000
#: of the answer of ``Store.read_chunks``, and of what is sent to ``Store.add_chunks`` at a time: base64 adds a third,
#: and a server takes 16 MiB
MAX_CALL_BYTES = 8 * MAX_CHUNK
#: a chunk that nothing refers to stays this long: a bundle may be about to refer to it, a reader may still want it
LOOSE_HOURS = 24
_MAX_NAME = 1000


@record
class VaultChunk:
    """A piece of a file."""

    digest: str  #: of the plain bytes: SHA-256, or an HMAC of it if the chunk is encrypted
    size: int  #: of the plain bytes
    codec: str  #: how ``data`` is written: see ``holdfast.store.packing``
    data: bytes


@record
class VaultPart:
    """A piece of a file, by the name of its chunk."""

    digest: str
    size: int


@record
class VaultFile:
    """One file of a bundle; its parts in order are its bytes."""

    name: str  #: where it belongs below the provider's home, with forward slashes
    size: int
    is_main: bool
    parts: tuple[VaultPart, ...]


@record
class VaultBundle:
    """One version of a provider's session: every file that the provider needs to resume it, the main one first."""

    provider: str
    provider_session_id: ProviderSessionId
    branch: str  #: "": the session itself; otherwise the digest of a version that went another way
    home: str  #: the provider's home that the files are from
    runtime_id: str | None
    work_dir: str | None
    files: tuple[VaultFile, ...]
    kept_at: Instant = Instant(0)  #: when it was last changed; the store sets it
    revision: int = 0  #: how often it was changed; 0: it is new

    @property
    def main(self) -> VaultFile:
        return self.files[0]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@record
class VaultEntry:
    """What there is to say about a bundle without its parts."""

    provider: str
    provider_session_id: ProviderSessionId
    branch: str
    home: str
    runtime_id: str | None
    work_dir: str | None
    main: str  #: the name of its main file
    size: int  #: of its files
    parts: int  #: of its files, together
    stored_bytes: int  #: of its chunks as they are stored
    kept_at: Instant


@record
class VaultFigures:
    bundles: int
    size: int  #: of all files, as their providers have them
    stored_bytes: int  #: of the chunks of all bundles; a chunk that two bundles share counts in each of them
    chunks: int
    chunk_bytes: int  #: what all chunks take, once each
    loose_chunks: int  #: that no bundle refers to: they go when they are 24 hours old
    loose_bytes: int
    all_bytes: int  #: what the chunks of all workspaces take
    limit_bytes: int


@record
class VaultSweep:
    """What a sweep has deleted."""

    chunks: int
    stored_bytes: int


def check_bundle(bundle: VaultBundle) -> None:
    """Raises InvalidInput for a bundle that could not be put back as it says."""
    check_text("provider_session_id", bundle.provider_session_id, limit=_MAX_NAME)
    if not bundle.provider_session_id:
        raise InvalidInput("provider_session_id", "must not be empty")
    if [file.is_main for file in bundle.files] != [True] + [False] * (len(bundle.files) - 1):
        raise InvalidInput("files", "the first one must be the main one, and no other")
    names = [file.name for file in bundle.files]
    if len(set(names)) < len(names):
        raise InvalidInput("files", "two of them have the same name")
    for file in bundle.files:
        check_file_name(file.name)
        if any(not 0 < part.size <= MAX_CHUNK for part in file.parts):
            raise InvalidInput(
                "parts", f"{file.name} has a part of less than 1 or more than {MAX_CHUNK} bytes"
            )
        if file.size != sum(part.size for part in file.parts) or file.size > MAX_NUMBER:
            raise InvalidInput("size", f"{file.name} has another size than its parts")


def check_file_name(name: str) -> str:
    """A path that stays below the folder that it is put in."""
    check_text("name", name, limit=_MAX_NAME)
    steps = name.split("/")
    if "\\" in name or not all(steps) or not {".", ".."}.isdisjoint(steps):
        raise InvalidInput("name", f"{name[:80]!r} is not a path below a provider's home")
    return name

"""Owns the bytes of the vault's chunks: compressed by the best codec at hand, read back, and compared with their digest."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from holdfast.domain.vault import MAX_CHUNK, MAX_STORED, VaultChunk
from holdfast.errors import ConfigError, InvalidInput

RAW, ZLIB, ZSTD = "raw", "zlib", "zstd"
#: behind the codec of a chunk that is encrypted
ENCRYPTED = "+aes-gcm"
_CODECS = (RAW, ZLIB, ZSTD)
_ZLIB_LEVEL, _ZSTD_LEVEL = 6, 3
_DIGEST_LETTERS = 64
INSTALL = "pip install 'holdfast-sessions[vault]'"


class Damaged(Exception):
    """The bytes of a chunk are not what was stored."""


class _Zstd(NamedTuple):
    compress: Callable[[bytes], bytes]
    decompress: Callable[[bytes, int], bytes]  #: at most so many bytes
    error: type[Exception]


@cache
def zstd() -> _Zstd | None:
    """None where neither this Python nor an installed package has it."""
    try:
        from compression import zstd as own  # type: ignore[import-not-found,unused-ignore]  # since Python 3.14
    except ImportError:
        pass
    else:
        return _Zstd(
            lambda data: own.compress(data, _ZSTD_LEVEL),
            lambda data, most: own.ZstdDecompressor().decompress(data, most),
            own.ZstdError,
        )
    try:
        import zstandard
    except ImportError:
        return None
    return _Zstd(
        lambda data: zstandard.compress(data, _ZSTD_LEVEL),
        lambda data, most: zstandard.ZstdDecompressor().stream_reader(data).read(most),
        zstandard.ZstdError,
    )


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def pack(data: bytes) -> tuple[str, bytes]:
    """The codec, and the bytes in it. Bytes that do not get smaller stay as they are."""
    best = zstd()
    if best is not None:
        codec, packed = ZSTD, best.compress(data)
    else:
        codec, packed = ZLIB, zlib.compress(data, _ZLIB_LEVEL)
    return (codec, packed) if len(packed) < len(data) else (RAW, data)


def unpack(chunk: VaultChunk) -> bytes:
    """Raises Damaged if the bytes cannot be read or have another size, ConfigError if a package is missing."""
    codec, data, size = chunk.codec, chunk.data, chunk.size
    if codec == RAW:
        plain = data
    elif codec == ZLIB:
        reader = zlib.decompressobj()
        try:
            plain = reader.decompress(data, size + 1)  # never more memory than the chunk may need
        except zlib.error as exc:
            raise Damaged(str(exc)) from exc
    elif codec == ZSTD:
        plain = _unzstd(data, size)
    else:
        raise Damaged(f"the codec {codec[:40]!r} is unknown")
    if len(plain) != size:
        raise Damaged(f"{len(plain)} bytes instead of {size}")
    return plain


def _unzstd(data: bytes, size: int) -> bytes:
    codec = zstd()
    if codec is None:
        raise ConfigError("vault", f"this chunk was compressed with zstandard; install it: {INSTALL}")
    try:
        return codec.decompress(data, size + 1)
    except codec.error as exc:
        raise Damaged(str(exc)) from exc


def check_chunk(chunk: VaultChunk) -> None:
    """Raises InvalidInput for a chunk that nobody could read back.

    The digest of an encrypted chunk, and of one in a codec that this machine does not have, is left to its readers.
    """
    codec = chunk.codec.removesuffix(ENCRYPTED)
    if codec not in _CODECS:
        raise InvalidInput("codec", f"{chunk.codec[:40]!r} is not one of {', '.join(_CODECS)}")
    if not 0 < chunk.size <= MAX_CHUNK or len(chunk.data) > MAX_STORED:
        raise InvalidInput("chunk", f"must have 1 to {MAX_CHUNK} bytes")
    if len(chunk.digest) != _DIGEST_LETTERS or not set(chunk.digest) <= set("0123456789abcdef"):
        raise InvalidInput("digest", "must be 64 hexadecimal digits")
    if codec != chunk.codec or (codec == ZSTD and zstd() is None):
        return
    try:
        plain = unpack(chunk)
    except Damaged as exc:
        raise InvalidInput("chunk", f"cannot be read: {exc}") from exc
    if digest_of(plain) != chunk.digest:
        raise InvalidInput("digest", "is not that of the chunk's bytes")

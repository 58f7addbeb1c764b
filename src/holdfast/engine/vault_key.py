"""Owns the key of the vault: where it comes from, the names that chunks get under it, and encrypting them."""

from __future__ import annotations

import hashlib
import hmac
import os
import shlex
import stat
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.domain.policy import VaultPolicy
from holdfast.domain.records import replace
from holdfast.domain.vault import VaultChunk
from holdfast.errors import ConfigError, VaultLocked
from holdfast.store.packing import ENCRYPTED, INSTALL, Damaged, digest_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_KEY_BYTES = 32
_NONCE_BYTES = 12
_COMMAND_SECONDS = 30.0
_HOW = "make one with: openssl rand -hex 32"
_SETTING = "vault.key_file"


class Names:
    """Without a key: chunks are named by the SHA-256 of their bytes, and stored as they are."""

    has_key = False

    def name(self, plain: bytes) -> str:
        return digest_of(plain)

    def is_name(self, name: str, plain: bytes) -> bool:
        return digest_of(plain) == name

    def seal(self, chunk: VaultChunk) -> VaultChunk:
        """The chunk as it is stored."""
        return chunk

    def unseal(self, chunk: VaultChunk) -> VaultChunk:
        """The chunk as it was before ``seal``. Raises VaultLocked, and Damaged."""
        if chunk.codec.endswith(ENCRYPTED):
            raise VaultLocked(
                _SETTING, "is not set in your user file, and this part of the vault is encrypted"
            )
        return chunk


class KeyedNames(Names):
    """With a key: a name says nothing about the bytes to those who do not have the key, and neither do the bytes."""

    has_key = True

    def __init__(self, key: bytes) -> None:
        self._names = hmac.digest(key, b"holdfast vault: names", "sha256")
        self._cipher = _cipher(hmac.digest(key, b"holdfast vault: chunks", "sha256"))

    def name(self, plain: bytes) -> str:
        return hmac.digest(self._names, plain, hashlib.sha256).hex()

    def is_name(self, name: str, plain: bytes) -> bool:
        """Also of a chunk that was stored before there was a key."""
        return self.name(plain) == name or digest_of(plain) == name

    def seal(self, chunk: VaultChunk) -> VaultChunk:
        nonce, codec = os.urandom(_NONCE_BYTES), chunk.codec + ENCRYPTED
        sealed = self._cipher.encrypt(nonce, chunk.data, _bound_to(chunk.digest, codec))
        return replace(chunk, codec=codec, data=nonce + sealed)

    def unseal(self, chunk: VaultChunk) -> VaultChunk:
        if not chunk.codec.endswith(ENCRYPTED):
            return chunk
        from cryptography.exceptions import InvalidTag

        nonce, sealed = chunk.data[:_NONCE_BYTES], chunk.data[_NONCE_BYTES:]
        try:
            packed = self._cipher.decrypt(nonce, sealed, _bound_to(chunk.digest, chunk.codec))
        except InvalidTag:
            problem = f"the chunk {chunk.digest} was encrypted with another key, or is damaged"
            raise VaultLocked(_SETTING, problem) from None
        except ValueError as exc:
            raise Damaged(str(exc)) from exc
        return replace(chunk, codec=chunk.codec.removesuffix(ENCRYPTED), data=packed)


def _bound_to(name: str, codec: str) -> bytes:
    return f"{name} {codec}".encode()


def _cipher(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        problem = f"needs the package cryptography; install it: {INSTALL}"
        raise ConfigError(_SETTING, problem) from None
    return AESGCM(key)


@cache
def names_of(policy: VaultPolicy) -> Names:
    """By the key that the settings name. Raises ConfigError for a key that cannot be had, or is none."""
    if policy.key_file is not None:
        return KeyedNames(_key(policy.key_file, _read(Path(policy.key_file).expanduser())))
    if policy.key_command is not None:
        return KeyedNames(_key("vault.key_command", _printed(policy.key_command)))
    return Names()


def _read(path: Path) -> bytes:
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ConfigError(str(path), f"others can read this key: chmod 600 {path}")
        return path.read_bytes()
    except OSError as exc:
        raise ConfigError(str(path), f"the key of the vault cannot be read: {exc.strerror}") from exc


def _printed(command: str) -> bytes:
    try:
        done = subprocess.run(
            shlex.split(command), stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_SECONDS, check=True
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as exc:
        # the output of the command may be the key: it is not shown
        problem = f"gave no key: {exc.strerror if isinstance(exc, OSError) else type(exc).__name__}"
        raise ConfigError("vault.key_command", problem) from None
    return done.stdout


def _key(where: str, text: bytes) -> bytes:
    try:
        key = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise ConfigError(where, f"the key must be {2 * _KEY_BYTES} hexadecimal digits; {_HOW}")
    return key

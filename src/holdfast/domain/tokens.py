"""Owns tokens: what lets a caller in to the server, in which role, and how one is written and proved."""

from __future__ import annotations

import hashlib
import hmac
import re
from enum import StrEnum

from holdfast.clock import Instant
from holdfast.domain.ids import SessionId, TokenId, Workspace
from holdfast.domain.inputs import check_name
from holdfast.domain.records import record
from holdfast.errors import InvalidInput

_ID_BYTES = 6
_SECRET_BYTES = 32
#: how much randomness a token is made of
ENTROPY = _ID_BYTES + _SECRET_BYTES

_TEXT = re.compile(r"hft_([0-9a-f]{12})_([0-9a-f]{64})\Z")
_ID = re.compile(r"[0-9a-f]{12}\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
#: compared with where there is no such token, so that it takes as long
NO_DIGEST = "0" * 64


class Role(StrEnum):
    READER = "reader"  #: looks
    OPERATOR = "operator"  #: looks, begins and changes sessions, cancels and answers
    WORKER = "worker"  #: looks, and runs turns
    ADMIN = "admin"  #: everything, tokens too
    AGENT = "agent"  #: of an agent that is running: its own session, and what it delegates


@record
class NewToken:
    """The secret stays with whoever made it; the store gets its digest."""

    id: TokenId
    role: Role
    name: str
    digest: str
    expires_at: Instant | None = None


@record
class Token:
    id: TokenId
    workspace: Workspace
    role: Role
    name: str
    created_at: Instant
    expires_at: Instant | None
    last_used_at: Instant | None  #: to the hour
    revoked_at: Instant | None
    session_id: SessionId | None = (
        None  #: of an agent's: it opens nothing but this session and what is below it
    )

    def is_good(self, now: Instant) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def make_token(role: Role, name: str, expires_at: Instant | None, entropy: bytes) -> tuple[NewToken, str]:
    """What the store is given, and the text that its holder is given, once."""
    secret = entropy[_ID_BYTES:ENTROPY].hex()
    token_id = TokenId(entropy[:_ID_BYTES].hex())
    new = NewToken(token_id, role, name, digest_of(secret), expires_at)
    return new, f"hft_{token_id}_{secret}"


def split_token(text: str) -> tuple[TokenId, str] | None:
    """Its id and its secret; None for what is no token."""
    found = _TEXT.match(text)
    return None if found is None else (TokenId(found[1]), found[2])


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def proves(secret: str, digest: str) -> bool:
    """In a time that says nothing about how much of it was right."""
    return hmac.compare_digest(digest_of(secret), digest)


def check_new_token(new: NewToken) -> NewToken:
    if not _ID.match(new.id) or not _DIGEST.match(new.digest):
        raise InvalidInput("token", "its id and its digest are not those of a token")
    check_name("name", new.name)
    if new.role is Role.AGENT:
        raise InvalidInput("role", "an agent gets its token from the server, when it is launched")
    return new

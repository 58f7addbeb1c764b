"""Owns tokens: which caller may use the server, in which role, and how a token is written and verified."""

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
#: compared with if the token is unknown, so that the comparison takes as long
NO_DIGEST = "0" * 64


class Role(StrEnum):
    VIEWER = "viewer"  #: may read figures and states, and no contents
    READER = "reader"  #: may read
    OPERATOR = "operator"  #: may read, begin and change sessions, cancel and answer
    WORKER = "worker"  #: may read, and run turns
    ADMIN = "admin"  #: may do everything, also make tokens
    AGENT = "agent"  #: a running agent: may use its own session, and what it delegates


@record
class NewToken:
    """A token for the store: it gets the digest, never the secret."""

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
    """Returns the token for the store, and the text for its holder, which is shown once."""
    secret = entropy[_ID_BYTES:ENTROPY].hex()
    token_id = TokenId(entropy[:_ID_BYTES].hex())
    new = NewToken(token_id, role, name, digest_of(secret), expires_at)
    return new, f"hft_{token_id}_{secret}"


def split_token(text: str) -> tuple[TokenId, str] | None:
    """The id and the secret of a token; None if the text is not a token."""
    found = _TEXT.match(text)
    return None if found is None else (TokenId(found[1]), found[2])


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def proves(secret: str, digest: str) -> bool:
    """Whether the secret fits the digest. The time that it takes does not depend on how much of the secret is right."""
    return hmac.compare_digest(digest_of(secret), digest)


def check_new_token(new: NewToken) -> NewToken:
    if not _ID.match(new.id) or not _DIGEST.match(new.digest):
        raise InvalidInput("token", "its id and its digest are not those of a token")
    check_name("name", new.name)
    if new.role is Role.AGENT:
        raise InvalidInput("role", "an agent gets its token from the server, when it is launched")
    return new

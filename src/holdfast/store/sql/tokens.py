"""Owns the rows of tokens: made, listed and revoked in a workspace; proved by their id alone."""

from __future__ import annotations

from holdfast.clock import Instant, after
from holdfast.domain.ids import TokenId, Workspace
from holdfast.domain.tokens import NO_DIGEST, NewToken, Role, Token, make_token, proves
from holdfast.domain.turns import Lease
from holdfast.errors import Conflict, NotFound
from holdfast.store.driver import Row
from holdfast.store.sql import leases
from holdfast.store.sql.rows import Rows, computed, cut, readable
from holdfast.store.sql.scope import Scope
from holdfast.store.sql.tables import AGENT_TOKENS, TEXT, TOKENS, read_instant

ROWS = Rows(
    TOKENS,
    Token,
    "{id}",
    workspace=computed("workspace", TEXT),
    role=Role,
    session_id=computed("NULL", TEXT.or_null),
)
#: with the digest, which is never shown
COLUMNS = ROWS + TOKENS.pick("digest")
GET = f"SELECT {COLUMNS.sql} FROM tokens WHERE workspace = :ws AND id = :id"
ALL = f"SELECT {COLUMNS.sql} FROM tokens WHERE workspace = :ws ORDER BY created_at, id"
REVOKE = "UPDATE tokens SET revoked_at = :now WHERE workspace = :ws AND id = :id AND revoked_at IS NULL"
# these three search all workspaces: the token's row says which one it belongs to
ANY = "SELECT 1 FROM tokens LIMIT 1"
FIND = f"SELECT {COLUMNS.sql} FROM tokens WHERE id = :id"
TOUCH = "UPDATE tokens SET last_used_at = :now WHERE id = :id"

# of agents that are running
LEND = AGENT_TOKENS.upsert("session_id")
LENT = """
SELECT a.workspace, a.session_id, a.digest, a.created_at, s.lease_expires_at
FROM agent_tokens a JOIN sessions s
    ON s.workspace = a.workspace AND s.id = a.session_id AND s.fence = a.fence
WHERE a.id = :id"""

#: how exactly the last use is known: not every request is worth a write
TOUCH_SECONDS = 3600.0


def create(s: Scope, new: NewToken) -> Token:
    made = TOKENS.new(
        id=new.id, role=new.role.value, name=new.name, digest=new.digest, created_at=s.now,
        expires_at=new.expires_at,
    )  # fmt: skip
    s.run(TOKENS.insert_once, **made)
    row = s.one(GET, id=new.id)
    if row is None or COLUMNS.column(row, "digest") != new.digest:
        raise Conflict(f"the id {new.id} is another token's", id=new.id)
    return _read(s, row)


def lend(s: Scope, lease: Lease, entropy: bytes) -> str | None:
    leases.require(s, lease)
    if not are_there(s):
        return None
    new, text = make_token(Role.AGENT, lease.session_id, None, entropy)
    s.run(
        LEND, session_id=lease.session_id, id=new.id, digest=new.digest, fence=lease.fence, created_at=s.now
    )  # fmt: skip
    return text


def of_workspace(s: Scope) -> tuple[Token, ...]:
    return tuple(readable(lambda row: _read(s, row), s.all(ALL)))


def revoke(s: Scope, token_id: str) -> Token:
    s.run(REVOKE, id=token_id, now=s.now)
    row = s.one(GET, id=token_id)
    if row is None:
        raise NotFound("token", token_id)
    return _read(s, row)


def are_there(s: Scope) -> bool:
    return s.one(ANY) is not None


def proved(s: Scope, token_id: str, secret: str) -> Token | None:
    row = s.one(FIND, id=token_id)
    if row is None and (lent := s.one(LENT, id=token_id)) is not None:
        return _proved_agent(s, TokenId(token_id), secret, lent)
    right = proves(secret, NO_DIGEST if row is None else str(COLUMNS.column(row, "digest")))
    if row is None or not right:
        return None
    token = _read(s, row)
    return token if token.is_good(s.now) else None


def _proved_agent(s: Scope, token_id: TokenId, secret: str, row: Row) -> Token | None:
    """The token of an agent is valid as long as the lease of its attempt. It cannot be revoked, and its use is not recorded."""
    workspace, session_id, digest, created_at, lease_expires_at = row
    is_right = proves(secret, str(digest))
    if not is_right or lease_expires_at is None or lease_expires_at <= s.now:
        return None
    at = read_instant(created_at)
    return Token(
        id=token_id,
        workspace=Workspace(workspace),
        role=Role.AGENT,
        name=session_id,
        created_at=at,
        expires_at=read_instant(lease_expires_at),
        last_used_at=s.now,
        revoked_at=None,
        session_id=session_id,
    )


def is_long_ago(token: Token, now: Instant) -> bool:
    return token.last_used_at is None or token.last_used_at <= after(now, -TOUCH_SECONDS)


def touch(s: Scope, token_id: str) -> None:
    s.run(TOUCH, id=token_id, now=s.now)


def _read(s: Scope, row: Row) -> Token:
    own, _ = cut(row, ROWS)
    return ROWS.read(s.where, own)

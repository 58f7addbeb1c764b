"""Owns the shapes of ids: how they are made, and which ones are accepted."""

from __future__ import annotations

import re

from holdfast.clock import Instant, to_datetime
from holdfast.domain.inputs import check_name
from holdfast.errors import InvalidInput

# hook processes import this module, and do without typing
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import NewType

    SessionId = NewType("SessionId", str)
    ConversationId = NewType("ConversationId", str)
    RuntimeId = NewType("RuntimeId", str)
    ProviderSessionId = NewType("ProviderSessionId", str)
    ApprovalId = NewType("ApprovalId", str)
    AttemptId = NewType("AttemptId", str)
    TokenId = NewType("TokenId", str)
    Workspace = NewType("Workspace", str)
else:
    SessionId = ConversationId = RuntimeId = ProviderSessionId = ApprovalId = str
    AttemptId = TokenId = Workspace = str

MAX_ID = 128
_SHORT, _SHORTEST = 12, 4
_ALPHANUMERIC = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_OF_IDS = _ALPHANUMERIC | frozenset("._:@+=-")
# compiled when they are used: a hook process uses neither
_BEGINNING = r"agent-[0-9]{8}(-|\Z)"
_PROVIDER = r"[a-z][a-z0-9_-]{0,31}\Z"


def make_session_id(at: Instant, entropy: bytes) -> SessionId:
    """``agent-20260108-180530-abc12345``: UTC time and 8 hex digits of the given randomness."""
    return SessionId(f"agent-{_stamp(at, entropy)}")


def short_id(session_id: str) -> str:
    """What a list shows of an id, and what names the session: all of a short one, otherwise the end."""
    if len(session_id) <= _SHORT:
        return session_id
    end = session_id[-8:].lstrip("._:@+=-")
    return end if len(end) >= _SHORTEST else session_id


def make_approval_id(at: Instant, entropy: bytes) -> ApprovalId:
    return ApprovalId(f"apr-{_stamp(at, entropy)}")


def make_attempt_id(entropy: bytes) -> AttemptId:
    """16 hex digits of the given randomness. The request that an agent is sent carries the id, so that it is recognised later."""
    return AttemptId(entropy[:8].hex())


def _stamp(at: Instant, entropy: bytes) -> str:
    date, _, time = to_datetime(at).isoformat()[:19].partition("T")
    return f"{date.replace('-', '')}-{time.replace(':', '')}-{entropy[:4].hex()}"


def conversation_of(session_id: SessionId) -> ConversationId:
    """The id of the conversation that is made together with a session; no two sessions get the same."""
    if session_id.startswith("agent-"):
        return ConversationId("conv-" + session_id.removeprefix("agent-"))
    return ConversationId("conversation-" + session_id)


def check_id(field: str, text: object) -> str:
    """Checks an id: letters, digits and ``. _ : @ + = -``, at most 128 characters; a word, never a path."""
    if not isinstance(text, str):
        raise InvalidInput(field, f"must be text, not {type(text).__name__}")
    if not text:
        raise InvalidInput(field, "must not be empty")
    if len(text) > MAX_ID:
        raise InvalidInput(field, f"is {len(text)} characters long; the limit is {MAX_ID}")
    if text[0] not in _ALPHANUMERIC or not _OF_IDS.issuperset(text) or ".." in text:
        raise InvalidInput(field, f"{text[:40]!r} is not an id (letters, digits and . _ : @ + = -)")
    return text


def is_provider(text: str) -> bool:
    return re.match(_PROVIDER, text) is not None


def check_session_name(text: object) -> str:
    """Checks a session's name. Raises InvalidInput if it looks like an id, or like the beginning of one."""
    name = check_name("name", text)
    if re.match(_BEGINNING, name):
        raise InvalidInput("name", f"{name!r} looks like the id of a session")
    return name


def check_provider(text: object) -> str:
    if not isinstance(text, str) or not is_provider(text):
        raise InvalidInput("provider", f"{str(text)[:40]!r} is not a provider's name, such as claude")
    return text


def check_workspace(text: object) -> Workspace:
    return Workspace(check_id("workspace", text))

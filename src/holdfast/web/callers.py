"""Owns telling callers by their tokens; what was found out is believed for a second, but for agents' tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from holdfast.domain.tokens import Token, digest_of, split_token
from holdfast.errors import Unauthenticated
from holdfast.web.access import ANYONE, Caller

#: a token that is revoked stops working after no more than this
BELIEVED_SECONDS: Final = 1.0
_MOST_REMEMBERED: Final = 10_000
_SCHEME: Final = "bearer "


class TokenBook(Protocol):
    def asks_for_tokens(self) -> bool: ...

    def check_token(self, token_id: str, secret: str) -> Token | None: ...


class Callers:
    def __init__(self, book: TokenBook, seconds: Callable[[], float] = time.monotonic) -> None:
        self._book = book
        self._seconds = seconds
        self._closed = False
        self._asked_at = -BELIEVED_SECONDS
        #: by the digest of the whole token: the secrets themselves are not kept
        self._known: dict[str, tuple[float, Caller]] = {}

    def need_tokens(self) -> bool:
        """Whether anyone ever made a token; then it stays so."""
        if not self._closed:
            self._closed = self._book.asks_for_tokens()
            self._asked_at = self._seconds()
        return self._closed

    def remembered(self, authorization: Sequence[str]) -> Caller | None:
        """Without asking the store; None if that has to be asked."""
        now = self._seconds()
        if not self._closed and now - self._asked_at < BELIEVED_SECONDS:
            return ANYONE
        at, caller = self._found(authorization)
        # an agent's token ends with its lease, at once
        is_agent = caller is not None and caller.session_id is not None
        return caller if now - at < BELIEVED_SECONDS and not is_agent else None

    def last_known(self, authorization: Sequence[str]) -> Caller | None:
        """Whose token it was when the store was last asked, however long ago: not enough to let them in."""
        return self._found(authorization)[1]

    def identify(self, authorization: Sequence[str]) -> Caller:
        """By the headers of a request; Unauthenticated says nothing about what was wrong with the token."""
        if not self.need_tokens():
            return ANYONE
        if len(authorization) != 1:
            raise Unauthenticated("send one header: Authorization: Bearer hft_…")
        (header,) = authorization
        parts = split_token(header[len(_SCHEME) :].strip()) if header.lower().startswith(_SCHEME) else None
        token = None if parts is None else self._book.check_token(*parts)
        if token is None:
            self._known.pop(digest_of(header), None)
            raise Unauthenticated("the token is not known here, or is not good any more")
        caller = Caller(token.id, token.role, token.workspace, token.name, token.session_id)
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
        self._known[digest_of(header)] = (self._seconds(), caller)
        return caller

    def _found(self, authorization: Sequence[str]) -> tuple[float, Caller | None]:
        nobody = (-BELIEVED_SECONDS, None)
        return self._known.get(digest_of(authorization[0]), nobody) if len(authorization) == 1 else nobody

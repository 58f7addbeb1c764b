"""Owns the verbs on approvals: asking, listing, answering."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from holdfast.domain.approvals import MAX_WORDS, Answer, Approval, NewApproval, check_note, expiry
from holdfast.domain.ids import check_id, make_approval_id
from holdfast.domain.inputs import check_name, check_text
from holdfast.domain.metadata import encode_metadata
from holdfast.domain.redaction import Json
from holdfast.engine.sessions import Sessions
from holdfast.errors import InvalidInput
from holdfast.notifying import approval_notice, notify
from holdfast.processes.owners import this_user

_MOST_SECONDS = 100 * 365 * 24 * 3600


class Approvals(Sessions):
    def request_approval(
        self,
        session_id: str,
        what: str,
        arguments: Mapping[str, Json] | None = None,
        *,
        expires: float | None = None,
        answerers: Collection[str] = (),
    ) -> Approval:
        """Ask people, and put the session into phase ``approval``; nothing waits for the answer.

        ``expires`` are seconds; None: as configured. ``answerers``: only they may answer, else anyone.
        """
        if not check_text("what", what, limit=MAX_WORDS).strip():
            raise InvalidInput("what", "must not be empty")
        given = {} if arguments is None else arguments
        encode_metadata(given, "arguments")
        seconds = self.policy.approvals.expires_seconds if expires is None else expires
        if seconds is not None and not 0 < seconds <= _MOST_SECONDS:
            raise InvalidInput("expires", f"must be above 0 and at most {_MOST_SECONDS} seconds")
        session = self.session(session_id)
        new = NewApproval(
            make_approval_id(self._clock(), os.urandom(4)),
            what,
            dict(given),
            expiry(self.store.now(), seconds),
            frozenset(check_name("answerer", name) for name in answerers),
            session.agent,
        )
        asked = self.store.request_approval(session.id, new)
        notify(self.policy.notify, approval_notice(asked, session.agent))
        return asked

    def approvals(
        self,
        session_id: str | None = None,
        *,
        open_only: bool = True,
        after: str | None = None,
        limit: int = 1000,
    ) -> tuple[Approval, ...]:
        """Oldest first, those behind ``after``. Open ones are those without an answer, expired ones included."""
        if session_id is not None:
            check_id("session", session_id)
        return self.store.approvals(session_id=session_id, open_only=open_only, after=after, limit=limit)

    def approval(self, given: str) -> Approval:
        """By id, by the unique beginning of one, or by a session that has exactly one open."""
        return self.store.get_approval(self.store.find_approval(check_name("approval", given)))

    def approve(
        self,
        given: str,
        note: str | None = None,
        *,
        by: str | None = None,
        arguments_hash: str | None = None,
        nonce: str | None = None,
    ) -> Approval:
        """Once. ``arguments_hash`` and ``nonce``: refused unless it is this that was asked."""
        return self._answer(given, True, note, by, (arguments_hash, nonce))

    def deny(
        self,
        given: str,
        note: str | None = None,
        *,
        by: str | None = None,
        arguments_hash: str | None = None,
        nonce: str | None = None,
    ) -> Approval:
        """As ``approve``; the note tells the agent why, which otherwise hears that no reason was given."""
        return self._answer(given, False, note, by, (arguments_hash, nonce))

    def _answer(
        self,
        given: str,
        approved: bool,
        note: str | None,
        by: str | None,
        binds: tuple[str | None, str | None],
    ) -> Approval:
        check_note(note)
        asked = self.approval(given)
        arguments_hash, nonce = binds
        answer = Answer(
            approved,
            this_user() if by is None else check_name("by", by),
            asked.arguments_hash if arguments_hash is None else arguments_hash,
            asked.nonce if nonce is None else nonce,
            note,
        )
        return self.store.answer_approval(asked.id, answer)

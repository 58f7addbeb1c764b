"""Owns the verbs on conversations: their history, their turns, and the decision."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import PurePath
from types import MappingProxyType

from holdfast.domain.conversations import Conversation, HistoryTurn
from holdfast.domain.decisions import Decision
from holdfast.domain.guards import not_for_others
from holdfast.domain.ids import ProviderSessionId, RuntimeId, check_id, check_provider
from holdfast.domain.inputs import check_name, check_text, check_whole
from holdfast.domain.pointers import Rights
from holdfast.domain.runtimes import KnownRuntime, Runtime
from holdfast.domain.sessions import Session
from holdfast.domain.telling.context import says_continue
from holdfast.domain.turns import Claim, ClaimRequest, NewTurn, Turn, TurnRequest, TurnStatus
from holdfast.domain.usage import NO_USAGE, Usage
from holdfast.engine.approvals import Approvals
from holdfast.engine.explain import Explanation, Tree, WaitingTurn
from holdfast.engine.past import newest_turn, unsent_request, was_stopped
from holdfast.errors import InvalidInput
from holdfast.store.contract import Store

#: the ids that turns get inside ``Conversations.provider_session``, by handle; explicit, so they beat configuration
_task_ids: ContextVar[Mapping[int, ProviderSessionId]] = ContextVar(
    "holdfast_provider_session", default=MappingProxyType({})
)


class Conversations(Approvals):
    """Sessions, approvals, conversations, turns and decisions; the verbs raise the typed errors of ``holdfast.errors``."""

    # --- conversations ---

    def history(
        self, session_id: str, limit: int | None = None, *, before: int | None = None
    ) -> tuple[HistoryTurn, ...]:
        """The current history of the session's conversation, oldest first; with ``limit``, its newest turns."""
        last = None if before is None else before - 1
        return self.store.history(self.session(session_id).conversation_id, last=last, limit=limit)

    def edit(
        self, session_id: str, seq: int, *, prompt: str | None = None, response: str | None = None
    ) -> HistoryTurn:
        for field, text in (("prompt", prompt), ("response", response)):
            if text is not None:
                check_text(field, text)
        return self.store.edit_turn(
            check_id("session", session_id),
            check_whole("turn", seq, lowest=1),
            prompt=prompt,
            response=response,
        )

    def truncate(self, session_id: str, keep: int) -> Conversation:
        """Drop every turn after ``keep``."""
        return self.store.truncate(check_id("session", session_id), check_whole("turn", keep))

    def retry(self, session_id: str, seq: int, prompt: str | None = None) -> Turn:
        if prompt is not None:
            check_text("prompt", prompt)
        return self.store.retry_turn(
            check_id("session", session_id), check_whole("turn", seq, lowest=1), prompt=prompt
        )

    def new(self, session_id: str) -> Conversation:
        """Begin again with an empty history."""
        return self.store.new_generation(check_id("session", session_id))

    def tree(self, session_id: str) -> Tree:
        """The whole family of forks this session belongs to."""
        return Tree.of(self.store, check_id("session", session_id))

    # --- turns ---

    @contextmanager
    def provider_session(self, provider_session_id: str) -> Iterator[None]:
        """Every turn put in inside the block asks for this provider session, whatever the configuration.

        Undone at the end of the block, also when there was none before.
        """
        task_id = ProviderSessionId(check_id("provider_session_id", provider_session_id))
        token = _task_ids.set({**_task_ids.get(), id(self): task_id})
        try:
            yield
        finally:
            _task_ids.reset(token)

    def enqueue(self, session_id: str, prompt: str, new: NewTurn | None = None) -> Turn:
        """Put a turn into the queue; ``new`` carries everything besides the prompt.

        To continue a request that never reached an agent is to send it. Refused for the provider session of another
        session, asked for by name.
        """
        turn = self._turn(check_id("session", session_id), prompt, new)
        if turn.request.provider_session_id is not None:
            refuse_of_others(self.store, turn.provider, turn.request.provider_session_id, session_id)
        return self.store.enqueue_turn(session_id, replace(turn, prompt=self.meant_by(session_id, prompt)))

    def stopped_turn(self, session_id: str) -> Turn | None:
        """The newest turn of a session, if it waits to be run, or was stopped before it ended."""
        last = newest_turn(self.store, self.session(session_id).id)
        return last if last is not None and was_stopped(last) else None

    def meant_by(self, session_id: str, prompt: str, *, at: int | None = None) -> str:
        """The prompt; or, if it only says to continue, the request of the stopped turn, if no agent was sent that.

        ``at``: only a turn up to this one is meant.
        """
        stopped = self.stopped_turn(session_id) if says_continue(prompt) else None
        if stopped is None or (at is not None and stopped.seq > at):
            return prompt
        request = unsent_request(self.store, stopped)
        return prompt if request is None else request.prompt

    def record(
        self,
        session_id: str,
        prompt: str,
        response: str | None,
        new: NewTurn | None = None,
        usage: Usage = NO_USAGE,
    ) -> Turn:
        """A turn that was run elsewhere and has already ended."""
        if response is not None:
            check_text("response", response)
        turn = self._turn(session_id, prompt, new)
        return self.store.record_turn(check_id("session", session_id), turn, response, usage)

    def claim(self, runtime: Runtime, owner: str, *, key: str | None = None) -> Claim | None:
        """The next turn for this runtime, decided and leased; give ``key`` to repeat a call whose reply was lost."""
        queue = self.policy.queue
        return self.store.claim_turn(
            ClaimRequest(
                runtime, owner, key or os.urandom(16).hex(), queue.lease_seconds,
                affinity_seconds=queue.affinity_seconds,
            )
        )  # fmt: skip

    def cancel(self, session_id: str, seq: int) -> Turn:
        return self.store.cancel_turn(check_id("session", session_id), check_whole("turn", seq, lowest=1))

    # --- the decision ---

    def decide(
        self,
        session_id: str,
        provider: str | None = None,
        *,
        request: TurnRequest | None = None,
        runtime: Runtime | None = None,
    ) -> Decision:
        """What would happen if the next turn were claimed now. Changes nothing.

        Without a request, the turn that waits at the head of the session's queue is meant, if there is one.
        """
        session = self.session(session_id)
        asked = (
            None
            if request is None and id(self) not in _task_ids.get()
            else self.asked(request or TurnRequest())
        )
        return self.store.explain(session.id, self.provider_of(session, provider), asked, runtime)

    def why(self, session_id: str, provider: str | None = None) -> Explanation:
        """May it go on, how (if it goes on where it ran before), and what was decided the last time."""
        session = self.session(session_id)
        chosen = self.provider_of(session, provider)
        pointer = self.store.pointer(session.id, chosen)
        last = self.store.newest_attempt(session.id)
        ran = pointer if pointer is not None or last is None or last.provider != chosen else last
        recorded = None if ran is None else ran.runtime_id
        known = {one.id: one for one in self.store.runtimes()}
        runtime = known[recorded].runtime if recorded in known else None
        asked = self.store.approvals(session_id=session.id)
        return Explanation(
            session=session,
            may_continue=self.may_continue(session.id),
            provider=chosen,
            decision=self.store.explain(session.id, chosen, runtime=runtime),
            runtime=runtime,
            last_attempt=last,
            last_turn=None if last is None else self.store.get_turn(last.conversation_id, last.seq),
            waiting=self._waiting(session.id, known),
            waits_for=next((approval for approval in asked if approval.seq is not None), None),
        )

    def waiting(self, session_id: str) -> WaitingTurn | None:
        """The turn that comes next, if it waits in the queue."""
        known = {one.id: one for one in self.store.runtimes()}
        return self._waiting(session_id, known)

    def _waiting(self, session_id: str, known: Mapping[RuntimeId, KnownRuntime]) -> WaitingTurn | None:
        head = self.store.head_turn(session_id)
        if head is None or head.status is not TurnStatus.QUEUED:
            return None
        is_early = head.not_before is not None and head.not_before > self.store.now()
        runtime = None if head.runtime_id is None else known.get(head.runtime_id)
        return WaitingTurn(head, head.not_before if is_early else None, runtime)

    def provider_of(self, session: Session, given: str | None) -> str:
        """The one asked for, the session's own, that of its pointer, or the default."""
        if given is not None:
            return check_provider(given)
        if session.provider is not None:
            return session.provider
        pointers = self.store.pointers(session.id)
        return pointers[0].provider if pointers else self.policy.run.provider

    def _turn(self, session_id: str, prompt: str, new: NewTurn | None) -> NewTurn:
        if new is None:
            new = NewTurn("", self.provider_of(self.session(session_id), None))
        check_turn(prompt, new, accepted=accepted_arguments(self.store, session_id, new.request))
        return replace(new, prompt=prompt, request=self.asked(new.request))

    def asked(self, request: TurnRequest) -> TurnRequest:
        if request.provider_session_id is not None:
            check_id("provider_session_id", request.provider_session_id)
        task_id = _task_ids.get().get(id(self))
        if task_id is None or request.provider_session_id is not None:
            return request
        return replace(request, provider_session_id=task_id)


def refuse_of_others(store: Store, provider: str, named: ProviderSessionId, session_id: str | None) -> None:
    """Who owns a provider session that is asked for by name is known before a turn is put in."""
    owner = store.owner_of(provider, named, session_id)
    if owner is not None:
        is_closed = store.get_session(owner).phase.is_final
        raise not_for_others(provider, named, owner, is_closed=is_closed)


def accepted_arguments(store: Store, session_id: str, request: TurnRequest) -> frozenset[tuple[str, ...]]:
    """Those that an agent of this session was launched with: somebody may give them, and accepted them then."""
    if request.rights is None or not request.rights.extra_args:
        return frozenset()
    launched = [pointer.rights for pointer in store.pointers(session_id)]
    newest = store.newest_attempt(session_id)
    if newest is not None and newest.process is not None:
        launched.append(newest.rights)
    return frozenset(rights.extra_args for rights in launched if rights is not None)


def check_turn(prompt: str, new: NewTurn, *, accepted: Collection[tuple[str, ...]] = ()) -> None:
    """Whoever runs it works in another directory: a relative one would mean something else there.

    ``accepted``: arguments for the agent that were accepted before.
    """
    check_text("prompt", prompt)
    check_provider(new.provider)
    request = new.request
    if request.model is not None:
        check_name("model", request.model)
    directories = {
        "cwd": (request.work_dir,),
        "extra_dirs": request.rights.extra_dirs if request.rights else (),
    }
    for field, given in directories.items():
        for directory in filter(None, given):
            if not PurePath(check_text(field, directory)).is_absolute():
                raise InvalidInput(field, f"{directory} must be absolute")
    if request.rights is not None:
        allow_wider = request.allow_wider_rights or request.rights.extra_args in accepted
        _check_rights(request.rights, new.provider, allow_wider)


def _check_rights(rights: Rights, provider: str, allow_wider: bool) -> None:
    """As far as it is one of ours. Of another provider no argument is known to be harmless."""
    from holdfast.engine.rights import check_rights  # brings the providers
    from holdfast.providers.registry import get_provider, is_provider

    if is_provider(provider):
        check_rights(rights, get_provider(provider), allow_wider=allow_wider)
    elif rights.extra_args and not allow_wider:
        raise InvalidInput(
            "provider arguments",
            f"nothing is known about those of {provider}; --allow-wider-rights accepts them",
        )

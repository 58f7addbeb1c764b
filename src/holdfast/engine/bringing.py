"""Owns taking over sessions that a provider keeps and Holdfast does not know yet: by id, its beginning, or title."""

from __future__ import annotations

from pathlib import Path

from holdfast.domain.conversations import SeenTurns
from holdfast.domain.ids import SessionId
from holdfast.domain.inputs import clean_text
from holdfast.domain.pointers import NO_RIGHTS, NOTHING_YET, Pointer
from holdfast.domain.policy import Policy
from holdfast.domain.records import record
from holdfast.domain.sessions import NewSession, SessionKind
from holdfast.domain.telling.context import current_request
from holdfast.domain.telling.quoting import on_one_line
from holdfast.domain.usage import NO_CALL_YET
from holdfast.engine.running.agents import Agent, Agents
from holdfast.engine.running.provider_sessions import adopt_outside_turns
from holdfast.errors import AmbiguousId, NotFound, Refused
from holdfast.providers.contract import StoredSession
from holdfast.store.contract import Store

_SHORTEST_BEGINNING = 4  #: of an id; a shorter text is hardly meant as one
_MOST_NAMED = 10  #: of those that a text fits
_LONGEST_PURPOSE = 200


@record
class Brought:
    session_id: SessionId
    provider: str
    stored: StoredSession
    turns: int  #: how many turns this call added to the history
    is_new: bool  #: this call created the session


def bring(store: Store, agents: Agents, policy: Policy, given: str, new_id: SessionId) -> Brought:
    """Find the session that a provider session belongs to; if it belongs to none, create the session ``new_id`` for it.

    Raises NotFound if no provider keeps such a session here, AmbiguousId if several fit, and MissingBinary if its
    provider is not installed. Nothing in the provider's files changes.
    """
    provider, stored = _the_only(given, _matching(agents, given))
    owner = store.owner_of(provider, stored.id)
    if owner is None:
        try:
            _create(store, agents.get(provider), stored, new_id)
        except Refused:
            owner = store.owner_of(provider, stored.id)  # somebody else brings it at this moment
            if owner is None:
                raise
    session_id = owner or new_id
    turns = _adopt(store, agents, policy, session_id, provider)
    return Brought(session_id, provider, stored, turns, is_new=owner is None)


def _matching(agents: Agents, given: str) -> list[tuple[str, StoredSession]]:
    """The sessions whose ids begin with the given text; without any, those that have it as their title."""
    archives = list(agents.archives())
    if len(given) >= _SHORTEST_BEGINNING:
        found = [(name, one) for name, archive in archives for one in archive.sessions(given)]
        if found:
            return found
    title = given.casefold()
    every = ((name, one) for name, archive in archives for one in archive.sessions())
    return [(name, one) for name, one in every if (one.title or "").casefold() == title]


def _the_only(given: str, found: list[tuple[str, StoredSession]]) -> tuple[str, StoredSession]:
    """If several match, only those of the current directory count, where there are any."""
    if len(found) > 1:
        here = str(Path.cwd())
        found = [each for each in found if each[1].work_dir == here] or found
    if not found:
        raise NotFound("session", given)
    if len(found) > 1:
        shown = (f"{one.id} ({name}, {one.work_dir or 'no directory'})" for name, one in found[:_MOST_NAMED])
        raise AmbiguousId(given, tuple(shown), "agent session")
    return found[0]


def _create(store: Store, agent: Agent, stored: StoredSession, new_id: SessionId) -> None:
    provider = agent.provider.name
    first = next(iter(agent.archive.turns(stored.path, stored.id)), None)
    if first is None:
        raise Refused("nothing_to_resume", f"{provider} session {stored.id} holds no turn yet")
    now = store.now()
    asked = stored.title or current_request(first.prompt)
    new = NewSession(
        id=new_id,
        agent=provider,
        purpose=clean_text(on_one_line(asked, _LONGEST_PURPOSE)),
        kind=SessionKind.CONVERSATION,
        provider=provider,
        began_at=first.began_at or now,
    )
    # rights that nobody has recorded are the provider's default: a bypass is never assumed
    pointer = Pointer(
        new_id, provider, stored.id, agent.runtime.id, stored.work_dir or str(Path.cwd()), None, None, None,
        SeenTurns(), NO_RIGHTS, NOTHING_YET, NO_CALL_YET, agent.runtime.version, now,
    )  # fmt: skip
    store.register_runtime(agent.runtime)
    store.adopt_session(new, pointer)


def _adopt(store: Store, agents: Agents, policy: Policy, session_id: SessionId, provider: str) -> int:
    """Returns how many turns have joined the history: 0 if the agent of the session is not installed here."""
    situation = store.situation(session_id, provider)
    pointer = situation.pointer
    agent = None if pointer is None else agents.of_runtime(provider, pointer.runtime_id)
    if agent is None or situation.session.phase.is_final:
        return 0
    return adopt_outside_turns(store, agent, policy.resume, situation).adopted

"""Owns the verbs that hooks use, each one transaction: the store's on any engine, and a hook's own on SQLite."""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Concatenate, ParamSpec, TypeVar

    from holdfast.domain.delegations import (
        Delegated,
        Delegation,
        DelegationEnd,
        EndedDelegation,
        NewDelegation,
        Question,
    )
    from holdfast.domain.observed import ObservedSession, Sighting
    from holdfast.domain.telling.welcome import Welcome
    from holdfast.store.sql.scope import Scope

    P = ParamSpec("P")
    T = TypeVar("T")


class HookVerbs:
    """See ``contract.Store`` for what each verb promises. Each imports what it needs: a light process uses few."""

    def _write(self, work: Callable[Concatenate[Scope, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A whole transaction."""
        raise NotImplementedError

    def delegate(self, new: NewDelegation) -> Delegated:
        from holdfast.store.sql import delegations

        return self._write(delegations.delegate, new)

    def ask_delegation(self, question: Question) -> Delegated:
        from holdfast.store.sql import delegations

        return self._write(delegations.ask, question)

    def end_delegation(self, end: DelegationEnd) -> EndedDelegation | None:
        from holdfast.store.sql import delegations

        return self._write(delegations.end, end)

    def open_delegations(
        self, agent: str | None = None, project: str | None = None
    ) -> tuple[Delegation, ...]:
        from holdfast.store.sql import delegations

        return self._write(delegations.open_ones, agent, project)

    def lose_delegations(self, provider_session_id: str) -> int:
        from holdfast.store.sql import delegations

        return self._write(delegations.lose_all, provider_session_id)

    def observe_session(self, seen: Sighting) -> ObservedSession:
        from holdfast.store.sql import observed

        return self._write(observed.observe, seen)

    def observed_session(self, provider: str, provider_session_id: str) -> ObservedSession | None:
        from holdfast.store.sql import observed

        return self._write(observed.one, provider, provider_session_id)

    def welcome(
        self, provider: str, provider_session_id: str, project: str, besides: str | None = None
    ) -> Welcome:
        from holdfast.store.sql import welcomes

        return self._write(welcomes.gather, provider, provider_session_id, project, besides)

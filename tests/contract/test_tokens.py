"""Owns the clauses on tokens: made, listed and revoked in their workspace, and proved by their secret alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from holdfast.clock import after
from holdfast.domain.tokens import NewToken, Role, Token, make_token, split_token
from holdfast.errors import Conflict, InvalidInput, LeaseLost, NotFound
from holdfast.store.contract import Store
from tests.builders import done
from tests.clock import ManualClock
from tests.contract.conftest import MakeStore
from tests.steps import begin, claim, enqueue

_numbers = count(1)


def a_token() -> NewToken:
    return make_token(Role.WORKER, "build machines", None, next(_numbers).to_bytes(6) + bytes(32))[0]


@pytest.mark.makes_tokens
class TestTokens:
    """``create_token``, ``tokens``, ``revoke_token`` and ``agent_token``."""

    def test_an_agents_token_is_made_for_a_lease_and_replaced_with_the_next(self, store: Store) -> None:
        made = store.create_token(a_token())
        session = begin(store)
        enqueue(store, session, "one")
        lease = claim(store, session).lease
        first, second = store.agent_token(lease), store.agent_token(lease)
        assert first is not None
        assert second is not None
        assert split_token(first) != split_token(second)
        assert store.tokens() == (made,), "nobody lists or revokes it"
        store.finish_turn(lease, done())
        with pytest.raises(LeaseLost):
            store.agent_token(lease)

    def test_nobody_makes_an_agents_token_by_hand(self, store: Store) -> None:
        with pytest.raises(InvalidInput, match="role"):
            store.create_token(replace(a_token(), role=Role.AGENT))

    def test_where_no_token_was_made_an_agent_needs_none(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "one")
        assert store.agent_token(claim(store, session).lease) is None
        assert store.tokens() == ()

    def test_a_new_token_is_what_was_asked_for(self, store: Store, clock: ManualClock) -> None:
        new = replace(a_token(), expires_at=after(clock(), 60))
        made = store.create_token(new)
        assert made == Token(
            new.id,
            made.workspace,
            Role.WORKER,
            "build machines",
            created_at=clock(),
            expires_at=new.expires_at,
            last_used_at=None,
            revoked_at=None,
        )
        assert store.tokens() == (made,)

    def test_making_it_again_changes_nothing(self, store: Store, clock: ManualClock) -> None:
        new = a_token()
        made = store.create_token(new)
        clock.advance(60)
        assert store.create_token(new) == made
        with pytest.raises(Conflict):
            store.create_token(replace(new, digest="f" * 64))
        assert store.tokens() == (made,)

    def test_an_id_is_nobody_elses_in_any_workspace(self, store: Store, make_store: MakeStore) -> None:
        new = a_token()
        store.create_token(new)
        with pytest.raises(Conflict):
            make_store(workspace="ours").create_token(new)

    @pytest.mark.parametrize("wrong", [{"id": "x"}, {"digest": "secret"}, {"name": ""}, {"name": "a\nb"}])
    def test_what_is_no_token_is_refused(self, store: Store, wrong: dict[str, str]) -> None:
        with pytest.raises(InvalidInput):
            store.create_token(replace(a_token(), **wrong))  # type: ignore[arg-type]

    def test_it_is_revoked_once_and_stays_listed(self, store: Store, clock: ManualClock) -> None:
        made = store.create_token(a_token())
        other = store.create_token(a_token())
        revoked = store.revoke_token(made.id)
        assert revoked == replace(made, revoked_at=clock())
        clock.advance(60)
        assert store.revoke_token(made.id) == revoked
        assert store.tokens() == (revoked, other)
        with pytest.raises(NotFound):
            store.revoke_token("0" * 12)

"""Every turn that Holdfast runs leaves a copy of the agent's own session in the vault, and none fails because of it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast import Holdfast
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.policy import Policy, VaultPolicy
from holdfast.domain.turns import TurnStatus
from holdfast.engine.result import RunResult
from holdfast.engine.vault import Vault
from holdfast.errors import StoreUnavailable
from holdfast.store.contract import Store
from tests.counted_store import CountedStore
from tests.integration.workshop import OPENING, Workshop


def copy_of(shop: Workshop, result: RunResult) -> bytes | None:
    """What the vault has of the provider session of a turn."""
    store = shop.open().store
    bundle = store.bundle("scripted", ProviderSessionId(result.provider_session_id or ""))
    if bundle is None:
        return None
    assert (bundle.home, bundle.work_dir) == (str(shop.home), str(shop.work_dir))
    return b"".join(Vault(store, VaultPolicy()).read(bundle, bundle.main))


def on_disk(shop: Workshop, result: RunResult) -> bytes:
    return shop.transcript(result.provider_session_id).read_bytes()


def with_vault(**changes: Any) -> Policy:
    return replace(Policy(), vault=VaultPolicy(**changes))


def test_each_turn_is_in_the_vault_when_it_ends(shop: Workshop) -> None:
    first = shop.begin()
    assert copy_of(shop, first) == on_disk(shop, first)
    second = shop.open().resume(first.session_id, "more")
    assert copy_of(shop, second) == on_disk(shop, second)
    branch = shop.open().fork(first.session_id, "another way")
    assert branch.provider_session_id != first.provider_session_id
    assert copy_of(shop, branch) == on_disk(shop, branch)


def test_a_failed_turn_that_its_agent_has_saved_is_in_the_vault(shop: Workshop) -> None:
    failed = shop.begin("FAIL 529 overloaded")
    assert failed.turn_status is not TurnStatus.DONE
    assert copy_of(shop, failed) == on_disk(shop, failed)


def test_turns_made_outside_are_kept_with_the_next_one(shop: Workshop) -> None:
    first = shop.begin()
    shop.by_hand("by hand", "--resume", first.provider_session_id or "")
    second = shop.open().resume(first.session_id, "more")
    assert second.provider_session_id == first.provider_session_id
    assert copy_of(shop, second) == on_disk(shop, second)


@pytest.mark.parametrize(("mode", "is_kept"), [("all", True), ("run", False), ("off", False)])
def test_turns_made_outside_are_in_the_vault_when_the_history_has_them(
    shop: Workshop, mode: str, is_kept: bool
) -> None:
    first = shop.begin()
    before = copy_of(shop, first)
    shop.by_hand("by hand", "--resume", first.provider_session_id or "")
    hf = shop.open(with_vault(mode=mode))
    assert len(hf.adopt(first.session_id)) == 1
    assert [turn.prompt for turn in hf.history(first.session_id)] == [OPENING, "by hand"]
    assert copy_of(shop, first) == (on_disk(shop, first) if is_kept else before)


def test_the_copy_of_turns_made_outside_is_there_before_the_pointer_moves(shop: Workshop) -> None:
    first = shop.begin()
    shop.by_hand("by hand", "--resume", first.provider_session_id or "")
    counted = CountedStore(shop.open().store)
    Holdfast(counted.as_store, shop.policy, environ=shop.environ).adopt(first.session_id)
    assert counted.calls.index("keep_bundles") < counted.calls.index("adopt_turns")


@pytest.mark.parametrize("verb", ["bundle", "keep_bundles"])
def test_a_vault_that_fails_keeps_no_turn_made_outside_from_the_history(shop: Workshop, verb: str) -> None:
    first = shop.begin()
    shop.by_hand("by hand", "--resume", first.provider_session_id or "")
    holdfast = Holdfast(failing(shop.open().store, verb), shop.policy, environ=shop.environ)
    assert len(holdfast.adopt(first.session_id)) == 1


def test_the_copy_is_there_before_the_turn_ends(shop: Workshop) -> None:
    """Whoever kills Holdfast in between leaves a copy, and never a pointer without one."""
    seen: list[bytes | None] = []

    class Watched(CountedStore):
        def __getattr__(self, name: str) -> Any:
            if name == "finish_turn":
                bundle = self._store.vault_entries()[0]
                kept = self._store.bundle("scripted", bundle.provider_session_id)
                assert kept is not None
                seen.append(b"".join(Vault(self._store, VaultPolicy()).read(kept, kept.main)))
            return super().__getattr__(name)

    store = Watched(shop.open().store)
    result = Holdfast(store.as_store, shop.policy, environ=shop.environ).run(
        OPENING, provider="scripted", cwd=str(shop.work_dir)
    )
    assert seen == [on_disk(shop, result)]


def test_a_vault_that_is_off_is_not_asked(shop: Workshop) -> None:
    counted = CountedStore(shop.open().store)
    holdfast = Holdfast(counted.as_store, with_vault(mode="off"), environ=shop.environ)
    result = holdfast.run(OPENING, provider="scripted", cwd=str(shop.work_dir))
    assert not {"bundle", "keep_bundles"} & set(counted.calls)
    assert copy_of(shop, result) is None
    assert result.notices == ()


def test_the_mode_run_keeps_turns_that_run(shop: Workshop) -> None:
    result = shop.open(with_vault(mode="run")).run(OPENING, provider="scripted", cwd=str(shop.work_dir))
    assert copy_of(shop, result) == on_disk(shop, result)


def test_a_full_vault_is_said_and_fails_no_turn(shop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    result = shop.open(with_vault(limit_bytes=10)).run(OPENING, provider="scripted", cwd=str(shop.work_dir))
    assert result.turn_status is TurnStatus.DONE
    (notice,) = result.notices
    assert notice.startswith("the vault has no copy of this turn: the vault is full: its limit is 10 bytes")
    assert "the vault is full" in caplog.text
    assert copy_of(shop, result) is None
    again = shop.open().resume(result.session_id, "more")
    assert (again.notices, copy_of(shop, again)) == ((), on_disk(shop, again))


def failing(store: Store, verb: str) -> Store:
    def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable("the database", "the disk is full")

    class Failing:
        def __getattr__(self, name: str) -> Callable[..., object]:
            return fail if name == verb else cast(Callable[..., object], getattr(store, name))

    return cast(Store, Failing())


@pytest.mark.parametrize("verb", ["bundle", "keep_bundles"])
def test_a_vault_that_fails_fails_no_turn(shop: Workshop, verb: str) -> None:
    first = shop.begin()
    holdfast = Holdfast(failing(shop.open().store, verb), shop.policy, environ=shop.environ)
    second = holdfast.resume(first.session_id, "more")
    assert second.turn_status is TurnStatus.DONE
    assert second.notices == ("the vault has no copy of this turn: the database: the disk is full",)
    assert on_disk(shop, second).startswith(copy_of(shop, second) or b"nothing")
    third = shop.open().resume(first.session_id, "and more")
    assert copy_of(shop, third) == on_disk(shop, third)


def test_a_transcript_that_is_lost_can_be_read_from_the_vault(shop: Workshop, tmp_path: Path) -> None:
    result = shop.begin()
    before = on_disk(shop, result)
    shop.transcript(result.provider_session_id).unlink()
    assert copy_of(shop, result) == before


def test_a_removed_session_leaves_nothing_that_is_referred_to(shop: Workshop) -> None:
    result = shop.begin()
    shop.open().remove(result.session_id)
    assert copy_of(shop, result) is None
    assert shop.open().store.vault_figures().bundles == 0

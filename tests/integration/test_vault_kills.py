"""Mirroring into the vault that is killed at any point leaves whole copies only, and the next one completes them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.clock import SECOND, Instant, system_clock
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.policy import Policy, VaultPolicy
from holdfast.domain.vault import LOOSE_HOURS
from holdfast.engine import vault as engine_vault
from holdfast.engine.vault import Vault, VaultSource, branch_of
from holdfast.providers.contract import SessionFile
from holdfast.store.contract import Store
from holdfast.store.open import open_store
from holdfast.store.sql_store import SqlStore
from tests.integration.mortal import killed_everywhere

ID, OTHER = ProviderSessionId("6a13a176"), ProviderSessionId("7b24b287")
#: of a chunk here: a file of a few of them takes several calls
SMALL = 1000


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/holdfast.db"
    return str(request.getfixturevalue("emptied_postgres_url"))


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_store(url, durability="normal")) as store:
        yield store


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    return home


def noise(chunks: float, seed: int = 1) -> bytes:
    """No two chunks of it are the same."""
    return random.Random(seed).randbytes(int(chunks * SMALL))


def keep(store: Store, home: Path, native: ProviderSessionId = ID, limit: int | None = None) -> None:
    """In many calls, as a large file is kept."""
    rules = VaultPolicy() if limit is None else VaultPolicy(limit_bytes=limit)
    assert isinstance(store, SqlStore)
    store._policy = Policy(vault=rules)
    names = sorted(file.name for file in home.iterdir() if file.name.startswith(native))
    files = tuple(SessionFile(name, str(home / name), is_main=name == native) for name in names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_vault, "MAX_CHUNK", SMALL)
        patch.setattr(engine_vault, "_MOST_WAITING", 4 * SMALL)
        patch.setattr(engine_vault, "MAX_CALL_BYTES", 2 * SMALL)
        Vault(store, rules).keep(VaultSource("claude", native, files, str(home), None, "/w/app"))


def copies(store: Store, native: ProviderSessionId = ID) -> dict[str, dict[str, bytes]]:
    """What the vault has of a session, by branch and file. Each piece is compared with its digest as it is read."""
    vault = Vault(store, VaultPolicy())
    return {
        bundle.branch: {file.name: b"".join(vault.read(bundle, file)) for file in bundle.files}
        for bundle in store.bundles("claude", native)
    }


def nothing_is_left_over(url: str, store: Store) -> None:
    """A day later, what killed processes have left is deleted, and everything that is kept can still be read."""
    before = copies(store)
    tomorrow = Instant(system_clock() + (LOOSE_HOURS + 1) * 3600 * SECOND)
    with closing(open_store(url, durability="normal", clock=lambda: tomorrow)) as later:
        while later.sweep_vault().chunks:
            pass
    figures = store.vault_figures()
    used = {
        part.digest for bundle in store.bundles("claude", ID) for file in bundle.files for part in file.parts
    }
    assert (figures.loose_chunks, figures.chunks) == (0, len(used))
    assert copies(store) == before


def test_a_first_copy(url: str, store: Store, home: Path) -> None:
    files = {ID: noise(11.5), f"{ID}-side": noise(2, 2)}
    for name, content in files.items():
        (home / name).write_bytes(content)
    for _ in killed_everywhere(keep, url, home):
        assert copies(store) in ({}, {"": files})
    assert copies(store) == {"": files}
    nothing_is_left_over(url, store)


def test_a_file_that_has_grown(url: str, store: Store, home: Path) -> None:
    whole = noise(15.5)
    before = whole[: 4 * SMALL + 7]
    for content in (before, whole):
        (home / ID).write_bytes(content)
        for _ in killed_everywhere(keep, url, home):
            assert copies(store) in ({}, {"": {ID: before}}, {"": {ID: whole}})
        assert copies(store) == {"": {ID: content}}
    nothing_is_left_over(url, store)


def test_a_file_that_went_another_way(url: str, store: Store, home: Path) -> None:
    before, other = noise(5), noise(7, 2)
    (home / ID).write_bytes(before)
    keep(store, home)
    (own,) = store.bundles("claude", ID)
    both = {"": {ID: other}, branch_of(own.files): {ID: before}}
    (home / ID).write_bytes(other)
    for _ in killed_everywhere(keep, url, home):
        assert copies(store) in ({"": {ID: before}}, both)
    assert copies(store) == both
    nothing_is_left_over(url, store)


def tidy(store: Store) -> None:
    Vault(store, VaultPolicy()).tidy()


def test_small_parts_that_are_joined(url: str, store: Store, home: Path) -> None:
    whole = noise(6)
    for size in range(500, len(whole) + 1, 500):
        (home / ID).write_bytes(whole[:size])
        keep(store, home)
    (scattered,) = store.vault_entries()
    for _ in killed_everywhere(tidy, url):
        assert copies(store) == {"": {ID: whole}}
    (joined,) = store.vault_entries()
    assert (scattered.parts, joined.parts) == (12, 1)
    assert copies(store) == {"": {ID: whole}}
    nothing_is_left_over(url, store)


def test_room_that_is_made_in_a_full_vault(url: str, store: Store, home: Path) -> None:
    first, second = noise(8), noise(9, 2)
    (home / OTHER).write_bytes(second)
    keep(store, home, OTHER)
    (home / ID).write_bytes(first)
    for _ in killed_everywhere(keep, url, home, ID, 12 * SMALL):
        assert copies(store) in ({}, {"": {ID: first}})
        assert copies(store, OTHER) in ({}, {"": {OTHER: second}})
    assert (copies(store), copies(store, OTHER)) == ({"": {ID: first}}, {})
    nothing_is_left_over(url, store)

"""Session files are mirrored into the vault byte for byte, at the price of their new bytes, and read back verified."""

import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.policy import Policy, VaultPolicy
from holdfast.domain.vault import MAX_CHUNK, MAX_DIGESTS, VaultBundle
from holdfast.engine.vault import Kept, Vault, VaultSource, branch_of
from holdfast.errors import Refused, StoreCorrupt
from holdfast.providers.contract import SessionFile
from holdfast.store import packing
from holdfast.store.contract import Store
from holdfast.store.open import open_store
from tests import processes
from tests.consistency import driver_of
from tests.counted_store import CountedStore

ID = ProviderSessionId("6a13a176")
NAME = "projects/-w-app/6a13a176.jsonl"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/holdfast.db"
    return str(request.getfixturevalue("emptied_postgres_url"))


@pytest.fixture
def counted(url: str) -> Iterator[CountedStore]:
    with closing(open_store(url, durability="normal")) as store:
        yield CountedStore(store)


@pytest.fixture
def store(counted: CountedStore) -> Store:
    return counted.as_store


@pytest.fixture
def vault(store: Store) -> Vault:
    return Vault(store, VaultPolicy())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home" / NAME).parent.mkdir(parents=True)
    return tmp_path / "home"


def source(home: Path, *sidecars: str, **changes: object) -> VaultSource:
    files = [SessionFile(name, str(home / name), is_main=name == NAME) for name in (NAME, *sidecars)]
    made = VaultSource("claude", ID, tuple(files), str(home), "runtime", "/w/app")
    return replace(made, **changes)  # type: ignore[arg-type] # its fields


def copy_of(vault: Vault, kept: Kept) -> dict[str, bytes]:
    assert kept.bundle is not None
    return {file.name: b"".join(vault.read(kept.bundle, file)) for file in kept.bundle.files}


def kept_now(store: Store, branch: str = "") -> VaultBundle:
    found = store.bundle("claude", ID, branch)
    assert found is not None
    return found


def lines(count: int, word: str = "line") -> bytes:
    return b"".join(b'{"n": %d, "text": "%s"}\n' % (n, word.encode()) for n in range(count))


# --- what is kept ---


@pytest.mark.parametrize(
    "data",
    [b"", b"{}\n", bytes(range(256)) * 9, b"\xff\xfe torn \0", os.urandom(3 * MAX_CHUNK + 7), lines(100_000)],
    ids=["empty", "one line", "binary", "not UTF-8", "random", "large"],
)
def test_any_file_is_read_back_byte_for_byte(home: Path, vault: Vault, store: Store, data: bytes) -> None:
    (home / NAME).write_bytes(data)
    kept = vault.keep(source(home))
    assert kept.added == len(data)
    assert copy_of(vault, kept) == {NAME: data}
    assert kept_now(store).files == (kept.bundle and kept.bundle.files)


def test_sidecars_and_exports_are_kept_with_the_main_file(home: Path, vault: Vault) -> None:
    (home / NAME).write_bytes(b"main")
    (home / "side").write_bytes(b"side")
    export = SessionFile("export/child.json", None, b"{}")
    given = source(home, "side")
    kept = vault.keep(replace(given, files=(*given.files, export)))
    assert copy_of(vault, kept) == {NAME: b"main", "side": b"side", "export/child.json": b"{}"}


def test_what_has_not_changed_is_not_written(home: Path, vault: Vault, counted: CountedStore) -> None:
    (home / NAME).write_bytes(lines(10))
    first = vault.keep(source(home))
    counted.clear()
    again = vault.keep(source(home))
    assert counted.calls == ["bundle"]
    assert again.bundle is not None
    assert first.bundle is not None
    assert again.bundle.files == first.bundle.files


def test_a_first_copy_of_a_session_that_is_new_is_one_call(
    home: Path, vault: Vault, counted: CountedStore
) -> None:
    (home / NAME).write_bytes(lines(10))
    vault.keep(source(home, is_new=True))
    assert counted.calls == ["keep_bundles"]
    (home / NAME).write_bytes(lines(20))
    assert copy_of(vault, vault.keep(source(home, is_new=True))) == {NAME: lines(20)}  # it was not new


def test_an_append_costs_its_new_bytes(home: Path, vault: Vault, counted: CountedStore) -> None:
    (home / NAME).write_bytes(lines(50_000))
    before = kept_parts(vault.keep(source(home)))
    counted.clear()
    with (home / NAME).open("ab") as file:
        file.write(b"more\n")
    kept = vault.keep(source(home))
    assert kept.added == 5
    assert kept_parts(kept)[:-1] == before
    assert counted.calls == ["bundle", "keep_bundles"]
    assert copy_of(vault, kept) == {NAME: lines(50_000) + b"more\n"}


def kept_parts(kept: Kept) -> tuple[object, ...]:
    assert kept.bundle is not None
    return kept.bundle.main.parts


def test_several_sessions_are_written_in_one_transaction(
    home: Path, vault: Vault, counted: CountedStore
) -> None:
    (home / NAME).write_bytes(lines(10))
    wanted = [replace(source(home), session_id=ProviderSessionId(f"s-{n}"), is_new=True) for n in range(20)]
    gone = replace(wanted[0], files=(SessionFile("gone", str(home / "gone"), is_main=True),))
    *kept, missing = vault.keep_many([*wanted, gone])
    assert counted.calls == ["keep_bundles"]
    assert [copy_of(vault, one) for one in kept] == [{NAME: lines(10)}] * 20
    assert missing.bundle is None
    assert missing.problem == f"{home}/gone: No such file or directory"


# --- files that do not only grow ---


def test_a_session_may_have_more_files_than_one_call_names_chunks(
    home: Path, vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / NAME).write_bytes(lines(3))
    names = [f"{number}.txt" for number in range(MAX_DIGESTS + 1)]
    files = tuple(SessionFile(name, None, name.encode()) for name in names)
    monkeypatch.setattr("holdfast.engine.vault._MOST_WAITING", sum(map(len, names)))
    many = source(home)

    kept = vault.keep(replace(many, files=many.files + files))

    assert copy_of(vault, kept) == {NAME: lines(3), **{name: name.encode() for name in names}}


def test_a_file_that_was_rewritten_is_stored_anew_and_the_old_version_stays(
    home: Path, vault: Vault, store: Store
) -> None:
    (home / NAME).write_bytes(lines(100))
    old = vault.keep(source(home))
    (home / NAME).write_bytes(lines(100, "word") + b"more\n")
    new = vault.keep(source(home))
    assert copy_of(vault, new) == {NAME: lines(100, "word") + b"more\n"}
    assert old.bundle is not None
    assert new.set_aside == branch_of(old.bundle.files)
    aside = kept_now(store, new.set_aside)
    assert b"".join(vault.read(aside, aside.main)) == lines(100)
    (home / NAME).write_bytes(lines(100))  # and back again
    assert copy_of(vault, vault.keep(source(home))) == {NAME: lines(100)}
    assert len(store.bundles("claude", ID)) == 3


def test_of_a_provider_that_rewrites_its_files_only_the_last_version_is_kept(
    home: Path, vault: Vault, store: Store
) -> None:
    (home / NAME).write_bytes(lines(10, "one"))
    vault.keep(source(home, rewrites=True))
    (home / NAME).write_bytes(lines(10, "two"))
    kept = vault.keep(source(home, rewrites=True))
    assert copy_of(vault, kept) == {NAME: lines(10, "two")}
    assert store.bundles("claude", ID) == (kept_now(store),)


@pytest.mark.parametrize("size", [0, 1, 700_000, 2_000_000])
def test_a_file_that_became_shorter_takes_nothing_from_the_vault(home: Path, vault: Vault, size: int) -> None:
    whole = lines(30_000) + lines(40_000, "more")
    (home / NAME).write_bytes(whole[:1_000_000])
    vault.keep(source(home))
    (home / NAME).write_bytes(whole)
    vault.keep(source(home))
    (home / NAME).write_bytes(whole[:size])
    kept = vault.keep(source(home))
    assert copy_of(vault, kept) == {NAME: whole}
    assert kept.set_aside is None


def test_a_sidecar_that_its_provider_has_deleted_stays(home: Path, vault: Vault) -> None:
    (home / NAME).write_bytes(b"main\n")
    (home / "side").write_bytes(b"side")
    vault.keep(source(home, "side"))
    (home / "side").unlink()
    (home / NAME).write_bytes(b"main\nmore\n")
    assert copy_of(vault, vault.keep(source(home, "side"))) == {NAME: b"main\nmore\n", "side": b"side"}
    assert copy_of(vault, vault.keep(source(home))) == {NAME: b"main\nmore\n", "side": b"side"}


def test_a_session_that_has_moved_is_kept_at_its_new_place_without_new_bytes(
    home: Path, vault: Vault
) -> None:
    (home / NAME).write_bytes(lines(100))
    vault.keep(source(home))
    moved = SessionFile("projects/-elsewhere/6a13a176.jsonl", str(home / NAME), is_main=True)
    kept = vault.keep(replace(source(home), files=(moved,)))
    assert kept.added == 0
    assert copy_of(vault, kept) == {moved.name: lines(100)}


def test_a_version_beside_the_session_is_named_by_its_digest(home: Path, vault: Vault, store: Store) -> None:
    (home / NAME).write_bytes(lines(10))
    main = vault.keep(source(home)).bundle
    (home / NAME).write_bytes(lines(10, "other"))
    beside = vault.keep(source(home, branch=None)).bundle
    assert main is not None
    assert beside is not None
    assert [bundle.branch for bundle in store.bundles("claude", ID)] == ["", beside.branch]
    assert copy_of(vault, vault.keep(source(home, branch=None))) == {NAME: lines(10, "other")}
    assert kept_now(store).files == main.files


# --- others at work ---


def test_two_who_keep_the_same_session_at_once_lose_nothing(home: Path, vault: Vault, store: Store) -> None:
    """The one who is late finds another revision, looks again, and has nothing to add."""
    (home / NAME).write_bytes(lines(10))
    vault.keep(source(home))
    (home / NAME).write_bytes(lines(11))

    def meanwhile() -> None:
        (home / NAME).write_bytes(lines(20))
        vault.keep(source(home))

    late = cast(Store, Before(store, "keep_bundles", meanwhile))
    Vault(late, VaultPolicy()).keep(source(home))
    assert b"".join(vault.read(kept_now(store), kept_now(store).main)) == lines(20)


class Before:
    """A store on which something else happens before the first call of a verb."""

    def __init__(self, store: Store, verb: str, act: Callable[[], None]) -> None:
        self._store = store
        self._verb: str | None = verb
        self._act = act

    def __getattr__(self, name: str) -> Any:
        if name == self._verb:
            self._verb = None
            self._act()
        return getattr(self._store, name)


# --- a full vault ---


@pytest.fixture
def small(url: str) -> Iterator[Store]:
    """A store whose vault holds about three files of ``ENOUGH`` bytes, which cannot be compressed."""
    policy = replace(Policy(), vault=VaultPolicy(limit_bytes=3 * ENOUGH + ENOUGH // 2))
    with closing(open_store(url, durability="normal", policy=policy)) as store:
        yield store


ENOUGH = 10_000


def sessions(home: Path, *numbers: int) -> list[VaultSource]:
    """Sessions of one file each, whose contents were drawn."""
    made = []
    for n in numbers:
        (home / f"{n}.jsonl").write_bytes(os.urandom(ENOUGH))
        file = SessionFile(f"{n}.jsonl", str(home / f"{n}.jsonl"), is_main=True)
        made.append(replace(source(home), session_id=ProviderSessionId(f"s-{n}"), files=(file,)))
    return made


def in_vault(store: Store) -> list[str]:
    return [entry.provider_session_id for entry in store.vault_entries()]


def test_a_full_vault_drops_the_oldest_session_that_its_provider_still_has(
    home: Path, small: Store, caplog: pytest.LogCaptureFixture
) -> None:
    vault = Vault(small, VaultPolicy())
    for each in sessions(home, 1, 2, 3):
        vault.keep(each)
    (home / "1.jsonl").unlink()
    (fourth,) = sessions(home, 4)
    assert vault.keep(fourth).problem is None
    assert in_vault(small) == ["s-1", "s-3", "s-4"]
    assert "dropped claude session s-2, which its provider still has" in caplog.text


def test_room_is_made_only_for_those_who_want_it(home: Path, small: Store) -> None:
    vault = Vault(small, VaultPolicy())
    vault.keep_many(sessions(home, 1, 2, 3))
    with pytest.raises(Refused, match="the vault is full"):
        vault.keep_many(sessions(home, 4), makes_room=False)
    assert sorted(in_vault(small)) == ["s-1", "s-2", "s-3"]


@pytest.mark.parametrize("lost", ["deleted", "shortened", "altered"])
def test_the_only_copy_of_a_session_is_never_dropped(home: Path, small: Store, lost: str) -> None:
    vault = Vault(small, VaultPolicy())
    for each in sessions(home, 1, 2, 3):
        vault.keep(each)
    for n in (1, 2, 3):
        file = home / f"{n}.jsonl"
        match lost:
            case "deleted":
                file.unlink()
            case "shortened":
                file.write_bytes(file.read_bytes()[:-1])
            case _:
                file.write_bytes(os.urandom(ENOUGH))
    with pytest.raises(Refused, match="the vault is full"):
        vault.keep(*sessions(home, 4))
    assert in_vault(small) == ["s-1", "s-2", "s-3"]


def test_nothing_is_dropped_for_a_session_that_fits_into_no_vault_of_this_size(
    home: Path, small: Store
) -> None:
    vault = Vault(small, VaultPolicy())
    first, large = sessions(home, 1, 2)
    vault.keep(first)
    (home / "2.jsonl").write_bytes(os.urandom(4 * ENOUGH))
    with pytest.raises(Refused, match="the vault is full"):
        vault.keep(large)
    assert in_vault(small) == ["s-1"]


# --- tidying up ---


def test_the_small_parts_of_many_turns_become_few_chunks(home: Path, vault: Vault, store: Store) -> None:
    said = b""
    for n in range(200):
        said += lines(100, f"turn {n}")
        (home / NAME).write_bytes(said)
        vault.keep(source(home))
    before = kept_now(store)
    assert len(before.main.parts) == 200
    tidied = vault.tidy()
    after = kept_now(store)
    assert (tidied.repacked, tidied.parts) == (1, 200 - len(after.main.parts))
    assert len(after.main.parts) == 1
    assert (after.size, after.kept_at) == (before.size, before.kept_at)
    assert b"".join(vault.read(after, after.main)) == said
    assert store.vault_figures().loose_chunks == 200  # somebody may still be reading them
    assert vault.tidy().repacked == 0
    (home / NAME).write_bytes(said + b"more\n")
    assert vault.keep(source(home)).added == 5


def test_what_grows_while_it_is_repacked_loses_nothing(home: Path, vault: Vault, store: Store) -> None:
    for n in range(1, 4):
        (home / NAME).write_bytes(lines(n))
        vault.keep(source(home))

    def meanwhile() -> None:
        (home / NAME).write_bytes(lines(9))
        vault.keep(source(home))

    late = Vault(cast(Store, Before(store, "keep_bundles", meanwhile)), VaultPolicy())
    assert late.tidy().repacked == 0
    assert b"".join(vault.read(kept_now(store), kept_now(store).main)) == lines(9)


# --- damage ---


@pytest.mark.parametrize("damage", ["DELETE FROM vault_chunks", "UPDATE vault_chunks SET data = :data"])
def test_damage_is_found_when_a_file_is_read(
    home: Path, vault: Vault, counted: CountedStore, damage: str
) -> None:
    (home / NAME).write_bytes(lines(10))
    bundle = vault.keep(source(home)).bundle
    assert bundle is not None
    with driver_of(counted._store).write() as tx:
        if damage.startswith("DELETE"):
            tx.run("DELETE FROM vault_parts", {})
        tx.run(damage, {"data": b"nothing"})
    with pytest.raises(StoreCorrupt, match=f"the vault's copy of {NAME} of claude session {ID} is damaged"):
        list(vault.read(bundle, bundle.main))


@pytest.mark.parametrize("has_zstd", [True, False])
def test_both_codecs_are_read_where_zstandard_is_installed(
    home: Path, vault: Vault, store: Store, monkeypatch: pytest.MonkeyPatch, has_zstd: bool
) -> None:
    if not has_zstd:
        monkeypatch.setattr(packing, "zstd", lambda: None)
    (home / NAME).write_bytes(lines(100))
    kept = vault.keep(source(home))
    (chunk,) = store.read_chunks([kept_now(store).main.parts[0].digest])
    assert chunk.codec == ("zstd" if has_zstd else "zlib")
    monkeypatch.undo()
    assert copy_of(vault, kept) == {NAME: lines(100)}


# --- large files ---


def test_a_large_file_is_not_held_in_memory(tmp_path: Path, home: Path) -> None:
    with (home / NAME).open("wb") as file:
        file.truncate(300 * MAX_CHUNK)
    process, connection = processes.start(keep_in_little_memory, f"sqlite:///{tmp_path}/holdfast.db", home)
    with closing(connection):
        before, after = processes.receive(connection)
    assert processes.finish(process) == 0
    assert after - before < 100 * 1024 * 1024


def keep_in_little_memory(connection: Connection, url: str, home: Path) -> None:
    with closing(open_store(url, durability="normal")) as store:
        before = peak_memory()
        vault = Vault(store, VaultPolicy())
        bundle = vault.keep(source(home)).bundle
        assert bundle is not None
        assert sum(map(len, vault.read(bundle, bundle.main))) == 300 * MAX_CHUNK
        connection.send((before, peak_memory()))


def peak_memory() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024

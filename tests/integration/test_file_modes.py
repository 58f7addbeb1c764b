"""Every file of a SQLite store is its user's alone."""

import os
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.store.open import open_store
from tests.integration.sqlite_file import create
from tests.migrations.starters import ADD_TABLE, one_more_migration


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=["umask-000", "umask-022", "umask-077"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_every_file_of_a_store_is_its_users_alone(umask: int, url: str, file: Path) -> None:
    with closing(open_store(url)) as store:
        create(store)
    with one_more_migration(ADD_TABLE), closing(open_store(url)) as store:
        create(store, "another")
        modes = {path.name: mode(path) for path in file.parent.iterdir()}
    (backup,) = (name for name in modes if name.endswith(".backup"))
    assert modes == dict.fromkeys(
        ["holdfast.db", "holdfast.db-wal", "holdfast.db-shm", "holdfast.db-gate", backup], 0o600
    )


def test_the_copy_before_a_migration_is_never_readable_by_others(
    umask: int, url: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even while it is being written, under its other name."""
    open_store(url).close()
    seen: list[int] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        seen.extend(mode(path) for path in file.parent.glob("*.partial*"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    with one_more_migration(ADD_TABLE):
        open_store(url).close()
    assert seen == [0o600]


def test_directories_that_have_to_be_made_are_their_users_alone(umask: int, tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path}/one/two/three/holdfast.db").close()
    made = [tmp_path / "one", tmp_path / "one/two", tmp_path / "one/two/three"]
    assert [mode(path) for path in made] == [0o700] * 3


@pytest.mark.parametrize("before", [0o755, 0o700, 0o1777])
def test_a_directory_that_exists_keeps_its_mode(umask: int, tmp_path: Path, before: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(before)
    open_store(f"sqlite:///{shared}/holdfast.db").close()
    open_store(f"sqlite:///{shared}/inner/holdfast.db").close()
    assert (mode(shared), mode(shared / "inner")) == (before, 0o700)

"""Where a SQLite file is: the same one, wherever the process goes, and whatever lies beside it."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import holdfast
from holdfast.domain.sessions import SessionFilter
from holdfast.engine import default
from holdfast.errors import ConfigError, StoreUnavailable
from holdfast.store.open import open_store
from tests import processes
from tests.builders import a_session


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, which the test may change."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def nowhere(here: Path) -> Iterator[None]:
    """The current directory is deleted."""
    gone = here / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    yield
    os.chdir(here)


def test_a_relative_path_stays_the_same_file(here: Path) -> None:
    (here / "elsewhere").mkdir()
    with closing(open_store("sqlite:///relative.db")) as store:
        os.chdir("elsewhere")
        with store._driver.read():  # type: ignore[attr-defined]
            # the first connection is in use: this one is made here
            session = store.create_session(a_session())
        assert store.where == str(here / "relative.db")
    with closing(open_store(f"sqlite:///{here / 'relative.db'}")) as store:
        assert store.get_session(session.id).id == session.id
    assert list((here / "elsewhere").iterdir()) == []


def test_without_a_current_directory_a_relative_path_is_unavailable(nowhere: None) -> None:
    with pytest.raises(StoreUnavailable, match=r"^relative\.db: the current directory was deleted"):
        holdfast.open("sqlite:///relative.db")


def test_without_a_current_directory_other_stores_open(
    nowhere: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default, "_open", {})
    with holdfast.open(f"sqlite:///{tmp_path / 'holdfast.db'}") as opened, default.default() as kept:
        assert opened.create("agent").id != kept.create("agent").id


def test_the_home_of_nobody(here: Path) -> None:
    with pytest.raises(ConfigError, match="home directory"):
        open_store("sqlite:///~nobody-of-this-name/holdfast.db")


def test_a_gate_that_cannot_be_opened_keeps_nobody_out(tmp_path: Path) -> None:
    (tmp_path / "holdfast.db-gate").mkdir()
    with closing(open_store(f"sqlite:///{tmp_path / 'holdfast.db'}")) as store:
        session = store.create_session(a_session())
        assert store.get_session(session.id).id == session.id


def test_opening_it_once_more_in_one_process_lets_go_of_no_lock(tmp_path: Path) -> None:
    """Another process that believed to be the last one would take the log away under those who are here."""
    url = f"sqlite:///{tmp_path / 'holdfast.db'}"
    with closing(open_store(url)) as first:
        session = first.create_session(a_session())
        with closing(open_store(url)):
            processes.together(_look, [(url,)])
            first.rename_session(session.id, "kept")
            (found,) = processes.together(_look, [(url,)])

    assert found == [(session.id, "kept")]


def _look(ready: processes.Start, url: str) -> list[tuple[str, str | None]]:
    ready()
    with closing(open_store(url)) as store:
        return [(session.id, session.name) for session in store.list_sessions(SessionFilter(), 10).sessions]

"""Owns what the tests of the command and of the plain library share: the store they work on."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.engine import default
from tests.acceptance.face import Face
from tests.clock import ManualClock


@pytest.fixture(params=["sqlite", "postgres"])
def each_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The test runs on the default store, and once more on PostgreSQL."""
    if request.param == "postgres":
        monkeypatch.setenv("HOLDFAST_URL", request.getfixturevalue("postgres_url"))
    return str(request.param)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Holdfast]:
    """The same store as the command's, opened by the library: to prepare what the command then shows."""
    monkeypatch.setenv("HOLDFAST_DURABILITY", "normal")  # these tests pull no plug, and there are many
    with holdfast.open() as opened:
        yield opened


@pytest.fixture
def scripted_place(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A work dir, which is the current one, and the scripted agent as the provider."""
    work_dir = tmp_path / "work"
    work_dir.mkdir()
    monkeypatch.chdir(work_dir)
    for name, value in {
        "SCRIPTED_HOME": tmp_path / "agent",
        "XDG_CACHE_HOME": tmp_path_factory.getbasetemp() / "cache",
        "HOLDFAST_RUN__PROVIDER": "scripted",
        "HOLDFAST_DURABILITY": "normal",
    }.items():
        monkeypatch.setenv(name, str(value))
    return work_dir


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def functions(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Face]:
    """The functions of the module, in a process that has used none of them, at the time of ``clock``."""
    monkeypatch.setattr(time, "time_ns", lambda: clock() * 1000)
    monkeypatch.setattr(default, "_open", {})
    yield holdfast
    for opened in default._open.values():
        opened.close()


@pytest.fixture(params=["functions", "methods"])
def face(
    request: pytest.FixtureRequest, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, file: Path
) -> Iterator[Face]:
    monkeypatch.setenv("HOLDFAST_DURABILITY", "normal")  # these tests pull no plug, and there are many
    if request.param == "functions":
        yield request.getfixturevalue("functions")
    else:
        with holdfast.open(f"sqlite:///{file}", clock) as opened:
            yield opened


@pytest.fixture
def file(home: Path) -> Path:
    """Where the default store is; the opened one of these tests is there too."""
    return home / ".local" / "share" / "holdfast" / "holdfast.db"

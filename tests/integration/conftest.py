"""Owns what integration tests are given: a SQLite file, scripted agents idle and busy, a whole workshop."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.store.contract import Store
from holdfast.store.open import open_store
from tests.integration.crew import EAGER, Crew
from tests.integration.scripted import Agent
from tests.integration.workshop import Workshop


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "holdfast.db"


@pytest.fixture
def url(file: Path) -> str:
    return f"sqlite:///{file}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """Unless a test brings a store of its own."""
    with closing(open_store(url)) as store:
        yield store


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    work_dir = tmp_path / "work"
    work_dir.mkdir()
    return Agent(tmp_path / "home", work_dir)


@pytest.fixture
def busy(agent: Agent) -> Iterator[subprocess.Popen[str]]:
    """In the middle of a turn of session ``s``: it has said something, and goes no further."""
    with agent.start("--session-id", "s", "SAY half\nHANG") as process:
        assert process.stdout is not None
        while json.loads(process.stdout.readline())["type"] != "text":
            pass
        yield process
        process.kill()


@pytest.fixture
def shop(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    """Whatever is left running of it when a test ends is a failure of the test."""
    shop = Workshop(tmp_path, tmp_path_factory.getbasetemp() / "cache")
    yield shop
    shop.close()
    assert not shop.left_running()


@pytest.fixture
def crew(shop: Workshop) -> Iterator[Crew]:
    """Workers on the workshop's store; those that a test leaves are dismissed."""
    shop.changes.update(EAGER)
    crew = Crew(shop, shop.open())
    yield crew
    crew.dismiss()

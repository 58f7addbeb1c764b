"""Owns the laboratories: each agent with a home, a work directory and a model server of the test's own.

An agent that is not installed is skipped with the command that installs it; under ``HOLDFAST_REQUIRE=all`` it
is installed, and a machine that cannot do that fails.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.agents.driver import Driver
from tests.agents.lab.install import PROGRAMS, InstallFailed, Program, install, is_installed
from tests.agents.lab.laboratory import Laboratory, laboratory
from tests.agents.traits import TRAITS
from tests.require import everything_is_required


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever waits here has a limit of its own: the one of the test leaves room for several starts of an agent."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(400))


@pytest.fixture
def claude(tmp_path: Path) -> Iterator[Laboratory]:
    with _opened("claude", tmp_path) as lab:
        yield lab


@pytest.fixture
def codex(tmp_path: Path) -> Iterator[Laboratory]:
    with _opened("codex", tmp_path) as lab:
        yield lab


@pytest.fixture
def opencode(tmp_path: Path) -> Iterator[Laboratory]:
    with _opened("opencode", tmp_path) as lab:
        yield lab


@pytest.fixture
def gemini(tmp_path: Path) -> Iterator[Laboratory]:
    with _opened("gemini", tmp_path) as lab:
        yield lab


@pytest.fixture(params=PROGRAMS)
def lab(request: pytest.FixtureRequest) -> Laboratory:
    """Every agent in turn."""
    opened = request.getfixturevalue(request.param)
    assert isinstance(opened, Laboratory)
    return opened


@pytest.fixture(params=TRAITS)
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Holdfast on each provider in turn; whatever a test does, nothing of it runs on afterwards."""
    opened = request.getfixturevalue(request.param)
    assert isinstance(opened, Laboratory)
    told = tmp_path_factory.getbasetemp() / "told" / request.param
    told.mkdir(parents=True, exist_ok=True)
    driver = Driver(request.param, opened, told)
    driver.put_first()
    try:
        yield driver
        driver.await_nothing_alive()
    finally:
        driver.end_survivors()


@contextmanager
def _opened(name: str, tmp_path: Path) -> Iterator[Laboratory]:
    root = tmp_path / name
    root.mkdir()
    _require(PROGRAMS[name])
    with laboratory(PROGRAMS[name], root) as lab:
        yield lab


def _require(program: Program) -> None:
    if is_installed(program):
        return
    if not everything_is_required():
        pytest.skip(f"{program.name} {program.version} is not installed; 'make test-agents' installs it")
    try:
        install(program)
    except InstallFailed as exc:
        pytest.skip(str(exc))

"""A provider of another package, as it is found once the package is installed: in this case the example."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import ConfigError, InvalidInput
from holdfast.providers import registry

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "provider"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages on Python's path, with nothing in it yet."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(registry, "_entry_points", registry._entry_points.__wrapped__)
    return folder


def install(site: Path, package: str, *lines: str) -> None:
    metadata = site / f"{package.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("\n".join(["[holdfast.providers]", *lines, ""]))


@pytest.fixture
def echo(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example, installed; the folder that holds its sessions."""
    for file in ("echo_provider.py", "echo_agent.py"):
        (site / file).write_text((EXAMPLE / file).read_text())
    install(site, "holdfast-echo", "echo = echo_provider:Echo")
    program = tmp_path / "bin" / "echo-agent"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {site / "echo_agent.py"} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return Path.home() / ".echo"


def test_a_turn_runs_and_is_resumed_on_a_provider_of_another_package(echo: Path, tmp_path: Path) -> None:
    with holdfast.open(f"sqlite:///{tmp_path}/holdfast.db") as here:
        first = here.run("hello", agent="parrot", provider="echo", cwd=str(tmp_path))
        second = here.resume(first.session_id, "and again")
    assert (first.ok, first.text) == (True, "turn 1: hello")
    assert (second.ok, second.text) == (True, "turn 2: and again")
    assert [file.stem for file in echo.glob("*.jsonl")] == [second.provider_session_id]


def test_its_name_is_listed_behind_the_built_in_ones(echo: Path) -> None:
    assert registry.provider_names() == (*registry.BUILT_IN, "echo")
    assert registry.is_provider("echo")
    with pytest.raises(InvalidInput, match=r"not one of claude, .*, scripted, echo"):
        registry.get_provider("ech")


def test_the_built_in_providers_are_registered_the_same_way() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][registry.GROUP] == registry.BUILT_IN


def test_a_built_in_name_is_not_replaced(site: Path) -> None:
    install(site, "other-claude", "claude = nowhere:Nothing")
    assert type(registry.get_provider("claude")).__module__ == "holdfast.providers.claude.provider"


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["bad = nowhere:Nothing"], "'bad' of its-package cannot be loaded: ModuleNotFoundError"),
        (["bad = json:JSONDecoder"], "'bad' of its-package cannot be loaded: AttributeError"),
        (
            ["bad = holdfast.providers.scripted:Scripted"],
            "its-package offers 'bad', which calls itself 'scripted'",
        ),
    ],
    ids=["no module", "no provider", "another name"],
)
def test_a_provider_that_cannot_be_used_is_named_with_its_package(
    site: Path, lines: list[str], problem: str
) -> None:
    install(site, "its-package", *lines)
    with pytest.raises(ConfigError, match=problem):
        registry.get_provider("bad")


def test_two_packages_with_the_same_name_are_an_error(site: Path) -> None:
    install(site, "one", "bad = one:One")
    install(site, "two", "bad = two:Two")
    with pytest.raises(ConfigError, match="both offer a provider 'bad'"):
        registry.get_provider("bad")


def test_a_built_in_provider_is_found_without_reading_entry_points() -> None:
    asks = (
        "import sys; from holdfast.providers.registry import get_provider, is_provider; "
        "get_provider('claude'); is_provider('codex'); print('importlib.metadata' in sys.modules)"
    )
    asked = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True)
    assert asked.stdout == "False\n"

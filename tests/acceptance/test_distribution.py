"""What a user installs: the wheel is complete, and the library on SQLite needs nothing but Python."""

import importlib.metadata
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.acceptance.installation import ROOT, Environment, build_wheel, gather_wheels, install_whole, run

CREATE_A_SESSION = """
import sys
import holdfast

hf = holdfast.open(sys.argv[1])
session_id = hf.create_session(agent_name="a", purpose="p", metadata={"k": "v"})
assert hf.get_session(session_id) is not None
heavy = {"click", "prompt_toolkit", "rich", "psycopg"} & set(sys.modules)
assert not heavy, heavy
print(session_id)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> importlib.metadata.Distribution:
    (distribution,) = importlib.metadata.distributions(path=[str(wheel)])
    return distribution


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return install_whole(wheel, tmp_path_factory.mktemp("installed") / "venv")


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel alone, without the packages it declares: the standard library must do."""
    environment = Environment.create(tmp_path_factory.mktemp("bare") / "venv")
    environment.install(wheel, "--no-deps")
    return environment


def test_wheel_holds_every_module_and_data_file_of_the_package(wheel: Path) -> None:
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "holdfast").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    shipped = set(zipfile.ZipFile(wheel).namelist())

    assert sources <= shipped
    assert {name for name in shipped if ".dist-info/" not in name} <= sources
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in shipped)


def test_wheel_holds_the_types_marker_and_both_engines_migrations(wheel: Path) -> None:
    shipped = zipfile.ZipFile(wheel).namelist()

    assert "holdfast/py.typed" in shipped
    for engine in ("sqlite", "postgres"):
        folder = f"holdfast/store/migrations/{engine}/0001_"
        assert any(name.startswith(folder) and name.endswith(".sql") for name in shipped)


def test_only_its_extras_need_more_than_three_packages(metadata: importlib.metadata.Distribution) -> None:
    requirements = [Requirement(text) for text in metadata.requires or []]
    always = {requirement.name for requirement in requirements if requirement.marker is None}

    assert always == {"click", "prompt-toolkit", "rich"}
    extra = {requirement.name for requirement in requirements} - always
    assert extra == {
        "psycopg", "httpx", "fastapi", "uvicorn", "prometheus-client", "cryptography", "zstandard", "markdown-it-py",
        "nh3", "jinja2", "pygments",
    }  # fmt: skip


def test_the_distribution_has_a_name_of_its_own(metadata: importlib.metadata.Distribution) -> None:
    assert metadata.name == "holdfast-sessions"


def test_nobody_is_told_to_install_what_others_publish_as_holdfast() -> None:
    """On PyPI ``holdfast`` is another project's package."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    told = re.compile(
        r"(?:\binstall|\badd|\buvx|\bpipx run)\s+(?:-\S+\s+)*['\"]?holdfast(?![\w@-])|\bholdfast\[[a-z]"
    )
    for name in listed.decode().split("\0"):
        if name and name != "tests/acceptance/test_distribution.py" and (ROOT / name).is_file():
            text = (ROOT / name).read_bytes().decode("utf-8", "ignore")
            assert [line for line in text.splitlines() if told.search(line)] == [], name
    assert told.search("pip install --quiet 'holdfast[server]'")
    assert told.search("pipx install holdfast")


@pytest.fixture(scope="module")
def wheels(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that stands in for PyPI."""
    folder = tmp_path_factory.mktemp("wheels")
    gather_wheels(wheel, folder, "pip")
    return folder


def test_pipx_installs_the_command(
    wheel: Path, wheels: Path, metadata: importlib.metadata.Distribution, tmp_path: Path
) -> None:
    run(
        sys.executable, "-m", "pipx", "install", "--python", sys.executable, wheel,
        PIPX_HOME=str(tmp_path / "pipx"), PIPX_BIN_DIR=str(tmp_path / "bin"), PIPX_MAN_DIR=str(tmp_path / "man"),
        PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels),
    )  # fmt: skip

    assert metadata.version in run(tmp_path / "bin" / "holdfast", "--version")
    assert {path.name for path in (tmp_path / "bin").iterdir()} == {"holdfast", "holdfast-scripted-agent"}


def test_uvx_runs_the_command_without_installing_it(
    wheel: Path, wheels: Path, metadata: importlib.metadata.Distribution, tmp_path: Path
) -> None:
    uvx = Path(sys.executable).with_name("uvx")
    shown = run(
        uvx, "--quiet", "--offline", "--no-index", "--find-links", wheels, "--python", sys.executable,
        "--from", wheel, "holdfast", "--version", UV_CACHE_DIR=str(tmp_path / "cache"),
    )  # fmt: skip

    assert metadata.version in shown


def test_installed_command_tells_its_version(
    installed: Environment, metadata: importlib.metadata.Distribution
) -> None:
    assert metadata.version in installed.run("holdfast", "--version")


def test_installed_scripted_agent_is_found_beside_the_interpreter_and_runs(bare: Environment) -> None:
    found = "from holdfast.providers.scripted import Scripted; print(Scripted().binaries[0])"
    path = Path(bare.run("python", "-I", "-c", found).strip())

    assert path.is_relative_to(bare.folder)
    assert "holdfast-scripted-agent" in run(path, "--version")


def test_installed_package_can_be_imported(installed: Environment) -> None:
    installed.run("python", "-I", "-c", "import holdfast")


def test_installed_library_creates_a_session_without_psycopg(installed: Environment, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sessions.db'}"

    assert installed.run("python", "-I", "-c", CREATE_A_SESSION, url).strip()


def test_library_on_sqlite_needs_the_standard_library_only(bare: Environment, tmp_path: Path) -> None:
    present = {path.name.partition("-")[0] for path in bare.site_packages.glob("*.dist-info")}
    assert present == {"holdfast_sessions"}

    assert bare.run("python", "-I", "-c", CREATE_A_SESSION, f"sqlite:///{tmp_path / 'sessions.db'}").strip()


def test_library_on_sqlite_leaves_the_heavy_packages_alone_where_they_are_installed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sessions.db'}"

    assert run(sys.executable, "-c", CREATE_A_SESSION, url).strip()

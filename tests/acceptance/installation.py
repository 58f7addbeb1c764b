"""Owns what a user installs: the wheel, and an environment that holds it and what it declares, made offline."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Environment:
    """A virtual environment without pip; the tests' own pip installs into it, offline."""

    folder: Path

    @classmethod
    def create(cls, folder: Path, python: str = sys.executable) -> "Environment":
        run(python, "-m", "venv", "--without-pip", folder)
        return cls(folder)

    def install(self, wheel: Path, *options: str) -> None:
        pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check"]
        run(*pip, "--python", self.program("python"), "install", "--quiet", "--no-index", *options, wheel)

    def program(self, name: str) -> Path:
        return self.folder / "bin" / name

    def run(self, program: str, *arguments: str | Path) -> str:
        return run(self.program(program), *arguments)

    @property
    def site_packages(self) -> Path:
        return next(self.folder.glob("lib/python*/site-packages"))


def build_wheel(to: Path) -> Path:
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", to, ROOT)
    (built,) = to.glob("holdfast_sessions-*.whl")
    return built


def install_whole(wheel: Path, folder: Path, *extras: str, python: str = sys.executable) -> Environment:
    """What `pip install holdfast-sessions[EXTRAS]` gives. pip refuses here if the wheel needs more than it declares."""
    (declared,) = importlib.metadata.distributions(path=[str(wheel)])
    environment = Environment.create(folder, python)
    _copy_distributions(_wanted(declared.requires or [], extras), environment.site_packages)
    environment.install(wheel)
    return environment


def gather_wheels(wheel: Path, to: Path, *besides: str) -> None:
    """Everything that the wheel needs, and the distributions that are named, as wheels of the tests' own packages."""
    (declared,) = importlib.metadata.distributions(path=[str(wheel)])
    wanted = [*_wanted(declared.requires or [], ()), *map(Requirement, besides)]
    for distribution in _needed(wanted):
        (tag, *_) = [
            line.partition(": ")[2]
            for line in (distribution.read_text("WHEEL") or "").splitlines()
            if line.startswith("Tag: ")
        ]
        name = re.sub(r"[-_.]+", "_", distribution.name).lower()
        with zipfile.ZipFile(to / f"{name}-{distribution.version}-{tag}.whl", "w") as packed:
            for file in distribution.files or []:
                if ".." not in file.parts and file.suffix != ".pyc":
                    packed.write(str(file.locate()), str(file))


def run(*command: str | Path, **variables: str) -> str:
    """The command's output. A failure shows everything it said."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_", "UV_"))
    }
    run = subprocess.run(
        command,
        cwd="/",
        env=environment | variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert run.returncode == 0, f"{' '.join(map(str, command))}\n{run.stdout}"
    return run.stdout


def _copy_distributions(requirements: Iterable[Requirement], to: Path) -> None:
    for distribution in _needed(requirements):
        for file in distribution.files or []:
            if ".." not in file.parts:  # scripts, beside the packages
                target = to / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(file.locate()), target)


def _needed(requirements: Iterable[Requirement]) -> Iterator[importlib.metadata.Distribution]:
    """What satisfies the requirements, and what that needs in turn, from the tests' own environment."""
    waiting, seen = list(requirements), set[str]()
    while waiting:
        requirement = waiting.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        distribution = importlib.metadata.distribution(requirement.name)
        yield distribution
        waiting += _wanted(distribution.requires or [], requirement.extras)


def _wanted(requires: Iterable[str], extras: Iterable[str]) -> list[Requirement]:
    asked = ("", *extras)
    found = [Requirement(text) for text in requires]
    return [
        one for one in found if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in asked)
    ]

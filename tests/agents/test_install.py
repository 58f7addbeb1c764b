"""The agents' programs come from npm, once, or not at all with a reason; here npm is a script of the test."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.agents.lab import install
from tests.agents.lab.install import InstallFailed, Program

TOY = Program("toy", "Toy", "@toys/toy", "1.2.3")

SLOW_NPM = """\
#!{python}
import pathlib, sys, time
with open({log!r}, "a") as log:
    print(sys.argv[-1], file=log)
folder = pathlib.Path(sys.argv[sys.argv.index("--prefix") + 1]) / "node_modules" / ".bin"
folder.mkdir(parents=True)
time.sleep(0.5)
(folder / "toy").touch()
"""

BROKEN_NPM = """\
#!{python}
import pathlib, sys
pathlib.Path(sys.argv[sys.argv.index("--prefix") + 1]).mkdir()
sys.exit("npm error code ENOTFOUND")
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What npm was asked for; the cache and PATH are the test's own."""
    monkeypatch.setattr(install, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "npm.log"


def test_two_who_want_the_same_program_install_it_once(log: Path) -> None:
    _put_npm(log, SLOW_NPM)

    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(install.install, [TOY, TOY]))

    assert paths == [TOY.path, TOY.path]
    assert TOY.path.exists()
    assert log.read_text().splitlines() == ["@toys/toy@1.2.3"]


def test_a_failure_says_what_npm_said_and_leaves_nothing(log: Path) -> None:
    _put_npm(log, BROKEN_NPM)

    with pytest.raises(InstallFailed, match=r"toy: npm could not install @toys/toy@1\.2\.3: .*ENOTFOUND"):
        install.install(TOY)

    assert not TOY.folder.exists()
    assert not install.is_installed(TOY)


def test_a_machine_without_npm_is_told_what_it_lacks(log: Path) -> None:
    with pytest.raises(InstallFailed, match="npm is not on PATH"):
        install.install(TOY)


def test_an_unknown_name_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert install.main(["cluade"]) == 2
    assert "no such agent: cluade; known: claude, codex, opencode, gemini" in capsys.readouterr().err


def _put_npm(log: Path, script: str) -> None:
    npm = log.parent / "bin" / "npm"
    npm.write_text(script.format(python=sys.executable, log=str(log)))
    npm.chmod(0o755)

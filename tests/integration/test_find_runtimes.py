"""The agents of a machine are found, asked once, and told clearly when they are not there."""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.domain.runtimes import Capabilities
from holdfast.engine.running import agents
from holdfast.engine.running.agents import FoundRuntime, find_runtime
from holdfast.errors import MissingBinary
from holdfast.providers.contract import Probe, Provider
from tests.integration.agents import MACHINE


class Parrot:
    """Of a provider, what matters for finding it."""

    name = "parrot"
    binaries: tuple[str, ...] = ("parrot", "parrot-cli")
    probes = (("--version",), ("--help",))
    install = "npm install -g parrot"

    def read_probe(self, outputs: tuple[str, ...]) -> Probe:
        version, help_text = outputs
        return Probe(version.strip(), "parrot", Capabilities(can_fork="--fork" in help_text))

    def home(self, environ: Any) -> Path:
        return Path(environ["HOME"]) / ".parrot"


PARROT = cast("Provider", Parrot())
ANSWERS = 'case "$1" in --version) echo 1.2;; --help) echo "usage: --fork" >&2;; esac'


class Shop:
    """A place where binaries are installed, each of which counts how often it was run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environ = {"PATH": f"{root / 'bin'}:{os.defpath}", "HOME": str(root)}
        (root / "bin").mkdir()

    def install(self, name: str = "parrot", body: str = ANSWERS) -> Path:
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\necho >> {self.root / 'runs'}\n{body}\n")
        path.chmod(0o755)
        return path

    def find(self, **environ: str) -> FoundRuntime:
        return find_runtime(PARROT, self.environ | environ, self.root / "cache", MACHINE)

    @property
    def runs(self) -> int:
        return len((self.root / "runs").read_text().splitlines())


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_a_binary_on_the_path_is_found_and_asked(shop: Shop) -> None:
    path = shop.install()
    found = shop.find()
    runtime = found.runtime
    assert found.binary == str(path)
    assert (runtime.machine, runtime.provider, runtime.version) == (MACHINE.id, "parrot", "1.2")
    assert runtime.home == str((shop.root / ".parrot").resolve())
    assert runtime.capabilities.can_fork


def test_every_name_of_a_binary_is_tried(shop: Shop) -> None:
    assert shop.find(HOLDFAST_PARROT_BINARY=str(shop.install("parrot-cli"))) == shop.find()


def test_the_variable_takes_precedence_over_the_path(shop: Shop) -> None:
    shop.install()
    by_variable = str(shop.install("another"))
    assert shop.find(HOLDFAST_PARROT_BINARY=by_variable).binary == by_variable


def test_a_home_is_the_same_by_whatever_path(shop: Shop, tmp_path: Path) -> None:
    shop.install()
    (tmp_path / "link").symlink_to(tmp_path)
    assert shop.find(HOME=str(tmp_path / "link")).runtime.id == shop.find().runtime.id


def test_a_binary_is_asked_once_until_it_changes(shop: Shop) -> None:
    path = shop.install()
    first = shop.find()
    assert shop.find() == first
    assert shop.runs == 2

    before = path.stat()
    shop.install(body=ANSWERS.replace("1.2", "1.3"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert shop.find().runtime.version == "1.3"
    assert shop.find().runtime.id == first.runtime.id


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b'{"%s": {"state": 1}}', b'{"%s": []}', b"[" * 100_000], ids=range(6)
)
def test_a_damaged_cache_is_an_empty_one(shop: Shop, content: bytes) -> None:
    path = shop.install()
    (shop.root / "cache").mkdir()
    cache = shop.root / "cache" / "probes.json"
    cache.write_bytes(content.replace(b"%s", str(path).encode()))
    assert shop.find().runtime.version == "1.2"
    assert json.loads(cache.read_text())


def test_the_cache_is_private_and_alone(shop: Shop) -> None:
    shop.install()
    shop.find()
    (file,) = (shop.root / "cache").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_cache_that_cannot_be_written_is_no_error(shop: Shop) -> None:
    shop.install()
    (shop.root / "cache").write_text("")
    assert shop.find().runtime.version == "1.2"


def test_a_missing_binary_says_what_to_install_and_how_to_name_it(shop: Shop) -> None:
    with pytest.raises(
        MissingBinary,
        match=r"parrot or parrot-cli is not on PATH; install it with npm install -g parrot, or .*HOLDFAST_PARROT_BINARY",
    ):
        shop.find()


def test_a_binary_that_was_named_and_is_not_there_is_not_looked_for_elsewhere(shop: Shop) -> None:
    shop.install()
    with pytest.raises(MissingBinary, match="/no/such"):
        shop.find(HOLDFAST_PARROT_BINARY="/no/such")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("echo broken >&2; exit 3", "does not answer --version: exit code 3, broken"),
        ("exit 0", "does not answer --version: exit code 0, it printed nothing"),
        ("kill -9 $$", "does not answer --version: signal 9"),
        ("exec sleep 600", "does not answer --version: it did not end within 0 seconds"),
    ],
    ids=["fails", "silent", "dies", "hangs"],
)
def test_a_binary_that_does_not_answer_is_told_and_asked_again_next_time(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, body: str, problem: str
) -> None:
    path = shop.install(body=body)
    if "sleep" in body:
        monkeypatch.setattr(agents, "PROBE_SECONDS", 0.2)
    with pytest.raises(MissingBinary, match=re.escape(f"{path}: {problem}")):
        shop.find()
    monkeypatch.undo()
    shop.install()
    assert shop.find().runtime.version == "1.2"

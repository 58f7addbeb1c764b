"""What git says about a work directory, real git in real repositories, hostile ones too."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.engine import packets as module
from holdfast.engine.packets import ground_truth
from tests.integration.agents import until

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(directory: Path, *arguments: str) -> None:
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.net", "-c", "commit.gpgSign=false")
    subprocess.run(["git", *who, *arguments], cwd=directory, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    git(place, "init", "--initial-branch=trunk")
    (place / "a.txt").write_text("one\n")
    git(place, "add", ".")
    git(place, "commit", "-m", "Begin")
    return place


def test_branch_head_status_and_changes_are_told(repository: Path) -> None:
    (repository / "a.txt").write_text("two\n")
    (repository / "b.txt").write_text("new\n")

    truth = ground_truth(str(repository))

    assert truth.problem == ""
    assert truth.branch == "trunk"
    assert truth.head.endswith(" Begin")
    assert truth.status.splitlines() == [" M a.txt", "?? b.txt"]
    assert "a.txt | 2 +-" in truth.diff_stat


def test_a_clean_repository_has_no_status(repository: Path) -> None:
    truth = ground_truth(str(repository))
    assert (truth.status, truth.diff_stat) == ("", "")


def test_a_repository_without_a_commit_says_so(tmp_path: Path) -> None:
    git(tmp_path, "init", "--initial-branch=trunk")
    (tmp_path / "new").touch()
    truth = ground_truth(str(tmp_path))
    assert (truth.head, truth.status) == ("no commit yet", "?? new")


def test_what_cannot_be_asked_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not known" in ground_truth(None).problem
    assert "no such directory" in ground_truth(str(tmp_path / "gone")).problem
    assert "not a git repository" in ground_truth(str(tmp_path)).problem
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "not installed" in ground_truth(str(tmp_path)).problem


def test_variables_of_a_git_that_called_us_do_not_count(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert ground_truth(str(repository)).branch == "trunk"


def sign(repository: Path) -> None:
    """Give HEAD a signature that git would have checked."""
    read = subprocess.run(
        ["git", "cat-file", "commit", "HEAD"], cwd=repository, check=True, capture_output=True
    )
    head, _, message = read.stdout.partition(b"\n\n")
    signed = head + b"\ngpgsig -----BEGIN PGP SIGNATURE-----\n x\n -----END PGP SIGNATURE-----\n\n" + message
    write = ["git", "hash-object", "-t", "commit", "-w", "--stdin"]
    made = subprocess.run(write, cwd=repository, input=signed, check=True, capture_output=True)
    git(repository, "update-ref", "HEAD", made.stdout.decode().strip())


def a_trap(tmp_path: Path) -> tuple[Path, Path]:
    """A program, and the file that exists once it ran."""
    sprung = tmp_path / "sprung"
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {sprung}\ncat\n")
    trap.chmod(0o755)
    return trap, sprung


@pytest.mark.parametrize(
    "setting",
    [
        "core.fsmonitor",
        "filter.evil.clean",
        "filter.evil.process",
        "filter.a=b.c.clean",
        "gpg.program",
        "core.hooksPath",
    ],
)
def test_a_hostile_repository_runs_nothing(repository: Path, tmp_path: Path, setting: str) -> None:
    trap, sprung = a_trap(tmp_path)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for hook in ("post-index-change", "fsmonitor-watchman", "pre-commit"):
        (hooks / hook).symlink_to(trap)
    git(repository, "config", setting, str(hooks if setting == "core.hooksPath" else trap))
    sign(repository)
    git(repository, "config", "log.showSignature", "true")
    driver = setting.removeprefix("filter.").rpartition(".")[0]
    (repository / ".git" / "info" / "attributes").write_text(f"*.txt filter={driver}\n")
    (repository / "a.txt").write_text("two\n")

    truth = ground_truth(str(repository))

    assert truth.status == " M a.txt"
    assert "a.txt | 2 +-" in truth.diff_stat
    assert not sprung.exists()


def test_more_filters_than_can_be_switched_off_are_reason_enough_not_to_ask(
    repository: Path, tmp_path: Path
) -> None:
    trap, sprung = a_trap(tmp_path)
    with (repository / ".git" / "config").open("a") as config:
        config.writelines(f'[filter "{n:0200}"]\n\tclean = {trap}\n' for n in range(6000))
    (repository / ".git" / "info" / "attributes").write_text(f"*.txt filter={5999:0200}\n")
    (repository / "a.txt").write_text("two\n")

    assert "Too many filters" in ground_truth(str(repository)).problem
    assert not sprung.exists()


def test_the_trap_of_these_tests_would_spring(repository: Path, tmp_path: Path) -> None:
    trap, sprung = a_trap(tmp_path)
    git(repository, "config", "filter.evil.clean", str(trap))
    (repository / ".git" / "info" / "attributes").write_text("*.txt filter=evil\n")
    (repository / "a.txt").write_text("two\n")
    git(repository, "diff", "HEAD", "--stat")
    assert sprung.exists()


def test_a_git_that_hangs_is_ended_with_what_it_started(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid_file = tmp_path / "pid"
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text(f"#!/bin/sh\nsleep 60 & echo $! > {pid_file}\nwait\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(slow.parent), prepend=os.pathsep)
    monkeypatch.setattr(module, "_SECONDS", 3.0)  # in which even a busy machine starts a shell

    assert "did not answer within 3 seconds" in ground_truth(str(repository)).problem
    state = Path(f"/proc/{pid_file.read_text().strip()}/stat")
    until(lambda: not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z")


def test_an_endless_answer_is_cut(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = tmp_path / "bin" / "git"
    endless.parent.mkdir()
    endless.write_text("#!/bin/sh\n[ $2 = config ] || exec yes '?? file'\n")
    endless.chmod(0o755)
    monkeypatch.setenv("PATH", str(endless.parent), prepend=os.pathsep)

    truth = ground_truth(str(repository))

    assert truth.problem == ""
    assert len(truth.status) <= 4000
    assert "characters left out" in truth.status


def test_secrets_are_taken_out(repository: Path) -> None:
    git(repository, "commit", "--allow-empty", "-m", "Use ghp_0123456789abcdefghijABCDEFGHIJ012345")
    assert "ghp_0123" not in ground_truth(str(repository)).head
    assert "[redacted:" in ground_truth(str(repository)).head

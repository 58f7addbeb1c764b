"""A release is made whole or not at all."""

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.acceptance.installation import ROOT

NAMED = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in {"NAME": "A. Tester", "EMAIL": "tester@example.org"}.items()
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    subprocess.run(["git", "clone", "--quiet", "--no-tags", ROOT, folder], check=True)
    # what is released is the state of this checkout, committed or not
    changed = subprocess.run(["git", "diff", "--binary", "HEAD"], cwd=ROOT, capture_output=True, check=True)
    if changed.stdout:
        subprocess.run(["git", "apply", "-"], cwd=folder, input=changed.stdout, check=True)
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", "what is not committed yet")
    return folder


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=os.environ | NAMED, text=True, capture_output=True, check=True
    )
    return done.stdout.strip()


def release(folder: Path, version: str) -> subprocess.CompletedProcess[str]:
    tool = [sys.executable, str(ROOT / "tools" / "release.py"), "--root", str(folder), version]
    return subprocess.run(tool, env=os.environ | NAMED, capture_output=True, text=True, check=False)


def test_a_release_is_a_tag_its_section_and_what_can_be_published(repository: Path) -> None:
    before = git(repository, "rev-parse", "HEAD")

    made = release(repository, "9.8.7")

    assert made.returncode == 0, made.stderr
    assert git(repository, "rev-parse", "v9.8.7^{commit}^") == before
    assert git(repository, "rev-parse", "HEAD") == git(repository, "rev-parse", "v9.8.7^{commit}")
    assert git(repository, "status", "--porcelain") == ""
    assert git(repository, "worktree", "list").count("\n") == 0
    changelog = (repository / "CHANGELOG.md").read_text()
    assert "## Unreleased\n\n## 9.8.7 - 2" in changelog
    wheel = repository / "dist" / "holdfast_sessions-9.8.7-py3-none-any.whl"
    assert b'__version__ = "9.8.7"' in zipfile.ZipFile(wheel).read("holdfast/__init__.py")
    lines = (repository / "dist" / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert set(sums) == {wheel.name, "holdfast_sessions-9.8.7.tar.gz"}
    for name, digest in sums.items():
        assert hashlib.sha256((repository / "dist" / name).read_bytes()).hexdigest() == digest

    again = release(repository, "9.8.7")

    assert (again.returncode, again.stderr) == (
        1,
        "release: v9.8.7 is tagged already; choose the next version\n",
    )


@pytest.mark.parametrize("version", ["", "1.2", "v1.2.3", "1.2.3; rm -rf ."])
def test_what_is_not_a_version_is_refused(repository: Path, version: str) -> None:
    refused = release(repository, version)

    assert refused.returncode == 1
    assert refused.stderr.startswith(f"release: {version!r} is not a version; write VERSION=")


def test_nothing_is_released_from_changes_that_nobody_committed(repository: Path) -> None:
    (repository / "README.md").write_text("unfinished")

    refused = release(repository, "9.8.7")

    assert refused.returncode == 1
    assert refused.stderr.startswith("release: there are changes that are not committed")
    assert git(repository, "tag", "--list") == ""


def test_a_release_that_cannot_be_built_leaves_nothing_behind(repository: Path) -> None:
    (repository / "LICENSE").unlink()
    (repository / "pyproject.toml").write_text("[build-system]\nrequires = []\nbuild-backend = 'nothing'\n")
    git(repository, "commit", "--quiet", "--all", "--message", "break it")
    before = git(repository, "rev-parse", "HEAD")

    failed = release(repository, "9.8.7")

    assert failed.returncode == 1
    assert failed.stderr.endswith("failed: nothing was released\n")
    assert (git(repository, "rev-parse", "HEAD"), git(repository, "tag", "--list")) == (before, "")
    assert git(repository, "worktree", "list").count("\n") == 0

"""Makes a release: the changelog's section, a commit and its tag, the wheel, the sdist and their checksums.

    make release VERSION=1.2.0

Everything is made in a work tree of its own. The branch moves and the tag appears only when all of it has worked, so
that nothing has to be undone.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from holdfast.clock import system_clock, to_iso

_VERSION_FILE = "src/holdfast/__init__.py"
_VERSION = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)
_UNRELEASED = "## Unreleased\n"
_RELEASED = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
_CHECKSUMS = "SHA256SUMS"


class Refused(Exception):
    """Nothing was changed; the text says why, and what to do."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("version", help="such as 1.2.0 or 1.2.0rc1")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the repository")
    asked = parser.parse_args()
    try:
        release(asked.root.resolve(), asked.version)
    except Refused as exc:
        print(f"release: {exc}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as exc:
        print(f"release: {' '.join(map(str, exc.cmd))} failed: nothing was released", file=sys.stderr)
        return 1
    return 0


def release(root: Path, version: str) -> None:
    tag = f"v{version}"
    _check(root, version, tag)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        _git(root, "worktree", "add", "--quiet", "--detach", tree, "HEAD")
        try:
            _write_version(tree / _VERSION_FILE, version)
            _write_section(tree / "CHANGELOG.md", version)
            _git(tree, "commit", "--quiet", "--all", "--message", f"Release {version}")
            _build(tree, tree / "dist")
            commit = _git(tree, "rev-parse", "HEAD")
            _git(root, "merge", "--quiet", "--ff-only", commit)
            _git(root, "tag", "--annotate", "--message", f"Holdfast {version}", tag, commit)
            shutil.rmtree(root / "dist", ignore_errors=True)
            shutil.copytree(tree / "dist", root / "dist")
        finally:
            _git(root, "worktree", "remove", "--force", tree)
    print(f"{tag} is tagged, and dist/ has what to publish:")
    print((root / "dist" / _CHECKSUMS).read_text(), end="")
    print(f"to publish it: git push --follow-tags, and upload dist/*{version}*")


def _check(root: Path, version: str, tag: str) -> None:
    if not _RELEASED.fullmatch(version):
        raise Refused(f"{version!r} is not a version; write VERSION=1.2.0 or VERSION=1.2.0rc1")
    if _git(root, "status", "--porcelain"):
        raise Refused("there are changes that are not committed; commit or stash them first")
    if _git(root, "tag", "--list", tag):
        raise Refused(f"{tag} is tagged already; choose the next version")
    if not _section(root / "CHANGELOG.md").strip():
        raise Refused("the section Unreleased of CHANGELOG.md is empty: there is nothing to release")


def _section(changelog: Path) -> str:
    """What is written about changes since the last release."""
    _, found, rest = changelog.read_text("utf-8").partition(_UNRELEASED)
    if not found:
        raise Refused("CHANGELOG.md has no section Unreleased")
    return rest.partition("\n## ")[0]


def _write_version(file: Path, version: str) -> None:
    text, count = _VERSION.subn(f'__version__ = "{version}"', file.read_text("utf-8"))
    if count != 1:
        raise Refused(f"{_VERSION_FILE} must set __version__ exactly once")
    file.write_text(text, "utf-8")


def _write_section(changelog: Path, version: str) -> None:
    today = to_iso(system_clock())[:10]
    text = changelog.read_text("utf-8")
    changelog.write_text(text.replace(_UNRELEASED, f"{_UNRELEASED}\n## {version} - {today}\n", 1), "utf-8")


def _build(tree: Path, to: Path) -> None:
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", to, tree], check=True)
    files = sorted(to.iterdir())
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (to / _CHECKSUMS).write_text("".join(lines))


def _git(folder: Path, *arguments: str | Path) -> str:
    asked = ["git", "-C", folder, *arguments]
    return subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

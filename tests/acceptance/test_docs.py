"""Every command and every piece of Python on a page is run, page by page, in an empty home."""

import os
import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest

from docs import generate_architecture

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])
#: what a reader types into a shell; the rest (``text``, ``toml`` …) is shown, not typed
RUN = ("sh", "sh postgres", "python")
_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MAKE = re.compile(r"^make(?: (\w+))?(?: +#.*)?$")


class Block(NamedTuple):
    kind: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(kind.strip(), text) for kind, text in _FENCE.findall(page.read_text("utf-8"))]


def runs_something(page: Path) -> bool:
    return any(block.kind in RUN for block in blocks(page))


def script(page: Path) -> str:
    """The page as one shell script; neighbouring pieces of Python are one program, as in a reader's shell."""
    parts = ["set -euo pipefail"]
    typed = [block for block in blocks(page) if block.kind in RUN]
    for is_python, group in groupby(typed, key=lambda block: block.kind == "python"):
        text = "".join(block.text for block in group)
        if is_python:
            parts.append(f"python - <<'END_OF_PYTHON'\n{text}END_OF_PYTHON")
        else:
            parts += [line for line in text.splitlines() if not _MAKE.match(line)]
    return "\n".join(parts) + "\n"


@pytest.mark.parametrize("page", [page for page in PAGES if runs_something(page)], ids=lambda page: page.name)
def test_everything_on_the_page_runs(
    page: Path, tmp_path: Path, home: Path, request: pytest.FixtureRequest
) -> None:
    environ = {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.defpath}", "LANG": "C.UTF-8"}
    if any(block.kind == "sh postgres" for block in blocks(page)):
        environ["HOLDFAST_URL"] = request.getfixturevalue("postgres_url")
    ran = subprocess.run(
        ["bash", "-c", script(page)], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_on_the_page_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z.-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = [_MAKE.match(line) for block in blocks(page) for line in block.text.splitlines()]
    assert {found[1] for found in named if found and found[1]} <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_on_the_page_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_the_demo_tells_its_story() -> None:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    for words in (
        "no_pointer",
        "# the agent",
        "interrupted",
        "1. SAY The bug is in parser.py, it is called swordfish / TOOL shell",
        "parser.py was fixed 1 time\n",
        "# holdfast",
        "resuming session",
        "forking session",
        "workdir_changed",
        "from the prompt",
    ):
        assert words in ran.stdout


def test_the_architecture_page_lists_every_module_with_its_first_sentence() -> None:
    page = generate_architecture.ARCHITECTURE.read_text("utf-8")
    assert page == generate_architecture.architecture(), "run: make docs"
    assert [name for name, line in generate_architecture.modules() if not line.strip()] == []


def test_the_guards_page_lists_every_guard_in_order() -> None:
    from holdfast.domain.decisions import Reason

    rows = re.findall(
        r"^\| (\d+) \| `(\w+)` \|", (ROOT / "docs/reference/guards.md").read_text(), re.MULTILINE
    )
    guards = [reason.value for reason in Reason if reason not in (Reason.RESUMABLE, Reason.RESUME_FAILED)]
    assert rows == [(str(number), name) for number, name in enumerate(guards, start=1)]


def test_the_scripted_agents_page_lists_the_directives_as_its_help_does() -> None:
    agent = Path(sys.executable).with_name("holdfast-scripted-agent")
    printed = subprocess.run([agent, "--help"], capture_output=True, text=True, check=True).stdout
    directives = printed.partition("SAY text")[2].partition("\n\n")[0]
    assert directives.count("\n") > 10
    assert (
        f"```text\n  SAY text{directives}\n```\n" in (ROOT / "docs/reference/scripted-agent.md").read_text()
    )

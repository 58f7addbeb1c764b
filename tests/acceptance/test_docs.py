"""Every command and every piece of Python on a page is run, page by page, in an empty home."""

import os
import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from docs import generate_architecture, generate_terminal
from tests.acceptance.screen import terminal, without_what_varies

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


def follow(page: Path, place: Path, home: Path, **variables: str) -> None:
    environ = {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.defpath}", "LANG": "C.UTF-8"}
    ran = subprocess.run(
        ["bash", "-c", script(page)], cwd=place, env=environ | variables, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, f"{page}\n{ran.stdout}\n{ran.stderr}"
    assert "Traceback" not in ran.stderr


def needs_postgres(page: Path) -> bool:
    return any(block.kind == "sh postgres" for block in blocks(page))


@pytest.mark.parametrize("page", [page for page in PAGES if runs_something(page)], ids=lambda page: page.name)
def test_everything_on_the_page_runs(
    page: Path, tmp_path: Path, home: Path, request: pytest.FixtureRequest
) -> None:
    store = {"HOLDFAST_URL": request.getfixturevalue("postgres_url")} if needs_postgres(page) else {}
    follow(page, tmp_path, home, **store)


@pytest.mark.timeout(600)
def test_the_pages_can_be_followed_one_after_the_other_in_one_home(tmp_path: Path, home: Path) -> None:
    """As a reader does: names and files of one page are not in the way of the next."""
    for page in PAGES:
        if runs_something(page) and not needs_postgres(page):
            follow(page, tmp_path, home)


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


def test_the_readme_shows_what_a_person_sees(tmp_path: Path, home: Path) -> None:
    (block,) = [block for block in blocks(ROOT / "README.md") if block.kind == "console"]
    work = tmp_path / "work"
    work.mkdir()
    path = f"{Path(sys.executable).parent}:{os.defpath}"
    seen = []
    for command in re.findall(r"^\$ (.*)$", block.text, re.MULTILINE):
        env = {"HOME": str(home), "PATH": path, "LANG": "C.UTF-8"}
        with terminal("-c", command, program="/bin/bash", cwd=work, env=env) as screen:
            assert screen.end() == 0, screen.shown
            seen.append(f"$ {command}\n{screen.shown.lstrip()}")

    # what is told of the past names directories, whose length is not the same everywhere
    used = re.compile(r"\d+ tokens in, (\d+) out, <?\$[\d.]+")
    shown, expected = (used.sub(r"\1 out", without_what_varies(text)) for text in ("".join(seen), block.text))
    assert shown == expected


def test_the_picture_of_the_terminal_is_drawn_from_a_real_run_and_loads_nothing() -> None:
    drawn = generate_terminal.picture()
    texts = " ".join("".join(element.itertext()) for element in ElementTree.fromstring(drawn).iter())

    assert "restored\N{NO-BREAK SPACE}from\N{NO-BREAK SPACE}the\N{NO-BREAK SPACE}vault" in texts
    for picture in (drawn, generate_terminal.PICTURE.read_text("utf-8")):
        assert set(re.findall(r"https?://[^\"' )]+", picture)) == {"http://www.w3.org/2000/svg"}


def test_the_demo_tells_its_story() -> None:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    for words in (
        "Starting a new scripted session.",
        "# the agent",
        "interrupted",
        "1. SAY The bug is in parser.py, it is called swordfish / TOOL shell",
        "parser.py was fixed 1 time\n",
        "# holdfast",
        "Continuing your scripted session",
        "Forking the scripted session",
        "the work moved to",
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

"""Owns the page that says what was proved on which agent; it is made of the tests themselves.

``pytest tests/agents --write-table`` writes it if every one of them passed. A row is a test, a heading the first
line of its module; what a test says of an agent it says by passing.
"""

import importlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.agents.lab.install import PROGRAMS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "agents-tested.md"
HEAD = """\
# Tested on real agents

Every row was seen on the real program: a pinned version out of npm, in an empty home, with a key that is none,
talking to a model server of the test's own on this machine. `make test-agents` sees it again. An empty cell is a
behaviour that this agent does not have, or that is proved without it.

This page is written by the tests themselves: `make test-agents ARGS=--write-table`.
"""
_TEST = re.compile(r"tests/agents/(?P<module>test_\w+)\.py::test_(?P<name>\w+)\[(?P<parameters>.+)\]")


class Proof(NamedTuple):
    """One test on one agent."""

    module: str
    behaviour: str
    provider: str


def read_proofs(node_ids: Iterable[str]) -> Iterator[Proof]:
    """The tests that drive Holdfast on an agent; the others are about the laboratory."""
    for node_id in node_ids:
        found = _TEST.fullmatch(node_id)
        provider, _, case = found["parameters"].partition("-") if found else ("", "", "")
        if found and found["module"] != "test_lab" and provider in PROGRAMS:
            words = found["name"].replace("_", " ")
            yield Proof(found["module"], f"{words}: {case}" if case else words, provider)


def page(proofs: Iterable[Proof]) -> str:
    proved = sorted(set(proofs))
    rows = dict.fromkeys((proof.module, proof.behaviour) for proof in proved)
    titles = [f"{program.title} {program.version}" for program in PROGRAMS.values()]
    parts = [HEAD]
    for module in dict.fromkeys(module for module, _ in rows):
        heading = str(importlib.import_module(f"tests.agents.{module}").__doc__).splitlines()[0].rstrip(".")
        parts += [f"\n## {heading}\n\n", _row("", titles), _row("---", [":-:"] * len(titles))]
        for row in (row for row in rows if row[0] == module):
            parts += [_row(row[1], ["yes" if Proof(*row, name) in proved else "" for name in PROGRAMS])]
    return "".join(parts)


def _row(first: str, cells: Iterable[str]) -> str:
    return f"| {' | '.join([first, *cells])} |\n"


# --- the plugin ---


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-table", action="store_true", help=f"write {PAGE.name} if all tests passed")


def pytest_configure(config: pytest.Config) -> None:
    # with several workers the reports come together in the process that has no worker's input
    if config.getoption("--write-table") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Writer(), "holdfast-table")


class _Writer:
    def __init__(self) -> None:
        self._passed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._passed.append(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus != 0:
            return
        PAGE.write_text(page(read_proofs(self._passed)), "utf-8")

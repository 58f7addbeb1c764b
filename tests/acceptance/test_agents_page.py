"""The page of what was proved on real agents lists the tests that there are, no more and no less."""

import subprocess
import sys

from holdfast.providers.registry import BUILT_IN, get_provider
from tests.agents.lab.install import PROGRAMS
from tests.agents.table import PAGE, Proof, page, read_proofs


def test_the_page_lists_exactly_what_the_tests_prove() -> None:
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/agents", "--collect-only", "-q"],
        cwd=PAGE.parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert PAGE.read_text("utf-8") == page(read_proofs(collected.stdout.splitlines())), (
        "run: make test-agents ARGS=--write-table"
    )


def test_only_what_drives_an_agent_is_a_proof() -> None:
    proofs = read_proofs(
        [
            "tests/agents/test_turns.py::test_a_b[codex]",
            "tests/agents/test_turns.py::test_a_b[codex-a case]",
            "tests/agents/test_lab.py::test_a_b[codex]",
            "tests/agents/test_guards.py::test_every_guard_is_driven",
            "tests/unit/test_text.py::test_a_b[codex]",
        ]
    )
    assert list(proofs) == [Proof("test_turns", "a b", "codex"), Proof("test_turns", "a b: a case", "codex")]


def test_the_versions_that_are_called_tested_are_those_that_the_tests_drive() -> None:
    said = {name: get_provider(name).tested for name in BUILT_IN}
    assert said == {name: program.version for name, program in PROGRAMS.items()} | {"scripted": None}

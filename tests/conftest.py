"""Owns what every test gets: no way to skip unnoticed, databases, and a home of its own."""

import os
import re
import signal
import sys
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["tests.require", "tests.workers", "tests.postgres_fixtures", "tests.agents.table"]
# the shipped contract suites, and what the tests here share, say what they compared
pytest.register_assert_rewrite(
    "holdfast.testing", "tests.steps", "tests.consistency", "tests.integration.session_acts"
)

# Examples are judged by their result; how long one takes depends on what else the machine does.
settings.register_profile("holdfast", deadline=None)
settings.load_profile("holdfast")

# The tests start the command thousands of times: without its bytecode every start would compile it anew. The
# rewritten asserts of the tests are bytecode too: without it every worker would rewrite all of them in every run.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell starts background jobs with SIGINT ignored, nohup with SIGHUP ignored, and every process of a test would
# inherit that: what interrupts do is tested, wherever the tests were started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

_numbers = count()

HARNESS_VARIABLES = {"HOLDFAST_REQUIRE", "HOLDFAST_TEST_POSTGRES_URL", "HOLDFAST_TEST_WRITE_SCREENS"}


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As pytest's own, which reads the whole directory to find a free number: minutes for thousands of tests."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    return tmp_path_factory.mktemp(f"{name}{next(_numbers)}", numbered=False)


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory: no test reads or writes the store and settings of the person who runs it."""
    home = tmp_path_factory.mktemp(f"home{next(_numbers)}", numbered=False)
    for name in set(os.environ) - HARNESS_VARIABLES:
        if name.startswith(("HOLDFAST_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    return home

"""Owns the processes of a test run: how many workers pytest-xdist has, what they begin with, and that they end."""

import faulthandler
import os
from typing import Any

import pytest

#: They take minutes, most of which they wait. Begun last, they would run alone while the other workers have ended.
#: Each file is the beginning of one worker's share, so that two of them do not compete for the machine for long.
LONGEST = ("tests/chaos/test_campaign.py", "tests/agents/test_chaos.py", "tests/agents/test_past.py")


#: A process of the run that is still there so long after its last test has hung: a thread, a pipe or a server that
#: never ends. No test's limit covers that, and the whole run would wait for it.
LINGER_SECONDS = 120.0

_errors = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    words = (
        "a process that has not ended so many seconds after its last test shows what it does, and is ended"
    )
    parser.addini("linger_seconds", words, default=str(LINGER_SECONDS))


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_errors] = os.dup(2)  # while tests run, pytest has something else there


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    seconds = float(session.config.getini("linger_seconds"))
    if not hasattr(session.config, "workerinput"):
        seconds *= 3  # it waits for its workers
    faulthandler.dump_traceback_later(seconds, exit=True, file=session.config.stash[_errors])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """For ``-n logical``: two more than there are processors, because tests wait for processes, leases and polls."""
    if config.option.numprocesses != "logical":
        return None
    return len(os.sched_getaffinity(0)) + 2 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) + 2


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    told: dict[str, Any] = getattr(config, "workerinput", {})
    shares = int(told.get("workercount", 1))
    if shares > 1:
        items[:] = longest_first(items, shares)


def longest_first(items: list[pytest.Item], shares: int) -> list[pytest.Item]:
    """``--dist worksteal`` first gives each worker an equal share of neighbours: let a longest file begin each."""
    files = [[item for item in items if item.nodeid.startswith(path)] for path in LONGEST]
    others = [item for item in items if not item.nodeid.startswith(LONGEST)]
    ordered: list[pytest.Item] = []
    for share in range(shares):
        size = (len(items) - len(ordered)) // (shares - share)
        for first in files[share::shares]:
            ordered += first
            size -= len(first)
        ordered += others[: max(0, size)]
        del others[: max(0, size)]
    return ordered

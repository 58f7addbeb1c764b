"""Owns the promise that nothing is skipped unnoticed.

What a machine lacks is skipped with its reason. Under ``HOLDFAST_REQUIRE=all`` every skip and every
expected failure is an error instead: in a test, in a fixture, and at the import of a test module.
"""

import os
from collections.abc import Generator

import pytest

VARIABLE = "HOLDFAST_REQUIRE"


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get(VARIABLE, "") not in ("", "all"):
        raise pytest.UsageError(f"{VARIABLE} is {os.environ[VARIABLE]!r}; it can be 'all' or not set")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if everything_is_required():
        if hasattr(report, "wasxfail"):
            _fail(report, f"expected to fail: {report.wasxfail or 'no reason given'}")
            del report.wasxfail
        elif report.skipped:
            _fail(report, f"skipped: {_reason(report)}")
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped and everything_is_required():
        _fail(report, f"skipped: {_reason(report)}")
    return report


def everything_is_required() -> bool:
    return os.environ.get(VARIABLE) == "all"


def _fail(report: pytest.TestReport | pytest.CollectReport, why: str) -> None:
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid}: {why}\n{VARIABLE}=all turns this into an error."


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    match report.longrepr:
        case (_path, _line, str(reason)):
            return reason.removeprefix("Skipped: ")
        case other:
            return str(other)

import pytest

from holdfast.domain.failures import FailureClass
from holdfast.processes.process import Exit
from holdfast.providers.failure_rules import Evidence
from holdfast.providers.opencode import Opencode, OpencodeStream
from holdfast.providers.report import Ending, judge
from tests.unit.providers.builders import (
    RESUME,
    a_launch_spec,
    read_all,
    recorded,
    recorded_stderr,
    report_of,
)

RULES = Opencode().rules
HELP = "opencode run [message..]\n\nrun opencode with a message\n"
SET_UP_TWICE = """Error: Unexpected error

Failed query:
        CREATE TABLE `workspace` (
          `id` text PRIMARY KEY,
          `type` text NOT NULL
        );

params:
"""
REJECTED = "! permission requested: bash ({}); auto-rejecting\n"


def ending_of(case: str, exit_code: int) -> Ending:
    report = report_of(read_all(OpencodeStream(), recorded("opencode", case)))
    report.session_id = None  # the recordings are of other sessions than the order's
    stderr = recorded_stderr("opencode", case)
    ended = Exit(exit_code, None, None, stderr, left_behind=False, is_missing_binary=False)
    return judge(a_launch_spec(decision=RESUME), report, ended, Opencode())


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("resume_not_found", FailureClass.GONE),
        ("resume_in_new_home", FailureClass.GONE),
        ("http_400", FailureClass.NOT_ACCEPTED),
        ("http_401", FailureClass.AUTH),
    ],
)
def test_what_the_cli_did_is_classified(case: str, expected: FailureClass) -> None:
    failure = ending_of(case, 1).failure
    assert failure is not None
    assert failure.failure_class is expected


def test_a_session_that_is_not_found_was_refused() -> None:
    assert ending_of("resume_not_found", 1).refused


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (Evidence("maximum context length", code="ContextOverflowError", exit_code=1), FailureClass.OVERFLOW),
        (Evidence("context_length_exceeded", status=400, code="APIError"), FailureClass.OVERFLOW),
        (Evidence("no key", code="ProviderAuthError", exit_code=1), FailureClass.AUTH),
        (Evidence("slow down", status=429, code="APIError"), FailureClass.TRANSIENT),
        (Evidence("overloaded", status=529, code="APIError"), FailureClass.TRANSIENT),
        (Evidence("Error: Unexpected error\n\ndatabase is locked", exit_code=1), FailureClass.TRANSIENT),
        (Evidence(SET_UP_TWICE, exit_code=1), FailureClass.TRANSIENT),
        (
            Evidence("Error: Unexpected error\n\nFailed query: \ninsert into `part`", exit_code=1),
            FailureClass.UNKNOWN,
        ),
        (Evidence("", code="MessageAbortedError", exit_code=1), FailureClass.INTERRUPTED),
        (Evidence('{"type":"invalid_request_error"}', status=400, resumed=True), FailureClass.NOT_ACCEPTED),
        (Evidence(REJECTED.format("ls"), exit_code=0), FailureClass.CONFIG),
        (Evidence(HELP, exit_code=1), FailureClass.CONFIG),
        (Evidence("Error: You must provide a message or a command", exit_code=1), FailureClass.CONFIG),
        (Evidence("Error: Failed to change directory to /nowhere", exit_code=1), FailureClass.CONFIG),
    ],
)
def test_what_opencode_says_is_known(evidence: Evidence, expected: FailureClass) -> None:
    assert RULES.classify(evidence).failure_class is expected


@pytest.mark.parametrize(
    "evidence",
    [
        Evidence("Error: Session not found", exit_code=1),  # nothing was to be continued
        Evidence(REJECTED.format("echo Error: Session not found"), exit_code=1, resumed=True),
        Evidence("Error: Session not found in the notes", exit_code=1, resumed=True),
        Evidence("Unexpected server error. Check server logs", code="UnknownError", exit_code=1),
        Evidence("Error: Unexpected error\n\nfile is not a database", exit_code=1, resumed=True),
        Evidence("permission requested: bash", exit_code=0),
    ],
)
def test_what_only_looks_like_it_stays_unknown(evidence: Evidence) -> None:
    assert RULES.classify(evidence).failure_class is FailureClass.UNKNOWN

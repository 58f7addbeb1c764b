import pytest

from holdfast.domain.failures import FailureClass
from holdfast.domain.ids import ProviderSessionId
from holdfast.processes.process import Exit
from holdfast.providers.failure_rules import Evidence
from holdfast.providers.gemini import Gemini, GeminiStream
from holdfast.providers.report import Ending, Report, judge
from tests.unit.providers.builders import (
    OLD,
    RESUME,
    a_launch_spec,
    read_all,
    recorded,
    recorded_stderr,
    report_of,
)

RULES = Gemini().rules
#: where it puts a report about each failed call; the time in its name ends with milliseconds
REPORT = "Full report available at: /tmp/gemini-client-error-2026-11-15T22-54-33-{}Z.json _ApiError"
API_ERROR = '[API Error: {{"error":{{"code":{},"message":"{}"}}}}]'


def ending_of(case: str, exit_code: int) -> Ending:
    report = report_of(read_all(GeminiStream(), recorded("gemini", case)))
    report.session_id = None  # the recordings are of other sessions than the order's
    stderr = recorded_stderr("gemini", case)
    ended = Exit(exit_code, None, None, stderr, left_behind=False, is_missing_binary=False)
    return judge(a_launch_spec(decision=RESUME), report, ended, Gemini())


@pytest.mark.parametrize(
    ("case", "exit_code", "expected"),
    [
        ("resume_not_found", 42, FailureClass.GONE),
        ("resume_in_new_home", 42, FailureClass.GONE),
        ("http_400", 144, FailureClass.NOT_ACCEPTED),
        ("http_401", 145, FailureClass.AUTH),
        ("cut_stream", 1, FailureClass.TRANSIENT),
        ("empty_stream", 0, FailureClass.TRANSIENT),
    ],
)
def test_what_the_cli_did_is_classified(case: str, exit_code: int, expected: FailureClass) -> None:
    failure = ending_of(case, exit_code).failure
    assert failure is not None
    assert failure.failure_class is expected


def test_an_interrupted_run_says_how_it_ended_and_not_what_the_cli_always_says() -> None:
    failure = ending_of("interrupted", 0).failure
    assert failure is not None
    assert failure.failure_class is FailureClass.INTERRUPTED
    assert failure.message == "the agent ended with exit code 0 and no final event"


@pytest.mark.parametrize("session_id", [None, OLD])
def test_what_it_says_as_it_starts_does_not_tell_why_it_stopped(session_id: ProviderSessionId | None) -> None:
    """Its first process ends with 1 when the one that does its work is killed, also before that names its session."""
    starting = (
        "Warning: True color (24-bit) support not detected.\nRipgrep is not available.\n"
        "[STARTUP] Phase 'cleanup_ops' was started but never ended. Skipping metrics.\n"
    )
    verdicts = []
    for said in ("", "out of cheese\n"):
        ended = Exit(1, None, None, starting + said, left_behind=False, is_missing_binary=False)
        failure = judge(
            a_launch_spec(decision=RESUME), Report(session_id=session_id), ended, Gemini()
        ).failure
        assert failure is not None
        verdicts.append((failure.failure_class, failure.message))

    assert verdicts == [
        (FailureClass.INTERRUPTED, "the agent ended with exit code 1 and no final event"),
        (FailureClass.UNKNOWN, "out of cheese"),
    ]


@pytest.mark.parametrize("case", ["resume_not_found", "resume_in_new_home"])
def test_a_session_that_is_not_found_was_refused(case: str) -> None:
    assert ending_of(case, 42).refused


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (
            Evidence(
                "Error importing session from file: File not found or invalid format: /x.jsonl",
                exit_code=42,
                resumed=True,
            ),
            FailureClass.GONE,
        ),
        (
            Evidence(
                'Error starting session: Session ID "1" already exists. Use --resume to resume it',
                exit_code=42,
            ),
            FailureClass.LOCKED,
        ),
        (
            Evidence("you must specify the GEMINI_API_KEY environment variable.", exit_code=41),
            FailureClass.AUTH,
        ),
        (Evidence("Gemini CLI is not running in a trusted directory.", exit_code=55), FailureClass.CONFIG),
        (Evidence("No input provided via stdin.", exit_code=42), FailureClass.CONFIG),
        (Evidence("Usage: gemini [options] [command]\n", exit_code=1), FailureClass.CONFIG),
        (
            Evidence(
                "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
                status=400,
            ),
            FailureClass.OVERFLOW,
        ),
        (Evidence(API_ERROR.format(403, "no"), status=403, exit_code=147), FailureClass.AUTH),
        (Evidence(API_ERROR.format(503, "no"), status=503), FailureClass.TRANSIENT),
        (Evidence("You exceeded your current quota, please check your plan", status=429), FailureClass.LIMIT),
        (Evidence("[API Error: exception TypeError: fetch failed sending request]"), FailureClass.TRANSIENT),
    ],
)
def test_what_gemini_says_is_known(evidence: Evidence, expected: FailureClass) -> None:
    assert RULES.classify(evidence).failure_class is expected


@pytest.mark.parametrize("milliseconds", [401, 403, 429, 500, 503, 529])
def test_the_time_of_a_report_is_not_a_status(milliseconds: int) -> None:
    evidence = Evidence(f"[API Error: no such model]\n{REPORT.format(milliseconds)}", exit_code=1)
    assert RULES.classify(evidence).failure_class is FailureClass.UNKNOWN
    overloaded = Evidence(REPORT.format(401), status=503)
    assert RULES.classify(overloaded).failure_class is FailureClass.TRANSIENT


@pytest.mark.parametrize(
    "evidence",
    [
        Evidence("Error resuming session: Invalid session identifier", exit_code=42),  # nothing was resumed
        Evidence(
            "Error executing tool: Error resuming session: Invalid session identifier",
            exit_code=42,
            resumed=True,
        ),
        Evidence("Error resuming session: Invalid session identifier", exit_code=1, resumed=True),
        Evidence("see: usage: gemini [options]", exit_code=1),
        Evidence("", exit_code=42, resumed=True),
    ],
)
def test_what_only_looks_like_it_stays_unknown(evidence: Evidence) -> None:
    assert RULES.classify(evidence).failure_class is FailureClass.UNKNOWN

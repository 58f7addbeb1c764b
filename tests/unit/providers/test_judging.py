"""The verdict on a run: from how it ended, never from what the agent said."""

import pytest

from holdfast.domain.decisions import Fork, Fresh, Reason, Resume
from holdfast.domain.events import AgentEvent, Called, Deferred, Ended, Named, Returned, Said, Ungated
from holdfast.domain.failures import FailureClass, StopCause
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.redaction import Json
from holdfast.processes.process import Exit
from holdfast.providers.codex import Codex
from holdfast.providers.report import MAX_RESPONSE, Ending, Report, judge
from holdfast.providers.scripted import Scripted
from tests.unit.providers.builders import FORK, FRESH, NEW, OLD, RESUME, a_launch_spec, report_of

OTHER = ProviderSessionId("another")
ANSWERED = (Said("done"), Ended(True))


def an_exit(code: int | None = 0, *, stopped: StopCause | None = None, stderr: str = "", number: int | None = None,
            missing: bool = False) -> Exit:  # fmt: skip
    return Exit(code, number, stopped, stderr, False, missing)


def verdict(
    decision: Resume | Fork | Fresh,
    *events: AgentEvent,
    ended: Exit | None = None,
    new_id: str | None = None,
) -> Ending:
    spec = a_launch_spec(decision=decision, new_id=None if new_id is None else ProviderSessionId(new_id))
    return judge(spec, report_of(events), ended or an_exit(), Scripted())


def kind(ending: Ending) -> FailureClass | None:
    return None if ending.failure is None else ending.failure.failure_class


@pytest.mark.parametrize(
    ("events", "ended", "expected"),
    [
        (ANSWERED, an_exit(), None),
        (ANSWERED, an_exit(None, number=15, stopped=StopCause.TIMEOUT), None),
        (ANSWERED, an_exit(None, number=15, stopped=StopCause.CANCELLED), FailureClass.CANCELLED),
        (ANSWERED, an_exit(None, number=9), None),
        (ANSWERED, an_exit(None, number=15, stopped=StopCause.EXIT), None),
        (ANSWERED, an_exit(None, number=15, stopped=StopCause.HANDED_BACK), None),
        (ANSWERED, an_exit(None, number=15, stopped=StopCause.LEASE_LOST), FailureClass.INTERRUPTED),
        ((*ANSWERED, Said("and more")), an_exit(None, number=9), FailureClass.INTERRUPTED),
        ((*ANSWERED, Called("1", "shell", {}), Returned("1", "", False)), an_exit(None, number=9),
         FailureClass.INTERRUPTED),
        ((*ANSWERED, Said("and more")), an_exit(stopped=StopCause.TIMEOUT), FailureClass.INTERRUPTED),
        (ANSWERED, an_exit(1), FailureClass.UNKNOWN),
        (ANSWERED, an_exit(1, stderr="server overloaded, retrying"), FailureClass.UNKNOWN),
        ((*ANSWERED, Said("and")), an_exit(1, stderr="server overloaded"), FailureClass.TRANSIENT),
        ((Said("half"),), an_exit(stopped=StopCause.TIMEOUT), FailureClass.INTERRUPTED),
        ((Said("half"),), an_exit(stopped=StopCause.EXIT), FailureClass.INTERRUPTED),
        ((Said("half"),), an_exit(stopped=StopCause.LEASE_LOST), FailureClass.INTERRUPTED),
        ((Ungated("no"),), an_exit(stopped=StopCause.UNGATED), FailureClass.CONFIG),
        ((Ungated("no"), Ended(ok=True)), an_exit(), FailureClass.CONFIG),
        ((Said("half"),), an_exit(None, number=9), FailureClass.INTERRUPTED),
        ((Said("half"),), an_exit(0), FailureClass.INTERRUPTED),
        ((Said("half"),), an_exit(0, stderr="a warning"), FailureClass.INTERRUPTED),
        ((), an_exit(3, stderr="broken"), FailureClass.UNKNOWN),
        ((), an_exit(127, missing=True), FailureClass.MISSING_BINARY),
        ((Ended(False, error="no", status=401),), an_exit(1), FailureClass.AUTH),
        ((Ended(False, error="no", status=529),), an_exit(1), FailureClass.TRANSIENT),
        ((Ended(True), Ended(False, error="no", status=500)), an_exit(0), FailureClass.TRANSIENT),
        ((Ended(False, error="no"), Ended(True)), an_exit(0), None),
        ((Said("No conversation found with session ID: x"), Ended(True)), an_exit(0), None),
        ((Said("No conversation found with session ID: x"), Ended(False, error="odd")), an_exit(1),
         FailureClass.UNKNOWN),
    ],
)  # fmt: skip
def test_how_a_run_failed(events: tuple[AgentEvent, ...], ended: Exit, expected: FailureClass | None) -> None:
    assert kind(verdict(RESUME, *events, ended=ended)) is expected


GONE = Ended(False, error="No conversation found", code="session_not_found")


@pytest.mark.parametrize(
    ("decision", "new_id", "events", "refused"),
    [
        (RESUME, None, (GONE,), True),
        (RESUME, None, (Called("1", "shell", {}), Returned("1", "", False), GONE), False),
        (FRESH, NEW, (GONE,), False),
        (FORK, NEW, (GONE,), True),
        (RESUME, None, (Named(OTHER), *ANSWERED), True),
        (RESUME, None, (Named(OTHER), Called("1", "shell", {}), *ANSWERED), False),
        (RESUME, None, (Named(OLD), *ANSWERED), False),
        (FORK, NEW, (Named(OLD), *ANSWERED), True),
        (FORK, None, (Named(OTHER), *ANSWERED), False),
        (FRESH, NEW, (Named(OTHER), *ANSWERED), False),
        (Fresh(Reason.NO_POINTER, (), NEW), NEW, (Named(OTHER), *ANSWERED), True),
    ],
)
def test_only_positive_evidence_before_any_tool_is_a_refusal(
    decision: Resume | Fork | Fresh, new_id: str | None, events: tuple[AgentEvent, ...], refused: bool
) -> None:
    ended = an_exit(1) if GONE in events else an_exit()
    assert verdict(decision, *events, ended=ended, new_id=new_id).refused is refused


def an_error(status: int, text: str = "nobody knows these words") -> Ended:
    return Ended(False, error=text, status=status)


@pytest.mark.parametrize(
    ("decision", "events", "refused"),
    [
        (RESUME, (an_error(400),), True),
        (RESUME, (an_error(422),), True),
        (FORK, (an_error(400),), True),
        (RESUME, (Ended(False, error="poisoned", code="poisoned"),), True),
        (FRESH, (an_error(400),), False),
        (RESUME, (Said("half"), an_error(400)), False),
        (RESUME, (Called("1", "shell", {}), Returned("1", "", False), an_error(400)), False),
        (RESUME, (an_error(400, "your credit balance is too low"),), False),
        (RESUME, (an_error(400, "prompt is too long"),), True),
        (RESUME, (an_error(413, "too large"),), True),
        (RESUME, (Said("half"), an_error(400, "prompt is too long")), False),
        *((RESUME, (an_error(status),), False) for status in (401, 402, 403, 404, 408, 429, 500, 529)),
    ],
)
def test_a_request_that_is_not_accepted_right_after_a_resume_may_be_the_fault_of_its_history(
    decision: Resume | Fork | Fresh, events: tuple[AgentEvent, ...], refused: bool
) -> None:
    assert verdict(decision, *events, ended=an_exit(1), new_id=NEW).refused is refused


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize(
    "quoted",
    [
        "connection reset",
        "internal error",
        "rate limit",
        "error 503",
        "unauthorized",
        "quota exceeded",
        "usage limit reached, resets at 1800000000",
        "context_length",
        "prompt is too long",
        "Your credit balance is too low",
        "API key not valid",
        "model_not_found",
    ],
)
def test_an_error_that_quotes_the_history_is_not_judged_by_what_it_quotes(status: int, quoted: str) -> None:
    ended = an_error(status, f"messages.3.content.0: tool_result holds '{quoted}'")
    ending = verdict(RESUME, ended, ended=an_exit(1, stderr=f"a warning: {quoted}"))
    assert (kind(ending), ending.refused) == (FailureClass.NOT_ACCEPTED, True)


def test_a_limit_says_when_it_ends_and_colours_are_no_part_of_a_message() -> None:
    ending = verdict(
        RESUME, ended=an_exit(1, stderr="\x1b[31musage limit reached, resets at 1800000000\x1b[0m")
    )
    assert (kind(ending), ending.reset_at is not None) == (FailureClass.LIMIT, True)
    assert ending.failure is not None
    assert "\x1b" not in ending.failure.message


def test_the_answer_is_what_was_said_or_what_the_provider_repeats() -> None:
    assert report_of([Said("a"), Said("b")]).response == "ab"
    assert report_of([Said("a"), Ended(True), Said("b"), Ended(True)]).response == "a\n\nb"
    assert report_of([Said("a"), Said("b"), Ended(True, response="b")]).response == "b"
    assert report_of([Ended(True)]).response is None


def test_an_answer_is_bounded_and_says_that_it_was_cut() -> None:
    report = Report()
    for _ in range(20):
        report.add(Said("x" * (MAX_RESPONSE // 4)))
    report.add(Ended(True))
    assert report.response is not None
    assert len(report.response) < MAX_RESPONSE + 100
    assert report.response.endswith("[cut: the answer was longer]")


def test_calls_without_a_result_are_in_flight() -> None:
    report = report_of([Called("1", "shell", {}), Called("2", "write", {}), Returned("1", "", False)])
    assert (report.tools, report.in_flight) == (2, {"2": Called("2", "write", {})})


@pytest.mark.parametrize(
    ("named", "stderr", "expected"),
    [
        (True, "", FailureClass.INTERRUPTED),
        (False, "", FailureClass.UNKNOWN),
        (True, "something odd", FailureClass.UNKNOWN),
    ],
    ids=["stopped in the middle", "never began", "said why"],
)
def test_only_who_began_and_stopped_without_a_word_was_stopped(
    named: bool, stderr: str, expected: FailureClass
) -> None:
    report = Report(session_id=OLD if named else None)
    ended = Exit(code=1, signal=None, stopped=None, stderr=stderr, left_behind=False, is_missing_binary=False)

    failure = judge(a_launch_spec(decision=RESUME), report, ended, Codex()).failure

    assert failure is not None
    assert failure.failure_class is expected


def test_a_call_that_was_deferred_is_neither_an_answer_nor_a_failure() -> None:
    call = Deferred("toolu_01", "Bash", {"command": "terraform apply"})
    ending = verdict(RESUME, Called("toolu_01", "Bash", call.arguments), call)
    assert (ending.deferred, ending.failure, ending.is_answered) == (call, None, False)
    assert kind(verdict(RESUME, call, ended=an_exit(1))) is FailureClass.UNKNOWN


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("Bash", {"description": "Apply", "command": "terraform\n  apply"}, "Bash: terraform apply"),
        ("Write", {"file_path": "/a", "content": "x"}, "Write: /a"),
        ("mcp__db__drop", {"table": "ü"}, 'mcp__db__drop: {"table": "ü"}'),
        ("Bash", {"command": "x" * 1000}, "Bash: " + "x" * 294 + "…"),
    ],
)
def test_a_deferred_call_can_be_read_by_a_person(tool: str, arguments: dict[str, Json], words: str) -> None:
    assert Deferred("toolu_01", tool, arguments).words == words

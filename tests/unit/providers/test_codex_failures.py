import pytest

from holdfast.domain.failures import FailureClass
from holdfast.providers.codex import Codex, CodexStream
from holdfast.providers.failure_rules import Evidence
from tests.unit.providers.builders import read_all, recorded, recorded_stderr, report_of

RULES = Codex().rules
ID = "01a1e167-7227-7f42-aba3-284d1ae84e5e"
RESUMING = "Error: thread/resume: thread/resume failed:"


def classify(text: str, *, status: int | None = None, resumed: bool = True) -> FailureClass:
    return RULES.classify(Evidence(text, status, resumed=resumed)).failure_class


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("resume_not_found", FailureClass.GONE),
        ("http_400", FailureClass.NOT_ACCEPTED),
        ("http_401", FailureClass.AUTH),
        ("http_429", FailureClass.TRANSIENT),
        ("http_500", FailureClass.TRANSIENT),
        ("http_529", FailureClass.TRANSIENT),
        ("cut_stream", FailureClass.TRANSIENT),
        ("empty_stream", FailureClass.TRANSIENT),
    ],
)
def test_what_the_cli_did_is_classified(case: str, expected: FailureClass) -> None:
    ended = report_of(read_all(CodexStream(), recorded("codex", case))).ended
    text = f"{ended.error if ended else ''}\n{recorded_stderr('codex', case)}"
    assert classify(text, status=ended.status if ended else None) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{RESUMING} no rollout found for thread id {ID} (code -32600)", FailureClass.GONE),
        (
            f"{RESUMING} invalid paginated history lineage for {ID}: missing source rollout (code -32600)",
            FailureClass.GONE,
        ),
        (
            f"{RESUMING} thread-store internal error: rollout at /x/rollout-{ID}.jsonl does not start with session metadata (code -32603)",
            FailureClass.GONE,
        ),
        (
            f"{RESUMING} thread-store internal error: rollout at /x/{ID}.jsonl is empty (code -32603)",
            FailureClass.GONE,
        ),
        (f"{RESUMING} session {ID} is archived. Run `codex unarchive {ID}`", FailureClass.GONE),
        (f"{RESUMING} thread {ID} already has an active writer (code -32600)", FailureClass.LOCKED),
        (f"{RESUMING} bufio.Scanner: token too long", FailureClass.POISONED),
        ("Codex ran out of room in the model's context window. Start a new thread", FailureClass.OVERFLOW),
        ('{"error": {"code": "context_length_exceeded"}}', FailureClass.OVERFLOW),
        ("You've hit your usage limit. Try again at 3:04 PM.", FailureClass.LIMIT),
        ("Quota exceeded. Check your plan and billing details.", FailureClass.LIMIT),
        (
            "Your authentication session could not be refreshed automatically. Please log out and sign in again.",
            FailureClass.AUTH,
        ),
        (
            "Not inside a trusted directory and --skip-git-repo-check was not specified.",
            FailureClass.CONFIG,
        ),
        ("error: invalid value 'nope' for '--sandbox <SANDBOX_MODE>'", FailureClass.CONFIG),
        ("error: unexpected argument '--nope' found", FailureClass.CONFIG),
    ],
)
def test_exact_words_are_classified(text: str, expected: FailureClass) -> None:
    assert classify(text) is expected


@pytest.mark.parametrize(
    "text",
    [
        "no rollout was planned",
        "the list is empty (code review)",
        "the session archive was written",
        'WARNING: proceeding, even though we could not create PATH aliases (codex_home: "/home/.codex")',
        "Reading additional input from stdin...",
        "",
    ],
)
def test_near_misses_stay_unknown(text: str) -> None:
    assert classify(text) is FailureClass.UNKNOWN


def test_a_new_thread_is_never_gone() -> None:
    assert classify("no rollout found for thread id", resumed=False) is FailureClass.UNKNOWN


def test_what_the_agent_says_changes_nothing() -> None:
    said = {"type": "agent_message", "id": "1", "text": "no rollout found for thread id"}
    lines = [{"type": "item.completed", "item": said}, {"type": "turn.failed", "error": {"message": ""}}]
    ended = report_of(read_all(CodexStream(), lines)).ended
    assert ended is not None
    assert classify(ended.error) is FailureClass.UNKNOWN

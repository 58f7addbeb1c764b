import pytest

from holdfast.clock import Instant
from holdfast.domain.failures import FailureClass
from holdfast.providers.claude.provider import Claude, ClaudeStream
from holdfast.providers.failure_rules import Evidence
from tests.unit.providers.builders import RESUME, a_launch_spec, read_all, recorded, recorded_stderr, the_end

RULES = Claude().rules
LARGE_IMAGE = (
    "messages.14.content.0.image.source.base64.data: image dimensions exceed max allowed size: 8000 pixels"
)


def classify(
    text: str = "", *, status: int | None = None, code: str = "", resumed: bool = True
) -> FailureClass:
    return RULES.classify(Evidence(text, status, code, resumed=resumed)).failure_class


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("resume_not_found", FailureClass.GONE),
        ("interrupted", FailureClass.INTERRUPTED),
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
    ended = the_end(read_all(ClaudeStream(a_launch_spec(decision=RESUME)), recorded("claude", case)))
    text = f"{ended.error}\n{recorded_stderr('claude', case)}"
    assert classify(text, status=ended.status, code=ended.code) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("No conversation found with session ID: 00000000-0000-4000-8000-000000000000", FailureClass.GONE),
        ("Failed to resume session: EISDIR: illegal operation on a directory, read", FailureClass.GONE),
        (
            'Error: --resume requires a valid session ID or session title when used with --print. Provided value "foo" is not a UUID',
            FailureClass.GONE,
        ),
        ("this session is bound to another account", FailureClass.GONE),
        ("Error: Session ID 51368eb2-1111-4222-8333-444455556666 is already in use.", FailureClass.LOCKED),
        ("API Error: 400 invalid_request_error: messages.3 has no thinking block", FailureClass.NOT_ACCEPTED),
        ("Could not resolve authentication method", FailureClass.NOT_ACCEPTED),
        ("image dimensions exceed max allowed size", FailureClass.POISONED),
        ("Prompt is too long and cannot be compacted", FailureClass.OVERFLOW),
        ("Conversation too long. Press esc twice to go up a few messages", FailureClass.OVERFLOW),
        ("You've hit your session limit · resets 3pm", FailureClass.LIMIT),
        ("You're out of usage credits.", FailureClass.LIMIT),
        ("Not logged in · Please run /login", FailureClass.AUTH),
        ("error: unknown option '--nonsense'", FailureClass.CONFIG),
        ("error: option '--permission-mode <mode>' argument 'fancy' is invalid.", FailureClass.CONFIG),
        ("Error: Invalid session ID. Must be a valid UUID.", FailureClass.CONFIG),
        (
            "--dangerously-skip-permissions cannot be used with root/sudo privileges for security reasons",
            FailureClass.CONFIG,
        ),
        ("API Error: Connection refused (ECONNREFUSED)", FailureClass.TRANSIENT),
        ("API Error: Repeated 529 Overloaded errors.", FailureClass.TRANSIENT),
    ],
)
def test_exact_words_are_classified(text: str, expected: FailureClass) -> None:
    assert classify(text) is expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("prompt_too_long", FailureClass.OVERFLOW),
        ("aborted_tools", FailureClass.INTERRUPTED),
        ("image_error", FailureClass.POISONED),
        ("billing_error", FailureClass.LIMIT),
        ("oauth_org_not_allowed", FailureClass.AUTH),
        ("overloaded", FailureClass.TRANSIENT),
        ("max_turns", FailureClass.CONFIG),
        ("budget_exhausted", FailureClass.CONFIG),
        ("model_not_found", FailureClass.CONFIG),
        ("hook_stopped", FailureClass.UNKNOWN),
    ],
)
def test_the_clis_own_codes_are_classified(code: str, expected: FailureClass) -> None:
    assert classify(code=code) is expected


@pytest.mark.parametrize(
    ("text", "status", "expected"),
    [
        ("Could not process image", 400, FailureClass.POISONED),
        ("Could not process image", 529, FailureClass.TRANSIENT),
        ("Could not process image", 429, FailureClass.TRANSIENT),
        ("the service for images is overloaded, try again", None, FailureClass.TRANSIENT),
        ("temporarily unable to process image", None, FailureClass.TRANSIENT),
        ("Unable to process input image. Please retry.", None, FailureClass.TRANSIENT),
        ("Unable to process input image. Please retry.", 400, FailureClass.POISONED),
        (f"Internal error (code=-32603, data={LARGE_IMAGE})", None, FailureClass.POISONED),
        (LARGE_IMAGE, 500, FailureClass.POISONED),
        ("Request too large (max 32MB). Accumulated images and attachments", 413, FailureClass.OVERFLOW),
    ],
)
def test_an_image_that_was_not_to_be_had_says_nothing_about_the_history(
    text: str, status: int | None, expected: FailureClass
) -> None:
    found = RULES.classify(Evidence(text, status, code="image_error", resumed=True))
    assert found.failure_class is expected


@pytest.mark.parametrize(
    "text",
    [
        "No conversation was found in the notes",
        "the port 8080 is already in use",
        "processed 42900 rows in 15290 steps",
        "the session was resumed",
        "",
    ],
)
def test_near_misses_stay_unknown(text: str) -> None:
    assert classify(text) is FailureClass.UNKNOWN


@pytest.mark.parametrize("text", ["No conversation found", "image_error"])
def test_a_new_session_is_never_gone_or_poisoned(text: str) -> None:
    assert classify(text, code=text, resumed=False) is FailureClass.UNKNOWN


@pytest.mark.parametrize(
    "text", ["You've hit your limit\nresets_at=1794790000", "Claude AI usage limit reached|1794790000"]
)
def test_a_limit_tells_when_it_ends(text: str) -> None:
    classified = RULES.classify(Evidence(text, status=429, code="rate_limit"))
    assert classified.failure_class is FailureClass.LIMIT
    assert classified.reset_at == Instant(1794790000 * 1_000_000)

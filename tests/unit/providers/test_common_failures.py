import pytest

from holdfast.domain.failures import FailureClass
from holdfast.providers.failure_rules import Evidence, load_rules
from holdfast.providers.registry import provider_names


@pytest.fixture(params=provider_names())
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def classify(provider: str, text: str) -> FailureClass:
    return load_rules(provider).classify(Evidence(text, exit_code=1, resumed=True)).failure_class


@pytest.mark.parametrize(
    "text",
    [
        "TypeError: Cannot read properties of undefined\n    at load (file:///opt/agent/cli.js:512:2233)",
        "Error: cli.js:503: unexpected token",
        "SyntaxError: line 429, column 5",
        "Error: 512:40 is out of range",
        "thread 'main' panicked at src/main.rs:401:13",
        "cannot open /data/403/session.jsonl",
        "cannot open /home/me/dns-editor/session.jsonl",
        "ENOENT: no such file or directory, open '/home/me/dns/zones.json'",
        "panic at /home/me/rate-limiter/src/rate_limit.rs:7",
        "wrote 500 bytes, 429 lines, error -32503",
    ],
)
def test_a_crash_is_not_judged_by_the_numbers_and_paths_that_it_prints(provider: str, text: str) -> None:
    assert classify(provider, text) is FailureClass.UNKNOWN


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("unexpected status 503: try later", FailureClass.TRANSIENT),
        ("exceeded retry limit, last status: 429", FailureClass.TRANSIENT),
        ("API Error: 529 {}", FailureClass.TRANSIENT),
        ("HTTP/1.1 502", FailureClass.TRANSIENT),
        ("HTTP error 500 while calling the model", FailureClass.TRANSIENT),
        ("request failed with status code 504", FailureClass.TRANSIENT),
        ('{"error":{"code": 503}}', FailureClass.TRANSIENT),
        ("statusCode=500", FailureClass.TRANSIENT),
        ("Rate limit reached for requests", FailureClass.TRANSIENT),
        ('{"type":"rate_limit_error"}', FailureClass.TRANSIENT),
        ("dns error: failed to lookup address information", FailureClass.TRANSIENT),
        ("DNS resolution failed", FailureClass.TRANSIENT),
        ("temporary failure in name resolution", FailureClass.TRANSIENT),
        ("unexpected status 401: no", FailureClass.AUTH),
        ("API Error: 403 no", FailureClass.AUTH),
        ("403 Forbidden", FailureClass.AUTH),
    ],
)
def test_a_service_that_fails_is_known_by_what_it_says(
    provider: str, text: str, expected: FailureClass
) -> None:
    assert classify(provider, text) is expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (401, FailureClass.AUTH),
        (402, FailureClass.LIMIT),
        (403, FailureClass.AUTH),
        (404, FailureClass.CONFIG),
        (408, FailureClass.TRANSIENT),
        (413, FailureClass.OVERFLOW),
        (429, FailureClass.TRANSIENT),
        (529, FailureClass.TRANSIENT),
        (400, FailureClass.UNKNOWN),
        (422, FailureClass.UNKNOWN),
    ],
)
def test_a_status_has_its_class_whatever_the_words_are(
    provider: str, status: int, expected: FailureClass
) -> None:
    found = load_rules(provider).classify(
        Evidence("nobody knows these words", status, exit_code=1, resumed=True)
    )
    assert found.failure_class is expected


HISTORY_IMAGE = (
    "Internal error (code=-32603, data=Encountered an error in the response stream: messages.14.content.0.image."
    "source.base64.data: At least one of the image dimensions exceed max allowed size: 8000 pixels)"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HISTORY_IMAGE, FailureClass.POISONED),
        ("messages[3].content[0].image.source.base64.data: image dimensions exceed max allowed size", FailureClass.POISONED),
        ("the message at position 37 with role 'assistant' must not be empty", FailureClass.POISONED),
        ("Internal error (code=-32603, data=failed to generate a response)", FailureClass.TRANSIENT),
        ("API Error: 529 Overloaded while processing an image", FailureClass.TRANSIENT),
        ("some tool reported: image dimensions exceed max allowed size: 8000 pixels", FailureClass.UNKNOWN),
        ("validation error: field must not be empty", FailureClass.UNKNOWN),
        ("agent tool returned status 400: not found", FailureClass.UNKNOWN),
        ('API Error: 400 {"type":"invalid_request_error","message":"Could not process image"}', FailureClass.POISONED),
        ('API Error: 400 {"type":"invalid_request_error","message":"Your credit balance is too low"}', FailureClass.LIMIT),
    ],
)  # fmt: skip
def test_a_history_is_poisoned_only_where_the_error_points_into_it(
    provider: str, text: str, expected: FailureClass
) -> None:
    assert classify(provider, text) is expected

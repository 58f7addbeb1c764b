import pytest

from holdfast.domain.failures import FailureClass
from holdfast.providers.failure_rules import Evidence
from holdfast.providers.registry import BUILT_IN, get_provider


@pytest.fixture(params=list(BUILT_IN))
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def classify(provider: str, text: str) -> FailureClass:
    return get_provider(provider).rules.classify(Evidence(text, exit_code=1, resumed=True)).failure_class


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
        (400, FailureClass.NOT_ACCEPTED),
        (422, FailureClass.NOT_ACCEPTED),
    ],
)
def test_a_status_has_its_class_whatever_the_words_are(
    provider: str, status: int, expected: FailureClass
) -> None:
    found = get_provider(provider).rules.classify(
        Evidence("nobody knows these words", status, exit_code=1, resumed=True)
    )
    assert found.failure_class is expected


ANTHROPIC = '{{"type":"error","error":{{"type":"invalid_request_error","message":"{}"}}}}'
OPENAI = '{{"error": {{"message": "{}", "type": "invalid_request_error", "code": "{}"}}}}'
GOOGLE = '[API Error: {{"error":{{"message":"{{\\n \\"error\\": {{\\n \\"code\\": 400,\\n \\"message\\": \\"{}\\"","code":400}}}}]'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("API Error: 400 prompt is too long: 212331 tokens > 200000 maximum", FailureClass.OVERFLOW),
        (ANTHROPIC.format("prompt is too long: 212331 tokens > 200000 maximum"), FailureClass.OVERFLOW),
        (ANTHROPIC.format("input length and `max_tokens` exceed context limit: 1 + 2 > 2"), FailureClass.OVERFLOW),
        (OPENAI.format("This model's maximum context length is 8192 tokens.", "null"), FailureClass.OVERFLOW),
        (OPENAI.format("Too long", "context_length_exceeded"), FailureClass.OVERFLOW),
        (OPENAI.format("Your input exceeds the context window of this model.", "null"), FailureClass.OVERFLOW),
        (GOOGLE.format("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."), FailureClass.OVERFLOW),
        ("Input is too long for requested model.", FailureClass.OVERFLOW),
        (ANTHROPIC.format("Your credit balance is too low to access the Anthropic API."), FailureClass.LIMIT),
        (ANTHROPIC.format("You have reached your specified API usage limits. You will regain access on"), FailureClass.LIMIT),
        (OPENAI.format("You have no money", "insufficient_quota"), FailureClass.LIMIT),
        (GOOGLE.format("API key not valid. Please pass a valid API key."), FailureClass.AUTH),
        (GOOGLE.format("API key expired. Please renew the API key."), FailureClass.AUTH),
        (ANTHROPIC.format("This organization has been disabled."), FailureClass.AUTH),
        (GOOGLE.format("User location is not supported for the API use."), FailureClass.CONFIG),
        (OPENAI.format("The requested model 'gpt-9' does not exist.", "model_not_found"), FailureClass.CONFIG),
        ('{"detail":"The \'gpt-9\' model is not supported when using Codex with a ChatGPT account."}', FailureClass.CONFIG),
    ],
)  # fmt: skip
def test_what_a_service_is_known_to_answer_400_to_is_no_fault_of_the_history(
    provider: str, text: str, expected: FailureClass
) -> None:
    found = get_provider(provider).rules.classify(Evidence(text, 400, exit_code=1, resumed=True))
    assert found.failure_class is expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [(401, FailureClass.AUTH), (402, FailureClass.LIMIT), (404, FailureClass.CONFIG), (429, FailureClass.TRANSIENT)],
)  # fmt: skip
@pytest.mark.parametrize("quoted", ["maximum context", "messages.3 must not be empty", "connection reset"])
def test_a_status_of_another_class_retires_no_session_whatever_the_words_are(
    provider: str, status: int, expected: FailureClass, quoted: str
) -> None:
    found = get_provider(provider).rules.classify(Evidence(quoted, status, exit_code=1, resumed=True))
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
        ('API Error: 400 {"type":"invalid_request_error","message":"unsupported beta"}', FailureClass.NOT_ACCEPTED),
        ('API Error: 400 {"type":"invalid_request_error","message":"Your credit balance is too low"}', FailureClass.LIMIT),
    ],
)  # fmt: skip
def test_a_history_is_poisoned_only_where_the_error_points_into_it(
    provider: str, text: str, expected: FailureClass
) -> None:
    assert classify(provider, text) is expected


LARGE_IMAGE = (
    "messages.14.content.0.image.source.base64.data: image dimensions exceed max allowed size: 8000 pixels"
)


@pytest.mark.parametrize(
    ("text", "status", "expected"),
    [
        ("Could not process image", 400, FailureClass.NOT_ACCEPTED),
        ("Could not process image", 429, FailureClass.TRANSIENT),
        ("Could not process image", 500, FailureClass.TRANSIENT),
        ("Could not process image", 529, FailureClass.TRANSIENT),
        ("Unable to download the file. Please verify the URL and try again.", 400, FailureClass.NOT_ACCEPTED),
        ("image service unavailable", None, FailureClass.TRANSIENT),
        ("could not load the image: fetch failed", None, FailureClass.TRANSIENT),
        (LARGE_IMAGE, 400, FailureClass.NOT_ACCEPTED),
        (LARGE_IMAGE, 500, FailureClass.POISONED),
        (f"Internal error (code=-32603, data={LARGE_IMAGE})", 500, FailureClass.POISONED),
        (f"API Error: 529 Overloaded: {LARGE_IMAGE}", None, FailureClass.POISONED),
        (LARGE_IMAGE, 429, FailureClass.TRANSIENT),
    ],
)
def test_an_image_is_the_historys_fault_only_where_the_error_points_at_it(
    provider: str, text: str, status: int | None, expected: FailureClass
) -> None:
    found = get_provider(provider).rules.classify(Evidence(text, status, exit_code=1, resumed=True))
    assert found.failure_class is expected

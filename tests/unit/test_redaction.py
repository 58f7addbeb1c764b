from __future__ import annotations

import ast
import copy
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.domain import redaction, secret_tokens
from holdfast.domain.redaction import Json, encode_redacted, redact_text, redact_value
from tests.unit import redaction_corpus as corpus
from tests.unit.redaction_corpus import Sample

PASSWORD = "hunter" + "2"
GITHUB = "ghp_" + corpus.fill(corpus.ALNUM, 36)


def ids(samples: list[Sample]) -> list[str]:
    return [f"{sample.kind}-{number}" for number, sample in enumerate(samples)]


def redact_ungated(text: str) -> str:
    tokens = secret_tokens.redact_tokens(text, filtered=False)
    return redaction.redact_named(secret_tokens.redact_urls(tokens))


# --- the corpus: every secret goes, nothing else does -------------------------------------------------------


@pytest.mark.parametrize("sample", corpus.POSITIVES, ids=ids(corpus.POSITIVES))
def test_secret_is_replaced_by_its_kind_and_nothing_else_changes(sample: Sample) -> None:
    assert sample.secret in sample.text
    assert redact_text(sample.text) == sample.redacted


@pytest.mark.parametrize("place", corpus.PLACES)
def test_token_is_found_wherever_it_stands(place: str) -> None:
    for kind, token in corpus.TOKENS:
        assert redact_text(place.format(token)) == place.format(f"[redacted:{kind}]")


@pytest.mark.parametrize("text", corpus.NEAR_MISSES)
def test_near_miss_stays_as_it_is(text: str) -> None:
    assert redact_text(text) is text


def test_a_text_with_every_secret_keeps_none() -> None:
    text = "\n\n".join(sample.text for sample in corpus.POSITIVES)
    assert redact_text(text) == "\n\n".join(sample.redacted for sample in corpus.POSITIVES)


def test_every_token_of_the_table_has_a_sample() -> None:
    texts = [sample.text for sample in corpus.POSITIVES]
    unseen = [
        t for t in secret_tokens.TOKENS if not any(re.search(t.pattern, text, re.ASCII) for text in texts)
    ]
    assert unseen == []


def test_redacting_twice_changes_nothing_more() -> None:
    for sample in corpus.POSITIVES:
        assert redact_text(sample.redacted) == sample.redacted


# --- detect-secrets as a second opinion ---------------------------------------------------------------------

GENERIC = {"Base64 High Entropy String", "Hex High Entropy String", "Secret Keyword", "Public IP (ipv4)"}
CLASSES: dict[str, Any] = get_mapping_from_secret_type_to_class()
DETECTORS = {name: detector() for name, detector in CLASSES.items() if name not in GENERIC}


def findings(detector: Any, text: str) -> list[str]:
    return [secret for line in text.splitlines() for secret in detector.analyze_string(line)]


@pytest.mark.parametrize("name", DETECTORS)
def test_what_detect_secrets_finds_we_redact_too(name: str) -> None:
    found = [sample for sample in corpus.POSITIVES if findings(DETECTORS[name], sample.text)]
    assert found, "a detector that finds nothing in the corpus is no second opinion"
    for sample in found:
        assert findings(DETECTORS[name], redact_text(sample.text)) == []


@pytest.mark.parametrize(
    "name",
    [
        "GitHub Token",
        "GitLab Token",
        "PyPI Token",
        "SendGrid API Key",
        "Stripe Access Key",
        "Twilio API Key",
    ],
)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_any_token_of_a_detector_pattern_is_redacted(name: str, data: st.DataObject) -> None:
    pattern = data.draw(st.sampled_from(list(DETECTORS[name].denylist)))
    text = f"before {data.draw(st.from_regex(pattern, fullmatch=True))} after"
    redacted = redact_text(text)
    assert findings(DETECTORS[name], redacted) == []
    assert re.fullmatch(r"before \S*\[redacted:\w+\]\S* after", redacted)


# --- properties ---------------------------------------------------------------------------------------------

ANY_TEXT = st.text(st.characters(exclude_categories=()))
FRAGMENTS = st.sampled_from(
    [
        *(token for _, token in corpus.TOKENS),
        *"\n\t \"'=:;,.&<>()[]{}|/\\@$%*-_~+#İéxA1",
        *("password", "password=", "--password ", "token: ", "API key: ", "SECRET_KEY=", "authorization: "),
        *("Bearer ", "Basic ", "://u:", "@host", "curl -u a:", "login x password ", "sig=", "AccountKey="),
        *("hunter2", "abc123DEF456", "[redacted:password]", "-----BEGIN PRIVATE KEY-----\n", "eyJ", "sk-"),
    ]
)
SPIKED_TEXT = st.lists(FRAGMENTS | ANY_TEXT, max_size=14).map("".join)
TEXT = ANY_TEXT | SPIKED_TEXT
KEYS = st.sampled_from(corpus.SECRET_KEYS + corpus.HARMLESS_KEYS) | TEXT
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
JSON_VALUES: st.SearchStrategy[Json] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(TEXT)
def test_redaction_is_idempotent(text: str) -> None:
    redacted = redact_text(text)
    assert redact_text(redacted) is redacted
    assert redact_ungated(redacted) == redacted


@settings(max_examples=300, deadline=None)
@given(TEXT)
def test_the_gate_changes_the_time_and_not_the_result(text: str) -> None:
    assert secret_tokens.redact_tokens(text) == secret_tokens.redact_tokens(text, filtered=False)


@settings(deadline=None)
@given(st.text(st.characters(categories=["L", "Nd", "Zs", "Po"], exclude_characters=":@'\"&*\\#")))
def test_text_without_a_sign_of_a_secret_is_returned_as_it_is(text: str) -> None:
    assume(not re.search("(?i)bearer|dapi|AC|SK|A[A-Z3]|EAAA|GR1", text))
    assert redact_text(text) is text


@settings(deadline=None)
@given(st.sampled_from(corpus.POSITIVES), ANY_TEXT, ANY_TEXT)
def test_what_surrounds_a_secret_is_preserved(sample: Sample, before: str, after: str) -> None:
    assume(redact_text(before) is before and redact_text(after) is after)
    assert redact_text(f"{before}\n\n{sample.text}\n\n{after}") == f"{before}\n\n{sample.redacted}\n\n{after}"


def test_an_option_in_a_secrets_list_hides_nothing() -> None:
    assert redact_value({"password": ["--", "swordfish"]}) == {
        "password": ["[redacted:password]", "[redacted:password]"]
    }


@settings(deadline=None)
@given(JSON_VALUES)
def test_a_value_is_not_changed_in_place_and_stays_itself_when_clean(value: Json) -> None:
    before = copy.deepcopy(value)
    redacted = redact_value(value)
    assert repr(value) == repr(before)
    assert (redacted is value) == (repr(redacted) == repr(value))
    assert redact_value(redacted) is redacted
    json.dumps(redacted)


@settings(deadline=None)
@given(JSON_VALUES)
def test_encoding_looks_at_the_text_first_and_finds_the_same(value: Json) -> None:
    assert encode_redacted(value, json.dumps) == json.dumps(redact_value(value))


# --- values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", corpus.SECRET_KEYS)
def test_text_under_a_secret_key_is_replaced_whatever_it_is(key: str) -> None:
    for secret in ["x", "123456", "correct horse", "true", "${REFERENCE}"]:
        [(kept, redacted)] = redact_value({key: secret}).items()  # type: ignore[union-attr]
        assert kept == key
        assert re.fullmatch(r"\[redacted:\w+\]", str(redacted))


@pytest.mark.parametrize("key", corpus.HARMLESS_KEYS)
def test_text_under_a_key_that_only_sounds_secret_stays(key: str) -> None:
    value: Json = {key: "ordinary"}
    assert redact_value(value) is value


def test_only_text_is_a_secret() -> None:
    value: Json = {
        "password": None,
        "token": 7,
        "secret": "",
        "api_key": True,
        "client_secret": {"type": "string"},
    }
    assert redact_value(value) is value


def test_a_known_token_under_a_secret_key_keeps_its_own_kind() -> None:
    assert redact_value({"token": GITHUB}) == {"token": "[redacted:github_token]"}
    assert redact_value({"token": f"Bearer {GITHUB}"}) == {"token": "[redacted:token]"}


def test_what_is_clean_is_shared_with_the_original() -> None:
    clean: Json = {"deep": [1, 2, {"x": "y"}]}
    redacted = redact_value({"clean": clean, "password": PASSWORD})
    assert isinstance(redacted, dict)
    assert redacted == {"clean": clean, "password": "[redacted:password]"}
    assert redacted["clean"] is clean


def test_secrets_inside_lists_under_a_secret_key() -> None:
    assert redact_value({"authorization": [PASSWORD]}) == {"authorization": ["[redacted:authorization]"]}


def test_secret_after_an_option_in_an_argument_list() -> None:
    rest: list[Json] = ["--token", "--verbose", "--host", "db"]
    redacted = redact_value(["mysql", "--password", PASSWORD, *rest])
    assert redacted == ["mysql", "--password", "[redacted:password]", *rest]


def test_secret_in_a_name_and_value_pair() -> None:
    value: Json = [{"name": "API_KEY", "value": PASSWORD}, {"name": "HOST", "value": "db"}]
    assert redact_value(value) == [
        {"name": "API_KEY", "value": "[redacted:api_key]"},
        {"name": "HOST", "value": "db"},
    ]


def test_secrets_in_keys_go_without_losing_a_value() -> None:
    value: Json = {GITHUB: 1, GITHUB + "x": 2, "ok": 3}
    redacted = redact_value(value)
    assert isinstance(redacted, dict)
    assert list(redacted) == ["[redacted:github_token]", "[redacted:github_token]#1", "ok"]
    assert list(redacted.values()) == [1, 2, 3]


def test_signature_of_a_thinking_block_is_left_alone() -> None:
    block: Json = {"type": "thinking", "thinking": "…", "signature": "sk-" + corpus.fill(corpus.ALNUM, 48)}
    assert redact_value(block) is block


def test_working_directory_is_no_password() -> None:
    value: Json = {"PWD": "/home/user", "OLDPWD": "/tmp"}
    assert redact_value(value) is value
    assert redact_value({"pwd": PASSWORD}) == {"pwd": "[redacted:password]"}


@pytest.mark.parametrize("depth", [1_000, 100_000])
def test_depth_is_no_limit(depth: int) -> None:
    value: Json = {"password": PASSWORD}
    for _ in range(depth // 2):
        value = {"a": [value]}
    redacted: Any = redact_value(value)
    for _ in range(depth // 2):
        redacted = redacted["a"][0]
    assert redacted == {"password": "[redacted:password]"}


def test_a_cycle_ends() -> None:
    value: dict[str, Any] = {"password": PASSWORD}
    value["self"] = value
    redacted: Any = redact_value(value)
    assert redacted["password"] == "[redacted:password]"


def test_tuples_are_looked_into() -> None:
    assert redact_value({"argv": ("--token", GITHUB)}) == {"argv": ["--token", "[redacted:github_token]"]}  # type: ignore[dict-item]


# --- time ---------------------------------------------------------------------------------------------------

HOSTILE = [
    "a", "_", "-", "%AA", "sk-", "ghp_", "eyJ", "eyJaaaaaaaaaa.", "AKIA", "1//0", "aaa1Q~", "M" + "a" * 23 + ".aaaaaa.",
    "://", "://a:", "://a:b@", "password=", 'password="', "password='", "password: ", "password>", "password(\"", "token ",
    "--password ", "api key: ", "authorization: ", "Bearer aaaaaaaaaaaaaaaaaaaa ", "DB_PASSWORD=abc123 ", "password=\\",
    "token: a a a a a a a a a a a a a a a a a a a =", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\nA\n",
    "PuTTY-User-Key-File-2: ", "curl -u ", " -u curl a", "sig=aaaaaaaaaa", "12345678:Aaaaaaaaaaaa", "[redacted:password]=",
    "eyJ-", "1meyJ", "eyJaaaaaaaa.aa-", "M-", "M.", "- ", "\\n", "a: b\n", "Px", "password=\"\\\"",
]  # fmt: skip


@pytest.mark.timeout(10)
@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_text_is_linear_work(unit: str) -> None:
    """Each takes up to half a second on a busy machine; one quadratic step would take most of a minute."""
    redact_text(unit * (200_000 // len(unit)))


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "unit", ["M-", "M.", "eyJ-", "- ", "---a", "\\n", "\n", "a: b\n", "P", "Px", "A" * 20 + "\n"]
)
@pytest.mark.parametrize("head", ["-----BEGIN PRIVATE KEY-----", "PuTTY-User-Key-File-2: ", GITHUB + " "])
def test_hostile_text_behind_what_opens_the_gate_is_linear_work(head: str, unit: str) -> None:
    redact_text(head + unit * (200_000 // len(unit)))


def possessive_or_atomic(pattern: str) -> list[str]:
    literal = re.sub(r"\\.", "a", pattern, flags=re.DOTALL)
    return re.findall(r"[*+?}]\+|\(\?>", re.sub(r"\[\^?\]?[^\]]*\]", "a", literal))


@pytest.mark.parametrize("module", [secret_tokens, redaction])
def test_no_pattern_is_possessive_or_atomic(module: ModuleType) -> None:
    """Python before 3.11.5, such as Debian 12's, gets those wrong: half of a private key stayed."""
    for pattern in ["a*+", "a++", "a?+", "(?:a|b){1,9}+", "(?>a)"]:
        assert possessive_or_atomic(pattern)
    assert not possessive_or_atomic(r"\*+[*+]\++")
    strings = [
        n.value
        for n in ast.walk(ast.parse(Path(str(module.__file__)).read_text("utf-8")))
        if isinstance(n, ast.Constant)
    ]
    docstring, *patterns = [string for string in strings if isinstance(string, str)]
    assert docstring == module.__doc__
    assert {pattern: found for pattern in patterns if (found := possessive_or_atomic(pattern))} == {}


def test_importing_is_light_and_compiles_no_pattern() -> None:
    program = (
        "import sys, re, functools, typing, holdfast.domain\n"
        "before = set(sys.modules)\n"
        "import holdfast.domain.redaction, holdfast.domain.secret_tokens as tokens\n"
        "assert tokens.ascii_re.cache_info().currsize == 0\n"
        "new = set(sys.modules) - before\n"
        "assert all(name.startswith('holdfast.domain.') for name in new), new\n"
    )
    path = f"import sys; sys.path[:0] = {sys.path!r}\n"
    subprocess.run([sys.executable, "-I", "-c", path + program], check=True)


def test_one_letter_grows_in_lower_case() -> None:
    """The search for names runs over lower-cased text and relies on there being no other."""
    assert [c for c in map(chr, range(sys.maxunicode + 1)) if len(c.lower()) != 1] == ["İ"]
    assert redact_text(f"İİ password={PASSWORD} İ") == "İİ password=[redacted:password] İ"

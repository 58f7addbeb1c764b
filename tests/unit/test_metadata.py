import json
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.metadata import encode_metadata, merge_metadata, parse_metadata
from holdfast.errors import InvalidInput

LIMIT = 256 * 1024
#: no secret looks like these
words = st.text('abc é漢🦀\\u0\n"', max_size=8)
values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=10,
)
documents = st.dictionaries(words, values, max_size=4)


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def refusal_of(value: Any) -> str:
    with pytest.raises(InvalidInput) as refused:
        encode_metadata(value)
    assert refused.value.field == "metadata"
    return refused.value.problem


@given(documents)
def test_what_is_written_is_read_back(document: dict[str, Any]) -> None:
    assert parse_metadata(encode_metadata(document)) == document


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"task_id": "T001", "tags": ["terraform", "infrastructure"]},
        {"": None},
        {"text": r"a literal \u0000 in a regular expression"},
        {r"\u0000": r"\\u0000"},
        {"line": "a\nb\tc\x1f\x7f"},
        {"漢字": "🦀"},
        {"number": 10**300},
    ],
    ids=["empty", "plain", "empty-key", "literal-u0000", "literal-key", "control", "unicode", "large"],
)
def test_a_json_object_is_kept_as_it_is(document: dict[str, Any]) -> None:
    assert json.loads(encode_metadata(document)) == document
    assert parse_metadata(json.dumps(document)) == document


def test_a_secret_is_not_written() -> None:
    secret = "hunter2-correct-horse"  # pragma: allowlist secret

    assert secret not in encode_metadata({"database": {"password": secret}})


def test_a_mapping_is_as_good_as_a_dict() -> None:
    assert encode_metadata(MappingProxyType({"a": 1})) == '{"a": 1}'


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([], "a list"),
        ("text", "a string"),
        (True, "true or false"),
        (1, "a number"),
        (1.5, "a number"),
        (None, "null"),
        ({1, 2}, "set"),
    ],
)
def test_what_is_not_an_object_is_refused_by_its_name_in_json(value: object, kind: str) -> None:
    assert f"not {kind}" in refusal_of(value)


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -float("inf"), {1, 2}, b"bytes", object(), 10**5000],
    ids=["nan", "infinity", "minus-infinity", "set", "bytes", "object", "endless-number"],
)
def test_a_value_that_json_does_not_have_is_refused(value: object) -> None:
    assert refusal_of({"key": [value]})


@pytest.mark.parametrize(
    "document",
    [
        {1: "a"},
        {None: "a"},
        {True: "a"},
        {1.5: "a"},
        {("a", "b"): "c"},
        {"a": {"b": [{1: "c"}]}},
        {1: "a", "1": "b"},
    ],
    ids=["number", "none", "boolean", "float", "tuple", "inside", "twice"],
)
def test_a_key_that_is_not_text_is_refused(document: Any) -> None:
    assert refusal_of(document)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"a": "\x00"}, "NUL byte"),
        ({"a": {"\x00": 1}}, "NUL byte"),
        ({"a": "\\\x00"}, "NUL byte"),
        ({"a": "\\\\\x00"}, "NUL byte"),
        ({"a": r"\u0000" + "\x00"}, "NUL byte"),
        ({"a": "\ud800"}, "invalid UTF-8"),
        ({"\udfff": 1}, "invalid UTF-8"),
    ],
    ids=[
        "nul",
        "nul-in-a-key",
        "nul-behind-a-backslash",
        "nul-behind-two",
        "nul-behind-the-literal",
        "surrogate",
        "surrogate-in-a-key",
    ],
)
def test_text_that_no_store_can_keep_is_refused(document: dict[str, Any], problem: str) -> None:
    assert problem in refusal_of(document)


def test_an_escaped_nul_or_surrogate_is_found_in_json_text_too() -> None:
    for text in (r'{"a": "\u0000"}', r'{"a": "\ud800"}'):
        with pytest.raises(InvalidInput):
            parse_metadata(text)


def test_metadata_of_exactly_the_limit_is_accepted_and_one_byte_more_is_not() -> None:
    around = len(encode_metadata({"a": ""}))

    assert encode_metadata({"a": "x" * (LIMIT - around)})
    assert "limit" in refusal_of({"a": "x" * (LIMIT - around + 1)})


def test_the_limit_counts_bytes_and_not_characters() -> None:
    assert encode_metadata({"a": "x" * (LIMIT // 2)})
    assert "limit" in refusal_of({"a": "é" * (LIMIT // 2)})


def test_objects_may_be_nested_a_hundred_levels_deep() -> None:
    assert json.loads(encode_metadata(nested(100))) == nested(100)
    assert "deeper" in refusal_of(nested(101))


@pytest.mark.parametrize("levels", [500, 100_000])
def test_nesting_without_end_is_refused_and_breaks_nothing(levels: int) -> None:
    assert refusal_of({"a": nested(levels)})
    with pytest.raises(InvalidInput):
        parse_metadata('{"a":' + "[" * levels + "]" * levels + "}")


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["a"] = [loop, loop]

    assert refusal_of(loop)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{'a': 1}",
        '{"a": NaN}',
        '{"a": 1e999}',
        "[1]",
        "null",
        '"x"',
        "\x00",
        '{"a": "\ud800"}',
        "{}{}",
    ],
)
def test_what_is_not_a_json_object_is_not_read(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_metadata(text)

    assert refused.value.field == "metadata"


def test_a_merge_replaces_whole_values_key_by_key() -> None:
    current: dict[str, Any] = {"a": {"x": 1}, "b": 2}

    assert merge_metadata(current, {"a": {"y": 3}, "c": None}) == {"a": {"y": 3}, "b": 2, "c": None}
    assert current == {"a": {"x": 1}, "b": 2}

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.inputs import check_name, check_text, clean_text
from holdfast.errors import InvalidInput

#: every code point, also those that no store keeps
any_text = st.text(st.characters(exclude_categories=()))


def is_storable(text: str) -> bool:
    """PostgreSQL takes valid UTF-8 without NUL."""
    try:
        return b"\x00" not in text.encode("utf-8")
    except UnicodeEncodeError:
        return False


@given(any_text)
def test_a_persons_text_is_kept_unchanged_or_refused(text: str) -> None:
    if is_storable(text):
        assert check_text("prompt", text) == text
    else:
        with pytest.raises(InvalidInput):
            check_text("prompt", text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ab\x00", "NUL byte at position 2"),
        ("é\x00", "NUL byte at position 1"),
        ("\ud800", "invalid UTF-8 at position 0"),
        ("a\udfff", "invalid UTF-8 at position 1"),
        (b"bytes", "not bytes"),
        (None, "not NoneType"),
    ],
    ids=["nul", "nul-behind-an-accent", "high-surrogate", "low-surrogate", "bytes", "none"],
)
def test_a_refused_text_says_what_is_wrong_and_where(text: object, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem) as refused:
        check_text("prompt", text)

    assert refused.value.field == "prompt"


@pytest.mark.parametrize("text", ["", "\n\t\r", "🦀" * 3, "\u2028", "\x1b[31m"])
def test_line_ends_and_control_characters_are_text(text: str) -> None:
    assert check_text("prompt", text) == text


def test_a_text_of_exactly_the_limit_is_accepted_and_one_more_is_not() -> None:
    assert check_text("prompt", "é" * 5, limit=5) == "é" * 5
    with pytest.raises(InvalidInput, match="6 characters long; the limit is 5"):
        check_text("prompt", "é" * 6, limit=5)


def test_without_another_limit_a_text_has_16_mi_characters_at_most() -> None:
    longest = "x" * (16 * 1024 * 1024)

    assert check_text("prompt", longest)
    with pytest.raises(InvalidInput):
        check_text("prompt", longest + "x")


@pytest.mark.parametrize("name", ["a", "Ada Lovelace", " padded ", "漢字", "x" * 200, "🦀"])
def test_a_name_is_one_line(name: str) -> None:
    assert check_name("name", name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "\t",
        "\u3000",
        "a\nb",
        "a\r",
        "a\tb",
        "a\x00b",
        "a\x1b[31m",
        "a\x7f",
        "a\x85b",
        "a\u2028b",
        "a\u2029b",
        "a\ud800",
        "x" * 201,
        None,
        5,
    ],
)
def test_a_name_that_is_empty_too_long_or_not_one_line_is_refused(name: object) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_name("agent", name)

    assert refused.value.field == "agent"


@given(any_text)
def test_an_accepted_name_prints_on_one_line(name: str) -> None:
    try:
        accepted = check_name("name", name)
    except InvalidInput:
        return
    assert accepted.splitlines() == [accepted]


@given(any_text)
def test_an_agents_text_is_always_stored_and_changed_only_where_it_must_be(text: str) -> None:
    cleaned = clean_text(text)

    assert is_storable(cleaned)
    assert len(cleaned) == len(text)
    assert all(new == (old if is_storable(old) else "\ufffd") for old, new in zip(text, cleaned, strict=True))


@given(any_text)
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    assert clean_text(clean_text(text)) == clean_text(text)

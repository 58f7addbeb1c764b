import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.clock import SECOND, Instant
from holdfast.domain.ids import (
    SessionId,
    check_id,
    check_provider,
    check_session_name,
    check_workspace,
    conversation_of,
    make_session_id,
)
from holdfast.errors import InvalidInput

HALF_PAST_SIX = Instant(1_767_895_530 * SECOND)  #: 2026-01-08T18:05:30Z


def test_a_session_id_tells_its_time_in_utc_and_ends_in_eight_hex_digits() -> None:
    assert make_session_id(HALF_PAST_SIX, bytes.fromhex("abc12345")) == "agent-20260108-180530-abc12345"


def test_a_session_id_uses_four_bytes_of_the_randomness() -> None:
    assert make_session_id(HALF_PAST_SIX, bytes(range(16))).endswith("-00010203")


@given(st.integers(min_value=0, max_value=4_000_000_000 * SECOND), st.binary(min_size=4, max_size=16))
def test_every_session_id_is_an_acceptable_id(at: int, entropy: bytes) -> None:
    made = make_session_id(Instant(at), entropy)

    assert check_id("session", made) == made
    assert re.fullmatch(r"agent-\d{8}-\d{6}-[0-9a-f]{8}", made)


def test_later_session_ids_sort_behind_earlier_ones() -> None:
    a_second_later = Instant(HALF_PAST_SIX + SECOND)

    assert make_session_id(HALF_PAST_SIX, b"\xff" * 4) < make_session_id(a_second_later, b"\x00" * 4)


def test_the_conversation_of_a_session_has_the_same_number() -> None:
    assert conversation_of(SessionId("agent-20260108-180530-abc12345")) == "conv-20260108-180530-abc12345"


def test_sessions_with_different_ids_have_different_conversations() -> None:
    names = [SessionId(name) for name in ("agent-x", "x-agent", "agent-agent-y")]

    assert len({conversation_of(name) for name in names}) == len(names)


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "0",
        "agent-20260108-180530-abc12345",
        "5b1c2d3e-4f5a-6b7c-8d9e-0f1a2b3c4d5e",
        "ses_01HXYZ",
        "user@host:1+2=3",
        "a.b.c",
        "a.",
        "x" * 128,
    ],
)
def test_a_word_is_an_id(text: str) -> None:
    assert check_id("session", text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "/etc/passwd",
        "a\\b",
        "a..b",
        "-x",
        "--help",
        ".hidden",
        "_x",
        "a b",
        " a",
        "a\n",
        "a\x00",
        "é",
        "\u0661",
        "\ud800",
        "a%2Fb",
        "a'b",
        "x" * 129,
        None,
        7,
        b"abc",
    ],
)
def test_a_path_an_option_or_anything_odd_is_not_an_id(text: object) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_id("parent", text)

    assert refused.value.field == "parent"


@given(st.text())
def test_an_accepted_id_is_one_name_in_any_directory(text: str) -> None:
    try:
        accepted = check_id("session", text)
    except InvalidInput:
        return
    assert accepted.isascii()
    assert accepted.isprintable()
    assert not set(accepted) & set("/\\ \"'$*?")
    assert accepted.strip(".-") != ""
    assert len(accepted) <= 128


@pytest.mark.parametrize(
    "name", ["claude", "codex", "opencode", "gemini", "scripted", "my-agent_2", "a" * 32]
)
def test_a_provider_has_a_small_name(name: str) -> None:
    assert check_provider(name) == name


@pytest.mark.parametrize(
    "name", ["", "Claude", "2fast", "-x", "a b", "a/b", "claude\n", "a.b", "a" * 33, None, 1, "\ud800"]
)
def test_anything_else_is_not_a_provider(name: object) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_provider(name)

    assert refused.value.field == "provider"


def test_a_workspace_is_an_id() -> None:
    assert check_workspace("default") == "default"
    with pytest.raises(InvalidInput) as refused:
        check_workspace("../other")

    assert refused.value.field == "workspace"


@pytest.mark.parametrize(
    "check", [lambda text: check_id("session", text), check_provider], ids=["id", "provider"]
)
@pytest.mark.parametrize("text", ["/" * 100_000, "/" * 100], ids=["too-long", "odd"])
def test_a_refused_text_is_quoted_only_in_part(check: Any, text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check(text)

    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("name", ["deploy", "agent", "agent-7", "agent-smith", "agent-2026", "Ärger im Netz"])
def test_a_name_is_one_line_of_any_words(name: str) -> None:
    assert check_session_name(name) == name


@pytest.mark.parametrize(
    "name",
    [make_session_id(Instant(0), bytes(4)), "agent-20260108-180530", "agent-20260108-", "agent-20260108"],
)
def test_what_looks_like_an_id_or_its_beginning_is_no_name(name: str) -> None:
    with pytest.raises(InvalidInput, match="looks like the id of a session"):
        check_session_name(name)

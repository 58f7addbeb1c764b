import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.json_text import JsonProblem, line_of, read_object, remove_member, set_member

NAMES = st.text(max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
INDENTS = st.sampled_from([None, 2, 4, "\t"])


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Objects without hooks, as people and programs write them."""
    members = draw(st.dictionaries(NAMES.filter(lambda name: name != "hooks"), VALUES, max_size=4))
    written = json.dumps(members, indent=draw(INDENTS), ensure_ascii=draw(st.booleans()))
    return (
        draw(st.sampled_from(["", "\n", "\ufeff"])) + written + draw(st.sampled_from(["", "\n", "\r\n \n"]))
    )


@given(texts(), VALUES)
def test_a_member_is_added_behind_the_others_and_can_be_taken_away_without_a_trace(
    text: str, value: object
) -> None:
    changed = set_member(text, "hooks", value)

    assert json.loads(changed.removeprefix("\ufeff")) == {
        **json.loads(text.removeprefix("\ufeff")),
        "hooks": value,
    }
    assert remove_member(changed, "hooks") == text


@given(texts(), VALUES, VALUES)
def test_a_member_is_changed_in_its_place(text: str, old: object, new: object) -> None:
    changed = set_member(set_member(text, "hooks", old), "hooks", new)

    assert changed == set_member(text, "hooks", new)


def test_what_is_written_looks_like_its_surroundings() -> None:
    assert set_member('{\r\n\t"a": [1,  2]\r\n}\r\n', "hooks", {"b": "ä"}) == (
        '{\r\n\t"a": [1,  2],\r\n\t"hooks": {\r\n\t\t"b": "ä"\r\n\t}\r\n}\r\n'
    )


def test_the_first_of_several_members_can_be_taken_away() -> None:
    assert remove_member('{\n  "hooks": {},\n  "a": 1.50\n}\n', "hooks") == '{\n  "a": 1.50\n}\n'
    assert remove_member('{"a": 1}', "hooks") == '{"a": 1}'


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ('{\n  "a": 1\n  "b": 2\n}', 3, "is not valid JSON"),
        ('{\n  // why\n  "a": 1\n}', 2, "is not valid JSON"),
        ('{\n  "a": 1,\n  "a": 2\n}', 3, "says 'a' twice"),
        ("[]", 1, "is not a JSON object"),
        ('{"a": ' + "[" * 100_000, 1, "is nested too deeply"),
    ],
)
def test_what_cannot_be_changed_safely_is_refused_with_its_line(text: str, line: int, problem: str) -> None:
    with pytest.raises(JsonProblem, match=problem) as refused:
        read_object(text)

    assert refused.value.line == line


def test_the_line_of_a_member_is_found_as_far_as_it_is_there() -> None:
    text = '{\n  "a": 1,\n  "hooks": {\n    "Stop": 3\n  }\n}'

    assert line_of(text, "hooks", "Stop") == 4
    assert line_of(text, "hooks", "Other") == 3
    assert line_of(text, "other") == 1

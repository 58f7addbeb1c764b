import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError, Conflict
from holdfast.hooks.installation import Hooks, change_hooks, command_entries, with_entries, without_entries


def test_a_file_that_somebody_else_changes_at_the_same_time_is_theirs(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text("{}")

    def slowly(hooks: Hooks) -> Hooks:
        path.write_text('{"model": "opus"}')
        return with_entries(hooks, command_entries("holdfast"))

    with pytest.raises(Conflict, match="somebody else"):
        change_hooks(path, slowly)

    assert path.read_text() == '{"model": "opus"}'


def install(path: Path, text: str) -> str:
    path.write_text(text, newline="")
    change_hooks(path, lambda hooks: with_entries(hooks, command_entries("holdfast")))
    with path.open(newline="") as file:
        return file.read()


def uninstall(path: Path) -> str:
    change_hooks(path, without_entries)
    with path.open(newline="") as file:
        return file.read()


def test_a_file_with_a_byte_order_mark_keeps_it(tmp_path: Path) -> None:
    text = install(tmp_path / "settings.json", '\ufeff{"model": "opus"}')

    assert text.startswith('\ufeff{\n  "model": "opus",\n')


def test_indentation_line_ends_and_umlauts_are_as_they_were(tmp_path: Path) -> None:
    text = install(tmp_path / "settings.json", '{\r\n\t"a": "ä"\r\n}\r\n')

    assert text.startswith('{\r\n\t"a": "ä",\r\n\t"hooks": {\r\n\t\t"SessionStart"')
    assert text.endswith("\r\n}\r\n")


def test_half_of_a_surrogate_pair_can_be_written_again(tmp_path: Path) -> None:
    assert '"\\ud800"' in install(tmp_path / "settings.json", '{"a": "\\ud800"}')


NAMES = st.text(max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(NAMES.filter(lambda name: name != "hooks"), VALUES, max_size=4),
    st.sampled_from([None, 2, 4, "\t"]),
    st.booleans(),
    st.sampled_from(["", "\n", "\r\n \n"]),
)
def test_other_members_keep_their_values_and_their_order_and_the_text_comes_back(
    members: dict[str, object], indent: str | int | None, ascii_only: bool, end: str
) -> None:
    text = json.dumps(members, indent=indent, ensure_ascii=ascii_only) + end
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "settings.json"
        changed = json.loads(install(path, text))
        assert json.dumps(changed | {"hooks": 0}) == json.dumps(members | {"hooks": 0})
        assert uninstall(path) == text


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ('{\n  "a": 1\n  "b": 2\n}', 3, "is not valid JSON"),
        ('{\n  // why\n  "a": 1\n}', 2, "is not valid JSON"),
        ('{\n  "a": 1,\n  "a": 2\n}', 3, "names 'a' twice"),
        ('{\n  "a": 1,\n  "hooks": {\n    "Stop": 3\n  }\n}', 4, "hooks.Stop is not a list"),
        ("[]", 1, "is not a JSON object"),
        ('{"a": ' + "[" * 100_000, 1, "is nested too deeply"),
        ('{"a": ' + "1" * 5000 + "}", 1, "cannot be read"),
    ],
)
def test_what_cannot_be_changed_safely_is_refused_with_its_line(
    tmp_path: Path, text: str, line: int, problem: str
) -> None:
    path = tmp_path / "settings.json"
    with pytest.raises(ConfigError, match=problem) as refused:
        install(path, text)

    assert refused.value.details["line"] == line
    assert path.read_text() == text


def test_a_number_that_cannot_be_written_again_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="number that is too large"):
        install(tmp_path / "settings.json", '{"a": 1e999}')


def test_a_backup_that_cannot_be_read_does_not_keep_the_hooks_installed(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    install(path, '{"a": 1}')
    (tmp_path / "settings.json.before-holdfast").write_text("{")

    assert uninstall(path) == '{\n  "a": 1\n}'

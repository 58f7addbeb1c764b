from pathlib import Path

import pytest

from holdfast.engine.hook_entries import Hooks, command_entries, with_entries
from holdfast.engine.hook_settings import change_hooks
from holdfast.errors import Conflict


def test_a_file_that_somebody_else_changes_at_the_same_time_is_theirs(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text("{}")

    def slowly(hooks: Hooks) -> Hooks:
        path.write_text('{"model": "opus"}')
        return with_entries(hooks, command_entries("holdfast"))

    with pytest.raises(Conflict, match="somebody else"):
        change_hooks(path, slowly)

    assert path.read_text() == '{"model": "opus"}'


def test_a_file_with_a_byte_order_mark_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('\ufeff{"model": "opus"}')

    change_hooks(path, lambda hooks: with_entries(hooks, command_entries("holdfast")))

    assert path.read_text().startswith('\ufeff{"model": "opus",\n')

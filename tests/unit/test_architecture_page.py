"""The architecture page names functions and files that exist, where it says that they are."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
ROWS = re.findall(r"^\| \d+ \| (.*?) \| (.*?) \|", PAGE.read_text(), re.MULTILINE)
_CHANGES = PAGE.read_text().partition("## Where a change goes")[2].partition("\n## ")[0]
CHANGES = re.findall(r"^\| (?!to add|--)(.*?) \| (.*) \|$", _CHANGES, re.MULTILINE)


@pytest.mark.parametrize(("functions", "modules"), ROWS)
def test_a_step_names_functions_of_its_modules(functions: str, modules: str) -> None:
    paths = [ROOT / "src" / "holdfast" / path for path in re.findall(r"`(.*?)`", modules)]
    assert all(path.exists() for path in paths)
    text = "\n".join(path.read_text() for path in paths if path.is_file())
    for name in re.findall(r"`(.*?)`", functions):
        for part in name.split("."):
            assert re.search(rf"\b(def|class) {part}\b", text), name


def test_the_walk_has_its_steps() -> None:
    assert len(ROWS) >= 12


@pytest.mark.parametrize("places", [places for _, places in CHANGES], ids=[what for what, _ in CHANGES])
def test_a_change_goes_to_places_that_exist(places: str) -> None:
    named = [name for name in re.findall(r"`([\w./-]+)`", places) if not name.startswith((".", "-"))]
    paths = [name for name in named if "/" in name or name.endswith((".py", ".toml"))]
    found = [path for name in paths for path in (ROOT / name, ROOT / "src/holdfast" / name) if path.exists()]
    assert len(found) == len(paths), paths
    text = "\n".join(path.read_text() for path in found if path.is_file())
    for name in set(named) - set(paths):
        assert all(re.search(rf"\b{part}\b", text) for part in name.split(".")), name


def test_there_are_changes_to_look_up() -> None:
    assert len(CHANGES) >= 12

"""The walk of a turn on the architecture page names functions that exist, in the modules that it says."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
ROWS = re.findall(r"^\| \d+ \| (.*?) \| (.*?) \|", PAGE.read_text(), re.MULTILINE)


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

"""What the README says of the last campaigns is what came out of them."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from tests.chaos.__main__ import ENGINES
from tests.chaos.campaign import Figures, added_up
from tests.chaos.faults import EVERYWHERE
from tests.chaos.publish import (
    BEGIN,
    END,
    FEWEST_FAULTS,
    FEWEST_OF_A_KIND,
    README,
    add_part,
    quote,
    read,
    read_parts,
    too_short,
)
from tests.chaos.verdict import Broken

NOTHING = Broken(*(0,) * len(fields(Broken)))
LONG = Figures(
    "sqlite", 1, 2, {"worker_killed": FEWEST_FAULTS, "disk_full": FEWEST_OF_A_KIND, "clock_wrong": 1}, 3, 4, 5, 6, 7, 8, 9,
    NOTHING,
)  # fmt: skip


def test_the_readme_quotes_the_published_figures() -> None:
    _, _, rest = README.read_text().partition(BEGIN)

    assert rest.partition(END)[0] == quote(read()), "run: make chaos ARGS=--write"


def test_the_published_campaigns_hit_everything_on_either_database_and_broke_nothing() -> None:
    assert [figures.engine for figures in read()] == list(ENGINES)
    for figures in read():
        assert set(EVERYWHERE) < set(figures.faults)
        assert figures.strays > 0
        assert figures.late > 0
        assert not figures.broken


def test_the_published_campaign_on_sqlite_was_a_long_one() -> None:
    figures = next(figures for figures in read() if figures.engine == "sqlite")

    assert too_short([figures]) is None
    assert figures.turns >= FEWEST_FAULTS


@pytest.mark.parametrize(
    ("hit", "why"),
    [
        ({}, None),
        ({"worker_killed": FEWEST_FAULTS - FEWEST_OF_A_KIND - 1}, "sqlite: fewer than 2000 faults have hit"),
        ({"disk_full": FEWEST_OF_A_KIND - 1}, "sqlite: fewer than 50 of disk_full"),
    ],
)
def test_a_short_campaign_is_not_published(hit: dict[str, int], why: str | None) -> None:
    assert too_short([replace(LONG, faults=LONG.faults | hit)]) == why


def test_a_long_campaign_may_be_run_in_parts(tmp_path: Path) -> None:
    parts = tmp_path / "parts.jsonl"
    add_part(parts, replace(LONG, engine="postgres", turns=1000))

    assert add_part(parts, LONG) == LONG
    assert add_part(parts, LONG).turns == 2 * LONG.turns
    assert len(read_parts(parts, "sqlite")) == 2


def test_campaigns_side_by_side_add_up() -> None:
    other = replace(
        LONG,
        faults={"worker_killed": 1, "machine_lost": 2},
        broken=replace(NOTHING, lost=1),
        crashes=("near",),
    )

    both = added_up([LONG, other])

    assert both == Figures(
        "sqlite", 2, 4,
        {"clock_wrong": 1, "disk_full": FEWEST_OF_A_KIND, "machine_lost": 2, "worker_killed": FEWEST_FAULTS + 1},
        6, 8, 10, 12, 14, 16, 18, replace(NOTHING, lost=1), ("near",), 2,
    )  # fmt: skip

from dataclasses import fields
from typing import Any

import pytest

from holdfast.domain.ids import check_id
from holdfast.domain.runtimes import Capabilities, Runtime
from tests.unit.builders import a_runtime, capabilities

#: decide whether one binary can pick up the sessions of the other
RELEVANT = {"can_resume", "can_fork", "can_fork_at_turn", "chooses_id"}


def with_flipped(name: str) -> Runtime:
    return a_runtime(capabilities=capabilities(**{name: not getattr(capabilities(), name)}))


def test_the_same_runtime_has_the_same_id() -> None:
    assert a_runtime().id == a_runtime().id


@pytest.mark.parametrize("version", ["2.1.1", "3.0.0", None])
def test_an_update_of_the_agent_is_the_same_runtime(version: str | None) -> None:
    assert a_runtime(version=version).id == a_runtime().id


@pytest.mark.parametrize("field", ["machine", "provider", "distribution", "home"])
def test_another_place_is_another_runtime(field: str) -> None:
    assert a_runtime(**{field: "another"}).id != a_runtime().id


@pytest.mark.parametrize("field", sorted(RELEVANT))
def test_a_binary_that_can_do_something_else_is_another_runtime(field: str) -> None:
    assert with_flipped(field).id != a_runtime(capabilities=capabilities()).id


@pytest.mark.parametrize("field", sorted({f.name for f in fields(Capabilities)} - RELEVANT))
def test_how_a_binary_reports_does_not_matter(field: str) -> None:
    assert with_flipped(field).id == a_runtime(capabilities=capabilities()).id


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"machine": "ab", "provider": "c"}, {"machine": "a", "provider": "bc"}),
        ({"distribution": 'npm", "'}, {"distribution": "npm"}),
        ({"machine": "claude", "provider": "build-7"}, {"machine": "build-7", "provider": "claude"}),
    ],
    ids=["moved-letter", "quotes", "swapped"],
)
def test_fields_do_not_run_into_each_other(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert a_runtime(**one).id != a_runtime(**other).id


@pytest.mark.parametrize("home", ["", "/home/ädä", "/home/\udcff", "/home/a\nb"])
def test_every_home_has_an_acceptable_id(home: str) -> None:
    runtime_id = a_runtime(home=home).id

    assert check_id("runtime", runtime_id) == runtime_id
    assert len(runtime_id) < 40

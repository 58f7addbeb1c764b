"""Owns what the tests of the command share: the store they work on."""

from collections.abc import Iterator

import pytest

import holdfast
from holdfast import Holdfast


@pytest.fixture(params=["sqlite", "postgres"])
def each_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The test runs on the default store, and once more on PostgreSQL."""
    if request.param == "postgres":
        monkeypatch.setenv("HOLDFAST_URL", request.getfixturevalue("postgres_url"))
    return str(request.param)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Holdfast]:
    """The same store as the command's, opened by the library: to prepare what the command then shows."""
    monkeypatch.setenv("HOLDFAST_DURABILITY", "normal")  # these tests pull no plug, and there are many
    with holdfast.open() as opened:
        yield opened

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from holdfast.providers.contract import Provider
from holdfast.providers.registry import get_provider, provider_names
from holdfast.testing.provider_contract import (
    ArchiveContract,
    CommandContract,
    Lines,
    ProbeContract,
    RightsContract,
    StreamContract,
)

#: what each provider's binary printed: when it was probed, and in a run
RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture(params=[name for name in provider_names() if find_spec(f"holdfast.providers.{name}")])
def provider(request: pytest.FixtureRequest) -> Provider:
    return get_provider(request.param)


@pytest.fixture
def recorded(provider: Provider) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / f"{provider.name}.json").read_text("utf-8"))
    return found


@pytest.fixture
def probe_outputs(recorded: dict[str, Any]) -> tuple[str, ...]:
    return tuple(recorded["probe_outputs"])


@pytest.fixture
def lines(recorded: dict[str, Any]) -> Lines:
    found: Lines = recorded["lines"]
    return found


class TestCommands(CommandContract):
    pass


class TestRights(RightsContract):
    pass


class TestProbes(ProbeContract):
    pass


class TestStreams(StreamContract):
    pass


class TestArchives(ArchiveContract):
    pass


def test_every_provider_is_known_by_its_own_name(provider: Provider) -> None:
    assert get_provider(provider.name).name == provider.name

"""The suite for authors of providers, as they run it: on the provider of examples/provider."""

import subprocess
import sys

import pytest

from examples.provider import echo_agent
from examples.provider.echo_provider import Echo
from holdfast.providers.contract import Provider
from holdfast.testing import provider_contract


@pytest.fixture
def provider() -> Provider:
    return Echo()


@pytest.fixture(scope="module")
def probe_outputs() -> tuple[str, ...]:
    def ask(option: str) -> str:
        command = [sys.executable, str(echo_agent.__file__), option]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    return ask("--version"), ask("--help")


@pytest.fixture
def lines() -> provider_contract.Lines:
    return [{"session": "5b1c2d3e-0000-4000-8000-000000000001"}, {"say": "turn 1: hello"}, {"done": True}]


class TestCommands(provider_contract.CommandContract):
    pass


class TestRights(provider_contract.RightsContract):
    pass


class TestProbes(provider_contract.ProbeContract):
    pass


class TestStreams(provider_contract.StreamContract):
    pass


class TestArchives(provider_contract.ArchiveContract):
    pass

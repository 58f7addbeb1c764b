"""The short form of the campaign: every fault once, on either database."""

from pathlib import Path

import pytest

from holdfast.processes.owners import ON_LINUX
from tests.chaos.__main__ import ENGINES, campaign
from tests.chaos.campaign import Plan
from tests.chaos.faults import EVERYWHERE
from tests.postgres_server import ServerUnavailable

pytestmark = pytest.mark.skipif(not ON_LINUX, reason="disks are filled, and processes found, as Linux has it")
SHORT = Plan(sessions=6, turns=4, rounds=1, seconds=270.0)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_is_lost_or_done_twice_whatever_breaks(engine: str, tmp_path: Path) -> None:
    try:
        figures = campaign(engine, SHORT, tmp_path)
    except ServerUnavailable as exc:
        pytest.skip(f"no PostgreSQL: {exc}")

    assert not figures.broken, figures.line()
    assert figures.turns >= SHORT.sessions * SHORT.turns
    assert figures.strays > 0, "no agent was left on the machine that was lost"
    assert set(EVERYWHERE) < set(figures.faults)

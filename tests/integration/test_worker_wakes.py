"""Workers that look by themselves twice an hour: what can be claimed is run all the same, as soon as it can."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from holdfast.domain.turns import TurnStatus
from tests.acceptance.served import server
from tests.integration.crew import WAIT, Crew
from tests.integration.workshop import Workshop, ended, eventually

#: a turn whose session is still locked by the worker before is put back for a while: nothing but polling ends that
RARELY = {"HOLDFAST_QUEUE__POLL_SECONDS": "1800", "HOLDFAST_QUEUE__LOCK_DELAY_SECONDS": "0"}


@pytest.fixture(params=["sqlite", "postgres", "http"])
def crew(request: pytest.FixtureRequest, shop: Workshop) -> Iterator[Crew]:
    if request.param == "postgres":
        shop.database = str(request.getfixturevalue("postgres_url"))
    shop.changes.update(RARELY)
    with ExitStack() as running:
        crew = Crew(shop, shop.open())
        if request.param == "http":
            url, _ = running.enter_context(server("--url", shop.url))
            shop.changes["HOLDFAST_URL"] = url
        yield crew
        crew.dismiss()


def test_it_runs_what_is_put_in_while_it_idles(crew: Crew) -> None:
    worker = crew.enlist()
    eventually(crew.hf.store.runtimes)
    session = crew.session()

    for word in ("one", "two", "three"):
        crew.until(crew.ask(session, f"SAY {word}"), TurnStatus.DONE)

    worker.send_signal(signal.SIGTERM)
    assert ended(worker)[0] == 0


def test_what_one_hands_back_another_takes(crew: Crew) -> None:
    leaving = crew.enlist("--drain", "0")
    turn = crew.ask(crew.session(), f"{WAIT}\nSAY whole")
    crew.until_begun(turn)
    crew.enlist()
    crew.until(crew.ask(crew.session(), "SAY I am there, too"), TurnStatus.DONE)

    leaving.send_signal(signal.SIGTERM)
    assert ended(leaving)[0] == 0
    crew.go()

    crew.until(turn, TurnStatus.DONE)

"""The database and the server go away in mid-turn, and come back: the agent goes on, and its answer is delivered."""

import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.domain.runtimes import Runtime
from holdfast.domain.turns import AttemptStatus, ClaimRequest, TurnStatus
from holdfast.processes.owners import process_start
from tests import postgres_server
from tests.contract.conftest import driver_of
from tests.integration.crew import EAGER, WAIT, Crew
from tests.integration.workshop import HOLDFAST, PATIENCE, Workshop, ended, eventually

WHOLE = f"{WAIT}\nSAY whole"


@pytest.fixture(scope="module")
def own_server() -> Iterator[postgres_server.OwnServer]:
    pytest.importorskip("psycopg", reason="psycopg is not installed", exc_type=ImportError)
    # directly under the temporary directory: the path of a unix socket may have about 100 characters
    directory = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
    try:
        server = postgres_server.OwnServer(directory)
    except postgres_server.ServerUnavailable as exc:
        pytest.skip(f"no PostgreSQL: {exc}")
    yield server
    server.stop()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def postgres(own_server: postgres_server.OwnServer) -> Iterator[postgres_server.OwnServer]:
    """With nothing in it; it runs again when a test has failed while it did not."""
    import psycopg

    yield own_server
    own_server.stop()
    own_server.start()
    with psycopg.connect(own_server.url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS holdfast CASCADE")


@pytest.fixture
def crew(shop: Workshop, postgres: postgres_server.OwnServer) -> Iterator[Crew]:
    shop.database = postgres.url
    shop.changes.update(EAGER)
    crew = Crew(shop, shop.open())
    yield crew
    crew.dismiss()


class Served:
    """A server process on a port of its own, which may be ended and started again."""

    def __init__(self, shop: Workshop) -> None:
        self._shop = shop
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [HOLDFAST, "serve", "--port", str(self._port), "--json"],
            env=self._shop.environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline()

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.communicate(timeout=PATIENCE)


def told(worker: subprocess.Popen[str], word: str) -> str:
    """What the worker says, up to a line with this word."""
    assert worker.stderr is not None
    lines: list[str] = []
    while word not in (line := worker.stderr.readline()):
        assert line, f"it ended without {word!r}: {lines}"
        lines.append(line)
    return line


def test_an_agent_outlives_a_restart_of_the_database_and_a_lease_that_expired_meanwhile(
    crew: Crew, postgres: postgres_server.OwnServer
) -> None:
    turn = crew.ask(crew.session(), WHOLE)
    worker = crew.enlist(environ={"HOLDFAST_QUEUE__LEASE_SECONDS": "0.5"})
    process = crew.until_begun(turn).process
    assert process is not None

    postgres.stop()
    told(worker, "waiting for the store")
    crew.go()
    eventually(lambda: process_start(process.pgid) != process.started_at)  # it has answered meanwhile
    postgres.start()

    done = crew.until(turn, TurnStatus.DONE)
    assert done.response == "whole"
    assert [attempt.status for attempt in crew.attempts(turn)] == [AttemptStatus.DONE]
    told(worker, "reached again")
    again = crew.ask(crew.session(), "SAY and on")
    crew.until(again, TurnStatus.DONE)


def test_a_worker_does_not_take_from_itself_what_expired_while_the_database_was_away(
    crew: Crew, postgres: postgres_server.OwnServer
) -> None:
    turn = crew.ask(crew.session(), WHOLE)
    worker = crew.enlist(environ={"HOLDFAST_QUEUE__LEASE_SECONDS": "0.5"})
    process = crew.until_begun(turn).process
    assert process is not None

    postgres.stop()
    told(worker, "waiting for the store")
    postgres.start()
    told(worker, "reached again")
    after_it = crew.hf.store.now()
    eventually(lambda: any(_seen_since(crew, after_it)))  # it has looked around since then
    assert process_start(process.pgid) == process.started_at, "its agent was ended"
    crew.go()

    crew.until(turn, TurnStatus.DONE)
    assert [attempt.status for attempt in crew.attempts(turn)] == [AttemptStatus.DONE]


def _seen_since(crew: Crew, instant: int) -> Iterator[bool]:
    with driver_of(crew.hf.store).read() as tx:
        for (seen_at,) in tx.all("SELECT last_seen_at FROM runtimes", {}):
            yield seen_at > instant


def test_once_the_grace_is_over_the_agent_is_ended_and_the_turn_runs_again(
    crew: Crew, postgres: postgres_server.OwnServer
) -> None:
    turn = crew.ask(crew.session(), f"AGAIN\n{WHOLE}")
    grace = {"HOLDFAST_QUEUE__GRACE_SECONDS": "0.5", "HOLDFAST_QUEUE__LEASE_SECONDS": "0.5"}
    worker = crew.enlist(environ=grace)
    process = crew.until_begun(turn).process
    assert process is not None

    postgres.stop()
    eventually(lambda: process_start(process.pgid) != process.started_at)
    told(worker, "was given up")
    crew.go()
    postgres.start()

    assert crew.until(turn, TurnStatus.DONE).response == "whole"
    assert [a.status for a in crew.attempts(turn)] == [AttemptStatus.INTERRUPTED, AttemptStatus.DONE]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_agent_outlives_a_restart_of_the_server(crew: Crew, number: signal.Signals) -> None:
    served = Served(crew.shop)
    try:
        turn = crew.ask(crew.session(), WHOLE)
        worker = crew.enlist(environ={"HOLDFAST_URL": served.url})
        crew.until_begun(turn)

        served.end(number)
        told(worker, "waiting for the store")
        crew.go()
        served.start()

        assert crew.until(turn, TurnStatus.DONE).response == "whole"
        assert [attempt.status for attempt in crew.attempts(turn)] == [AttemptStatus.DONE]
        worker.send_signal(signal.SIGTERM)
        assert ended(worker)[0] == 0
    finally:
        served.end(signal.SIGTERM)


def test_a_worker_that_is_not_let_in_at_the_start_does_not_wait(crew: Crew) -> None:
    assert ended(crew.shop.start("token", "create", "--role", "admin"))[0] == 0
    served = Served(crew.shop)
    try:
        of_nobody = f"hft_{'0' * 12}_{'0' * 64}"
        worker = crew.enlist(environ={"HOLDFAST_URL": served.url, "HOLDFAST_TOKEN": of_nobody})
        code, out, err = ended(worker)
    finally:
        served.end(signal.SIGTERM)

    assert (code, out) == (4, ""), err
    assert "the token is not known here" in err.splitlines()[-1]


def test_once_the_grace_is_over_the_agent_of_a_server_that_keeps_silent_is_ended(crew: Crew) -> None:
    served = Served(crew.shop)
    try:
        turn = crew.ask(crew.session(), WHOLE)
        crew.enlist(environ={"HOLDFAST_URL": served.url, "HOLDFAST_QUEUE__GRACE_SECONDS": "0.5"})
        process = crew.until_begun(turn).process
        assert process is not None

        served.process.send_signal(signal.SIGSTOP)

        eventually(lambda: process_start(process.pgid) != process.started_at)
    finally:
        served.process.send_signal(signal.SIGCONT)
        crew.dismiss()
        served.end(signal.SIGTERM)


def test_a_worker_that_starts_leaves_expired_turns_to_the_living_for_one_heartbeat(
    crew: Crew, postgres: postgres_server.OwnServer
) -> None:
    """As they are found when the database was away for longer than a lease, and all come back at once."""
    turn = crew.ask(crew.session(), WHOLE)
    elsewhere = crew.hf.store.claim_turn(
        ClaimRequest(Runtime("far", "scripted", "scripted", "/home"), "somebody far away", "key", 0.001)
    )
    assert elsewhere is not None
    worker = crew.enlist(environ={"HOLDFAST_QUEUE__HEARTBEAT_SECONDS": "59"})
    after_it = crew.hf.store.now()
    eventually(lambda: any(_seen_since(crew, after_it)))
    crew.until(crew.ask(crew.session(), "SAY another"), TurnStatus.DONE)  # its first look is over

    assert crew.look(turn).status is TurnStatus.CLAIMED
    crew.hf.store.heartbeat(elsewhere.lease, 60)

    worker.send_signal(signal.SIGTERM)
    assert ended(worker)[0] == 0


RARELY = {"HOLDFAST_QUEUE__POLL_SECONDS": "1800"}


def test_a_worker_is_told_of_turns_again_after_a_restart_of_the_database(
    crew: Crew, postgres: postgres_server.OwnServer
) -> None:
    worker = crew.enlist(environ=RARELY)
    crew.until(crew.ask(crew.session(), "SAY before"), TurnStatus.DONE)

    postgres.stop()
    told(worker, "not notified of new turns")
    postgres.start()

    for word in ("after", "it"):
        crew.until(crew.ask(crew.session(), f"SAY {word}"), TurnStatus.DONE)


def test_a_worker_is_told_of_turns_again_after_a_restart_of_the_server(crew: Crew) -> None:
    served = Served(crew.shop)
    try:
        worker = crew.enlist(environ=RARELY | {"HOLDFAST_URL": served.url})
        crew.until(crew.ask(crew.session(), "SAY before"), TurnStatus.DONE)

        served.end(signal.SIGTERM)
        told(worker, "not notified of new turns")
        served.start()

        for word in ("after", "it"):
            crew.until(crew.ask(crew.session(), f"SAY {word}"), TurnStatus.DONE)
    finally:
        served.end(signal.SIGTERM)


def test_a_clock_that_is_wrong_steals_nothing(crew: Crew) -> None:
    turn = crew.ask(crew.session(), WHOLE)
    crew.enlist()
    crew.until_begun(turn)
    fast = subprocess.Popen(
        [HOLDFAST.with_name("python"), "-c", IN_AN_HOUR, "worker", "--provider", "scripted", "--once"],
        cwd=crew.shop.work_dir, env=crew.shop.environ, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    crew.ask(crew.session(), "SAY by somebody who is an hour ahead")

    code, _, err = ended(fast)

    assert (code, "left behind" in err) == (0, False), err
    assert crew.look(turn).status is TurnStatus.RUNNING
    crew.go()
    crew.until(turn, TurnStatus.DONE)
    assert len(crew.attempts(turn)) == 1


#: the command, on a machine whose clock is an hour ahead
IN_AN_HOUR = """
import sys, time
real, real_ns = time.time, time.time_ns
time.time = lambda: real() + 3600
time.time_ns = lambda: real_ns() + 3600 * 10**9
from holdfast.cli.main import main
sys.exit(main())
"""

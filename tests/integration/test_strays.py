"""Agents whose turn went on without them are ended where they run, by whoever looks there next; all others live."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.config import DEFAULT
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import NewSession
from holdfast.domain.turns import AttemptStatus, Turn, TurnStatus
from holdfast.engine.running.recovery import end_strays
from holdfast.processes.owners import ON_LINUX
from holdfast.processes.table import MARKER, marker_of
from holdfast.store.open import open_store
from tests.integration.agents import lives
from tests.integration.crew import WAIT, Crew
from tests.integration.workshop import Workshop, ended, eventually, kill

pytestmark = pytest.mark.skipif(not ON_LINUX, reason="only Linux tells the environment of a process")

SHORT = {"HOLDFAST_QUEUE__LEASE_SECONDS": "0.6"}
PATIENT = {"HOLDFAST_QUEUE__LEASE_SECONDS": "600"}


def another_machine(shop: Workshop) -> dict[str, str]:
    """Only its store is the same."""
    folder = shop.folder("another-machine")
    return {"XDG_DATA_HOME": str(folder), "SCRIPTED_HOME": str(folder / "agent")}


def elsewhere(crew: Crew) -> Holdfast:
    return Holdfast(crew.hf.store, crew.shop.policy, environ=crew.shop.environ | another_machine(crew.shop))


def left_alone(crew: Crew) -> Turn:
    """A turn whose agent works on, though its worker was killed."""
    turn = crew.ask(crew.session(), f"{WAIT}\nSAY whole")
    worker = crew.enlist(environ=SHORT)
    crew.until_begun(turn)
    kill(worker)
    assert crew.shop.left_running()
    return turn


def taken_over(crew: Crew) -> Turn:
    """By another machine, which cannot end what runs on this one."""
    turn = left_alone(crew)
    eventually(elsewhere(crew).recover)
    assert crew.shop.left_running()
    return turn


def first_agent_lives(crew: Crew, turn: Turn) -> bool:
    process = crew.attempts(turn)[0].process
    assert process is not None
    return lives(process.pgid)


def test_a_worker_that_starts_ends_what_runs_here_of_a_turn_that_runs_elsewhere(crew: Crew) -> None:
    turn = left_alone(crew)
    crew.enlist(environ=PATIENT | another_machine(crew.shop))
    eventually(lambda: len(crew.attempts(turn)) == 2)

    back = crew.enlist(environ=PATIENT)

    eventually(lambda: not first_agent_lives(crew, turn))
    assert crew.attempts(turn)[-1].status is AttemptStatus.OPEN
    crew.go()
    crew.until(turn, TurnStatus.DONE)
    assert [attempt.status for attempt in crew.attempts(turn)] == [
        AttemptStatus.INTERRUPTED,
        AttemptStatus.DONE,
    ]
    back.send_signal(signal.SIGTERM)
    assert f"turn 1 of {turn.session_id} continued without attempt 1" in ended(back)[2]


def test_recover_ends_them_and_says_so(crew: Crew) -> None:
    turn = taken_over(crew)

    code, out, err = ended(crew.shop.start("recover"))

    assert (code, out) == (0, "")
    assert f"turn 1 of {turn.session_id} continued without attempt 1" in err
    assert not crew.shop.left_running()


def test_what_runs_of_a_cancelled_turn_is_ended(crew: Crew) -> None:
    turn = left_alone(crew)
    elsewhere(crew).cancel(turn.session_id, turn.seq)
    eventually(elsewhere(crew).recover)
    assert crew.look(turn).status is TurnStatus.CANCELLED

    crew.hf.recover()

    assert not crew.shop.left_running()


def test_another_machine_ends_nothing_here(crew: Crew) -> None:
    taken_over(crew)

    elsewhere(crew).recover()

    assert crew.shop.left_running()
    crew.hf.recover()


def test_an_agent_whose_lease_expired_and_was_not_taken_lives(crew: Crew) -> None:
    turn = crew.ask(crew.session(), f"{WAIT}\nSAY whole")
    worker = crew.enlist(environ=SHORT)
    holder = crew.until_begun(turn)
    worker.send_signal(signal.SIGSTOP)
    eventually(lambda: crew.hf.store.now() > holder.lease.expires_at)

    end_strays(crew.hf.store, crew.hf.agents.machine, besides=())

    worker.send_signal(signal.SIGCONT)
    crew.go()
    crew.until(turn, TurnStatus.DONE)
    assert len(crew.attempts(turn)) == 1


def test_an_agent_of_another_store_lives_also_if_its_session_has_the_same_id(
    crew: Crew, tmp_path: Path
) -> None:
    same = SessionId("nightly")
    crew.hf.store.create_session(NewSession(same, "worker", provider="scripted"))
    turn = crew.ask(same, f"{WAIT}\nSAY whole")
    crew.enlist()
    crew.until_begun(turn)
    other = Holdfast(open_store(f"sqlite:///{tmp_path / 'other.db'}"), environ=crew.shop.environ)
    other.store.create_session(NewSession(same, "worker", provider="scripted"))
    assert other.resume(same, "SAY done", provider="scripted", cwd=str(crew.shop.work_dir)).ok

    other.recover()

    other.close()
    crew.go()
    crew.until(turn, TurnStatus.DONE)
    assert len(crew.attempts(turn)) == 1


def test_whoever_only_quotes_a_marker_lives(crew: Crew) -> None:
    turn = taken_over(crew)
    quoted = f"{MARKER}={marker_of(crew.attempts(turn)[0], DEFAULT)}"
    program = [sys.executable, "-c", "import time; time.sleep(600)", quoted]
    with subprocess.Popen(program, env={}) as bystander:
        crew.hf.recover()

        assert not crew.shop.left_running()
        assert bystander.poll() is None
        bystander.kill()

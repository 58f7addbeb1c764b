"""Real workers: they run what waits, let go of it when they are told to, and nothing is lost when they are not."""

import os
import signal
import threading
from pathlib import Path

import pytest

from holdfast.clock import after
from holdfast.domain.decisions import DecisionKind
from holdfast.domain.failures import FailureClass
from holdfast.domain.policy import VaultPolicy
from holdfast.domain.turns import AttemptCause, AttemptStatus, ClaimRequest, NewTurn, TurnStatus
from holdfast.engine.running.recovery import recover_all
from holdfast.engine.worker import WorkerOptions
from holdfast.errors import Conflict
from tests.integration.crew import WAIT, Crew
from tests.integration.workshop import FROM_SESSION, OPENING, RECALL, Workshop, ended, eventually

WHOLE = f"{WAIT}\nSAY whole"


def test_it_runs_what_waits_in_order_and_goes_on_in_the_agents_own_session(crew: Crew) -> None:
    session = crew.session()
    first, second = crew.ask(session, OPENING), crew.follow_up(session, RECALL)

    code, out, err = ended(crew.enlist("--once"))

    assert (code, out) == (0, "")
    assert [crew.look(turn).status for turn in (first, second)] == [TurnStatus.DONE] * 2
    assert crew.look(second).response == FROM_SESSION
    assert f"turn 1 of {session}: done" in err
    assert err.index(f"turn 2 of {session}: begun") > err.index(f"turn 1 of {session}: done")
    assert all(line.startswith("holdfast: info: ") for line in err.splitlines()), err


def test_slots_run_at_the_same_time(crew: Crew) -> None:
    meet = 'TOOL shell {"command": "touch %s; while [ ! -e %s ]; do sleep 0.05; done"}'
    one = crew.ask(crew.session(), meet % ("a", "b"))
    other = crew.ask(crew.session(), meet % ("b", "a"))

    assert ended(crew.enlist("--once", "--slots", "2"))[0] == 0

    assert [crew.look(turn).status for turn in (one, other)] == [TurnStatus.DONE] * 2


def test_a_slot_that_gets_free_is_used_at_once(crew: Crew) -> None:
    turns = [crew.ask(crew.session(), "SAY hello") for _ in range(3)]

    # with a look now and then only, this would take an hour
    code, _, _ = ended(crew.enlist("--once", environ={"HOLDFAST_QUEUE__POLL_SECONDS": "1800"}))

    assert code == 0
    assert [crew.look(turn).status for turn in turns] == [TurnStatus.DONE] * 3


def test_once_leaves_what_may_only_run_later(crew: Crew) -> None:
    turn = crew.ask(crew.session(), "SAY now")
    in_an_hour = after(crew.hf.store.now(), 3600)
    later = crew.hf.enqueue(crew.session(), "SAY later", NewTurn("", "scripted", not_before=in_an_hour))

    assert ended(crew.enlist("--once"))[0] == 0

    assert (crew.look(turn).status, crew.look(later).status) == (TurnStatus.DONE, TurnStatus.QUEUED)


# --- told to stop ---


def test_after_sigterm_what_runs_may_end_and_nothing_new_begins(crew: Crew) -> None:
    turn, waits = crew.ask(crew.session(), WHOLE), crew.ask(crew.session(), "SAY never")
    worker = crew.enlist()
    crew.until_begun(turn)

    worker.send_signal(signal.SIGTERM)
    crew.go()

    assert ended(worker)[0] == 0
    assert (crew.look(turn).status, crew.look(turn).response) == (TurnStatus.DONE, "whole")
    assert (crew.look(waits).status, crew.attempts(waits)) == (TurnStatus.QUEUED, ())


@pytest.mark.parametrize("insists", [True, False])
def test_what_is_handed_back_goes_on_elsewhere_and_costs_no_try(crew: Crew, insists: bool) -> None:
    session = crew.session()
    ended_well = crew.ask(session, OPENING)
    turn = crew.ask(session, f"{WHOLE}\n{RECALL}")
    worker = crew.enlist("--drain", "600" if insists else "0.2")
    crew.until_begun(turn)

    for number in (signal.SIGTERM, signal.SIGINT)[: 2 if insists else 1]:
        worker.send_signal(number)

    code, _, told = ended(worker)
    assert code == 0
    assert "put back: the worker was stopped" in told
    assert not crew.shop.left_running()
    handed_back = crew.look(turn)
    assert (handed_back.status, handed_back.tries) == (TurnStatus.QUEUED, 0)
    crew.go()
    assert ended(crew.enlist("--once"))[0] == 0
    assert crew.look(turn).status is TurnStatus.DONE
    first, second = crew.attempts(turn)
    assert (first.status, second.cause) == (AttemptStatus.PUT_BACK, AttemptCause.RECOVERY)
    assert second.decision.kind is DecisionKind.RESUME
    assert second.provider_session_id == crew.attempts(ended_well)[-1].provider_session_id


def test_agents_that_do_not_want_to_end_are_ended_side_by_side(crew: Crew) -> None:
    turns = [crew.ask(crew.session(), f"IGNORE_TERM\nSAY half\n{WAIT}") for _ in range(4)]
    worker = crew.enlist("--slots", "4", "--drain", "0")
    for turn in turns:
        crew.until(turn, TurnStatus.RUNNING)
    eventually((crew.shop.work_dir / "begun").exists)

    worker.send_signal(signal.SIGTERM)
    ended(worker)

    assert {crew.look(turn).status for turn in turns} == {TurnStatus.QUEUED}
    assert not crew.shop.left_running()


# --- killed ---


def test_the_next_worker_ends_what_a_dead_one_left_and_runs_it_again(crew: Crew) -> None:
    turn = crew.ask(crew.session(), WHOLE)
    dead = crew.enlist()
    process = crew.until_begun(turn).process
    assert process is not None
    dead.kill()
    dead.wait()
    assert crew.shop.left_running(), "the agent lives on until someone comes"
    crew.go()

    code, _, err = ended(crew.enlist("--once"))

    assert (code, crew.look(turn).status) == (0, TurnStatus.DONE)
    assert "was left behind" in err
    assert [(a.status, a.cause) for a in crew.attempts(turn)] == [
        (AttemptStatus.INTERRUPTED, AttemptCause.FIRST),
        (AttemptStatus.DONE, AttemptCause.RECOVERY),
    ]


def test_a_turn_that_takes_too_long_is_not_run_again(crew: Crew) -> None:
    turn = crew.ask(crew.session(), "HANG")
    code, _, err = ended(crew.enlist("--once", environ={"HOLDFAST_RUN__TIMEOUT_SECONDS": "4"}))
    seen = crew.look(turn)
    assert (code, seen.status, len(crew.attempts(turn))) == (0, TurnStatus.FAILED, 1), err
    assert seen.failure is not None
    assert "time limit" in seen.failure.message


def test_an_agent_that_is_killed_is_run_again_by_itself(crew: Crew) -> None:
    turn = crew.ask(crew.session(), WHOLE)
    crew.enlist()
    process = crew.until_begun(turn).process
    assert process is not None

    os.killpg(process.pgid, signal.SIGKILL)
    crew.go()

    crew.until(turn, TurnStatus.DONE)
    assert [attempt.cause for attempt in crew.attempts(turn)] == [AttemptCause.FIRST, AttemptCause.RETRY]


def test_the_result_of_a_worker_that_lost_its_lease_is_kept_as_evidence(crew: Crew) -> None:
    turn = crew.ask(crew.session(), f"{WAIT}\nSAY by whoever comes last")
    short = {"HOLDFAST_QUEUE__LEASE_SECONDS": "0.6"}
    stopped = crew.enlist(environ=short)
    crew.until_begun(turn)
    stopped.send_signal(signal.SIGSTOP)
    crew.enlist()
    eventually(lambda: AttemptStatus.PUT_BACK in [attempt.status for attempt in crew.attempts(turn)])

    crew.go()
    stopped.send_signal(signal.SIGCONT)
    reports = eventually(lambda: crew.hf.store.late_reports(turn.conversation_id))
    done = crew.until(turn, TurnStatus.DONE)
    stopped.send_signal(signal.SIGTERM)

    code, _, err = ended(stopped)
    assert (code, "kept as evidence" in err) == (0, True), err
    assert [(report.seq, report.verb) for report in reports] == [(turn.seq, "finish")]
    assert crew.look(turn) == done
    lost, *waited, last = crew.attempts(turn)
    assert (lost.status, last.status, done.tries) == (AttemptStatus.INTERRUPTED, AttemptStatus.DONE, 2)
    # the stopped worker still holds the agent's session: nobody writes there beside it, and that costs no try
    assert waited
    for attempt in waited:
        assert attempt.status is AttemptStatus.PUT_BACK
        assert attempt.provider_session_id == lost.provider_session_id
        assert attempt.failure is not None
        assert attempt.failure.failure_class is FailureClass.LOCKED
    assert last.decision.kind is DecisionKind.RESUME
    assert last.provider_session_id == lost.provider_session_id


def test_a_persons_own_command_that_lost_its_lease_ends_with_75(crew: Crew) -> None:
    first = crew.shop.begin()
    crew.shop.changes["HOLDFAST_QUEUE__LEASE_SECONDS"] = "0.6"
    command = crew.shop.start("resume", first.session_id, WHOLE)
    eventually((crew.shop.work_dir / "begun").exists)
    command.send_signal(signal.SIGSTOP)
    (turn,) = eventually(crew.hf.recover)
    command.send_signal(signal.SIGCONT)

    code, _, err = ended(command)

    assert (code, "lease" in err) == (75, True), err
    assert crew.look(turn).status is TurnStatus.FAILED
    assert crew.hf.store.late_reports(turn.conversation_id)


def test_what_the_agent_of_a_stopped_worker_has_answered_is_not_asked_again(crew: Crew) -> None:
    turn = crew.ask(crew.session(), f"{WAIT}\nSAY once")
    stopped = crew.enlist(environ={"HOLDFAST_QUEUE__LEASE_SECONDS": "0.6"})
    crew.until_begun(turn)
    stopped.send_signal(signal.SIGSTOP)
    crew.go()
    (attempt,) = crew.attempts(turn)
    transcript = crew.shop.transcript(attempt.provider_session_id)
    eventually(lambda: '"complete": true' in transcript.read_text())
    crew.enlist()

    done = crew.until(turn, TurnStatus.DONE)
    stopped.send_signal(signal.SIGCONT)
    stopped.send_signal(signal.SIGTERM)
    code, _, err = ended(stopped)

    assert (code, done.response) == (0, "once"), err
    assert crew.look(turn) == done
    assert [attempt.status for attempt in crew.attempts(turn)] == [AttemptStatus.DONE]


def test_a_worker_does_not_take_over_what_it_runs_itself(crew: Crew) -> None:
    agent = crew.hf.agents.get("scripted")
    turn = crew.ask(crew.session(), "SAY hello")
    request = ClaimRequest(agent.runtime, agent.machine.this_process(), "key", 0.05)
    claimed = crew.hf.store.claim_turn(request)
    assert claimed is not None
    eventually(lambda: crew.hf.store.now() > claimed.lease.expires_at)

    assert recover_all(crew.hf.store, agent.agents, VaultPolicy(), besides={turn.session_id}) == ()
    assert [taken.seq for taken in recover_all(crew.hf.store, agent.agents, VaultPolicy())] == [turn.seq]


# --- from anywhere ---


def test_cancelling_does_not_wait_for_a_renewal_and_keeps_the_session(crew: Crew) -> None:
    session = crew.session()
    crew.ask(session, OPENING)
    turn = crew.ask(session, f"SPAWN\n{WAIT}")
    slow = {"HOLDFAST_QUEUE__HEARTBEAT_SECONDS": "1800", "HOLDFAST_QUEUE__LEASE_SECONDS": "3600"}
    crew.enlist(environ=slow)
    crew.until_begun(turn)

    assert ended(crew.shop.start("cancel", session))[0] == 0

    crew.until(turn, TurnStatus.CANCELLED)
    again = crew.follow_up(session, RECALL)
    assert crew.until(again, TurnStatus.DONE).response is not None
    assert crew.attempts(again)[0].decision.kind is DecisionKind.RESUME


def test_a_persons_retry_wins_over_the_one_that_waits(crew: Crew) -> None:
    crew.shop.changes["HOLDFAST_QUEUE__RETRY_DELAY_SECONDS"] = "3600"
    session = crew.session()
    crew.ask(session, OPENING)
    clicked = crew.ask(session, "FAIL 529 overloaded")
    worker = crew.enlist()
    eventually(lambda: crew.look(clicked).next_cause is AttemptCause.RETRY)

    code, _, err = ended(crew.shop.start("retry", session, str(clicked.seq), "--prompt", "SAY better"))
    assert code == 0, err

    (again,) = (turn for turn in crew.hf.store.turns(session) if turn.retry_of == clicked.seq)
    assert crew.until(again, TurnStatus.DONE).response == "better"
    assert crew.look(clicked).status is TurnStatus.CANCELLED
    assert len(crew.attempts(clicked)) == 1
    assert [turn.prompt for turn in crew.hf.history(session)] == [OPENING, "SAY better"]
    assert worker.poll() is None


def test_what_runs_is_not_retried_behind_its_back(crew: Crew) -> None:
    turn = crew.ask(crew.session(), WHOLE)
    crew.enlist()
    crew.until_begun(turn)

    with pytest.raises(Conflict):
        crew.hf.retry(turn.session_id, turn.seq)

    crew.go()
    crew.until(turn, TurnStatus.DONE)


# --- what is not there ---


def test_a_worker_whose_agent_has_gone_gives_its_turns_back(crew: Crew) -> None:
    agent = Path(crew.shop.stand_in("stand-in", ""))
    crew.shop.changes["HOLDFAST_SCRIPTED_BINARY"] = str(agent)
    ready = crew.ask(crew.session(), "SAY ready")
    crew.enlist()
    crew.until(ready, TurnStatus.DONE)
    agent.rename(agent.with_name("moved"))
    turn = crew.ask(crew.session(), "SAY here again")

    eventually(lambda: crew.attempts(turn))
    eventually(lambda: crew.look(turn).status is TurnStatus.QUEUED)
    agent.with_name("moved").rename(agent)

    done = crew.until(turn, TurnStatus.DONE)
    assert (done.response, done.tries) == ("here again", 1)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "postgresql://nobody@127.0.0.1:9/none"])
def test_a_store_that_is_not_there_at_the_start_is_said_in_one_line(crew: Crew, url: str) -> None:
    code, out, err = ended(crew.enlist("--once", environ={"HOLDFAST_URL": url}))

    assert (code, out) == (1, "")
    assert "cannot be reached" in err.splitlines()[-1]
    assert "Traceback" not in err


def test_a_worker_without_any_agent_says_so(shop: Workshop) -> None:
    code, _, err = ended(shop.start("worker", "--provider", "codex", environ={"PATH": "/nowhere"}))

    assert (code, "codex" in err) == (2, True), err


def test_a_directory_that_is_not_there_fails_the_turn_and_not_the_worker(crew: Crew) -> None:
    turn = crew.ask(crew.session(), "SAY no", cwd=crew.shop.root / "nowhere")
    fine = crew.ask(crew.session(), "SAY yes")

    assert ended(crew.enlist("--once"))[0] == 0

    assert (crew.look(turn).status, crew.look(fine).status) == (TurnStatus.FAILED, TurnStatus.DONE)


# --- for weeks ---


def test_nothing_of_a_turn_is_left_in_the_worker(crew: Crew) -> None:
    def work(turns: int) -> int:
        for _ in range(turns):
            crew.ask(crew.session(), "SAY hello")
        crew.hf.worker(["scripted"], WorkerOptions(slots=2, once=True)).run()
        return len(list(Path("/proc/self/fd").iterdir()))

    after_some = work(4)

    more = 16
    # a turn may be the first that needs one more connection, which is kept for the next one
    assert work(more) < after_some + more
    names = [thread.name for thread in threading.enumerate()]
    assert [name for name in names if name.startswith(("turn", "holdfast"))] == []

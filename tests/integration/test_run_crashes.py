"""Real kills: of the agent and of Holdfast, at every moment of a turn. Nothing is lost, nothing runs on."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from holdfast import Holdfast
from holdfast.domain.decisions import Resume
from holdfast.domain.events import EventKind
from holdfast.domain.ids import SessionId
from holdfast.domain.policy import Policy, QueuePolicy
from holdfast.domain.sessions import SessionFilter
from holdfast.domain.turns import Claim, ClaimRequest, NewTurn, Orphan, TurnRequest, TurnStatus
from holdfast.engine.result import RunResult
from holdfast.engine.running.agents import Agents
from holdfast.errors import Busy, Conflict
from tests.integration.workshop import (
    FROM_SESSION,
    HOLDFAST,
    OPENING,
    PATIENCE,
    RECALL,
    SECRET,
    Workshop,
    ended,
    eventually,
    kill,
)

#: Holdfast that kills itself right before or after one of its own steps
MORTAL = """
import os, signal, sys
from holdfast.cli.main import main
from holdfast.processes.process import AgentProcess
from holdfast.store.sql_store import SqlStore
when, owner, step = sys.argv[1:4]
del sys.argv[1:4]
owner = {"AgentProcess": AgentProcess, "SqlStore": SqlStore}[owner]
real = getattr(owner, step)
def dies(*args, **keywords):
    if when == "after":
        real(*args, **keywords)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(owner, step, dies)
main()
"""

TOOL = 'TOOL shell {"command": "echo begun > begun; sleep 300"}'


def die(shop: Workshop, *arguments: str) -> None:
    """Run the command until it is killed: before or after a step of a class, and its own arguments."""
    died = subprocess.run(
        [sys.executable, "-c", MORTAL, *arguments], cwd=shop.work_dir, env=shop.environ,
        stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert died.returncode == -signal.SIGKILL, died.stderr


def _half_way(shop: Workshop, session_id: str, kind: EventKind) -> Orphan:
    """The turn that runs, once the store knows that something of this kind has happened in it."""
    hf = shop.open()

    def found() -> Orphan | None:
        orphan = hf.store.holder(session_id)
        if orphan is None:
            return None
        events = hf.store.events(orphan.lease.conversation_id, orphan.lease.seq)
        return orphan if any(event.kind is kind for _, event in events) else None

    orphan: Orphan = eventually(found)
    return orphan


@pytest.fixture
def first(shop: Workshop) -> RunResult:
    return shop.begin()


def _goes_on(shop: Workshop, first: RunResult) -> RunResult:
    """By itself, in the agent's own session, with nothing of the dead turn left running meanwhile."""
    hf = shop.open()
    again = hf.resume(first.session_id)
    assert isinstance(again.decision, Resume)
    assert again.ok
    assert not shop.left_running()
    assert hf.resume(first.session_id, RECALL).text == FROM_SESSION
    return again


@pytest.mark.parametrize(("order", "kind"), [("SAY half\nHANG", EventKind.TEXT), (TOOL, EventKind.TOOL_CALL)])
def test_an_agent_that_is_killed_half_way(
    shop: Workshop, first: RunResult, order: str, kind: EventKind
) -> None:
    running = shop.start("resume", first.session_id, order)
    orphan = _half_way(shop, first.session_id, kind)
    assert orphan.process is not None
    os.kill(orphan.process.pgid, signal.SIGKILL)
    code, _, err = ended(running)
    assert (code, "interrupted" in err) == (1, True)
    assert not shop.left_running()
    in_flight = shop.open().packet(first.session_id).in_flight
    assert [call.tool for call in in_flight] == (["shell"] if kind is EventKind.TOOL_CALL else [])
    _goes_on(shop, first)


@pytest.mark.parametrize(("order", "kind"), [("SAY half\nHANG", EventKind.TEXT), (TOOL, EventKind.TOOL_CALL)])
def test_holdfast_is_killed_half_way(shop: Workshop, first: RunResult, order: str, kind: EventKind) -> None:
    running = shop.start("resume", first.session_id, order)
    _half_way(shop, first.session_id, kind)
    kill(running)
    assert shop.left_running(), "the agent lives on until someone comes back"
    _goes_on(shop, first)
    turns = shop.open().store.turns(first.session_id)
    assert [turn.status for turn in turns] == [
        TurnStatus.DONE,
        TurnStatus.FAILED,
        TurnStatus.DONE,
        TurnStatus.DONE,
    ]


def test_a_fork_of_a_first_turn_that_was_killed_begins_with_it(shop: Workshop) -> None:
    running = shop.start("run", "--provider", "scripted", f"{OPENING}\n{TOOL}")
    hf = shop.open()
    session_id = eventually(lambda: next((session.id for session in hf.sessions(SessionFilter())), None))
    _half_way(shop, session_id, EventKind.TOOL_CALL)
    kill(running)

    fork = hf.fork(session_id, "HISTORY")

    assert fork.ok
    assert SECRET in (fork.text or "")
    assert not shop.left_running()


def test_a_request_that_the_agent_takes_out_of_its_session_again_leaves_the_session_whole(
    shop: Workshop, first: RunResult
) -> None:
    """As Gemini does with one that the model's service refuses."""
    transcript = shop.transcript(first.provider_session_id)
    before = transcript.read_bytes()
    running = shop.start("resume", first.session_id, "SAY half\nHANG")
    _half_way(shop, first.session_id, EventKind.TEXT)
    kill(running)
    assert transcript.read_bytes() != before
    transcript.write_bytes(before)
    again = _goes_on(shop, first)
    assert again.provider_session_id == first.provider_session_id


@pytest.mark.parametrize(
    "point",
    [
        "before SqlStore launch",
        "before AgentProcess go",
        "after AgentProcess go",
        "after SqlStore pin",
    ],
)
def test_holdfast_is_killed_at(shop: Workshop, first: RunResult, point: str) -> None:
    # what has not answered yet can be continued
    prompt = "SAY second\nHANG" if point == "after SqlStore pin" else "SAY second"
    die(shop, *point.split(), "resume", first.session_id, prompt)
    _goes_on(shop, first)
    # to continue what was never sent is to send it
    again = prompt if point == "before SqlStore launch" else "continue"
    assert [turn.prompt for turn in shop.open().history(first.session_id)] == [
        OPENING, prompt, again, RECALL,
    ]  # fmt: skip


def test_nobody_waits_for_a_lease_whose_holder_is_killed_while_it_renews_it(
    shop: Workshop, first: RunResult
) -> None:
    die(shop, "after", "SqlStore", "heartbeat", "resume", first.session_id, "SAY second\nHANG")

    assert shop.open().resume(first.session_id, RECALL).text == FROM_SESSION


def test_an_answer_that_holdfast_was_killed_with_counts(shop: Workshop, first: RunResult) -> None:
    die(shop, "before", "SqlStore", "finish_turn", "resume", first.session_id, "SAY second")

    assert shop.open().resume(first.session_id, RECALL).text == FROM_SESSION

    turns = shop.open().history(first.session_id)
    assert [turn.response for turn in turns][1:] == ["second", FROM_SESSION]


def test_a_turn_that_was_committed_is_not_stopped_by_a_kill(shop: Workshop, first: RunResult) -> None:
    command = [sys.executable, "-c", MORTAL, "after", "SqlStore", "finish_turn", "resume", first.session_id]
    subprocess.run([*command, "SAY second"], cwd=shop.work_dir, env=shop.environ, capture_output=True,
                   timeout=PATIENCE, check=False)  # fmt: skip
    assert shop.open().stopped_turn(first.session_id) is None
    assert [turn.response for turn in shop.open().history(first.session_id)][1:] == ["second"]


def test_a_first_turn_whose_holdfast_was_killed_is_continued_with_its_request(shop: Workshop) -> None:
    running = shop.start("run", f"{OPENING}\n{TOOL}")
    hf = shop.open()
    (session,) = eventually(lambda: list(hf.list_sessions()))
    session_id = str(session["agent_id"])
    _half_way(shop, session_id, EventKind.TOOL_CALL)
    kill(running)
    again = hf.resume(session_id)
    assert again.ok
    assert isinstance(again.decision, Resume)
    held, sent = shop.prompts(again.provider_session_id)
    assert held == f"{OPENING}\n{TOOL}", "the agent's own session has the request: it is not sent again"
    assert "[holdfast] interrupted: turn 1 was stopped before the end." in sent
    assert "sleep 300" in sent, "what was in flight is told"
    told, _, marker = sent.rpartition("[holdfast] turn 2, attempt ")
    assert told
    assert marker.endswith(
        ": go on with the turn that was interrupted; its request is already above\ncontinue"
    )


def test_a_first_turn_whose_worker_was_killed_goes_on_in_its_session_and_is_told_of_its_call(
    shop: Workshop,
) -> None:
    hf = shop.open()
    session_id = hf.begin("work", agent="worker", provider="scripted").id
    # sent again as it is, it would be run again: the second time there is nothing to wait for
    prompt = 'TOOL shell {"command": "test -e begun || { touch begun; sleep 300; }"}'
    hf.enqueue(session_id, prompt, NewTurn(prompt, "scripted", TurnRequest(work_dir=str(shop.work_dir))))
    worker = shop.start("worker", "--provider", "scripted", "--once")
    orphan = _half_way(shop, session_id, EventKind.TOOL_CALL)
    began = hf.store.attempts(orphan.lease.conversation_id, orphan.lease.seq)[-1].provider_session_id
    kill(worker)

    code, _, err = ended(shop.start("worker", "--provider", "scripted", "--once"))

    assert code == 0, err
    (turn,) = hf.history(session_id)
    assert turn.status is TurnStatus.DONE
    held, sent = shop.prompts(began)
    assert held == prompt
    assert "test -e begun" in sent, "what was in flight is told"
    assert "interrupted before it ended; its request is already above" in sent
    assert not shop.left_running()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_holdfast_that_is_told_to_stop_ends_the_agent_and_commits(
    shop: Workshop, first: RunResult, number: signal.Signals, code: int
) -> None:
    running = shop.start("resume", first.session_id, "SAY half\nSPAWN\nHANG", "--json")
    _half_way(shop, first.session_id, EventKind.TEXT)
    running.send_signal(number)
    found, out, err = ended(running)
    assert found == code, err
    assert not shop.left_running()
    document = json.loads(out)
    assert (document["status"], document["text"][:4]) == ("interrupted", "half")
    assert document["continue_with"] == f"holdfast resume {first.session_id}"
    assert "internal error" not in err
    _goes_on(shop, first)


def test_whoever_insists_does_not_wait_for_a_stubborn_agent(shop: Workshop, first: RunResult) -> None:
    running = shop.start("resume", first.session_id, "IGNORE_TERM\nSAY half\nSPAWN\nHANG")
    _half_way(shop, first.session_id, EventKind.TEXT)
    for _ in range(3):
        running.send_signal(signal.SIGINT)
        time.sleep(0.05)
    assert ended(running)[0] == 130
    assert not shop.left_running()
    assert [turn.status for turn in shop.open().store.turns(first.session_id)][1:] == [TurnStatus.FAILED]


def test_nobody_else_writes_while_a_person_has_the_session_open(shop: Workshop, first: RunResult) -> None:
    opened = subprocess.Popen(
        [HOLDFAST, "open", first.session_id], cwd=shop.work_dir, env=shop.environ, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    eventually(lambda: len(shop.left_running()) > 1)
    code, _, err = ended(shop.start("resume", first.session_id, RECALL))
    assert (code, "busy" in err) == (4, True), err
    out, _ = opened.communicate("SAY by hand\nquit\n", timeout=PATIENCE)
    assert (opened.returncode, out) == (0, "by hand\n")
    assert shop.open().resume(first.session_id, RECALL).text == FROM_SESSION


def test_to_open_it_beside_a_person_says_that_it_is_busy(shop: Workshop, first: RunResult) -> None:
    with shop.transcript(first.provider_session_id).open("ab") as file:
        person = subprocess.Popen(["sleep", str(PATIENCE)], stdout=file)
    try:
        code, _, err = ended(shop.start("open", first.session_id))
    finally:
        person.kill()
        person.wait()
    assert (code, "has it open" in err) == (4, True), err
    assert "resume is busy as well" in err
    assert "starts fresh" not in err


def test_what_a_person_left_running_ends_with_the_program_and_nothing_said_is_lost(shop: Workshop) -> None:
    leaves = shop.stand_in(
        "leaves",
        "import subprocess\n"
        "if '--interactive' in argv:\n"
        "    subprocess.Popen(['sleep', '300'], close_fds=False, start_new_session=True)\n",
    )
    shop.changes["HOLDFAST_SCRIPTED_BINARY"] = leaves
    first = shop.begin()
    opened = subprocess.run(
        [HOLDFAST, "open", first.session_id], cwd=shop.work_dir, env=shop.environ, text=True,
        input="SAY by hand\nquit\n", capture_output=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert (opened.returncode, opened.stdout) == (0, "by hand\n")
    assert "1 turn joined the history" in opened.stderr
    assert not shop.left_running()
    assert [turn.prompt for turn in shop.open().history(first.session_id)] == [OPENING, "SAY by hand"]


def test_open_says_first_what_was_made_by_hand_before(shop: Workshop, first: RunResult) -> None:
    assert first.provider_session_id is not None
    shop.by_hand("SAY before", "--resume", first.provider_session_id)
    opened = subprocess.run(
        [HOLDFAST, "open", first.session_id], cwd=shop.work_dir, env=shop.environ, text=True,
        input="SAY by hand\nquit\n", capture_output=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert opened.returncode == 0
    assert "1 turn was made outside Holdfast" in opened.stderr
    assert "1 turn joined the history" in opened.stderr
    assert len(shop.open().history(first.session_id)) == 3


def test_nohup_is_respected(shop: Workshop, first: RunResult) -> None:
    running = subprocess.Popen(
        ["nohup", str(HOLDFAST), "resume", first.session_id, "SAY half\nSLEEP 1.5\nSAY whole"],
        cwd=shop.work_dir, env=shop.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    _half_way(shop, first.session_id, EventKind.TEXT)
    running.send_signal(signal.SIGHUP)
    assert ended(running)[:2] == (0, "half\nwhole\n")


def test_recover_ends_what_others_left_running(shop: Workshop, first: RunResult) -> None:
    shop.changes.update({"HOLDFAST_QUEUE__LEASE_SECONDS": "0.5"})
    running = shop.start("resume", first.session_id, "SAY half\nHANG")
    _half_way(shop, first.session_id, EventKind.TEXT)
    kill(running)
    hf = shop.open()
    (turn,) = eventually(hf.recover)
    assert (turn.seq, turn.status) == (2, TurnStatus.FAILED)
    assert not shop.left_running()


def test_the_library_finalizes_a_session_whose_holdfast_was_killed(shop: Workshop, first: RunResult) -> None:
    running = shop.start("resume", first.session_id, "SAY half\nHANG")
    _half_way(shop, first.session_id, EventKind.TEXT)
    kill(running)

    closed = shop.open().finalize(first.session_id, "completed")

    assert closed.phase == "completed"
    assert not shop.left_running()


def test_the_library_cancels_the_open_turn_of_a_session(shop: Workshop, first: RunResult) -> None:
    hf = shop.open()
    queued = hf.enqueue(first.session_id, "SAY never")

    assert hf.cancel(first.session_id).seq == queued.seq
    with pytest.raises(Conflict, match=r"no turn of .* is open"):
        hf.cancel(first.session_id)


def test_a_fork_without_a_prompt_has_the_turns_that_a_person_made(shop: Workshop, first: RunResult) -> None:
    shop.by_hand("SAY by hand", "--resume", str(first.provider_session_id))
    hf = shop.open()

    fork = hf.fork(first.session_id)

    assert [turn.response for turn in hf.history(fork.id)][-1] == "by hand"


def _begin_elsewhere(hf: Holdfast, shop: Workshop, first: RunResult, lease_seconds: float) -> Claim:
    """A turn that another machine is at work on, or was."""
    runtime = Agents(shop.environ).get("scripted").runtime
    owner = "1/1/elsewhere/boot/pids/host"
    request = ClaimRequest(runtime, owner, "key", lease_seconds, SessionId(first.session_id))
    claim = hf.store.start_turn(first.session_id, NewTurn("SAY lost", "scripted", foreground=True), request)
    assert isinstance(claim, Claim)
    return claim


def test_a_turn_of_another_machine_is_taken_over_once_its_lease_has_expired(
    shop: Workshop, first: RunResult
) -> None:
    hf = shop.open()
    claim = _begin_elsewhere(hf, shop, first, lease_seconds=0.05)
    eventually(lambda: hf.store.now() > claim.lease.expires_at)
    assert hf.resume(first.session_id, RECALL).text == FROM_SESSION
    assert hf.store.get_turn(claim.turn.conversation_id, claim.turn.seq).status is TurnStatus.FAILED


def test_a_turn_of_another_machine_is_left_alone_before(shop: Workshop, first: RunResult) -> None:
    hf = shop.open(Policy(queue=QueuePolicy(lock_delay_seconds=0.1, lock_tries=2)))
    _begin_elsewhere(hf, shop, first, lease_seconds=600)
    with pytest.raises(Busy):
        hf.resume(first.session_id, RECALL)


def test_a_second_writer_waits_and_is_then_refused(shop: Workshop, first: RunResult) -> None:
    running = shop.start("resume", first.session_id, "SAY half\nHANG")
    _half_way(shop, first.session_id, EventKind.TEXT)
    code, _, err = ended(shop.start("resume", first.session_id, RECALL))
    assert (code, "held" in err) == (4, True), err
    running.send_signal(signal.SIGTERM)
    ended(running)
    assert len(shop.open().store.turns(first.session_id)) == 2


def test_a_session_that_someone_uses_by_hand_is_waited_for_and_never_replaced(
    shop: Workshop, first: RunResult
) -> None:
    hand = subprocess.Popen(
        [sys.executable, "-m", "holdfast.providers.scripted_agent", "--resume", str(first.provider_session_id),
         "HANG"], cwd=shop.work_dir, env=shop.environ, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert hand.stdout is not None
        hand.stdout.readline()
        code, _, err = ended(shop.start("resume", first.session_id, RECALL))
        assert (code, "active writer" in err) == (4, True), err
    finally:
        kill(hand)
    again = shop.open().resume(first.session_id, RECALL)
    assert (again.provider_session_id, again.text) == (first.provider_session_id, FROM_SESSION)

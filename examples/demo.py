"""Shows the main job on an embedded store: work that stops, for whatever reason, and goes on.

Nothing is installed or configured: one SQLite file in a temporary directory, no agent, no network.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from pathlib import Path

import holdfast
from holdfast import Capabilities, Launch, Runtime, SessionKind, TurnEnd, TurnStatus
from holdfast.domain.decisions import decision_kind
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.turns import Claim, ClaimRequest

LAPTOP = Runtime("laptop", "claude", "claude-code", "/home/ada", Capabilities(can_fork=True, chooses_id=True))
SERVER = Runtime(
    "server", "claude", "claude-code", "/srv/agents", Capabilities(can_fork=True, chooses_id=True)
)
SHORT_LEASE = 0.5


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'demo.db'}"
        with holdfast.open(url) as hf:
            approval(hf)
            resume_and_why(hf)
            crash(hf, url)
            fork(hf)


def approval(hf: holdfast.Holdfast) -> None:
    step("1. A subagent stops for approval, and goes on with its context")
    agent_id = hf.create_session("terraform-architect", "approval_workflow", {"task_id": "T001"})
    hf.update_state(agent_id, phase="planning", metadata={"plan_file": "plan.json"})
    hf.update_state(agent_id, phase="approval")
    say(f"{agent_id} waits for approval; should_resume: {hf.should_resume(agent_id)}")
    state = hf.get_session(agent_id)
    assert state is not None
    say(f"ten minutes later it still knows its plan: {state['metadata']}")
    hf.update_state(agent_id, phase="executing")
    hf.finalize_session(agent_id, "completed", "Terraform applied")
    say(f"done; should_resume: {hf.should_resume(agent_id)} ({hf.may_continue(agent_id)})")


def resume_and_why(hf: holdfast.Holdfast) -> None:
    step("2. Every turn is decided: resume the agent's own session, or start fresh and say why")
    session = hf.create("claude", kind=SessionKind.CONVERSATION, name="demo", provider="claude")
    run(hf, session.id, "Find the bug", "It is in parser.py", LAPTOP)
    run(hf, session.id, "Fix it", "Fixed", LAPTOP)
    run(hf, session.id, "Now on another machine", "Starting over, with everything I was told", SERVER)
    run(hf, session.id, "And again there", "Right where I was", SERVER)
    hf.edit(session.id, 1, prompt="Find the bug in the lexer")
    run(hf, session.id, "After an edit of turn 1", "Fresh, because I had seen it", SERVER)


def crash(hf: holdfast.Holdfast, url: str) -> None:
    step("3. A worker is killed in the middle of a turn (a real kill -9)")
    session_id = hf.find("demo")
    turn = hf.enqueue(session_id, "Write the tests")
    worker = multiprocessing.get_context("spawn").Process(target=doomed_worker, args=(url,))
    worker.start()
    worker.join()
    say(f"worker ended with signal {-(worker.exitcode or 0)}, turn {turn.seq} is still leased to it")
    while not (orphans := hf.store.orphans()):
        time.sleep(SHORT_LEASE / 10)
    recovered = hf.store.recover(orphans[0])
    say(f"its lease has expired: turn {recovered.seq} is {recovered.status} again, nothing is lost")
    claim = claim_next(hf, SERVER)
    say(f"the next worker gets turn {claim.turn.seq}, {decision_kind(claim.decision)} ({claim.cause})")
    hf.store.finish_turn(claim.lease, TurnEnd(TurnStatus.DONE, "Tests written"))


def doomed_worker(url: str) -> None:
    with holdfast.open(url) as hf:
        claim = claim_next(hf, SERVER, SHORT_LEASE)
        hf.store.launch(claim.lease, Launch(claim.decision))
        os.kill(os.getpid(), signal.SIGKILL)


def fork(hf: holdfast.Holdfast) -> None:
    step("4. A fork: constant time, and blind to what the parent does later")
    parent = hf.find("demo")
    child = hf.fork(parent, at=2, name="another-idea")
    hf.edit(parent, 2, prompt="changed later")
    say(f"{child.name} begins with: {[turn.prompt for turn in hf.history(child.id)]}")
    say(f"its parent now says:       {[turn.prompt for turn in hf.history(parent)[:2]]}")
    print("\nThe same on the command line: holdfast list, holdfast why ID, holdfast tree ID")


def run(hf: holdfast.Holdfast, session_id: str, prompt: str, answer: str, runtime: Runtime) -> None:
    """What a worker does, without an agent: claim, launch, finish."""
    hf.enqueue(session_id, prompt)
    claim = claim_next(hf, runtime)
    kind = decision_kind(claim.decision)
    failed = [v for v in claim.decision.verdicts if v.outcome and v.reason is claim.decision.reason]
    why = f": {failed[0].evidence}" if failed else ""
    say(f"turn {claim.turn.seq} on the {runtime.machine:6}  {kind:6}  {claim.decision.reason}{why}")
    minted = None if kind == "resume" else ProviderSessionId(f"provider-session-{claim.turn.seq}")
    hf.store.launch(claim.lease, Launch(claim.decision, provider_session_id=minted, work_dir="/work"))
    hf.store.finish_turn(claim.lease, TurnEnd(TurnStatus.DONE, answer))


def claim_next(hf: holdfast.Holdfast, runtime: Runtime, lease_seconds: float = 60) -> Claim:
    claim = hf.store.claim_turn(ClaimRequest(runtime, "demo-worker", os.urandom(8).hex(), lease_seconds))
    assert claim is not None, "there is a turn in the queue"
    return claim


def step(title: str) -> None:
    print(f"\n{title}")


def say(text: str) -> None:
    print(f"   {text}")


if __name__ == "__main__":
    main()

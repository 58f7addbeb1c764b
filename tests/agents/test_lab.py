"""The laboratory itself: every agent runs in it, and what it sends and does can be seen."""

from tests.agents.lab.laboratory import Laboratory
from tests.agents.lab.model_servers.replies import Fail, Say

MARK = "laboratory-was-here"


def test_a_turn_is_answered_and_recorded(lab: Laboratory) -> None:
    lab.server.script(Say("violet"))

    run = lab.turn("colour?")

    assert run.exit_code == 0, run
    assert "violet" in run.stdout
    (request,) = lab.server.requests
    assert list(request.messages) == [("user", "colour?")]
    assert request.session in (None, lab.session_of(run))


def test_a_resumed_session_sends_its_history(lab: Laboratory) -> None:
    lab.server.script(Say("violet"))
    session = lab.session_of(lab.turn("colour?"))

    resumed = lab.turn("again?", resume=session)

    assert resumed.exit_code == 0, resumed
    assert lab.session_of(resumed) == session
    assert lab.server.requests[-1].texts == ["colour?", "violet", "again?"]


def test_a_tool_call_runs_a_command_on_this_machine(lab: Laboratory) -> None:
    lab.server.script(lab.agent.shell(f"echo {MARK} | tee proof"), Say("done"))

    run = lab.turn("prove", tools=True)

    assert run.exit_code == 0, run
    assert (lab.workdir / "proof").read_text() == f"{MARK}\n"
    roles = [message.role for message in lab.server.requests[-1].messages]
    assert roles == ["user", "call", "result"]
    assert MARK in lab.server.requests[-1].texts[-1]


def test_a_refused_request_fails_the_run(lab: Laboratory) -> None:
    lab.server.otherwise(Fail(400, "no such colour"))

    run = lab.turn("colour?")

    assert run.exit_code != 0
    assert "no such colour" in run.stdout + run.stderr

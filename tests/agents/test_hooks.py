"""Hooks."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.agents.driver import HOLDFAST, Driver, only
from tests.agents.lab.laboratory import Run, finish
from tests.agents.lab.model_servers.protocol import CACHED_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS
from tests.agents.lab.model_servers.replies import CallTool, Fail, Hang, Reply, Say, Together
from tests.agents.lab.model_servers.server import ModelRequest

pytestmark = only("claude")

#: how the request of a subagent begins, whatever a hook adds to it
ERRAND = "look into the network"
_SESSION = re.compile(r"agent-\d{8}-\d{6}-[0-9a-f]{8}")


def delegate(number: int = 1, *, background: bool = False) -> CallTool:
    return CallTool(
        "Agent",
        {
            "description": "look",
            "prompt": f"{ERRAND} ({number})",
            "subagent_type": "general-purpose",
            "run_in_background": background,
        },
    )


def session_in(request: ModelRequest) -> str:
    """The session that a subagent was told to work in."""
    found = set(_SESSION.findall(request.texts[0]))
    assert len(found) == 1, request.texts[0]
    return str(found.pop())


@dataclass(frozen=True)
class Orchestrator:
    """Claude Code with Holdfast's hooks in its settings, whose model delegates; used by hand, not by Holdfast."""

    driver: Driver

    def turn(
        self, *orchestrated: Reply, subagent: Callable[[ModelRequest], Reply], resume: str | None = None
    ) -> Run:
        """One turn in which the model of the main agent says these, and that of a subagent what it chooses."""
        self._let(orchestrated, subagent)
        run = self.driver.lab.run(self._command(resume))
        assert run.exit_code == 0, run
        return run

    def killed_turn(
        self, *orchestrated: Reply, subagent: Callable[[ModelRequest], Reply], hang: Hang
    ) -> None:
        """One that ends by a kill of everything it started, when the subagent's model falls silent."""
        self._let(orchestrated, subagent)
        with self.driver.lab.started(self._command(None)) as process:
            hang.await_reached()
            os.killpg(process.pid, signal.SIGKILL)
            finish(process, [])
        hang.release()

    def _command(self, resume: str | None) -> list[str]:
        return self.driver.lab.agent.command("have it looked into", resume=resume, tools=True)

    def _let(self, orchestrated: tuple[Reply, ...], subagent: Callable[[ModelRequest], Reply]) -> None:
        left = list(orchestrated)

        def behave(request: ModelRequest) -> Reply:
            if is_subagent(request):
                return subagent(request)
            return left.pop(0) if left else Say("all done")

        self.driver.lab.server.otherwise(behave)

    @property
    def errands(self) -> list[ModelRequest]:
        """The first request of each subagent so far."""
        return [r for r in self.driver.lab.server.requests if is_subagent(r) and len(r.messages) == 1]

    def state(self, session: str) -> dict[str, Any]:
        return self.driver.holdfast("get", session).document

    def observed(self) -> dict[str, dict[str, Any]]:
        seen = self.driver.holdfast("observed").document["observed"]
        return {session["provider_session_id"]: session for session in seen}


def is_subagent(request: ModelRequest) -> bool:
    return request.texts[0].startswith(ERRAND)


@pytest.fixture
def orchestrator(driver: Driver) -> Orchestrator:
    installed = driver.holdfast("hooks", "install", "--user")
    assert installed.exit_code == 0, installed
    return Orchestrator(driver)


def report(request: ModelRequest, *arguments: str) -> CallTool:
    """The subagent tells how far it has come, with the command that its prompt names."""
    command = " ".join([str(HOLDFAST), "update", session_in(request), *arguments])
    return CallTool("Bash", {"command": command, "description": "tell how far it is"})


@pytest.mark.parametrize("background", [False, True], ids=["synchronous", "in the background"])
def test_a_subagent_is_told_its_session_which_ends_with_it(
    orchestrator: Orchestrator, background: bool
) -> None:
    orchestrator.turn(delegate(background=background), subagent=lambda request: Say("two routers"))

    (errand,) = orchestrator.errands
    session = orchestrator.state(session_in(errand))
    assert (session["agent_name"], session["phase"]) == ("general-purpose", "completed")
    assert session["summary"] == "two routers"


def test_a_server_answers_the_hooks_as_the_command_does(driver: Driver) -> None:
    session = delegated_over_http(driver)

    assert (session["phase"], session["summary"]) == ("completed", "two routers")


def test_a_server_that_opens_no_file_of_others_ends_the_delegation_too(driver: Driver) -> None:
    made = driver.holdfast("token", "create", "--role", "operator").document
    driver.lab.environment["HOLDFAST_TOKEN"] = made["token"]

    session = delegated_over_http(driver)

    assert (session["phase"], session["summary"]) == ("completed", "two routers")


def delegated_over_http(driver: Driver) -> dict[str, Any]:
    """The session of a subagent that has come back."""
    with subprocess.Popen(
        [HOLDFAST, "serve", "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env=driver.environment,
    ) as serving:
        assert serving.stdout is not None
        url = json.loads(serving.stdout.readline())["url"]
        try:
            installed = driver.holdfast("hooks", "install", "--user", "--http", url)
            assert installed.exit_code == 0, installed
            orchestrator = Orchestrator(driver)
            orchestrator.turn(delegate(), subagent=lambda request: Say("two routers"))
        finally:
            serving.terminate()
    (errand,) = orchestrator.errands
    return orchestrator.state(session_in(errand))


def test_two_subagents_at_once_get_two_sessions(orchestrator: Orchestrator) -> None:
    orchestrator.turn(
        Together((delegate(1), delegate(2))),
        subagent=lambda request: Say(f"found {request.texts[0].count('(1)')}"),
    )

    sessions = {session_in(errand) for errand in orchestrator.errands}
    assert len(sessions) == 2
    assert {orchestrator.state(session)["summary"] for session in sessions} == {"found 0", "found 1"}


def test_a_subagent_that_waits_for_approval_is_taken_up_with_what_it_knew(orchestrator: Orchestrator) -> None:
    def planning(request: ModelRequest) -> Reply:
        if len(request.messages) == 1:
            return report(request, "--phase", "approval", "--metadata", '\'{"plan_file": "plan-7.json"}\'')
        return Say("please approve plan-7")

    orchestrator.turn(delegate(), subagent=planning)
    (first,) = orchestrator.errands
    paused = orchestrator.state(session_in(first))
    orchestrator.turn(delegate(), subagent=lambda request: Say("applied"))

    _, second = orchestrator.errands
    assert (paused["phase"], paused["finalized_at"]) == ("approval", None)
    assert session_in(second) == session_in(first)
    assert "plan-7.json" in second.texts[0]
    assert "plan-7.json" not in first.texts[0]


def test_the_next_delegation_gets_the_session_of_one_that_was_killed(orchestrator: Orchestrator) -> None:
    hang = Hang()

    def interrupted(request: ModelRequest) -> Reply:
        found = '\'{"finding": "OOMKilled"}\''
        return (
            report(request, "--phase", "investigating", "--metadata", found)
            if len(request.messages) == 1
            else hang
        )

    orchestrator.killed_turn(delegate(), subagent=interrupted, hang=hang)
    (first,) = orchestrator.errands
    assert orchestrator.state(session_in(first))["phase"] == "investigating"
    orchestrator.turn(delegate(), subagent=lambda request: Say("fixed"))

    _, second = orchestrator.errands
    assert session_in(second) == session_in(first)
    assert "OOMKilled" in second.texts[0]
    assert orchestrator.state(session_in(first))["summary"] == "fixed"


@pytest.mark.parametrize("background", [False, True], ids=["synchronous", "in the background"])
def test_a_subagent_that_an_api_error_ended_has_failed(orchestrator: Orchestrator, background: bool) -> None:
    """Claude Code calls no SubagentStop for it."""
    orchestrator.turn(delegate(background=background), subagent=lambda request: Fail(400))

    session = orchestrator.state(session_in(orchestrator.errands[0]))
    assert session["phase"] == "failed"


def test_what_the_main_agent_used_is_what_its_model_said(orchestrator: Orchestrator) -> None:
    run = orchestrator.turn(delegate(), subagent=lambda request: Say("two routers"))
    native = orchestrator.driver.lab.session_of(run)
    orchestrator.turn(subagent=lambda request: Say("-"), resume=native)

    requests = orchestrator.driver.lab.server.requests
    own = [request for request in requests if not is_subagent(request)]
    seen = orchestrator.observed()[native]
    assert len(own) == 3
    assert seen["input_tokens"] == sum(INPUT_TOKENS + CACHED_TOKENS + request.step for request in own)
    assert seen["cached_input_tokens"] == CACHED_TOKENS * len(own)
    assert seen["output_tokens"] == OUTPUT_TOKENS * len(own)
    assert seen["context_tokens"] == INPUT_TOKENS + CACHED_TOKENS + own[-1].step
    assert (seen["source"], seen["end_reason"]) == ("startup", "other")


def test_what_a_fork_took_over_is_not_counted_again(orchestrator: Orchestrator) -> None:
    lab = orchestrator.driver.lab
    native = lab.session_of(lab.turn("colour?"))
    fork = lab.session_of(lab.turn("and now?", fork=native))

    seen = orchestrator.observed()
    assert seen[fork]["source"] == "fork"
    assert [seen[each]["output_tokens"] for each in (native, fork)] == [OUTPUT_TOKENS, OUTPUT_TOKENS]


def test_a_compaction_is_counted(orchestrator: Orchestrator) -> None:
    lab = orchestrator.driver.lab
    native = lab.session_of(lab.turn("colour?"))
    lab.turn("/compact", resume=native)
    assert orchestrator.observed()[native]["compactions"] == 1


def test_who_opens_a_session_that_holdfast_runs_is_warned(orchestrator: Orchestrator) -> None:
    driver = orchestrator.driver
    driver.lab.server.script(Say("violet"))
    first = driver.run("colour?")
    hang = Hang()
    driver.lab.server.script(hang)
    with driver.started("resume", first.session, "stone?") as process:
        hang.await_reached()
        run = driver.lab.turn("meanwhile", resume=first.native)
        warned = driver.request
        hang.release()
        process.communicate(timeout=60)

    held = driver.lab.server.requests[1]
    assert any(first.session in text for text in warned.system)
    assert not any("is running" in text for text in held.system)
    assert run.exit_code == 0


def test_paused_work_of_the_project_is_told_at_the_start(orchestrator: Orchestrator) -> None:
    driver = orchestrator.driver
    created = driver.holdfast("create", "--agent", "terraform-architect", "--purpose", "move the network")
    driver.holdfast("update", created["agent_id"], "--phase", "approval")
    driver.lab.turn("colour?")

    (told,) = [text for text in driver.request.system if created["agent_id"] in text]
    assert "move the network" in told

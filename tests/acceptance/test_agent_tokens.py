"""What agents can find out about the tokens of those who run them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.command import HOLDFAST, holdfast, ok
from tests.acceptance.served import server

PRINT = json.dumps({"command": "env | grep HOLDFAST_ || true"})
TELL = f"TOOL shell {PRINT}\nOUTPUT"


class Fleet:
    """A server with tokens, and whoever uses it."""

    def __init__(self, store: str, url: str) -> None:
        self.url = url
        self.tokens = {
            role: ok("token", "create", "--role", role, "--url", store).out.strip()
            for role in ("operator", "worker", "reader")
        }

    def say(self, role: str, *arguments: str) -> str:
        env = {"HOLDFAST_URL": self.url, "HOLDFAST_TOKEN": self.tokens[role]}
        return ok(*arguments, "--json", env=env).out

    def ask(self, role: str, *arguments: str) -> Any:
        return json.loads(self.say(role, *arguments))

    def work(self, **variables: str) -> None:
        env = {"HOLDFAST_URL": self.url, "HOLDFAST_TOKEN": self.tokens["worker"], **variables}
        assert holdfast("worker", "--provider", "scripted", "--once", env=env).code == 0


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    store = f"sqlite:///{tmp_path}/holdfast.db"
    ok("token", "create", "--role", "admin", "--url", store)
    with server("--url", store) as (url, _):
        yield Fleet(store, url)


def test_an_agent_does_not_get_the_token_of_its_worker(fleet: Fleet) -> None:
    fleet.ask("operator", "enqueue", "--agent", "a", "--name", "s", "--provider", "scripted", TELL)

    fleet.work()

    told = fleet.say("reader", "log", "s") + fleet.say("reader", "show", "s")
    assert f"HOLDFAST_URL={fleet.url}" in told
    assert "TOKEN" not in told
    assert "hft_" not in told


def test_an_agent_gets_the_token_that_is_meant_for_it_and_nobody_reads_it(fleet: Fleet) -> None:
    """Such as the skill's commands: a worker's token of its own is enough for them."""
    update = json.dumps({"command": f"{HOLDFAST} update $HOLDFAST_SESSION --phase planning"})
    asks = json.dumps({"command": f"{HOLDFAST} request-approval $HOLDFAST_SESSION 'terraform apply'"})
    prompt = f"TOOL shell {update}\nTOOL shell {asks}\n{TELL}"
    given = ("enqueue", "--agent", "a", "--name", "s", "--provider", "scripted", prompt)
    session = fleet.ask("operator", *given)["session_id"]

    fleet.work(HOLDFAST_AGENT_TOKEN=fleet.tokens["worker"])

    told = fleet.say("reader", "log", "s") + fleet.say("reader", "show", "s")
    assert "HOLDFAST_TOKEN=[redacted:holdfast_token]" in told
    assert "HOLDFAST_AGENT_TOKEN" not in told
    assert "hft_" not in told
    (approval,) = fleet.ask("reader", "approvals")["approvals"]
    assert (approval["session_id"], approval["what"]) == (session, "terraform apply")


def test_a_call_waits_for_approval_without_any_token_in_the_agents_environment(fleet: Fleet) -> None:
    call = json.dumps({"command": "echo applied"})
    given = ("--agent", "a", "--name", "s", "--provider", "scripted", "--approve-tools", "shell")
    fleet.ask("operator", "enqueue", *given, f"TOOL shell {call}\nOUTPUT")
    fleet.work()
    (approval,) = fleet.ask("reader", "approvals")["approvals"]

    fleet.ask("operator", "approve", approval["approval_id"])
    fleet.work()

    (turn,) = fleet.ask("reader", "show", "s")["turns"]
    assert (turn["status"], turn["response"]) == ("done", "applied")


def test_what_is_no_token_is_refused_at_the_start_and_not_shown() -> None:
    ended = holdfast("worker", "--once", env={"HOLDFAST_AGENT_TOKEN": "mistyped-secret"})

    assert ended.code == 2
    told = ended.one_line_error()
    assert "HOLDFAST_AGENT_TOKEN" in told
    assert "mistyped-secret" not in told

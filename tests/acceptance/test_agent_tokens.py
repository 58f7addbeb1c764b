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
            for role in ("operator", "worker", "reader", "admin")
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


def shell(command: str) -> str:
    return f"TOOL shell {json.dumps({'command': command})}"


def run_inside(fleet: Fleet, *commands: str, **variables: str) -> str:
    """A session whose agent has run these commands; a worker ran it."""
    prompt = "\n".join(map(shell, commands))
    given = ("enqueue", "--agent", "a", "--name", "s", "--provider", "scripted", prompt)
    session: str = fleet.ask("operator", *given)["session_id"]
    fleet.work(**variables)
    return session


def test_an_agent_gets_a_token_of_its_own_and_nobody_reads_it(fleet: Fleet, tmp_path: Path) -> None:
    kept = tmp_path / "token"
    run_inside(fleet, "env | grep HOLDFAST_ || true", f"printenv HOLDFAST_TOKEN > {kept}")

    told = fleet.say("reader", "log", "s", "--raw") + fleet.say("reader", "show", "s")
    assert f"HOLDFAST_URL={fleet.url}" in told
    assert "HOLDFAST_TOKEN=[redacted:holdfast_token]" in told
    assert "hft_" not in told
    assert kept.read_text().strip() not in fleet.tokens.values()
    assert {token["role"] for token in fleet.ask("admin", "token", "list")["tokens"]} == set(fleet.tokens)


def test_it_is_for_the_agents_own_session_and_ends_with_its_turn(fleet: Fleet, tmp_path: Path) -> None:
    """Such as the skill's commands: what they ask for is about the session that the agent works for."""
    other = fleet.ask("operator", "create", "--agent", "b", "--purpose", "another")["agent_id"]
    kept, tried = tmp_path / "token", tmp_path / "tried"
    run_inside(
        fleet,
        f"{HOLDFAST} update $HOLDFAST_SESSION --phase planning",
        f"{HOLDFAST} request-approval $HOLDFAST_SESSION 'terraform apply'",
        f"{HOLDFAST} get $HOLDFAST_SESSION > /dev/null && echo got >> {tried}",
        f"{HOLDFAST} update {other} --phase planning 2>> {tried}; {HOLDFAST} get {other} 2>> {tried}",
        f"{HOLDFAST} enqueue $HOLDFAST_SESSION more 2>> {tried}; {HOLDFAST} list 2>> {tried}",
        f"{HOLDFAST} token list 2>> {tried}; printenv HOLDFAST_TOKEN > {kept}; true",
    )

    (approval,) = fleet.ask("reader", "approvals")["approvals"]
    assert approval["what"] == "terraform apply"
    said = tried.read_text().splitlines()
    assert said[0] == "got"
    assert len(said) == 6, said
    assert all("agent" in line for line in said[1:]), said
    assert fleet.ask("reader", "get", other)["phase"] == "initializing"
    env = {"HOLDFAST_URL": fleet.url, "HOLDFAST_TOKEN": kept.read_text().strip()}
    afterwards = holdfast("get", "s", env=env)
    assert (afterwards.code, "token" in afterwards.err) == (4, True), afterwards


def test_a_token_that_was_set_for_agents_still_works_and_says_what_to_do(fleet: Fleet) -> None:
    env = {"HOLDFAST_URL": fleet.url, "HOLDFAST_TOKEN": fleet.tokens["worker"]}
    prompt = f"{shell(f'{HOLDFAST} update $HOLDFAST_SESSION --phase planning')}\n{TELL}"
    fleet.ask("operator", "enqueue", "--agent", "a", "--name", "s", "--provider", "scripted", prompt)
    worked = holdfast(
        "worker",
        "--provider",
        "scripted",
        "--once",
        env={**env, "HOLDFAST_AGENT_TOKEN": fleet.tokens["worker"]},
    )

    assert worked.code == 0
    assert worked.err.count("HOLDFAST_AGENT_TOKEN is deprecated") == 1
    told = fleet.say("reader", "log", "s", "--raw") + fleet.say("reader", "show", "s")
    assert "HOLDFAST_TOKEN=[redacted:holdfast_token]" in told
    assert "HOLDFAST_AGENT_TOKEN" not in told
    assert "hft_" not in told


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

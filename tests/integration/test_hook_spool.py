"""Hooks of a store that is elsewhere: nothing is lost, nothing is told twice, and no driver is needed to say it."""

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.domain.phases import Phase
from tests.builders import a_delegation
from tests.integration.hook_process import AGENT, a_stop, a_tool_call, log_of, run_hook, session_of
from tests.processes import until

NOWHERE = "postgresql://127.0.0.1:1/none"


@pytest.fixture
def library(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[holdfast.Holdfast]:
    monkeypatch.setenv("HOLDFAST_URL", postgres_url)
    with holdfast.open() as opened:
        yield opened


def spool_of(home: Path) -> Path:
    (spool,) = (home / ".local/state/holdfast/spool").iterdir()
    return spool


def waiting(home: Path) -> list[Path]:
    return sorted(spool_of(home).glob("*.record"))


def carry(home: Path) -> None:
    """Open the store, as any command would, until nothing waits: a process that a hook sent may be at it."""

    def is_empty() -> bool:
        holdfast.open().close()
        return not waiting(home)

    until(is_empty)


def delegate(number: int | str, **changes: Any) -> str:
    answered = run_hook("pre-delegate", a_tool_call(number, **changes))
    answered.harmless()
    return session_of(answered.prompt)


def test_what_hooks_say_gets_there_by_itself(home: Path, tmp_path: Path, library: holdfast.Holdfast) -> None:
    session = delegate(1)
    until(lambda: not waiting(home))
    run_hook("subagent-stop", a_stop(tmp_path, "toolu_1", last_assistant_message="Planned.")).harmless()
    carry(home)
    found = library.session(session)
    assert (found.agent, found.purpose, found.phase) == (AGENT, "plan it", Phase.COMPLETED)
    assert found.summary == "Planned."
    (delegation,) = library.store.delegations(session)
    assert (delegation.id, delegation.outcome, delegation.resumed) == ("toolu_1", "completed", False)


def test_a_store_that_cannot_be_reached_keeps_no_one_waiting(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", NOWHERE)
    assert delegate(1) == delegate(1)
    run_hook("subagent-stop", a_stop(tmp_path, "toolu_1")).harmless()
    leaking = {"agent_id": "agent-1", "exit_code": 0, "summary": "password=hunter2-hunter2"}
    run_hook("subagent-stop", leaking).harmless()
    assert b"hunter2" not in waiting(home).pop().read_bytes()
    assert [json.loads(path.read_text())["verb"] for path in waiting(home)] == [
        "delegate",
        "end_delegation",
        "end_delegation",
    ]
    assert (waiting(home)[0].stat().st_mode & 0o777, spool_of(home).stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_session_of_the_copy_goes_on_with_what_it_knows(home: Path, library: holdfast.Holdfast) -> None:
    session = library.create(AGENT).id
    library.update(session, phase="planning", metadata={"plan_file": "plan.json"})
    first = delegate("before")  # there is no copy yet: it begins anew
    carry(home)
    prompt = run_hook("pre-delegate", a_tool_call("after")).prompt
    assert first != session_of(prompt) == session
    assert '"plan_file": "plan.json"' in prompt
    assert delegate("third") not in (first, session)
    carry(home)
    assert [held.id for held in library.store.delegations(session)] == ["toolu_after"]


def test_an_old_copy_is_not_trusted(home: Path, library: holdfast.Holdfast) -> None:
    session = library.create(AGENT).id
    library.update(session, phase="planning")
    delegate("before")
    carry(home)
    with (spool_of(home) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a process that a hook has sent would renew the copy
        copy = spool_of(home) / "sessions.json"
        told = json.loads(copy.read_text())
        assert [free["session"]["id"] for free in told["sessions"]] == [session]
        copy.write_text(json.dumps({**told, "at": told["at"] - 301_000_000}))
        assert delegate("after") != session


def test_what_others_have_taken_meanwhile_is_recorded_as_lost(home: Path, library: holdfast.Holdfast) -> None:
    session = library.create(AGENT).id
    library.update(session, phase="planning")
    delegate("before")
    carry(home)
    project = library.project
    assert project is not None
    library.store.delegate(a_delegation(id="toolu_elsewhere", agent=AGENT, project=project))
    assert delegate("late") == session
    carry(home)
    held = {held.id: held.outcome for held in library.store.delegations(session)}
    assert held == {"toolu_elsewhere": None, "toolu_late": "lost"}


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"[]",
        b"garbage",
        b'{"verb": "rm"}',
        b'{"verb": "delegate", "fields": {}}',
        b'{"verb": 1, "fields": 2}',
    ],
)
def test_a_broken_record_is_set_aside_and_the_next_one_arrives(
    home: Path, library: holdfast.Holdfast, broken: bytes
) -> None:
    session = delegate(1)
    (spool_of(home) / "00000000000000000000-1-0.record").write_bytes(broken)
    carry(home)
    assert library.session(session).agent == AGENT
    (aside,) = spool_of(home).glob("*.broken")
    assert aside.read_bytes() == broken
    assert any(line["what"] == "set aside" for line in log_of(home))


def test_a_record_that_is_said_twice_is_done_once(home: Path, library: holdfast.Holdfast) -> None:
    session = library.create(AGENT).id
    library.update(session, phase="executing")
    run_hook("subagent-stop", {"agent_id": session, "exit_code": 0})
    kept = [(path, path.read_bytes()) for path in waiting(home)]
    carry(home)
    before = library.session(session)
    for path, content in kept:
        path.write_bytes(content)
    carry(home)
    assert library.session(session) == before

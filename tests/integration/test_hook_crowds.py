"""Many hooks at once, more than the machine can answer in time: every one of their records arrives, once."""

import json
import subprocess
import tempfile
from pathlib import Path

import pytest

import holdfast
from tests.integration.hook_process import HOLDFAST, a_tool_call, environment, rows, session_of
from tests.processes import until

#: on two cores the last of them begin when the time of a hook is long over
CROWD = 150


def crowd(urls: dict[str, str]) -> list[str]:
    """The sessions that so many subagents were told, all asked for at once."""
    processes = []
    for number in range(CROWD):
        with tempfile.TemporaryFile() as given:
            given.write(json.dumps(a_tool_call(number)).encode())
            given.seek(0)
            processes.append(
                subprocess.Popen(
                    [HOLDFAST, "hook", "pre-delegate"],
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=environment(urls),
                )
            )
    answers = [process.communicate() for process in processes]
    assert {err for _, err in answers} == {b""}
    prompts = [json.loads(out)["hookSpecificOutput"]["updatedInput"]["prompt"] for out, _ in answers]
    return [session_of(prompt) for prompt in prompts]


@pytest.mark.timeout(300)
def test_no_record_of_a_crowd_is_lost_on_sqlite(home: Path) -> None:
    holdfast.open().close()
    told = crowd({})
    assert len(set(told)) == CROWD

    def recorded() -> dict[str, str]:
        found = rows(home, "SELECT id, session_id FROM delegations")
        return {row["id"]: row["session_id"] for row in found}

    until(lambda: len(recorded()) == CROWD)
    assert recorded() == {f"toolu_{number}": session for number, session in enumerate(told)}
    assert list(home.glob(".local/state/holdfast/spool/*/*.record")) == []


@pytest.mark.timeout(300)
def test_no_record_of_a_crowd_is_lost_on_postgresql(home: Path, postgres_url: str) -> None:
    with holdfast.open(postgres_url) as opened:
        told = crowd({"HOLDFAST_URL": postgres_url})
        assert len(set(told)) == CROWD
        # nobody but the hooks' own carrier takes them there
        until(lambda: not list(home.glob(".local/state/holdfast/spool/*/*.record")))
        for number, session in enumerate(told):
            assert [held.id for held in opened.store.delegations(session)] == [f"toolu_{number}"]

"""list: a line for each session, whatever stands in the store."""

import sqlite3
import subprocess

import pytest

from holdfast import Holdfast
from tests.acceptance.command import (
    HOLDFAST,
    STATE_FIELDS,
    create,
    default_database,
    environment,
    holdfast,
    ok,
)


def test_piped_list_is_one_line_a_session_the_newest_first(each_engine: str, library: Holdfast) -> None:
    first = library.create("terraform-architect", "approval_workflow", name="deploy").id
    second = library.create("gitops-operator").id

    lines = [line.split("\t") for line in ok("list").lines]

    assert [fields[0] for fields in lines] == [second, first]
    _, phase, agent, active, name, purpose, status = lines[1]
    assert (phase, agent, name, purpose, status) == (
        "initializing",
        "terraform-architect",
        "deploy",
        "approval_workflow",
        "idle",
    )
    assert active.endswith("Z")
    assert lines[0][4:] == ["-", "-", "idle"]
    assert ok("ls").out == ok("list").out


def test_an_empty_store_lists_nothing() -> None:
    assert ok("list").out == ""
    assert ok("list", "--json").json == {
        "schema_version": 1,
        "sessions": [],
        "unreadable": {},
        "more": False,
    }


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("holdfast list --active-only | wc -l", "2"),
        ("holdfast list | cut -f 1 | grep -c '^agent-'", "3"),
        (
            """
            for agent in terraform-architect gitops-operator gcp-manager; do
              echo "$agent: $(holdfast list --agent $agent | grep -c agent-)"
            done
            """,
            "terraform-architect: 2\ngitops-operator: 1\ngcp-manager: 0",
        ),
        ("holdfast list | awk '{ print $2 }' | sort | uniq -c | awk '{ print $1, $2 }'", "1 completed\n2 initializing"),
    ],
)  # fmt: skip
def test_monitoring_commands_count_sessions(command: str, expected: str, library: Holdfast) -> None:
    for agent in ("terraform-architect", "terraform-architect", "gitops-operator"):
        session = library.create(agent)
        if agent == "gitops-operator":
            library.finalize(session.id, "completed")

    assert _shell(command) == expected


def test_a_pipe_gets_all_sessions_and_a_reader_may_stop_early(library: Holdfast) -> None:
    for number in range(600):
        library.create("a", f"purpose {number} {'x' * 100}")

    assert len(ok("list").lines) == 600
    assert len(ok("list", "--limit", "550").lines) == 550
    document = ok("list", "--json", "--limit", "520").json
    assert (len(document["sessions"]), document["more"]) == (520, True)
    assert _shell("{ holdfast list; echo code $? >&2; } | head -1 | wc -l", stderr="code 0\n") == "1"
    assert _shell("{ holdfast list --json; echo code $? >&2; } | true; echo", stderr="code 0\n") == ""


def test_since_and_until_select_by_creation(library: Holdfast) -> None:
    session_id = library.create("a").id
    _write("UPDATE sessions SET created_at = 1767895530000000")  # 2026-01-08T18:05:30Z
    now = library.create("a").id

    def found(*options: str) -> list[str]:
        return [line.split("\t")[0] for line in ok("list", *options).lines]

    assert found("--since", "2026-01-08T18:05:30", "--until", "2026-01-08T19:05:31+01:00") == [session_id]
    assert found("--since", "2026-01-09") == [now]
    assert found("--since", "2h") == [now]
    assert found("--until", "30m") == [session_id]


def test_json_holds_every_state_field_but_the_history(library: Holdfast) -> None:
    session_id = library.create("a", name="deploy").id

    (session,) = ok("list", "--json").json["sessions"]

    assert set(session) >= STATE_FIELDS - {"history"}
    assert (session["session_id"], session["name"], session["parent_session_id"]) == (
        session_id,
        "deploy",
        None,
    )


def test_json_says_where_the_provider_would_pick_up(library: Holdfast) -> None:
    ran = holdfast("run", "--provider", "scripted", "--json", "hello").json

    (session,) = ok("list", "--json").json["sessions"]

    assert session["provider_session_id"] == ran["provider_session_id"]
    assert (session["status"], session["phase"]) == ("idle", "investigating")


def test_a_list_by_status_metadata_and_what_may_continue(each_engine: str, library: Holdfast) -> None:
    waits = library.create("a", metadata={"task_id": "T001", "tags": ["infra"]}).id
    library.update(waits, phase="approval")
    begun = library.create("a", metadata={"task_id": "T002"}).id
    failed = library.create("a").id
    library.finalize(failed, "failed")

    def found(*options: str) -> list[str]:
        return [line.split("\t")[0] for line in ok("list", *options).lines]

    assert found("--status", "waiting") == [waits]
    assert found("--status", "idle") == [begun]
    assert found("--status", "failed") == [failed]
    assert found("--resumable") == [waits]
    assert found("--metadata", "task_id=T002") == [begun]
    assert found("--metadata", "task_id=T001", "--metadata", "tags=infra") == [waits]
    assert found("--metadata", "tags=none") == []
    assert "'asleep' is not one of 'running', 'queued'" in holdfast("list", "--status", "asleep").err
    assert "'task_id' is not key=value" in holdfast("list", "--metadata", "task_id").one_line_error()


HOSTILE = "one\ntwo\tthree \x1b[2J\x1b]0;title\x07 [red]not red[/red] \u202eright to left \x9b31m \r over"


def test_hostile_text_stays_on_its_line_and_shows_its_escapes(each_engine: str) -> None:
    session_id = ok("create", "--agent", "a", "--purpose", "-", stdin=HOSTILE).out.strip()

    (line,) = ok("list").out.removesuffix("\n").split("\n")

    assert line.split("\t")[0] == session_id
    assert "one two three \\x1b[2J\\x1b]0;title\\x07 [red]not red[/red]" in line
    for printed in (line, ok("show", session_id).out, ok("list", "--json").out):
        assert not set(printed) & set("\x1b\x07\x9b\r\u202e")
    assert ok("get", session_id).json["purpose"] == HOSTILE


def test_a_session_that_cannot_be_read_is_a_warning_and_the_others_are_listed(library: Holdfast) -> None:
    broken, fine = library.create("a").id, library.create("a").id
    _write(f"UPDATE sessions SET phase = 'b\x1b[31m\nogus' WHERE id = '{broken}'")

    listed = holdfast("list")

    assert listed.code == 0
    assert [line.split("\t")[0] for line in listed.lines] == [fine]
    assert listed.err.count("\n") == 1
    assert listed.err.startswith("holdfast: warning: ")
    assert broken in listed.err
    assert "\x1b" not in listed.err
    document = holdfast("list", "--json").json
    assert list(document["unreadable"]) == [broken]
    assert holdfast("get", broken).code == 1
    assert holdfast("get", broken, "--json").json["error"]["code"] == "session_unreadable"


def test_sessions_of_another_workspace_do_not_exist(each_engine: str) -> None:
    here = create()
    there = ok("create", "--agent", "a", "--workspace", "payments").out.strip()

    assert [line.split("\t")[0] for line in ok("list").lines] == [here]
    assert [line.split("\t")[0] for line in ok("--workspace", "payments", "list").lines] == [there]
    assert holdfast("get", there).code == 3


def _shell(command: str, stderr: str = "") -> str:
    path = f"{HOLDFAST.parent}:/usr/bin:/bin"
    done = subprocess.run(
        ["sh", "-c", command], env=environment({"PATH": path}), capture_output=True, text=True, check=False
    )
    assert done.stderr == stderr
    return done.stdout.strip()


def _write(statement: str) -> None:
    with sqlite3.connect(default_database()) as connection:
        connection.execute(statement)
    connection.close()

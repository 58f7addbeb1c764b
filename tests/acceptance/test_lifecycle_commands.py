"""create, update, should-resume, get, finalize and cleanup, as a script calls them."""

import json
import re
import sqlite3
import subprocess
from pathlib import Path

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

SESSION_ID = re.compile(r"agent-\d{8}-\d{6}-[0-9a-f]{8}")


def test_a_whole_life_from_create_to_cleanup(each_engine: str) -> None:
    created = ok("create", "--agent", "terraform-architect", "--purpose", "approval_workflow")
    session_id = created.out.removesuffix("\n")
    assert SESSION_ID.fullmatch(session_id)

    assert ok("update", session_id, "--phase", "approval").lines == [f"{session_id}\tapproval"]
    assert ok("should-resume", session_id).lines == ["session_resumable"]
    assert [line.split("\t")[0] for line in ok("list", "--active-only").lines] == [session_id]
    assert ok("finalize", session_id, "completed").lines == [f"{session_id}\tcompleted"]
    assert ok("list", "--active-only").out == ""
    assert ok("cleanup", "--hours", "24").lines == ["0 were abandoned, 0 were deleted"]
    assert ok("cleanup", "--hours", "0").lines == ["0 were abandoned, 1 was deleted"]
    assert holdfast("get", session_id).code == 3


def test_create_gives_a_shell_the_id_and_nothing_else() -> None:
    script = 'ID=$(holdfast create --agent a) && holdfast get "$ID"'

    done = subprocess.run(
        ["sh", "-c", script],
        env=environment({"PATH": f"{HOLDFAST.parent}:/usr/bin:/bin"}),
        stdout=subprocess.PIPE,
        check=True,
    )

    assert json.loads(done.stdout)["agent_name"] == "a"


def test_get_prints_exactly_the_published_state(each_engine: str) -> None:
    session_id = create("--purpose", "approval_workflow", "--metadata", '{"task_id": "T001", "tags": ["é"]}')
    ok("update", session_id, "--phase", "investigating")
    ok("update", session_id, "--phase", "approval", "--error", "boom", "--metadata", '{"plan": 1}')

    state = ok("get", session_id).json

    assert set(state) == STATE_FIELDS | {"schema_version"}
    assert state["agent_id"] == session_id
    assert state["agent_name"] == "terraform-architect"
    assert state["purpose"] == "approval_workflow"
    assert state["phase"] == "approval"
    assert state["resume_ready"] is True
    assert state["metadata"] == {"task_id": "T001", "tags": ["é"], "plan": 1}
    assert [(c["from_phase"], c["to_phase"]) for c in state["history"]] == [
        ("initializing", "investigating"),
        ("investigating", "approval"),
    ]
    assert state["error_count"] == 1
    assert state["last_error"]["message"] == "boom"
    assert (state["finalized_at"], state["duration_seconds"], state["summary"]) == (None, None, None)
    for moment in (state["created_at"], state["last_updated"], state["history"][0]["timestamp"]):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", moment)


def test_finalize_keeps_outcome_summary_and_duration(library: Holdfast) -> None:
    session_id = library.create("a").id

    ok("finalize", session_id, "failed", "--summary", "the plan did not apply")

    state = library.state(session_id)
    assert state["phase"] == "failed"
    assert state["summary"] == "the plan did not apply"
    assert state["finalized_at"] == state["last_updated"]
    assert state["duration_seconds"] is not None


def test_create_and_update_print_the_whole_session_as_json() -> None:
    created = ok("create", "--agent", "a", "--name", "deploy", "--provider", "codex", "--json").json
    updated = ok("--json", "update", "deploy", "--phase", "planning").json
    finalized = ok("finalize", "deploy", "abandoned", "--json").json

    for document in (created, updated, finalized):
        assert set(document) >= STATE_FIELDS
        assert document["session_id"] == document["agent_id"] == created["session_id"]
        assert (document["name"], document["provider"]) == ("deploy", "codex")
    assert [created["phase"], updated["phase"], finalized["phase"]] == [
        "initializing",
        "planning",
        "abandoned",
    ]
    assert updated["history"][0]["to_phase"] == "planning"


def test_texts_and_metadata_come_from_standard_input(library: Holdfast) -> None:
    session_id = library.create("a", metadata={"a": 1}).id

    ok("update", session_id, "--metadata", "-", stdin='{"b": [1, 2]}\n')
    ok("update", session_id, "--error", "-", stdin="first line\nsecond line\n")
    ok("finalize", session_id, "completed", "--summary", "-", stdin="done\n")

    session = library.session(session_id)
    assert session.metadata == {"a": 1, "b": [1, 2]}
    assert session.last_error is not None
    assert session.last_error.message == "first line\nsecond line"
    assert session.summary == "done"


def test_update_says_what_has_come_of_it_so_far() -> None:
    session = create()
    changed = ok("update", session, "--summary", "the plan is made", "--json").json
    assert (changed["summary"], changed["phase"], changed["status"]) == (
        "the plan is made",
        "initializing",
        "idle",
    )
    ok("finalize", session, "completed")
    closed = ok("get", session).json
    assert (closed["summary"], closed["status"]) == ("the plan is made", "done")


def test_update_that_expects_another_phase_changes_nothing(library: Holdfast) -> None:
    session_id = library.create("a").id
    library.update(session_id, phase="planning")
    before = library.state(session_id)

    refused = holdfast("update", session_id, "--expect", "approval", "--phase", "executing", "--error", "x")

    assert refused.code == 4
    assert refused.one_line_error() == f"session {session_id} is in phase planning, not approval"
    assert library.state(session_id) == before
    ok("update", session_id, "--expect", "planning", "--phase", "executing")


def test_a_closed_session_refuses_every_change_and_names_the_way_out(library: Holdfast) -> None:
    session_id = library.create("a").id
    library.finalize(session_id, "completed")

    for arguments in (("update", session_id, "--phase", "planning"), ("finalize", session_id, "failed")):
        refused = holdfast(*arguments)
        assert refused.code == 4
        assert f"holdfast fork {session_id}" in refused.one_line_error()
    assert _answer(session_id) == (4, "session_final")


def test_should_resume_ends_with_4_and_says_the_reason(library: Holdfast) -> None:
    session_id = library.create("a").id
    assert _answer(session_id) == (4, "phase_not_resumable")

    library.update(session_id, phase="approval")
    for _ in range(3):
        library.update(session_id, error="boom")
    assert _answer(session_id) == (4, "too_many_errors")


def test_should_resume_ends_with_4_after_half_an_hour_without_activity(library: Holdfast) -> None:
    session_id = _in_approval(library)
    _write(default_database(), "UPDATE sessions SET updated_at = updated_at - 1800 * 1000000")

    assert _answer(session_id) == (4, "too_old")
    document = holdfast("should-resume", session_id, "--json").json
    assert document["should_resume"] is False
    assert document["message"] == "idle for 30m; the limit is 30m"


def test_should_resume_ends_with_3_for_a_session_that_does_not_exist() -> None:
    asked = holdfast("should-resume", "agent-20260108-180530-abc12345")

    assert (asked.code, asked.out, asked.err) == (3, "no_existing_session\n", "")


def test_should_resume_answers_no_for_a_session_that_cannot_be_read(library: Holdfast) -> None:
    session_id = library.create("a").id
    _write(default_database(), "UPDATE sessions SET metadata = 'not json'")

    asked = holdfast("should-resume", session_id)

    assert (asked.code, asked.out) == (4, "session_unreadable\n")
    assert asked.err.count("\n") == 1
    assert asked.err.startswith("holdfast: warning: ")


def test_should_resume_as_json(library: Holdfast) -> None:
    session_id = _in_approval(library)

    assert ok("should-resume", session_id, "--json").json == {
        "schema_version": 1,
        "session_id": session_id,
        "should_resume": True,
        "reason": "session_resumable",
        "message": "all conditions are met",
    }


def test_cleanup_abandons_the_idle_and_deletes_the_closed(each_engine: str, library: Holdfast) -> None:
    idle, closed = library.create("a").id, library.create("a").id
    library.finalize(closed, "completed")

    tried = ok("cleanup", "--hours", "0", "--dry-run")
    assert tried.lines == [
        f"would abandon {idle}",
        f"would delete {closed}",
        "1 would be abandoned, 1 would be deleted",
    ]
    assert library.session(idle).phase == "initializing"

    done = ok("cleanup", "--hours", "0", "--json").json
    assert done == {
        "schema_version": 1,
        "dry_run": False,
        "count": 2,
        "abandoned": [idle],
        "deleted": [closed],
        "vault": {"deleted_chunks": 0, "deleted_bytes": 0, "repacked_sessions": 0},
    }
    assert library.session(idle).phase == "abandoned"
    assert holdfast("get", closed).code == 3


def test_cleanup_joins_what_the_turns_of_a_session_have_left_in_the_vault(library: Holdfast) -> None:
    session_id = library.run("one", provider="scripted").session_id
    library.resume(session_id, "two")

    assert ok("cleanup", "--json", "--dry-run").json["vault"] is None
    tidied = ok("cleanup")
    again = ok("cleanup", "--json").json["vault"]

    assert tidied.lines == ["0 were abandoned, 0 were deleted", "vault: 0.0 MB deleted, 1 session repacked"]
    assert again == {"deleted_chunks": 0, "deleted_bytes": 0, "repacked_sessions": 0}


def test_cleanup_keeps_conversations_until_somebody_says_how_long(library: Holdfast) -> None:
    idle = library.run("hello", provider="scripted").session_id
    closed = library.run("hello", provider="scripted").session_id
    library.finalize(closed, "completed")

    for by_default in ((), ("--hours", "0")):
        assert ok("cleanup", *by_default).lines == ["0 were abandoned, 0 were deleted"]
    assert library.cleanup_old_sessions(0) == 0

    done = ok("cleanup", "--conversation-hours", "0", "--json").json
    assert (done["abandoned"], done["deleted"]) == ([idle], [closed])


def test_a_policy_says_how_long_conversations_are_kept(library: Holdfast) -> None:
    library.run("hello", provider="scripted")

    done = ok("cleanup", env={"HOLDFAST_RETENTION__CONVERSATIONS_MAX_AGE_HOURS": "0"})

    assert done.lines == ["1 was abandoned, 0 were deleted"]


def test_cleanup_takes_its_age_from_the_settings(library: Holdfast) -> None:
    library.create("a")

    done = ok("cleanup", env={"HOLDFAST_RETENTION__MAX_AGE_HOURS": "0"})

    assert done.lines == ["1 was abandoned, 0 were deleted"]


def test_global_options_stand_before_or_behind_the_command_and_beat_the_environment(tmp_path: Path) -> None:
    here, there = f"sqlite:///{tmp_path / 'here.db'}", f"sqlite:///{tmp_path / 'there.db'}"
    env = {"HOLDFAST_URL": there, "HOLDFAST_WORKSPACE": "elsewhere"}

    before = ok("--url", here, "--workspace", "team", "--json", "create", "--agent", "a", env=env).json
    behind = ok("get", before["session_id"], "--url", here, "--workspace", "team", env=env).json

    assert behind["agent_id"] == before["session_id"]
    assert len(ok("--url", there, "list", "--url", here, "--workspace", "team", env=env).lines) == 1
    assert not (tmp_path / "there.db").exists()


def _in_approval(library: Holdfast) -> str:
    session_id = library.create("a").id
    library.update(session_id, phase="approval")
    return session_id


def _answer(session_id: str) -> tuple[int, str]:
    asked = holdfast("should-resume", session_id)
    assert asked.err == ""
    return asked.code, asked.out.strip()


def _write(database: Path, statement: str) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute(statement)
    connection.close()

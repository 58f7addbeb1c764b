"""show, why and tree: what a session is, why it goes on as it does, and where it comes from."""

import re
import sqlite3
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.domain.failures import WAS_CANCELLED, Failure, FailureClass
from holdfast.domain.guards import GUARDS
from holdfast.domain.sessions import Session
from holdfast.domain.turns import Lease, TurnEnd, TurnStatus
from holdfast.domain.usage import ContextUse, Usage, UsageReport
from holdfast.errors import LeaseLost
from holdfast.store.contract import Store
from tests import steps
from tests.acceptance.command import STATE_FIELDS, default_database, holdfast, ok, on_terminal
from tests.builders import a_runtime, done, failed

NOT_THERE = Failure(FailureClass.MISSING_BINARY, "claude is not there")
COST = UsageReport(Usage(1200, 300, 45, 0.25))


def a_worked_session(library: Holdfast, **changes: Any) -> Session:
    """Two turns of Claude in one provider session, now in approval."""
    session = library.create("terraform-architect", "approval_workflow", **{"name": "deploy"} | changes)
    steps.run(library.store, session, "plan the change", usage=COST)
    steps.run(library.store, session, "apply it", usage=COST)
    return library.update(session.id, phase="approval", metadata={"task_id": "T001"})


def test_show_tells_everything_about_a_session(each_engine: str, library: Holdfast) -> None:
    session = a_worked_session(library)
    (pointer,) = library.store.pointers(session.id)

    shown = ok("show", "deploy").out

    for expected in (
        session.id,
        "terraform-architect",
        "approval_workflow",
        "initializing → approval",
        '{"task_id": "T001"}',
        "2400 tokens in (600 cached), 90 out, $0.5000",
        session.conversation_id,
        f"{pointer.provider_session_id}, in /srv/infra",
        "has seen turns 1-2",
        "re: apply it",
        f"The next turn resumes the claude session {pointer.provider_session_id}",
    ):
        assert expected in shown, f"{expected}\n{shown}"


def test_show_as_json_holds_the_state_the_lineage_the_usage_and_the_turns(library: Holdfast) -> None:
    session = a_worked_session(library)
    (pointer,) = library.store.pointers(session.id)

    shown = ok("show", session.id, "--json").json

    assert set(shown) >= STATE_FIELDS
    assert {name: shown[name] for name in STATE_FIELDS} == library.state(session.id)
    assert shown["session_id"] == session.id
    assert shown["conversation_id"] == session.conversation_id
    assert shown["parent_session_id"] is None
    assert shown["provider_session_id"] == pointer.provider_session_id
    assert shown["provider_session_forked_from"] is None
    assert shown["provider_session_last_seen_at"].endswith("Z")
    assert shown["usage"] == {
        "input_tokens": 2400,
        "cached_input_tokens": 600,
        "output_tokens": 90,
        "cost_usd": 0.5,
    }
    assert [(t["turn"], t["status"], t["prompt"], t["response"]) for t in shown["turns"]] == [
        (1, "done", "plan the change", "re: plan the change"),
        (2, "done", "apply it", "re: apply it"),
    ]
    assert shown["decision"]["kind"] == "resume"
    assert shown["may_continue"] is True
    assert [t["turn"] for t in ok("show", session.id, "--turns", "1", "--json").json["turns"]] == [2]


@pytest.mark.parametrize(("tokens", "state"), [(69, "ok"), (70, "warn"), (80, "refresh"), (95, "critical")])
def test_show_tells_how_full_the_context_window_is(library: Holdfast, tokens: int, state: str) -> None:
    session = library.create("claude", name="full")
    steps.run(library.store, session, "plan", usage=UsageReport(context=ContextUse(tokens, 100)))

    (pointer,) = ok("show", "full", "--json").json["pointers"]
    assert pointer["context"] == {"tokens": tokens, "window": 100, "state": state}
    assert f"{tokens} of 100 tokens, {tokens}%: {state}" in ok("show", "full").out


def test_show_of_an_untouched_session_has_every_field_without_a_provider_session(library: Holdfast) -> None:
    shown = ok("show", library.create("a").id, "--json").json

    for name in ("provider_session_id", "provider_session_forked_from", "provider_session_last_seen_at"):
        assert shown[name] is None
    assert (shown["turns"], shown["pointers"], shown["last"]) == ([], [], None)


def test_a_fork_names_its_parent_and_the_provider_session_it_will_fork(library: Holdfast) -> None:
    parent = a_worked_session(library)
    (pointer,) = library.store.pointers(parent.id)
    child = library.fork(parent.id, at=2)

    shown = ok("show", child.id, "--json").json

    assert shown["parent_session_id"] == parent.id
    assert (shown["forked_from"], shown["forked_at"]) == (parent.conversation_id, 2)
    assert shown["provider_session_id"] is None
    assert shown["provider_session_forked_from"] == pointer.provider_session_id
    assert [t["turn"] for t in shown["turns"]] == [1, 2]
    assert f"{parent.id} at turn 2" in ok("show", child.id).out


def test_why_lists_every_guard_then_the_verdict_then_the_last_time(
    each_engine: str, library: Holdfast
) -> None:
    session = a_worked_session(library)
    library.edit(session.id, 1, prompt="plan another change")

    told = ok("why", "deploy").lines

    table = told[told.index("") + 1 :]
    guards = [line.split()[0] for line in table[1 : table.index("")]]
    assert len(guards) == len(GUARDS)
    (history,) = (line for line in table if line.startswith("history_changed"))
    assert history.split(maxsplit=3)[1:] == ["failed", "fresh", "edit of turn 1 (revision 1)"]
    assert (
        "The next turn starts a fresh claude session with the whole context: "
        "history_changed (edit of turn 1 (revision 1))."
    ) in told
    assert any(line.split() == ["decided", "resume:", "resumable"] for line in told)


def test_what_a_turn_repeats_is_told(library: Holdfast) -> None:
    session = library.create("a")
    steps.run(library.store, session, "plan")
    library.retry(session.id, 1)
    steps.claim(library.store, session)
    library.store.recover(library.store.orphans(even_live=True)[0], owner_is_gone=True)
    steps.claim(library.store, session)

    shown = ok("show", session.id, "--json").json

    (turn,) = shown["turns"]
    assert (turn["turn"], turn["retry_of"], turn["attempts"]) == (2, 1, 2)
    last = ("turn", "retry_of", "attempt", "cause", "runtime_id")
    assert [shown["last"][name] for name in last] == [2, 1, 2, "recovery", a_runtime().id]
    assert "claimed (retry of 1, 2 attempts)" in ok("show", session.id).out
    assert "2 (retry of 1), attempt 2 (recovery), claude" in ok("why", session.id).out


def test_what_was_reported_too_late_is_shown_as_evidence(library: Holdfast) -> None:
    session = library.create("a")
    steps.enqueue(library.store, session, "plan")
    lost = steps.claim(library.store, session).lease
    library.store.recover(library.store.orphans(even_live=True)[0], owner_is_gone=True)
    with pytest.raises(LeaseLost):
        library.store.finish_turn(lost, done("planned after all"))

    (late,) = ok("show", session.id, "--json").json["late_reports"]

    assert (late["turn"], late["attempt"], late["fence"], late["verb"]) == (1, 1, lost.fence, "finish")
    assert (late["report"]["status"], late["report"]["response"]) == ("done", "planned after all")
    (line,) = (told for told in ok("show", session.id).lines if told.startswith("reported too late"))
    assert "turn 1, attempt 1, " in line
    assert line.endswith("done, planned after all")


def test_why_as_json_holds_both_decisions(library: Holdfast) -> None:
    session = library.create("a")
    steps.enqueue(library.store, session, "go on")
    claim = steps.claim(library.store, session)
    library.store.finish_turn(claim.lease, failed(FailureClass.AUTH, "not logged in"))
    library.update(session.id, phase="planning")

    told = ok("why", session.id, "--json").json

    assert (told["session_id"], told["provider"]) == (session.id, "claude")
    assert (told["may_continue"], told["may_continue_reason"]) == (True, "session_resumable")
    assert (told["decision"]["kind"], told["decision"]["reason"]) == ("fresh", "no_pointer")
    assert len(told["decision"]["guards"]) == len(GUARDS)
    assert set(told["decision"]["guards"][0]) == {"guard", "verdict", "outcome", "evidence"}
    assert told["last"]["decision"]["kind"] == "fresh"
    assert told["last"]["status"] == "failed"
    assert told["last"]["failure"] == {"class": "auth", "message": "not logged in"}
    told_to_people = [" ".join(line.split()) for line in ok("why", session.id).lines]
    assert "decided fresh: no_pointer (nothing to resume is recorded)" in told_to_people
    assert "failure auth: not logged in" in told_to_people


def _recover(store: Store, lease: Lease) -> None:
    store.recover(store.orphans(even_live=True)[0], owner_is_gone=True)


def _cancel(store: Store, lease: Lease) -> None:
    store.finish_turn(lease, TurnEnd(TurnStatus.CANCELLED, failure=WAS_CANCELLED))


@pytest.mark.parametrize(
    ("end", "came_to", "failure"),
    [
        (lambda store, lease: store.put_back(lease), "put back", None),
        (
            lambda store, lease: store.put_back(lease, because=NOT_THERE),
            "put back",
            "missing_binary: claude is not there",
        ),
        (_recover, "interrupted", "interrupted: its worker .* went away"),
        (_cancel, "cancelled", "cancelled"),
    ],
    ids=["put back", "put back because", "recovered", "cancelled"],
)
def test_why_says_in_words_what_the_last_time_came_to(
    library: Holdfast, end: Callable[[Store, Lease], object], came_to: str, failure: str | None
) -> None:
    session = library.create("a")
    steps.enqueue(library.store, session, "plan")
    end(library.store, steps.claim(library.store, session).lease)

    told = [" ".join(line.split()) for line in ok("why", session.id).lines]

    assert f"result {came_to}" in told
    failures = [line.removeprefix("failure ") for line in told if line.startswith("failure ")]
    assert len(failures) == (failure is not None)
    assert all(re.fullmatch(str(failure), line) for line in failures)


def test_why_answers_for_another_provider_and_changes_nothing(library: Holdfast) -> None:
    session = a_worked_session(library)
    before = steps.snapshot(library.store)

    told = ok("why", session.id, "--provider", "codex", "--json").json

    assert (told["provider"], told["decision"]["reason"]) == ("codex", "no_pointer")
    assert steps.snapshot(library.store) == before
    assert holdfast("why", session.id, "--provider", "No Such!").code == 2


def test_why_says_when_the_work_may_not_go_on_at_all(library: Holdfast) -> None:
    session = a_worked_session(library)
    library.update(session.id, phase="executing")
    told = ok("why", "deploy").out
    assert "The session should not continue (phase_not_resumable: phase executing is not one of" in told
    assert "If a turn is added anyway: the next turn resumes the claude session" in told

    library.finalize(session.id, "completed")
    assert ok("why", "deploy", "--json").json["verdict"] == (
        f"The session is completed; a fork can continue its work: holdfast fork {session.id}"
    )


def test_tree_shows_the_whole_family_from_any_member(each_engine: str, library: Holdfast) -> None:
    root = a_worked_session(library)
    child = library.fork(root.id, at=1, name="another-way")
    grandchild = library.fork(child.id)
    sibling = library.fork(root.id)

    lines = ok("tree", grandchild.id).lines
    document = ok("tree", root.id, "--json").json

    assert [line[: line.index("agent-")] for line in lines[1:]] == ["", "  ", "    ", "  "]
    assert [line.split()[0] for line in lines[1:]] == [root.id, child.id, grandchild.id, sibling.id]
    assert "turn 1" in lines[2]
    assert "another-way" in lines[2]
    assert [(m["session_id"], m["depth"], m["forked_at"]) for m in document["family"]] == [
        (root.id, 0, None),
        (child.id, 1, 1),
        (grandchild.id, 2, 1),
        (sibling.id, 1, 2),
    ]


def test_a_tree_fits_a_terminal_of_80_columns(library: Holdfast) -> None:
    root = a_worked_session(library)
    child = library.fork(root.id, at=1, name="another-way")

    shown = on_terminal("tree", root.id).out

    assert f"  {child.id[-8:]}" in shown
    assert "another-way" in shown
    assert "…" not in shown


def test_tree_survives_a_very_long_chain_of_forks(library: Holdfast) -> None:
    chain = [library.create("a").id for _ in range(600)]
    with sqlite3.connect(default_database()) as connection:
        connection.executemany("UPDATE sessions SET parent_session_id = ? WHERE id = ?", pairwise(chain))
    connection.close()

    assert [member["session_id"] for member in ok("tree", chain[9], "--json").json["family"]] == chain

"""What people are asked, through the installed command: list, approve, deny, ask and wait."""

import json
import subprocess

import pytest

from holdfast import Holdfast
from holdfast.clock import after
from holdfast.domain.approvals import Approval, hash_arguments
from holdfast.domain.redaction import Json
from holdfast.domain.turns import Launch
from tests import steps
from tests.acceptance.command import HOLDFAST, create, environment, holdfast, ok, on_terminal
from tests.builders import an_approval, done, failed

PLAN: dict[str, Json] = {"plan": "plan.tf", "targets": ["vpc"]}


def ask(session: str, *arguments: str) -> str:
    """An approval's id."""
    return ok("request-approval", session, "apply the plan", *arguments).out.strip()


def waiting(library: Holdfast) -> Approval:
    """What a turn of a new session, named deploy, waits for."""
    session = library.create("terraform-architect", name="deploy")
    return steps.defer(library.store, session)


def test_asking_puts_the_session_into_approval_and_it_is_listed() -> None:
    session = create()
    approval = ask(session, "--arguments", json.dumps(PLAN), "--answerer", "ada", "--answerer", "bob")

    assert ok("approvals").lines == [f"{approval}\topen\t{session}\tapply the plan"]
    (listed,) = ok("approvals", session, "--json").json["approvals"]
    assert (listed["arguments"], listed["arguments_hash"]) == (PLAN, hash_arguments(PLAN))
    assert (listed["answerers"], listed["status"], listed["expired"]) == (["ada", "bob"], "open", False)
    assert ok("get", session).json["phase"] == "approval"
    assert ok("show", session, "--json").json["approvals"] == [listed]
    assert f"holdfast approve {approval}" in ok("show", session).out
    assert approval in ok("packet", session).out


def test_nothing_is_asked() -> None:
    assert ok("approvals").out == ""
    assert ok("approvals", "--json").json["approvals"] == []
    assert "no open approvals" in on_terminal("approvals").out


def test_an_answer_is_recorded_with_who_and_the_same_again_changes_nothing() -> None:
    session = create("--name", "deploy")
    approval = ask(session)

    answered = ok("approve", "deploy", "--note", "go ahead", "--as", "ada", "--json").json

    assert (answered["status"], answered["answered_by"]) == ("approved", "ada")
    assert ok("approve", approval, "--note", "again", "--as", "bob", "--json").json == answered
    assert ok("approvals", "--all").lines == [f"{approval}\tapproved\t{session}\tapply the plan"]
    assert ok("approvals").out == ""


def test_a_denial_says_why_and_is_final() -> None:
    approval = ask(create())

    assert holdfast("deny", approval, "--note", " ").code == 2
    assert ok("deny", approval, "--note", "-", "--json", stdin="not on a Friday\n").json["note"] == (
        "not on a Friday"
    )
    refused = holdfast("approve", approval)
    assert refused.code == 4
    assert f"{approval} cannot be approved: " in refused.one_line_error()
    assert " has denied it" in refused.one_line_error()


def test_what_was_approved_cannot_be_denied() -> None:
    approval = ask(create())
    ok("approve", approval, "--as", "ada")

    assert f"{approval} cannot be denied: ada has approved it" in holdfast("deny", approval).one_line_error()


def test_a_denial_may_keep_its_reason_to_itself() -> None:
    denied = ok("deny", ask(create()), "--json").json

    assert (denied["status"], denied["note"]) == ("denied", None)


def test_a_session_stays_in_approval_until_somebody_has_answered() -> None:
    session = create()
    approval = ask(session)

    stays = holdfast("update", session, "--phase", "executing")

    assert stays.code == 4
    assert f'a person has to answer approval {approval} ("apply the plan") first' in stays.one_line_error()
    assert stays.one_line_error().endswith(f"to withdraw the question: holdfast deny {approval}")
    other = ask(session)
    second = holdfast("update", session, "--phase", "executing")
    assert '("apply the plan") and 1 more first' in second.one_line_error()
    ok("deny", approval)
    ok("deny", other)
    assert ok("update", session, "--phase", "executing", "--json").json["phase"] == "executing"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--arguments-hash", hash_arguments({"plan": "other.tf"})), "other_arguments"),
        (("--nonce", "0" * 16), "other_nonce"),
        (("--as", "eve"), "not_an_answerer"),
    ],
)
def test_an_answer_to_something_else_is_refused(arguments: tuple[str, str], reason: str) -> None:
    approval = ask(create(), "--arguments", json.dumps(PLAN), "--answerer", "ada")

    refused = holdfast("approve", approval, "--as", "ada", *arguments, "--json")

    assert refused.code == 4
    error = refused.json["error"]
    assert (error["code"], error["details"]["reason"]) == ("refused", reason)
    (asked,) = ok("approvals", "--json").json["approvals"]
    told = ("--arguments-hash", asked["arguments_hash"], "--nonce", asked["nonce"])
    assert ok("approve", approval, "--as", "ada", *told, "--json").json["status"] == "approved"


def test_an_expired_one_is_refused_and_blocks_the_resume(library: Holdfast) -> None:
    session = create()
    approval = ask(session, "--expires", "0.001")
    until = library.approval(approval).expires_at
    assert until is not None
    while library.store.now() < until:
        pass

    assert ok("approvals").lines == [f"{approval}\texpired\t{session}\tapply the plan"]
    assert holdfast("approve", approval, "--json").json["error"]["details"]["reason"] == "approval_expired"
    assert holdfast("approve", approval).code == 4
    judged = holdfast("should-resume", session)
    assert (judged.code, judged.out) == (4, "approval_expired\n")
    ask(session)
    assert ok("should-resume", session).out == "session_resumable\n"


def test_a_closed_session_is_not_answered() -> None:
    session = create()
    approval = ask(session)
    ok("finalize", session, "abandoned")

    refused = holdfast("approve", approval, "--json")

    assert (refused.code, refused.json["error"]["details"]["reason"]) == (4, "session_closed")
    (asked,) = ok("approvals", "--all", "--json").json["approvals"]
    assert (asked["status"], asked["void_reason"]) == ("voided", "session_abandoned")
    assert holdfast("request-approval", session, "once more").code == 4


@pytest.mark.parametrize(
    "arguments",
    [
        ("approve", "apr-nobody"),
        ("deny", "apr-nobody", "--note", "no"),
        ("request-approval", "nobody", "what"),
        ("approvals", "nobody"),
        ("wait", "nobody"),
    ],
)
def test_what_does_not_exist_is_not_found(arguments: tuple[str, ...]) -> None:
    ended = holdfast(*arguments)

    assert ended.code == 3
    assert "nobody" in ended.one_line_error()


def test_several_that_fit_are_named() -> None:
    session = create()
    both = {ask(session), ask(session)}

    ended = holdfast("approve", session, "--json")

    assert ended.code == 3
    assert set(ended.json["error"]["details"]["candidates"]) == both


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((" ",), "what"),
        (("what", "--arguments", "[7]"), "arguments"),
        (("what", "--arguments", "{"), "arguments"),
        (("what", "--expires", "0"), "expires"),
        (("what", "--expires", "nan"), "expires"),
        (("what", "--answerer", ""), "answerer"),
    ],
)
def test_what_cannot_be_asked_is_said(arguments: tuple[str, ...], field: str) -> None:
    session = create()

    ended = holdfast("request-approval", session, *arguments, "--json")

    assert (ended.code, ended.json["error"]["details"]["field"]) == (2, field)
    assert ok("get", session).json["phase"] == "initializing"


def test_a_turn_that_waits_is_not_run_until_it_is_answered(library: Holdfast) -> None:
    asked = waiting(library)

    for arguments in (("resume", "deploy"), ("resume", "deploy", "never mind")):
        ended = holdfast(*arguments, "--provider", "scripted", "--cwd", ".", "--json")
        assert (ended.code, ended.json["error"]["code"]) == (5, "waiting_for_approval")
        assert ended.json["error"]["details"]["approval_id"] == asked.id
    assert holdfast("wait", "deploy").code == 5
    waits = f"Turn 1 waits for an approval: {asked.what}. To answer: holdfast approve {asked.id}"
    assert ok("why", "deploy", "--json").json["verdict"] == waits

    answered = on_terminal("approve", "deploy")
    assert answered.code == 0
    assert "continue its turn with: holdfast resume" in " ".join(answered.out.split())
    claimed = steps.claim(library.store, library.session(asked.session_id))
    library.store.launch(claimed.lease, Launch(claimed.decision))
    library.store.finish_turn(claimed.lease, done())
    assert ok("wait", "deploy").out == f"turn 1 of {asked.session_id} is done\n"


def test_what_expired_is_not_offered_to_be_answered(library: Holdfast) -> None:
    session = create()
    too_late = ask(session, "--expires", "0.001")

    ended = holdfast("wait", session, "--json")

    assert (ended.code, ended.json["approval"]["expired"]) == (5, True)
    told = holdfast("wait", session).out
    assert f"expired; ask again: holdfast request-approval {session} 'apply the plan'," in told
    assert told.endswith(f"or continue without it: holdfast update {session} --phase executing\n")
    assert f"holdfast approve {too_late}" not in told
    assert ok("approvals").lines == [f"{too_late}\texpired\t{session}\tapply the plan"]
    in_time = ask(session)
    assert f"holdfast approve {in_time}" in holdfast("wait", session).out


def test_a_turn_whose_approval_expired_can_be_given_up(library: Holdfast) -> None:
    session = library.create("terraform-architect", name="deploy")
    moment = after(library.store.now(), 0.001)
    steps.defer(library.store, session, approval=an_approval(expires_at=moment))

    assert f"holdfast cancel {session.id} --turn 1" in holdfast("wait", "deploy").out


def test_a_cancelled_turn_takes_its_approval_with_it(library: Holdfast) -> None:
    asked = waiting(library)

    ok("cancel", "deploy")

    assert holdfast("approve", asked.id, "--json").json["error"]["details"]["reason"] == "approval_voided"
    assert ok("get", "deploy").json["phase"] == "initializing"
    assert holdfast("wait", "deploy").code == 1


def test_waiting_for_a_turn_that_failed_says_why(library: Holdfast) -> None:
    session = library.create("terraform-architect", name="deploy")
    steps.enqueue(library.store, session, "apply it")
    library.store.finish_turn(steps.claim(library.store, session).lease, failed())

    ended = holdfast("wait", "deploy")

    assert (ended.code, ended.out) == (1, f"turn 1 of {session.id} has failed: unknown: it broke\n")


def test_waiting_ends_when_the_session_does() -> None:
    session = create()
    assert holdfast("wait", session, "--timeout", "0").code == 124
    with subprocess.Popen(
        [HOLDFAST, "wait", session, "--json"], stdout=subprocess.PIPE, env=environment()
    ) as process:
        ok("finalize", session, "completed")
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(printed)["reached"] == "done"


@pytest.mark.parametrize("outcome", ["failed", "abandoned"])
def test_waiting_for_what_did_not_end_well(outcome: str) -> None:
    session = create()
    ok("finalize", session, outcome)

    ended = holdfast("wait", session)

    assert (ended.code, ended.out) == (1, f"{session} is {outcome}\n")

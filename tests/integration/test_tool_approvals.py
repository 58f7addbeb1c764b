"""Tool calls that wait for a person: deferred, approved, denied, void; and no answer is ever acted on twice."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.domain.approvals import Approval, ApprovalStatus
from holdfast.domain.decisions import Reason, Refuse, Resume
from holdfast.domain.events import EventKind
from holdfast.domain.phases import Phase
from holdfast.domain.pointers import Rights
from holdfast.domain.policy import ApprovalPolicy, Policy, ResumePolicy
from holdfast.domain.turns import AttemptCause, TurnStatus
from holdfast.engine.result import RunResult
from holdfast.errors import HoldfastError, NeedsApproval, Refused
from tests.integration.test_run_crashes import die
from tests.integration.workshop import Workshop, ended

GATED = Rights(approve_tools=frozenset({"shell(echo applied*)"}))
APPLY = 'TOOL shell {"command": "echo applied >> applied"}'


@pytest.fixture(params=["sqlite", "postgres"])
def shop(
    request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workshop]:
    database = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    shop = Workshop(tmp_path, tmp_path_factory.getbasetemp() / "cache", database=database)
    yield shop
    shop.close()
    assert not shop.left_running()


def applied(shop: Workshop) -> int:
    """How often the command ran."""
    file = shop.work_dir / "applied"
    return len(file.read_text().splitlines()) if file.exists() else 0


def deferred(shop: Workshop, prompt: str = f"SAY before\n{APPLY}\nSAY after") -> tuple[RunResult, Approval]:
    """A first turn with an answer, and a second one that waits."""
    first = shop.begin(rights=GATED)
    waiting = shop.open().resume(first.session_id, prompt)
    assert (waiting.status, waiting.exit_code, waiting.failure) == ("waiting", 5, None)
    assert waiting.approval is not None
    assert applied(shop) == 0
    return waiting, waiting.approval


def test_a_turn_with_a_call_that_needs_approval_waits_and_holds_nothing(shop: Workshop) -> None:
    waiting, approval = deferred(shop)
    store = shop.open().store
    assert (approval.tool, approval.what) == ("shell", "shell: echo applied >> applied")
    assert approval.arguments == {"command": "echo applied >> applied"}
    assert waiting.continue_with == f"holdfast approve {approval.id}"
    assert store.holder(waiting.session_id) is None
    assert store.get_session(waiting.session_id).phase is Phase.APPROVAL
    assert not shop.left_running()


def test_nothing_else_runs_in_a_session_that_waits(shop: Workshop) -> None:
    waiting, approval = deferred(shop)
    for prompt in (None, "SAY something else"):
        with pytest.raises(NeedsApproval) as needed:
            shop.open().resume(waiting.session_id, prompt)
        assert approval.id in str(needed.value)


def test_an_approved_call_is_made_and_the_turn_goes_on_where_it_was(shop: Workshop) -> None:
    waiting, approval = deferred(shop)
    hf = shop.open()
    hf.approve(approval.id)
    done = hf.resume(waiting.session_id)
    assert (done.ok, done.text, done.turn, applied(shop)) == (True, "after", waiting.turn, 1)
    assert isinstance(done.decision, Resume)
    assert len(shop.prompts(done.provider_session_id)) == 2
    turn = hf.store.get_turn(hf.session(done.session_id).conversation_id, done.turn)
    assert (turn.status, turn.next_cause) == (TurnStatus.DONE, AttemptCause.APPROVAL)
    assert hf.store.get_approval(approval.id).used_at is not None
    assert hf.resume(waiting.session_id, "SAY next").ok
    assert applied(shop) == 1


def test_a_denied_call_is_not_made_and_the_agent_is_told_why(shop: Workshop) -> None:
    waiting, approval = deferred(shop)
    hf = shop.open()
    hf.deny(approval.id, "not today")
    done = hf.resume(waiting.session_id)
    assert (done.ok, done.text, applied(shop)) == (True, "after", 0)
    events = hf.store.newest_events(hf.session(done.session_id).conversation_id, done.turn, 50)
    (result,) = (event.data for _, event in events if event.kind is EventKind.TOOL_RESULT)
    assert result["is_error"]
    assert "not today" in str(result["output"])


def test_each_call_waits_for_an_approval_of_its_own(shop: Workshop) -> None:
    waiting, approval = deferred(shop, f"{APPLY}\n{APPLY}\nSAY done")
    hf = shop.open()
    hf.approve(approval.id)
    again = hf.resume(waiting.session_id)
    assert (again.status, applied(shop)) == ("waiting", 1)
    assert again.approval is not None
    assert again.approval.id != approval.id
    hf.approve(again.approval.id)
    assert (hf.resume(waiting.session_id).text, applied(shop)) == ("done", 2)


def test_a_session_whose_very_first_turn_waits_goes_on_too(shop: Workshop) -> None:
    waiting = shop.begin(f"{APPLY}\nSAY done", rights=GATED)
    assert waiting.approval is not None
    hf = shop.open()
    hf.approve(waiting.approval.id)
    assert (hf.resume(waiting.session_id).text, applied(shop)) == ("done", 1)


def test_an_approval_that_has_expired_is_refused_and_the_call_is_never_made(shop: Workshop) -> None:
    first = shop.begin(rights=GATED)
    quick = replace(Policy(), approvals=ApprovalPolicy(expires_seconds=0.001))
    waiting = shop.open(quick).resume(first.session_id, APPLY)
    assert waiting.approval is not None
    hf = shop.open()
    with pytest.raises(Refused):
        hf.approve(waiting.approval.id)
    with pytest.raises(Refused):
        hf.resume(waiting.session_id)
    hf.cancel(waiting.session_id, waiting.turn)
    assert hf.resume(waiting.session_id, "SAY next").text == "next"
    assert applied(shop) == 0


def _edit_history(shop: Workshop, waiting: RunResult) -> None:
    shop.open().edit(waiting.session_id, 1, response="another answer")


def _move_directory(shop: Workshop, waiting: RunResult) -> None:
    shop.work_dir.rename(shop.root / "moved")


def _relocate(shop: Workshop, waiting: RunResult) -> None:
    shop.open().relocate(waiting.session_id, str(shop.folder("elsewhere")))


def _alter_session(shop: Workshop, waiting: RunResult) -> None:
    path = shop.transcript(waiting.provider_session_id)
    path.write_bytes(path.read_bytes().replace(b"applied", b"APPLIED"))


def _delete_session(shop: Workshop, waiting: RunResult) -> None:
    shop.policy = Policy(resume=ResumePolicy(restore="off"))
    shop.transcript(waiting.provider_session_id).unlink()


def _forget_how_to_defer(shop: Workshop, waiting: RunResult) -> None:
    says = "if argv == ['--help']: print('--session-id --resume --fork'); sys.exit()"
    shop.changes["HOLDFAST_SCRIPTED_BINARY"] = shop.stand_in("older-agent", says)


@pytest.mark.parametrize(
    "change",
    [_edit_history, _move_directory, _relocate, _alter_session, _delete_session, _forget_how_to_defer],
)
def test_whatever_changes_in_between_makes_the_approval_void(
    shop: Workshop, change: Callable[[Workshop, RunResult], None]
) -> None:
    waiting, approval = deferred(shop)
    shop.open().approve(approval.id)
    change(shop, waiting)
    try:
        refused = shop.open().resume(waiting.session_id)
        assert (refused.ok, refused.failure is None) == (False, False)
        told = " ".join(refused.notices)
    except HoldfastError as exc:
        assert exc.exit_code == 4  # noqa: PT017 - one or the other, by which step finds out
        told = str(exc)
    assert f"approval {approval.id} is void" in told
    void = shop.open().store.get_approval(approval.id)
    assert (void.status, void.used_at) == (ApprovalStatus.VOIDED, None)
    assert not list(shop.root.glob("**/applied"))


def test_what_only_this_machine_can_see_refuses_with_its_reason(shop: Workshop) -> None:
    waiting, approval = deferred(shop)
    shop.open().approve(approval.id)
    _delete_session(shop, waiting)
    refused = shop.open().resume(waiting.session_id)
    assert isinstance(refused.decision, Refuse)
    assert (refused.decision.reason, refused.exit_code) == (Reason.TRANSCRIPT_MISSING, 4)
    assert shop.open().store.get_approval(approval.id).void_reason == Reason.TRANSCRIPT_MISSING


def test_a_session_file_that_is_restored_is_the_one_in_which_the_call_was_approved(shop: Workshop) -> None:
    waiting, approval = deferred(shop)
    hf = shop.open()
    hf.approve(approval.id)
    path = shop.transcript(waiting.provider_session_id)
    before = path.read_bytes()
    path.unlink()
    done = hf.resume(waiting.session_id)
    assert (done.ok, done.text, applied(shop)) == (True, "after", 1)
    assert path.read_bytes().startswith(before)
    assert hf.store.get_approval(approval.id).used_at is not None


#: where Holdfast dies, and how often the call is made once somebody goes on
MOMENTS = {
    ("before", "SqlStore", "claim_turn"): 1,
    ("after", "SqlStore", "claim_turn"): 1,
    ("after", "AgentProcess", "start"): 1,
    ("before", "SqlStore", "launch"): 1,
    ("after", "SqlStore", "launch"): 0,
    ("before", "AgentProcess", "go"): 0,
}


@pytest.mark.parametrize(
    ("moment", "calls"),
    MOMENTS.items(),
    ids=lambda given: "-".join(given) if isinstance(given, tuple) else "",
)
def test_killed_around_the_launch_the_call_is_made_once_or_needs_another_approval(
    shop: Workshop, moment: tuple[str, str, str], calls: int
) -> None:
    waiting, approval = deferred(shop)
    shop.open().approve(approval.id)
    die(shop, *moment, "resume", waiting.session_id)
    assert applied(shop) == 0
    on = shop.open().resume(waiting.session_id)
    assert (on.ok, applied(shop)) == (True, calls)


@pytest.mark.parametrize("moment", [("after", "AgentProcess", "go"), ("before", "SqlStore", "finish_turn")])
def test_killed_after_the_launch_the_call_is_not_made_again(
    shop: Workshop, moment: tuple[str, str, str]
) -> None:
    waiting, approval = deferred(shop)
    shop.open().approve(approval.id)
    die(shop, *moment, "resume", waiting.session_id)
    shop.open().recover()  # whatever it left running has ended when this returns
    before = applied(shop)
    for _ in range(2):
        assert shop.open().resume(waiting.session_id, "SAY on").ok
    assert applied(shop) == before <= 1


def test_killed_before_the_deferral_was_on_record_the_call_is_not_made(shop: Workshop) -> None:
    first = shop.begin(rights=GATED)
    die(shop, "before", "SqlStore", "finish_turn", "resume", first.session_id, APPLY)
    assert shop.open().resume(first.session_id, "SAY on").ok
    assert applied(shop) == 0


def test_of_two_that_act_on_an_answer_at_once_one_does(shop: Workshop) -> None:
    waiting, approval = deferred(
        shop, f"TOOL shell {json.dumps({'command': 'echo applied >> applied; sleep 1'})}"
    )
    shop.open().approve(approval.id)
    both = [shop.start("resume", waiting.session_id) for _ in range(2)]
    codes = sorted(ended(process)[0] for process in both)
    assert codes[0] == 0
    assert codes[1] in (2, 4)  # busy, or there was nothing left to go on with
    assert applied(shop) == 1


def test_a_call_that_was_cancelled_is_not_made_when_its_kind_needs_no_approval_any_more(
    shop: Workshop,
) -> None:
    waiting, approval = deferred(shop)
    hf = shop.open()
    hf.cancel(waiting.session_id, waiting.turn)
    assert hf.store.get_approval(approval.id).status is ApprovalStatus.VOIDED
    assert hf.resume(waiting.session_id, "SAY on", rights=Rights(), allow_wider_rights=True).ok
    assert applied(shop) == 0

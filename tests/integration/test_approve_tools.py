"""What ``approve_tools`` may say, to whom, and how people are told."""

import json
import subprocess
from typing import Any

import pytest

from holdfast.domain.decisions import Reason, Refuse
from holdfast.domain.pointers import Rights
from holdfast.domain.policy import Policy, QueuePolicy
from holdfast.domain.turns import NewTurn, TurnRequest
from holdfast.engine.worker import WorkerOptions
from holdfast.errors import InvalidInput
from tests.integration.test_tool_approvals import APPLY, GATED, applied
from tests.integration.workshop import HOLDFAST, PATIENCE, Workshop, ended


def test_dropping_a_pattern_is_asking_for_more_rights(shop: Workshop) -> None:
    first = shop.begin(rights=GATED)
    wider = shop.open().resume(first.session_id, APPLY, rights=Rights(permission_mode="default"))
    assert isinstance(wider.decision, Refuse)
    assert (wider.decision.reason, applied(shop)) == (Reason.RIGHTS_WIDER, 0)


def test_an_agent_that_cannot_wait_is_refused_before_anything_is_recorded(shop: Workshop) -> None:
    says = "if argv == ['--help']: print('--session-id --resume'); sys.exit()"
    shop.changes["HOLDFAST_SCRIPTED_BINARY"] = shop.stand_in("simple-agent", says)
    with pytest.raises(InvalidInput, match="not supported by this provider"):
        shop.begin(rights=GATED)


@pytest.mark.parametrize("pattern", ["Bash(", "two words", "WebFetch(domain:x.y)", "x\0"])
def test_what_is_no_pattern_is_refused_before_anything_is_recorded(shop: Workshop, pattern: str) -> None:
    with pytest.raises(InvalidInput, match="approve_tools"):
        shop.begin(rights=Rights(approve_tools=frozenset({pattern})))


def test_every_agent_is_told_its_session(shop: Workshop) -> None:
    first = shop.begin('TOOL shell {"command": "printenv HOLDFAST_SESSION > session"}')
    assert (shop.work_dir / "session").read_text().strip() == first.session_id


def test_a_person_who_opens_the_session_is_asked_there(shop: Workshop) -> None:
    first = shop.begin(rights=GATED)
    opened = subprocess.run(
        [HOLDFAST, "open", first.session_id], cwd=shop.work_dir, env=shop.environ, text=True, check=False,
        input=f"{APPLY}\nTOOL shell {json.dumps({'command': 'printenv HOLDFAST_SESSION > session'})}\nquit\n",
        capture_output=True, timeout=PATIENCE,
    )  # fmt: skip
    assert (opened.returncode, applied(shop)) == (0, 0), opened.stderr
    assert (shop.work_dir / "session").read_text().strip() == first.session_id


def test_a_job_file_can_ask_for_approvals(shop: Workshop) -> None:
    job = {"prompt": APPLY, "provider": "scripted", "approve_tools": ["shell"]}
    (shop.work_dir / "job.json").write_text(json.dumps(job))
    code, out, err = ended(shop.start("run", "--job", "job.json", "--json"))
    assert (code, applied(shop)) == (5, 0), err
    assert json.loads(out)["status"] == "waiting"


def test_the_command_says_what_is_wanted_and_how_to_answer(shop: Workshop) -> None:
    code, out, err = ended(shop.start("run", "--approve-tools", "shell(echo applied*)", APPLY))
    assert (code, out) == (5, "")
    assert "waits for approval: shell: echo applied" in err
    assert "continue with: holdfast approve apr-" in err
    assert "holdfast deny apr-" in err


def test_a_conversation_pauses_when_a_call_waits(shop: Workshop) -> None:
    talked = subprocess.run(
        [HOLDFAST, "chat", "--approve-tools", "shell"], cwd=shop.work_dir, env=shop.environ, text=True,
        input=f"SAY hello\n{APPLY}\nSAY never asked\n", capture_output=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert (talked.returncode, talked.stdout) == (5, "hello\n"), talked.stderr
    assert "continue with: holdfast approve apr-" in talked.stderr


def test_another_provider_that_cannot_wait_does_not_take_over_by_accident(shop: Workshop) -> None:
    first = shop.begin(rights=GATED)
    says = "if '--version' in argv: print('codex-cli 0.166.0'); sys.exit()\nif '--help' in argv: print('  resume'); sys.exit()"
    shop.changes["HOLDFAST_CODEX_BINARY"] = shop.stand_in("codex", says)
    with pytest.raises(InvalidInput, match="not supported by this provider"):
        shop.open().resume(first.session_id, APPLY, provider="codex")
    assert [turn.seq for turn in shop.open().store.turns(first.session_id)] == [1]


def test_what_waits_is_the_sessions_also_where_nothing_of_it_has_run(shop: Workshop) -> None:
    hf = shop.open()
    session = hf.begin("plan", provider="scripted")
    hf.enqueue(session.id, "SAY plan", NewTurn("SAY plan", "scripted", TurnRequest(rights=GATED)))
    hf.cancel(session.id, 1)

    result = hf.resume(session.id, APPLY, cwd=str(shop.work_dir))

    assert (result.status, applied(shop)) == ("waiting", 0)


def test_what_waits_goes_along_into_a_fork_that_has_nothing_to_resume(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin(rights=GATED)
    assert first.provider_session_id is not None
    hf.store.retire(first.session_id, "scripted", first.provider_session_id, "lost")
    hf.store.clear_pointer(first.session_id, "scripted", first.provider_session_id)
    child = hf.fork(first.session_id)

    result = hf.resume(child.id, APPLY, cwd=str(shop.work_dir))

    assert (result.status, applied(shop)) == ("waiting", 0)


def test_a_worker_asks_as_well_when_the_turn_says_nothing_of_it(shop: Workshop) -> None:
    hf = shop.open()
    session = hf.begin("plan", provider="scripted")
    nowhere = TurnRequest(work_dir=str(shop.root / "nowhere"), rights=GATED)
    hf.enqueue(session.id, "SAY plan", NewTurn("SAY plan", "scripted", nowhere))
    here = TurnRequest(work_dir=str(shop.work_dir))
    hf.enqueue(session.id, APPLY, NewTurn(APPLY, "scripted", here))

    hf.worker(["scripted"], WorkerOptions(once=True)).run()

    assert [turn.status for turn in hf.store.turns(session.id)] == ["failed", "waiting"]
    assert applied(shop) == 0


def test_wider_rights_that_were_allowed_take_a_pattern_back(shop: Workshop) -> None:
    first = shop.begin(rights=GATED)
    hf = shop.open()
    plain = Rights(permission_mode="default")
    hf.resume(first.session_id, "SAY freed", rights=plain, allow_wider_rights=True)

    assert hf.resume(first.session_id, APPLY).status == "done"
    assert applied(shop) == 1


@pytest.mark.parametrize("words", [{"approve_tools": ["shell"]}, {"aprove": True}])
def test_a_keyword_that_nobody_knows_is_refused(shop: Workshop, words: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="is not known"):
        shop.open().run(APPLY, provider="scripted", cwd=str(shop.work_dir), **words)
    assert applied(shop) == 0


def test_one_text_is_not_taken_for_several_patterns(shop: Workshop) -> None:
    one: Any = "shell"
    with pytest.raises(InvalidInput, match="must be several texts"):
        shop.begin(APPLY, rights=Rights(approve_tools=one))
    assert applied(shop) == 0


def test_a_turn_that_waits_is_run_as_it_was_asked_for(shop: Workshop) -> None:
    waits = shop.begin(APPLY, rights=GATED)
    hf = shop.open()
    hf.approve(waits.session_id)

    with pytest.raises(InvalidInput, match="which waits, has its own"):
        hf.resume(waits.session_id, rights=Rights(permission_mode="plan"))

    assert (hf.resume(waits.session_id).status, applied(shop)) == ("done", 1)


def test_a_worker_does_not_run_it_with_an_agent_that_cannot_wait(shop: Workshop) -> None:
    first = shop.begin(rights=GATED)
    says = "if argv == ['--help']: print('--session-id --resume'); sys.exit()"
    shop.changes["HOLDFAST_SCRIPTED_BINARY"] = shop.stand_in("simple-agent", says)
    shop.policy = Policy(queue=QueuePolicy(affinity_seconds=0))
    hf = shop.open()
    hf.enqueue(first.session_id, APPLY)

    hf.worker(["scripted"], WorkerOptions(once=True)).run()

    turn = hf.store.turns(first.session_id)[-1]
    assert (turn.status, applied(shop)) == ("failed", 0)
    assert turn.failure is not None
    assert "approv" in turn.failure.message


def test_a_person_may_go_on_with_an_agent_that_cannot_wait(shop: Workshop) -> None:
    first = shop.begin(rights=GATED)
    says = "if argv == ['--help']: print('--session-id --resume'); sys.exit()"
    shop.changes["HOLDFAST_SCRIPTED_BINARY"] = shop.stand_in("simple-agent", says)
    hf = shop.open()
    with pytest.raises(InvalidInput, match="--allow-wider-rights continues without approvals"):
        hf.resume(first.session_id, APPLY)

    assert hf.resume(first.session_id, APPLY, allow_wider_rights=True).status == "done"
    assert applied(shop) == 1

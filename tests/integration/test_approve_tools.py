"""What ``approve_tools`` may say, to whom, and how people are told."""

import json
import subprocess

import pytest

from holdfast.domain.decisions import Reason, Refuse
from holdfast.domain.pointers import Rights
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
    assert "go on with: holdfast approve apr-" in err
    assert "holdfast deny apr-" in err


def test_a_conversation_pauses_when_a_call_waits(shop: Workshop) -> None:
    talked = subprocess.run(
        [HOLDFAST, "chat", "--approve-tools", "shell"], cwd=shop.work_dir, env=shop.environ, text=True,
        input=f"SAY hello\n{APPLY}\nSAY never asked\n", capture_output=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert (talked.returncode, talked.stdout) == (5, "hello\n"), talked.stderr
    assert "go on with: holdfast approve apr-" in talked.stderr


def test_another_provider_that_cannot_wait_does_not_take_over_by_accident(shop: Workshop) -> None:
    first = shop.begin(rights=GATED)
    says = "if '--version' in argv: print('codex-cli 0.166.0'); sys.exit()\nif '--help' in argv: print('  resume'); sys.exit()"
    shop.changes["HOLDFAST_CODEX_BINARY"] = shop.stand_in("codex", says)
    with pytest.raises(InvalidInput, match="not supported by this provider"):
        shop.open().resume(first.session_id, APPLY, provider="codex")
    assert [turn.seq for turn in shop.open().store.turns(first.session_id)] == [1]

"""What an agent saved after its Holdfast was killed counts: an answer is an answer, and a session is gone on with."""

from typing import Literal

import pytest

from holdfast import Holdfast
from holdfast.domain.decisions import Resume
from holdfast.domain.phases import Phase
from holdfast.domain.policy import Policy, VaultPolicy
from holdfast.domain.turns import NewTurn, TurnRequest, TurnStatus
from holdfast.engine.vault import Vault
from holdfast.errors import InvalidInput
from tests.integration.workshop import Workshop, ended, eventually, kill

#: its words reach nobody: Holdfast knows of its session only what it has chosen itself
SILENT = """
if "--resume" in argv or "--session-id" in argv:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
"""
RAN = 'TOOL shell {"command": "echo ran >> ledger"}'
WAITS = 'TOOL shell {"command": "while [ ! -e go ]; do sleep 0.05; done"}'
PAINT = f"{RAN}\n{WAITS}\nSAY the shed is mauve"
RUN = ("run", "--name", "work", PAINT)
DONE = (TurnStatus.DONE, "the shed is mauve")


def _killed(shop: Workshop, *command: str, answers: bool = True) -> None:
    """While its tool runs; the agent then ends its turn alone, or is killed as well."""
    silent = shop.stand_in("silent", SILENT)
    process = shop.start(*command, environ={"HOLDFAST_SCRIPTED_BINARY": silent})
    eventually((shop.work_dir / "ledger").exists)
    kill(process)
    if not answers:
        shop.kill_agent()
    (shop.work_dir / "go").touch()
    eventually(lambda: not shop.left_running())


def _turns(hf: Holdfast) -> list[tuple[TurnStatus, str | None]]:
    return [(turn.status, turn.response) for turn in hf.history(hf.find("work"))]


@pytest.mark.parametrize("fresh", [False, True])
def test_an_answer_to_a_first_turn_counts(shop: Workshop, fresh: bool) -> None:
    _killed(shop, *RUN)
    hf = shop.open()

    after = hf.resume(hf.find("work"), "HISTORY", fresh=fresh)

    assert _turns(hf)[0] == DONE
    told = shop.prompts(after.provider_session_id)[-1]
    assert "interrupted" not in told
    assert "stopped" not in told
    assert ("the shed is mauve" in told) == fresh
    assert isinstance(after.decision, Resume) != fresh
    assert hf.session(hf.find("work")).phase is Phase.INVESTIGATING


@pytest.mark.parametrize("fresh", [(), ("--fresh",)], ids=["resumed", "fresh"])
def test_an_answer_to_a_later_turn_counts(shop: Workshop, fresh: tuple[str, ...]) -> None:
    shop.begin("SAY violet", name="work")
    _killed(shop, "resume", "work", *fresh, PAINT)
    hf = shop.open()

    (turn,) = hf.recover()

    assert (turn.status, turn.response, turn.failure) == (*DONE, None)
    last = hf.store.events(turn.conversation_id, turn.seq)[-1][1]
    assert last.data == {"text": "the shed is mauve"}, "as the log shows it"
    after = hf.resume(hf.find("work"), "SAY next")
    assert isinstance(after.decision, Resume)
    asked = shop.prompts(after.provider_session_id)
    assert PAINT in asked[-2], "it goes on where the answer stands"
    assert "mauve" not in asked[-1]
    assert "stopped" not in asked[-1]


@pytest.mark.parametrize(("mode", "is_kept"), [("all", True), ("run", True), ("off", False)])
def test_an_answer_is_in_the_vault_when_it_is_taken_over(
    shop: Workshop, mode: Literal["all", "run", "off"], is_kept: bool
) -> None:
    _killed(shop, *RUN)
    hf = shop.open(Policy(vault=VaultPolicy(mode=mode)))

    (turn,) = hf.recover()

    assert (turn.status, turn.response) == DONE
    (attempt,) = hf.store.attempts(turn.conversation_id, turn.seq)
    assert attempt.provider_session_id is not None
    bundle = hf.store.bundle("scripted", attempt.provider_session_id)
    assert (bundle is not None) == is_kept
    if bundle is not None:
        kept = b"".join(Vault(hf.store, VaultPolicy()).read(bundle, bundle.main))
        assert kept == shop.transcript(attempt.provider_session_id).read_bytes()


def test_a_worker_does_not_run_again_what_was_answered(shop: Workshop) -> None:
    hf = shop.open()
    session = hf.begin(PAINT, provider="scripted", name="work")
    hf.store.enqueue_turn(session.id, NewTurn(PAINT, "scripted", TurnRequest(str(shop.work_dir))))
    _killed(shop, "worker", "--once")

    code, _, err = ended(shop.start("worker", "--once"))

    assert (code, _turns(hf)) == (0, [DONE])
    assert "it is done now" in err
    assert (shop.work_dir / "ledger").read_text() == "ran\n"


def test_what_was_answered_is_not_continued(shop: Workshop) -> None:
    _killed(shop, *RUN)
    hf = shop.open()

    with pytest.raises(InvalidInput, match=r"turn 1 of .* was answered in the meantime: holdfast show work"):
        hf.resume(hf.find("work"))

    assert _turns(hf) == [DONE]


def test_what_a_person_said_behind_the_answer_joins_the_history(shop: Workshop) -> None:
    first = shop.begin("SAY violet", name="work")
    _killed(shop, "resume", "work", PAINT)
    shop.by_hand("SAY by hand", "--resume", str(first.provider_session_id))
    hf = shop.open()

    hf.resume(hf.find("work"), "SAY next")

    assert [response for _, response in _turns(hf)] == ["violet", "the shed is mauve", "by hand", "next"]


def test_a_turn_that_was_to_stop_has_stopped_though_it_was_answered(shop: Workshop) -> None:
    shop.begin("SAY violet", name="work")
    _killed(shop, "resume", "work", PAINT)
    hf = shop.open()
    hf.store.cancel_turn(hf.find("work"), 2)

    (turn,) = hf.recover()

    assert turn.status is TurnStatus.CANCELLED


def test_in_another_home_no_answer_is_seen(shop: Workshop) -> None:
    shop.begin("SAY violet", name="work")
    _killed(shop, "resume", "work", PAINT)
    hf = shop.open(SCRIPTED_HOME=str(shop.folder("another")))

    (turn,) = hf.recover()

    assert (turn.status, turn.response) == (TurnStatus.FAILED, None)


def test_a_fresh_start_that_was_killed_goes_on_in_its_own_session(shop: Workshop) -> None:
    first = shop.begin("SAY violet", name="work")
    _killed(shop, "resume", "work", "--fresh", PAINT, answers=False)
    hf = shop.open()

    after = hf.resume(hf.find("work"))

    assert isinstance(after.decision, Resume)
    assert after.provider_session_id != first.provider_session_id
    asked = shop.prompts(after.provider_session_id)
    assert [PAINT in prompt for prompt in asked] == [True, False]
    assert "interrupted" in asked[-1]

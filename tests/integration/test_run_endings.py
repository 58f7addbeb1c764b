"""However a turn ends, it is committed as what it was, and nothing of it is left running."""

import re
import time
from pathlib import Path

import pytest

from holdfast.domain.decisions import Fresh, Reason, Resume
from holdfast.domain.failures import FailureClass
from holdfast.domain.policy import Policy, QueuePolicy, ResumePolicy
from holdfast.domain.sessions import SessionFilter
from holdfast.domain.turns import TurnStatus
from holdfast.errors import HoldfastError, InvalidInput, LeaseLost, MissingBinary
from tests.integration.scripted import MODULE
from tests.integration.workshop import FROM_PROMPT, FROM_SESSION, OPENING, RECALL, Workshop

#: the agent, and then words and an exit code of its own
GRUMBLES = f"""
import subprocess
if "--session-id" in argv:
    subprocess.run([sys.executable, "-m", {MODULE!r}, *argv])
    sys.exit(print({{said!r}}, file=sys.stderr) or {{code}})
"""


@pytest.mark.parametrize(
    ("order", "failure"),
    [
        ("CRASH", FailureClass.INTERRUPTED),
        ("NO_SAVE\nNO_END", FailureClass.INTERRUPTED),
        ("EXIT 3 broken", FailureClass.UNKNOWN),
        ("FAIL 400 strange", FailureClass.NOT_ACCEPTED),
        ("FAIL 401 who are you", FailureClass.AUTH),
        ("FAIL 429 too fast", FailureClass.TRANSIENT),
        ("FAIL 500 down", FailureClass.TRANSIENT),
        ("FAIL 529 overloaded", FailureClass.TRANSIENT),
    ],
)
def test_a_failed_turn_says_how_and_the_next_one_still_knows_everything(
    shop: Workshop, order: str, failure: FailureClass
) -> None:
    hf, first = shop.open(), shop.begin()
    failed = hf.resume(first.session_id, f"SAY half\nSTDERR noise\n{order}")
    assert failed.failure is not None
    assert (failed.turn_status, failed.failure.failure_class) == (TurnStatus.FAILED, failure)
    assert failed.text == "half"
    assert failed.exit_code == 1
    # an agent's own command for people: nothing of it may be repeated by itself
    assert hf.stopped_turn(first.session_id) is not None
    again = hf.resume(first.session_id, RECALL)
    assert isinstance(again.decision, Resume)
    assert again.text == FROM_SESSION


def test_an_answer_without_a_final_event_counts_once_the_agent_has_saved_it(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin()
    answered = hf.resume(first.session_id, "SAY whole\nNO_END")
    assert (answered.turn_status, answered.text) == (TurnStatus.DONE, "whole")
    assert hf.stopped_turn(first.session_id) is None


@pytest.mark.parametrize("said", ["server overloaded, retrying", "usage limit reached", "connection reset"])
@pytest.mark.parametrize("code", [1, 137])
def test_one_that_has_answered_has_answered_whatever_it_says_on_standard_error(
    shop: Workshop, said: str, code: int
) -> None:
    agent = shop.stand_in("grumbling", GRUMBLES.format(said=said, code=code))
    answered = shop.open(HOLDFAST_SCRIPTED_BINARY=agent).run(
        "SAY whole", provider="scripted", cwd=str(shop.work_dir)
    )
    assert (answered.turn_status, answered.text, answered.failure) == (TurnStatus.DONE, "whole", None)


def test_a_first_turn_that_died_goes_on_in_its_own_session(shop: Workshop) -> None:
    first = shop.begin(f"{OPENING}\nCRASH")
    again = shop.open().resume(first.session_id)
    assert (again.decision.reason, again.ok) == (Reason.RESUMABLE, True)
    assert again.provider_session_id == first.provider_session_id
    held, sent = shop.prompts(again.provider_session_id)
    assert held == f"{OPENING}\nCRASH"
    assert OPENING not in sent


def test_a_first_turn_that_died_before_its_session_was_saved_is_told_to_the_next_agent(
    shop: Workshop,
) -> None:
    shop.policy = Policy(resume=ResumePolicy(restore="off"))
    first = shop.begin(f"{OPENING}\nCRASH")
    shop.transcript(first.provider_session_id).unlink()
    again = shop.open().resume(first.session_id)
    assert (again.decision.reason, again.ok) == (Reason.TRANSCRIPT_MISSING, True)
    assert again.provider_session_id != first.provider_session_id
    assert OPENING in shop.prompts(again.provider_session_id)[0]


@pytest.mark.parametrize("stubborn", ["", "IGNORE_TERM\n"])
def test_the_time_limit_ends_the_turn_and_all_that_it_started(shop: Workshop, stubborn: str) -> None:
    began = time.monotonic()
    # long enough for an agent to start and to say something on a busy machine
    stopped = shop.begin(f"SAY half\nSPAWN\n{stubborn}HANG", timeout=4.0)
    assert stopped.failure is not None
    assert "time limit" in stopped.failure.message
    assert (stopped.status, (stopped.text or "")[:4]) == ("interrupted", "half")
    assert not shop.left_running()
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("order", ["SPAWN", "SPAWN_HOLDING"])
def test_what_an_agent_leaves_behind_ends_with_its_turn(shop: Workshop, order: str) -> None:
    done = shop.begin(order)
    found = re.match("spawned ([0-9]+)", done.text or "")
    assert found is not None
    assert done.ok
    assert not shop.left_running()


def test_an_answer_that_was_not_saved_is_told_to_a_fresh_session(shop: Workshop) -> None:
    first = shop.begin(f"{OPENING}\nNO_SAVE")
    assert (first.ok, len(first.notices)) == (True, 1)
    again = shop.open().resume(first.session_id, RECALL)
    assert isinstance(again.decision, Fresh)
    assert again.text == FROM_PROMPT


def test_an_answer_that_a_known_session_did_not_save_is_not_forgotten(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin("SAY hello")
    unsaved = hf.resume(first.session_id, f"{OPENING}\nNO_SAVE")
    assert (unsaved.ok, len(unsaved.notices)) == (True, 1)
    again = hf.resume(first.session_id, RECALL)
    assert isinstance(again.decision, Fresh)
    assert again.text == FROM_PROMPT


def test_an_empty_answer_that_left_no_trace_leaves_the_session_and_is_told(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin("SAY hello")
    empty = hf.resume(first.session_id, f"{OPENING}\nSAY_NOTHING\nNO_SAVE")
    assert (empty.ok, empty.text, empty.notices) == (True, None, ())
    again = hf.resume(first.session_id, RECALL)
    assert isinstance(again.decision, Resume)
    assert again.provider_session_id == first.provider_session_id
    assert again.text == FROM_PROMPT
    told = shop.prompts(str(first.provider_session_id))[-1]
    assert "An empty answer" in told
    assert "No answer" not in told


def test_of_a_session_that_is_retired_the_same_is_said_before_and_after(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin(f"{OPENING}\nSAY_NOTHING\nNO_SAVE")
    assert first.notices == (
        "the answer was empty, and the agent did not keep the request: the next turn starts fresh, with the context",
    )
    foreseen = hf.why(first.session_id).decision
    again = hf.resume(first.session_id, RECALL)
    assert foreseen.reason is again.decision.reason is Reason.RETIRED


def test_a_full_context_is_announced(shop: Workshop) -> None:
    assert shop.begin("CONTEXT 150000 200000").notices == ("the context window is 75% full",)


def test_a_line_that_was_too_long_and_that_nobody_saved_is_said(shop: Workshop) -> None:
    said = shop.begin("BIG 9000000")
    assert (said.ok, said.text) == (True, "that were 9000000 bytes")
    (notice,) = said.notices
    assert "a line of more than 8 MiB, which was not read" in notice


def test_a_work_dir_that_is_gone_is_a_matter_of_configuration(shop: Workshop) -> None:
    place = shop.folder("gone")
    first = shop.begin(cwd=str(place))
    place.rmdir()
    with pytest.raises(InvalidInput, match=r"gone does not exist any more; .* holdfast relocate"):
        shop.open().resume(first.session_id, RECALL)
    with pytest.raises(InvalidInput):
        shop.open().resume(first.session_id, RECALL, cwd=str(place))
    assert len(shop.open().store.turns(first.session_id)) == 1
    moved = shop.open().relocate(first.session_id, str(shop.folder("moved")))
    there = shop.open().resume(first.session_id, RECALL)
    assert (there.work_dir, there.text) == (moved, FROM_SESSION)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"cwd": "/no/such/dir"}, InvalidInput),
        ({"cwd": "~nobody-of-that-name/dir"}, InvalidInput),
        ({"model": "a\0b"}, InvalidInput),
        ({"model": "\udcff"}, InvalidInput),
        ({"timeout": float("nan")}, InvalidInput),
        ({"provider_session_id": "../up"}, InvalidInput),
        ({"provider": "unheard-of"}, InvalidInput),
    ],
)
def test_what_cannot_be_asked_for_leaves_no_session_behind(
    shop: Workshop, asked: dict[str, object], error: type[HoldfastError]
) -> None:
    hf = shop.open()
    with pytest.raises(error):
        hf.run(OPENING, **{"provider": "scripted", "cwd": str(shop.work_dir), **asked})  # type: ignore[arg-type]
    assert not hf.page(SessionFilter()).sessions


def test_an_agent_that_is_not_installed_leaves_no_session_behind(shop: Workshop) -> None:
    hf = shop.open(HOLDFAST_SCRIPTED_BINARY="/no/such/agent")
    with pytest.raises(MissingBinary):
        hf.run(OPENING, provider="scripted", cwd=str(shop.work_dir))
    assert not hf.page(SessionFilter()).sessions


def test_an_agent_that_is_gone_at_the_launch_keeps_the_session(shop: Workshop) -> None:
    binary = Path(shop.stand_in("short-lived", ""))
    hf = shop.open(HOLDFAST_SCRIPTED_BINARY=str(binary))
    first = hf.run(OPENING, provider="scripted", cwd=str(shop.work_dir))
    content = binary.read_text()
    binary.unlink()
    failed = hf.resume(first.session_id, RECALL)
    assert failed.failure is not None
    assert failed.failure.failure_class is FailureClass.MISSING_BINARY
    binary.write_text(content)
    binary.chmod(0o755)
    assert hf.resume(first.session_id, RECALL).text == FROM_SESSION


def test_a_turn_that_someone_cancels_stops_and_keeps_its_session(shop: Workshop) -> None:
    quick = Policy(queue=QueuePolicy(heartbeat_seconds=0.1))
    hf, first = shop.open(quick), shop.begin()

    def cancel(seen: object) -> None:
        if getattr(seen, "text", "") == "half":
            shop.open().cancel(first.session_id, 2)

    stopped = hf.resume(first.session_id, "SAY half\nHANG", observer=cancel)
    assert (stopped.status, stopped.turn_status, stopped.text) == ("cancelled", TurnStatus.CANCELLED, "half")
    assert hf.resume(first.session_id, RECALL).text == FROM_SESSION


def test_whoever_loses_the_lease_stops_and_changes_nothing(shop: Workshop) -> None:
    quick = Policy(queue=QueuePolicy(heartbeat_seconds=0.1))
    hf, first = shop.open(quick), shop.begin()

    def steal(seen: object) -> None:
        if getattr(seen, "text", "") == "half":
            thief = shop.open()
            orphan = thief.store.holder(first.session_id)
            assert orphan is not None
            thief.store.recover(orphan, owner_is_gone=True)

    with pytest.raises(LeaseLost):
        hf.resume(first.session_id, "SAY half\nHANG", observer=steal)
    assert not shop.left_running()
    assert hf.store.late_reports(hf.session(first.session_id).conversation_id)
    again = hf.resume(first.session_id, RECALL)
    assert (again.turn, again.text) == (3, FROM_SESSION)

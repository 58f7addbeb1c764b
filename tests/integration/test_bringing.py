"""Sessions that an agent's own program keeps continue under their own ids."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.domain.conversations import SeenTurns
from holdfast.domain.turns import OutsideTurn
from holdfast.engine.running import provider_sessions
from holdfast.errors import AmbiguousId, NotFound, Refused
from tests.integration.workshop import Workshop, ended

BY_HAND = "6a13a176-1111-4222-8333-123456789abc"
OTHER = "6a13ffff-1111-4222-8333-123456789abc"


@pytest.fixture
def begun(shop: Workshop) -> Workshop:
    shop.by_hand("SAY violet", "--session-id", BY_HAND)
    shop.by_hand("SAY amber", "--resume", BY_HAND)
    return shop


def test_a_session_begun_by_hand_continues_natively_under_its_own_id(begun: Workshop) -> None:
    code, out, err = ended(begun.start("--json", "resume", BY_HAND, "SAY next"))

    told = json.loads(out)
    assert (code, told["decision"]["kind"], told["turn"]) == (0, "resume", 3)
    assert told["provider_session_id"] == BY_HAND
    assert f"scripted session {BY_HAND} is session {told['session_id']} now, with 2 turns" in err
    assert begun.prompts(BY_HAND)[-1].endswith("\nSAY next")


def test_the_beginning_of_the_id_is_enough(begun: Workshop) -> None:
    _, out, _ = ended(begun.start("--json", "show", BY_HAND[:8]))

    assert [turn["prompt"] for turn in json.loads(out)["turns"]] == ["SAY violet", "SAY amber"]


def test_a_long_session_is_brought_whole(shop: Workshop) -> None:
    said = [
        line
        for number in range(1200)
        for line in (
            {"type": "user", "id": f"u{number}", "text": f"SAY {number}"},
            {"type": "assistant", "answers": f"u{number}", "text": f"{number}", "complete": True},
        )
    ]
    path = shop.transcript(BY_HAND)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in said))
    hf = shop.open()

    brought = hf.bring(BY_HAND)

    assert brought.turns == 1200
    assert [turn.prompt for turn in hf.history(brought.session_id)][:2] == ["SAY 0", "SAY 1"]


def test_what_is_too_long_for_one_call_is_brought_in_pieces(
    begun: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_sessions, "_PIECE_CHARACTERS", 10)
    begun.by_hand("SAY blue", "--resume", BY_HAND)
    hf = begun.open()

    brought = hf.bring(BY_HAND)

    assert (brought.turns, len(provider_sessions._pieces([OutsideTurn("k", "p" * 9, "r")] * 3))) == (3, 3)
    assert [turn.prompt for turn in hf.history(brought.session_id)] == ["SAY violet", "SAY amber", "SAY blue"]
    pointer = hf.store.pointer(brought.session_id, "scripted")
    assert pointer is not None
    assert pointer.seen == SeenTurns.up_to(3)
    assert hf.bring(BY_HAND).turns == 0


def test_a_turn_that_was_killed_by_hand_is_the_agents_own_and_resumed_natively(shop: Workshop) -> None:
    path = shop.transcript(BY_HAND)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"type": "user", "id": "u1", "text": "SAY violet"}) + "\n")

    code, out, err = ended(shop.start("--json", "resume", BY_HAND, "HISTORY"))

    assert (code, json.loads(out)["decision"]["kind"]) == (0, "resume")
    assert "SAY violet" in json.loads(out)["text"]
    assert "now, with a turn that is not answered yet" in err


def test_it_is_brought_once(begun: Workshop) -> None:
    hf = begun.open()
    with ThreadPoolExecutor(4) as pool:
        brought = list(pool.map(lambda _: hf.bring(BY_HAND).session_id, range(4)))

    assert len(set(brought)) == 1
    assert [turn.prompt for turn in hf.history(brought[0])] == ["SAY violet", "SAY amber"]


def test_after_a_fresh_start_its_first_id_still_names_it(begun: Workshop) -> None:
    hf = begun.open()
    session = hf.bring(BY_HAND).session_id
    hf.resume(session, "SAY next", fresh=True)

    assert hf.bring(BY_HAND).session_id == session


def test_a_session_of_ours_is_found_by_its_providers_id(shop: Workshop) -> None:
    first = shop.begin("SAY violet")
    assert first.provider_session_id is not None

    assert shop.open().bring(first.provider_session_id[:12]).session_id == first.session_id


def test_what_was_done_by_hand_since_then_is_there_when_its_id_is_named_again(begun: Workshop) -> None:
    hf = begun.open()
    session = hf.bring(BY_HAND).session_id
    begun.by_hand("SAY blue", "--resume", BY_HAND)

    again = hf.bring(BY_HAND)

    assert (again.session_id, again.turns, again.is_new) == (session, 1, False)
    assert [turn.prompt for turn in hf.history(session)] == ["SAY violet", "SAY amber", "SAY blue"]


def test_a_beginning_that_fits_several_names_them(begun: Workshop) -> None:
    begun.by_hand("SAY blue", "--session-id", OTHER)

    with pytest.raises(AmbiguousId) as ambiguous:
        begun.open().bring("6a13")

    assert str(ambiguous.value).startswith("'6a13' fits several agent sessions: ")
    assert {candidate.split()[0] for candidate in ambiguous.value.candidates} == {BY_HAND, OTHER}


def test_what_nobody_keeps_is_not_found(begun: Workshop) -> None:
    code, _, err = ended(begun.start("resume", "deadbeef", "SAY next"))

    assert (code, err.strip()) == (
        3,
        "holdfast: session not found: deadbeef; holdfast list shows the sessions",
    )


def test_a_session_without_a_turn_is_refused(shop: Workshop) -> None:
    path = shop.transcript(BY_HAND)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")

    with pytest.raises(Refused):
        shop.open().bring(BY_HAND)
    with pytest.raises(NotFound):
        shop.open().find(BY_HAND)

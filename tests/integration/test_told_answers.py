"""What people answered to an agent that had asked by itself is told to it with its next turn."""

import pytest

from holdfast import Holdfast
from holdfast.engine.result import RunResult
from tests.integration.workshop import Workshop

WHAT, NOTE = "apply the second plan", "careful now"
ASKED = "RECALL second"
NOTED = "RECALL careful"


def answered(shop: Workshop, *, approved: bool = True, note: str | None = NOTE) -> tuple[Holdfast, RunResult]:
    opened, first = shop.open(), shop.begin()
    asked = opened.request_approval(first.session_id, WHAT)
    answer = opened.approve if approved else opened.deny
    answer(asked.id, note, by="ada")
    return opened, first


def said(result: RunResult) -> str:
    assert result.text is not None
    return result.text


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("approved", [False, True])
def test_the_next_turn_is_told_what_was_answered(shop: Workshop, approved: bool, fresh: bool) -> None:
    opened, first = answered(shop, approved=approved)

    told = opened.resume(first.session_id, f"{NOTED}\n{ASKED}", fresh=fresh)

    assert f"{NOTED}: from the prompt: > {NOTE}" in said(told)
    assert f"{ASKED}: from the prompt: > {WHAT}" in said(told)
    verdict = "approved" if approved else "denied"
    assert f"{verdict} by ada" in shop.prompts(told.provider_session_id)[-1]


def test_a_denial_without_a_note_says_that_there_is_no_reason(shop: Workshop) -> None:
    opened, first = answered(shop, approved=False, note=None)

    told = opened.resume(first.session_id, "RECALL reason")

    assert "no reason was given" in said(told)


def test_it_is_told_once(shop: Workshop) -> None:
    opened, first = answered(shop)
    opened.resume(first.session_id, "SAY done")

    later = opened.resume(first.session_id, "SAY more")

    assert NOTE not in shop.prompts(later.provider_session_id)[-1]


def test_a_turn_that_was_never_answered_does_not_use_it_up(shop: Workshop) -> None:
    opened, first = answered(shop)
    assert not opened.resume(first.session_id, "FAIL 400 strange").ok

    again = opened.resume(first.session_id, NOTED)

    assert f"> {NOTE}" in said(again)


def test_the_very_first_turn_is_told_too(shop: Workshop) -> None:
    opened = shop.open()
    session = opened.create("terraform-architect")
    opened.approve(opened.request_approval(session.id, WHAT).id, NOTE)

    first = opened.resume(session.id, NOTED, provider="scripted", cwd=str(shop.work_dir))

    assert f"> {NOTE}" in said(first)


def test_a_question_that_nobody_answered_in_time_is_told(shop: Workshop) -> None:
    opened, first = shop.open(), shop.begin()
    until = opened.request_approval(first.session_id, WHAT, expires=0.001).expires_at
    assert until is not None
    while opened.store.now() < until:
        pass
    opened.update(first.session_id, phase="executing")

    told = opened.resume(first.session_id, ASKED)

    assert f"> {WHAT}" in said(told)
    assert "expired" in shop.prompts(told.provider_session_id)[-1]


def test_the_packet_shows_it_until_it_was_told(shop: Workshop) -> None:
    opened, first = answered(shop)
    (shown,) = opened.packet(first.session_id).answers
    assert (shown.what, shown.verdict, shown.by, shown.note) == (WHAT, "approved", "ada", NOTE)

    opened.resume(first.session_id, "SAY done")

    assert opened.packet(first.session_id).answers == ()

"""Forks, and the catch-up that forks and resumed sessions are told."""

from typing import Any

import pytest

from holdfast.domain.conversations import SeenTurns
from holdfast.domain.decisions import Fork, Fresh, Reason, Resume
from holdfast.domain.pointers import ProviderSession
from tests.unit.builders import (
    RECORDED_ID,
    Situation,
    a_fork_source,
    a_pointer,
    a_transcript,
    capabilities,
    said,
    some_facts,
)


def test_a_source_in_good_order_is_forked_and_not_resumed() -> None:
    decision = Situation(a_fork_source()).decide()

    assert isinstance(decision, Fork)
    assert decision.provider_session_id == RECORDED_ID


def test_the_same_pointer_of_a_session_of_its_own_is_resumed() -> None:
    assert isinstance(Situation(a_pointer()).decide(), Resume)


@pytest.mark.parametrize(
    ("pointer", "facts", "reason"),
    [
        pytest.param(
            a_fork_source(),
            some_facts(capabilities=capabilities(can_fork=False)),
            Reason.CAPABILITY_MISSING,
            id="provider-cannot-fork",
        ),
        pytest.param(
            a_fork_source(seen=SeenTurns.up_to(5)),
            some_facts(),
            Reason.FORK_POINT_MOVED,
            id="source-went-on-in-our-record",
        ),
        pytest.param(
            a_fork_source(),
            some_facts(transcript=a_transcript(grown=True)),
            Reason.FORK_POINT_MOVED,
            id="source-has-grown-on-disk",
        ),
        pytest.param(
            a_fork_source(),
            some_facts(provider_session=ProviderSession(held_by="agent-parent")),
            Reason.FORK_POINT_MOVED,
            id="source-is-being-written-to",
        ),
    ],
)
def test_a_fork_that_cannot_be_native_takes_the_context_along(
    pointer: Any, facts: Any, reason: Reason
) -> None:
    decision = Situation(pointer, facts=facts).decide()

    assert said(decision) == ("fresh", reason)
    assert isinstance(decision, Fresh)
    assert decision.provider_session_id is None


@pytest.mark.parametrize(
    ("pointer", "facts"),
    [
        (a_fork_source(seen=SeenTurns.up_to(9)), {}),
        (a_fork_source(), {"transcript": a_transcript(grown=True)}),
        (a_fork_source(), {"provider_session": ProviderSession(held_by="agent-parent")}),
    ],
    ids=["further-in-our-record", "grown-on-disk", "being-written-to"],
)
def test_a_provider_that_forks_at_a_turn_does_not_mind_that_the_source_went_on(
    pointer: Any, facts: dict[str, Any]
) -> None:
    able = capabilities(can_fork_at_turn=True)

    assert isinstance(Situation(pointer, facts=some_facts(capabilities=able, **facts)).decide(), Fork)


def test_a_resume_needs_no_fork() -> None:
    able = capabilities(can_fork=False)

    assert isinstance(Situation(facts=some_facts(capabilities=able)).decide(), Resume)


def test_a_fork_needs_no_resume() -> None:
    able = capabilities(can_resume=False)

    assert isinstance(Situation(a_fork_source(), facts=some_facts(capabilities=able)).decide(), Fork)


def test_a_lock_on_the_source_does_not_hold_up_its_fork() -> None:
    assert isinstance(Situation(a_fork_source(), facts=some_facts(lock_free=False)).decide(), Fork)


@pytest.mark.parametrize(
    ("seen", "seq", "catch_up"),
    [
        ("1-4", 5, ()),
        ("1-4", 8, ((5, 7),)),
        ("1-2,5", 9, ((3, 4), (6, 8))),
        ("3-4", 5, ((1, 2),)),
        ("", 4, ((1, 3),)),
        ("1-9", 5, ()),
        ("", 1, ()),
    ],
    ids=[
        "all-seen",
        "others-went-on",
        "between-and-behind",
        "from-the-start",
        "nothing-seen",
        "more-seen",
        "first-turn",
    ],
)
def test_turns_that_the_provider_has_not_seen_are_told_and_do_not_stop_a_resume(
    seen: str, seq: int, catch_up: tuple[tuple[int, int], ...]
) -> None:
    situation = Situation(a_pointer(seen=SeenTurns.parse(seen)), facts=some_facts(seq=seq))

    decision = situation.decide()

    assert isinstance(decision, Resume)
    assert decision.catch_up == catch_up


def test_a_fork_catches_up_as_well() -> None:
    decision = Situation(a_fork_source(fork_seq=6), facts=some_facts(seq=7)).decide()

    assert isinstance(decision, Fork)
    assert decision.catch_up == ((5, 6),)


@pytest.mark.parametrize(
    ("seen", "fork_seq", "catch_up"),
    [("1-9", 4, ((5, 6),)), ("1-2,4-9", 5, ((3, 3), (6, 6))), ("5-9", 4, ((1, 6),)), ("1-9", 0, ((1, 6),))],
)
def test_a_fork_at_a_turn_has_seen_nothing_behind_it(
    seen: str, fork_seq: int, catch_up: tuple[tuple[int, int], ...]
) -> None:
    source = a_fork_source(seen=SeenTurns.parse(seen), fork_seq=fork_seq)
    facts = some_facts(capabilities=capabilities(can_fork_at_turn=True), seq=7)

    decision = Situation(source, facts=facts).decide()

    assert isinstance(decision, Fork)
    assert decision.catch_up == catch_up

"""The sentence that a person reads before a turn starts."""

from typing import Any

import pytest

from holdfast.cli.why import this_turn
from holdfast.domain.decisions import Decision, Fork, Fresh, Outcome, Reason, Resume, Standing, Verdict, Wait
from holdfast.domain.ids import ProviderSessionId
from holdfast.engine.turn_requests import Starting

NATIVE = ProviderSessionId("6a13a176")


def fresh(reason: Reason, standing: Standing = Standing.FAILED, evidence: str = "") -> Fresh:
    return Fresh(reason, (Verdict(reason, standing, Outcome.FRESH, evidence),))


@pytest.mark.parametrize(
    ("decision", "starting", "sentence"),
    [
        (fresh(Reason.NO_POINTER), {"past": 0}, "Starting a new Claude session."),
        (fresh(Reason.NO_POINTER), {"past": 1},
         "Starting a new Claude session; Claude gets the whole history (1 turn)."),
        (Resume(NATIVE, (), ()), {"idle_seconds": 7300.0},
         "Continuing your Claude session from 2 hours ago (turn 12)."),
        (Resume(NATIVE, (), ()), {"idle_seconds": 4.0},
         "Continuing your Claude session of a moment ago (turn 12)."),
        (Resume(NATIVE, ((3, 4),), ()), {}, "Continuing your Claude session (turn 12), with turns 3-4 that it has not seen."),
        (Fork(NATIVE, (), ()), {}, "Forking the Claude session (turn 12)."),
        (fresh(Reason.WORKDIR_CHANGED, evidence="recorded in /old"), {},
         "Starting fresh: the work moved to /srv/shop; Claude gets the whole history (11 turns)."),
        # nobody knows that it moved
        (fresh(Reason.WORKDIR_CHANGED, Standing.MISSING, "the work dir is not recorded"), {},
         "Starting fresh: it is not known whether it worked in this directory (the work dir is not recorded); Claude gets the whole history (11 turns)."),
        (fresh(Reason.HISTORY_CHANGED, evidence="edit of turn 1"), {"left_out": 30},
         "Starting fresh: the history was changed after the earlier session had seen it (edit of turn 1); Claude gets 11 turns of the history, not the other 30."),
    ],
)  # fmt: skip
def test_how_a_turn_starts_is_one_plain_sentence(
    decision: Decision, starting: dict[str, Any], sentence: str
) -> None:
    known = {"turn": 12, "past": 11, "left_out": 0, "idle_seconds": None} | starting

    assert this_turn(decision, Starting(provider="claude", work_dir="/srv/shop", **known)) == sentence


def test_a_turn_that_does_not_start_says_what_it_waits_for() -> None:
    busy = Wait(Reason.BUSY, (Verdict(Reason.BUSY, Standing.FAILED, Outcome.WAIT, "claude, process 812"),))

    assert this_turn(busy).startswith("Waiting: ")
    assert "claude, process 812" in this_turn(busy)

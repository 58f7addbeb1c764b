"""What agents and people are told of a decision: what its guard has seen, and nothing that it has not."""

import pytest

from holdfast.domain.decisions import (
    WORDS,
    Because,
    Fresh,
    Outcome,
    Reason,
    Refuse,
    Standing,
    Verdict,
    because,
)

EVIDENCE = "this is what was seen"


def test_every_reason_has_words() -> None:
    assert set(WORDS) == set(Reason)


@pytest.mark.parametrize("reason", Reason)
def test_a_missing_fact_is_called_missing_and_nothing_is_claimed(reason: Reason) -> None:
    """For every reason: the claim of the guard is not made, whatever it is."""
    why = Because(reason, Standing.MISSING, EVIDENCE)
    assert why.sentence == f"it is not known {WORDS[reason].doubt} ({EVIDENCE})"
    assert WORDS[reason].doubt.split()[0] in ("whether", "which", "what", "how")
    assert why.note == f"{reason} ({EVIDENCE})"


@pytest.mark.parametrize("reason", Reason)
def test_what_was_seen_stands_in_both_sentences(reason: Reason) -> None:
    why = Because(reason, Standing.FAILED, EVIDENCE)
    assert EVIDENCE in why.sentence or WORDS[reason].says_all
    assert why.note == f"{reason} ({EVIDENCE})"
    assert Because(reason).sentence == WORDS[reason].claim


def test_the_words_are_the_deciding_guards() -> None:
    verdicts = (
        Verdict(Reason.FORCE_FRESH, Standing.PASSED),
        Verdict(Reason.CONTEXT_FULL, Standing.MISSING, Outcome.FRESH, "the context window is not recorded"),
        Verdict(Reason.TRANSCRIPT_MISSING, Standing.FAILED, Outcome.FRESH, "it holds nothing"),
    )
    why = because(Fresh(Reason.CONTEXT_FULL, verdicts))
    assert why.sentence == (
        "it is not known how full the earlier session's context window is (the context window is not recorded)"
    )
    assert because(Refuse(Reason.BUSY, ())) == Because(Reason.BUSY)

from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.clock import Instant
from holdfast.domain.approvals import (
    Answer,
    AnswerRefusal,
    Approval,
    ApprovalStatus,
    expiry,
    hash_arguments,
    refusal_of,
)
from holdfast.domain.decisions import Fork, Fresh, Reason, Refuse, Resume, Wait
from holdfast.domain.guards import only_natively
from holdfast.domain.ids import ApprovalId, ConversationId, ProviderSessionId, SessionId
from tests.unit.builders import NOON

ARGUMENTS: dict[str, Any] = {"command": "terraform apply"}


def an_approval(**changes: Any) -> Approval:
    asked = Approval(
        ApprovalId("apr-1"), SessionId("agent-1"), ConversationId("conv-1"), 1, "toolu_1", "Bash", "apply",
        ARGUMENTS, hash_arguments(ARGUMENTS), "nonce", NOON, "claude", None, frozenset(),
        ApprovalStatus.OPEN, None, None, None, None, None,
    )  # fmt: skip
    return replace(asked, **changes)


def an_answer(**changes: Any) -> Answer:
    return replace(Answer(True, "ada", hash_arguments(ARGUMENTS), "nonce"), **changes)


def test_the_hash_is_of_the_canonical_json() -> None:
    told = b'{"a":[1,"\\u00e9"],"b":null}'

    assert hash_arguments({"b": None, "a": [1, "é"]}) == sha256(told).hexdigest()


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.booleans(), min_size=2))
def test_the_order_of_arguments_does_not_matter(arguments: dict[str, Any]) -> None:
    assert hash_arguments(dict(reversed(arguments.items()))) == hash_arguments(arguments)


def test_text_that_no_store_could_keep_has_a_hash_too() -> None:
    assert len(hash_arguments({"text": "\ud800\x00"})) == 64


def test_without_a_time_it_never_expires() -> None:
    assert expiry(NOON, None) is None
    assert expiry(NOON, 1.5) == NOON + 1_500_000
    assert not an_approval().is_expired(Instant(2**62))


@pytest.mark.parametrize("status", [s for s in ApprovalStatus if s is not ApprovalStatus.OPEN])
def test_only_what_is_open_expires(status: ApprovalStatus) -> None:
    assert an_approval(expires_at=NOON).is_expired(NOON)
    assert not an_approval(expires_at=NOON, status=status).is_expired(NOON)


REFUSALS: dict[AnswerRefusal, tuple[dict[str, Any], dict[str, Any], bool]] = {
    AnswerRefusal.OTHER_ARGUMENTS: ({}, {"arguments_hash": "other"}, False),
    AnswerRefusal.OTHER_NONCE: ({}, {"nonce": "other"}, False),
    AnswerRefusal.ANSWERED: ({"status": ApprovalStatus.DENIED}, {}, False),
    AnswerRefusal.CLOSED: ({}, {}, True),
    AnswerRefusal.VOIDED: ({"status": ApprovalStatus.VOIDED}, {}, False),
    AnswerRefusal.NOT_AMONG: ({"answerers": frozenset({"bob"})}, {}, False),
    AnswerRefusal.EXPIRED: ({"expires_at": NOON}, {}, False),
}


def test_every_refusal_has_its_case() -> None:
    assert set(REFUSALS) == set(AnswerRefusal)


@pytest.mark.parametrize("refusal", REFUSALS)
def test_what_does_not_count_has_its_reason(refusal: AnswerRefusal) -> None:
    asked, answered, closed = REFUSALS[refusal]

    found = refusal_of(an_approval(**asked), an_answer(**answered), NOON, closed=closed)

    assert found is refusal


@pytest.mark.parametrize("approved", [True, False])
def test_the_answer_that_was_given_may_be_given_again_whatever_happened_since(approved: bool) -> None:
    given = an_approval(
        status=ApprovalStatus.APPROVED if approved else ApprovalStatus.DENIED,
        expires_at=NOON,
        answerers=frozenset({"bob"}),
    )

    assert refusal_of(given, an_answer(approved=approved), NOON, closed=True) is None


MINE, OTHER = ProviderSessionId("mine"), ProviderSessionId("other")


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (Resume(MINE, (), ()), Resume(MINE, (), ())),
        (Resume(OTHER, (), ()), Refuse(Reason.EXPLICIT_ID, ())),
        (Fork(MINE, (), ()), Refuse(Reason.RESUMABLE, ())),
        (Fresh(Reason.WORKDIR_CHANGED, ()), Refuse(Reason.WORKDIR_CHANGED, ())),
        (Wait(Reason.BUSY, ()), Wait(Reason.BUSY, ())),
        (Refuse(Reason.RIGHTS_WIDER, ()), Refuse(Reason.RIGHTS_WIDER, ())),
    ],
)
def test_an_answer_is_acted_on_natively_or_not_at_all(decision: Any, expected: Any) -> None:
    assert only_natively(decision, MINE) == expected

"""A resumed session gets the rights that were recorded, or fewer, unless more are allowed explicitly."""

import pytest

from holdfast.domain.decisions import Reason, Resume
from holdfast.domain.pointers import NO_RIGHTS, Rights
from tests.unit.builders import WIDER, Situation, a_pointer, a_request, said

RECORDED = Rights(
    "plan", frozenset({"Read", "Grep"}), frozenset({"/srv/modules"}), ("--verbose", "--sandbox")
)


@pytest.mark.parametrize(
    "asked",
    [
        RECORDED,
        Rights("plan", frozenset({"Read"}), frozenset(), ("--verbose", "--sandbox")),
    ],
    ids=["equal", "fewer-tools-and-directories"],
)
def test_the_recorded_rights_or_fewer_are_resumed(asked: Rights) -> None:
    situation = Situation(a_pointer(rights=RECORDED), a_request(rights=asked))

    assert isinstance(situation.decide(), Resume)


@pytest.mark.parametrize(
    "asked",
    [
        Rights("bypassPermissions"),
        Rights(None),
        Rights("plan", allowed_tools=frozenset({"Read", "Bash"})),
        Rights("plan", allowed_tools=frozenset({"Read(*)"})),
        Rights("plan", extra_dirs=frozenset({"/srv/modules/net"})),
        Rights("plan", extra_args=("--verbose",)),
        Rights("plan", extra_args=("--sandbox", "--verbose")),
        Rights("plan", extra_args=("--verbose", "--sandbox", "--yolo")),
    ],
    ids=[
        "another-mode",
        "no-mode",
        "another-tool",
        "a-pattern-that-is-not-literally-there",
        "another-directory",
        "only-some-arguments",
        "arguments-in-another-order",
        "one-argument-more",
    ],
)
def test_whatever_is_not_literally_there_is_refused(asked: Rights) -> None:
    situation = Situation(a_pointer(rights=RECORDED), a_request(rights=asked))

    assert said(situation.decide()) == ("refuse", Reason.RIGHTS_WIDER)


@pytest.mark.parametrize("recorded", [NO_RIGHTS, None], ids=["fewer", "never-recorded"])
def test_wider_rights_can_be_allowed_explicitly(recorded: Rights | None) -> None:
    request = a_request(rights=WIDER, allow_wider_rights=True)

    assert isinstance(Situation(a_pointer(rights=recorded), request).decide(), Resume)

"""A resumed session gets the rights that were recorded, or fewer, unless more are allowed explicitly."""

from dataclasses import replace

import pytest

from holdfast.domain.decisions import Reason, Resume
from holdfast.domain.pointers import NO_RIGHTS, Rights
from tests.unit.builders import WIDER, Situation, a_pointer, a_request, said

RECORDED = Rights(
    "plan",
    frozenset({"Read", "Grep"}),
    frozenset({"/srv/modules"}),
    ("--verbose", "--sandbox"),
    frozenset({"Bash(rm*)", "Bash(git push*)"}),
)


@pytest.mark.parametrize(
    "asked",
    [
        RECORDED,
        Rights("plan", frozenset({"Read"}), frozenset(), ("--verbose", "--sandbox"), RECORDED.approve_tools),
        replace(RECORDED, approve_tools=RECORDED.approve_tools | {"Write"}),
    ],
    ids=["equal", "fewer-tools-and-directories", "more-that-waits"],
)
def test_the_recorded_rights_or_fewer_are_resumed(asked: Rights) -> None:
    situation = Situation(a_pointer(rights=RECORDED), a_request(rights=asked))

    assert isinstance(situation.decide(), Resume)


@pytest.mark.parametrize(
    "asked",
    [
        replace(RECORDED, permission_mode="bypassPermissions"),
        replace(RECORDED, permission_mode=None),
        replace(RECORDED, allowed_tools=frozenset({"Read", "Bash"})),
        replace(RECORDED, allowed_tools=frozenset({"Read(*)"})),
        replace(RECORDED, extra_dirs=frozenset({"/srv/modules/net"})),
        replace(RECORDED, extra_args=("--verbose",)),
        replace(RECORDED, extra_args=("--sandbox", "--verbose")),
        replace(RECORDED, extra_args=("--verbose", "--sandbox", "--yolo")),
        replace(RECORDED, approve_tools=frozenset({"Bash(rm*)"})),
        replace(RECORDED, approve_tools=frozenset({"Bash"})),
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
        "one-pattern-less-that-waits",
        "another-pattern-that-waits",
    ],
)
def test_whatever_is_not_literally_there_is_refused(asked: Rights) -> None:
    situation = Situation(a_pointer(rights=RECORDED), a_request(rights=asked))

    assert said(situation.decide()) == ("refuse", Reason.RIGHTS_WIDER)


@pytest.mark.parametrize("recorded", [NO_RIGHTS, None], ids=["fewer", "never-recorded"])
def test_wider_rights_can_be_allowed_explicitly(recorded: Rights | None) -> None:
    request = a_request(rights=WIDER, allow_wider_rights=True)

    assert isinstance(Situation(a_pointer(rights=recorded), request).decide(), Resume)

import pytest

from holdfast.testing.approval_contract import (
    AnswerContract,
    FindApprovalContract,
    RequestContract,
    WindowContract,
)
from holdfast.testing.deferral_contract import ActOnAnswerContract, DeferContract
from holdfast.testing.leave_approval_contract import LeaveApprovalContract
from holdfast.testing.void_contract import KeptAnswerContract, VoidContract

pytestmark = pytest.mark.usefixtures("watched")


class TestRequest(RequestContract):
    pass


class TestFindApproval(FindApprovalContract):
    pass


class TestAnswer(AnswerContract):
    pass


class TestWindow(WindowContract):
    pass


class TestLeaveApproval(LeaveApprovalContract):
    pass


class TestDefer(DeferContract):
    pass


class TestActOnAnswer(ActOnAnswerContract):
    pass


class TestVoid(VoidContract):
    pass


class TestKeptAnswer(KeptAnswerContract):
    pass

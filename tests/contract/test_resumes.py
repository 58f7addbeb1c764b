import pytest

from holdfast.testing.failure_contract import FailureContract
from holdfast.testing.fallback_contract import FallBackContract
from holdfast.testing.resume_contract import NewestAttemptContract, ResumePolicyContract
from holdfast.testing.writer_contract import ExplicitIdContract, OneWriterContract

pytestmark = pytest.mark.usefixtures("watched")


class TestFailures(FailureContract):
    pass


class TestFallingBack(FallBackContract):
    pass


class TestNewestAttempt(NewestAttemptContract):
    pass


class TestResumePolicy(ResumePolicyContract):
    pass


class TestOneWriter(OneWriterContract):
    pass


class TestExplicitIds(ExplicitIdContract):
    pass

import pytest

from holdfast.testing.retry_contract import TryAgainContract
from holdfast.testing.turn_contract import (
    CancelContract,
    OwnTurnsContract,
    RecordContract,
    SentContract,
    StartContract,
)

pytestmark = pytest.mark.usefixtures("watched")


class TestOwnTurns(OwnTurnsContract):
    pass


class TestSent(SentContract):
    pass


class TestStart(StartContract):
    pass


class TestRecord(RecordContract):
    pass


class TestCancel(CancelContract):
    pass


class TestTryAgain(TryAgainContract):
    pass

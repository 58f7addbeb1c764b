import pytest

from holdfast.testing.retry_contract import TryAgainContract
from holdfast.testing.turn_contract import CancelContract, OwnTurnsContract, RecordContract, StartContract

pytestmark = pytest.mark.usefixtures("watched")


class TestOwnTurns(OwnTurnsContract):
    pass


class TestStart(StartContract):
    pass


class TestRecord(RecordContract):
    pass


class TestCancel(CancelContract):
    pass


class TestTryAgain(TryAgainContract):
    pass

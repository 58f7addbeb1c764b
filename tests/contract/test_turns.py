import pytest

from holdfast.testing.found_turns_contract import OwnTurnsContract, SentContract
from holdfast.testing.retry_contract import TryAgainContract
from holdfast.testing.turn_contract import (
    CancelContract,
    RecordContract,
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

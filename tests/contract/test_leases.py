import pytest

from holdfast.testing.lease_contract import LeaseContract
from holdfast.testing.recovery_contract import RecoveryContract

pytestmark = pytest.mark.usefixtures("watched")


class TestLeases(LeaseContract):
    pass


class TestRecovery(RecoveryContract):
    pass

import pytest

from holdfast.testing.usage_contract import ErrorCountContract, UsageContract

pytestmark = pytest.mark.usefixtures("watched")


class TestUsage(UsageContract):
    pass


class TestErrorCount(ErrorCountContract):
    pass

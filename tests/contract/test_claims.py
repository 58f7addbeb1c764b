import pytest

from holdfast.testing.claim_contract import ClaimContract

pytestmark = pytest.mark.usefixtures("watched")


class TestClaims(ClaimContract):
    pass

import pytest

from holdfast.testing.affinity_contract import AffinityContract

pytestmark = pytest.mark.usefixtures("watched")


class TestAffinity(AffinityContract):
    pass

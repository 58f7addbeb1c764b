import pytest

from holdfast.testing.pin_contract import PinContract
from holdfast.testing.pointer_contract import PointerContract, RetiredContract

pytestmark = pytest.mark.usefixtures("watched")


class TestPointers(PointerContract):
    pass


class TestRetired(RetiredContract):
    pass


class TestPins(PinContract):
    pass

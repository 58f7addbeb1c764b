import pytest

from holdfast.testing.queue_contract import QueueContract

pytestmark = pytest.mark.usefixtures("watched")


class TestQueue(QueueContract):
    pass

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.domain.ids import Workspace
from holdfast.domain.policy import Policy
from holdfast.domain.usage import NO_USAGE
from holdfast.store.contract import Store
from holdfast.store.driver import Driver, Transaction
from holdfast.store.sql_store import SqlStore
from holdfast.testing import (
    epoch_contract,
    fork_contract,
    fork_epoch_contract,
    guard_contract,
    history_contract,
)
from holdfast.testing.builders import a_session_id, a_turn
from holdfast.testing.steps import begin
from tests.contract.conftest import driver_of


class TestHistory(history_contract.HistoryContract):
    pass


class TestEdit(history_contract.EditContract):
    pass


class TestTruncate(history_contract.TruncateContract):
    pass


class TestRetry(history_contract.RetryContract):
    pass


class TestNewGeneration(history_contract.NewGenerationContract):
    pass


class TestFork(fork_contract.ForkContract):
    pass


class TestForkedHistory(fork_contract.ForkedHistoryContract):
    pass


class TestEpochs(epoch_contract.EpochContract):
    pass


class TestCatchUp(epoch_contract.CatchUpContract):
    pass


class TestForkedEpochs(fork_epoch_contract.ForkedEpochContract):
    pass


class TestGuards(guard_contract.GuardContract):
    pass


class Counting:
    """A driver that counts the statements of its transactions."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.statements = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    @contextmanager
    def write(self) -> Iterator[Any]:
        with self._driver.write() as tx:
            yield CountingTransaction(tx, self)


class CountingTransaction:
    def __init__(self, tx: Transaction, counting: Counting) -> None:
        self.now = tx.now
        self._tx = tx
        self._counting = counting

    def __getattr__(self, name: str) -> Any:
        self._counting.statements += 1
        return getattr(self._tx, name)


@pytest.mark.parametrize("at", [None, 2])
def test_a_fork_takes_the_same_statements_however_long_the_history_is(store: Store, at: int | None) -> None:
    counts = []
    for length in (3, 60):
        parent = begin(store)
        for number in range(length):
            store.record_turn(parent.id, a_turn(f"turn {number}"), "done", NO_USAGE)
        counting = Counting(driver_of(store))
        SqlStore(counting, Workspace("default"), Policy()).fork(parent.id, a_session_id(), at=at)
        counts.append(counting.statements)
    assert counts[0] == counts[1] > 0

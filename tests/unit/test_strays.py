"""Which attempts have processes that are nobody's any more, and how those are told from all others."""

from dataclasses import replace

import pytest

from holdfast.domain.turns import Attempt, AttemptStatus, Launch, ProcessMark
from holdfast.engine.running.recovery import stray_group
from holdfast.processes.machine import Machine
from holdfast.processes.table import marker_of
from holdfast.store.contract import Store
from holdfast.store.open import open_store
from tests import steps
from tests.builders import done

WORKSPACE = "default"
HERE = Machine("here", "boot/pids/host")
GROUP = HERE.mark(4242, 1_000_000)


def an_attempt(store: Store, owner: str = "1/1/here/boot/pids/host") -> Attempt:
    """One that was run here, and has ended."""
    session = steps.begin(store)
    steps.enqueue(store, session, "do it")
    claimed = steps.claim(store, session, owner=owner)
    store.launch(claimed.lease, Launch(claimed.decision, GROUP))
    store.finish_turn(claimed.lease, done())
    (attempt,) = store.attempts(claimed.turn.conversation_id, claimed.turn.seq)
    assert marker_of(attempt, WORKSPACE) == marker_of(claimed.lease, WORKSPACE)
    return attempt


@pytest.fixture
def store() -> Store:
    return open_store("sqlite:///:memory:")


@pytest.mark.parametrize("status", [status for status in AttemptStatus if status is not AttemptStatus.OPEN])
def test_what_runs_of_an_attempt_that_is_over_is_to_be_ended(store: Store, status: AttemptStatus) -> None:
    assert stray_group(replace(an_attempt(store), status=status), HERE) == GROUP


@pytest.mark.parametrize(
    "changes",
    [
        {"status": AttemptStatus.OPEN, "ended_at": None},
        {"owner": HERE.this_process()},
        {"process": None},
        {"process": replace(GROUP, machine="there")},
        {"process": replace(GROUP, boot_id="boot/other-pids/host")},
        {"process": replace(GROUP, boot_id="earlier/pids/host")},
    ],
)
def test_what_somebody_else_answers_for_is_not_touched(
    store: Store, changes: dict[str, AttemptStatus | ProcessMark | str | None]
) -> None:
    assert stray_group(replace(an_attempt(store), **changes), HERE) is None  # type: ignore[arg-type]


def test_the_same_ids_in_another_store_or_workspace_make_another_marker(store: Store) -> None:
    attempt = an_attempt(store)

    assert marker_of(attempt, WORKSPACE) != marker_of(attempt, "another")
    assert marker_of(attempt, WORKSPACE) != marker_of(
        replace(attempt, owner="2/2/here/boot/pids/host"), WORKSPACE
    )

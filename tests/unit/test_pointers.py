import pytest

from holdfast.domain.ids import RuntimeId
from holdfast.domain.pointers import Pointer, choose_pointer
from tests.unit.builders import HERE, OTHER_ID, a_pointer

ELSEWHERE = RuntimeId("rt-elsewhere")
NEWEST = a_pointer(provider_session_id=OTHER_ID)


def test_a_pointer_of_the_claiming_runtime_is_taken() -> None:
    assert choose_pointer(a_pointer(), NEWEST, HERE) == a_pointer()


@pytest.mark.parametrize(
    "stored",
    [None, a_pointer(runtime_id=None), a_pointer(runtime_id=ELSEWHERE)],
    ids=["no-pointer", "no-runtime", "another-runtime"],
)
def test_otherwise_the_newest_attempt_of_that_runtime_speaks_for_itself(stored: Pointer | None) -> None:
    assert choose_pointer(stored, NEWEST, HERE) == NEWEST


@pytest.mark.parametrize(
    "newest",
    [None, a_pointer(runtime_id=None), a_pointer(runtime_id=ELSEWHERE)],
    ids=["no-attempt", "no-runtime", "another-runtime"],
)
def test_an_attempt_of_no_known_runtime_replaces_nothing(newest: Pointer | None) -> None:
    stored = a_pointer(runtime_id=RuntimeId("rt-third"))

    assert choose_pointer(stored, newest, HERE) == stored


def test_without_any_pointer_there_is_nothing_to_judge() -> None:
    assert choose_pointer(None, None, HERE) is None

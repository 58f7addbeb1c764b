import pytest

from holdfast.domain.ids import RuntimeId
from holdfast.domain.pointers import Pointer, TranscriptMark, choose_pointer
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


@pytest.mark.parametrize(
    ("turns", "recorded_turns", "expected"),
    [(3, 2, True), (2, 2, False), (None, 2, True), (3, None, True), (None, None, True)],
)
def test_a_file_that_has_grown_has_more_turns_unless_they_were_counted(
    turns: int | None, recorded_turns: int | None, expected: bool
) -> None:
    recorded = TranscriptMark("/file", 10, "a", recorded_turns)

    assert TranscriptMark("/file", 20, "b", turns).has_more_turns_than(recorded) is expected
    assert TranscriptMark("/file", 20, "b", turns).has_more_turns_than(None) is False

import pickle
from collections.abc import Callable
from copy import deepcopy
from dataclasses import FrozenInstanceError, asdict, is_dataclass
from dataclasses import replace as dataclass_replace
from pprint import pformat

import pytest

from holdfast.domain.records import PlainRecord, field, frozen_record, record, replace


class Point(PlainRecord):
    x: int
    y: int = 0


def test_a_field_that_is_not_given_has_its_default() -> None:
    assert (Point(x=1).x, Point(x=1).y) == (1, 0)


def test_records_are_equal_when_all_their_fields_are() -> None:
    assert Point(x=1) == Point(x=1, y=0)
    assert Point(x=1) != Point(x=2)
    assert Point(x=1) != (1, 0)


def test_a_missing_or_strange_field_is_named() -> None:
    with pytest.raises(TypeError, match="Point: \\['x'\\]"):
        Point(y=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Point: \\['z'\\]"):
        Point(x=1, z=1)  # type: ignore[call-arg]


def test_it_shows_what_it_holds() -> None:
    assert repr(Point(x=1)) == "Point(x=1, y=0)"


@record
class Interval:
    """From one place to another."""

    first: int
    last: int = 9
    names: list[str] = field(default_factory=list, hash=False)
    secret: str = field(default="", repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.first > self.last:
            raise ValueError("it ends before it begins")


@record
class Marked(Interval):
    mark: str = ""


def test_a_record_takes_its_fields_by_place_and_by_name() -> None:
    assert Interval(1, 2) == Interval(last=2, first=1)
    assert (Interval(1).last, Interval(1).names) == (9, [])
    with pytest.raises(
        TypeError, match=r"Interval.__init__\(\) missing 1 required positional argument: 'first'"
    ):
        Interval()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'middle'"):
        Interval(1, middle=2)  # type: ignore[call-arg]


def test_two_records_do_not_share_a_default_that_is_made() -> None:
    assert Interval(1).names is not Interval(1).names


def test_a_record_checks_itself_from_the_first_one_on() -> None:
    @record
    class Positive:
        number: int

        def __post_init__(self) -> None:
            if self.number < 0:
                raise ValueError("below zero")

    for _ in range(2):
        with pytest.raises(ValueError, match="below zero"):
            Positive(-1)
    assert Positive(1).number == 1


def test_records_are_compared_and_hashed_by_the_fields_that_say_so() -> None:
    assert Interval(1, 2, secret="a") == Interval(1, 2, secret="b")
    assert Interval(1, 2, ["x"]) != Interval(1, 2)
    assert hash(Interval(1, 2, ["x"])) == hash(Interval(1, 2))
    assert Interval(1, 2) != Marked(1, 2)
    assert Interval(1, 2) != (1, 2)  # type: ignore[comparison-overlap]


def test_a_record_shows_its_fields_but_for_secrets() -> None:
    assert repr(Marked(1, 2, ["x"], "secret", "m")) == "Marked(first=1, last=2, names=['x'], mark='m')"


def test_a_record_is_copied_with_other_values() -> None:
    assert replace(Interval(1, 2), last=3) == Interval(1, 3)


def test_a_record_is_a_dataclass_to_others() -> None:
    marked = Marked(1, 2, ["x"], "secret", "m")
    assert is_dataclass(Marked)
    assert asdict(marked) == {"first": 1, "last": 2, "names": ["x"], "secret": "secret", "mark": "m"}
    assert dataclass_replace(marked, last=3) == replace(marked, last=3)


def test_a_record_too_long_for_a_line_can_be_printed() -> None:
    records = [Interval(0, number) for number in range(20)]
    assert pformat(records, width=20).count("Interval(") == 20


def test_a_record_has_no_other_attributes_than_its_fields() -> None:
    with pytest.raises(AttributeError):
        Interval(1).middle = 2  # type: ignore[attr-defined]


@frozen_record
class Limit:
    seconds: int
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.seconds < 0:
            raise ValueError("below zero")


def test_a_frozen_record_stays_as_it_was_made() -> None:
    limit = Limit(1)
    with pytest.raises(FrozenInstanceError, match="seconds"):
        limit.seconds = -1  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="seconds"):
        del limit.seconds
    assert limit == Limit(1)


def test_a_frozen_record_checks_itself() -> None:
    with pytest.raises(ValueError, match="below zero"):
        Limit(-1)


@pytest.mark.parametrize("copied", [deepcopy, lambda limit: pickle.loads(pickle.dumps(limit))])
def test_a_frozen_record_can_be_copied(copied: Callable[[Limit], Limit]) -> None:
    limit = Limit(1, ("a",))
    assert copied(limit) == limit
    assert copied(limit) is not limit

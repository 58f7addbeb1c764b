import pytest

from holdfast.domain.records import PlainRecord


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

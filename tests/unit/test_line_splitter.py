from hypothesis import given
from hypothesis import strategies as st

from holdfast.processes.process import LineSplitter, Overlong

MAX = 4


def split(*blocks: bytes) -> list[bytes | Overlong]:
    splitter = LineSplitter(MAX)
    lines = [line for block in blocks for line in splitter.feed(block)]
    rest = splitter.rest()
    return lines if rest is None else [*lines, rest]


def test_a_line_may_come_in_pieces() -> None:
    assert split(b"a", b"b\nc", b"\n\n", b"d") == [b"ab", b"c", b"", b"d"]


def test_a_line_of_the_greatest_length_is_whole() -> None:
    assert split(b"1234\n", b"1234") == [b"1234", b"1234"]


def test_a_longer_line_is_told_by_its_size_and_the_next_one_is_whole() -> None:
    assert split(b"123", b"45", b"6\nab\n") == [Overlong(6), b"ab"]


def test_a_last_line_without_its_end_may_be_too_long_as_well() -> None:
    assert split(b"ok\n12345") == [b"ok", Overlong(5)]


@given(st.lists(st.binary(max_size=12)))
def test_how_output_is_cut_into_blocks_does_not_matter(blocks: list[bytes]) -> None:
    whole = b"".join(blocks)
    lines = whole.split(b"\n")
    if not lines[-1]:
        lines.pop()
    assert split(*blocks) == [line if len(line) <= MAX else Overlong(len(line)) for line in lines]

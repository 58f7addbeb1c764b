"""Reading the usage out of a session file that grows, whatever else is in it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.domain.observed import Reading
from holdfast.providers.claude import transcript
from holdfast.providers.claude.transcript import read_usage

Figures = tuple[int, int, int]


def said(message_id: str, tokens: int = 10, **changes: Any) -> bytes:
    """A line of a message that read so many tokens, as many out of the cache, and wrote as many there."""
    usage = {
        "input_tokens": tokens,
        "cache_read_input_tokens": tokens,
        "cache_creation_input_tokens": tokens,
        "output_tokens": 3,
    }
    message = {"id": message_id, "role": "assistant", "model": "claude-opus-5-5", "usage": usage}
    line = {"type": "assistant", "isSidechain": False, "timestamp": "2026-01-08T12:00:00.000Z"}
    return json.dumps(line | {"message": message | changes.pop("message", {})} | changes).encode() + b"\n"


ASKED = b'{"type":"user","message":{"role":"user","content":"the \\"usage\\" of an \\"assistant\\""}}\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "session.jsonl"


def read(file: Path, after: Reading | None = None, since: str = "") -> Reading:
    found = (
        read_usage(str(file), since=since)
        if after is None
        else read_usage(str(file), after.end, after.last_message, since)
    )
    assert found is not None
    return found


def figures(reading: Reading) -> Figures:
    return reading.input_tokens, reading.cached_input_tokens, reading.output_tokens


def test_every_message_counts_once_with_its_last_line(file: Path) -> None:
    file.write_bytes(ASKED + said("one", 1) + said("one", 10) + ASKED + said("two", 20) + said("two", 20))
    reading = read(file)
    assert figures(reading) == (90, 30, 6)
    assert (reading.context_tokens, reading.last_message) == (60, "two")
    assert (reading.start, reading.end) == (0, file.stat().st_size)
    assert reading.is_complete
    assert not reading.replaced


def test_only_what_was_added_is_read_the_next_time(file: Path) -> None:
    file.write_bytes(said("one", 10))
    first = read(file)
    with file.open("ab") as more:
        more.write(said("two", 20))
    second = read(file, first)
    assert figures(second) == (60, 20, 3)
    assert (second.start, second.end) == (first.end, file.stat().st_size)


def test_a_message_whose_lines_come_in_two_readings_counts_once(file: Path) -> None:
    file.write_bytes(said("one", 10))
    first = read(file)
    with file.open("ab") as more:
        more.write(said("one", 10) + said("two", 20))
    assert figures(read(file, first)) == (60, 20, 3)


def test_nothing_new_is_nothing(file: Path) -> None:
    file.write_bytes(said("one"))
    first = read(file)
    again = read(file, first)
    assert figures(again) == (0, 0, 0)
    assert (again.end, again.context_tokens, again.last_message) == (first.end, None, None)


@pytest.mark.parametrize(
    "line",
    [
        said("sub", 1000, isSidechain=True),
        said("made up", 1000, message={"model": "<synthetic>"}),
        said("", 1000),
        said("asked", 1000, type="user"),
        said("no usage", message={"usage": "much"}),
        said("negative", message={"usage": {"input_tokens": -5, "output_tokens": True}}),
        said("huge", message={"usage": {"input_tokens": 10**30, "output_tokens": 1e300}}),
        said("list", message={"id": ["list"]}),
        b'{"type":"assistant","usage":\n',
        b"\x00\xff\xfe assistant usage \n",
        b'["assistant","usage"]\n',
        b'{"a":' * 5000 + b'"assistant" "usage"\n',
        b"\n",
    ],
    ids=lambda line: line[:40].decode(errors="replace"),
)
def test_what_the_main_agent_did_not_spend_does_not_count(file: Path, line: bytes) -> None:
    file.write_bytes(said("one", 10) + line + said("two", 20))
    assert figures(read(file)) == (90, 30, 6)


def test_a_half_written_line_waits_for_its_end(file: Path) -> None:
    line = said("two", 20)
    file.write_bytes(said("one", 10) + line[:-1])
    first = read(file)
    assert (figures(first), first.last_message) == ((30, 10, 3), "one")
    with file.open("ab") as more:
        more.write(b"\n")
    assert figures(read(file, first)) == (60, 20, 3)


@pytest.mark.parametrize(
    "later", [b"", said("new", 5), said("new", 5) * 40], ids=["empty", "shorter", "longer"]
)
def test_a_file_that_is_another_one_is_read_from_its_beginning(file: Path, later: bytes) -> None:
    file.write_bytes(ASKED + said("one", 10))
    first = read(file)
    file.write_bytes(later)
    again = read(file, first)
    assert again.replaced
    assert again.start == first.end
    assert again.end == len(later)
    assert figures(again) == ((15, 5, 3) if later else (0, 0, 0))


def test_a_file_that_ends_earlier_forgets_the_message_it_ended_with(file: Path) -> None:
    file.write_bytes(ASKED + said("one", 10))
    first = read(file)
    file.write_bytes(said("one", 10))
    assert figures(read(file, first)) == (30, 10, 3)


def test_what_a_fork_took_over_was_paid_by_its_parent(file: Path) -> None:
    old, new = "2026-01-08T12:00:00.000Z", "2026-01-08T12:30:00.100Z"
    file.write_bytes(
        said("copied", 1000, timestamp=old) + said("own", 10, timestamp=new) + said("x", timestamp=7)
    )
    assert figures(read(file, since="2026-01-08T12:30:00")) == (30, 10, 3)


def test_a_message_without_figures_says_nothing_of_the_context(file: Path) -> None:
    """Those that a fork takes over out of a compacted session."""
    file.write_bytes(said("one", 10) + said("copied", 0))
    assert read(file).context_tokens == 30


class TestLargeFiles:
    @pytest.fixture(autouse=True)
    def small_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transcript, "MOST", 1000)

    def test_a_file_is_read_in_pieces(self, file: Path) -> None:
        file.write_bytes(b"".join(said(f"m{number}", 10) for number in range(50)))
        readings = [read(file)]
        while not readings[-1].is_complete:
            readings.append(read(file, readings[-1]))
            assert len(readings) < 100
        assert sum(reading.input_tokens for reading in readings) == 50 * 30
        assert readings[-1].end == file.stat().st_size
        assert not any(reading.replaced for reading in readings)

    @pytest.mark.parametrize("size", [999, 1000, 1001, 2000, 12_345])
    def test_a_line_that_is_too_long_is_passed_over(self, file: Path, size: int) -> None:
        file.write_bytes(b"x" * size + b"\n" + said("one", 10))
        first = read(file)
        assert figures(read(file, first)) == (30, 10, 3)

    def test_a_long_line_that_is_being_written_is_waited_for(self, file: Path) -> None:
        file.write_bytes(said("one", 10) + b"x" * 5000)
        first = read(file)
        second = read(file, first)
        assert (second.end, second.replaced) == (first.end, False)
        with file.open("ab") as more:
            more.write(b"\n" + said("two", 20))
        third = read(file, second)
        assert figures(read(file, third)) == (60, 20, 3)


@pytest.mark.parametrize(
    "make",
    [lambda path: None, Path.mkdir, os.mkfifo],
    ids=["missing", "a directory", "a pipe that nobody writes to"],
)
def test_what_is_no_file_cannot_be_read(file: Path, make: Callable[[Path], object]) -> None:
    make(file)
    assert read_usage(str(file)) is None


@pytest.mark.parametrize("path", ["", "a\x00b", "\ud800", "x" * 5000])
def test_what_is_no_path_cannot_be_read(path: str) -> None:
    assert read_usage(path) is None


MESSAGES = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 99)), max_size=20)
DAMAGE = st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"") + b"\n")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=MESSAGES, garbage=DAMAGE, data=st.data())
def test_however_a_file_grows_the_sum_is_that_of_its_messages(
    file: Path, messages: list[tuple[str, int]], garbage: bytes, data: st.DataObject
) -> None:
    runs = [(f"{letter}{number}", tokens) for number, (letter, tokens) in enumerate(messages)]
    lines = [line for message_id, tokens in runs for line in (said(message_id, tokens), garbage)]
    whole = b"".join(lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4))) + [len(whole)]
    offset, counted, total, context = 0, None, 0, 0
    for cut in cuts:
        file.write_bytes(whole[:cut])
        reading = read_usage(str(file), offset, counted)
        assert reading is not None
        assert not reading.replaced
        offset, counted = reading.end, reading.last_message or counted
        total += reading.input_tokens
        context = reading.context_tokens or context
    assert total == sum(3 * tokens for _, tokens in runs)
    assert context == next((3 * tokens for _, tokens in reversed(runs) if tokens), 0)

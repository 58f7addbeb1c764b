"""How an agent's output is taken: what is said in small pieces together, what is said at once without delay."""

import os
from collections.abc import Callable, Iterator

import pytest

from holdfast.processes.process import Output


class Agent:
    """Both ends of its two channels; ``meanwhile`` is what happens while Holdfast gives it a moment."""

    def __init__(self) -> None:
        outputs, errors = os.pipe(), os.pipe()
        self.stdout, self.stderr = os.fdopen(outputs[1], "wb", 0), os.fdopen(errors[1], "wb", 0)
        self.heard = os.fdopen(outputs[0], "rb", 0), os.fdopen(errors[0], "rb", 0)
        self.moments = 0
        self.meanwhile: Callable[[], object] = lambda: None

    def end(self) -> None:
        self.stdout.close()
        self.stderr.close()

    def pause(self, _: float) -> None:
        self.moments += 1
        self.meanwhile()


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    agent = Agent()
    monkeypatch.setattr("holdfast.processes.process.time.sleep", agent.pause)
    yield agent
    for stream in (agent.stdout, agent.stderr, *agent.heard):
        stream.close()


def lines(output: Output) -> list[object]:
    return list(iter(output.next_line, None))


def test_what_follows_a_short_line_closely_is_taken_with_it(agent: Agent) -> None:
    output = Output(*agent.heard)
    agent.meanwhile = lambda: agent.stdout.write(b"two\nthree\n")
    agent.stdout.write(b"one\n")

    output.read(1.0)

    assert lines(output) == [b"one", b"two", b"three"]
    output.close()


def test_an_agent_that_says_much_or_nothing_is_not_waited_for(agent: Agent) -> None:
    output = Output(*agent.heard)

    output.read(0)
    agent.stdout.write(b"x" * 8_000 + b"\n")
    output.read(1.0)

    assert lines(output) == [b"x" * 8_000]
    assert agent.moments == 0
    output.close()


def test_an_agent_that_ends_in_that_moment_has_ended(agent: Agent) -> None:
    output = Output(*agent.heard)
    agent.meanwhile = agent.end
    agent.stdout.write(b"the last\n")

    output.read(1.0)

    assert lines(output) == [b"the last"]
    assert not output.is_open
    output.close()

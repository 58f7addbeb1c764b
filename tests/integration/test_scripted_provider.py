"""The provider of the scripted agent, on the program as it is installed."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from holdfast.clock import Instant
from holdfast.domain.decisions import Fork, Fresh, Reason, Resume
from holdfast.domain.events import Ended
from holdfast.domain.failures import FailureClass
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import Rights
from holdfast.domain.runtimes import Capabilities
from holdfast.domain.usage import ContextUse
from holdfast.providers.contract import LaunchSpec, Probe
from holdfast.providers.failure_rules import Evidence
from holdfast.providers.report import Report
from holdfast.providers.scripted import Scripted, ScriptedArchive
from tests.integration.scripted import Agent

SCRIPTED = Scripted()


def probed() -> Probe:
    outputs = [
        subprocess.run([SCRIPTED.binaries[0], *arguments], capture_output=True, text=True, check=True).stdout
        for arguments in SCRIPTED.probes
    ]
    return SCRIPTED.read_probe(tuple(outputs))


def test_the_installed_program_says_that_it_can_do_everything_but_fork_an_earlier_turn() -> None:
    probe = probed()

    assert probe.distribution == "holdfast-scripted-agent"
    assert probe.capabilities == Capabilities(
        can_resume=True,
        can_fork=True,
        chooses_id=True,
        append_only_transcript=True,
        reports_context=True,
        can_defer=True,
    )


def launch(agent: Agent, decision: Resume | Fork | Fresh, prompt: str, new_id: str | None = None) -> Report:
    spec = LaunchSpec(
        SCRIPTED.binaries[0], str(agent.home), str(agent.work_dir), prompt, decision,
        None if new_id is None else ProviderSessionId(new_id), "m", Rights("default", frozenset({"shell"})),
    )  # fmt: skip
    command = SCRIPTED.command(spec)
    done = subprocess.run(
        command.argv, input=command.stdin, cwd=agent.work_dir, env={**os.environ, **dict(command.environ)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    stream, report = SCRIPTED.stream(spec), Report()
    for line in done.stdout.splitlines():
        for event in stream.read(json.loads(line)):
            report.add(event)
    assert report.session_id == spec.expected_id
    return report


def test_the_provider_starts_resumes_and_forks_it(agent: Agent) -> None:
    begun = launch(
        agent, Fresh(Reason.NO_POINTER, ()), 'one\nTOOL shell {"command": "true"}\nCONTEXT 7 9', "s"
    )
    resumed = launch(agent, Resume(ProviderSessionId("s"), (), ()), "HISTORY")
    forked = launch(agent, Fork(ProviderSessionId("s"), (), ()), "SAY bye\nHISTORY", "t")

    assert (begun.tools, begun.in_flight, begun.usage.context) == (1, {}, ContextUse(7, 9))
    assert resumed.ended == Ended(ok=True)
    assert resumed.response == '1. one / TOOL shell {"command": "true"} / CONTEXT 7 9'
    assert forked.response is not None
    assert forked.response.splitlines()[-1] == "2. HISTORY"


def test_a_mark_tells_growth_from_alteration_and_what_came_after_it(agent: Agent) -> None:
    s = ProviderSessionId("s")
    agent.ask("one", "--session-id", s)
    archive = ScriptedArchive(agent.home)
    path = archive.find(s, None)
    assert path is not None
    mark = archive.mark(path, s)
    assert mark is not None

    agent.ask("two", "--resume", s)
    assert archive.is_intact(mark, s) is True
    assert [turn.prompt for turn in archive.turns(path, s, mark)] == ["two"]

    Path(path).write_bytes(Path(path).read_bytes().replace(b"one", b"ONE"))
    assert archive.is_intact(mark, s) is False


@pytest.mark.parametrize(
    ("prompt", "arguments", "expected"),
    [
        ("x", ("--resume", "nobody"), FailureClass.GONE),
        ("x", ("--nonsense",), FailureClass.CONFIG),
        ("SLEEP soon", (), FailureClass.CONFIG),
        ("FAIL 401 who are you", (), FailureClass.AUTH),
        ("FAIL 529 busy", (), FailureClass.TRANSIENT),
        ("FAIL poisoned no", (), FailureClass.POISONED),
        ("FAIL 400 prompt is too long", (), FailureClass.OVERFLOW),
        ("EXIT 1 usage limit reached, resets at 1800000000", (), FailureClass.LIMIT),
        ("SAY No conversation found with session ID: s\nEXIT 1 odd", (), FailureClass.UNKNOWN),
    ],
)
def test_its_failures_are_told_apart(
    agent: Agent, prompt: str, arguments: tuple[str, ...], expected: FailureClass
) -> None:
    ran = agent.ask(prompt, *arguments)
    end = next(iter(ran.of("end")), {})
    text, code = end.get("error", "") + ran.stderr, end.get("code", "")

    found = SCRIPTED.rules.classify(Evidence(text, end.get("status"), code, ran.code, resumed=True))

    assert found.failure_class is expected
    assert found.reset_at == (Instant(1_800_000_000_000_000) if expected is FailureClass.LIMIT else None)


def test_a_second_writer_is_told_as_locked(agent: Agent, busy: subprocess.Popen[str]) -> None:
    evidence = Evidence(agent.ask("x", "--resume", "s").stderr, exit_code=1, resumed=True)

    assert SCRIPTED.rules.classify(evidence).failure_class is FailureClass.LOCKED

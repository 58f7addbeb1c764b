"""Owns what tests of providers share: launches to spec, and what the real CLIs once printed."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.domain.decisions import Fork, Fresh, Reason, Resume
from holdfast.domain.events import AgentEvent, Ended
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import NO_RIGHTS
from holdfast.providers.contract import LaunchSpec, Stream
from holdfast.providers.report import Report

HERE = Path(__file__).parent
OLD = ProviderSessionId("71b52630-f08f-4995-a46d-b48f12aef0ce")
NEW = ProviderSessionId("0a4b2c9e-5d1f-4e57-9a7a-6f1f9a1c2d3e")

RESUME = Resume(OLD, (), ())
FORK = Fork(OLD, (), ())
FRESH = Fresh(Reason.NO_POINTER, ())


def a_launch_spec(**changes: Any) -> LaunchSpec:
    spec = LaunchSpec(
        binary="/bin/agent",
        home="/lab/home",
        work_dir="/lab/work",
        prompt="go on",
        decision=FRESH,
        new_id=None,
        model=None,
        rights=NO_RIGHTS,
    )
    return replace(spec, **changes)


def recorded(provider: str, case: str) -> list[dict[str, Any]]:
    text = (HERE / "streams" / provider / f"{case}.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def recorded_stderr(provider: str, case: str) -> str:
    text = (HERE / "streams" / provider / f"{case}.meta.json").read_text("utf-8")
    return str(json.loads(text)["stderr"])


def read_all(stream: Stream, lines: Iterable[dict[str, Any]]) -> list[AgentEvent]:
    return [event for line in lines for event in stream.read(line)]


def report_of(events: Iterable[AgentEvent]) -> Report:
    report = Report()
    for event in events:
        report.add(event)
    return report


def the_end(events: Iterable[AgentEvent]) -> Ended:
    ended = report_of(events).ended
    assert ended is not None
    return ended

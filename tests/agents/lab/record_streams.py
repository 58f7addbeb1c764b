"""Owns the recorded streams of the agents, which the tests of the stream readers read.

``python -m tests.agents.lab.record_streams [NAME...]`` records them anew, after a version has changed. Per case
there is what the agent printed, ``CASE.jsonl``, and how it was called and ended, ``CASE.meta.json``.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.agents.lab.install import CACHE, PROGRAMS, Program, install
from tests.agents.lab.laboratory import Laboratory, Run, finish, laboratory
from tests.agents.lab.model_servers.replies import (
    CallTool,
    CutStream,
    EmptyStream,
    Fail,
    Hang,
    Reply,
    Say,
    SlowText,
)

STREAMS = Path(__file__).parents[2] / "unit" / "providers" / "streams"

#: some agents repeat a refused request for minutes; what they print until then is the recording
PATIENCE_SECONDS = 20.0
#: ... and some ask again and again; the beginning of that is enough
RECORDED_LINES = 20

UNKNOWN_SESSIONS = {
    "claude": "00000000-0000-4000-8000-000000000000",
    "codex": "00000000-0000-4000-8000-000000000000",
    "opencode": "ses_0000000000000000000000000000",
    "gemini": "00000000-0000-4000-8000-000000000000",
}


def _plain_turn(lab: Laboratory) -> Run:
    lab.server.script(Say("violet"))
    return lab.turn("colour?")


def _tool_turn(lab: Laboratory) -> Run:
    lab.server.script(lab.agent.shell("echo made by a tool"), Say("done"))
    return lab.turn("prove it", tools=True)


def _failed_tool_turn(lab: Laboratory) -> Run:
    lab.server.script(lab.agent.shell("echo on stderr >&2; exit 3"), Say("it failed"))
    return lab.turn("prove it", tools=True)


def _unprepared_tool_turn(lab: Laboratory) -> Run:
    lab.server.script(lab.agent.shell("touch not-allowed"), Say("I may not"))
    return lab.turn("prove it")


def _resumed_turn(lab: Laboratory) -> Run:
    return lab.turn("again?", resume=lab.session_of(_plain_turn(lab)))


def _forked_turn(lab: Laboratory) -> Run:
    session = lab.session_of(_plain_turn(lab))
    files = sorted(map(str, lab.home.glob(".gemini/tmp/*/chats/*.jsonl")))
    return lab.turn("and now?", fork=files[0] if files else session)


def _resume_of_unknown(lab: Laboratory) -> Run:
    _plain_turn(lab)
    return _resume_in_new_home(lab)


def _resume_in_new_home(lab: Laboratory) -> Run:
    return lab.turn("again?", resume=UNKNOWN_SESSIONS[lab.program.name])


def _interrupted_turn(lab: Laboratory) -> Run:
    hang = Hang("partial")
    lab.server.script(hang)
    arguments = lab.agent.command("colour?")
    with lab.started(arguments) as process:
        hang.await_reached()
        time.sleep(1)  # so that it has read the partial text
        os.killpg(process.pid, signal.SIGINT)
        return finish(process, arguments)


def _always(reply: Reply) -> Callable[[Laboratory], Run]:
    def patient_turn(lab: Laboratory) -> Run:
        lab.server.otherwise(reply)
        arguments = lab.agent.command("colour?")
        with lab.started(arguments) as process:
            lab.server.await_requests(1)
            try:
                return finish(process, arguments, PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return finish(process, arguments)

    return patient_turn


def _background_agent(lab: Laboratory) -> Run:
    """Claude's subagents outlive the answer that started them: the run has a result for each of the two."""
    errand = {"description": "look", "prompt": "look around", "subagent_type": "general-purpose"}
    lab.server.script(CallTool("Agent", errand))
    lab.server.otherwise(lambda request: Say("nothing" if request.texts[0] == errand["prompt"] else "noted"))
    return lab.turn("look around in the background")


def _partial_messages(lab: Laboratory) -> Run:
    lab.server.script(SlowText(("vio", "let"), pause=0.1))
    return lab.run([*lab.agent.command("colour?"), "--include-partial-messages"])


CASES: dict[str, Callable[[Laboratory], Run]] = {
    "turn": _plain_turn,
    "tool": _tool_turn,
    "failed_tool": _failed_tool_turn,
    "tool_with_default_rights": _unprepared_tool_turn,
    "resume": _resumed_turn,
    "fork": _forked_turn,
    "resume_not_found": _resume_of_unknown,
    "resume_in_new_home": _resume_in_new_home,
    "interrupted": _interrupted_turn,
    "http_400": _always(Fail(400, "the laboratory answers 400")),
    "http_401": _always(Fail(401, "the laboratory answers 401")),
    "http_429": _always(Fail(429, "the laboratory answers 429", {"retry-after": "1"})),
    "http_500": _always(Fail(500, "the laboratory answers 500")),
    "http_529": _always(Fail(529, "the laboratory answers 529")),
    "cut_stream": _always(CutStream("partial")),
    "empty_stream": _always(EmptyStream()),
}
CASES_OF_CLAUDE = {"background_agent": _background_agent, "partial_messages": _partial_messages}


def record(program: Program) -> None:
    install(program)
    target = STREAMS / program.name
    target.mkdir(parents=True, exist_ok=True)
    for case, perform in (CASES | (CASES_OF_CLAUDE if program.name == "claude" else {})).items():
        with tempfile.TemporaryDirectory() as folder, laboratory(program, Path(folder)) as lab:
            run = perform(lab)
            neutral = neutralised(lab, Path(folder))
            requests = len(lab.server.requests)
        meta = {
            "version": program.version,
            "argv": [program.name, *map(neutral, run.arguments)],
            "exit_code": run.exit_code,
            "stderr": neutral(run.stderr),
            "requests": requests,
        }
        lines = run.stdout.splitlines(keepends=True)[:RECORDED_LINES]
        (target / f"{case}.jsonl").write_text(neutral("".join(lines)))
        (target / f"{case}.meta.json").write_text(json.dumps(meta, indent=2, ensure_ascii=False) + "\n")
        print(f"{program.name} {case}: exit {run.exit_code}, {len(lines)} lines")


def neutralised(lab: Laboratory, root: Path) -> Callable[[str], str]:
    """Replaces what belongs to this machine and this run: the folders and the server's port."""
    replacements = {
        str(root): "/lab",
        str(root).replace("/", "-").replace("_", "-"): "-lab",
        str(CACHE): "/agents",
        lab.server.url.removeprefix("http://"): "127.0.0.1:1",
    }

    def neutral(text: str) -> str:
        for own, common in replacements.items():
            text = text.replace(own, common)
        return text

    return neutral


if __name__ == "__main__":
    # a shell starts its background jobs with SIGINT ignored, and agents would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in sys.argv[1:] or PROGRAMS:
        record(PROGRAMS[name])

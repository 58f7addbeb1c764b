"""Owns the recorded input of Claude Code's hooks, which the tests of our hooks read.

``python -m tests.agents.lab.record_hooks`` records it anew, after a version has changed: ``CASE.json`` is what a
hook was given on its standard input, ``CASE.meta.json`` what the CLI kept beside the subagent's transcript then.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.agents.lab.hook_notes import HookNotes, Note
from tests.agents.lab.install import PROGRAMS, install
from tests.agents.lab.laboratory import Laboratory, laboratory
from tests.agents.lab.model_servers.replies import CallTool, Say
from tests.agents.lab.record_streams import neutralised

RECORDED = Path(__file__).parents[2] / "contract" / "recorded" / "hooks"
ERRAND = {"description": "look", "prompt": "look around", "subagent_type": "general-purpose"}


def record() -> None:
    program = PROGRAMS["claude"]
    install(program)
    RECORDED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, laboratory(program, Path(folder)) as lab:
        notes = HookNotes(Path(folder) / "notes")
        settings = lab.home / ".claude" / "settings.json"
        settings.parent.mkdir()
        settings.write_text(json.dumps(notes.settings()))
        neutral = neutralised(lab, Path(folder))
        for case, note in _cases(lab, notes):
            _write(f"{case}.json", neutral(json.dumps(note["given"], indent=2)))
            if note.get("meta"):
                _write(f"{case}.meta.json", neutral(json.dumps(note["meta"], indent=2)))


def _cases(lab: Laboratory, notes: HookNotes) -> Iterator[tuple[str, Note]]:
    lab.server.script(Say("violet"))
    session = lab.session_of(lab.turn("colour?"))
    begun, stopped, ended = notes.take()
    yield from (("session_start_startup", begun), ("stop", stopped), ("session_end", ended))

    lab.turn("again?", resume=session)
    yield "session_start_resume", notes.take()[0]
    lab.turn("and now?", fork=session)
    yield "session_start_fork", notes.take()[0]

    lab.turn("/compact", resume=session)
    _, before, summarised, *_, after, _ = notes.take()
    # the summary is written by an agent of its own, which no tool call started
    yield from (("pre_compact", before), ("subagent_stop_compact", summarised))
    yield "session_start_compact", after

    lab.turn("/clear", resume=session)
    _, left, cleared, _ = notes.take()
    yield from (("session_end_clear", left), ("session_start_clear", cleared))

    yield from _subagent(lab, notes, "async", ERRAND)
    yield from _subagent(lab, notes, "sync", ERRAND | {"run_in_background": False})


def _subagent(
    lab: Laboratory, notes: HookNotes, kind: str, errand: Mapping[str, object]
) -> Iterator[tuple[str, Note]]:
    lab.server.script(CallTool("Agent", errand))
    lab.server.otherwise(lambda request: Say("nothing" if request.texts[0] == errand["prompt"] else "noted"))
    lab.turn("look around, by an agent")
    by_event = {note["given"]["hook_event_name"]: note for note in notes.take()}
    yield f"pre_tool_use_agent_{kind}", by_event["PreToolUse"]
    yield f"subagent_stop_{kind}", by_event["SubagentStop"]


def _write(name: str, text: str) -> None:
    (RECORDED / name).write_text(text + "\n")
    print(name)


if __name__ == "__main__":
    record()

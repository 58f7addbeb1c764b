"""Owns noting what Claude Code gives its hooks: a command that keeps each input, and reading what was kept."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

EVENTS = ("SessionStart", "PreToolUse", "SubagentStop", "Stop", "PreCompact", "SessionEnd")

#: keeps its input as a file, named by when it came; of a subagent also what the CLI says about it at that time
NOTE = """\
import json, sys, time
from pathlib import Path
folder, given = Path(sys.argv[1]), json.load(sys.stdin)
note = {"given": given, "arguments": sys.argv[2:]}
if "agent_transcript_path" in given:
    meta = Path(given["agent_transcript_path"]).with_suffix(".meta.json")
    note["meta"] = json.loads(meta.read_text()) if meta.exists() else None
number = time.monotonic_ns()
(folder / f"{number}.part").write_text(json.dumps(note))
(folder / f"{number}.part").rename(folder / f"{number}.json")
"""

Note = dict[str, Any]


class HookNotes:
    """What hooks were given, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "note.py").write_text(NOTE)

    @property
    def command(self) -> str:
        """For a shell; what is written behind it is kept as the note's ``arguments``."""
        return shlex.join([sys.executable, "-I", str(self._folder / "note.py"), str(self._folder)])

    def settings(self) -> dict[str, Any]:
        """Claude Code's, with this command for every event."""
        entry = {"hooks": [{"type": "command", "command": self.command}]}
        return {"hooks": {event: [entry] for event in EVENTS}}

    def take(self) -> list[Note]:
        """All that came since the last time, in order."""
        files = sorted(self._folder.glob("*.json"), key=lambda file: int(file.stem))
        notes = [json.loads(file.read_text()) for file in files]
        for file in files:
            file.unlink()
        return notes

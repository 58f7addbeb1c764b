"""Draws docs/terminal.svg: a real run of the command on a terminal of 80 columns, as a person sees it.

    .venv/bin/python docs/generate_terminal.py

The commands run in an empty home with the agent that comes with Holdfast. Only their output is drawn.
"""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyte
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

PICTURE = Path(__file__).parent / "terminal.svg"
COLUMNS = 80
COMMANDS = (
    'holdfast run -p scripted -n shop "SAY The bug is in parser.py"',
    """holdfast resume shop 'TOOL shell {"command": "date > fixed; sleep 99"}' &""",
    "kill -9 $!                            # a power cut",
    "rm ~/.scripted-agent/sessions/*       # and the agent's memory is gone",
    "holdfast resume shop                  # the turn that was cut off",
    'holdfast resume shop "RECALL parser"',
    "holdfast list",
)
#: what a command needs beside itself: waiting for the moment that it is about
_ALSO = {
    COMMANDS[1]: "until [ -s fixed ]; do sleep 0.05; done",
    COMMANDS[2]: "wait $! 2>/dev/null",
}
_THEME = TerminalTheme(
    (24, 26, 31),
    (220, 223, 228),
    [(40, 44, 52), (224, 108, 117), (152, 195, 121), (229, 192, 123), (97, 175, 239), (198, 120, 221),
     (86, 182, 194), (220, 223, 228)],
    [(120, 126, 138), (224, 108, 117), (152, 195, 121), (229, 192, 123), (97, 175, 239), (198, 120, 221),
     (86, 182, 194), (255, 255, 255)],
)  # fmt: skip
#: as pyte calls them, in the order of their codes
_COLOURS = ("black", "red", "green", "brown", "blue", "magenta", "cyan", "white")
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
#: rich's own template would load a font from another host
_SVG = f"""<svg class="rich-terminal" viewBox="0 0 {{width}} {{height}}" xmlns="http://www.w3.org/2000/svg">
<style>
.{{unique_id}}-matrix {{{{ font-family: {_FONT}; font-size: {{char_height}}px; line-height: {{line_height}}px; }}}}
.{{unique_id}}-title {{{{ font-family: {_FONT}; font-size: 18px; }}}}
{{styles}}
</style>
<defs>
<clipPath id="{{unique_id}}-clip-terminal"><rect x="0" y="0" width="{{terminal_width}}" height="{{terminal_height}}"/></clipPath>
{{lines}}
</defs>
{{chrome}}
<g transform="translate({{terminal_x}}, {{terminal_y}})" clip-path="url(#{{unique_id}}-clip-terminal)">
{{backgrounds}}
<g class="{{unique_id}}-matrix">
{{matrix}}
</g>
</g>
</svg>
"""


def picture() -> str:
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    for command, printed in zip(COMMANDS, _run(), strict=True):
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        if printed.strip():
            console.print(Text.from_ansi(printed.strip("\n")))
    return console.export_svg(title="holdfast", theme=_THEME, code_format=_SVG, unique_id="terminal")


def _run() -> list[str]:
    """What each command leaves on the screen, with its colours."""
    with tempfile.TemporaryDirectory() as folder:
        home, work = Path(folder) / "home", Path(folder) / "shop"
        home.mkdir()
        work.mkdir()
        marks = [f"holdfast-picture-{number}" for number in range(len(COMMANDS))]
        script = "\n".join(
            f"{command}\n{_ALSO.get(command, ':')}\necho {mark}"
            for command, mark in zip(COMMANDS, marks, strict=True)
        )
        screen = _on_a_terminal(script, home, work)
    parts = []
    for mark in marks:
        part, _, screen = screen.partition(mark)
        parts.append(part)
    return parts


def _on_a_terminal(script: str, home: Path, work: Path) -> str:
    ours, its = pty.openpty()
    environ = {
        "HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.defpath}", "LANG": "C.UTF-8",
        "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": "50",
    }  # fmt: skip
    process = subprocess.Popen(
        ["bash", "-c", script],
        stdin=its,
        stdout=its,
        stderr=its,
        cwd=work,
        env=environ,
        start_new_session=True,
    )
    os.close(its)
    printed = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other side is closed: everything has ended
            break
        if not part:
            break
        printed += part
    process.wait()
    os.close(ours)
    return _settled(printed.decode(errors="replace"))


def _settled(printed: str) -> str:
    """The lines as they are in the end: a line that was written over, such as the status line, is left out."""
    screen = pyte.Screen(COLUMNS, 400)
    pyte.Stream(screen).feed(printed)
    lines = []
    for number in range(screen.lines):
        row = screen.buffer[number]
        width = max((x + 1 for x in range(COLUMNS) if row[x].data.strip()), default=0)
        lines.append("".join(_coloured(row[x]) for x in range(width)))
    return "\n".join(lines)


def _coloured(char: Any) -> str:
    codes = [code for is_on, code in ((char.bold, "1"), (char.italics, "3"), (char.underscore, "4")) if is_on]
    name = char.fg.removeprefix("bright")
    if name in _COLOURS:
        codes.append(str((30 if name == char.fg else 90) + _COLOURS.index(name)))
    return f"\x1b[{';'.join(codes)}m{char.data}\x1b[0m" if codes else str(char.data)


if __name__ == "__main__":
    PICTURE.write_text(picture(), "utf-8")

"""Owns the bare reader: the least that anyone could write to hear an agent.

It starts the command, reads line by line, parses each line, and keeps nothing. It imports nothing of
Holdfast, and nothing of the benchmark, so that it can be weighed.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path


def read(command: list[str], prompt: str, work_dir: Path, environ: Mapping[str, str]) -> None:
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=work_dir, env=environ
    ) as agent:
        assert agent.stdin
        assert agent.stdout
        agent.stdin.write(prompt.encode())
        agent.stdin.close()
        for line in agent.stdout:
            json.loads(line)

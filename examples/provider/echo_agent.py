"""Owns a small agent that repeats what it is told, and remembers its sessions: one file of JSON lines each."""

from __future__ import annotations

import argparse
import json
import os
import sys
import uuid
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser("echo-agent")
    parser.add_argument("--version", action="version", version="echo-agent 1.0")
    parser.add_argument("--session-id", help="begin a session with this id")
    parser.add_argument("--resume", help="continue the session with this id")
    parser.add_argument("--model", help="accepted, and ignored")
    parser.add_argument("--interactive", action="store_true", help="talk to a person")
    parser.add_argument("--loud", action="store_true", help="answer in capital letters")
    arguments = parser.parse_args()
    home = Path(os.environ.get("ECHO_HOME") or Path.home() / ".echo")
    session_id = arguments.resume or arguments.session_id or str(uuid.uuid4())
    file = home / f"{session_id}.jsonl"
    if arguments.resume and not file.is_file():
        sys.exit(f"no session {session_id}")
    before = len(file.read_text().splitlines()) if file.is_file() else 0
    prompt = sys.stdin.read()
    answer = f"turn {before + 1}: {prompt.strip().splitlines()[-1]}"
    if arguments.loud:
        answer = answer.upper()
    _print({"session": session_id})
    _print({"say": answer})
    home.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        lines.write(json.dumps({"turn": str(uuid.uuid4()), "prompt": prompt, "answer": answer}) + "\n")
    _print({"done": True})


def _print(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

"""Owns one turn of the scripted agent: its steps, its answer, and calls that wait for a person."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.providers.scripted_agent.memory import Session

WINDOW = 200_000
#: ``plan`` lets no tool run
PERMISSION_MODES = ("default", "plan")
#: the result of a call that the rights do not allow begins with this
DENIED = "permission denied: "
_CHARACTERS_PER_TOKEN = 4
_COST_PER_TOKEN = 0.000001
_MARKER = re.compile(r"^\[holdfast\] turn [0-9]+(?:, attempt [0-9a-f]+)?:(.*)\n", re.MULTILINE)

Event = dict[str, Any]


class Stop(Exception):
    """Ends the process before the turn has ended."""

    def __init__(self, exit_code: int, words: str = "", end: Event | None = None) -> None:
        super().__init__(words)
        self.exit_code = exit_code
        self.words = words  #: for standard error
        self.end = end  #: the terminal line, if there is one


def failure(error: str, status: str = "", words: str = "") -> Stop:
    """Ends the turn with a terminal line. A status that is not a number is a code."""
    number, code = (int(status), "") if status.isdigit() else (None, status)
    return Stop(1, words, {"type": "end", "ok": False, "error": error, "status": number, "code": code})


class Profile(NamedTuple):
    """How the agent was launched."""

    model: str | None
    permission_mode: str
    allowed_tools: tuple[str, ...]  #: empty: all are allowed
    folders: tuple[Path, ...]  #: where files may be written; the first is the work dir
    gate: str | None = None  #: a command that is asked before each tool call

    def forbids(self, tool: str) -> bool:
        return self.permission_mode == "plan" or bool(self.allowed_tools and tool not in self.allowed_tools)

    def may_write(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in self.folders)


class Step(NamedTuple):
    """A directive of the request."""

    name: str
    line: str
    act: Callable[[Turn], None]


class Turn:
    def __init__(
        self, session: Session, prompt: str, profile: Profile, emit: Callable[[Event], None]
    ) -> None:
        self.session = session
        self.number = len(session.prompts) + 1
        self.context, self.request = split_prompt(prompt)
        self.profile = profile
        self.emit = emit
        self.calls = 0
        self.output = ""  #: of the last tool
        self.window: tuple[int, int] | None = None
        self.has_end = True
        self.calls_are_late = False  #: saved at once, reported when they have ended
        self._prompt = prompt
        self._key = str(uuid.uuid4())
        self._remembered = session.size
        self._earlier: list[str] = []  #: said before the turn was deferred
        self._said: list[str] = []
        self._draft = ""

    def run(self, steps: Sequence[Step]) -> None:
        names = {step.name for step in steps}
        save = "NO_SAVE" not in names
        self.calls_are_late = "LATE_CALLS" in names
        self._name(str(uuid.uuid4()) if "OTHER_ID" in names else self.session.id)
        # saved before anything is done: of a turn that dies half-way the prompt is remembered
        self.session.add({"type": "user", "id": self._key, "text": self._prompt}, save=save)
        self._finish(steps, save=save)

    def go_on(self, pending: Pending, steps: Sequence[Step]) -> None:
        """Continues a turn that was deferred. What it said before is part of its answer, and is not repeated."""
        self.number, self.calls = pending.number, pending.calls
        self._key, self._earlier = pending.key, pending.said
        self._name(self.session.id)
        self._finish(steps, save=True)

    def refusal(self, call: ToolCall) -> str | None:
        """Why the call must not run; None if it may. Raises Deferral if a person has to decide."""
        return None if self.profile.gate is None else refusal(self.profile.gate, self.session, call)

    def announce(self, call: ToolCall) -> None:
        if self.profile.gate is not None or self.calls_are_late:
            announce(self.session, call)
        if not self.calls_are_late:
            self.emit({"type": "tool_call", **call._asdict()})

    def report(self, call: ToolCall, output: str, *, is_error: bool) -> None:
        result = {"id": call.id, "output": output, "is_error": is_error}
        if self.calls_are_late:
            self.session.add({"type": "result", "text": "", **result}, save=True)
            self.emit({"type": "tool_call", **call._asdict()})
        self.emit({"type": "tool_result", **result})
        self.output = output

    def _finish(self, steps: Sequence[Step], *, save: bool) -> None:
        try:
            self._take(steps)
        except KeyboardInterrupt:
            self.session.add(self._answer(self._key, complete=False), save=save)
            raise
        except Deferral as deferral:
            call, rest = deferral.call, deferral.rest
            said = [*self._earlier, *self._said]
            remember(self.session, Pending(self._key, self.number, self.calls, call, rest, said))
            self._report(self._remembered)
            self.emit({"type": "deferred", **call._asdict()})
            return
        self.session.add(self._answer(self._key, complete=True), save=save)
        self._report(self._remembered)
        if self.has_end:
            self.emit({"type": "end", "ok": True, "error": "", "status": None, "code": ""})

    def say(self, text: str) -> None:
        """Each text is a line of its own; together they are the answer."""
        piece = self._next(text)
        self._said.append(piece)
        self._draft = ""
        self.emit({"type": "text", "text": piece})

    def write(self, text: str) -> None:
        """Shows the beginning of the next text while it is written."""
        self._draft = self._draft_with(text)
        self.emit({"type": "writing", "text": self._next("")})

    def _next(self, text: str) -> str:
        return ("\n" if self._said else "") + self._draft_with(text)

    def _draft_with(self, text: str) -> str:
        separator = " " if self._draft and text and not self._draft.endswith("\n") else ""
        return f"{self._draft}{separator}{text}"

    def _name(self, session_id: str) -> None:
        profile = {
            "model": self.profile.model,
            "permission_mode": self.profile.permission_mode,
            "allowed_tools": self.profile.allowed_tools,
            "folders": [str(folder) for folder in self.profile.folders],
        }
        self.emit({"type": "session", "session_id": session_id, **profile})

    def _take(self, steps: Sequence[Step]) -> None:
        for number, step in enumerate(steps, start=1):
            try:
                step.act(self)
            except Deferral as deferral:
                deferral.rest = [later.line for later in steps[number:]]
                raise
            except (ValueError, LookupError) as problem:
                raise failure(f"cannot do {step.line[:200]!r}: {problem}", "bad_directive") from None
        if self._draft:
            self.say("")
        if not self._said:
            last = next((line for line in reversed(self.request.splitlines()) if line.strip()), "")
            self.say(f"turn {self.number} of this session: I was told: {last}")

    def _answer(self, key: str, *, complete: bool) -> Event:
        text = "\n".join(filter(None, ("".join(self._earlier), "".join(self._said))))
        return {
            "type": "assistant",
            "id": str(uuid.uuid4()),
            "answers": key,
            "text": text,
            "complete": complete,
        }

    def _report(self, remembered: int) -> None:
        known = remembered // _CHARACTERS_PER_TOKEN
        asked = len(self._prompt) // _CHARACTERS_PER_TOKEN
        answered = sum(map(len, self._said)) // _CHARACTERS_PER_TOKEN
        tokens, window = self.window or (known + asked + answered, WINDOW)
        usage = {
            "input_tokens": known + asked,
            "cached_input_tokens": known,
            "output_tokens": answered,
            "cost_usd": round((asked + answered) * _COST_PER_TOKEN, 9),
        }
        self.emit({"type": "usage", **usage, "context": {"tokens": tokens, "window": window}})


def split_prompt(prompt: str) -> tuple[str, str]:
    """The context, and the current request: everything behind the first line that announces it."""
    marker = _MARKER.search(prompt)
    return ("", prompt) if marker is None else (prompt[: marker.start()], prompt[marker.end() :])


def is_interrupted(prompt: str) -> bool:
    """Does the prompt only say to continue an earlier request that was interrupted?"""
    marker = _MARKER.search(prompt)
    return marker is not None and marker[1].lstrip().startswith("interrupted")


class ToolCall(NamedTuple):
    id: str
    name: str
    input: dict[str, Any]


class Pending(NamedTuple):
    """A turn that ended before a call that waits."""

    key: str  #: of the prompt that it answers
    number: int
    calls: int
    call: ToolCall
    rest: list[str]  #: the lines of the request that come after the call
    said: list[str]


class Deferral(Exception):
    """The call waits for a person, and so does the turn."""

    def __init__(self, call: ToolCall) -> None:
        super().__init__(call.id)
        self.call = call
        self.rest: list[str] = []  #: the lines of the request that come after it


def refusal(gate: str, session: Session, call: ToolCall) -> str | None:
    """Why the call must not run; None if it may. Raises Deferral if a person has to decide."""
    asked = {
        "tool_name": call.name,
        "tool_use_id": call.id,
        "tool_input": call.input,
        "transcript_path": str(session.path),
    }
    # not over a pipe: a gate that ends without reading it would end the agent, too
    with tempfile.TemporaryFile("w+") as given:
        json.dump(asked, given)
        given.seek(0)
        done = subprocess.run(
            ["/bin/sh", "-c", gate], stdin=given, capture_output=True, text=True, check=False
        )
    if done.returncode == 0 and not done.stdout:
        return None
    if done.returncode != 0:
        return done.stderr or f"the gate ended with {done.returncode}"
    answer = json.loads(done.stdout)["hookSpecificOutput"]
    match answer["permissionDecision"]:
        case "allow":
            return None
        case "defer":
            raise Deferral(call)
        case _:
            return str(answer["permissionDecisionReason"])


def announce(session: Session, call: ToolCall) -> None:
    """Saves the message with the call before the gate is asked, because the gate looks for it there."""
    block = {"type": "tool_use", "id": call.id, "name": call.name, "input": call.input}
    message = {"id": f"message-{call.id}", "stop_reason": "tool_use", "content": [block]}
    session.add({"type": "call", "text": "", "message": message}, save=True)


def remember(session: Session, pending: Pending) -> None:
    entry = {**pending._asdict(), "call": pending.call._asdict()}
    session.add({"type": "deferred", "text": "", "pending": entry}, save=True)


def pending_call(session: Session) -> Pending | None:
    """A call can only be continued if it is the last entry of the session."""
    last = session.entries[-1] if session.entries else {}
    if last.get("type") != "deferred":
        return None
    found = last["pending"]
    return Pending(**{**found, "call": ToolCall(**found["call"])})

"""Owns the directives: lines of a request that say what the scripted agent does, one after the other."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

from holdfast.providers.scripted_agent.memory import agent_home
from holdfast.providers.scripted_agent.turn import (
    DENIED,
    Pending,
    Profile,
    Step,
    Stop,
    ToolCall,
    Turn,
    failure,
    is_interrupted,
    split_prompt,
)

CHILD_SECONDS = 300
_BLOCK = 64 * 1024
_LOOK_SECONDS = 0.05


class Directive(NamedTuple):
    usage: str
    meaning: str
    act: Callable[[str, Turn], None]  #: takes the text behind the directive's name, and the turn


def read_steps(prompt: str, earlier: Sequence[str] = ()) -> list[Step]:
    """The directives of the current request. Those of earlier turns, which the context repeats, are not run again.

    The exception is a request to continue an interrupted one that says ``AGAIN``.
    """
    if is_interrupted(prompt):
        begun = next((_steps(asked) for asked in reversed(earlier) if not is_interrupted(asked)), [])
        return begun if any(step.name == "AGAIN" for step in begun) else []
    return _steps(prompt)


def _steps(prompt: str) -> list[Step]:
    steps = []
    for line in map(str.strip, split_prompt(prompt)[1].splitlines()):
        name, _, rest = line.partition(" ")
        directive = DIRECTIVES.get(name)
        if directive is not None and bool(rest) == (" " in directive.usage):
            steps.append(Step(name, line, partial(directive.act, rest)))
    return steps


def pending_steps(pending: Pending) -> list[Step]:
    """The call that waited, then the rest of its request."""
    return [
        Step("TOOL", pending.call.name, partial(_carry_out, pending.call)),
        *read_steps("\n".join(pending.rest)),
    ]


def explain_directives() -> str:
    rows = [f"  {directive.usage:<30}{directive.meaning}" for directive in DIRECTIVES.values()]
    return "\n".join(rows)


def _say(text: str, turn: Turn) -> None:
    turn.say(text)


def _write(text: str, turn: Turn) -> None:
    turn.write(text.replace("\\n", "\n"))


def _repeat(rest: str, turn: Turn) -> None:
    count, _, text = rest.partition(" ")
    for number in range(1, int(count) + 1):
        turn.say(f"{text} {number}")


def _history(_: str, turn: Turn) -> None:
    earlier = turn.session.prompts[: turn.number - 1]
    requests = [" / ".join(split_prompt(prompt)[1].splitlines()) for prompt in earlier]
    listed = [f"{number}. {request}" for number, request in enumerate(requests, start=1)]
    turn.say("\n".join(listed) or "no earlier prompts")


def _recall(word: str, turn: Turn) -> None:
    remembered = "\n".join(entry["text"] for entry in turn.session.entries[:-1])
    for place, text in (("session", remembered), ("prompt", turn.context)):
        for line in text.splitlines():
            # a question is not something to remember, nor is the answer to it
            if word in line and f"RECALL {word}" not in line:
                turn.say(f"RECALL {word}: from the {place}: {line}")
                return
    turn.say(f"RECALL {word}: unknown")


def _tool(rest: str, turn: Turn) -> None:
    name, _, text = rest.partition(" ")
    arguments = json.loads(text or "{}")
    if not isinstance(arguments, dict):
        raise ValueError("a tool's input is an object")
    turn.calls += 1
    call = ToolCall(f"call-{turn.number}-{turn.calls}", name, arguments)
    turn.announce(call)
    _carry_out(call, turn)


def _carry_out(call: ToolCall, turn: Turn) -> None:
    refused = turn.refusal(call)
    output, is_error = _use(call.name, call.input, turn.profile) if refused is None else (refused, True)
    turn.report(call, output, is_error=is_error)


def _output(_: str, turn: Turn) -> None:
    turn.say(turn.output.strip() or "no output")


def _use(name: str, arguments: Mapping[str, str], profile: Profile) -> tuple[str, bool]:
    if profile.forbids(name):
        return f"{DENIED}{name}", True
    if name == "shell":
        return _run(arguments["command"])
    if name == "write":
        path = Path(arguments["path"]).resolve()
        if not profile.may_write(path):
            return f"{DENIED}{path} is outside of the work dir", True
        path.write_text(arguments["text"], "utf-8")
        return f"wrote {path}", False
    return f"no such tool: {name}", True


def _run(command: str) -> tuple[str, bool]:
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.stdout.decode("utf-8", "replace"), done.returncode != 0


def _sleep(seconds: str, _: Turn) -> None:
    time.sleep(float(seconds))


def _await(path: str, _: Turn) -> None:
    while not Path(path).exists():
        time.sleep(_LOOK_SECONDS)


def _hang(_rest: str, _turn: Turn) -> NoReturn:
    while True:
        signal.pause()


def _crash(_rest: str, _turn: Turn) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _exit(rest: str, _turn: Turn) -> NoReturn:
    code, _, message = rest.partition(" ")
    raise Stop(int(code), message)


def _fail(rest: str, _turn: Turn) -> NoReturn:
    status, _, message = rest.partition(" ")
    raise failure(message, status)


def _fail_once(rest: str, turn: Turn) -> None:
    key, _, then = rest.partition(" ")
    done = agent_home(os.environ) / "failed" / re.sub(r"\W", "_", key)
    if not done.exists():
        done.parent.mkdir(parents=True, exist_ok=True)
        done.touch()
        _fail(then, turn)


def _big(size: str, turn: Turn) -> None:
    """Writes the line in pieces, because it may be larger than memory, and does not remember it."""
    left = int(size)
    sys.stdout.write('{"type": "text", "text": "')
    while left > 0:
        sys.stdout.write("x" * min(left, _BLOCK))
        left -= _BLOCK
    sys.stdout.write('"}\n')
    turn.say(f"that were {size} bytes")


def _stderr(text: str, _: Turn) -> None:
    sys.stderr.write(text + "\n")


def _spawn(_: str, turn: Turn) -> None:
    _leave_child(turn, subprocess.DEVNULL)


def _spawn_holding(_: str, turn: Turn) -> None:
    _leave_child(turn, None)


def _leave_child(turn: Turn, output: int | None) -> None:
    child = subprocess.Popen(
        ["/bin/sleep", str(CHILD_SECONDS)],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    turn.say(f"spawned {child.pid}")


def _context(rest: str, turn: Turn) -> None:
    tokens, window = rest.split()
    turn.window = int(tokens), int(window)


def _ignore_term(_rest: str, _turn: Turn) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _no_end(_: str, turn: Turn) -> None:
    turn.has_end = False


def _from_the_start(_rest: str, _turn: Turn) -> None:
    """Concerns the whole turn: the turn looks for it before the first step."""


DIRECTIVES = {
    directive.usage.partition(" ")[0]: directive
    for directive in (
        Directive("SAY text", "answers this", _say),
        Directive(
            "WRITE text", "shows this while it is written, \\n as a new line; SAY adds the end", _write
        ),
        Directive("SAY_NOTHING", "answers with an empty text", _say),
        Directive("REPEAT n text", "answers this n times, numbered, each an event of its own", _repeat),
        Directive("HISTORY", "answers with the earlier requests of the session, numbered", _history),
        Directive("RECALL word", "answers with a line that holds the word, and where it was found", _recall),
        Directive(
            "TOOL name json", 'shell {"command": ...} and write {"path": ..., "text": ...} are real', _tool
        ),
        Directive("LATE_CALLS", "saves each tool call, and reports it when it has ended", _from_the_start),
        Directive("OUTPUT", "answers with what the last tool gave out", _output),
        Directive("SLEEP seconds", "waits", _sleep),
        Directive("AWAIT path", "waits until there is such a file", _await),
        Directive("HANG", "waits for ever", _hang),
        Directive("CRASH", "kills itself with SIGKILL", _crash),
        Directive("EXIT n message", "ends with this exit code, the message on standard error", _exit),
        Directive("FAIL status message", "ends in an error; a status that is no number is a code", _fail),
        Directive("FAIL_ONCE key status message", "the same, only the first time with this key", _fail_once),
        Directive("NO_END", "ends without a terminal line", _no_end),
        Directive("NO_SAVE", "answers and keeps nothing", _from_the_start),
        Directive("AGAIN", "does all of it again when it was interrupted and continues", _from_the_start),
        Directive("OTHER_ID", "says that it runs another session than it was asked to", _from_the_start),
        Directive("BIG bytes", "answers with one line of this size", _big),
        Directive("STDERR text", "says this on standard error", _stderr),
        Directive("SPAWN", f"leaves a process that sleeps {CHILD_SECONDS} s in a session of its own", _spawn),
        Directive("SPAWN_HOLDING", "the same, and it holds on to the agent's output", _spawn_holding),
        Directive("CONTEXT tokens window", "says that so much of the context window is used", _context),
        Directive("IGNORE_TERM", "ignores SIGINT and SIGTERM from here on", _ignore_term),
    )
}

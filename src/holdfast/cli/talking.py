"""Owns the commands for a person's own conversation with an agent: chat and open."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click

from holdfast.cli import output
from holdfast.cli.arguments import session_argument
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.progress import Show, shown, stoppable, tell
from holdfast.cli.running import finish, keywords, run_command, run_options, show_style
from holdfast.engine.result import RunInterrupted, RunResult
from holdfast.errors import HoldfastError, InvalidInput, SessionClosed

#: in any case
_LEAVE = ("quit", "exit")


@run_command(
    "chat",
    "printf 'plan the change\\nquit\\n' | holdfast chat --provider scripted",
    "printf 'try it the other way\\nquit\\n' | holdfast chat --fork deploy",
)
@click.argument("session", metavar="[ID]", required=False)
@click.option("--fork", "forks", is_flag=True, help="Branch off the session, and talk to the branch.")
@click.option("--agent", metavar="NAME", help="Who works, in a new session: a role.")
@click.option("--provider", metavar="NAME", help="claude, codex, opencode, gemini or scripted.")
@run_options
@pass_invocation
def chat(run: Invocation, /, session: str | None, forks: bool, json_stream: bool, **given: Any) -> None:
    """Talk to an agent, a line for each turn.

    It goes on until `quit`, `exit` or the end of the input. With an ID the session goes on, without one a new
    one begins with the first line. Leaving it pauses the session: nothing of it runs, and it can go on at any
    time.
    """
    if forks and session is None:
        raise click.UsageError("--fork needs the ID of a session")
    talk = _Talk(run, None if session is None else str(run.find(session)), forks, json_stream, given)
    if talk.session_id is not None and not forks:
        _require_open(run, talk.session_id)
    result = None
    try:
        for line in _lines():
            result = talk.turn(line)
            if result.approval is not None:
                break  # nothing else of it runs before someone has answered
    finally:
        if talk.called is not None:
            tell(f"paused; go on with: holdfast chat {talk.called}")
    if result is not None:
        finish(result)


class _Talk:
    """The session that is talked to; one that is made here is made with its first line."""

    def __init__(
        self, run: Invocation, session_id: str | None, forks: bool, json_stream: bool, given: dict[str, Any]
    ) -> None:
        self.session_id = session_id
        self.called: str | None = None  #: as a person writes it, once it was talked to
        self._run = run
        self._forks = forks
        self._style = show_style(run, json_stream)
        self._given = given

    def turn(self, line: str) -> RunResult:
        try:
            result = self._answered(line)
        except RunInterrupted as exc:
            result = exc.result
            self._settle(result)
            if not sys.stdin.isatty():
                raise
        except HoldfastError as exc:
            made = exc.details.get("session_id")
            if isinstance(made, str) and made != self.session_id and (self._forks or self.session_id is None):
                self.called = made
            raise
        self._settle(result)
        return result

    def _settle(self, result: RunResult) -> None:
        self.session_id, self.called, self._forks = result.session_id, result.called, False
        self._given["fresh"] = False  # that was for the first turn

    def _answered(self, line: str) -> RunResult:
        holdfast, given = self._run.holdfast, self._given
        with shown(Show.CHAT if self._style is Show.PEOPLE else self._style) as show:
            asked, provider = keywords(given, show), given["provider"]
            if self.session_id is None:
                result = holdfast.run(line, agent=given["agent"], provider=provider, **asked)
            elif self._forks:
                result = holdfast.fork(self.session_id, line, provider=provider, **asked)
            else:
                result = holdfast.resume(self.session_id, line, provider=provider, **asked)
            show.end(result)
        return result


def _require_open(run: Invocation, session_id: str) -> None:
    session = run.holdfast.session(session_id)
    if session.phase.is_final:
        raise SessionClosed(session.id, session.phase.value)


def _lines() -> Iterator[str]:
    if sys.stdin is None:
        raise InvalidInput("input", "standard input is closed")
    while True:
        try:
            line = input("> " if sys.stdin.isatty() and output.is_terminal() else "")
        except EOFError:
            return
        except UnicodeDecodeError as exc:
            raise InvalidInput("input", f"contains invalid UTF-8 at position {exc.start}") from None
        if line.strip().lower() in _LEAVE:
            return
        if line.strip():
            yield line


@command("open", "holdfast open deploy </dev/null")
@session_argument
@pass_invocation
def open_session(run: Invocation, session: str) -> None:
    """Open the agent's own program on a session, in its directory.

    Nobody else writes to the session meanwhile. What was said there is in the history afterwards.
    """
    session_id = run.find(session)
    before = _turns(run, session_id)
    with stoppable():
        exit_code = run.holdfast.open_native(session_id)
    joined = _turns(run, session_id) - before
    tell(
        f"{joined} {'turn' if joined == 1 else 'turns'} joined the history; go on with: holdfast resume {session}"
    )
    click.get_current_context().exit(exit_code)


def _turns(run: Invocation, session_id: str) -> int:
    conversation = run.holdfast.session(session_id).conversation_id
    return run.holdfast.store.get_conversation(conversation).next_seq

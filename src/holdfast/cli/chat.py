"""Owns the command chat: a conversation with an agent, on a terminal with commands that begin with a slash."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import click

from holdfast.cli import output
from holdfast.cli.arguments import complete_session, provider_option
from holdfast.cli.asking import accept_wider, is_interactive
from holdfast.cli.command import Invocation, pass_invocation
from holdfast.cli.listing import project_words
from holdfast.cli.output import tell
from holdfast.cli.progress import Show, shown
from holdfast.cli.running import after_dashes, finish, keywords, run_command, run_options, show_style
from holdfast.domain.ids import check_provider, short_id
from holdfast.engine.result import RunInterrupted, RunResult
from holdfast.errors import HoldfastError, InvalidInput, SessionClosed
from holdfast.escape import one_line

_LONGEST_TITLE = 60
#: words that end a chat, in upper or lower case
_LEAVE = ("quit", "exit", "/quit", "/exit")

_HELP: Final = """\
/why           how the next turn starts, and why
/fork [TEXT]   continue on a fork; this session stays as it is
/model [NAME]  the model of the next turns; without a NAME, shows it
/help          this list
/quit          leave; the session can be continued at any time

Enter sends; Alt-Enter, or a backslash before Enter, begins a new line.
The arrow keys and Ctrl-R find what you typed before, in any chat.
Ctrl-C drops what you typed or stops the running turn; on an empty line it
leaves, as Ctrl-D does."""


@run_command(
    "chat",
    "printf 'plan the change\\nquit\\n' | holdfast chat --provider scripted",
    "printf 'try it the other way\\nquit\\n' | holdfast chat --fork deploy",
)
@click.argument("session", metavar="[ID]", required=False, shell_complete=complete_session)
@click.option(
    "-c", "--last", is_flag=True, help="Continue the open session of this directory that was active last."
)
@click.option("--fork", "forks", is_flag=True, help="Fork the session, and talk to the fork.")
@click.option("--agent", metavar="NAME", help="The agent's role in a new session.")
@provider_option(
    help="The provider: claude, codex, opencode, gemini, scripted or a plugin's; by default the configured one."
)
@run_options
@pass_invocation
def chat(
    run: Invocation, /, session: str | None, last: bool, forks: bool, json_stream: bool, **given: Any
) -> None:
    """Talk to an agent: each line is a turn.

    Ends at `quit`, `exit` or the end of the input. With an ID it continues that session; without one, the first
    line starts a new session. Leaving the chat pauses the session: nothing of it runs, and it can be continued
    at any time.

    On a terminal, what you type can be edited, can have several lines (Alt-Enter), and is kept for the next chat
    unless it holds something that looks like a secret. /help lists the commands.
    """
    if last:
        if session is not None:
            raise click.UsageError("--last takes no ID")
        from holdfast.cli.picker import newest_here

        session = newest_here(run)
    if forks and session is None:
        raise click.UsageError("--fork needs the ID of a session")
    talk(run, session, forks=forks, json_stream=json_stream, given=given)


def talk(
    run: Invocation, session: str | None, *, forks: bool, json_stream: bool, given: dict[str, Any]
) -> None:
    """Talks until the person leaves; ends as the last turn did, and says how to continue."""
    talking = _Talk(run, None if session is None else str(run.find(session)), forks, json_stream, given)
    if talking.session_id is not None and not forks:
        _require_open(run, talking.session_id)
    accept_wider(run, given, after_dashes(), talking.session_id)
    if is_interactive() and talking.is_for_people:
        talking.require_agent()
        talking.say_where()
    result = None
    try:
        for line in _lines(talking):
            result = talking.turn(line)
            if result.approval is not None:
                break  # no other turn of the session runs before the approval is answered
    finally:
        if talking.called is not None:
            tell(f"paused; continue with: holdfast chat {talking.called}")
    if result is not None:
        finish(result)


class _Talk:
    """The session of a chat; a new one is made with the first line."""

    def __init__(
        self, run: Invocation, session_id: str | None, forks: bool, json_stream: bool, given: dict[str, Any]
    ) -> None:
        self.session_id = session_id
        self.called: str | None = None  #: the name or id for the person, after the first turn
        self._run = run
        self._forks = forks
        self._style = show_style(run, json_stream)
        self._given = given

    @property
    def is_for_people(self) -> bool:
        return self._style is Show.PEOPLE

    @property
    def _provider(self) -> str:
        holdfast, given = self._run.holdfast, self._given["provider"]
        if self.session_id is None:
            return check_provider(given or holdfast.policy.run.provider)
        return holdfast.provider_of(holdfast.session(self.session_id), given)

    def require_agent(self) -> None:
        """Raises MissingBinary, or InvalidInput for an unknown provider, before a person has typed anything."""
        self._run.holdfast.agents.get(self._provider)

    def say_where(self) -> None:
        """Says which session, provider and directory the first line goes to."""
        holdfast, known = self._run.holdfast, None
        words = "a new session"
        if self.session_id is not None:
            session = holdfast.session(self.session_id)
            known = holdfast.session_state(session.id).directory
            titled = f" ({one_line(session.title, _LONGEST_TITLE)})" if session.title != session.name else ""
            words = (
                f"{'a fork of ' if self._forks else ''}session {session.name or short_id(session.id)}{titled}"
            )
        place = self._given["cwd"] or known or os.getcwd()  # noqa: PTH109 - as the agents write it
        tell(f"{words}, with {self._provider} in {project_words(os.path.abspath(place), whole=True)}")  # noqa: PTH100

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
        self._given["fresh"] = False  # --fresh is for the first turn only

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

    # --- commands: each returns the text of a turn, if it asks for one ---

    def why(self, _words: str) -> str | None:
        if self.session_id is None:
            tell("nothing was said yet: the first line starts a new session")
            return None
        from holdfast.cli.why import why

        click.get_current_context().invoke(why, session=self.session_id, provider=self._given["provider"])
        if self._forks:
            tell("the next line goes to a fork of this session")
        return None

    def fork(self, words: str) -> str | None:
        if self.session_id is None:
            tell("nothing was said yet: there is nothing to fork")
            return None
        self._forks = True
        if words:
            return words
        name = self._run.holdfast.session(self.session_id).name
        called = self.session_id if name is None else shlex.quote(name)
        tell(f"the next line goes to a fork; to come back: holdfast chat {called}")
        return None

    def model(self, words: str) -> str | None:
        if words:
            self._given["model"] = words
        chosen = self._given["model"] or self._recorded_model()
        tell(
            f"model: {chosen}" if chosen else "model: the provider's default; /model NAME chooses another one"
        )
        return None

    def _recorded_model(self) -> str | None:
        if self.session_id is None:
            return None
        situation = self._run.holdfast.store.situation(self.session_id, self._given["provider"])
        return None if situation.pointer is None else situation.pointer.model

    def help(self, _words: str) -> str | None:
        output.text(_HELP)
        return None


_COMMANDS: Final[dict[str, Callable[[_Talk, str], str | None]]] = {
    "/why": _Talk.why,
    "/fork": _Talk.fork,
    "/model": _Talk.model,
    "/help": _Talk.help,
}
#: a path, such as /etc/hosts, is text for the agent
_LOOKS_LIKE_COMMAND = re.compile(r"/[a-z-]+\Z")


def _command(talking: _Talk, line: str) -> str | None:
    """Returns the text of a turn; None after a command that asks for none."""
    first, _, rest = line.partition(" ")
    if not _LOOKS_LIKE_COMMAND.match(first):
        return line
    if first not in _COMMANDS:
        tell(f"there is no {first}, see /help; a space before it sends it as text")
        return None
    try:
        return _COMMANDS[first](talking, rest.strip())
    except HoldfastError as exc:  # the chat continues: nothing was sent
        tell(exc.message)
        return None


def _require_open(run: Invocation, session_id: str) -> None:
    session = run.holdfast.session(session_id)
    if session.phase.is_final:
        raise SessionClosed(session.id, session.phase.value)


def _lines(talking: _Talk) -> Iterator[str]:
    """The text of each turn, until the person leaves."""
    if sys.stdin is None:
        raise InvalidInput("input", "standard input is closed")
    typed = is_interactive() and talking.is_for_people
    read = _edited() if typed and output.can_draw() else _plain_line
    while True:
        try:
            line = read()
        except EOFError:
            return
        except UnicodeDecodeError as exc:
            raise InvalidInput("input", f"contains invalid UTF-8 at position {exc.start}") from None
        if line.strip().lower() in _LEAVE[: None if typed else 2]:
            return
        text = _command(talking, line) if typed else line
        if text is not None and text.strip():
            yield text


def _plain_line() -> str:
    return input("> " if sys.stdin.isatty() and output.is_terminal() else "")


def _edited() -> Callable[[], str]:
    from holdfast.cli.chat_prompt import ChatPrompt  # loads prompt_toolkit, which is for terminals only

    tell("Enter sends, Alt-Enter adds a line, /help shows more, Ctrl-D leaves")
    return ChatPrompt((*_COMMANDS, "/quit")).read

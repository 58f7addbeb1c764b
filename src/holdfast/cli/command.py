"""Owns what every command has: the global options, the store it works on, standard input, examples in its help."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import AmbiguousId, Forbidden, InvalidInput, NotFound, StoreUnavailable

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.domain.ids import SessionId
    from holdfast.engine.holdfast import Holdfast


_MOST_INPUT = 64 * 1024 * 1024  #: more than any text that a store takes
#: commands that may be the first ones on a store; the others have nothing to do on one that is not there
_BEGINNINGS = frozenset(
    {
        "run",
        "chat",
        "create",
        "enqueue",
        "import",
        "worker",
        "serve",
        "token",
        "hooks",
        "hook",
        "claude",
        "codex",
        "opencode",
        "gemini",
    }
)


@dataclass
class Invocation:
    url: str | None = None
    workspace: str | None = None
    json: bool = False
    _input_taken_by: str | None = field(default=None, init=False)
    _holdfast: Holdfast | None = field(default=None, init=False)

    @property
    def holdfast(self) -> Holdfast:
        """The store, opened when it is first needed and closed when the command ends."""
        if self._holdfast is None:
            from holdfast.engine.default import open_with

            self._refuse_a_mistyped_file()
            opened = open_with(self.settings())
            self._holdfast = click.get_current_context().find_root().with_resource(opened)
        return self._holdfast

    def _refuse_a_mistyped_file(self) -> None:
        """A path that is wrong on the command line would leave an empty store there, and find nothing in it."""
        if self.url is None or not self.url.startswith("sqlite:"):
            return
        from holdfast.store.open import sqlite_path

        path = sqlite_path(self.url)
        if path is None or click.get_current_context().command.name in _BEGINNINGS:
            return
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            problem = "there is no such file (run, chat, create, enqueue and import make a new store)"
            raise StoreUnavailable(str(path), problem) from None
        except OSError:
            return  # to open it says more

    def settings(self) -> Settings:
        from holdfast.config import load_settings
        from holdfast.config_files import current_directory

        flags = {"url": self.url, "workspace": self.workspace}
        return load_settings(overrides=flags, environ=os.environ, cwd=current_directory(os.environ))

    def find(self, given: str) -> SessionId:
        """A session of ours, else one that an agent's own program keeps here, which becomes ours."""
        try:
            return self.holdfast.find(given)
        except AmbiguousId as several:
            if sys.stderr is not None and sys.stderr.isatty():
                from holdfast.cli.listing import tell_candidates

                tell_candidates(self.holdfast, several.candidates)
            raise
        except NotFound as not_ours:
            try:
                brought = self.holdfast.bring(given)
            except NotFound:
                # the agent's files may be gone: the session is here all the same
                owner = self.holdfast.owner_of(given)
                if owner is None:
                    raise not_ours from None
                return owner
        if brought.is_new and sys.stderr is not None:
            from holdfast.cli.output import tell

            turns = {0: "a turn that is not answered yet", 1: "1 turn"}.get(
                brought.turns, f"{brought.turns} turns"
            )
            whose = f"{brought.provider} session {brought.stored.id}"
            tell(f"{whose} is session {brought.session_id} now, with {turns}")
        return brought.session_id

    def catch_up(self, *, looks: bool) -> None:
        """Takes in the sessions that hooks have marked. ``looks``: a person is about to read, so also looks at what the
        agents' own programs have added in this directory."""
        from holdfast.engine.watched import take_in_watched

        take_in_watched(self.holdfast)
        if looks:
            with suppress(Forbidden):  # a reader of a server may look all the same
                self.holdfast.catch_up(os.getcwd())  # noqa: PTH109 - as the agents write it

    def with_piped(self, prompt: str | None, job: str | None = None, *, stdin: bool = False) -> str | None:
        """The prompt, and after it what was piped in, unless an argument or the job file was read from there.

        ``stdin``: standard input is read to its end, whoever else has it.
        """
        from holdfast.cli.piped import is_standard_input, read_piped

        if stdin:
            text = self.read_input("--stdin")
            return "\n\n".join(part for part in (prompt, text) if part) or None
        if self._input_taken_by is not None or (job is not None and is_standard_input(job)):
            return prompt
        piped = read_piped()
        return "\n\n".join(part for part in (prompt, piped) if part) if piped else prompt

    def read_input(self, wanted_by: str) -> str:
        """Returns all of standard input without one newline at its end; it can be read once."""
        if self._input_taken_by is not None:
            raise InvalidInput(wanted_by, f"standard input is already used for {self._input_taken_by}")
        self._input_taken_by = wanted_by
        if sys.stdin is None:
            raise InvalidInput(wanted_by, "standard input is closed")
        data = sys.stdin.buffer.read(_MOST_INPUT + 1)
        if len(data) > _MOST_INPUT:
            raise InvalidInput(wanted_by, f"is larger than {_MOST_INPUT} bytes")
        try:
            return data.decode().removesuffix("\n")
        except UnicodeDecodeError as exc:
            raise InvalidInput(wanted_by, f"contains invalid UTF-8 at position {exc.start}") from None


pass_invocation = click.make_pass_decorator(Invocation, ensure=True)


def _remember(ctx: click.Context, param: click.Parameter, value: object) -> None:
    """Stores a global option; after the command it takes precedence over before the command."""
    if value is not None and value is not False and param.name is not None:
        setattr(ctx.ensure_object(Invocation), param.name, value)


GLOBAL_OPTIONS = (
    click.Option(
        ["--url"],
        metavar="URL",
        expose_value=False,
        callback=_remember,
        help="The store: sqlite:///PATH, postgresql://… or a server, https://….",
    ),
    click.Option(
        ["--workspace"],
        metavar="NAME",
        expose_value=False,
        callback=_remember,
        help="The workspace to work in.",
    ),
    click.Option(
        ["--json"],
        is_flag=True,
        expose_value=False,
        callback=_remember,
        help="Print one JSON object; for an error, too.",
    ),
)


class Command(click.Command):
    """A command with the global options, and with examples in its help."""

    def __init__(self, *args: Any, examples: tuple[str, ...] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *GLOBAL_OPTIONS]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = [p.get_help_record(ctx) for p in super().get_params(ctx) if isinstance(p, click.Option)]
        everywhere = [p.get_help_record(ctx) for p in GLOBAL_OPTIONS]
        for title, records in (("Options", own), ("Global options", everywhere)):
            with formatter.section(title):
                formatter.write_dl([record for record in records if record is not None])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}$ {example}\n")


def command(name: str, *examples: str) -> Callable[[Callable[..., Any]], Command]:
    """Makes a function a command; a test runs each example."""
    return click.command(name, cls=Command, examples=examples)

"""Owns the light entrance: the help, completion, and plain calls of five commands on a SQLite file, with few imports.

Scripts call ``create``, ``get``, ``update``, ``should-resume`` and ``list`` all the time, and loading the whole command
takes longer than everything else that these do. This module has no rule, no message and no format of its own: it
calls what the commands call, and whatever is not plain is left to them, before anything was written.
"""

from __future__ import annotations

import os
import sys
from functools import partial

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.domain.redaction import Json
    from holdfast.domain.sessions import PhaseChange, Session, SessionState
    from holdfast.hooks.light_store import LightStore
    from holdfast.hooks.settings import HookSettings
    from holdfast.store.sql.scope import Scope

FLAG = "flag"  #: an option without a value
TEXT = "text"
JSON = {"--json": ("json", FLAG)}
#: command -> option -> the parameter of the command, and whether it is a flag; a test compares them with the commands
OPTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "create": {
        **JSON,
        "--agent": ("agent", TEXT),
        "--purpose": ("purpose", TEXT),
        "--metadata": ("metadata", TEXT),
        "-n": ("name", TEXT),
        "--name": ("name", TEXT),
        "-p": ("provider", TEXT),
        "--provider": ("provider", TEXT),
    },
    "update": {
        **JSON,
        "--phase": ("phase", TEXT),
        "--metadata": ("metadata", TEXT),
        "--error": ("error", TEXT),
        "--clear-errors": ("clear_errors", FLAG),
        "--summary": ("summary", TEXT),
        "--expect": ("expected", TEXT),
    },
    "should-resume": JSON,
    "get": JSON,
    "list": {
        **JSON,
        "--active-only": ("active_only", FLAG),
        "--agent": ("agent", TEXT),
        "-p": ("provider", TEXT),
        "--provider": ("provider", TEXT),
        "--grep": ("grep", TEXT),
        "--status": ("status", TEXT),
        "--resumable": ("resumable", FLAG),
        "--metadata": ("metadata", TEXT),
        "--sort": ("sort", TEXT),
        "--limit": ("limit", TEXT),
        "--all": ("everything", FLAG),
    },
}
#: the commands that take a session
NAMED = ("update", "should-resume", "get")
#: what one page holds: longer lists are left to the command, which prints them a page at a time
_MOST_LISTED = 500
MOST_COMPLETED = 200
_COMPLETE = "_HOLDFAST_COMPLETE"
#: with one of these, the shell's own rules say what the words are
_SHELL_SIGNS = frozenset("\\'\"#")


class NotPlain(Exception):
    """The command itself has to answer."""


class Call:
    """A command with its options, as far as they are plain."""

    def __init__(self, command: str, session: str, given: Mapping[str, str]) -> None:
        self.command = command
        self.session = session
        self.given = given

    def text(self, name: str) -> str | None:
        return self.given.get(name)

    def flag(self, name: str) -> bool:
        return name in self.given


def answer(arguments: Sequence[str]) -> int | None:
    """Returns the exit code, or None if the whole command must answer; then nothing was written or printed."""
    tell: Callable[[], int | None] | None
    if _COMPLETE in os.environ:
        call, tell = None, _completion()
    elif list(arguments) in (["--help"], ["-h"]):
        call, tell = None, _help()
    else:
        call, tell = parse(arguments), None
    code = 0
    try:
        if call is not None:
            tell = _ask(call)
        if tell is None:
            return None
        code = tell() or 0
        sys.stdout.flush()
    except BaseException as exc:  # noqa: BLE001 - reported as the command itself does
        from holdfast.cli.exit_codes import code_of_error

        return code_of_error(exc, code, arguments)
    return code


def parse(arguments: Sequence[str]) -> Call | None:
    """None unless the command, each option and each value are plain: every doubt is left to the command's own parser."""
    if not arguments or arguments[0] not in OPTIONS:
        return None
    options, given = OPTIONS[arguments[0]], dict[str, str]()
    words = iter(arguments[1:])
    for word in words:
        name, value = "session", word
        if word.startswith("-"):
            flag, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
            name, kind = options.get(flag, ("", ""))
            if not name or (equals and kind == FLAG):
                return None
            if kind == TEXT and not equals:
                value = next(words, "-")
        # a value with a dash may be an option, or stand for standard input; an option that is given twice is unusual
        if name in given or value.startswith("-"):
            return None
        given[name] = value
    session = given.pop("session", "")
    return Call(arguments[0], session, given) if bool(session) is (arguments[0] in NAMED) else None


def _help() -> Callable[[], int | None] | None:
    """None if the terminal has a width for which the help is not kept."""
    from holdfast.cli.overview import HELP

    if sys.stdout is None:
        return None
    text = HELP.get(min(_columns(), max(HELP)))
    return None if text is None else partial(_print, text)


def _columns() -> int:
    """As ``shutil.get_terminal_size`` tells it, which loads much else."""
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told):
        return int(told)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ else -1).columns or 80
    except (OSError, ValueError):
        return 80


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _completion() -> Callable[[], int | None] | None:
    """What the shell is told for the name of a command, or for the session that a command takes first."""
    from holdfast.cli.overview import SHORT, TAKES_SESSION

    shell, is_asked, _ = os.environ[_COMPLETE].partition("_complete")
    words, place = os.environ.get("COMP_WORDS", ""), os.environ.get("COMP_CWORD", "")
    if shell not in ("bash", "zsh", "fish") or not is_asked or _SHELL_SIGNS & set(words + place):
        return None
    typed = words.split()[1:]
    if shell == "fish":
        before = typed[:-1] if place and typed[-1:] == [place] else typed
        beginning = place
    elif place.isdecimal():
        before, beginning = typed[: int(place) - 1], "".join(typed[int(place) - 1 : int(place)])
    else:
        return None
    if beginning and not beginning[0].isalnum():
        return None  # an option
    if not before:
        items = [(name, told) for name, told in SHORT.items() if name.startswith(beginning)]
        return partial(_print, _completed(shell, items))
    if len(before) == 1 and before[0] in TAKES_SESSION and sys.stdout is not None:
        return _ask(Call("complete", beginning, {"shell": shell}))
    return None


def _completed(shell: str, items: Sequence[tuple[str, str]]) -> str:
    """As click writes it."""
    if shell == "bash":
        return "\n".join(f"plain,{word}" for word, _ in items)
    if shell == "fish":
        return "\n".join(f"plain,{word}\t{told}" if told else f"plain,{word}" for word, told in items)
    return "\n".join(
        "plain\n{}\n{}".format(word.replace(":", r"\:") if told else word, told or "_")
        for word, told in items
    )


def _ask(call: Call) -> Callable[[], int | None] | None:
    """What is left to do: to print the answer, and to return the exit code. None: the command itself has to answer."""
    if sys.stdout is None or sys.stderr is None:
        return None
    import sqlite3

    from holdfast.errors import HoldfastError
    from holdfast.hooks.light_store import CommitFailed, LightStore

    left_to_it = (NotPlain, HoldfastError, OSError, UnicodeError, sqlite3.Error)
    try:
        settings = _settings(call)
    except left_to_it:
        return None
    store = LightStore(settings, _user(), as_it_is=True)
    try:
        return _COMMANDS[call.command](call, store, settings)
    except CommitFailed:
        raise  # the command would do it again, and it may have happened
    except left_to_it:
        return None
    finally:
        store.close()


def _settings(call: Call) -> HookSettings:
    """NotPlain if anything has to be told or done before a store is used, apart from opening it."""
    from holdfast.hooks.process import PARTIAL, RECORD, WATCHED, names_in
    from holdfast.hooks.settings import load_hook_settings

    settings = load_hook_settings(os.environ, _here())
    if settings.notices or settings.path is None or not os.access(settings.path, os.R_OK | os.W_OK):
        raise NotPlain
    news = (RECORD, PARTIAL, WATCHED) if call.command == "list" else (RECORD, PARTIAL)
    if settings.spool is not None and any(name.endswith(news) for name in names_in(settings.spool)):
        raise NotPlain
    return settings


def _here() -> str:
    return os.getcwd()  # noqa: PTH109 - pathlib is not loaded here


def _user() -> str:
    from holdfast.processes.owners import this_user

    return this_user()


def _metadata(call: Call) -> dict[str, Json] | None:
    from holdfast.domain.metadata import parse_metadata

    text = call.text("metadata")
    return None if text is None else parse_metadata(text)


def _find(s: Scope, call: Call) -> str:
    """NotFound and AmbiguousId are told by the command, which may find the session elsewhere."""
    from holdfast.domain.ids import check_id
    from holdfast.domain.inputs import check_name
    from holdfast.store.sql import sessions

    return check_id("session", sessions.resolve(s, check_name("session", call.session)))


def _known(s: Scope, session_id: str) -> tuple[SessionState, tuple[PhaseChange, ...]]:
    from holdfast.store.sql import sessions

    state = sessions.state(s, session_id)
    if state.status == "running":
        raise NotPlain  # the command looks whether what runs it is still there
    return state, sessions.phase_history(s, session_id)


# --- the commands: each is one transaction, and printed after it ---


def _create(call: Call, store: LightStore, _: HookSettings) -> Callable[[], int | None]:
    from holdfast.cli.answers import tell_created
    from holdfast.clock import system_clock
    from holdfast.domain.ids import make_session_id
    from holdfast.domain.sessions import NewSession, check_new_session
    from holdfast.hooks.process import find_project
    from holdfast.store.sql import sessions

    agent = call.text("agent")
    if agent is None:
        raise NotPlain
    new = NewSession(
        id=make_session_id(system_clock(), os.urandom(4)),
        agent=agent,
        purpose=call.text("purpose") or "",
        metadata=_metadata(call) or {},
        name=call.text("name"),
        provider=call.text("provider"),
        project=find_project(os.environ, _here()),
    )
    check_new_session(new)

    def write(s: Scope) -> tuple[Session, SessionState | None]:
        session = sessions.create(s, new)
        return session, sessions.state(s, session.id) if call.flag("json") else None

    made = store.transact(write, writes=True)
    return partial(tell_created, *made)


def _update(call: Call, store: LightStore, _: HookSettings) -> Callable[[], int | None]:
    from holdfast.cli.answers import tell_changed
    from holdfast.domain.sessions import parse_update
    from holdfast.store.sql import lifecycle

    change = parse_update(
        phase=call.text("phase"),
        metadata=_metadata(call),
        error=call.text("error"),
        clear_errors=call.flag("clear_errors"),
        summary=call.text("summary"),
        expected_phase=call.text("expected"),
    )

    def write(s: Scope) -> tuple[Session, tuple[SessionState, tuple[PhaseChange, ...]] | None]:
        session = lifecycle.update(s, _find(s, call), change)
        return session, _known(s, session.id) if call.flag("json") else None

    changed = store.transact(write, writes=True)
    return partial(tell_changed, *changed)


def _get(call: Call, store: LightStore, _: HookSettings) -> Callable[[], int | None]:
    from holdfast.cli import output
    from holdfast.domain.sessions import state_document
    from holdfast.store.sql import sessions

    def read(s: Scope) -> Mapping[str, object]:
        session = sessions.get(s, _find(s, call))
        state, history = _known(s, session.id)
        return state_document(session, history, state)

    document = store.transact(read, writes=False)
    return partial(output.document, document)


def _should_resume(call: Call, store: LightStore, settings: HookSettings) -> Callable[[], int | None]:
    from holdfast.cli.answers import tell_may_continue
    from holdfast.domain.phases import MayContinue, continue_words, may_continue
    from holdfast.store.sql import sessions
    from holdfast.store.sql.session_statements import approval_window

    rules = settings.policy

    def read(s: Scope) -> tuple[MayContinue, str, str]:
        session = sessions.get(s, _find(s, call))
        may = may_continue(session, rules, s.now, approval_window(s, session.id))
        return may, session.id, continue_words(may, session, rules, s.now)

    told = store.transact(read, writes=False)
    return partial(tell_may_continue, *told, as_json=call.flag("json"))


def _list(call: Call, store: LightStore, _: HookSettings) -> Callable[[], int | None]:
    from holdfast.cli import output
    from holdfast.cli.answers import tell_lines, tell_list
    from holdfast.domain.ids import check_provider
    from holdfast.domain.metadata import parse_pairs
    from holdfast.domain.sessions import SessionFilter, SessionStatus
    from holdfast.store.sql import sessions

    provider, status, sort = call.text("provider"), call.text("status"), call.text("sort")
    if output.is_terminal() and not call.flag("json"):
        raise NotPlain
    if status not in (None, *SessionStatus) or sort not in (None, "activity", "created"):
        raise NotPlain
    wanted = SessionFilter(
        active_only=call.flag("active_only"),
        agent=call.text("agent"),
        provider=None if provider is None else check_provider(provider),
        grep=call.text("grep"),
        status=None if status is None else SessionStatus(status),
        resumable=call.flag("resumable"),
        metadata=parse_pairs([call.given["metadata"]] if call.flag("metadata") else []),
        by_activity=sort == "activity",
    )
    limit = None if call.flag("everything") else _limit(call)
    page = store.transact(lambda s: sessions.list_page(s, wanted, limit or _MOST_LISTED, None), writes=False)
    is_all = page.next_cursor is None or len(page.sessions) == limit
    # the command reads on, says why a row cannot be read, or what may be wrong with the provider's name
    if not is_all or page.unreadable or (provider is not None and not page.sessions):
        raise NotPlain
    if status == "interrupted" or any(state.status == "running" for state in page.states.values()):
        raise NotPlain
    if call.flag("json"):
        return partial(tell_list, [page])
    return partial(tell_lines, page)


def _complete(call: Call, store: LightStore, _: HookSettings) -> Callable[[], int | None]:
    from holdfast.cli.answers import completed_sessions
    from holdfast.domain.sessions import SessionFilter
    from holdfast.store.sql import sessions

    wanted = SessionFilter(by_activity=True)
    page = store.transact(lambda s: sessions.list_page(s, wanted, MOST_COMPLETED, None), writes=False)
    items = completed_sessions(page.sessions, call.session)
    return partial(_print, _completed(call.given["shell"], items))


def _limit(call: Call) -> int | None:
    text = call.text("limit")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 5 and 1 <= int(text) <= _MOST_LISTED):
        raise NotPlain
    return int(text)


_COMMANDS: dict[str, Callable[[Call, LightStore, HookSettings], Callable[[], int | None]]] = {
    "create": _create,
    "update": _update,
    "get": _get,
    "should-resume": _should_resume,
    "list": _list,
    "complete": _complete,
}

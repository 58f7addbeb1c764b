"""Owns the request of a turn: the keywords that a run takes, and the checks that every new turn passes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypedDict

from holdfast.domain.guards import not_for_others
from holdfast.domain.ids import ProviderSessionId, check_id, check_provider
from holdfast.domain.inputs import check_name, check_text
from holdfast.domain.records import record, replace
from holdfast.domain.turns import NewTurn, TurnRequest
from holdfast.errors import InvalidInput
from holdfast.store.contract import Store

if TYPE_CHECKING:
    from holdfast.domain.decisions import Decision
    from holdfast.domain.events import AgentEvent
    from holdfast.domain.pointers import Rights
    from holdfast.engine.running.agents import Agent
    from holdfast.providers.contract import Provider


@record
class Starting:
    """What is known of a turn at the moment when its agent starts."""

    provider: str
    turn: int
    work_dir: str
    past: int  #: how many earlier turns the agent is told of, in full or in part
    left_out: int  #: how many it is not told of, for want of room
    idle_seconds: float | None  #: since the provider's own session was last used; None: there is none


#: is called with the decision before anything runs, then with how it starts, and then with every event
Observer: TypeAlias = "Callable[[Decision | Starting | AgentEvent], None]"

_LONGEST_TIMEOUT = 366 * 24 * 3600.0
#: of a turn in the queue: seconds that it may wait before it can start, and its priority, above or below 0
LONGEST_DELAY = 366 * 24 * 3600.0
MOST_PRIORITY = 1000


class RunKeywords(TypedDict, total=False):
    cwd: str | None  #: the directory to work in; None: the session's, else the current one
    model: str | None  #: None: the session's, else the provider's default
    rights: Rights | None  #: None: those of the session's first launch
    fresh: bool  #: start a new provider session, with the whole context
    provider_session_id: str | None  #: this provider session and no other
    allow_wider_rights: bool
    timeout: float | None  #: seconds; None: as configured
    observer: Observer


def ignore(_: Decision | Starting | AgentEvent) -> None:
    """The observer of a run that nobody watches."""


@record
class RunRequest:
    """What a run was asked for: the request, which is recorded with the turn, and how this process runs it."""

    request: TurnRequest
    timeout_seconds: float | None = None
    observer: Observer = ignore


def read_keywords(keywords: RunKeywords, agent: Agent) -> RunRequest:
    """Raises InvalidInput for what this agent cannot be asked for; nothing has been recorded by then.

    Relative directories are relative to the caller's current directory.
    """
    for name in keywords:
        if name not in RunKeywords.__annotations__:
            raise InvalidInput(name, f"is not known; {', '.join(sorted(RunKeywords.__annotations__))} are")
    timeout, model, rights = keywords.get("timeout"), keywords.get("model"), keywords.get("rights")
    named, work_dir = keywords.get("provider_session_id"), keywords.get("cwd")
    allow_wider = keywords.get("allow_wider_rights", False)
    if timeout is not None and not 0 < timeout <= _LONGEST_TIMEOUT:
        raise InvalidInput("timeout", "must be a number of seconds above 0, at most a year")
    if model is not None:
        check_name("model", model)
    if rights is not None:
        check_rights(rights, agent.provider, allow_wider=allow_wider)
        directories = [existing_directory(directory, "extra_dirs") for directory in rights.extra_dirs]
        rights = replace(rights, extra_dirs=frozenset(directories))
        if rights.approve_tools and not agent.runtime.capabilities.can_defer:
            raise InvalidInput("approve_tools", f"not supported by this provider ({agent.provider.name})")
    request = TurnRequest(
        None if work_dir is None else existing_directory(work_dir),
        model,
        rights,
        keywords.get("fresh", False),
        None if named is None else ProviderSessionId(check_id("provider_session_id", named)),
        allow_wider,
    )
    return RunRequest(request, timeout, keywords.get("observer", ignore))


def existing_directory(path: str, field: str = "cwd") -> str:
    """The absolute path of a directory that must exist. Links are not resolved, so that people recognise the path."""
    directory = Path(os.path.expanduser(check_text(field, path)))  # noqa: PTH111 - a ~user nobody knows stays as it is
    if not directory.is_dir():
        raise InvalidInput(field, f"{path} is not a directory")
    return str(directory.absolute())


def require_unowned(store: Store, provider: str, named: ProviderSessionId, session_id: str | None) -> None:
    """Raises Refused if another session owns the provider session that a turn names. Checked before the turn is queued."""
    owner = store.owner_of(provider, named, session_id)
    if owner is not None:
        is_closed = store.get_session(owner).phase.is_final
        raise not_for_others(provider, named, owner, is_closed=is_closed)


def check_turn(store: Store, session_id: str | None, new: NewTurn) -> None:
    """Raises InvalidInput for a turn that must not be queued; ``session_id`` is None for a session that is not begun yet.

    Directories must be absolute, because the worker that runs the turn has another current directory.
    """
    check_text("prompt", new.prompt)
    check_provider(new.provider)
    request = new.request
    if request.model is not None:
        check_name("model", request.model)
    directories = {
        "cwd": (request.work_dir,),
        "extra_dirs": request.rights.extra_dirs if request.rights else (),
    }
    for field, given in directories.items():
        for directory in filter(None, given):
            if not os.path.isabs(check_text(field, directory)):  # noqa: PTH117 - a Path takes ten times as long
                raise InvalidInput(field, f"{directory} must be absolute")
    if request.rights is not None:
        accepted = () if session_id is None else _accepted_arguments(store, session_id, request.rights)
        allow_wider = request.allow_wider_rights or request.rights.extra_args in accepted
        _check_rights(request.rights, new.provider, allow_wider)


def _accepted_arguments(store: Store, session_id: str, rights: Rights) -> frozenset[tuple[str, ...]]:
    """The extra arguments that agents of this session were launched with: they were accepted then, and are accepted again."""
    if not rights.extra_args:
        return frozenset()
    launched = [pointer.rights for pointer in store.pointers(session_id)]
    newest = store.newest_attempt(session_id)
    if newest is not None and newest.process is not None:
        launched.append(newest.rights)
    return frozenset(known.extra_args for known in launched if known is not None)


def _check_rights(rights: Rights, provider: str, allow_wider: bool) -> None:
    """Checks the rights by the rules of their provider. Without the provider, no extra argument is known to be harmless."""
    from holdfast.providers.registry import get_provider, is_provider  # imports the providers

    if is_provider(provider):
        check_rights(rights, get_provider(provider), allow_wider=allow_wider)
    elif rights.extra_args and not allow_wider:
        raise InvalidInput(
            "provider arguments",
            f"nothing is known about those of {provider}; --allow-wider-rights accepts them",
        )


def check_rights(rights: Rights, provider: Provider, *, allow_wider: bool = False) -> None:
    """Raises InvalidInput for rights that the provider cannot have on any machine: directories and the agent's version
    are not looked at.

    ``allow_wider``: arguments that may widen the rights were accepted. Arguments that override a decision never are.
    """
    if rights.permission_mode is not None:
        check_name("permission_mode", rights.permission_mode)
    named = {
        "allowed_tools": rights.allowed_tools,
        "extra_dirs": rights.extra_dirs,
        "arguments": rights.extra_args,
        "approve_tools": rights.approve_tools,
    }
    for field, values in named.items():
        if isinstance(values, str):  # each letter would count as a value
            raise InvalidInput(field, "must be several texts, not one")
        for value in values:
            check_text(field, value)
    if rights.approve_tools:
        from holdfast.hooks.tool_patterns import read_pattern  # most turns need none

        for pattern in rights.approve_tools:
            try:
                read_pattern(pattern)
            except ValueError as exc:
                raise InvalidInput("approve_tools", str(exc)) from None
    provider.check(rights, allow_wider=allow_wider)

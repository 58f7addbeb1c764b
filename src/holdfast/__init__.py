"""Durable sessions for coding agents.

    import holdfast

    session_id = holdfast.create_session("terraform-architect", purpose="approval_workflow")
    holdfast.update_state(session_id, phase="approval")
    holdfast.should_resume(session_id)

The functions work on the default store; ``holdfast.open(url)`` gives everything, on any store.
Names are resolved when they are used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

import sys

# pip refuses to install on an older one, but a checkout can be run by any
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(
        "holdfast needs Python 3.11 or newer; this is Python " + ".".join(map(str, sys.version_info[:3]))
    )

# not from typing, which would be a tenth of what a hook's process costs; type checkers know the name
TYPE_CHECKING = False

if TYPE_CHECKING:
    from holdfast import errors
    from holdfast.domain.approvals import Approval
    from holdfast.domain.pointers import Rights
    from holdfast.domain.runtimes import Capabilities, Runtime
    from holdfast.domain.sessions import Session, SessionFilter, SessionKind, SessionStatus
    from holdfast.domain.turns import Launch, NewTurn, TurnEnd, TurnRequest, TurnStatus
    from holdfast.domain.usage import ContextUse, Usage, UsageReport
    from holdfast.engine.default import (
        AgentSession,
        cleanup_old_sessions,
        create_session,
        finalize_session,
        get_session,
        list_sessions,
        open,
        pre_delegate_hook,
        should_resume,
        update_state,
    )
    from holdfast.engine.explain import Waited
    from holdfast.engine.holdfast import Holdfast
    from holdfast.engine.result import RunInterrupted, RunResult
    from holdfast.errors import HoldfastError

__version__ = "0.1.0"

__all__ = [
    "AgentSession",
    "Approval",
    "Capabilities",
    "ContextUse",
    "Holdfast",
    "HoldfastError",
    "Launch",
    "NewTurn",
    "Rights",
    "RunInterrupted",
    "RunResult",
    "Runtime",
    "Session",
    "SessionFilter",
    "SessionKind",
    "SessionStatus",
    "TurnEnd",
    "TurnRequest",
    "TurnStatus",
    "Usage",
    "UsageReport",
    "Waited",
    "cleanup_old_sessions",
    "create_session",
    "errors",
    "finalize_session",
    "get_session",
    "list_sessions",
    "open",
    "pre_delegate_hook",
    "should_resume",
    "update_state",
]

#: where the names are that are not in ``engine.default``
_ELSEWHERE = {
    "Approval": "domain.approvals",
    "Capabilities": "domain.runtimes",
    "ContextUse": "domain.usage",
    "Holdfast": "engine.holdfast",
    "HoldfastError": "errors",
    "Launch": "domain.turns",
    "NewTurn": "domain.turns",
    "Rights": "domain.pointers",
    "RunInterrupted": "engine.result",
    "RunResult": "engine.result",
    "Runtime": "domain.runtimes",
    "Session": "domain.sessions",
    "SessionFilter": "domain.sessions",
    "SessionKind": "domain.sessions",
    "SessionStatus": "domain.sessions",
    "TurnEnd": "domain.turns",
    "TurnRequest": "domain.turns",
    "TurnStatus": "domain.turns",
    "Usage": "domain.usage",
    "UsageReport": "domain.usage",
    "Waited": "engine.explain",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if name == "errors":
        return import_module("holdfast.errors")
    module = import_module(f"holdfast.{_ELSEWHERE.get(name, 'engine.default')}")
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

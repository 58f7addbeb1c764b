"""Owns the classes of failure and the reasons to stop an agent, each with one table of everything that follows.

A new class is a member, a row of the table, and rules in ``holdfast/providers/rules`` that recognise it. Code that
decides what happens next asks ``failure.then`` or ``cause.then``, never for the class or the cause.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType

from holdfast.domain.records import record

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final


class FailureClass(StrEnum):
    GONE = "gone"
    POISONED = "poisoned"
    OVERFLOW = "overflow"
    NOT_ACCEPTED = "not_accepted"
    LOCKED = "locked"
    TRANSIENT = "transient"
    LIMIT = "limit"
    AUTH = "auth"
    CONFIG = "config"
    MISSING_BINARY = "missing_binary"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    REFUSED = "refused"
    UNKNOWN = "unknown"

    @property
    def then(self) -> Consequences:
        return FAILURES[self]


class Retry(StrEnum):
    """Whether the queue runs the same turn again by itself; a person's own command is never run again."""

    NEVER = "never"
    LATER = "later"  #: after the retry delay, until the attempts are used up
    UNLESS_STOPPED = "unless_stopped"  #: the same, but not if a person or a time limit ended the agent
    AT_RESET = "at_reset"  #: once, when the provider's limit ends


class Fallback(StrEnum):
    """Whether the turn starts again, fresh, at once: only after a resume, and only if no tool ran."""

    NEVER = "never"
    IF_SILENT = "if_silent"  #: the history may be at fault: if nothing was said; retired once the fresh start was answered
    ALWAYS = "always"  #: the session is certainly of no use: it is retired now


@record
class Consequences:
    """One row of the table."""

    meaning: str  #: for a person, in one sentence
    retry: Retry = Retry.NEVER
    fallback: Fallback = Fallback.NEVER
    retires: bool = False  #: the provider session is not used again
    retired_as: str = (
        "poisoned"  #: the reason on record, once a fresh start has shown that the session was at fault
    )
    blames_session: bool = False  #: counts against the provider session: too many in a row retire it
    is_error: bool = True  #: counts as one of the session's errors; otherwise it says nothing about the work
    #: nothing was done, and another machine may be able to: a worker gives the turn back, without counting a try, and
    #: for a while claims no turn of this provider
    is_put_back: bool = False
    needs_login: bool = False  #: a person is told how to log in
    waits_for_lock: bool = False  #: tried again a few times before the attempt ends
    tells_less: bool = False  #: the next fresh start is told less of the past
    was_begun: bool = True  #: False: no agent was launched for the turn
    may_be_unsent: bool = False  #: it may have happened before the agent got the prompt; the attempts tell
    was_stopped: bool = False  #: somebody or something else ended the agent; the next turn is told so
    is_cut_off: bool = (
        False  #: ended in the middle, and not because somebody cancelled it; shown as ``interrupted``
    )
    is_cancellation: bool = False  #: the turn ends as cancelled, not as failed
    may_have_answered: bool = False  #: the agent may have answered before: its own session is looked at
    #: of the command that ran the turn; the reference of the command and the README list them all
    exit_code: int = 1


FAILURES: Final[Mapping[FailureClass, Consequences]] = MappingProxyType(
    {
        FailureClass.GONE: Consequences(
            "the provider no longer has the session; the work starts fresh, with the context",
            fallback=Fallback.ALWAYS,
            retires=True,
            retired_as="gone",
            blames_session=True,
        ),
        FailureClass.POISONED: Consequences(
            "the session's history makes every call to the model fail; the next turn starts fresh, with the context",
            fallback=Fallback.IF_SILENT,
            retires=True,
            blames_session=True,
        ),
        FailureClass.OVERFLOW: Consequences(
            "the session no longer fits the model's context window; the next turn starts fresh, with less context",
            fallback=Fallback.IF_SILENT,
            retires=True,
            retired_as="overflow",
            blames_session=True,
            tells_less=True,
        ),
        FailureClass.NOT_ACCEPTED: Consequences(
            "the model's service did not accept the request (HTTP 400 or 422): the history, the model, the account or the arguments may be the reason",
            fallback=Fallback.IF_SILENT,
        ),
        FailureClass.LOCKED: Consequences(
            "another process has the provider's session open; try again when that has ended",
            is_error=False,
            waits_for_lock=True,
            may_be_unsent=True,
            exit_code=4,
        ),
        FailureClass.TRANSIENT: Consequences(
            "the network or the model's service failed; a turn of the queue is tried again",
            retry=Retry.LATER,
        ),
        FailureClass.LIMIT: Consequences(
            "the usage limit of the account is reached; a turn of the queue is tried again once, when it ends",
            retry=Retry.AT_RESET,
        ),
        FailureClass.AUTH: Consequences(
            "the agent is not logged in, or its account may not do this; log in with the agent's own program",
            needs_login=True,
        ),
        FailureClass.CONFIG: Consequences(
            "the settings, the arguments or the directory of the turn do not work; correct them and try again",
            may_be_unsent=True,
        ),
        FailureClass.MISSING_BINARY: Consequences(
            "the agent is not installed on this machine; a worker leaves the turn to another machine",
            is_put_back=True,
            may_be_unsent=True,
        ),
        FailureClass.CANCELLED: Consequences(
            "somebody cancelled the turn",
            is_error=False,
            may_be_unsent=True,
            was_stopped=True,
            is_cancellation=True,
        ),
        FailureClass.INTERRUPTED: Consequences(
            "the process or the machine went away in the middle of the turn; it can be continued",
            retry=Retry.UNLESS_STOPPED,
            is_error=False,
            may_be_unsent=True,
            was_stopped=True,
            is_cut_off=True,
            may_have_answered=True,
        ),
        FailureClass.REFUSED: Consequences(
            "a guard refused to launch the agent; nothing was done",
            was_begun=False,
            may_be_unsent=True,
            exit_code=4,
        ),
        FailureClass.UNKNOWN: Consequences(
            "the agent failed in a way that no rule recognises; two such resumes in a row retire the session",
            blames_session=True,
            may_have_answered=True,
        ),
    }
)


@record
class Failure:
    """``message`` is the raw text of the failure channel, kept so that it can be judged again."""

    failure_class: FailureClass
    message: str

    @property
    def then(self) -> Consequences:
        return FAILURES[self.failure_class]


#: of a cancelled turn, whichever way it was cancelled
WAS_CANCELLED: Final = Failure(FailureClass.CANCELLED, "cancelled")


class StopCause(StrEnum):
    """Why Holdfast ends a running agent."""

    CANCELLED = "cancelled"
    TIMEOUT = "timeout"  #: of the whole turn
    LEASE_LOST = "lease_lost"
    EXIT = "exit"  #: Holdfast itself is ending
    UNGATED = "ungated"  #: it would call tools without asking
    HANDED_BACK = "handed_back"  #: the worker is ending, and another one is to continue

    @property
    def then(self) -> Stop:
        return STOPS[self]


@record
class Stop:
    """One row of the table."""

    failure: Failure  #: of the turn, unless the agent's answer counts
    is_gentle: bool = False  #: the agent gets time to save what it has said so far
    is_too_late: bool = False  #: an agent that had already answered when it was stopped has answered
    is_tried_again: bool = True  #: the queue may run the turn again, if the failure allows that
    is_put_back: bool = False  #: another worker continues the turn, and this does not count as a try


STOPS: Final[Mapping[StopCause, Stop]] = MappingProxyType(
    {
        StopCause.CANCELLED: Stop(WAS_CANCELLED, is_gentle=True),
        StopCause.TIMEOUT: Stop(
            Failure(FailureClass.INTERRUPTED, "the time limit of the turn was reached"),
            is_gentle=True,
            is_too_late=True,
            is_tried_again=False,
        ),
        StopCause.LEASE_LOST: Stop(Failure(FailureClass.INTERRUPTED, "the lease on the turn was lost")),
        StopCause.EXIT: Stop(
            Failure(FailureClass.INTERRUPTED, "it was stopped by Ctrl-C or a signal"),
            is_gentle=True,
            is_too_late=True,
            is_tried_again=False,
        ),
        StopCause.UNGATED: Stop(Failure(FailureClass.CONFIG, "the gate before its tool calls does not hold")),
        StopCause.HANDED_BACK: Stop(
            Failure(FailureClass.INTERRUPTED, "the worker was stopped"), is_too_late=True, is_put_back=True
        ),
    }
)

"""Owns the classes of failure and what follows from each."""

from __future__ import annotations

from enum import StrEnum

from holdfast.domain.records import record


class FailureClass(StrEnum):
    GONE = "gone"  #: the provider does not have the session
    POISONED = "poisoned"  #: its history makes every call fail
    OVERFLOW = "overflow"  #: it no longer fits the context window
    NOT_ACCEPTED = "not_accepted"  #: HTTP 400 or 422: the history, or the model, the account or the arguments
    LOCKED = "locked"  #: another process holds it
    TRANSIENT = "transient"  #: network, rate limit, server error
    LIMIT = "limit"  #: usage limit with a reset time
    AUTH = "auth"
    CONFIG = "config"
    MISSING_BINARY = "missing_binary"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"  #: the process or the machine went away
    REFUSED = "refused"  #: a guard said no; nothing was launched
    UNKNOWN = "unknown"


@record
class Failure:
    """``message`` is the raw text of the failure channel, kept so that it can be judged again."""

    failure_class: FailureClass
    message: str


#: what a cancelled turn has come to, whichever way it was cancelled
WAS_CANCELLED = Failure(FailureClass.CANCELLED, "cancelled")

#: may be the fault of the history: if nothing was produced, a fresh start is tried in the same turn
BLAMES_HISTORY = frozenset({FailureClass.POISONED, FailureClass.OVERFLOW, FailureClass.NOT_ACCEPTED})
#: the provider session is not used again
RETIRES = frozenset({FailureClass.GONE, FailureClass.POISONED, FailureClass.OVERFLOW})
#: counts against the provider session, whatever its text says
BLAMES_SESSION = RETIRES | {FailureClass.UNKNOWN}
#: says nothing about the work itself, so it is not one of the session's errors
NOT_AN_ERROR = frozenset({FailureClass.CANCELLED, FailureClass.INTERRUPTED, FailureClass.LOCKED})

"""Owns every error Holdfast raises on purpose.

    HoldfastError                 exit  code
    ├── InvalidInput                 2  invalid_input      a value the caller gave is not acceptable
    ├── ConfigError                  2  config_error       a configuration file or variable is wrong
    │   └── VaultLocked              2  vault_locked       the key that a part of the vault needs is not here
    ├── MissingBinary                2  missing_binary     an agent's program is not installed, or does not answer
    ├── NotFound                     3  not_found          a session, turn, conversation or runtime was not found
    ├── AmbiguousId                  3  ambiguous_id       a prefix or name that fits several
    ├── Conflict                     4  conflict           somebody else changed it first
    │   ├── PhaseConflict            4  phase_conflict     the phase is not the expected one
    │   └── SessionClosed            4  session_closed     the phase is final: fork it
    ├── Refused                      4  refused            a guard refused
    ├── Busy                         4  busy               another live writer holds it
    ├── NeedsApproval                5  waiting_for_approval  its turn waits until a person answers
    ├── Unauthenticated              4  unauthenticated    the server does not know the token
    ├── Forbidden                    4  forbidden          the token is for another role or workspace
    ├── TooMany                      4  too_many           the caller asked too often, or for too much at once
    ├── LeaseLost                   75  lease_lost         the fencing token is stale; nothing was written
    └── StoreError                   1  store_error        the store itself
        ├── StoreUnavailable         1  store_unavailable  cannot be opened, reached, written
        ├── StoreCorrupt             1  store_corrupt      not a Holdfast database, or damaged
        │   └── UnreadableSession    1  session_unreadable one session's row cannot be understood
        └── SchemaTooNew             1  schema_too_new     made by a newer Holdfast

Every error carries its data as attributes and in ``details``, so that no program has to parse the text.
"""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import ClassVar


class HoldfastError(Exception):
    """Base of the tree; ``exit_code`` is what the command ends with."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class InvalidInput(HoldfastError):
    """A value is not acceptable; ``field`` says which one."""

    code = "invalid_input"
    exit_code = 2

    def __init__(self, field: str, problem: str, **details: object) -> None:
        super().__init__(f"{field}: {problem}", field=field, **details)
        self.field = field
        self.problem = problem


class ConfigError(HoldfastError):
    """A configuration source is wrong; ``where`` names the file or the variable."""

    code = "config_error"
    exit_code = 2

    def __init__(self, where: str, problem: str, **details: object) -> None:
        super().__init__(f"{where}: {problem}", where=where, **details)
        self.where = where
        self.problem = problem


class VaultLocked(ConfigError):
    """A part of the vault is encrypted, and the key that it needs is not here."""

    code = "vault_locked"


class MissingBinary(HoldfastError):
    """A program that is needed is not installed, or is not the expected one."""

    code = "missing_binary"
    exit_code = 2

    def __init__(self, binary: str, problem: str, **details: object) -> None:
        super().__init__(f"{binary}: {problem}", binary=binary, **details)
        self.binary = binary
        self.problem = problem


class NotFound(HoldfastError):
    code = "not_found"
    exit_code = 3

    def __init__(self, kind: str, id: str, **details: object) -> None:
        super().__init__(f"{kind} not found: {id}", kind=kind, id=id, **details)
        self.kind = kind
        self.id = id


class AmbiguousId(HoldfastError):
    """``candidates`` holds some of the ids that fit, newest first; ``kind`` says of what."""

    code = "ambiguous_id"
    exit_code = 3

    def __init__(self, given: str, candidates: tuple[str, ...], kind: str = "session") -> None:
        shown = ", ".join(candidates)
        super().__init__(f"{given!r} fits several {kind}s: {shown}", given=given, candidates=candidates)
        self.given = given
        self.candidates = candidates


class Conflict(HoldfastError):
    code = "conflict"
    exit_code = 4


class PhaseConflict(Conflict):
    code = "phase_conflict"

    def __init__(self, session_id: str, expected: str, actual: str) -> None:
        super().__init__(
            f"session {session_id} is in phase {actual}, not {expected}",
            session_id=session_id,
            expected=expected,
            actual=actual,
        )
        self.session_id = session_id
        self.expected = expected
        self.actual = actual


class SessionClosed(Conflict):
    code = "session_closed"

    def __init__(self, session_id: str, phase: str) -> None:
        super().__init__(
            f"session {session_id} is {phase}; a fork can continue its work: holdfast fork {session_id}",
            session_id=session_id,
            phase=phase,
        )
        self.session_id = session_id
        self.phase = phase


class Refused(HoldfastError):
    """A guard refused; ``reason`` is its code."""

    code = "refused"
    exit_code = 4

    def __init__(self, reason: str, message: str, **details: object) -> None:
        super().__init__(message, reason=reason, **details)
        self.reason = reason


class Busy(HoldfastError):
    """Another live writer holds ``what``; ``holder`` and ``until`` say who and for how long."""

    code = "busy"
    exit_code = 4

    def __init__(self, what: str, holder: str | None = None, until: str | None = None) -> None:
        by = f" by {holder}" if holder else ""
        when = f" until {until}" if until else ""
        super().__init__(f"{what} is held{by}{when}", what=what, holder=holder, until=until)
        self.what = what
        self.holder = holder
        self.until = until


class NeedsApproval(HoldfastError):
    """The session's turn waits for an answer; nothing of it runs until then."""

    code = "waiting_for_approval"
    exit_code = 5

    def __init__(self, session_id: str, seq: int, approval_id: str, what: str) -> None:
        super().__init__(
            f"turn {seq} of {session_id} waits for an approval: {what}; "
            f"answer it with: holdfast approve {approval_id}",
            session_id=session_id,
            seq=seq,
            approval_id=approval_id,
        )
        self.session_id = session_id
        self.seq = seq
        self.approval_id = approval_id


class Unauthenticated(HoldfastError):
    """The request has no token that the server knows."""

    code = "unauthenticated"
    exit_code = 4


class Forbidden(HoldfastError):
    """The token is valid, but does not allow this call."""

    code = "forbidden"
    exit_code = 4


class TooMany(HoldfastError):
    """The caller asked too often, or for too much at the same time."""

    code = "too_many"
    exit_code = 4


class LeaseLost(HoldfastError):
    """The fencing token is stale: nothing was changed."""

    code = "lease_lost"
    exit_code = 75

    def __init__(self, session_id: str, seq: int, fence: int) -> None:
        super().__init__(
            f"the lease on turn {seq} of {session_id} was lost (fencing token {fence} is stale)",
            session_id=session_id,
            seq=seq,
            fence=fence,
        )
        self.session_id = session_id
        self.seq = seq
        self.fence = fence


class StoreError(HoldfastError):
    """``where`` is the file or the address, without any password."""

    code = "store_error"

    def __init__(self, where: str, problem: str, **details: object) -> None:
        super().__init__(f"{where}: {problem}", where=where, **details)
        self.where = where
        self.problem = problem


class StoreUnavailable(StoreError):
    code = "store_unavailable"


class StoreCorrupt(StoreError):
    code = "store_corrupt"


class SchemaTooNew(StoreError):
    code = "schema_too_new"


class UnreadableSession(StoreCorrupt):
    """One session's row cannot be understood; the others are not affected."""

    code = "session_unreadable"

    def __init__(self, where: str, session_id: str, problem: str) -> None:
        super().__init__(where, f"session {session_id} cannot be read: {problem}", session_id=session_id)
        self.session_id = session_id


#: the store, or the right to use it, may come back: work that is under way waits for that
OUTAGES = (StoreUnavailable, TooMany, Unauthenticated)

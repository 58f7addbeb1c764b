"""Owns every rule that a user may configure, and its default.

The configuration keys are derived from these dataclasses: a new field is a new key. A value outside its
range raises ``InvalidRule``, so a policy that exists is a valid one.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Literal

from holdfast.domain.ids import is_provider
from holdfast.domain.inputs import MAX_NUMBER
from holdfast.domain.notices import Occasion
from holdfast.domain.phases import Phase
from holdfast.domain.records import field, frozen_record

#: The phases a rule may name.
OPEN_PHASES = tuple(phase.value for phase in Phase if not phase.is_final)
OCCASIONS = frozenset(occasion.value for occasion in Occasion)

# Bounds that keep every instant and every wait computed from a policy inside 64 bits.
MAX_COUNT = 1_000_000
MAX_SECONDS = 100 * 365 * 24 * 3600.0
#: of a lease: if its holder dies, others wait no longer than this
MAX_LEASE_SECONDS = 3600.0
MAX_LOCK_TRIES = 100
MAX_LOCK_BACKOFF = 10.0
MIN_CONTEXT_TOKENS = 500  #: below this not even the headings fit
MIN_WINDOW_SHARE, MAX_WINDOW_SHARE = 0.01, 0.8
MAX_PACKET_ITEMS = 1000


class InvalidRule(ValueError):
    """A rule is outside its range; ``keys`` are the fields to look at, ``problem`` says why.

    For a field that is a table, the key is that of the wrong entry: ``agents.NAME``.
    """

    def __init__(self, problem: str, *keys: str) -> None:
        super().__init__(problem, *keys)
        self.keys = keys
        self.problem = problem

    def __str__(self) -> str:
        return self.told()

    def told(self, table: str = "") -> str:
        """The message, with the name of the table before each key."""
        return f"{' and '.join(table + key for key in self.keys)} {self.problem}"


class NotRising(InvalidRule):
    """One rule must be less than the other."""

    def __init__(self, low: str, smaller: float, high: str, larger: float) -> None:
        super().__init__("must rise", low, high)
        self.values = (smaller, larger)

    def told(self, table: str = "") -> str:
        (low, high), (smaller, larger) = self.keys, self.values
        return f"{table}{low} ({smaller:g}) must be less than {table}{high} ({larger:g})"


@frozen_record
class ContinuePolicy:
    """When the work of a session may continue. A conversation may continue in every open phase, however idle it was."""

    #: phases in which a delegated session may continue
    resumable_phases: frozenset[str] = frozenset({"approval", "investigating", "planning"})
    #: a delegated session may continue only if its last activity is more recent than this; None: always
    max_idle_seconds: float | None = 1800.0
    #: with this many errors since the last success, a session may not continue
    max_errors: int = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "resumable_phases", frozenset(self.resumable_phases))
        if not self.resumable_phases <= set(OPEN_PHASES):
            raise InvalidRule(f"may only hold {', '.join(OPEN_PHASES)}", "resumable_phases")
        _above_zero("max_idle_seconds", self.max_idle_seconds, MAX_SECONDS)
        _between("max_errors", self.max_errors, 1, MAX_COUNT)


@frozen_record
class ResumePolicy:
    """How the work continues: when the provider's own session may be resumed."""

    #: resume the provider's own session at all
    native_resume: bool = True
    #: ``native_resume`` for single agents; takes precedence over ``providers``
    agents: Mapping[str, bool] = field(default_factory=dict, hash=False)
    #: ``native_resume`` for single providers; takes precedence over ``native_resume``
    providers: Mapping[str, bool] = field(default_factory=dict, hash=False)
    #: on: another model than the recorded one starts fresh
    same_model: bool = False
    #: on: another version of the provider than the recorded one starts fresh
    same_version: bool = False
    #: what to do when a person continued the provider's session without Holdfast
    transcript_ahead: Literal["resume", "fresh"] = "resume"
    #: what to do when the provider's session files are gone or changed, and the vault has them
    restore: Literal["auto", "ask", "off"] = "auto"
    #: with this many errors since its last success, a provider session is not resumed
    max_provider_session_errors: int = 3
    #: this many resumes in a row that failed for an unknown reason retire a provider session
    max_failed_resumes: int = 2
    #: share of the context window from which a person is warned
    context_warn: float = 0.70
    #: share of the context window from which the next turn starts fresh, with a packet
    context_refresh: float = 0.80
    #: share of the context window that no turn may pass
    context_critical: float = 0.95
    #: on: one provider session across the calls of a session; off: a new one for each call
    session_persistence: bool = True

    def __post_init__(self) -> None:
        # Own copies: what the caller does to its dictionaries later must not change a rule.
        object.__setattr__(self, "agents", dict(self.agents))
        object.__setattr__(self, "providers", dict(self.providers))
        _between("max_provider_session_errors", self.max_provider_session_errors, 1, MAX_COUNT)
        _between("max_failed_resumes", self.max_failed_resumes, 1, MAX_COUNT)
        shares = {
            "context_warn": self.context_warn,
            "context_refresh": self.context_refresh,
            "context_critical": self.context_critical,
        }
        for key, share in shares.items():
            _above_zero(key, share, 1)
        _rising(shares)

    def native_resume_for(self, agent: str, provider: str) -> bool:
        """The most specific rule takes precedence: the agent's, then the provider's, then ``native_resume``."""
        return self.agents.get(agent, self.providers.get(provider, self.native_resume))


@frozen_record
class QueuePolicy:
    """Leases, retries, and waiting for a provider session that someone else holds."""

    #: how long a worker holds a turn without renewing
    lease_seconds: float = 60.0
    #: how often it renews
    heartbeat_seconds: float = 15.0
    #: how long it keeps its agent running while the store cannot be reached
    grace_seconds: float = 120.0
    #: process runs a turn may take
    max_attempts: int = 3
    #: wait before a turn is tried again after a transient failure
    retry_delay_seconds: float = 5.0
    #: tries to get a provider session that is locked
    lock_tries: int = 5
    #: wait after the first of them
    lock_delay_seconds: float = 2.0
    #: each further wait is this many times the one before
    lock_backoff: float = 1.5
    #: the same error this many times in a session: it waits for a person
    same_error_limit: int = 3
    #: how often an idle worker looks for a turn, and a running one for a request to stop
    poll_seconds: float = 1.0
    #: how often a worker looks for turns whose worker is gone
    recover_seconds: float = 30.0
    #: how long a worker leaves a turn to the runtime that holds its session before it takes the turn; 0: not at all
    affinity_seconds: float = 30.0

    def __post_init__(self) -> None:
        _above_zero("lease_seconds", self.lease_seconds, MAX_LEASE_SECONDS)
        _above_zero("heartbeat_seconds", self.heartbeat_seconds, MAX_SECONDS)
        _rising({"heartbeat_seconds": self.heartbeat_seconds, "lease_seconds": self.lease_seconds})
        _between("grace_seconds", self.grace_seconds, 0, MAX_SECONDS)
        _between("max_attempts", self.max_attempts, 1, MAX_COUNT)
        _between("retry_delay_seconds", self.retry_delay_seconds, 0, MAX_SECONDS)
        _between("lock_tries", self.lock_tries, 1, MAX_LOCK_TRIES)
        _between("lock_delay_seconds", self.lock_delay_seconds, 0, MAX_SECONDS)
        _between("lock_backoff", self.lock_backoff, 1, MAX_LOCK_BACKOFF)
        if self.lock_delay_seconds * self.lock_backoff**self.lock_tries > MAX_SECONDS:
            raise InvalidRule("make the wait too long", "lock_delay_seconds", "lock_backoff", "lock_tries")
        _between("same_error_limit", self.same_error_limit, 1, MAX_COUNT)
        _above_zero("poll_seconds", self.poll_seconds, MAX_SECONDS)
        _above_zero("recover_seconds", self.recover_seconds, MAX_SECONDS)
        _between("affinity_seconds", self.affinity_seconds, 0, MAX_SECONDS)


@frozen_record
class RunPolicy:
    """How turns are run."""

    #: the provider of a new session
    provider: str = "claude"
    #: a turn that takes longer is ended
    timeout_seconds: float = 4 * 3600.0

    def __post_init__(self) -> None:
        if not is_provider(self.provider):
            raise InvalidRule("must be a provider's name, such as claude", "provider")
        _above_zero("timeout_seconds", self.timeout_seconds, MAX_SECONDS)


@frozen_record
class RetentionPolicy:
    """What cleanup may take away."""

    #: delegated sessions: idle ones older than this become abandoned; final ones older than this are deleted
    max_age_hours: float = 24.0
    #: the same for conversations; None: they are kept, however old they are
    conversations_max_age_hours: float | None = None

    def __post_init__(self) -> None:
        _between("max_age_hours", self.max_age_hours, 0, MAX_SECONDS / 3600)
        if self.conversations_max_age_hours is not None:
            _between("conversations_max_age_hours", self.conversations_max_age_hours, 0, MAX_SECONDS / 3600)


@frozen_record
class ContextPolicy:
    """How much of the past a turn is sent when the provider's own session does not hold it."""

    #: of the model's context window, this part may be the past
    window_share: float = 0.4
    #: the window of a model that has not reported its own yet
    window_tokens: int = 200_000
    #: at most so much of the past, whatever the window; None: only ``window_share`` limits it
    transcript_tokens: int | None = None
    #: size of a packet
    packet_tokens: int = 8_000
    #: a longer request or answer is cut in the middle where the past does not fit whole
    message_characters: int = 12_000
    #: newest turns in a packet
    packet_turns: int = 10
    #: newest tool calls in a packet
    packet_tool_calls: int = 20

    def __post_init__(self) -> None:
        _between("window_share", self.window_share, MIN_WINDOW_SHARE, MAX_WINDOW_SHARE)
        _between("window_tokens", self.window_tokens, MIN_CONTEXT_TOKENS, MAX_COUNT)
        if self.transcript_tokens is not None:
            _between("transcript_tokens", self.transcript_tokens, MIN_CONTEXT_TOKENS, MAX_COUNT)
        _between("packet_tokens", self.packet_tokens, MIN_CONTEXT_TOKENS, MAX_COUNT)
        _between("message_characters", self.message_characters, 1, MAX_COUNT)
        _between("packet_turns", self.packet_turns, 1, MAX_PACKET_ITEMS)
        _between("packet_tool_calls", self.packet_tool_calls, 1, MAX_PACKET_ITEMS)

    def past_tokens(self, window: int | None) -> int:
        """How many tokens of the past a model with this context window is sent; ``window`` None: not known."""
        share = max(MIN_CONTEXT_TOKENS, int((window or self.window_tokens) * self.window_share))
        return share if self.transcript_tokens is None else min(share, self.transcript_tokens)


@frozen_record
class ApprovalPolicy:
    """Approvals: questions to people."""

    #: an approval that nobody answers within this time has expired; None: never
    expires_seconds: float | None = 7 * 24 * 3600.0
    #: hooks that are not Holdfast's, by their command, address or file, beside which calls may wait all the same
    allow_hooks: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        _above_zero("expires_seconds", self.expires_seconds, MAX_SECONDS)
        object.__setattr__(self, "allow_hooks", frozenset(self.allow_hooks))


@frozen_record
class NotifyPolicy:
    """How people are notified, and of what."""

    #: a program and its arguments, in quotes as in a shell; it is run without one
    command: str | None = None
    #: an address that every notice is posted to
    webhook: str | None = field(default=None, repr=False)
    #: the occasions that cause a notice
    events: frozenset[str] = OCCASIONS
    #: the address of the page, as people's browsers know it: notices link to what they are about
    page: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", frozenset(self.events))
        if not self.events <= OCCASIONS:
            raise InvalidRule(f"may only hold {', '.join(Occasion)}", "events")
        if self.command is not None and not _has_words(self.command):
            raise InvalidRule("must be a program and its arguments, with quotes in pairs", "command")
        if self.webhook is not None and not _is_address(self.webhook):
            raise InvalidRule("must be an http or https address", "webhook")
        if self.page is not None and (not _is_address(self.page) or "?" in self.page or "#" in self.page):
            raise InvalidRule("must be the http or https address of the page", "page")

    def wants(self, occasion: Occasion) -> bool:
        return occasion in self.events and (self.command or self.webhook) is not None


@frozen_record
class ImportPolicy:
    """Which sessions of the agents' own programs are taken in."""

    #: directories whose sessions, and those of directories below them, are left alone
    exclude: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "exclude", frozenset(self.exclude))
        if not all(place.startswith(("/", "~")) for place in self.exclude):
            raise InvalidRule("must be directories that begin with / or ~", "exclude")


def _is_plain(part: str) -> bool:
    return part.isascii() and part.replace("-", "").replace("_", "").isalnum()


@frozen_record
class ServerPolicy:
    """What ``holdfast serve`` has to know about where it runs."""

    #: the origins that browsers know it by, if a proxy before it has another name or does TLS; empty: its own
    public_origins: frozenset[str] = frozenset()
    #: the path below which a proxy shows it: ``/holdfast``; empty: at the root
    base_path: str = ""

    def __post_init__(self) -> None:
        parts = self.base_path.split("/")
        if self.base_path and (parts[0] or not all(_is_plain(part) for part in parts[1:])):
            raise InvalidRule("must begin with / and consist of plain words, such as /holdfast", "base_path")
        object.__setattr__(self, "public_origins", frozenset(self.public_origins))
        for wrong in filter(None, map(_wrong_with_origin, sorted(self.public_origins))):
            problem = f"must be origins as browsers send them, such as https://fleet.example: one {wrong}"
            raise InvalidRule(problem, "public_origins")


@frozen_record
class VaultPolicy:
    """What is kept of the providers' own session files."""

    #: all: every session that Holdfast runs, imports or watches; run: those that it runs; off: none
    mode: Literal["all", "run", "off"] = "all"
    #: what the chunks of all kept sessions may take
    limit_bytes: int = 10_000_000_000
    #: a file with the key that chunks are encrypted with
    key_file: str | None = None
    #: a program that prints the key, and its arguments, in quotes as in a shell; it is run without one
    key_command: str | None = None

    def __post_init__(self) -> None:
        _between("limit_bytes", self.limit_bytes, 0, MAX_NUMBER)
        if self.key_file is not None and (not self.key_file.strip() or "://" in self.key_file):
            raise InvalidRule("must be the path of a file", "key_file")
        if self.key_command is not None and not _has_words(self.key_command):
            raise InvalidRule("must be a program and its arguments, with quotes in pairs", "key_command")
        if self.key_file is not None and self.key_command is not None:
            raise InvalidRule("cannot both be set", "key_file", "key_command")


@frozen_record
class Policy:
    """All rules; each field is a table of the configuration file (``continue_`` is ``[continue]``)."""

    continue_: ContinuePolicy = field(default_factory=ContinuePolicy)
    resume: ResumePolicy = field(default_factory=ResumePolicy)
    queue: QueuePolicy = field(default_factory=QueuePolicy)
    run: RunPolicy = field(default_factory=RunPolicy)
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    context: ContextPolicy = field(default_factory=ContextPolicy)
    approvals: ApprovalPolicy = field(default_factory=ApprovalPolicy)
    notify: NotifyPolicy = field(default_factory=NotifyPolicy)
    import_: ImportPolicy = field(default_factory=ImportPolicy)
    server: ServerPolicy = field(default_factory=ServerPolicy)
    vault: VaultPolicy = field(default_factory=VaultPolicy)


# Imports that only notices or a server need are inside these functions.


def _has_words(command: str) -> bool:
    import shlex

    try:
        words = shlex.split(command)
    except ValueError:
        return False
    return bool(words) and "://" not in words[0]  # an address belongs under ``webhook``


def _is_address(text: str) -> bool:
    from urllib.parse import urlsplit

    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname)
    except ValueError:
        return False


def _wrong_with_origin(text: str) -> str | None:
    """What is wrong, without repeating the text: an address may hold a password. Browsers send one form only (RFC 6454, 6.2)."""
    from urllib.parse import urlsplit

    try:
        url = urlsplit(text)
        host, port = url.hostname, url.port
    except ValueError:
        return "is no address"
    if url.scheme not in ("http", "https") or not host:
        return "does not begin with http:// or https:// and a host"
    if url.username is not None or text.partition("://")[2] != url.netloc:
        return "has more than a scheme, a host and a port"
    if port == {"http": 80, "https": 443}[url.scheme]:
        return "names the usual port, which browsers leave out"
    bare = f"[{host}]" if ":" in host else host
    written = f"{url.scheme}://{bare}" + ("" if port is None else f":{port}")
    if text != written or not text.isascii() or not text.isprintable() or " " in text:
        return "is written in another way: lower case, letters of ASCII, no blanks"
    return None


# The comparisons are written so that NaN fails them.


def _between(key: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InvalidRule(f"must be between {low:.12g} and {high:.12g}", key)


def _above_zero(key: str, value: float | None, high: float) -> None:
    """None passes: the rule is off."""
    if value is not None and not 0 < value <= high:
        raise InvalidRule(f"must be above 0 and at most {high:.12g}", key)


def _rising(values: Mapping[str, float]) -> None:
    for (low, smaller), (high, larger) in pairwise(values.items()):
        if not smaller < larger:
            raise NotRising(low, smaller, high, larger)

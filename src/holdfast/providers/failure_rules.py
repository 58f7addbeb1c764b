"""Owns how a failure is classified: rules as data, one file for each provider and one for all.

The rules see only the failure channel, never the text of the model. The first rule that fits decides: in each file,
rules about structured evidence (an HTTP status, the provider's own code, the exit code) come before rules about
prose, and a provider's own rules come before the common ones.

An error with HTTP status 400 or 422 may quote the history that is not accepted, and a history holds any words. So
a rule that reads the text of such an error counts only if it names the status.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.clock import Instant
from holdfast.domain.failures import FailureClass
from holdfast.domain.records import record

RULES = Path(__file__).parent / "rules"  #: of the built-in providers, and the common ones
_MICROSECONDS = 1_000_000
_NOT_ACCEPTED = (400, 422)
#: where a message begins: the text itself, or a field of the JSON in it, which may be JSON in JSON
_BEGINNING = r"""(?:\A\W*(?:api error: )?(?:\d{3} )?|"(?:message|detail)\\*"\s*:\s*\\*")"""


@record
class Evidence:
    """What the failure channel of one run said."""

    text: str = ""  #: error fields and the end of standard error
    status: int | None = None
    code: str = ""
    exit_code: int | None = None
    resumed: bool = False  #: the run was to resume or to fork a session


@record
class Rule:
    """Fits when everything that it names fits. Words are compared in lower case."""

    failure_class: FailureClass
    statuses: frozenset[int] = frozenset()
    codes: frozenset[str] = frozenset()
    exit_codes: frozenset[int] = frozenset()
    words: tuple[str, ...] = ()  #: all of them
    pattern: re.Pattern[str] | None = None  #: its group ``reset`` is a time in seconds since 1970
    begins: re.Pattern[str] | None = None  #: a message begins with it; further on it could be a quotation
    resumed: bool = False  #: only when a session was to be resumed or forked

    def fits(self, evidence: Evidence) -> bool:
        text = evidence.text.lower()
        return (
            (not self.statuses or evidence.status in self.statuses)
            and (not self.codes or evidence.code in self.codes)
            and (not self.exit_codes or evidence.exit_code in self.exit_codes)
            and all(word in text for word in self.words)
            and (self.pattern is None or self.pattern.search(text) is not None)
            and (self.begins is None or self.begins.search(text) is not None)
            and (evidence.resumed or not self.resumed)
            and (evidence.status not in _NOT_ACCEPTED or bool(self.statuses) or not self._reads_text)
        )

    @property
    def _reads_text(self) -> bool:
        return bool(self.words) or self.pattern is not None or self.begins is not None


@record
class Classified:
    failure_class: FailureClass
    reset_at: Instant | None = None  #: when a limit ends, if the text says so


@record
class FailureRules:
    version: str  #: of the rules, so that old failures can be classified again and compared
    rules: tuple[Rule, ...]
    noise: re.Pattern[str] | None = None  #: lines that the agent always writes to standard error

    def without_noise(self, text: str) -> str:
        if self.noise is None:
            return text
        return "".join(line for line in text.splitlines(keepends=True) if not self.noise.match(line))

    def classify(self, evidence: Evidence) -> Classified:
        rule = next((rule for rule in self.rules if rule.fits(evidence)), None)
        if rule is None:
            return Classified(FailureClass.UNKNOWN)
        return Classified(rule.failure_class, _reset(rule, evidence.text.lower()))


@cache
def load_rules(provider: str, file: Path | None) -> FailureRules:
    """The provider's own rules, then the common ones; without a file, the common ones alone."""
    own: dict[str, Any] = {"version": 0, "rule": []} if file is None else _read(file)
    common = _read(RULES / "common.toml")
    version = f"{provider} {own['version']}, common {common['version']}"
    rules = tuple(_rule(entry) for entry in (*own["rule"], *common["rule"]))
    return FailureRules(version, rules, re.compile(own["noise"]) if "noise" in own else None)


def _read(file: Path) -> dict[str, Any]:
    import tomllib  # only needed when something has failed

    return tomllib.loads(file.read_text("utf-8"))


def _rule(entry: Mapping[str, Any]) -> Rule:
    pattern, begins = entry.get("pattern"), entry.get("begins")
    rule = Rule(
        FailureClass(entry["class"]),
        frozenset(entry.get("status", ())),
        frozenset(entry.get("code", ())),
        frozenset(entry.get("exit", ())),
        tuple(word.lower() for word in entry.get("words", ())),
        re.compile(pattern) if pattern else None,
        re.compile(f"{_BEGINNING}(?:{begins})") if begins else None,
        entry.get("resumed", False),
    )
    unknown = entry.keys() - {"class", "status", "code", "exit", "words", "pattern", "begins", "resumed"}
    if unknown or rule == Rule(rule.failure_class, resumed=rule.resumed):
        raise ValueError(f"not a rule: {dict(entry)}")
    return rule


def _reset(rule: Rule, text: str) -> Instant | None:
    found = rule.pattern.search(text) if rule.pattern is not None else None
    seconds = found.groupdict().get("reset") if found else None
    return None if seconds is None else Instant(int(seconds) * _MICROSECONDS)

"""Owns the words for why a turn is not simply resumed: from a verdict and its evidence, to agents and to people.

A sentence claims what the evidence carries and no more. A fact that was looked for and is not there is called
missing; it is never taken for the worst that it could have said.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from holdfast.domain.decisions import Decided, Decision, Reason, Standing
from holdfast.domain.records import record
from holdfast.domain.telling.quoting import on_one_line

_LONGEST = 400


@record
class Words:
    claim: str  #: what has been seen when the guard failed; the evidence stands behind it
    doubt: str  #: what is not known when its fact is missing
    says_all: bool = False  #: the evidence says the same in other words


WORDS: Final[Mapping[Reason, Words]] = MappingProxyType(
    {
        Reason.FORCE_FRESH: Words("a fresh start was asked for", "whether a fresh start was asked for", says_all=True),
        Reason.RESUME_DISABLED: Words("resuming is switched off", "whether resuming is switched on"),
        Reason.NO_POINTER: Words(
            "no earlier session is on record", "which earlier session there is", says_all=True
        ),
        Reason.CAPABILITY_MISSING: Words(
            "the installed program cannot do what it would take", "what the installed program can do"
        ),
        Reason.GENERATION_CHANGED: Words(
            "the conversation was begun again", "whether the conversation was begun again"
        ),
        Reason.RUNTIME_CHANGED: Words(
            "the earlier session belongs to another installation or version",
            "whether this is the installation that it ran on",
        ),
        Reason.WORKDIR_CHANGED: Words(
            "the earlier session worked in another directory", "whether it worked in this directory"
        ),
        Reason.HISTORY_CHANGED: Words(
            "the history was changed behind the earlier session", "whether the history was changed since"
        ),
        Reason.FORK_POINT_MOVED: Words(
            "the session to fork cannot be forked at this turn", "whether the session to fork has gone on since"
        ),
        Reason.MODEL_CHANGED: Words("another model was chosen", "whether the model is the same"),
        Reason.RETIRED: Words("the earlier session is not used again", "whether the earlier session may be used"),
        Reason.ERRORS: Words("the earlier session failed too often", "how often the earlier session failed"),
        Reason.CONTEXT_FULL: Words(
            "with this request the earlier session's context window would be too full",
            "how full the earlier session's context window is",
        ),
        Reason.TRANSCRIPT_MISSING: Words(
            "the earlier session cannot be picked up", "whether the earlier session can be picked up"
        ),
        Reason.TRANSCRIPT_ALTERED: Words(
            "the earlier session's record is not what it was", "whether the earlier session's record is what it was"
        ),
        Reason.TRANSCRIPT_AHEAD: Words(
            "the earlier session went on outside Holdfast", "whether the earlier session went on outside Holdfast"
        ),
        Reason.RIGHTS_WIDER: Words(
            "more rights were asked for than the earlier session has", "which rights the earlier session has"
        ),
        Reason.BUSY: Words("the earlier session is in use", "whether the earlier session is in use"),
        Reason.EXPLICIT_ID: Words(
            "the session that was asked for cannot be used", "whether the session that was asked for can be used"
        ),
        Reason.RESUME_FAILED: Words(
            "the model's service answered the earlier session with an error", "whether the earlier session works"
        ),
        Reason.RESUMABLE: Words(
            "nothing stands against resuming; this is what a fresh start would be told",
            "whether anything stands against resuming",
        ),
    }
)  # fmt: skip


@record
class Because:
    """Why a decision is what it is, as the guard that made it has seen it."""

    reason: Reason
    standing: Standing = Standing.FAILED
    evidence: str = ""

    @property
    def sentence(self) -> str:
        """For an agent, and wherever the code alone would be a riddle; without a full stop."""
        words = WORDS[self.reason]
        seen = on_one_line(self.evidence, _LONGEST)  # it may quote what a program has said
        if self.standing is Standing.MISSING:
            return f"it is not known {words.doubt}" + (f" ({seen})" if seen else "")
        return f"{words.claim} ({seen})" if seen and not words.says_all else words.claim

    @property
    def note(self) -> str:
        """For people: the code, which they can look up, and what was seen."""
        return f"{self.reason} ({self.evidence})" if self.evidence else self.reason.value

    @property
    def message(self) -> str:
        """Of the failure of a turn that was not launched."""
        return f"{self.reason}: {self.evidence}"


def because(decision: Decision | Decided) -> Because:
    """Why it was decided so, by the verdict of the guard that gave its reason."""
    for verdict in decision.verdicts:
        if verdict.reason is decision.reason:
            return Because(verdict.reason, verdict.standing, verdict.evidence)
    return Because(decision.reason)

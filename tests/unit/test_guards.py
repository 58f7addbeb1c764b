"""The matrix of the guards: each one seen to pass, seen to fail, missing, and not to be seen yet."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from holdfast.domain.decisions import (
    NOT_OBSERVABLE,
    WORDS,
    Because,
    Facts,
    Fork,
    Fresh,
    Outcome,
    Reason,
    Refuse,
    Resume,
    ResumeRequest,
    Standing,
    TranscriptFacts,
    Wait,
    decision_kind,
)
from holdfast.domain.guards import GUARDS
from holdfast.domain.pointers import NO_RIGHTS, Pointer, ProviderSession
from holdfast.domain.policy import ResumePolicy
from holdfast.domain.usage import ContextUse
from tests.unit.builders import (
    OTHER_ID,
    Situation,
    a_fork_source,
    a_pointer,
    a_request,
    a_transcript,
    an_edit,
    capabilities,
    some_facts,
)

FRESH, WAIT, REFUSE = Outcome.FRESH, Outcome.WAIT, Outcome.REFUSE
KIND = {Outcome.RESUME: "resume", FRESH: "fresh", WAIT: "wait", REFUSE: "refuse"}


@dataclass(frozen=True)
class Example:
    """A situation, what the guard says about it, and what is decided in the end."""

    situation: Situation
    standing: Standing
    outcome: Outcome
    decided: str  #: the kind of the decision
    because: Reason | None  #: of the decision; None: the guard itself

    @property
    def stops(self) -> bool:
        return self.outcome is not Outcome.RESUME


@dataclass(frozen=True)
class Impossible:
    why: str


class Row(NamedTuple):
    passing: Example | Impossible
    failing: Example | Impossible
    missing: Example | Impossible
    unseen: Example | Impossible


def passes(
    situation: Situation, decided: str = "resume", because: Reason | None = Reason.RESUMABLE
) -> Example:
    return Example(situation, Standing.PASSED, Outcome.RESUME, decided, because)


def fails(situation: Situation, outcome: Outcome = FRESH) -> Example:
    return Example(situation, Standing.FAILED, outcome, KIND[outcome], None)


def misses(
    situation: Situation,
    outcome: Outcome = FRESH,
    decided: str | None = None,
    because: Reason | None = None,
) -> Example:
    """``decided`` and ``because`` where another guard misses the same fact and counts for more."""
    return Example(situation, Standing.MISSING, outcome, decided or KIND[outcome], because)


def cannot_see(situation: Situation, decided: str = "resume") -> Example:
    return Example(situation, Standing.NOT_OBSERVABLE, Outcome.RESUME, decided, Reason.RESUMABLE)


def named(situation: Situation) -> Situation:
    """The same, for a caller who names a provider session that is not the recorded one."""
    return Situation(
        situation.pointer, a_request(provider_session_id=OTHER_ID), situation.facts, situation.policy
    )


SAME_MODEL = ResumePolicy(same_model=True)

MATRIX: dict[Reason, Row] = {
    Reason.FORCE_FRESH: Row(
        passing=passes(Situation(request=a_request(force_fresh=False))),
        failing=fails(Situation(request=a_request(force_fresh=True))),
        missing=misses(Situation(request=a_request(force_fresh=None))),
        unseen=cannot_see(Situation(request=a_request(force_fresh=NOT_OBSERVABLE))),
    ),
    Reason.RESUME_DISABLED: Row(
        passing=passes(Situation(facts=some_facts(native_resume=True))),
        failing=fails(Situation(facts=some_facts(native_resume=False))),
        missing=misses(Situation(facts=some_facts(native_resume=None))),
        unseen=cannot_see(Situation(facts=some_facts(native_resume=NOT_OBSERVABLE))),
    ),
    Reason.NO_POINTER: Row(
        passing=passes(Situation()),
        failing=fails(Situation(pointer=None)),
        missing=misses(Situation(pointer=a_pointer(provider_session_id=""))),
        unseen=Impossible("pointers are in the database: who decides has read it, and there is one or none"),
    ),
    Reason.CAPABILITY_MISSING: Row(
        passing=passes(Situation()),
        failing=fails(Situation(facts=some_facts(capabilities=capabilities(can_resume=False)))),
        missing=misses(Situation(facts=some_facts(capabilities=None))),
        unseen=cannot_see(Situation(facts=some_facts(capabilities=NOT_OBSERVABLE))),
    ),
    Reason.GENERATION_CHANGED: Row(
        passing=passes(Situation(facts=some_facts(generation=1))),
        failing=fails(Situation(facts=some_facts(generation=2))),
        missing=misses(Situation(facts=some_facts(generation=None))),
        unseen=cannot_see(Situation(facts=some_facts(generation=NOT_OBSERVABLE))),
    ),
    Reason.RUNTIME_CHANGED: Row(
        passing=passes(Situation()),
        failing=fails(Situation(facts=some_facts(runtime_id="rt-elsewhere"))),
        missing=misses(Situation(facts=some_facts(runtime_id=None))),
        unseen=cannot_see(Situation(facts=some_facts(runtime_id=NOT_OBSERVABLE))),
    ),
    Reason.WORKDIR_CHANGED: Row(
        passing=passes(Situation(facts=some_facts(same_directory=True))),
        failing=fails(Situation(facts=some_facts(same_directory=False))),
        missing=misses(Situation(facts=some_facts(same_directory=None))),
        unseen=cannot_see(Situation(facts=some_facts(same_directory=NOT_OBSERVABLE))),
    ),
    Reason.HISTORY_CHANGED: Row(
        passing=passes(Situation(facts=some_facts(changes=()))),
        failing=fails(Situation(facts=some_facts(changes=(an_edit(2, revision=3),)))),
        missing=misses(Situation(facts=some_facts(changes=None))),
        unseen=cannot_see(Situation(facts=some_facts(changes=NOT_OBSERVABLE))),
    ),
    Reason.FORK_POINT_MOVED: Row(
        passing=passes(Situation(a_fork_source()), decided="fork"),
        failing=fails(Situation(a_fork_source(), facts=some_facts(transcript=a_transcript(grown=True)))),
        missing=misses(Situation(a_fork_source(), facts=some_facts(transcript=a_transcript(grown=None)))),
        unseen=cannot_see(
            Situation(a_fork_source(), facts=some_facts(transcript=a_transcript(grown=NOT_OBSERVABLE))),
            decided="fork",
        ),
    ),
    Reason.MODEL_CHANGED: Row(
        passing=passes(Situation(request=a_request(model="opus"), policy=SAME_MODEL)),
        failing=fails(Situation(request=a_request(model="haiku"), policy=SAME_MODEL)),
        missing=misses(Situation(request=a_request(model=None), policy=SAME_MODEL)),
        unseen=cannot_see(Situation(request=a_request(model=NOT_OBSERVABLE), policy=SAME_MODEL)),
    ),
    Reason.RETIRED: Row(
        passing=passes(Situation()),
        failing=fails(Situation(facts=some_facts(provider_session=ProviderSession(retired="poisoned")))),
        missing=misses(
            Situation(facts=some_facts(provider_session=None)), decided="wait", because=Reason.BUSY
        ),
        unseen=cannot_see(Situation(facts=some_facts(provider_session=NOT_OBSERVABLE))),
    ),
    Reason.ERRORS: Row(
        passing=passes(Situation(facts=some_facts(provider_session=ProviderSession(errors=2)))),
        failing=fails(Situation(facts=some_facts(provider_session=ProviderSession(errors=3)))),
        missing=misses(
            Situation(facts=some_facts(provider_session=None)), decided="wait", because=Reason.BUSY
        ),
        unseen=cannot_see(Situation(facts=some_facts(provider_session=NOT_OBSERVABLE))),
    ),
    Reason.CONTEXT_FULL: Row(
        passing=passes(Situation(a_pointer(context=ContextUse(1_000, 200_000)))),
        failing=fails(Situation(a_pointer(context=ContextUse(199_000, 200_000)))),
        missing=misses(Situation(a_pointer(context=None))),
        unseen=cannot_see(
            Situation(
                a_pointer(context=None),
                facts=some_facts(capabilities=capabilities(reports_context=False)),
            )
        ),
    ),
    Reason.TRANSCRIPT_MISSING: Row(
        passing=passes(Situation(facts=some_facts(transcript=a_transcript(requests=1)))),
        failing=fails(Situation(facts=some_facts(transcript=a_transcript(requests=0)))),
        missing=misses(Situation(facts=some_facts(transcript=None))),
        unseen=cannot_see(Situation(facts=some_facts(transcript=NOT_OBSERVABLE))),
    ),
    Reason.TRANSCRIPT_ALTERED: Row(
        passing=passes(Situation(facts=some_facts(transcript=a_transcript(prefix_intact=True)))),
        failing=fails(Situation(facts=some_facts(transcript=a_transcript(prefix_intact=False)))),
        missing=misses(Situation(facts=some_facts(transcript=a_transcript(prefix_intact=None)))),
        unseen=cannot_see(Situation(facts=some_facts(transcript=a_transcript(prefix_intact=NOT_OBSERVABLE)))),
    ),
    Reason.TRANSCRIPT_AHEAD: Row(
        passing=passes(Situation(facts=some_facts(transcript=a_transcript(foreign_turns=0)))),
        failing=fails(
            Situation(
                facts=some_facts(transcript=a_transcript(foreign_turns=2)),
                policy=ResumePolicy(transcript_ahead="fresh"),
            )
        ),
        missing=misses(Situation(facts=some_facts(transcript=a_transcript(foreign_turns=None)))),
        unseen=cannot_see(Situation(facts=some_facts(transcript=a_transcript(foreign_turns=NOT_OBSERVABLE)))),
    ),
    Reason.RIGHTS_WIDER: Row(
        passing=passes(Situation()),
        failing=fails(Situation(a_pointer(rights=NO_RIGHTS)), REFUSE),
        missing=misses(Situation(a_pointer(rights=None)), REFUSE),
        unseen=cannot_see(Situation(request=a_request(rights=NOT_OBSERVABLE))),
    ),
    Reason.BUSY: Row(
        passing=passes(Situation(facts=some_facts(lock_free=True))),
        failing=fails(Situation(facts=some_facts(lock_free=False)), WAIT),
        missing=misses(Situation(facts=some_facts(lock_free=None)), WAIT),
        unseen=cannot_see(Situation(facts=some_facts(lock_free=NOT_OBSERVABLE))),
    ),
    Reason.EXPLICIT_ID: Row(
        passing=passes(named(Situation()), decided="fresh", because=Reason.NO_POINTER),
        failing=fails(
            named(Situation(facts=some_facts(capabilities=capabilities(chooses_id=False)))), REFUSE
        ),
        missing=misses(named(Situation(facts=some_facts(capabilities=None))), REFUSE),
        unseen=Example(
            named(Situation(facts=some_facts(capabilities=NOT_OBSERVABLE))),
            Standing.NOT_OBSERVABLE,
            Outcome.RESUME,
            decided="fresh",
            because=Reason.NO_POINTER,
        ),
    ),
}


def entries() -> Iterator[tuple[Reason, str, Example | Impossible]]:
    for reason, row in MATRIX.items():
        for column, entry in zip(Row._fields, row, strict=True):
            yield reason, column, entry


def examples(wanted: Callable[[Example], bool]) -> pytest.MarkDecorator:
    params = [
        pytest.param(reason, entry, id=f"{reason}-{column}")
        for reason, column, entry in entries()
        if isinstance(entry, Example) and wanted(entry)
    ]
    return pytest.mark.parametrize(("reason", "example"), params)


def test_every_guard_has_its_row_in_the_order_in_which_it_speaks() -> None:
    speaking = [verdict.reason for verdict in Situation().decide().verdicts]

    assert list(MATRIX) == speaking
    assert len(MATRIX) == len(GUARDS)
    assert set(Reason) - set(MATRIX) == {Reason.RESUMABLE, Reason.RESUME_FAILED}


def test_a_case_that_cannot_exist_says_why() -> None:
    impossible = {(reason, column): e.why for reason, column, e in entries() if isinstance(e, Impossible)}

    assert set(impossible) == {(Reason.NO_POINTER, "unseen")}
    assert all(len(why.split()) > 5 for why in impossible.values())


@examples(lambda example: True)
def test_each_guard_says_what_it_sees(reason: Reason, example: Example) -> None:
    verdict = example.situation.verdict(reason)

    assert (verdict.standing, verdict.outcome) == (example.standing, example.outcome)
    assert verdict.evidence or verdict.standing is Standing.PASSED


@examples(lambda example: example.stops)
def test_agents_and_people_are_told_what_the_guard_has_seen_and_no_more(
    reason: Reason, example: Example
) -> None:
    verdict = example.situation.verdict(reason)
    why = Because(reason, verdict.standing, verdict.evidence)
    words = WORDS[reason]

    assert verdict.evidence in why.note
    if verdict.standing is Standing.MISSING:
        assert re.search(r"\b(can)?not\b", verdict.evidence)
        assert why.sentence == f"it is not known {words.doubt} ({verdict.evidence})"
    else:
        assert why.sentence.startswith(words.claim)
        assert verdict.evidence in why.sentence or words.says_all


@examples(lambda example: True)
def test_each_guard_brings_about_its_decision(reason: Reason, example: Example) -> None:
    decision = example.situation.decide()

    assert decision_kind(decision) == example.decided
    assert decision.reason == (example.because or reason)


@examples(lambda example: example.stops and example.because is None)
def test_one_guard_alone_is_enough_to_stop_a_resume(reason: Reason, example: Example) -> None:
    stopping = {v.reason for v in example.situation.decide().verdicts if v.outcome > Outcome.RESUME}

    # another id than the recorded one, or a transcript that is gone, is noticed by more than one
    witnesses = {
        Reason.EXPLICIT_ID: {Reason.NO_POINTER},
        Reason.TRANSCRIPT_MISSING: {Reason.TRANSCRIPT_ALTERED, Reason.TRANSCRIPT_AHEAD},
    }
    assert stopping - witnesses.get(reason, set()) == {reason}


SIGHTS = (
    "generation",
    "runtime_id",
    "version",
    "changes",
    "provider_session",
    "same_directory",
    "transcript",
)
HIDDEN = some_facts(**dict.fromkeys(SIGHTS, NOT_OBSERVABLE))


@pytest.mark.parametrize(
    ("facts", "request_"),
    [(some_facts(), a_request()), (HIDDEN, a_request(model=NOT_OBSERVABLE, rights=NOT_OBSERVABLE))],
    ids=["seen", "not-to-be-seen-yet"],
)
@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("generation", Reason.GENERATION_CHANGED),
        ("runtime_id", Reason.RUNTIME_CHANGED),
        ("version", Reason.RUNTIME_CHANGED),
        ("work_dir", Reason.WORKDIR_CHANGED),
        ("epoch", Reason.HISTORY_CHANGED),
        ("seen", Reason.HISTORY_CHANGED),
        ("model", Reason.MODEL_CHANGED),
        ("context", Reason.CONTEXT_FULL),
        ("transcript", Reason.TRANSCRIPT_ALTERED),
        ("rights", Reason.RIGHTS_WIDER),
    ],
)
def test_what_was_never_recorded_is_missing_whatever_is_known_of_the_other_half(
    field: str, reason: Reason, facts: Facts, request_: ResumeRequest
) -> None:
    policy = ResumePolicy(same_model=True, same_version=True)
    situation = Situation(a_pointer(**{field: None}), request_, facts, policy)

    assert situation.verdict(reason).standing is Standing.MISSING
    assert situation.decide().reason is reason


@pytest.mark.parametrize(
    ("pointer", "facts"),
    [
        (a_fork_source(seen=None), {}),
        (a_fork_source(), {"capabilities": None}),
        (a_fork_source(), {"transcript": None}),
        (a_fork_source(), {"transcript": a_transcript(grown=None)}),
    ],
    ids=["what-it-has-seen", "capabilities", "transcript", "growth"],
)
def test_a_fork_misses_each_thing_it_needs(pointer: Pointer, facts: dict[str, Any]) -> None:
    situation = Situation(pointer, facts=some_facts(**facts))

    assert situation.verdict(Reason.FORK_POINT_MOVED).standing is Standing.MISSING
    assert isinstance(situation.decide(), Fresh)


@pytest.mark.parametrize(
    ("facts", "standing"),
    [
        ({"provider_session": NOT_OBSERVABLE, "lock_free": False}, Standing.FAILED),
        ({"provider_session": NOT_OBSERVABLE, "lock_free": None}, Standing.MISSING),
        ({"provider_session": None, "lock_free": NOT_OBSERVABLE}, Standing.MISSING),
        ({"provider_session": ProviderSession(held_by="agent-else"), "lock_free": None}, Standing.FAILED),
        ({"provider_session": NOT_OBSERVABLE, "lock_free": True}, Standing.PASSED),
        ({"provider_session": ProviderSession(), "lock_free": NOT_OBSERVABLE}, Standing.NOT_OBSERVABLE),
    ],
    ids=["locked-unseen", "unseen-missing", "missing-unseen", "held-missing", "unseen-free", "free-unseen"],
)
def test_of_two_signs_of_another_writer_the_worse_one_counts(
    facts: dict[str, Any], standing: Standing
) -> None:
    assert Situation(facts=some_facts(**facts)).verdict(Reason.BUSY).standing is standing


def test_a_program_that_has_the_session_open_is_named_though_our_own_lock_is_free() -> None:
    situation = Situation(facts=some_facts(lock_free=True, other_writer="claude (process 7)"))
    assert isinstance(situation.decide(), Wait)
    assert situation.verdict(Reason.BUSY).evidence == "claude (process 7) has it open"


def test_a_request_without_a_launch_profile_is_refused() -> None:
    assert isinstance(Situation(request=a_request(rights=None)).decide(), Refuse)


@pytest.mark.parametrize("policy", [ResumePolicy(), ResumePolicy(same_model=True, same_version=True)])
def test_without_a_pointer_there_is_nothing_to_guard(policy: ResumePolicy) -> None:
    verdicts = Situation(None, policy=policy).decide().verdicts

    speaking = {verdict.reason for verdict in verdicts if verdict.standing is not Standing.NOT_APPLICABLE}
    assert speaking == {Reason.FORCE_FRESH, Reason.RESUME_DISABLED, Reason.NO_POINTER}


def test_a_claim_that_sees_nothing_of_the_machine_may_resume() -> None:
    claim = some_facts(same_directory=NOT_OBSERVABLE, transcript=NOT_OBSERVABLE, lock_free=NOT_OBSERVABLE)

    assert isinstance(Situation(facts=claim).decide(), Resume)


def test_facts_that_nobody_looked_for_do_not_resume() -> None:
    assert not isinstance(Situation(facts=Facts()).decide(), Resume | Fork)


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        (None, Reason.TRANSCRIPT_MISSING),
        (a_transcript(prefix_intact=False, foreign_turns=None, grown=None), Reason.TRANSCRIPT_ALTERED),
    ],
)
def test_a_session_that_the_vault_can_restore_is_resumed_or_refused_by_the_policy(
    lost: TranscriptFacts | None, reason: Reason
) -> None:
    pointer, facts = a_pointer(), some_facts(transcript=lost, restorable=True)
    asked = Situation(pointer, facts=facts, policy=ResumePolicy(restore="ask"))

    assert isinstance(Situation(pointer, facts=facts).decide(), Resume)
    assert "the next turn restores" in Situation(pointer, facts=facts).verdict(reason).evidence
    assert (type(asked.decide()), asked.decide().reason) == (Refuse, reason)
    assert f"holdfast restore {pointer.session_id} " in asked.verdict(reason).evidence


def test_a_session_that_was_restored_says_so() -> None:
    restored = Situation(facts=some_facts(restored="restored from the vault"))
    assert isinstance(restored.decide(), Resume)
    assert restored.verdict(Reason.TRANSCRIPT_MISSING).evidence == "restored from the vault"


def test_a_session_that_cannot_be_picked_up_is_told_by_what_was_found() -> None:
    """A turn that never ended is no reason: the provider's own session holds its request."""
    gone = Situation(facts=some_facts(transcript=None)).verdict(Reason.TRANSCRIPT_MISSING)
    empty = Situation(facts=some_facts(transcript=a_transcript(requests=0))).verdict(
        Reason.TRANSCRIPT_MISSING
    )
    assert gone.evidence == f"the provider's store does not hold session {a_pointer().provider_session_id}"
    assert empty.evidence == "the provider's session holds no request yet"
